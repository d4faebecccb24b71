"""Means of independent parts, functions of these means, and their 95% intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..validation import Array
from .estimate import Estimate

Interval = tuple[float, float]

ERRORS = 0.05
"""The error rate of intervals, for all looks together."""
_CARRIERS = 2.5
"""The least effective number of parts, (Σd²)²/Σd⁴, behind the spread for which an end is known."""
FEW = 5
"""The number of parts below which the law is not visible, so that intervals are Student's."""
_LEAST_FREEDOM = 4.0
LOW = 2.0
"""The skewness of a sample is too small by about this number divided by the parts that carry its spread."""
SQUARE = 1.5
"""The least skewness of the square of a mean if at least four parts determine it in one direction."""
LIKELY = 0.3
"""Looks at which an interval has errors of 17%: a signal whose own begins above 0 is likely there."""
_LEAN = 0.4
"""The largest skewness of a mean that is assumed."""
_GRID = np.linspace(0.0, 1.0, 1025)
_PARTS = np.linspace(0.0, 1.0, 33)[1:, None]


def student(freedom: float, looks: float = 1) -> float:
    """Student's quantile of a 95% interval, with the 5% split over looks; infinite for 0 degrees of freedom.

    With t = √ν tan a its density is cos(a)^(ν-1) in the angle a, which is added up.

    >>> round(student(1), 3), round(student(49), 3), round(student(49, looks=4), 3)
    (12.706, 2.01, 2.593)
    """
    if not freedom > 0:
        return math.inf
    angles = _GRID * min(math.pi / 2, 14 / math.sqrt(freedom))
    density = np.cos(angles) ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    angle = float(np.interp(1 - ERRORS / looks, below / below[-1], angles))
    return math.sqrt(freedom) * math.tan(angle)


@dataclass(frozen=True)
class Means:
    """Means over parts, and means without each part, for a jackknife.

    Arguments:
        full: the means, (Q,).
        without: means without each part, (P, Q).
        looks: number of looks that share the 5% of errors.
        parts: word for the parts.
        without_two: means without two parts, (P, P, Q), with an unused diagonal: errors then include the
            joint effect of two parts, which may dominate if there are few parts. None if it is not known.
        tail: least number of errors between the estimate and the end away from 0, for a law with largest
            values that samples do not show; for each mean, (Q,), or one for all.
    """

    full: Array
    without: Array
    looks: float = 1
    parts: str = "prompts"
    without_two: Array | None = None
    tail: Array | float = 0.0

    def apply(self, function: Callable[[Array], Array], tail: Array | float | None = None) -> Means:
        """A function of the means, which maps (..., Q) to (..., Q').

        Arguments:
            function: of the means.
            tail: tail of its columns (default: the largest of the means).
        """
        two = self.without_two
        return replace(
            self,
            full=function(self.full),
            without=function(self.without),
            without_two=None if two is None else function(two),
            tail=self.tail_of_all if tail is None else tail,
        )

    def estimate(self, place: int, skewness: float = -math.inf) -> Estimate:
        """One of the means, with its error, its interval (:meth:`interval`), and why an end is unknown."""
        low, high = (float(end[place]) for end in self.interval(skewness))
        value, se = float(self.full[place]), float(self.se[place])
        return Estimate(value, se, low, high, self.carried(place))

    @property
    def tail_of_all(self) -> float:
        """The largest tail of the means."""
        return float(np.max(self.tail))

    @cached_property
    def influences(self) -> Array:
        """The influence of each part on the estimates, with mean 0, (P, Q); NaN for one part."""
        count = len(self.without)
        if count < 2:
            return np.full_like(self.without, np.nan)
        return (count - 1) * (self.without.mean(axis=0) - self.without)

    @cached_property
    def covariance(self) -> Array:
        """The covariance of the estimates, (Q, Q), by the delete-one jackknife; NaN if there is one part."""
        count = len(self.without)
        alone: Array = self.influences.T @ self.influences / max(count * (count - 1), 1)
        if self.without_two is None or count < 4:
            return alone
        both = (count - 2) * (count - 3) * self.without_two
        one = (count - 1) * (count - 2) * self.without
        both = count * (count - 1) * self.full - one[:, None] - one + both
        both[np.arange(count), np.arange(count)] = 0.0
        # Minus its mean and the effects of single parts, this is twice the second term of Hoeffding's
        # decomposition.
        rows, pairs = both.sum(axis=1), count * (count - 1)
        own = (rows - rows.mean(axis=0)) / (count - 2)
        both -= rows.sum(axis=0) / pairs + own[:, None] + own
        both[np.arange(count), np.arange(count)] = 0.0
        free = count * (count - 3)
        return alone + np.einsum("ijq,ijr->qr", both, both) / (2 * pairs * free)

    @property
    def se(self) -> Array:
        """Standard errors, (Q,)."""
        return np.sqrt(np.diagonal(self.covariance))

    @cached_property
    def carriers(self) -> Array:
        """The effective number of parts that carry the spread of each estimate, (Σd²)²/Σd⁴, (Q,); 0 if there
        is no spread.
        """
        return shape_of(self.influences)[2]

    def interval(self, skewness: float = -math.inf) -> tuple[Array, Array]:
        """The 95% intervals, for all looks together; unknown ends are infinite.

        Arguments:
            skewness: lower bound of a part's skewness, independent of the sample; less is used for few parts.
        """
        count, se = len(self.without), self.se
        seen, freedom, carriers = shape_of(self.influences)
        least = min(skewness, _LEAN * math.sqrt(count)) if count >= FEW else -math.inf
        leaning = np.maximum(seen * (1 + LOW / np.maximum(carriers, 1.0)), least)
        width = np.array([student(each, self.looks) for each in freedom])
        down, up = (_reach(width, lean, count) for lean in (-leaning, leaning))
        up = np.where(self.full < 0, up, np.maximum(up, self.tail))
        down = np.where(self.full < 0, np.maximum(down, self.tail), down)
        with np.errstate(invalid="ignore"):
            low, high = self.full - down * se, self.full + up * se
        same = (se == 0) & (self.full != 0)
        low, high = (np.where(same, self.full, end) for end in (low, high))
        few = ~same & unseen(carriers, count)
        unknown = ~np.isfinite(se) | few & (carriers == 0)
        return (
            np.where(unknown | few & (seen < 0), -np.inf, low),
            np.where(unknown | few, np.inf, high),
        )

    def carried(self, place: int) -> str | None:
        """The reason for an unknown end of an interval, in words; None if both ends are known."""
        count, carriers = len(self.without), self.carriers[place]
        same = self.se[place] == 0 and self.full[place] != 0
        if same or not unseen(carriers, count):
            return None
        values = np.abs(self.full[place] + self.influences[:, place])
        if np.isnan(values).any():
            return f"{count} {self.parts} do not show its error"
        if not values.any():
            return f"none of {count} {self.parts} shows any of it"
        few = max(round(carriers), 1)
        share = np.sort(values)[count - few :].sum() / values.sum()
        return (
            f"{few} of {count} {self.parts} carry {share:.0%} of it, and larger ones may be unseen"
        )


