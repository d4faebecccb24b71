"""Lemma 11 on a problem of the user's own: at prompts of rewards 0 and 1 whose limits show."""

from __future__ import annotations

from collections.abc import Iterator

from ustat_pg.experiment import Claim, Point
from ustat_pg.predictions import normalised_distance, normalised_limit
from ustat_pg.problems import SoftmaxBandit

from ..normalised import OF_BINARY, STEM, checks, points
from ..problems import BanditEntry, Suite

SMALLEST = 0.02
"""The limit of the distance, against that of the error, from which the two estimates are told apart."""


def lopsided(suite: Suite) -> list[BanditEntry]:
    """Prompts whose pass rates are off one half and not near 0 or 1, and whose gradient is not 0."""
    return [entry for entry in suite.single_prompts if shows(entry.problem)]


def shows(problem: SoftmaxBandit) -> bool:
    """Whether the two estimates can be told apart at a problem's one prompt."""
    (value,) = (problem.mean_rewards * problem.policy.probs).sum(axis=1)
    if not (problem.binary and 0.2 < abs(value - 0.5) < 0.4):
        return False
    moments = problem.moments()
    return bool(normalised_distance(moments)[0] > SMALLEST * normalised_limit(moments)[0])


def claim(suite: Suite) -> Claim:
    """The slope of the distance, and both limits."""
    return Claim(STEM, OF_BINARY, tuple(checks(lopsided(suite))))


def curves(suite: Suite) -> Iterator[Point]:
    """G times the error, on two prompts at most."""
    yield from points(lopsided(suite)[:2])
