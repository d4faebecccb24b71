"""Beyond the paper: a memory of earlier rewards in the baseline. The mean of the other rewards of a group and
of n earlier rewards of the same prompt is an unbiased baseline for every group size, one included. Each
earlier reward replaces one output of the group, and if the policy has moved a smaller weight is best.

The checks use prompts of unequal pass rates. They cover the mean along a direction and the error, in groups
of one and more; the best group size at a budget, and its error relative to the best without a memory; and,
with earlier rewards from an earlier policy, the mean, the error, and the weight of least error. On
whole training runs they cover the mean gap of groups of one with a memory, and that it is below that of
grpo in its best groups.

Falsified by an enumerated mean or error that differs by more than rounding, by a simulated one whose interval
misses, or by another order.

Cost: some 10⁶ groups, by the reference engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np

from ustat_pg.engines import Estimator
from ustat_pg.predictions import (
    best_memory_weight,
    gradient_mse,
    group_size_advice,
    memory_group_size,
    memory_mse,
)
from ustat_pg.problems import SoftmaxBandit

from .engines import Decay, MemoryCell, MemoryTraining
from .evidence import Check, Linear, equal, mean_of, positive
from .evidence.functionals import Extrapolation
from .problems import BanditEntry, Suite, mse_of
from .problems.landscapes import LandscapeEntry
from .shared.argmin import Best
from .shared.margins import AMONG, COARSE
from .shared.peers import error_of, telling
from .shared.splits import Split

NOT_COUNTED = "earlier rewards do not count in N"
OUTPUTS = "earlier rewards are outputs of the group"
OVER_N = "‖g‖²/N for (G-1) ‖g‖²/N²"
OWN = "the own reward may be in the mean"
SILENT = "a group of one has no signal"
UNCHANGED = "the best group size is unchanged"
HARMLESS = "a memory of another policy has the same error"
POOLED = "all rewards weigh the same under drift"
NO_NOISE = "the weight without the noise of the earlier rewards"
RIVALS = (
    NOT_COUNTED, OUTPUTS, OVER_N, OWN, SILENT, UNCHANGED, HARMLESS, POOLED, NO_NOISE,
)  # fmt: skip

BUDGET = 12
"""K of the checks of the best group size."""

SIZES = (1, 2, 3, 4)
"""The group sizes among which the best one is."""

CLEAR, TILT = 0.1, 0.03
"""The least relative error of a rival in an error, and in a difference of two on the same draws, for a check;
smaller ones need 10⁶ draws.
"""

BACK = 8.0
"""The length of the step that the policy has taken since the earlier rewards, or half of it, up or down."""


def checks(suite: Suite) -> Iterator[Check]:
    """Checks of errors and means on prompts of unequal pass rates, and of whole training runs."""
    for entry in suite.few_outcomes:
        for group_size, memory in ((1, 2), (2, 2), (3, 1)):
            yield from _same_law(entry, group_size, memory)
        for group_size in (1, 2):
            yield from _drifted(entry, group_size, 4)
        yield from _weight(entry, 3, 1, 0.0)
        yield from _weight(entry, 3, 4, BACK)
        yield from _best_size(entry, 4)
    for entry in suite.unequal_rates:
        # Its best group is larger than one with the memory too.
        if entry.name.startswith("digits"):
            yield from _best_size(entry, 1)
    for landscape in suite.landscapes["disagreement"]:
        yield from _runs(landscape, 4)


def _name(memory: int, weight: float | None = None) -> str:
    return f"memory:{memory}" if weight is None else f"weighted-memory:{memory},{weight!r}"


def earlier(problem: SoftmaxBandit, length: float) -> SoftmaxBandit:
    """The problem before a step of this length along the gradient, or against it."""
    gradient = problem.gradient()
    return problem.with_theta(problem.policy.theta - length * gradient / np.linalg.norm(gradient))


def _clear(rivals: dict[str, float], value: float, least: float) -> dict[str, float]:
    """The rivals that differ from a value by more than a least difference."""
    return {name: wrong for name, wrong in rivals.items() if abs(wrong - value) > least}


def _same_law(entry: BanditEntry, group_size: int, memory: int) -> Iterator[Check]:
    """The mean and the error with earlier rewards of the current policy."""
    problem, m = entry.problem, entry.problem.moments()
    cell, others = MemoryCell(problem, group_size), group_size - 1 + memory
    what, name = f"G={group_size} n={memory}", _name(memory)
    gradient = problem.gradient()
    direction = telling(problem, [gradient])
    found = gradient_mse(m, name, group_size)
    size = found.mse**0.5
    # With an own reward inside, 1/(N+1) of the gradient is lost.
    kept = others / (others + 1)
    seen = abs(direction.along(gradient)) > TILT * (others + 1) * size
    own = {OWN: kept * gradient} if seen else {}
    wrong = own if group_size > 1 else {SILENT: 0 * gradient}
    yield direction.check(
        entry, f"{what}: mean", cell, Estimator(name), gradient, wrong, scale=size
    )
    square = float(m.context_probs @ m.gradient_sq)
    step = square * (1 / others - (group_size - 1) / others**2) / group_size
    plain = "grpo" if group_size > 1 else "vanilla"
    errors = {
        NOT_COUNTED: gradient_mse(m, plain, group_size).mse,
        OUTPUTS: gradient_mse(m, "grpo", others + 1).mse,
        OVER_N: found.mse + step,
        OWN: kept**2 * found.mse + (1 - kept) ** 2 * m.mean_gradient_sq,
    }
    yield error_of(entry, f"{what}: error", cell, name, errors)


def _best_size(entry: BanditEntry, memory: int) -> Iterator[Check]:
    """The advised group size: its gain over grpo's, and its error over the least without a memory."""
    problem, name = entry.problem, _name(memory)
    found = memory_group_size(problem, memory, BUDGET)
    plain = group_size_advice(problem, BUDGET).group_size
    best = found.group_size

    def noise(estimator: str, size: int) -> tuple[Linear, float]:
        """BUDGET times the error at this group size: G times that of one prompt."""
        value = size * gradient_mse(problem, estimator, size).mse
        return Linear(MemoryCell(problem, size), ((mse_of(estimator), float(size)),)), value

    points, values = zip(*(noise(name, size) for size in SIZES), strict=True)
    yield entry.check(
        f"K={BUDGET} n={memory}: best G",
        Best(SIZES, points, values),
        equal(float(best), relative_margin=AMONG),
    )
    (at_best, least), (at_plain, more) = noise(name, best), noise(name, plain)
    without, value = noise("grpo", plain)
    what = f"K={BUDGET} n={memory}"
    if more > (1 + CLEAR) * least:
        yield entry.check(
            f"{what}: G={best} below G={plain}",
            Extrapolation((at_plain, at_best), (1.0, -1.0)),
            positive(more - least, [UNCHANGED], scale=more - least),
        )
    yield entry.check(
        f"{what}: G={best} over G={plain} without",
        Extrapolation((at_best, without), (1.0, -found.ratio)),
        equal(0.0, {NOT_COUNTED: least - value}, scale=value),
    )


