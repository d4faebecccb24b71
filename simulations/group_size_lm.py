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

from ustat_pg.checks import equal, positive
from ustat_pg.experiment import Check, Claim, Linear, Point, Ratio, mean_of
from ustat_pg.llm.cells import BATCH, LmCell, drawn

from .language_models import CLEAR, SIZES, Study, cell_of, predicted, short
from .problems import Suite

STEM = "group_size_lm"

NO_SPREAD = "c1 dropped: prompts do not differ"
HALVED = "c3 halved"
ALIKE = "the split of a budget does not matter"
RIVALS = (NO_SPREAD, HALVED, ALIKE)


def _noise(study: Study, size: int) -> float:
    """The constants' error of a minibatch, times B."""
    known = study.constants.predictions()
    return float(known.mse(size))


def _agree(cell: LmCell, study: Study, sizes: tuple[int, ...], margin: float) -> Iterator[Check]:
    """Sampled errors over those of the constants, at the smallest group size and others: 1."""
    known = study.constants.predictions()
    surely = study.constants.interval("c1")[0]
    for size in sizes:
        value = _noise(study, size)
        wrong: dict[str, float] = {}
        if size == cell.group_sizes[0]:
            wrong = {HALVED: 1 - known.c3 / (2 * size * (size - 1)) / value}
        elif surely > 0:
            # As far from the truth as the pool is sure of.
            wrong = {NO_SPREAD: 1 - surely / value}
        yield Check(
            f"{short(study.member)} G={size}: error over prompts, sampled over predicted",
            "made-up",
            Ratio(
                mean_of(cell, drawn(study.member, BATCH, size)),
                Linear(cell, predicted(study.member, size)),
                value,
            ),
            equal(1.0, wrong, relative_margin=margin),
        )


def _split(cell: LmCell, study: Study) -> Iterator[Check]:
    """At one number of outputs, the smaller or the larger group has the larger error."""
    sizes = (cell.group_sizes[0], cell.group_sizes[-1])
    spent = {size: size * _noise(study, size) for size in sizes}
    first, second = sorted(sizes, key=spent.__getitem__, reverse=True)
    top = spent[first]
    if top - spent[second] < CLEAR * top:
        return
    weights = (
        (drawn(study.member, BATCH, first), first / top),
        (drawn(study.member, BATCH, second), -second / top),
    )
    yield Check(
        f"{short(study.member)}: at one budget G={first} above G={second}",
        "made-up",
        Linear(cell, weights),
        positive((top - spent[second]) / top, (ALIKE,), scale=1.0),
    )


def _checks(suite: Suite) -> Iterator[Check]:
    how = SIZES[suite.size]
    for member in how.members:
        study, cell = suite.study(member), cell_of(suite.size, member)
        least, most = cell.group_sizes[0], cell.group_sizes[-1]
        sizes = (least, most) if member in how.over_prompts else (least,)
        yield from _agree(cell, study, sizes, how.margin)
        yield from _split(cell, study)


def claim(suite: Suite) -> Claim:
    """The constants of every model against sampled gradients, and the order that they predict."""
    return Claim(STEM, RIVALS, tuple(_checks(suite)), RIVALS)


def curves(suite: Suite) -> Iterator[Point]:
    """K · MSE at one budget over the least, against G, with what was sampled."""
    for member in SIZES[suite.size].members:
        study, cell = suite.study(member), cell_of(suite.size, member)
        known = study.constants.predictions()
        least = min(size * float(known.mse(size)) for size in range(2, 257))
        for size in (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256):
            sampled = None
            if size in cell.group_sizes:
                sampled = Linear(cell, ((drawn(member, BATCH, size), size / least),))
            yield Point(
                STEM,
                short(member),
                {"panel": "noise", "group_size": size},
                size * float(known.mse(size)) / least,
                sampled,
            )
