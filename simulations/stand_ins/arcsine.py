"""Proposition 13 on a problem of the user's own with rewards 0 and 1, or on token problems: work along
paths of policies, beside what is asked of every kind of problem.
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
    for entry in suite.stand_ins:
        if entry.problem.binary and silent_share(entry.problem.moments(), GROUP_SIZE) < 1:
            checks += climbs(entry, GROUP_SIZE)
    # On a problem of the user's own nothing else is spoken of.
    beside = shared(suite) if suite.user is None else ()
    return Claim(STEM, RIVALS, (*checks, *beside))


def curves(suite: Suite) -> tuple[Point, ...]:
    """None: objectives are the same on every problem."""
    return ()
