"""Proposition 13 on networks: work along paths of policies where rewards are 0 and 1 and differ, beside
what is asked of every kind of problem.
"""

from __future__ import annotations

from ustat_pg.experiment import Check, Claim, Point
from ustat_pg.predictions import silent_share

from ..arcsine import RIVALS, STEM, climbs, shared
from ..problems import Suite

GROUP_SIZE = 4


def claim(suite: Suite) -> Claim:
    """Work on the problems whose rewards are 0 and 1 and differ; the rate, and penalties on tokens."""
    checks: list[Check] = []
    for entry in suite.token_problems:
        if entry.problem.binary and silent_share(entry.problem.moments(), GROUP_SIZE) < 1:
            checks += climbs(entry, GROUP_SIZE)
    return Claim(STEM, RIVALS, (*checks, *shared(suite)))


def curves(suite: Suite) -> tuple[Point, ...]:
    """None: objectives are the same on every problem."""
    return ()
