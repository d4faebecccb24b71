"""Statistical assertions on means of draws, for what is too large to enumerate, or random by itself.

Each assertion stands beside the smallest gap that it detects and the replications that it needs, as in
TensorFlow Probability's ``statistical_testing``. Both error rates are named: a true statement fails with a
chance of at most ``false_alarm``, and one that is off by the gap passes with a chance of at most ``miss``,
whatever the law of the draws, as long as they are independent and lie in a known range of width w. With the
sample's variance V̂ (Maurer and Pontil, 2009, theorem 4), but with a chance of δ on either side,

    |mean - μ| <= √(2 V̂ ln(2/δ) / n) + 7 w ln(2/δ) / (3 (n - 1)).

What is detected adds the most that V̂ and the mean are off in a share ``miss`` of samples, by the same paper's
theorem 10 and by Bernstein's inequality.
"""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import ArrayLike

from ..validation import InputError, finite_array, integer, number, positive
from .function import Violation, reports

FALSE_ALARM, MISS = 1e-6, 1e-3
"""The error rates unless given: one false alarm in a million runs of a test."""

_MOST = 2**62


@reports
def assert_mean_equal(
    values: ArrayLike,
    expected: float,
    *,
    low: float,
    high: float,
    false_alarm: float = FALSE_ALARM,
) -> None:
    """Assert that independent draws have this mean.

    Arguments:
        values: draws, (n,), n at least 2.
        expected: the mean that they should have.
        low, high: the range of a draw.
        false_alarm: chance that it fails though the mean is as expected.

    Raises:
        AssertionError: the mean is another; the message says by how much at least.
        InputError: values outside the range, fewer than 2, or a rate that is none.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> coins = rng.integers(0, 2, mean_equal_needs(0.1, low=0, high=1))
    >>> assert_mean_equal(coins, 0.5, low=0, high=1)
    >>> assert_mean_equal(coins, 0.6, low=0, high=1)
    Traceback (most recent call last):
    ...
    AssertionError: the mean of 3299 draws is 0.5162 ± 0.0587, and 0.6 is expected: it is off by 0.025 at ...
    """
    _refuse(values, float(number("expected", expected)), (low, high), false_alarm, sides=2)


def mean_equal_detects(
    replications: int,
    *,
    low: float,
    high: float,
    variance: float | None = None,
    false_alarm: float = FALSE_ALARM,
    miss: float = MISS,
) -> float:
    """The smallest gap of the mean that :func:`assert_mean_equal` detects.

    Arguments:
        replications: n, at least 2.
        low, high, false_alarm: those of the assertion.
        variance: of a draw; the largest in the range, w²/4, unless given.
        miss: chance that a mean that is off by the gap passes.
    """
    return _detects(replications, (low, high), variance, false_alarm, miss, sides=2)


def mean_equal_needs(
    gap: float,
    *,
    low: float,
    high: float,
    variance: float | None = None,
    false_alarm: float = FALSE_ALARM,
    miss: float = MISS,
) -> int:
    """The replications from which on :func:`assert_mean_equal` detects a gap of the mean.

    Arguments:
        gap: how far the mean is from the one expected, positive.
        low, high, variance, false_alarm, miss: those of :func:`mean_equal_detects`.
    """
    return _needs(gap, (low, high), variance, false_alarm, miss, sides=2)


@reports
def assert_mean_at_most(
    values: ArrayLike,
    bound: float,
    *,
    low: float,
    high: float,
    false_alarm: float = FALSE_ALARM,
) -> None:
    """Assert that the mean of independent draws is at most a bound; arguments of :func:`assert_mean_equal`.

    Of the other direction take the negative values: the mean of -x is at most -bound.

    >>> assert_mean_at_most([0.0, 1.0] * 3000, 0.6, low=0, high=1)
    """
    _refuse(values, float(number("bound", bound)), (low, high), false_alarm, sides=1)


