"""Corollary 4 on networks: ratios everywhere, orders where the excess is largest."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ustat_pg.experiment import Claim, Point
from ustat_pg.predictions import oracle_ratio

from ..oracle import LARGE, RIVALS, STEM, checks, points
from ..problems import BanditEntry, Suite

ORDERED = 2
"""Problems of each origin whose order is measured."""


def largest(entries: list[BanditEntry]) -> list[BanditEntry]:
    """The entries of each origin with the largest excess: there its order takes the fewest groups."""

    def excess(entry: BanditEntry) -> float:
        ratio = oracle_ratio(entry.problem.moments(), LARGE)
        return ratio if np.isfinite(ratio) else 0.0

    chosen: list[BanditEntry] = []
    for origin in dict.fromkeys(entry.origin for entry in entries):
        chosen += sorted((e for e in entries if e.origin == origin), key=excess)[-ORDERED:]
    return chosen


def claim(suite: Suite) -> Claim:
    """Ratios at small G everywhere; orders at one prompt and in minibatches."""
    cases = [(entry, 1) for entry in suite.token_problems if entry.problem.contexts > 1]
    ordered = largest(suite.single_prompts) + largest([entry for entry, _ in cases])
    built = checks(suite.group_sizes[:2], suite.single_prompts, cases, ordered)
    return Claim(STEM, RIVALS, tuple(built))


def curves(suite: Suite) -> Iterator[Point]:
    """The excess at one prompt."""
    one_prompt = [(entry, 1) for entry, _ in suite.shown if entry.problem.contexts == 1]
    yield from points(one_prompt, suite.curve_sizes)
