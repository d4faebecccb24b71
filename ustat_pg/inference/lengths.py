"""Squared lengths and inner products of mean vectors, from products of different parts."""

from __future__ import annotations

import math

import numpy as np

from ..validation import Array
from .means import LOW, Interval, Means, shape_of, student, unseen

_PAIRED = 200
"""The least number of parts with products that show the size of products of different parts."""


def pairs(first: Array, second: Array | None = None, looks: float = 1) -> Means:
    """The mean of ⟨u_x, v_y⟩ over pairs of different parts, an unbiased estimate of ⟨E u, E v⟩.

    Vectors u and v are (P, k), P >= 2 (default: v = u); vectors of different parts are independent.
    """
    second = first if second is None else second
    count, left, right = len(first), first.sum(axis=0), second.sum(axis=0)
    own = np.einsum("pk,pk->p", first, second)
    total = float(left @ right - own.sum())
    without = np.full((count, 1), np.nan)
    if count > 2:
        rest = total - (first @ right + second @ left - 2 * own)
        without[:, 0] = rest / ((count - 1) * (count - 2))
    return Means(np.array([total / (count * (count - 1))]), without, looks)


def norm_interval(vectors: Array, looks: float = 1) -> Interval:
    """The 95% interval of ‖E u‖² from independent vectors u, (P, k), P >= 2, as :func:`pairs` estimates it.

    With C = Cov u and v the variance along E u the estimate has variance 4 ‖E u‖² v/P + 2 tr C²/P², which
    grows with ‖E u‖². So the interval has the sizes from which the estimate is not too far in *their own*
    errors, as Wilson's has of a share. Above the estimate v is at least tr C²/tr C, that of an error which
    made it too small, and larger than it looks where few vectors carry it. Below it the skewness of a square
    is taken off, as Cornish and Fisher do.
    """
    low, high, few = _norm_ends(vectors, looks)
    return low, math.inf if few else high


def _norm_ends(vectors: Array, looks: float) -> tuple[float, float, bool]:
    """The ends of the interval of ‖E u‖², and whether larger vectors may be unseen."""
    count, mean = len(vectors), vectors.mean(axis=0)
    apart = vectors - mean
    along, norm = apart @ mean, float(mean @ mean)
    spread = float(np.square(apart).sum()) / (count - 1)
    if count < 3 or not spread > 0:
        same = count > 2 and norm > 0
        return (norm, norm, False) if same else (0.0, 0.0, True)
    _, (freedom,), (carriers,) = shape_of(along[:, None])
    products = np.square(apart[:_PAIRED] @ apart[:_PAIRED].T)
    squares = float((products.sum() - np.trace(products)) / len(products) / (len(products) - 1))
    width = student(freedom, looks) ** 2
    own = float(along @ along) / (count - 1) / norm if norm > 0 else 0.0
    value, rest = norm - spread / count, 2 * squares / count**2

    def far(value: float, slope: float, more: float) -> tuple[float, float]:
        # (value - r)² = width (slope r + more).
        middle = value + width * slope / 2
        root = math.sqrt(max(middle**2 - value**2 + width * more, 0.0))
        return middle - root, middle + root

    most = max(own, squares / spread) * (1 + LOW / max(carriers, 1.0))
    below, above = (4 * v / count for v in (own, most))
    less = value - (width - 1) * own / count
    low = far(less, below, rest)[0] if less > 0 else 0.0
    _, high = far(value, above, rest + (below - above) * max(value, 0.0))
    return max(low, 0.0), max(high, 0.0), bool(unseen(carriers, count))


def product_interval(first: Array, second: Array, looks: float = 1) -> Interval:
    """The 95% interval of ⟨E u, E v⟩ from independent pairs of vectors u and v, (P, k) each, P >= 2.

    Of ‖E (u + v)/2‖² - ‖E (u - v)/2‖², u and v brought to one length, by the intervals of the two (Donner and
    Zou, 2012): where u is v it is :func:`norm_interval`.
    """
    lengths = [float(np.square(each).sum()) for each in (first, second)]
    scale = (lengths[1] / lengths[0]) ** 0.25 if min(lengths) > 0 else 1.0
    one, other = first * (scale / 2), second / (scale * 2)
    more, less = one + other, one - other
    value, taken = (float(pairs(each).full[0]) for each in (more, less))
    (low, high, _), (least, most, _) = (_norm_ends(each, looks) for each in (more, less))
    down = math.hypot(max(value - low, 0.0), max(most - taken, 0.0))
    up = math.hypot(max(high - value, 0.0), max(taken - least, 0.0))
    # If few vectors carry the product, larger ones may be unseen, so an end is not known.
    below, above = (math.isinf(float(end[0])) for end in pairs(first, second).interval())
    return (
        -math.inf if below else value - taken - down,
        math.inf if above else value - taken + up,
    )
