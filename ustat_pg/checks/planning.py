"""Error rates shared out by a fixed table, and the replications that a verdict needs."""

from __future__ import annotations

from math import ceil, log, sqrt

from ..paper import RESULTS
from ..validation import InputError
from .intervals import half_width

__all__ = ["FAMILY_ALPHA", "MISS_RATE", "allotted_alpha", "replications_needed"]

FAMILY_ALPHA = 1e-3
"""Chance that a suite of true claims shows a single false alarm."""

MISS_RATE = 1e-3
"""Chance, at the planned replications, that a check does not exclude the rival it was planned for."""

_RESERVE = 1.25
"""A pilot's variance is itself an estimate: plan as if the true one were this much larger."""


def allotted_alpha(stem: str, checks: int, family: float = FAMILY_ALPHA) -> float:
    """The false-alarm rate of one check: the family's, shared equally over all results of the
    paper whether run or not, then over the claim's checks.

    So one claim gives the same verdict alone as in the suite.

    Raises:
        InputError: no such result, or no check.
    """
    if stem not in RESULTS:
        raise InputError(f"claim {stem!r} is unknown")
    if checks < 1:
        raise InputError("a claim needs at least one check")
    return family / len(RESULTS) / checks


def replications_needed(margin: float, variance: float, width: float, alpha: float) -> int:
    """The least n whose empirical Bernstein half-width is at most ``margin``.

    The interval then excludes a value at distance 2 margin unless the estimate errs by more than
    margin, which at these n has a smaller probability than the miss rate: the half-width is at
    least √(2 ln(4/α)) standard errors, 4.6 at α = 1e-4.

    Arguments:
        margin: half-width, positive.
        variance: variance of one replication, as a pilot estimates it; taken 25% larger.
        width: length of the range of one replication.
        alpha: the check's false-alarm rate.

    >>> n = replications_needed(0.01, 0.25, 1.0, 1e-5)
    >>> half_width(n, 0.25 * 1.25, 1.0, 1e-5) <= 0.01 < half_width(n - 5, 0.25 * 1.25, 1.0, 1e-5)
    True
    """
    if not margin > 0:
        raise InputError(f"margin is {margin}: it must be positive")
    strength = log(4 / alpha)
    root = sqrt(2 * variance * _RESERVE * strength)
    tail = 7 * width * strength / 3
    # margin = root/√n + tail/n, a quadratic in 1/√n.
    if root == 0 and tail == 0:
        return 2
    scaled = (root + sqrt(root**2 + 4 * margin * tail)) / (2 * margin)
    n = max(2, ceil(scaled**2))
    while half_width(n, variance * _RESERVE, width, alpha) > margin:
        n += max(1, n // 10_000_000)
    return n
