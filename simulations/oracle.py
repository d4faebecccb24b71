"""Corollary 4: MSE of grpo over MSE of the oracle tends to 1: not knowing the critic costs little.

At one prompt the ratio is 1 + (σ² tr F + ‖g‖²)/((G-1)(τ - ‖g‖²)), its excess of order 1/G; in a
minibatch whose prompts differ the excess is c₃/((G-1)(G c₁ + c₂)), of order 1/G².

The ratio is checked at small G, where its rivals are far apart, and its order as the slope of
log(excess): on log(G-1) at one prompt, where it is exactly -1, and on log G in a minibatch, where
the exact formula says how far it has come towards -2 between the two group sizes.

Falsified by a ratio whose interval misses the prediction, or by a slope of the rival's order.

Cost: the excess at the largest G is small beside the noise of the two errors, which share draws.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import log

import numpy as np

from ustat_pg.checks import equal
from ustat_pg.engines import GradientCell
from ustat_pg.experiment import Check, Claim, Linear, LogSlope, Point, Ratio, mean_of
from ustat_pg.predictions import gradient_mse, oracle_ratio

from .problems import BanditEntry, Entry, Suite, mse_of, spread, two_valued
from .problems.bandits import prompts

STEM = "oracle"

SHARE = "ratio 1 + 1/G"
SQUARE = "ratio (G/(G-1))^2"
ONE_PROMPT = "excess of order 1/G^2 at one prompt"
MINIBATCH = "excess of order 1/G in a minibatch"
RIVALS = (SHARE, SQUARE, ONE_PROMPT, MINIBATCH)

SMALL, LARGE = 4, 16
"""The group sizes between which orders are measured."""


def _excess(cell: GradientCell) -> Ratio:
    """MSE_grpo / MSE_oracle - 1 on the same draws."""
    design = cell.group_size, cell.batch_size, cell.design
    size = gradient_mse(cell.problem.moments(), "grpo", *design).oracle_mse
    difference = Linear(cell, ((mse_of("grpo"), 1.0), (mse_of("oracle"), -1.0)))
    return Ratio(difference, mean_of(cell, mse_of("oracle")), size)


def _ratio(entry: BanditEntry, group_size: int, batch_size: int) -> Iterator[Check]:
    """The ratio; nothing where the oracle has no error at all, or a share too small to divide by."""
    moments = entry.problem.moments()
    predicted = gradient_mse(moments, "grpo", group_size, batch_size)
    if not predicted.oracle_mse > 1e-3 * predicted.mse:
        return
    ratio = oracle_ratio(moments, group_size, batch_size)
    wrong = {SHARE: 1 / group_size, SQUARE: (group_size / (group_size - 1)) ** 2 - 1}
    yield entry.check(
        f"G={group_size} B={batch_size}: ratio - 1",
        _excess(GradientCell(entry.problem, group_size, batch_size)),
        equal(ratio - 1, wrong, scale=ratio),
    )


def _slope(entry: BanditEntry, batch_size: int) -> Iterator[Check]:
    """The order of the excess between two group sizes; nothing where it is 0 or has no bound."""
    moments = entry.problem.moments()
    excess = [oracle_ratio(moments, g, batch_size) - 1 for g in (SMALL, LARGE)]
    if not np.isfinite(excess).all() or min(excess) < 1e-9 or max(excess) > 1e6:
        return
    shift = 1 if entry.problem.contexts == 1 else 0
    abscissae = tuple(log(g - shift) for g in (SMALL, LARGE))
    predicted = log(excess[1] / excess[0]) / (abscissae[1] - abscissae[0])
    order = {ONE_PROMPT: -2.0} if shift else {MINIBATCH: -1.0}
    cells = (GradientCell(entry.problem, g, batch_size) for g in (SMALL, LARGE))
    yield entry.check(
        f"G={SMALL}..{LARGE} B={batch_size}: order of ratio - 1",
        LogSlope(abscissae, tuple(map(_excess, cells)), (excess[0], excess[1])),
        equal(predicted, order, relative_margin=0.25),
    )


def checks(
    group_sizes: Iterable[int],
    singles: Iterable[BanditEntry],
    batches: Iterable[tuple[BanditEntry, int]],
    ordered: Sequence[BanditEntry],
) -> Iterator[Check]:
    """Ratios at small G at one prompt and in minibatches of B, orders on some of these problems."""
    for entry in singles:
        for group_size in group_sizes:
            yield from _ratio(entry, group_size, 1)
    for entry in ordered:
        if entry.problem.contexts == 1:
            yield from _slope(entry, 1)
    for entry, batch_size in batches:
        yield from _ratio(entry, 2, batch_size)
        if entry in ordered:
            yield from _slope(entry, batch_size)


def _noisy() -> BanditEntry:
    """Arms alike and a reward that is almost noise: ‖g‖² is small, the ratio near G/(G-1)."""
    return Entry("noisy", "made-up", two_valued([0.25] * 4, [0.55, 0.5, 0.5, 0.45]))


def _batches(suite: Suite) -> list[tuple[BanditEntry, int]]:
    """Minibatch problems and their B."""
    made_up = spread("spread", "made-up", [[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.3, 0.3, 0.4]])
    return [*((entry, 1) for entry in (made_up, *suite.spreads())), (suite.digits, 2)]


def claim(suite: Suite) -> Claim:
    """Ratios at small G everywhere; orders where the excess is large, since they are the same."""
    batches = _batches(suite)
    ordered = [suite.balanced, suite.coin, *suite.coins(), *prompts(suite.digits, 1)]
    ordered += [entry for entry, _ in batches]
    singles = [*suite.single_prompts, _noisy()]
    return Claim(STEM, RIVALS, tuple(checks(suite.group_sizes[:2], singles, batches, ordered)))


def points(cases: Iterable[tuple[BanditEntry, int]], group_sizes: Sequence[int]) -> Iterator[Point]:
    """The excess of the ratio over 1 against G, for problems and their B."""
    for entry, batch_size in cases:
        moments = entry.problem.moments()
        for group_size in group_sizes:
            excess = oracle_ratio(moments, group_size, batch_size) - 1
            if excess < 1e3:
                at = {"problem": entry.name, "group_size": group_size, "batch_size": batch_size}
                at["one_prompt"] = str(entry.problem.contexts == 1)
                cell = GradientCell(entry.problem, group_size, batch_size)
                yield Point("ratio", entry.name, at, excess, _excess(cell))


def curves(suite: Suite) -> Iterator[Point]:
    """The excess at one prompt, and in a minibatch of many."""
    shown = [(entry, 1) for entry, _ in suite.shown if entry.problem.contexts == 1]
    shown += [(suite.skewed, 1), (_noisy(), 1), *_batches(suite)]
    known = [case for case in shown if case[0].origin != "generated"]
    yield from points(known, suite.curve_sizes)