def mean_at_most_detects(
    replications: int,
    *,
    low: float,
    high: float,
    variance: float | None = None,
    false_alarm: float = FALSE_ALARM,
    miss: float = MISS,
) -> float:
    """How far the mean is above the bound, at least, for :func:`assert_mean_at_most` to detect it.

    Arguments are those of :func:`mean_equal_detects`.
    """
    return _detects(replications, (low, high), variance, false_alarm, miss, sides=1)


def mean_at_most_needs(
    gap: float,
    *,
    low: float,
    high: float,
    variance: float | None = None,
    false_alarm: float = FALSE_ALARM,
    miss: float = MISS,
) -> int:
    """The replications from which on :func:`assert_mean_at_most` detects a mean that is a gap too high.

    Arguments are those of :func:`mean_equal_needs`.
    """
    return _needs(gap, (low, high), variance, false_alarm, miss, sides=1)


def _refuse(
    values: ArrayLike, wanted: float, ends: tuple[Any, Any], false_alarm: float, sides: int
) -> None:
    draws, width, rate = finite_array("values", values, 1), _width(ends), _rate(false_alarm)
    count = integer("number of values", len(draws), 2)
    if draws.min() < ends[0] or draws.max() > ends[1]:
        outside = draws[(draws < ends[0]) | (draws > ends[1])][0]
        raise InputError(f"values hold {outside:g}: the range is {ends[0]:g} to {ends[1]:g}")
    mean, reach = float(draws.mean()), _reach(count, float(draws.var(ddof=1)), width, rate / sides)
    off = abs(mean - wanted) if sides == 2 else mean - wanted
    if off > reach:
        said = "is expected" if sides == 2 else "is the most"
        raise Violation(
            f"the mean of {count} draws is {mean:.4g} ± {reach:.3g}, and {wanted:.4g} {said}: it is off by "
            f"{off - reach:.3g} at least, but with a chance of {false_alarm:g}"
        )


def _detects(
    replications: Any, ends: tuple[Any, Any], variance: Any, false_alarm: Any, miss: Any, sides: int
) -> float:
    count, width, strength = integer("replications", replications, 2), _width(ends), _rate(miss)
    most = width**2 / 4
    square = most if variance is None else number("variance", variance, minimum=0.0, maximum=most)
    rare = math.log(2 / strength)
    deviation = math.sqrt(square) + width * math.sqrt(2 * rare / (count - 1))
    own = math.sqrt(2 * square * rare / count) + width * rare / (3 * count)
    return own + _reach(count, deviation**2, width, _rate(false_alarm) / sides)


def _needs(
    gap: Any, ends: tuple[Any, Any], variance: Any, false_alarm: Any, miss: Any, sides: int
) -> int:
    least = positive("gap", gap)
    low, high = 1, 2
    while _detects(high, ends, variance, false_alarm, miss, sides) > least:
        low, high = high, 2 * high
        if high > _MOST:
            raise InputError(f"gap is {gap:g}: no number of replications would do")
    while high - low > 1:
        middle = (low + high) // 2
        enough = _detects(middle, ends, variance, false_alarm, miss, sides) <= least
        low, high = (low, middle) if enough else (middle, high)
    return high


def _reach(count: int, variance: float, width: float, rate: float) -> float:
    """How far the mean of a sample of this variance is off on one side, but with a chance of ``rate``."""
    strength = math.log(2 / rate)
    return math.sqrt(2 * variance * strength / count) + 7 * width * strength / (3 * (count - 1))


def _width(ends: tuple[Any, Any]) -> float:
    low, high = (float(number(name, end)) for name, end in zip(("low", "high"), ends, strict=True))
    if not low < high:
        raise InputError(f"low is {low:g} and high {high:g}: low must be below high")
    return high - low


def _rate(rate: Any) -> float:
    return float(number("error rate", rate, above=0.0, maximum=0.5))
