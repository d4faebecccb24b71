"""Beyond the paper: the leave-one-out baseline with the least error. It subtracts b(k), where k is the number
of successes among the other outputs. The best b solves a tridiagonal system of moments. It is unbiased if it
comes from other prompts or earlier steps.

The checks use prompts of unequal pass rates. They cover the error of the best table, of shrinkage at its best
amount and of Bayes leave-one-out; that the best table has a smaller error than grpo; and that a step from the
best table, or from the best amount within (0, 1), costs the same in both directions, also if the mean is that
of the normalised estimator. On whole training runs at an equal budget they cover the mean gap with the best
table, that it is below grpo's at grpo's own best group size, and that it is larger in the group that is best
for grpo.

The claim is falsified if an error, a gap or an order differs from the prediction. The table is that of the
optimum, and stays fixed during the runs.

Cost: about ten seconds on two cores at smoke, forty at quick.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ustat_pg.engines import Estimator, GradientCell
from ustat_pg.moments.record import Moments
from ustat_pg.predictions import CountTable, best_shrinkage, best_table, count_table, gradient_mse
from ustat_pg.validation import changed

from .engines import Decay
from .evidence import Check, Linear, equal, mean_of, positive
from .problems import BanditEntry, Suite, mse_of
from .problems.landscapes import LandscapeEntry
from .shared.peers import error_of
from .shared.runs import moments_of
from .shared.splits import Split

NO_GAIN = "no gain on grpo"
ORACLE = "as good as the oracle"
RATES = "pass rates alone make the table"
SAME_GROUP = "the best group is grpo's"
OF_ERRORS = (NO_GAIN, ORACLE, RATES)
RIVALS = (*OF_ERRORS, SAME_GROUP)


def by_rates(m: Moments, group_size: int) -> CountTable:
    """The best table for prompts with these pass rates if all norms are equal and gradients are small."""
    one, zero = np.ones(len(m)), np.zeros(len(m))
    variance = m.value * (1 - m.value)
    alike = changed(
        m, fisher_trace=one, norm_advantage=zero, norm_squared_advantage=variance, gradient_sq=zero
    )
    return best_table(alike, group_size)


def checks(suite: Suite) -> Iterator[Check]:
    """The checks of errors on prompts of unequal pass rates, and of whole training runs."""
    sizes = suite.sized((2, 4), (2, 4, 8), (2, 3, 4, 8, 16), (2, 3, 4, 8, 16, 64, 256))
    for entry in suite.unequal_rates:
        yield _alone(entry)
        for group_size in sizes:
            yield from gradient_errors(entry, group_size)
    for landscape in suite.landscapes["gamble"]:
        yield from _runs(landscape, 4, 60)
        if suite.size != "smoke":
            yield from _runs(landscape, 12, 60)
    for landscape in suite.landscapes["diabetes"] if suite.size != "smoke" else ():
        yield from _runs(landscape, 12, 60)


def _alone(entry: BanditEntry) -> Check:
    """The error of the best table in groups of one, which is the best constant."""
    moments, cell = entry.problem.moments(), GradientCell(entry.problem, 1)
    wrong = {
        ORACLE: gradient_mse(moments, "oracle", 1).mse,
        RATES: gradient_mse(moments, by_rates(moments, 1).estimator, 1).mse,
    }
    return error_of(entry, "G=1: best table", cell, best_table(moments, 1).estimator, wrong)


def gradient_errors(entry: BanditEntry, group_size: int) -> Iterator[Check]:
    """The error of the best table and of simpler baselines; the gain compared with grpo."""
    moments, cell = entry.problem.moments(), GradientCell(entry.problem, group_size)
    errors = {
        name: gradient_mse(moments, name, group_size).mse for name in ("best", "grpo", "oracle")
    }
    table, rates = best_table(moments, group_size), by_rates(moments, group_size)
    best = mse_of(table.estimator)
    wrong = {NO_GAIN: errors["grpo"], ORACLE: errors["oracle"]}
    wrong[RATES] = gradient_mse(moments, rates.estimator, group_size).mse
    says = equal(errors["best"], wrong)
    yield entry.check(f"G={group_size}: best table", mean_of(cell, best), says)
    mean = float(moments.context_probs @ moments.value)
    amount = best_shrinkage(moments, group_size)
    shrinkage = f"shrinkage:{amount!r},{mean!r}"
    for name in (shrinkage, "bayes:1,1"):
        what = f"G={group_size}: {name.partition(':')[0]}"
        yield error_of(entry, what, cell, name, {NO_GAIN: errors["grpo"]})
    by_name = "loo-table:" + ",".join(map(repr, rates.baseline.tolist()))
    yield error_of(entry, f"G={group_size}: table of pass rates", cell, by_name)
    names = (shrinkage, "grpo", "std")
    shrunk, grpo, std = (count_table(name, group_size) for name in names)
    yield _least(entry, cell, "best table", table, {NO_GAIN: grpo, RATES: rates})
    if 0 < amount < 1:  # clipped to that range, it is not the minimum of its parabola
        yield _least(entry, cell, "shrinkage", shrunk, {NO_GAIN: grpo})
    shaped = best_table(moments, group_size, std.delta)
    yield _least(entry, cell, "best table of std's mean", shaped, {NO_GAIN: std})
    gain = errors["grpo"] - errors["best"]
    both, above = (
        Linear(cell, ((mse_of("grpo"), 1.0), (best, -1.0))),
        positive(gain, [NO_GAIN], scale=gain),
    )
    yield entry.check(f"G={group_size}: best table below grpo", both, above)


def _least(
    entry: BanditEntry,
    cell: GradientCell,
    name: str,
    table: CountTable,
    wrong: dict[str, CountTable],
) -> Check:
    """The error is a parabola, which rises equally from a table to the table without gain and in the opposite
    direction.

    A wrong table as the minimum would make this difference as large here as there, with the opposite sign.
    """
    size = cell.group_size
    step = wrong[NO_GAIN].failures[:-1] - table.failures[:-1]

    def beside(at: CountTable, sign: int) -> str:
        # A step at k other successes, equal for a success and a failure, does not change the mean.
        won = at.successes + sign * np.append(0.0, step)
        return CountTable(won, at.failures + sign * np.append(step, 0.0)).estimator

    def error(of: str) -> float:
        return gradient_mse(entry.problem.moments(), of, size).mse

    tilts = {rival: error(beside(at, -1)) - error(beside(at, 1)) for rival, at in wrong.items()}
    sides = Linear(cell, ((mse_of(beside(table, 1)), 1.0), (mse_of(beside(table, -1)), -1.0)))
    unit = error(beside(table, 1))
    return entry.check(f"G={size}: {name} least", sides, equal(0.0, tilts, scale=unit))


def splits(
    entry: LandscapeEntry, budget: int, step: int
) -> tuple[dict[int, Split], dict[int, Split]]:
    """Training runs with grpo and with the best table at one budget, by group size."""
    schedule = Decay(2 / float(entry.problem.curvatures[0]), 80.0)
    moments = moments_of(entry.problem)
    sizes = [size for size in range(2, budget + 1) if budget % size == 0]
    grpo = {size: Split(entry, budget, size, schedule, step) for size in sizes}
    best = {
        size: replace(split, estimator=Estimator(best_table(moments, size).estimator))
        for size, split in grpo.items()
    }
    return grpo, best


def _runs(entry: LandscapeEntry, budget: int, step: int) -> Iterator[Check]:
    """Checks of runs: the best table's gap, below grpo's at its best, and larger in grpo's best group."""
    grpo, best = splits(entry, budget, step)
    small = best[2]
    oracle = replace(small, estimator=Estimator("oracle"))
    wrong = {NO_GAIN: grpo[2].predicted, ORACLE: oracle.predicted}
    statement = equal(small.predicted, wrong, digits=small.error)
    yield entry.check(f"{small.label}: best table", small.gap, statement)
    rival = min(grpo.values(), key=lambda split: split.predicted)
    what = "more with grpo, at its best G, than with the best table at G=2"
    yield rival.exceeds(small, what, [NO_GAIN])
    table = best[rival.group_size]
    yield table.exceeds(small, "more with the best table than at G=2", [SAME_GROUP])


RIVALS_ON_NETWORKS = OF_ERRORS

LEAST_GAIN = 1e-6
"""The least saving of the best table, as a share of grpo's error, that is checked."""


def on_networks(suite: Suite) -> Iterator[Check]:
    """The errors at two group sizes; no checks if rewards are not 0 and 1, or if there is no gain."""
    for entry in suite.token_problems:
        for group_size in (2, 4) if entry.problem.binary else ():
            moments = entry.problem.moments()
            best, grpo = (gradient_mse(moments, n, group_size).mse for n in ("best", "grpo"))
            if grpo - best > LEAST_GAIN * grpo:
                yield from gradient_errors(entry, group_size)
