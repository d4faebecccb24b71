"""Statistical assertions on the mean of draws, for what is too large to enumerate, or random by itself.

An assertion stands beside the smallest gap that it detects and the replications that it needs, as in
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

from ..validation import InputError, finite_array, integer, number, one_of, positive
from .function import Violation, reports

KINDS = ("equal", "at most")
"""The assertion: that the mean is a number, or that it is at most a number."""

FALSE_ALARM, MISS = 1e-6, 1e-3
"""The error rates unless given: one false alarm in a million runs of a test."""

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
    """Assert that independent draws have this mean, or one that is at most this.

    Arguments:
        values: draws, (n,), n at least 2.
        expected: the mean that they should have, or its bound.
        kind: one of :data:`KINDS`; that a mean is at least b is that of -x being at most -b.
        low, high: the range of a draw.
        false_alarm: chance that it fails though the mean is as expected, at most a half.

    Raises:
        AssertionError: the mean is another; the message says by how much at least.
        InputError: values outside the range, fewer than 2, or another argument that is not as said.

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
    """The smallest gap between the mean and the one expected that :func:`assert_mean` detects.

    Arguments:
        replications: n, at least 2.
        kind, low, high, false_alarm: those of the assertion.
        miss: chance that a mean that is off by the gap passes, at most a half.
        variance: of a draw; the largest in the range, w²/4, unless given.
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
    """The replications from which on :func:`assert_mean` detects a gap, positive.

    Arguments but for the gap are those of :func:`mean_detects`.
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
    """How far the mean of a sample of this variance is off on one side, but with a chance of ``rate``."""
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
