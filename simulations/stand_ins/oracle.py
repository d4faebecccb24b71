"""Corollary 4 on a problem of the user's own: ratios and orders at some of its prompts and in minibatches."""

from __future__ import annotations

from collections.abc import Iterator

from ustat_pg.experiment import Claim, Point

from ..oracle import RIVALS, STEM, checks, points
from ..problems import BanditEntry, Suite


def batches(suite: Suite) -> list[tuple[BanditEntry, int]]:
    """Problems of several prompts and their B."""
    return [(entry, 1) for entry in suite.stand_ins if entry.problem.contexts > 1]


def claim(suite: Suite) -> Claim:
    """Ratios and orders everywhere."""
    ordered = [*suite.single_prompts, *(entry for entry, _ in batches(suite))]
    built = checks(suite.group_sizes[:2], suite.single_prompts, batches(suite), ordered)
    return Claim(STEM, RIVALS, tuple(built))


def curves(suite: Suite) -> Iterator[Point]:
    """The excess at one prompt."""
    one_prompt = [(entry, 1) for entry, _ in suite.shown if entry.problem.contexts == 1]
    yield from points(one_prompt, suite.curve_sizes)
