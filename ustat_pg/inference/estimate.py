"""The record of an estimated number, with its error and its interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..display.shown import Shown


@dataclass(frozen=True)
class Estimate(Shown):
    """An estimated number, with its standard error and its 95% interval.

    Arguments:
        value: estimate; NaN if it is not known, and so are the other fields.
        se: its standard error.
        low, high: ends of its interval; an unknown end is infinite.
        reason: the reason for an unknown end, in words; None if both ends are known, or if no reason was
            found.

    >>> print(Estimate(3.0, 0.13, 2.8, 3.3), Estimate(3.0, 0.13, 2.8, math.inf), sep="; ")
    3 [2.8, 3.3]; 3 [2.8, not known]
    """

    value: float = math.nan
    se: float = math.nan
    low: float = math.nan
    high: float = math.nan
    reason: str | None = None

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends."""
        return self.low, self.high

    def __str__(self) -> str:
        value, low, high = (
            f"{number:.3g}" if math.isfinite(number) else "not known"
            for number in (self.value, *self.interval)
        )
        return value if math.isnan(self.low) else f"{value} [{low}, {high}]"

    def __truediv__(self, number: float) -> Estimate:
        """The estimate divided by a known positive number."""
        low, high = (end / number for end in self.interval)
        return Estimate(self.value / number, self.se / number, low, high, self.reason)

    def inverse(self) -> Estimate:
        """The inverse of an estimate with an interval not below 0; its error comes from the delta method."""
        value, low, high = (1 / end if end else math.inf for end in (self.value, *self.interval))
        se = value * self.se / self.value if self.value else math.nan
        return Estimate(value, se, high, low, self.reason)
