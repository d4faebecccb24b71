"""Ratios of two means, ratios of these ratios, and the cosine of two mean vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..rounding import DERIVED
from ..validation import Array
from .estimate import Estimate
from .means import Interval, Means, beside

_SQUARED_ANGLE = math.sqrt(8)
"""The skewness of a squared normal number, which 1 less the cosine of a small angle is."""


def ratio(both: Means, denominator: Interval | None = None) -> Estimate:
    """The first of two means divided by the second, infinite if the second is not positive.

    Its error comes from the delta method, and its interval from :func:`ratio_interval`.
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
        denominator: its interval, if one other than that of a mean is known. The errors on each side then
            come from the two intervals (Donner and Zou, 2012).

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
        apart = both.apply(lambda columns: (columns - both.full) @ line[:, None], tail=0.0)
        down, up = (abs(float(end[0])) for end in apart.interval())
        size = float(apart.se[0])
        down, up = (end / size if size > 0 else 0.0 for end in (down, up))
        # Each of the two may be larger than it looks.
        down, up = (max(end, both.tail_of_all / 2) for end in (down, up))
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
    """An estimate with another interval, and a reason if only an end of that interval is unknown."""
    known = math.isfinite(ends[0]) and math.isfinite(ends[1])
    reason = found.reason or "few carry it, and larger ones may be unseen"
    return replace(found, low=ends[0], high=ends[1], reason=None if known else reason)


def log_ratio(first: Means, second: Means) -> Estimate:
    """The quotient of two ratios of the same parts, each from two columns, by paired logarithms.

    It is NaN if a column is not positive.
    """

    def logs(four: Array) -> Array:
        signs = np.array([1.0, -1.0, -1.0, 1.0])
        positive = (four > 0).all(axis=-1, keepdims=True)
        return np.where(positive, np.log(np.where(positive, four, 1.0)) @ signs[:, None], np.nan)

    log = beside(first, second).apply(logs).estimate(0)
    value = math.exp(log.value)
    se = value * log.se
    if log.se <= DERIVED:
        return Estimate(value, se, value, value)
    high = math.exp(log.high) if log.high < math.inf else math.inf
    return Estimate(value, se, math.exp(log.low), high)


def alignment(three: Means, first: bool, second: bool) -> tuple[Estimate, Estimate]:
    """⟨u, v⟩/‖v‖² and the cosine between u and v, from ‖u‖², ⟨u, v⟩ and ‖v‖².

    Arguments:
        three: the means.
        first, second: whether ‖u‖² and ‖v‖² are distinguishable from 0; if a divisor is not, the ends are the
            least and largest possible values.
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
    """A ratio of at most ``most``; ``skewness`` is a lower bound of the skewness below that."""
    with np.errstate(invalid="ignore", divide="ignore"):
        below = parts.apply(lambda columns: -function(columns)[..., None]).estimate(0, skewness)
    found = replace(below, value=-below.value, low=-below.high, high=-below.low)
    if found.se <= DERIVED:
        # The vectors are equal, or multiples of each other.
        return replace(found, low=found.value, high=found.value, reason=None)
    if not known:
        reason = "a gradient is not distinguishable from 0"
        return replace(found, low=-most, high=most, reason=reason)
    value, low, high = (max(-most, min(most, end)) for end in (found.value, *found.interval))
    return replace(found, value=value, low=low, high=high)
