"""Confidence intervals for means of bounded variables.

Squared errors of gradient estimators are heavily skewed, and a normal interval would be wrong at the error
rates here (1e-5 and less). They are bounded, so an interval can be valid at every sample size.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, log, log1p, sqrt

from scipy.special import stdtrit


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


ANYWHERE = Interval(-inf, inf)
"""The interval of an unknown quantity."""


@dataclass(frozen=True)
class Forecast:
    """The knowledge of a bounded variable before its sample is drawn.

    Interval and plan are optimised for it. If it is wrong, the interval is wider but still valid.

    Arguments:
        mean: the mean that is expected, in [low, high].
        variance: the variance that is expected, not negative.
        low, high: ends of the range, which may be infinite.

    >>> Forecast(0.1, 0.09, 0.0, 1.0).half_width(10_000, 1e-5) < 0.0155
    True
    """

    mean: float
    variance: float
    low: float
    high: float

    def interval(self, n: int, mean: float, variance: float, alpha: float) -> Interval:
        """The interval that misses the true mean with probability at most alpha, for every n.

        For X >= c - w and u in [0, 1), exp(u(X-c)/w - ψ(u)(X-c)²/w²) <= 1 + u(X-c)/w with
        ψ(u) = -ln(1-u) - u (Fan, Grama and Liu 2015), so that by Markov's inequality

            mean - μ <= w (ln(2/α) + ψ(u) Σ(X-c)²/w²) / (u n)

        but with probability α/2; in the same way above. The centre c, the mean that was expected, and
        u, the best for the variance that was expected, were fixed before the sample. It is the
        predictable plug-in empirical Bernstein interval (Waudby-Smith and Ramdas 2024) at a fixed n.
        The mean cannot be outside the range, so the interval ends there: if a pilot missed a rare event, one
        draw of it would otherwise extend the interval far below 0.

        Arguments:
            n: sample size.
            mean, variance: moments of the sample, the variance with divisor n - 1.
            alpha: error rate, in (0, 1).

        >>> found = Forecast(0.5, 0.25, 0.0, 1.0).interval(10_000, 0.5, 0.25, 0.05)
        >>> round(found.half_width, 4)
        0.0137
        >>> Forecast(0.0, 0.0, 0.0, 80.0).interval(9_000, 0.002, 0.02, 5e-7).low
        0.0
        """
        square = variance * (n - 1) / n + (mean - self.mean) ** 2 if n > 0 else inf
        if not isfinite(square):
            return ANYWHERE
        below, above = self._reaches(n, square, alpha)
        # Rounding may put a mean beyond its range.
        return Interval(
            max(mean - below, min(mean, self.low)), min(mean + above, max(mean, self.high))
        )

    def half_width(self, n: int, alpha: float) -> float:
        """Half of the interval's length for a sample of size n as expected, if the range does not cut it."""
        return sum(self._reaches(n, self.variance, alpha)) / 2

    def _reaches(self, n: int, square: float, alpha: float) -> tuple[float, float]:
        """The distances of the interval's ends below and above the mean of a sample."""
        width, strength = self.high - self.low, log(2 / alpha)
        if width == 0 or width == inf:
            return width, width

        def reach(room: float) -> float:
            # Room may be given away: next to none would divide 0 by 0.
            room = max(room, 1e-3 * width)
            spread = n * self.variance
            ratio = sqrt(2 * strength / spread) * room if spread > 0 else inf
            u = min(ratio / (1 + ratio), 0.9) if ratio < inf else 0.9
            return room * (strength / u + _psi(u) / u * n * square / room**2) / n

        return reach(self.mean - self.low), reach(self.high - self.mean)


@dataclass(frozen=True)
class NearlyNormal(Forecast):
    """The knowledge of a variable without a range and with a nearly normal mean.

    Its interval has √(2 ln(2/α)) standard errors on both sides, more than a normal mean needs; for few draws
    with uncertain spread it has as many as Student's law.
    """

    def _reaches(self, n: int, square: float, alpha: float) -> tuple[float, float]:
        # The square has the divisor n.
        few = -float(stdtrit(n - 1, alpha / 2)) * sqrt(n / (n - 1)) if n > 1 else inf
        reach = max(sqrt(2 * log(2 / alpha)), few) * sqrt(square / n)
        return reach, reach


def _psi(u: float) -> float:
    """-ln(1-u) - u, without cancellation."""
    return -log1p(-u) - u if u > 0.01 else u * u * (1 / 2 + u * (1 / 3 + u * (1 / 4 + u / 4)))
