"""Means of independent parts, functions of such means, and their 95% intervals.

Parts are the prompts of a pool or the steps of a training. What a function of their means owes to each part
is known from the function without it (the jackknife). From these influences come standard errors, and
intervals that follow three things which a normal law forgets:

- *skewness*: few parts are much larger than all others. Ends are those of Student's law through Hall's
  (1992) cubic, which takes the skewness out of a mean over its error, where they are the wider ones: parts
  that were not seen may have made it look skewed to the other side. What k parts carry is more skewed than
  it looks, by about 2/k of it;
- *heavy tails*: an error estimated from parts of kurtosis κ has about 2n/(κ - 1) degrees of freedom;
- *what was not seen*: where hardly more than two parts carry the spread, parts that are larger still may be
  missing, and the end on their side is not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .estimate import Estimate

Array = NDArray[np.float64]
Interval = tuple[float, float]

ERRORS = 0.05
"""The share of intervals that miss, at all looks together."""
_CARRIERS = 2.5
"""Parts that must carry the spread, as (Σd²)²/Σd⁴ counts them, for an end to be known."""
FEW = 5
"""Parts below which no law can be seen: intervals are Student's."""
_LEAST_FREEDOM = 4.0
LOW = 2.0
"""The skewness of a sample is too small by about this over the parts that carry its spread."""
SQUARE = 1.5
"""The skewness that a square of a mean has at least where four or more parts set it in one direction."""
_LEAN = 0.4
"""The skewness of a mean that is taken for granted at most."""
_ROUNDING = 1e-12
"""The relative error of a ratio that is the same for all parts."""
_GRID = np.linspace(0.0, 1.0, 1025)
_PARTS = np.linspace(0.0, 1.0, 33)[1:, None]


