"""Statistical assertions on the mean of draws, for functions that are random or too large to enumerate.

As in TensorFlow Probability's ``statistical_testing``, there are functions for the smallest gap that an
assertion detects and for the replications that it needs. Both error rates are arguments: a true statement
fails with probability at most ``false_alarm``, and a statement that is wrong by the gap passes with
probability at most ``miss``, for any law of independent draws in a known range of width w. With the sample's
variance V̂ (Maurer and Pontil, 2009, theorem 4), except with probability δ on either side,

    |mean - μ| <= √(2 V̂ ln(2/δ) / n) + 7 w ln(2/δ) / (3 (n - 1)).

The detected gap also includes the errors of V̂ and of the mean, except in a share ``miss`` of samples, by the
same paper's theorem 10 and by Bernstein's inequality.
"""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import ArrayLike

from ..validation import InputError, finite_array, integer, number, one_of, positive
from .function import Violation, reports

KINDS = ("equal", "at most")
"""The kinds of assertions: the mean equals a number, or is at most a number."""

FALSE_ALARM, MISS = 1e-6, 1e-3
"""The default error rates: one false alarm in a million runs of a test."""

_MOST = 2**62


@reports
def assert_mean(
    values: ArrayLike,
    expected: float,
    *,
    kind: str = "equal",
    low: float,
    high: float,
    false_alarm: float = FALSE_ALARM,
) -> None:
    """Assert that independent draws have this mean, or at most this mean.

    Arguments:
        values: draws, (n,), n at least 2.
        expected: expected mean, or its upper bound.
        kind: one of :data:`KINDS`; to assert a mean of at least b, assert that the mean of -x is at most -b.
        low, high: range of a draw.
        false_alarm: probability that it fails although the mean is as expected, at most 1/2.

    Raises:
        AssertionError: the mean differs; the message has a lower bound of the difference.
        InputError: a value is outside the range, there are fewer than 2, or another argument is invalid.

    >>> import numpy as np
    >>> coins = np.random.default_rng(0).integers(0, 2, mean_needs(0.1, low=0, high=1))
    >>> assert_mean(coins, 0.5, low=0, high=1)
    >>> assert_mean(coins, 0.6, low=0, high=1)
    Traceback (most recent call last):
    ...
    AssertionError: the mean of 3299 draws is 0.5162 ± 0.0587, and 0.6 is expected: it is off by 0.025 at ...
    """
    draws = finite_array("values", values, 1)
    count = integer("number of values", len(draws), 2)
    width, rate = _range(low, high), _rate(false_alarm, kind)
    outside = draws[(draws < low) | (draws > high)]
    if len(outside):
        raise InputError(f"values hold {outside[0]:g}: the range is {low:g} to {high:g}")
    mean, reach = float(draws.mean()), _reach(count, float(draws.var(ddof=1)), width, rate)
    off = mean - float(number("expected mean", expected))
    if (abs(off) if kind == "equal" else off) > reach:
        said = "is expected" if kind == "equal" else "is the most"
        raise Violation(
            f"the mean of {count} draws is {mean:.4g} ± {reach:.3g}, and {expected:.4g} {said}: it is off by "
            f"{abs(off) - reach:.3g} at least, but with a chance of {false_alarm:g}"
        )


def mean_detects(
    replications: int,
    *,
    kind: str = "equal",
    low: float,
    high: float,
    false_alarm: float = FALSE_ALARM,
    miss: float = MISS,
    variance: float | None = None,
) -> float:
    """The smallest gap between the true and the expected mean that :func:`assert_mean` detects.

    Arguments:
        replications: n, at least 2.
        kind, low, high, false_alarm: as for the assertion.
        miss: probability that a mean which is wrong by the gap passes, at most 1/2.
        variance: variance of a draw (default: w²/4, the largest in the range).
    """
    count, width, rare = integer("replications", replications, 2), _range(low, high), _rate(miss)
    most = width**2 / 4
    square = most if variance is None else number("variance", variance, minimum=0.0, maximum=most)
    strength = math.log(2 / rare)
    deviation = math.sqrt(square) + width * math.sqrt(2 * strength / (count - 1))
    own = math.sqrt(2 * square * strength / count) + width * strength / (3 * count)
    return own + _reach(count, deviation**2, width, _rate(false_alarm, kind))


def mean_needs(
    gap: float,
    *,
    kind: str = "equal",
    low: float,
    high: float,
    false_alarm: float = FALSE_ALARM,
    miss: float = MISS,
    variance: float | None = None,
) -> int:
    """The number of replications that :func:`assert_mean` needs to detect a positive gap.

    The other arguments are those of :func:`mean_detects`.
    """
    least = positive("gap", gap)

    def enough(count: int) -> bool:
        rates = {"false_alarm": false_alarm, "miss": miss}
        return (
            mean_detects(count, kind=kind, low=low, high=high, variance=variance, **rates) <= least
        )

    few, many = 1, 2
    while not enough(many):
        few, many = many, 2 * many
        if many > _MOST:
            raise InputError(f"gap is {gap:g}: no number of replications would do")
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if enough(middle) else (middle, many)
    return many


def _reach(count: int, variance: float, width: float, rate: float) -> float:
    """The one-sided error bound of a sample's mean with this variance, except with probability ``rate``."""
    strength = math.log(2 / rate)
    return math.sqrt(2 * variance * strength / count) + 7 * width * strength / (3 * (count - 1))


def _range(low: Any, high: Any) -> float:
    width = float(number("high", high)) - float(number("low", low))
    if not width > 0:
        raise InputError(f"low is {low:g} and high {high:g}: low must be below high")
    return width


def _rate(rate: Any, kind: str = "at most") -> float:
    """The error rate of one side."""
    sides = 2 if one_of("kind", kind, KINDS) == "equal" else 1
    return float(number("error rate", rate, above=0.0, maximum=0.5)) / sides