def _past(problem: SoftmaxBandit, length: float) -> dict[str, Any]:
    """The drift and the variance of rewards of the earlier policy, as :func:`memory_mse` takes them."""
    m, past = problem.moments(), earlier(problem, length).moments()
    return {"drift": past.value - m.value, "past_variance": past.reward_variance}


def _drifted(entry: BanditEntry, group_size: int, memory: int) -> Iterator[Check]:
    """The mean and the error with earlier rewards of the earlier policy that changes the error most."""
    problem, m = entry.problem, entry.problem.moments()
    same = memory_mse(m, group_size, memory)

    def error(length: float) -> float:
        return memory_mse(m, group_size, memory, **_past(problem, length))

    moved = (BACK, -BACK, BACK / 2, -BACK / 2)
    length = max(moved, key=lambda length: abs(error(length) - same))
    value = error(length)
    cell = MemoryCell(problem, group_size, past=earlier(problem, length))
    what, name = f"G={group_size} n={memory}, moved by {length:g}", _name(memory)
    gradient = problem.gradient()
    yield telling(problem, [gradient]).check(
        entry, f"{what}: mean", cell, Estimator(name), gradient, scale=value**0.5
    )
    says = equal(value, _clear({HARMLESS: same}, value, CLEAR * value))
    yield entry.check(f"{what}: error", mean_of(cell, mse_of(name)), says)


