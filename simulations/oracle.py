"""Corollary 4: MSE of grpo over MSE of the oracle tends to 1: not knowing the critic costs little.

At one prompt the ratio is 1 + (σ² tr F + ‖g‖²)/((G-1)(τ - ‖g‖²)), its excess of order 1/G; in a minibatch of
different prompts the excess is c₃/((G-1)(G c₁ + c₂)), of order 1/G².

The ratio is checked at small G, where its rivals are far apart, and up to G = 32 if enumeration is possible.
Its order is checked as the slope of log(excess): against log(G-1) at one prompt, where it is exactly -1, and
against log G in a minibatch, where the exact formula gives its value between two group sizes on the way to
-2.

The claim is falsified if the interval of a ratio excludes the prediction, or if the slope has the rival's
order.

Cost: the excess at the largest G is small compared with the noise of the two errors, which share draws.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from math import log

import numpy as np

from ustat_pg.engines import GradientCell
from ustat_pg.predictions import oracle_ratio
from ustat_pg.problems import SoftmaxBandit

from .evidence import Check, LogSlope, Ratio, equal, mean_of
from .problems import BanditEntry, Suite, mse_of
from .problems.bandits import prompts, shipped
from .shared.margins import ORDER
from .shared.peers import noise, saving
from .shared.runs import GRPO, ORACLE

SHARE = "ratio 1 + 1/G"
SQUARE = "ratio (G/(G-1))^2"
ONE_PROMPT = "excess of order 1/G^2 at one prompt"
MINIBATCH = "excess of order 1/G in a minibatch"
RIVALS = (SHARE, SQUARE, ONE_PROMPT, MINIBATCH)

SMALL, LARGE = 4, 16
"""The group sizes between which orders in minibatches are measured."""

AT_ONE_PROMPT = (2, 4, 8)
"""The group sizes at one prompt, where the order is the same between any two."""

LARGER = (8, 32)
"""The group sizes of ratios on problems of few outcomes, which can be enumerated."""

LEAST = 1e-3
"""The oracle's error, as a share of E[‖s‖² a²]/G, below which no ratio is checked."""


def excess_of(cell: GradientCell) -> Ratio:
    """MSE_grpo / MSE_oracle - 1 on the same draws."""
    return Ratio(saving(cell, ORACLE, GRPO), mean_of(cell, mse_of("oracle")), oracle_error(cell))


def oracle_error(cell: GradientCell) -> float:
    """The oracle's enumerated error with one output over B G; at one prompt this is its error at any G."""
    return _of_one_output(cell.problem) / (cell.group_size * cell.batch_size)


@lru_cache(256)
def _of_one_output(problem: SoftmaxBandit) -> float:
    return float(GradientCell(problem, 1).measure("exact", [mse_of("oracle")]).mean[0])


def _has_error(cell: GradientCell) -> bool:
    """Whether the oracle's error is not 0, which the design determines independently of the predictions."""
    return oracle_error(cell) > LEAST * noise(cell, ORACLE)


def _ratio(entry: BanditEntry, group_size: int, batch_size: int) -> Iterator[Check]:
    """The checks of the ratio; no checks if the oracle's error is 0 or too small to divide by."""
    cell = GradientCell(entry.problem, group_size, batch_size)
    if not _has_error(cell):
        return
    ratio = oracle_ratio(entry.problem.moments(), group_size, batch_size)
    wrong = {SHARE: 1 / group_size, SQUARE: (group_size / (group_size - 1)) ** 2 - 1}
    size = 1 + noise(cell, ORACLE) / oracle_error(cell) / (group_size - 1)
    statement = equal(ratio - 1, wrong, scale=size)
    yield entry.check(f"G={group_size} B={batch_size}: ratio - 1", excess_of(cell), statement)


