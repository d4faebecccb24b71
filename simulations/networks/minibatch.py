"""Proposition 3 on networks, in the designs that each problem allows."""

from __future__ import annotations

from collections.abc import Iterator

from ustat_pg.experiment import Claim, Point

from ..minibatch import RIVALS, STEM, Case, checks
from ..problems import Suite

MOST_FIXED = 64
"""Prompts of the largest fixed set."""


def _cases(suite: Suite) -> Iterator[Case]:
    for entry in suite.token_problems:
        contexts = entry.problem.contexts
        for batch_size in (1, 2):
            yield entry, 2, batch_size, "iid"
        if entry.problem.uniform and contexts > 1:
            yield entry, 2, 2, "without-replacement"
            if contexts <= MOST_FIXED:
                yield entry, 2, contexts, "fixed"


def claim(suite: Suite) -> Claim:
    """The formula in every design."""
    return Claim(STEM, RIVALS, tuple(checks(_cases(suite))))


def curves(suite: Suite) -> tuple[Point, ...]:
    """None: designs are shown on the digits."""
    return ()
