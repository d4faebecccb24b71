"""Estimators that are tables by counts, on networks with rewards 0 and 1."""

from __future__ import annotations

from ustat_pg.experiment import Check, Claim, Point
from ustat_pg.predictions import silent_share

from ..count_advantages import RIVALS, STEM, errors, means, noise
from ..problems import Suite

GROUP_SIZE = 4


def claim(suite: Suite) -> Claim:
    """Errors at single prompts, means over all; nothing where rewards are others, or never differ."""
    checks: list[Check] = []
    for entry in suite.single_prompts:
        if entry.problem.binary:
            checks += errors(entry, GROUP_SIZE)
    for entry in suite.token_problems:
        if entry.problem.binary and silent_share(entry.problem.moments(), GROUP_SIZE) < 1:
            checks += means(entry, GROUP_SIZE)
            checks += noise(entry, GROUP_SIZE)
    return Claim(STEM, RIVALS, tuple(checks))


def curves(suite: Suite) -> tuple[Point, ...]:
    """None: weights are the same on every problem."""
    return ()