def _weight(entry: BanditEntry, group_size: int, memory: int, length: float) -> Iterator[Check]:
    """The error at the best weight, and that it rises equally to both sides of it.

    Another weight as the minimum would make this difference as large here as there.
    """
    problem, m, past = entry.problem, entry.problem.moments(), _past(entry.problem, length)
    cell = MemoryCell(problem, group_size, past=earlier(problem, length))
    weight = best_memory_weight(m, group_size, memory, **past)
    unlimited = best_memory_weight(m, group_size, memory, **{**past, "past_variance": 0.0})
    step = min(weight, 1 - weight)

    def error(at: float) -> float:
        return memory_mse(m, group_size, memory, weight=at, **past)

    def tilt(about: float) -> float:
        """What the difference would be if the parabola had its minimum at that weight."""
        bend = (error(weight + step) + error(weight - step) - 2 * error(weight)) / (2 * step**2)
        return 4 * bend * step * (weight - about)

    what = f"G={group_size} n={memory}, moved by {length:g}"
    shared = memory / (group_size - 1 + memory)
    best = mse_of(_name(memory, weight))
    says = equal(error(weight), scale=error(weight))
    yield entry.check(f"{what}: best weight", mean_of(cell, best), says)
    above, below = (mse_of(_name(memory, weight + sign * step)) for sign in (1, -1))
    sides = Linear(cell, ((above, 1.0), (below, -1.0)))
    wrong = {POOLED: tilt(shared), NO_NOISE: tilt(unlimited)}
    unit = error(weight + step)
    says = equal(0.0, _clear(wrong, 0.0, TILT * unit), scale=unit)
    yield entry.check(f"{what}: least at the best weight", sides, says)


class Remembering(Split):
    """Training runs at a budget, whose estimator remembers the last rewards of each prompt."""

    @property
    def gap(self) -> Linear:
        plain = super().gap
        runs = plain.cell
        known = {
            each.name: getattr(runs, each.name) for each in fields(MemoryTraining) if each.init
        }
        return replace(plain, cell=MemoryTraining(**known))


def _runs(entry: LandscapeEntry, memory: int) -> Iterator[Check]:
    """The gap of groups of one with a memory, and that grpo's is larger in the group that is best for it."""
    schedule = Decay(2 / float(entry.problem.curvatures[0]), 80.0)
    known = Estimator(_name(memory))
    alone = Remembering(entry, BUDGET, 1, schedule, 60, known)
    sizes = [size for size in range(2, BUDGET + 1) if BUDGET % size == 0]
    grpo = [Remembering(entry, BUDGET, size, schedule, 60) for size in sizes]
    rival = min(grpo, key=lambda split: split.predicted)
    vanilla = replace(alone, estimator=Estimator("vanilla"))
    says = equal(
        alone.predicted,
        {NOT_COUNTED: vanilla.predicted},
        digits=alone.error,
        relative_margin=COARSE,
    )
    yield entry.check(f"{alone.label}: groups of one, n={memory}", alone.gap, says)
    yield rival.exceeds(alone, f"more than G=1 with n={memory}", [UNCHANGED])