def shape_of(influences: Array) -> tuple[Array, Array, Array]:
    """Skewness, degrees of freedom of the error, and carriers of influences (P, Q); (Q,) each."""
    count = len(influences)
    size = np.sqrt(np.square(influences).mean(axis=0))
    scaled = influences / np.where(size > 0, size, 1.0)
    fourth = np.where(size > 0, (scaled**4).mean(axis=0), np.nan)
    freedom = np.full(size.shape, float(count - 1))
    if count < FEW:
        return np.zeros_like(size), freedom, np.nan_to_num(count / fourth)
    skewness = (scaled**3).mean(axis=0) * math.sqrt(count * (count - 1)) / (count - 2)
    heavy = np.maximum(2 * count / np.maximum(fourth - 1, 1e-9), _LEAST_FREEDOM)
    return skewness, np.fmin(freedom, heavy), np.nan_to_num(count / fourth)


def unseen(carriers: Array, count: int) -> NDArray[np.bool_]:
    """Whether so few parts carry the spread that larger ones may be unseen."""
    return (carriers < _CARRIERS) & ((count >= FEW) | (carriers == 0))


def _reach(width: Array, skewness: Array, count: int) -> Array:
    """Hall's cubic inverted: how far a mean may be on the side that it is skewed to, in its own errors.

    The cubic turns back where a law is very skewed. No end is nearer than that of a smaller skewness.
    """
    lean = np.where(skewness > 1e-6, skewness, np.nan) / math.sqrt(count) * _PARTS
    far = 3 / lean * (1 - np.cbrt(1 - lean * (width + lean / 6)))
    return np.fmax(width, far.max(axis=0))


def means(columns: Array, looks: float = 1, parts: str = "prompts") -> Means:
    """The means of columns (P, Q), with a row for each part."""
    # The mean is subtracted first, so that constant columns have no error at all.
    mean, left = columns.mean(axis=0), len(columns) - 1
    without = mean - (columns - mean) / left if left else np.full_like(columns, np.nan)
    return Means(mean, without, looks, parts)


def beside(*several: Means) -> Means:
    """Means of the same parts, joined in one record."""
    twice = [each.without_two for each in several if each.without_two is not None]
    return replace(
        several[0],
        tail=max(each.tail_of_all for each in several),
        full=np.concatenate([each.full for each in several]),
        without=np.concatenate([each.without for each in several], axis=1),
        without_two=np.concatenate(twice, axis=2) if len(twice) == len(several) else None,
    )
