"""Confidence intervals for means of bounded variables.

Squared errors of gradient estimators are heavily skewed, and a normal interval at the rates used
here (1e-5 and less) would lie. They are bounded, so an interval can hold at every sample size.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log, sqrt

from ..validation import InputError

__all__ = ["Interval", "empirical_bernstein", "half_width"]


@dataclass(frozen=True)
class Interval:
    """A closed interval; its ends may be infinite.

    >>> Interval(0.0, 1.0).contains(0.5), Interval(0.0, 1.0).distance(3.0)
    (True, 2.0)
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"interval from {self.low} to {self.high}")

    def contains(self, value: float) -> bool:
        """Whether the value lies inside, ends included."""
        return self.low <= value <= self.high

    def meets(self, other: Interval) -> bool:
        """Whether the two have a point in common."""
        return self.low <= other.high and other.low <= self.high

    def inside(self, other: Interval) -> bool:
        """Whether this one lies within the other."""
        return other.low <= self.low and self.high <= other.high

    def widened(self, by: float) -> Interval:
        """Both ends moved outwards."""
        return Interval(self.low - by, self.high + by)

    def distance(self, value: float) -> float:
        """How far a value lies outside; 0 inside."""
        return max(self.low - value, value - self.high, 0.0)

    @property
    def half_width(self) -> float:
        """Half the length."""
        return (self.high - self.low) / 2


def half_width(n: int, variance: float, width: float, alpha: float) -> float:
    """Half-width of :func:`empirical_bernstein`."""
    if n < 2:
        return inf if width > 0 else 0.0
    strength = log(4 / alpha)
    return sqrt(2 * variance * strength / n) + 7 * width * strength / (3 * (n - 1))


def empirical_bernstein(
    n: int, mean: float, variance: float, width: float, alpha: float
) -> Interval:
    """An interval that misses the true mean with probability at most alpha, for every n.

    mean ± √(2 S² ln(4/α) / n) + 7 (b - a) ln(4/α) / (3 (n-1)), S² the sample variance, for
    independent variables in [a, b] (Maurer and Pontil 2009, Theorem 4, on both sides).

    Arguments:
        n: sample size, at least 2.
        mean, variance: moments of the sample, the variance with divisor n - 1.
        width: b - a.
        alpha: error rate, in (0, 1).

    Raises:
        InputError: alpha outside (0, 1), or a negative variance or width.

    >>> empirical_bernstein(10_000, 0.5, 0.25, 1.0, 0.05).half_width < 0.02
    True
    """
    if not 0 < alpha < 1:
        raise InputError(f"alpha is {alpha}: it must lie between 0 and 1")
    if variance < 0 or width < 0:
        raise InputError(f"variance is {variance} and width {width}: neither may be negative")
    half = half_width(n, variance, width, alpha)
    return Interval(mean - half, mean + half)
