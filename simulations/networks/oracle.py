"""Corollary 4 on networks: ratios everywhere, orders where the excess is largest."""

from __future__ import annotations

import numpy as np

from ustat_pg.experiment import Claim
from ustat_pg.predictions import oracle_ratio

from ..oracle import LARGE, RIVALS, STEM, checks
from ..problems import BanditEntry, Suite
from ..stand_ins.oracle import batches, curves

__all__ = ["STEM", "claim", "curves"]

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
    cases = batches(suite)
    ordered = largest(suite.single_prompts) + largest([entry for entry, _ in cases])
    built = checks(suite.group_sizes[:2], suite.single_prompts, cases, ordered)
    return Claim(STEM, RIVALS, tuple(built))
