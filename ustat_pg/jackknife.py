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
LIKELY = 0.3
"""Looks at which an interval has errors of 17%: a signal whose own begins above 0 is likely there."""
_SQUARED_ANGLE = math.sqrt(8)
"""The skewness of a squared normal number, which 1 less the cosine of a small angle is."""
_LEAN = 0.4
"""The skewness of a mean that is taken for granted at most."""
_PAIRED = 200
"""Parts whose products tell how large those of different parts are."""
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
        without_two: the same without two parts, (P, P, Q), whose diagonal is not read: errors then hold what
            two parts make together, which of few parts may be most. None where it is not known.
        tail: errors that the end away from 0 is off at least, of a law whose largest values no sample shows.
    """

    full: Array
    without: Array
    looks: float = 1
    parts: str = "prompts"
    without_two: Array | None = None
    tail: float = 0.0

    def apply(self, function: Callable[[Array], Array]) -> Means:
        """The same of a function of the means; it maps (..., Q) to (..., Q')."""
        two = self.without_two
        return replace(
            self,
            full=function(self.full),
            without=function(self.without),
            without_two=None if two is None else function(two),
        )

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
        alone: Array = self.influences.T @ self.influences / max(count * (count - 1), 1)
        if self.without_two is None or count < 4:
            return alone
        both = (count - 2) * (count - 3) * self.without_two
        one = (count - 1) * (count - 2) * self.without
        both = count * (count - 1) * self.full - one[:, None] - one + both
        both[np.arange(count), np.arange(count)] = 0.0
        # Less its mean, and what either part makes alone: twice the second term of Hoeffding's.
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


def means(columns: Array, looks: float = 1, parts: str = "prompts") -> Means:
    """Means of columns (P, Q), a row for each part."""
    # From the mean, so that columns that are all alike have no error at all.
    mean, left = columns.mean(axis=0), len(columns) - 1
    without = mean - (columns - mean) / left if left else np.full_like(columns, np.nan)
    return Means(mean, without, looks, parts)


def beside(*several: Means) -> Means:
    """Means of the same parts, one after the other."""
    twice = [each.without_two for each in several if each.without_two is not None]
    return replace(
        several[0],
        full=np.concatenate([each.full for each in several]),
        without=np.concatenate([each.without for each in several], axis=1),
        without_two=np.concatenate(twice, axis=2) if len(twice) == len(several) else None,
    )


def pairs(first: Array, second: Array | None = None, looks: float = 1) -> Means:
    """The mean of ⟨u_x, v_y⟩ over pairs of different parts, which is ⟨E u, E v⟩ without bias.

    Vectors u and v are (P, k), P >= 2, v those of u unless given; those of different parts are independent.
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
    """The ends of ‖E u‖², and whether larger vectors may be unseen."""
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
    # Where few carry the product larger ones may be unseen: an end is not known.
    below, above = (math.isinf(float(end[0])) for end in pairs(first, second).interval())
    return (
        -math.inf if below else value - taken - down,
        math.inf if above else value - taken + up,
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
        apart = replace(both, tail=0.0).apply(lambda columns: (columns - both.full) @ line[:, None])
        down, up = (abs(float(end[0])) for end in apart.interval())
        size = float(apart.se[0])
        down, up = (end / size if size > 0 else 0.0 for end in (down, up))
        # Either of the two may be larger than it looks.
        down, up = max(down, both.tail / 2), max(up, both.tail / 2)
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


def within(found: Estimate, ends: Interval) -> Estimate:
    """An estimate with another interval, and a reason where an end of that is not known alone."""
    known = math.isfinite(ends[0]) and math.isfinite(ends[1])
    reason = found.reason or "few carry it, and larger ones may be unseen"
    return replace(found, low=ends[0], high=ends[1], reason=None if known else reason)


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


def alignment(three: Means, first: bool, second: bool) -> tuple[Estimate, Estimate]:
    """⟨u, v⟩/‖v‖² and the cosine between u and v, from ‖u‖², ⟨u, v⟩ and ‖v‖².

    Arguments:
        three: the means.
        first, second: whether ‖u‖² and ‖v‖² are distinguishable from 0; where what divides is not, ends are
            the least and the most that there can be.
    """
    return (
        _over(three, lambda c: c[..., 1] / c[..., 2], second, math.inf, -math.inf),
        _over(
            three,
            lambda c: c[..., 1] / np.sqrt(c[..., 0] * c[..., 2]),
            first and second,
            1.0,
            _SQUARED_ANGLE,
        ),
    )


def _over(
    parts: Means, function: Callable[[Array], Array], known: bool, most: float, skewness: float
) -> Estimate:
    """A ratio of at most ``most``; ``skewness`` is that of what it is below that, at least."""
    with np.errstate(invalid="ignore", divide="ignore"):
        below = parts.apply(lambda columns: -function(columns)[..., None]).estimate(0, skewness)
    found = replace(below, value=-below.value, low=-below.high, high=-below.low)
    if found.se <= _ROUNDING:
        # The same vectors, or multiples of them.
        return replace(found, low=found.value, high=found.value, reason=None)
    if not known:
        reason = "a gradient is not distinguishable from 0"
        return replace(found, low=-most, high=most, reason=reason)
    value, low, high = (max(-most, min(most, end)) for end in (found.value, *found.interval))
    return replace(found, value=value, low=low, high=high)
