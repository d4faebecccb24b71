"""Figure 5 of the paper: the group size of a language model.

On each model that ships with the library, grpo's error over newly drawn prompts is
c1 + c2/G + c3/(G(G-1)), times 1/B. A pool of rollouts gives the constants (Theorem 7,
group_size). Sampled gradients at pairs of prompts are compared with it, and their estimates of c1 and c3
with these. If the constants predict it, their best group size has a smaller error than another at
the same number of outputs.

Training itself is ``ustat-pg llm sweep``. Its results are plotted but give no verdict, because the
theorem is about the noise, and accuracy after training depends on more than the noise.

It is falsified by a ratio of sampled and predicted errors that is not 1, or by an unpredicted order.
Intervals assume nearly normal means.

Cost: it shares its draws with gradient_mse_lm.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..evidence import Check, Linear, Point, mean_of
from ..problems import Suite
from .cells import BATCH, LmCell, drawn, pooled
from .studies import SIZES, Study, above, cell_of, short, study

STEM = "group_size_lm"

NO_SPREAD = "c1 dropped: prompts do not differ"
HALVED = "c3 halved"
ALIKE = "the split of a budget does not matter"
RIVALS = (NO_SPREAD, HALVED, ALIKE)


def _noise(study: Study, group_size: int) -> float:
    return float(study.constants.predictions().mse(group_size))


def _agree(cell: LmCell, study: Study, margin: float) -> Iterator[Check]:
    """Sampled errors divided by those of the constants: 1."""
    for size in cell.group_sizes:
        shares = {"c1": 1.0, "c2": 1 / size, "c3": 1 / (size * (size - 1))}
        weights = tuple((pooled(study.member, name), share) for name, share in shares.items())
        yield study.agrees(
            f"G={size}: error over prompts",
            study.sampled(cell, BATCH, size),
            Linear(cell, weights),
            margin,
            size=_noise(study, size),
        )


def _constants(cell: LmCell, study: Study, margin: float) -> Iterator[Check]:
    """c1 and c3 from sampled errors, divided by the constants: 1.

    c1 is the error over prompts minus that at one prompt, at any G. c3 is the combination of
    the errors at three group sizes in which 1 and 1/G cancel and 1/(G(G-1)) has the factor 1.
    """
    sizes, member = np.array(cell.group_sizes), study.member
    most = cell.group_sizes[-1]
    between = ((drawn(member, BATCH, most), 1.0), (drawn(member, "grpo", most), -1.0))
    terms = np.array([np.ones(len(sizes)), 1 / sizes, 1 / (sizes * (sizes - 1))])
    shares = np.linalg.solve(terms, [0.0, 0.0, 1.0])
    second = tuple(
        (drawn(member, BATCH, size), float(share))
        for size, share in zip(cell.group_sizes, shares, strict=True)
    )
    for what, weights, wrong in (
        ("c1", between, {NO_SPREAD: 0.0}),
        ("c3", second, {HALVED: 0.5}),
    ):
        formula = mean_of(cell, pooled(member, what))
        yield study.agrees(f": {what}", Linear(cell, weights), formula, margin, rivals=wrong)


def _split(cell: LmCell, study: Study) -> Iterator[Check]:
    """Checks that, at one number of outputs, other group sizes have a larger error than the best."""
    spent = {g: g * _noise(study, g) for g in cell.group_sizes}
    best = min(spent, key=spent.__getitem__)
    for group_size in cell.group_sizes:
        if study.apart(spent[group_size], spent[best]):
            yield above(
                f"{short(study.member)}: at one budget G={group_size} above G={best}",
                cell,
                (drawn(study.member, BATCH, group_size), group_size, spent[group_size]),
                (drawn(study.member, BATCH, best), best, spent[best]),
                (ALIKE,),
            )


def checks(suite: Suite) -> Iterator[Check]:
    """Comparisons of every model's constants with sampled gradients, and of the order that they predict."""
    how = SIZES[suite.size]
    for member in how.members:
        pool, cell = study(member, suite), cell_of(suite.size, member)
        yield from _agree(cell, pool, how.margin)
        yield from _constants(cell, pool, how.margin)
        yield from _split(cell, pool)


def curves(suite: Suite) -> Iterator[Point]:
    """K · MSE at one budget, divided by the least, against G, with the sampled values."""
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
