"""Mixtures of laws, and the distance of two laws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from ..display.shown import Shown
from ..validation import Array, InputError
from .weighted_chi2 import WeightedChi2

_LEVELS = 64
_ROUNDS = 200


class _Law(Protocol):
    """The methods of a law, as in SciPy's frozen continuous distributions."""

    def cdf(self, x: Any, /) -> Any: ...

    def ppf(self, q: Any, /) -> Any: ...


@dataclass(frozen=True, eq=False)
class MixtureLaw(Shown):
    """The law of T gap_T if the covariance depends on the endpoint (Theorem 8, Assumption 8).

    P(Q <= x) = Σ_m p_m P(Q_m <= x)

    Arguments:
        laws: laws given each endpoint, (m,).
        probs: probabilities of the endpoints, (m,), sum to 1.

    >>> law = MixtureLaw([WeightedChi2([1.0]), WeightedChi2([4.0])], [0.5, 0.5])
    >>> float(law.mean()), f"{law.cdf(law.ppf(0.3)):.12f}"
    (2.5, '0.300000000000')
    """

    laws: Sequence[WeightedChi2]
    probs: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "laws", tuple(self.laws))
        object.__setattr__(self, "probs", np.asarray(self.probs))

    def _mean_of(self, values: list[Any]) -> Any:
        return np.tensordot(self.probs, np.stack(values), axes=1)[()]

    def cdf(self, x: ArrayLike) -> Any:
        """P(Q <= x), of the shape of x."""
        return self._mean_of([law.cdf(x) for law in self.laws])

    def sf(self, x: ArrayLike) -> Any:
        """P(Q > x), of the shape of x."""
        return self._mean_of([law.sf(x) for law in self.laws])

    def pdf(self, x: ArrayLike) -> Any:
        """The density, of the shape of x."""
        return self._mean_of([law.pdf(x) for law in self.laws])

    def ppf(self, q: ArrayLike) -> Any:
        """The x with P(Q <= x) = q, of the shape of q; NaN outside [0, 1]."""
        levels = np.asarray(q, dtype=float)
        ends = np.stack([np.asarray(law.ppf(levels)) for law in self.laws])
        # The components' quantiles bracket the mixture's quantile.
        out, top = np.array(ends.min(axis=0)), ends.max(axis=0)
        inside = np.isfinite(out) & (out < top)
        low, high, wanted = out[inside], top[inside], levels[inside]
        for _ in range(_ROUNDS):
            middle = low + (high - low) / 2
            if not ((low < middle) & (middle < high)).any():
                break
            below = np.asarray(self.cdf(middle)) < wanted
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        out[inside] = high
        return out[()]

    def mean(self) -> float:
        """E Q."""
        return float(self._mean_of([law.mean() for law in self.laws]))

    def var(self) -> float:
        """E Var(Q_m) + Var E(Q_m)."""
        centre = self.mean()
        return float(self._mean_of([law.var() + (law.mean() - centre) ** 2 for law in self.laws]))


def sup_distance(one: _Law, other: _Law, tolerance: float = 1e-5) -> float:
    """The distance sup_x |F(x) - H(x)| of two laws, which a Kolmogorov-Smirnov test measures.

    On [a, b] no difference exceeds max(F(b) - H(a), H(b) - F(a)), since both rise; intervals between
    quantiles are halved while that is more than the tolerance above the largest difference found.

    Arguments:
        one, other: laws with ``cdf`` and ``ppf``: :class:`WeightedChi2`, :class:`MixtureLaw`, SciPy's.
        tolerance: a number from 1e-9 to 0.1.

    Returns:
        An attained difference; the supremum exceeds it by at most the tolerance.

    Raises:
        InputError: both laws jump at the same place.

    >>> f"{sup_distance(WeightedChi2([1.0]), WeightedChi2([4.0])):.4f}"
    '0.3227'
    """
    # Beyond the ends both laws have less than the tolerance left.
    levels = np.clip(np.linspace(0, 1, _LEVELS), tolerance / 4, 1 - tolerance / 4)
    points = np.unique(np.concatenate([one.ppf(levels), other.ppf(levels)]))
    first, second = np.asarray(one.cdf(points)), np.asarray(other.cdf(points))
    best = float(np.abs(first - second).max())
    low = np.stack([points[:-1], first[:-1], second[:-1]])
    high = np.stack([points[1:], first[1:], second[1:]])
    for _ in range(_ROUNDS):
        reach = np.maximum(high[1] - low[2], high[2] - low[1])
        open_ = reach > best + tolerance
        if not open_.any():
            return best
        low, high = low[:, open_], high[:, open_]
        places = low[0] + (high[0] - low[0]) / 2
        if not ((low[0] < places) & (places < high[0])).all():
            break
        middle = np.stack([places, one.cdf(places), other.cdf(places)])
        best = max(best, float(np.abs(middle[1] - middle[2]).max()))
        low, high = np.concatenate([low, middle], axis=1), np.concatenate([middle, high], axis=1)
    raise InputError("both laws jump at the same place: one of them must be continuous there")
