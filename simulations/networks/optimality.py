"""Corollary 5 on networks, prompt by prompt: outside Assumption 2, and inside where it holds."""

from __future__ import annotations

from collections.abc import Iterator

from ustat_pg.experiment import Check, Claim, Point

from ..optimality import OF_ONE_PROMPT, STEM, inside, outside, thresholds
from ..problems import Suite

GROUP_SIZE = 4

UNCORRELATED = 1e-12
"""The largest E[‖s‖² a] that counts as 0, as a share of tr F times the greatest reward."""


def _checks(suite: Suite) -> Iterator[Check]:
    for entry in suite.single_prompts:
        yield from outside(entry, GROUP_SIZE)
        yield from thresholds(entry)
        moments = entry.problem.moments()
        scale = moments.fisher_trace[0] * max(abs(bound) for bound in moments.reward_range)
        if abs(moments.norm_advantage[0]) <= UNCORRELATED * scale:
            yield from inside(entry, GROUP_SIZE)


def claim(suite: Suite) -> Claim:
    """The corollary where it holds and its failures where it does not, prompt by prompt."""
    return Claim(STEM, OF_ONE_PROMPT, tuple(_checks(suite)))


def curves(suite: Suite) -> tuple[Point, ...]:
    """None: the map of Assumption 2 is drawn on bandits made for it."""
    return ()