def student(freedom: float, looks: float = 1) -> float:
    """Student's quantile of a 95% interval, its 5% split over the looks; infinite for no freedom.

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
    """Means over parts, and the same without each part, for a jackknife.

    Arguments:
        full: the means, (Q,).
        without: the same without each part, (P, Q).
        looks: which share the 5% of errors.
        parts: what they are over, in words.
    """

    full: Array
    without: Array
    looks: int = 1
    parts: str = "prompts"

    def apply(self, function: Callable[[Array], Array]) -> Means:
        """The same of a function of the means; it maps (..., Q) to (..., Q')."""
        return replace(self, full=function(self.full), without=function(self.without))

    def estimate(self, place: int, skewness: float = -math.inf) -> Estimate:
        """One of them, with its error and its interval (:meth:`interval`), and why an end is not known."""
        low, high = (float(end[place]) for end in self.interval(skewness))
        value, se = float(self.full[place]), float(self.se[place])
        return Estimate(value, se, low, high, self.carried(place))

    @cached_property
    def influences(self) -> Array:
        """The influence of each part on the estimates, about 0, (P, Q); NaN for one part."""
        count = len(self.without)
        if count < 2:
            return np.full_like(self.without, np.nan)
        return (count - 1) * (self.without.mean(axis=0) - self.without)

    @cached_property
    def covariance(self) -> Array:
        """Covariance of the estimates, (Q, Q), by the delete-one jackknife; NaN where there is one part."""
        count = len(self.without)
        return self.influences.T @ self.influences / max(count * (count - 1), 1)

    @property
    def se(self) -> Array:
        """Standard errors, (Q,)."""
        return np.sqrt(np.diagonal(self.covariance))

    @cached_property
    def carriers(self) -> Array:
        """How many parts carry the spread of each estimate, (Σd²)²/Σd⁴; 0 where there is none, (Q,)."""
        return shape_of(self.influences)[2]

    def interval(self, skewness: float = -math.inf) -> tuple[Array, Array]:
        """95% intervals, at all looks together; ends that are not known are infinite.

        Arguments:
            skewness: what that of a part is at least, whatever some parts show; of few less is taken.
        """
        count, se = len(self.without), self.se
        seen, freedom, carriers = shape_of(self.influences)
        least = min(skewness, _LEAN * math.sqrt(count)) if count >= FEW else -math.inf
        leaning = np.maximum(seen * (1 + LOW / np.maximum(carriers, 1.0)), least)
        width = np.array([student(each, self.looks) for each in freedom])
        with np.errstate(invalid="ignore"):
            low = self.full - _reach(width, -leaning, count) * se
            high = self.full + _reach(width, leaning, count) * se
        same = (se == 0) & (self.full != 0)
        low, high = (np.where(same, self.full, end) for end in (low, high))
        few = ~same & unseen(carriers, count)
        unknown = ~np.isfinite(se) | few & (carriers == 0)
        return (
            np.where(unknown | few & (seen < 0), -np.inf, low),
            np.where(unknown | few, np.inf, high),
        )

    def carried(self, place: int) -> str | None:
        """Why an end of an interval is not known, in words; None where both are."""
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
    """Whether so few of the parts carry a spread that larger ones may not have been seen."""
    return (carriers < _CARRIERS) & ((count >= FEW) | (carriers == 0))


def _reach(width: Array, skewness: Array, count: int) -> Array:
    """Hall's cubic inverted: how far a mean may be on the side that it is skewed to, in its own errors.

    The cubic turns back where a law is very skewed. No end is nearer than that of a smaller skewness.
    """
    lean = np.where(skewness > 1e-6, skewness, np.nan) / math.sqrt(count) * _PARTS
    far = 3 / lean * (1 - np.cbrt(1 - lean * (width + lean / 6)))
    return np.fmax(width, far.max(axis=0))


def means(columns: Array, looks: int = 1, parts: str = "prompts") -> Means:
    """Means of columns (P, Q), a row for each part."""
    # From the mean, so that columns that are all alike have no error at all.
    mean, left = columns.mean(axis=0), len(columns) - 1
    without = mean - (columns - mean) / left if left else np.full_like(columns, np.nan)
    return Means(mean, without, looks, parts)


def beside(*several: Means) -> Means:
    """Means of the same parts, one after the other."""
    return replace(
        several[0],
        full=np.concatenate([each.full for each in several]),
        without=np.concatenate([each.without for each in several], axis=1),
    )


def ratio(both: Means, denominator: Interval | None = None) -> Estimate:
    """The first of two means over the second, infinite where that is not positive.

    Its error is that of the delta method, its interval :func:`ratio_interval`.
    """
    top, bottom = both.full.tolist()
    ends = ratio_interval(both, denominator)
    if not bottom > 0:
        return Estimate(math.nan if math.isnan(bottom) else math.inf, math.nan, *ends)
    slope = np.array([1.0, -top / bottom]) / bottom
    se = math.sqrt(max(float(slope @ both.covariance @ slope), 0.0))
    return Estimate(top / bottom, se, *ends)


def ratio_interval(both: Means, denominator: Interval | None = None) -> Interval:
    """The 95% interval of a ratio of two positive quantities, from 0 to at most infinity.

    Fieller's: the ratios r for which numerator - r denominator may be 0, at the quantiles that this
    difference has where r is the estimate. Where the denominator may be 0 no ratio is too large.

    Arguments:
        both: numerator and denominator.
        denominator: its interval, where another than that of a mean is known. The errors on each side
            are then those of the two intervals (Donner and Zou, 2012).

    >>> apart = np.array([[0.1, 0.1], [0.1, -0.1], [-0.1, 0.1], [-0.1, -0.1]])
    >>> low, high = ratio_interval(Means(np.array([6.0, 2.0]), [6.0, 2.0] + apart))
    >>> round(low, 3), round(high, 3)
    (2.307, 4.186)
    """
    (top, bottom), (error, other) = both.full.tolist(), both.se.tolist()
    if not np.isfinite([top, bottom, error, other]).all():
        return 0.0, math.inf
    if denominator is None:
        line = np.array([1.0, -top / bottom]) if bottom > 0 else np.array([0.0, -1.0])
        apart = both.apply(lambda columns: (columns - both.full) @ line[:, None])
        down, up = (abs(float(end[0])) for end in apart.interval())
        size = float(apart.se[0])
        down, up = (end / size if size > 0 else 0.0 for end in (down, up))
        below, above = (down * error, down * other), (up * error, up * other)
    else:
        (lowest, _), (highest, _) = np.array(both.interval()).tolist()
        least, most = denominator
        below, above = (top - lowest, most - bottom), (highest - top, bottom - least)
    along = float(both.covariance[0, 1] / (error * other)) if error * other > 0 else 0.0

    def terms(first: float, second: float) -> tuple[float, float, float]:
        # a r² - 2 b r + c <= 0.
        a, b, c = bottom**2 - second**2, top * bottom - along * first * second, top**2 - first**2
        return a, b + math.sqrt(max(b * b - a * c, 0.0)), c

    low, high = 0.0, math.inf
    if np.isfinite(below).all():
        _, root, c = terms(*below)
        low = c / root if c > 0 and root > 0 and top > 0 else 0.0
    if np.isfinite(above).all() and bottom > above[1]:
        a, root, _ = terms(*above)
        high = max(root / a, 0.0)
    return low, high


def log_ratio(first: Means, second: Means) -> Estimate:
    """One ratio over another of the same parts, each of two columns, by paired logarithms.

    NaN where a column is not positive.
    """

    def logs(four: Array) -> Array:
        signs = np.array([1.0, -1.0, -1.0, 1.0])
        positive = (four > 0).all(axis=-1, keepdims=True)
        return np.where(positive, np.log(np.where(positive, four, 1.0)) @ signs[:, None], np.nan)

    log = beside(first, second).apply(logs).estimate(0)
    value = math.exp(log.value)
    se = value * log.se
    if log.se <= _ROUNDING:
        return Estimate(value, se, value, value)
    high = math.exp(log.high) if log.high < math.inf else math.inf
    return Estimate(value, se, math.exp(log.low), high)
