"""Theorem 12 on a problem of the user's own, whose outputs have one token: prompts of rewards 0 and 1."""

from __future__ import annotations

from ustat_pg.experiment import Check, Claim, Point

from ..practical_mse import FAR, GROUP, RIVALS, STEM, Rule, one_token, predicted
from ..problems import BanditEntry, Suite
from ..problems.batches import Batch

MOST_ARMS = 10
"""Arms of the largest problem whose groups are enumerated."""

SMALLEST = 0.01
"""The squared bias without ratio, over the variance, from which it is seen."""


def shows(entry: BanditEntry) -> bool:
    """Whether a policy that moves along the gradient would be seen to bias an estimate without ratio."""
    problem = entry.problem
    moments = problem.moments()
    if not (problem.binary and problem.arms <= MOST_ARMS and 0.1 < moments.value[0] < 0.9):
        return False
    if not moments.gradient_sq[0] > 1e-6 * moments.fisher_trace[0]:
        return False
    found = predicted(Batch(entry, 1), FAR, Rule("none"))
    return found.squared_bias > SMALLEST * found.variance / GROUP


def claim(suite: Suite) -> Claim:
    """No bias of the ratio, and that of the penalty."""
    checks: list[Check] = []
    for entry in filter(shows, suite.single_prompts):
        checks += one_token(entry)
    return Claim(STEM, RIVALS, tuple(checks))


def curves(suite: Suite) -> tuple[Point, ...]:
    """None: one token has no ratio bias to draw."""
    return ()
