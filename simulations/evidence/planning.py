"""The allocation of error rates by a fixed table, and the replications that a verdict needs."""

from __future__ import annotations

from ..paper import RESULTS
from .intervals import Forecast

FAMILY_ALPHA = 1e-3
"""The probability that a suite of true claims has a false alarm."""

MISS_RATE = 1e-3
"""The probability that a check with the planned replications does not exclude its planned rival."""

MOST = 2**62
"""The number of needed replications if no number is enough."""


def allotted_alpha(checks: int, results: int = len(RESULTS)) -> float:
    """The false-alarm rate of one check: the family's, shared equally over its results, which are all
    of the paper whether run or not, then over the claim's checks.

    So one claim gives the same verdict alone as in the suite.
    """
    return FAMILY_ALPHA / results / checks


def replications_needed(margin: float, forecast: Forecast, alpha: float) -> int:
    """The number of replications, to a thousandth, from which on the interval's half-width is at most
    ``margin``.

    The interval then excludes a value at distance 2 margin unless the estimate errs by more than it
    reaches to the other side, which has a smaller probability than the miss rate: either side is at
    least √(2 ln(2/α)) standard errors, 4.5 at α = 1e-4.

    Arguments:
        margin: half-width, positive.
        forecast: range of one replication, and its mean and variance as a pilot estimates them.
        alpha: the check's false-alarm rate.

    >>> forecast = Forecast(0.5, 0.25, 0.0, 1.0)
    >>> n = replications_needed(0.01, forecast, 1e-5)
    >>> forecast.half_width(n, 1e-5) <= 0.01 < forecast.half_width(int(n * 0.998), 1e-5)
    True
    """
    if forecast.half_width(2, alpha) <= margin:
        return 2
    low, high = 2, 4
    while not forecast.half_width(high, alpha) <= margin:
        low, high = high, 4 * high
        if high > MOST:
            return MOST
    while high - low > max(1, low // 1000):
        middle = (low + high) // 2
        if forecast.half_width(middle, alpha) > margin:
            low = middle
        else:
            high = middle
    return high
