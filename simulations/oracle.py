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

from collections.abc import Iterator
from math import log

import numpy as np

from ustat_pg.checks import equal
from ustat_pg.engines import GradientCell
from ustat_pg.experiment import Check, Claim, Linear, LogSlope, Point, Ratio, mean_of
from ustat_pg.predictions import gradient_mse, oracle_ratio

from .problems import Entry, Suite, mse_of, spread, two_valued

STEM = "oracle"

RIVALS = (
    "ratio 1 + 1/G",
    "ratio (G/(G-1))^2",
    "excess of order 1/G^2 at one prompt",
    "excess of order 1/G in a minibatch",
)

SMALL, LARGE = 4, 16
"""The group sizes between which orders are measured."""


def _excess(cell: GradientCell) -> Ratio:
    """MSE_grpo / MSE_oracle - 1 on the same draws."""
    prediction = gradient_mse(
        cell.problem.moments(), "grpo", cell.group_size, cell.batch_size, cell.design
    )
    difference = Linear(cell, ((mse_of("grpo"), 1.0), (mse_of("oracle"), -1.0)))
    return Ratio(difference, mean_of(cell, mse_of("oracle")), prediction.oracle_mse)


def _ratio(entry: Entry, group_size: int, batch_size: int) -> Check | None:
    """The ratio; None where the oracle has no error at all, or a share too small to divide by."""
    moments = entry.problem.moments()
    predicted = gradient_mse(moments, "grpo", group_size, batch_size)
    if not predicted.oracle_mse > 1e-3 * predicted.mse:
        return None
    cell = GradientCell(entry.problem, group_size, batch_size)
    wrong = {
        "ratio 1 + 1/G": 1 / group_size,
        "ratio (G/(G-1))^2": (group_size / (group_size - 1)) ** 2 - 1,
    }
    return Check(
        f"{entry.name} G={group_size} B={batch_size}: ratio - 1",
        entry.origin,
        _excess(cell),
        equal(
            oracle_ratio(moments, group_size, batch_size) - 1,
            wrong,
            scale=oracle_ratio(moments, group_size, batch_size),
        ),
    )


def _slope(entry: Entry, batch_size: int) -> Check | None:
    """The order of the excess between two group sizes."""
    moments = entry.problem.moments()
    excess = [oracle_ratio(moments, g, batch_size) - 1 for g in (SMALL, LARGE)]
    if not np.isfinite(excess).all() or min(excess) < 1e-9 or max(excess) > 1e6:
        return None
    shift = 1 if entry.problem.contexts == 1 else 0
    abscissae = tuple(log(g - shift) for g in (SMALL, LARGE))
    predicted = log(excess[1] / excess[0]) / (abscissae[1] - abscissae[0])
    if shift:
        wrong = {"excess of order 1/G^2 at one prompt": -2.0}
    else:
        wrong = {"excess of order 1/G in a minibatch": -1.0}
    return Check(
        f"{entry.name} G={SMALL}..{LARGE} B={batch_size}: order of ratio - 1",
        entry.origin,
        LogSlope(
            abscissae,
            tuple(_excess(GradientCell(entry.problem, g, batch_size)) for g in (SMALL, LARGE)),
            (excess[0], excess[1]),
        ),
        equal(predicted, wrong, relative_margin=0.25),
    )


def _entries(suite: Suite) -> Iterator[tuple[Entry, int]]:
    """Minibatch problems and their B."""
    if suite.given:
        yield from ((entry, 1) for entry in suite.given if entry.problem.contexts > 1)
        return
    yield spread("spread", "made-up", [[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.3, 0.3, 0.4]]), 1
    for entry in suite.spreads():
        yield entry, 1
    yield suite.digits, 2


def _noisy() -> Entry:
    """Arms alike and a reward that is almost noise: ‖g‖² is small, the ratio near G/(G-1)."""
    return Entry("noisy", "made-up", two_valued([0.25] * 4, [0.55, 0.5, 0.5, 0.45]))


def _largest(entries: list[Entry], count: int = 2) -> list[Entry]:
    """The entries of each origin with the largest excess: there its order takes the fewest groups."""

    def excess(entry: Entry) -> float:
        ratio = oracle_ratio(entry.problem.moments(), LARGE)
        return ratio if np.isfinite(ratio) else 0.0

    chosen: list[Entry] = []
    for origin in dict.fromkeys(entry.origin for entry in entries):
        own = sorted((e for e in entries if e.origin == origin), key=excess)
        chosen += own[-count:]
    return chosen


def claim(suite: Suite) -> Claim:
    """Ratios at small G everywhere; orders at one prompt and in minibatches."""
    singles = list(suite.single_prompts)
    if not suite.given:
        singles.append(_noisy())
    checks: list[Check | None] = []
    for entry in singles:
        checks += [_ratio(entry, size, 1) for size in suite.group_sizes[:2]]
    # The order is the same everywhere; it is measured where the excess is large.
    few = [suite.balanced, suite.coin, *suite.coins(), *suite.prompts(suite.digits, 1)]
    batches = list(_entries(suite))
    ordered = [entry for entry, _ in batches]
    if suite.on != "bandit":
        few, ordered = _largest(singles), _largest(ordered)
    checks += [_slope(entry, 1) for entry in (singles if suite.user is not None else few)]
    for entry, batch in batches:
        checks.append(_ratio(entry, 2, batch))
        checks += [_slope(entry, batch)] if entry in ordered else []
    return Claim(STEM, RIVALS, tuple(check for check in checks if check is not None))


def curves(suite: Suite) -> Iterator[Point]:
    """The excess of the ratio over 1 against G: at one prompt, and in a minibatch of many."""
    shown = [(entry, 1) for entry, _ in suite.shown if entry.problem.contexts == 1]
    if not suite.given:
        shown += [(suite.skewed, 1), (_noisy(), 1), *_entries(suite)]
    for entry, batch in shown:
        if entry.origin not in ("made-up", "real", "user"):
            continue
        moments = entry.problem.moments()
        for size in suite.curve_sizes:
            excess = oracle_ratio(moments, size, batch) - 1
            if excess < 1e3:
                at: dict[str, float | str] = {"problem": entry.name, "group_size": size}
                at |= {"batch_size": batch, "one_prompt": str(entry.problem.contexts == 1)}
                cell = GradientCell(entry.problem, size, batch)
                yield Point("ratio", entry.name, at, excess, _excess(cell))