def _slope(
    entry: BanditEntry, batch_size: int, group_sizes: Sequence[int] = (SMALL, LARGE)
) -> Iterator[Check]:
    """The checks of the excess's order between group sizes; no checks if the oracle has no error."""
    cells = [GradientCell(entry.problem, g, batch_size) for g in group_sizes]
    if not all(map(_has_error, cells)):
        return
    moments, shift = entry.problem.moments(), 1 if entry.problem.contexts == 1 else 0
    abscissae = tuple(log(g - shift) for g in group_sizes)
    # An excess that is not positive has no order, which is written as 0.
    excess = [oracle_ratio(moments, g, batch_size) - 1 for g in group_sizes]
    sound = all(np.isfinite(value) and value > 0 for value in excess)
    predicted = float(np.polyfit(abscissae, np.log(excess), 1)[0]) if sound else 0.0
    rival, order = (ONE_PROMPT, -2.0) if shift else (MINIBATCH, -1.0)
    planned = tuple(value if sound else 1.0 for value in excess)
    yield entry.check(
        f"G={group_sizes[0]}..{group_sizes[-1]} B={batch_size}: order of ratio - 1",
        LogSlope(abscissae, tuple(map(excess_of, cells)), planned),
        equal(predicted, {rival: order}, scale=1.0, relative_margin=ORDER),
    )


def ratios(
    group_sizes: Iterable[int],
    singles: Iterable[BanditEntry],
    batches: Iterable[tuple[BanditEntry, int]],
    ordered: Sequence[BanditEntry],
) -> Iterator[Check]:
    """Checks of ratios at small G at one prompt and in minibatches of B, and of orders on some problems."""
    for entry in singles:
        for group_size in group_sizes:
            yield from _ratio(entry, group_size, 1)
    for entry in ordered:
        if entry.problem.contexts == 1:
            yield from _slope(entry, 1, AT_ONE_PROMPT)
    for entry, batch_size in batches:
        yield from _ratio(entry, 2, batch_size)
        if entry in ordered:
            yield from _slope(entry, batch_size)


NOISY = "noisy"
"""A problem with equal arms and a reward that is almost noise: ‖g‖² is small, and the ratio is near
G/(G-1).
"""


def batches_of(suite: Suite) -> list[tuple[BanditEntry, int]]:
    spreads = shipped("spread"), *suite.spreads()
    return [*((entry, 1) for entry in spreads), (suite.digits, 2)]


def checks(suite: Suite) -> Iterator[Check]:
    """The checks of ratios at small G on all problems, and of orders on problems with a large excess, since
    orders are the same.
    """
    batches = batches_of(suite)
    ordered = [suite.balanced, suite.coin, *suite.coins(), *prompts(suite.digits, 1)]
    ordered += [entry for entry, _ in batches if entry.origin != "real"]
    singles = [*suite.single_prompts, shipped(NOISY)]
    yield from ratios(suite.group_sizes[:2], singles, batches, ordered)
    for entry in (suite.skewed, suite.balanced, suite.coin, *suite.coins()):
        for group_size in LARGER:
            yield from _ratio(entry, group_size, 1)
    for entry, batch_size, group_size in ((suite.uneven, 2, 3), (suite.several, 3, 2)):
        yield from _ratio(entry, group_size, batch_size)


ORDERED = 2
"""Token problems of each origin whose order is measured."""


def largest(entries: list[BanditEntry]) -> list[BanditEntry]:
    """The entries of each origin with the largest excess, for which the order needs the fewest groups."""

    def excess(entry: BanditEntry) -> float:
        ratio = oracle_ratio(entry.problem.moments(), LARGE)
        return ratio if np.isfinite(ratio) else 0.0

    chosen: list[BanditEntry] = []
    for origin in dict.fromkeys(entry.origin for entry in entries):
        chosen += sorted((e for e in entries if e.origin == origin), key=excess)[-ORDERED:]
    return chosen


def on_networks(suite: Suite) -> Iterator[Check]:
    """The checks of ratios at small G on all problems, and of orders at one prompt and in minibatches."""
    cases = [(entry, 1) for entry in suite.token_problems if entry.problem.contexts > 1]
    ordered = largest(suite.single_prompts) + largest([entry for entry, _ in cases])
    return ratios(suite.group_sizes[:2], suite.single_prompts, cases, ordered)
