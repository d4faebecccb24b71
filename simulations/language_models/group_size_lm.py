"""Figure 5 of the paper: the group size of a language model.

On each model that ships with the library, grpo's error over prompts drawn anew is
c1 + c2/G + c3/(G(G-1)), times 1/B, with constants that a pool of rollouts gives (Theorem 7,
group_size). Sampled gradients at pairs of prompts are held against it; and where the constants say so,
the group size that they call best beats another at the same number of outputs.

Training itself is ``ustat-pg llm sweep``; its results are drawn, and no verdict is made of them: the
theorem is about the noise, and accuracy after training is not a function of it alone.

Falsified by a ratio of sampled and predicted errors that is not 1, or an order that is not predicted.
Intervals are those of nearly normal means.

Cost: shares its draws with gradient_mse_lm.
"""

from __future__ import annotations

from collections.abc import Iterator

from ustat_pg.checks import equal
from ustat_pg.experiment import Check, Claim, Linear, Point, Ratio

from ..problems import Suite
from .cells import BATCH, LmCell, drawn
from .orders import above, clear
from .studies import SIZES, Study, cell_of, predicted, short, study

STEM = "group_size_lm"

NO_SPREAD = "c1 dropped: prompts do not differ"
HALVED = "c3 halved"
ALIKE = "the split of a budget does not matter"
RIVALS = (NO_SPREAD, HALVED, ALIKE)


def _noise(study: Study, group_size: int) -> float:
    """The constants' error of a minibatch, times B."""
    return float(study.constants.predictions().mse(group_size))


def _agree(
    cell: LmCell, study: Study, group_sizes: tuple[int, ...], margin: float
) -> Iterator[Check]:
    """Sampled errors over those of the constants, at the smallest group size and others: 1."""
    known = study.constants.predictions()
    surely = study.constants.interval("c1")[0]
    for group_size in group_sizes:
        value = _noise(study, group_size)
        wrong: dict[str, float] = {}
        if group_size == cell.group_sizes[0]:
            wrong = {HALVED: 1 - known.c3 / (2 * group_size * (group_size - 1)) / value}
        elif surely > 0:
            # As far from the truth as the pool is sure of.
            wrong = {NO_SPREAD: 1 - surely / value}
        formula = Linear(cell, predicted(study.member, group_size))
        yield study.check(
            f"G={group_size}: error over prompts, sampled over predicted",
            Ratio(study.sampled(cell, BATCH, group_size), formula, value),
            equal(1.0, wrong, relative_margin=margin),
        )


def _split(cell: LmCell, study: Study) -> Iterator[Check]:
    """At one number of outputs, the smaller or the larger group has the larger error."""
    spent = {g: g * _noise(study, g) for g in (cell.group_sizes[0], cell.group_sizes[-1])}
    first, second = sorted(spent, key=spent.__getitem__, reverse=True)
    if clear(spent[first], spent[second]):
        yield above(
            f"{short(study.member)}: at one budget G={first} above G={second}",
            cell,
            (drawn(study.member, BATCH, first), first, spent[first]),
            (drawn(study.member, BATCH, second), second, spent[second]),
            (ALIKE,),
        )


def _checks(suite: Suite) -> Iterator[Check]:
    how = SIZES[suite.size]
    for member in how.members:
        pool, cell = study(member, suite), cell_of(suite.size, member)
        least, most = cell.group_sizes[0], cell.group_sizes[-1]
        group_sizes = (least, most) if member in how.over_prompts else (least,)
        yield from _agree(cell, pool, group_sizes, how.margin)
        yield from _split(cell, pool)


def claim(suite: Suite) -> Claim:
    """The constants of every model against sampled gradients, and the order that they predict."""
    return Claim(STEM, RIVALS, tuple(_checks(suite)), RIVALS)


def curves(suite: Suite) -> Iterator[Point]:
    """K · MSE at one budget over the least, against G, with what was sampled."""
    for member in SIZES[suite.size].members:
        pool, cell = study(member, suite), cell_of(suite.size, member)
        least = min(g * _noise(pool, g) for g in range(2, 257))
        for group_size in (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256):
            sampled = None
            if group_size in cell.group_sizes:
                sampled = Linear(cell, ((drawn(member, BATCH, group_size), group_size / least),))
            at = {"panel": "noise", "group_size": group_size}
            predicted_noise = group_size * _noise(pool, group_size) / least
            yield Point(STEM, short(member), at, predicted_noise, sampled)
