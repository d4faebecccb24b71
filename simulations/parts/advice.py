"""Theorem 7 without training: the curve of the gradient's error, its least value, and the advice.

Errors of gradients at several group sizes give c₁, c₂ and c₃, G*, the least error and K_crit, also if
prompts have a cost or are few. Every number in the advice is compared with enumeration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import sqrt
from typing import Any

import numpy as np

from ustat_pg.engines import GradientCell
from ustat_pg.engines.gradients.cell import Mixed
from ustat_pg.predictions import (
    critical_budget,
    gap_group_size,
    gradient_mse,
    group_size_advice,
    mse_constants,
    optimal_group_size,
    paper_group_size,
)
from ustat_pg.problems import SoftmaxBandit

from ..evidence import Check, Linear, equal, mean_of
from ..problems import BanditEntry, Suite, mse_of
from ..problems.landscapes import LandscapeEntry
from ..shared.argmin import Best, Excess, Flat, Lowest
from ..shared.margins import AMONG, COARSE, LOOSE, ONE_SIZE
from ..shared.runs import GRPO, Noise, at_optimum, parts_of
from ..shared.weights import projected, solved

PAPER = "sqrt(c3/c1)"
HALVED = "c3 halved"
INSIDE = "c2 inside the root"
ONE = "G = 1"
WORST = "the worst feasible G"
TRACE = "G* of the gradient's error for that of the gap"
NO_NOISE = "K_crit without c2"
RIVALS = (PAPER, HALVED, INSIDE, ONE, WORST, TRACE, NO_NOISE)


NOISES: dict[str, Noise] = {
    PAPER: lambda c1, c2, c3, g: c1 + c2 / g + c3 / g**2,
    HALVED: lambda c1, c2, c3, g: c1 + c2 / g + c3 / (2 * g * (g - 1)),
}
"""The covariance of a gradient at B = 1, according to the rivals' curves."""


def gradient_errors(entry: BanditEntry, budget: int) -> Iterator[Check]:
    """Points of the curve of the gradient's error at G = 2 and 4, without training."""
    constants = mse_constants(entry.problem.moments())
    for group_size in (2, 4):
        batch_size = budget // group_size
        value = constants.mse(group_size, batch_size)
        # Rivals differ only in c₃.
        right = constants.c3 / (group_size * (group_size - 1))
        wrong = {
            name: value + (noise(0, 0, constants.c3, group_size) - right) / batch_size
            for name, noise in NOISES.items()
        }
        says = equal(value, wrong if group_size == 2 else None, scale=value)
        drawn = grpo_error(entry.problem, group_size, batch_size)
        yield entry.check(f"K={budget} G={group_size}: error of the gradient", drawn, says)


AWAY = 0.3
"""The distance from the optimum at which gradients are measured, so that their mean is not 0."""

BUDGET, SIZES = 6, (2, 3, 6)
"""A budget at which all splits are enumerated, and their group sizes."""

SPLITS = tuple((size, BUDGET // size) for size in SIZES)
"""The splits as pairs of group size and number of prompts."""

Curve = tuple[tuple[int, ...], tuple[Linear, ...], tuple[float, ...]]
"""Group sizes, their measured errors, and their errors from c₁, c₂ and c₃."""


def _away(entry: LandscapeEntry) -> SoftmaxBandit:
    return entry.problem.at(entry.problem.maximiser + AWAY)


def grpo_error(problem: SoftmaxBandit, *sizes: Any) -> Linear:
    """The error of grpo at a group size, batch size and design."""
    return mean_of(GradientCell(problem, *sizes), mse_of("grpo"))


def _splits(
    problem: SoftmaxBandit,
    splits: Iterable[tuple[int, int]] = SPLITS,
    population: int | None = None,
) -> Curve:
    """The errors of splits in groups and prompts; by default of all splits of the budget."""
    splits, constants = list(splits), mse_constants(problem.moments())
    design = "without-replacement" if population else "iid"
    return (
        tuple(size for size, _ in splits),
        tuple(grpo_error(problem, *split, design) for split in splits),
        tuple(constants.mse(*split, population=population) for split in splits),
    )


def _divisible(problem: SoftmaxBandit, group_sizes: Iterable[int]) -> Curve:
    """The errors at one prompt times the group size, as for a budget of 1 if prompts were divisible."""
    sizes, points, values = _splits(problem, ((size, 1) for size in group_sizes))
    products = (size * value for size, value in zip(sizes, values, strict=True))
    return sizes, tuple(map(Linear.times, points, sizes)), tuple(products)


def _over(curve: Curve, unit: float) -> Curve:
    """The errors divided by a unit."""
    sizes, points, values = curve
    shares = tuple(value / unit for value in values)
    return sizes, tuple(point.times(1 / unit) for point in points), shares


def by_constants(entry: LandscapeEntry) -> Iterator[Check]:
    """The error at B > N, G > 8, of other estimators and without replacement, by c₁, c₂ and c₃."""
    problem = _away(entry)
    moments = problem.moments()
    for group_size, batch_size, estimator in (
        *((2, 1, "grpo"), (2, 3, "grpo"), (5, 2, "grpo"), (12, 1, "grpo")),
        *((3, 3, "oracle"), (3, 3, "vanilla"), (1, 2, "vanilla")),
    ):
        measured = mean_of(GradientCell(problem, group_size, batch_size), mse_of(estimator))
        name = f"G={group_size} B={batch_size}: error of {estimator}"
        by_curve = mse_constants(moments).mse(group_size, batch_size, estimator)
        direct = gradient_mse(moments, estimator, group_size, batch_size).mse
        yield entry.check(name, measured, equal(by_curve))
        yield entry.check(f"{name}, direct", measured, equal(direct))


def least_values(entry: LandscapeEntry) -> Iterator[Check]:
    """G*, the least error and K_crit, from errors at three group sizes; with a cost of prompts too."""
    problem = _away(entry)
    moments, curve = problem.moments(), _divisible(problem, (2, 5, 24))
    constants, signal = mse_constants(moments), float(moments.mean_gradient_sq)
    ratio = constants.c3 / constants.c1
    wrong = {
        PAPER: sqrt(ratio),
        HALVED: 1 + sqrt(ratio / 2),
        INSIDE: 1 + sqrt((constants.c2 + constants.c3) / constants.c1),
        ONE: 1.0,
    }
    budget = critical_budget(constants, signal)
    for what, lowest, value, others in (
        ("G*, by errors at G = 2, 5, 24", Lowest(*curve), optimal_group_size(constants), wrong),
        ("the paper's G* is less by one", Lowest(*curve), 1 + paper_group_size(constants), {}),
        ("least error at a budget", Lowest(*curve, value=True), constants.least_mse(1), {}),
        (
            "K_crit: outputs at which noise equals signal, at the best G",
            Lowest(*_over(curve, signal), value=True),
            budget,
            {NO_NOISE: budget - constants.c2 / signal},
        ),
    ):
        yield entry.check(what, lowest, equal(value, others, relative_margin=COARSE))
    for cost in (0.5, 4.0):
        best = equal(optimal_group_size(constants, prompt_cost=cost), relative_margin=LOOSE)
        what = f"G* where a prompt costs {cost:g} outputs"
        yield entry.check(what, Lowest(*curve, cost=cost), best)


def few_prompts(entry: LandscapeEntry) -> Iterator[Check]:
    """Four prompts of which each step takes several, without replacement."""
    problem, budget = _away(entry), 12
    population, splits = problem.contexts, ((size, budget // size) for size in (4, 6, 12))
    curve = _splits(problem, splits, population)
    for size, point, error in zip(*curve, strict=True):
        yield entry.check(f"K={budget} G={size}: error without replacement", point, equal(error))
    constants = mse_constants(problem.moments())
    best = optimal_group_size(constants, population=population, budget=budget)
    lowest = Lowest(*curve, least_size=budget / population)
    statement = equal(best, relative_margin=LOOSE)
    yield entry.check(f"K={budget}: G* without replacement", lowest, statement)


def every_number(entry: LandscapeEntry) -> Iterator[Check]:
    """The advice against every feasible split of a budget, enumerated."""
    problem = _away(entry)
    advice, curve = group_size_advice(problem.moments(), BUDGET), _splits(problem)
    best = equal(advice.group_size, relative_margin=AMONG)
    yield entry.check(f"K={BUDGET}: the best of all group sizes", Best(*curve), best)
    rows = {row.group_size: row for row in advice.table}
    if set(rows) != set(SIZES):
        raise ArithmeticError(f"the advice has rows for {sorted(rows)}, and not for {SIZES}")
    # The enumeration decides which group size is the reference.
    for size, point in zip(SIZES, curve[1], strict=True):
        row, name = rows[size], f"K={BUDGET} G={size}"
        over, says = Excess(*curve, size), equal(row.ratio_to_best)
        yield entry.check(f"{name}: the advised error", point, equal(row.mse))
        yield entry.check(f"{name}: over the best", over, says)
    twice, whole = 2 * BUDGET, range(2, 2 * BUDGET + 1)
    feasible = tuple(size for size in whole if twice % size == 0)
    ends = group_size_advice(problem.moments(), twice).g_interval
    for word, up, end in zip(("smallest", "largest"), (False, True), ends, strict=True):
        yield entry.check(
            f"K={twice}: the {word} G within 5% of the best",
            Flat(*_divisible(problem, whole), feasible, up=up),
            equal(end, relative_margin=2 * AMONG),
        )
    yield entry.check(
        f"K={BUDGET}: what whole numbers cost",
        Lowest(*_over(curve, min(curve[-1])), value=True),
        equal(1 / advice.ratio_to_real, relative_margin=1.0),
    )


def prompts_agree(entry: LandscapeEntry) -> Check:
    """The advice if prompts nearly agree; then the rivals' choices are far from the best."""
    problem = at_optimum(entry.problem)
    curve = _splits(problem)
    wrong = {ONE: float(min(SIZES)), WORST: float(SIZES[int(np.argmax(curve[-1]))])}
    advised = equal(group_size_advice(problem.moments(), BUDGET).group_size, wrong)
    return entry.check(f"K={BUDGET}: the best of all group sizes", Best(*curve), advised)


def silent_groups(entry: LandscapeEntry) -> Iterator[Check]:
    """The share of groups without signal, which the advice gives for each group size."""
    problem = _away(entry)
    silent = problem.frac_reward_zero_std
    for row in group_size_advice(problem.moments(), BUDGET, frac_reward_zero_std=silent).table:
        share = row.frac_reward_zero_std
        yield entry.check(
            f"K={BUDGET} G={row.group_size}: groups that teach nothing",
            Linear(GradientCell(problem, row.group_size, row.batch_size), ((Mixed(), -1.0),), 1.0),
            equal(1.0 if share is None else share, scale=1.0),
        )


def costly_prompts(entry: LandscapeEntry) -> Check:
    """The advice if prompts have a cost; every group size is feasible and measured."""
    problem, total, cost = _away(entry), 18, 2
    splits = ((size, total // (cost + size)) for size in range(2, total - cost + 1))
    constants = mse_constants(problem.moments())
    advice = group_size_advice(constants, total, prompt_cost=cost, output_cost=1.0)
    return entry.check(
        f"prompts cost {cost}, C={total}: the best of all group sizes",
        Best(*_splits(problem, splits)),
        equal(advice.group_size, relative_margin=ONE_SIZE),
    )


def two_curvatures(entry: LandscapeEntry) -> Iterator[Check]:
    """G* for the gap with two curvatures. The limit of the mean gap comes from measured covariances
    and SciPy's solution of the Lyapunov equation.
    """
    landscape = entry.problem
    problem, bends = at_optimum(landscape), landscape.curvatures
    parts, sizes = parts_of(landscape), (2, 6, 24)
    of_error = optimal_group_size(mse_constants(problem.moments()))
    for c in (1.2 / bends[0], 10 / bends[0]):
        matrix = solved(landscape, np.eye(len(bends)), float(c))
        terms = tuple(projected(problem, GRPO, matrix))
        points = tuple(
            Linear(GradientCell(problem, g), tuple((q, g * w) for q, w in terms)) for g in sizes
        )
        inner = landscape.identifiable.T @ matrix @ landscape.identifiable
        first, second, third = (float(np.trace(inner @ part)) for part in parts)
        predicted = tuple(g * first + second + third / (g - 1) for g in sizes)
        best = gap_group_size(parts[0], parts[2], bends, float(c))
        wrong = {TRACE: of_error} if c * bends[0] < 2 else {}
        yield entry.check(
            f"G* of the gap at c = {c:.3g}",
            Lowest(sizes, points, predicted),
            equal(best, wrong, relative_margin=COARSE),
        )


def checks(suite: Suite) -> Iterator[Check]:
    """All checks that use errors of gradients."""
    landscapes = suite.landscapes
    for entry in landscapes["lopsided"]:
        for part in (by_constants, least_values, every_number):
            yield from part(entry)
        yield costly_prompts(entry)
    for entry in landscapes["gamble"]:
        yield from silent_groups(entry)
    for entry in landscapes["pairs"]:
        yield from few_prompts(entry)
    for entry in landscapes["crossing"]:
        yield from two_curvatures(entry)
    yield from map(prompts_agree, landscapes["accord"])
    yield from gradient_errors(suite.digits_rows(3), 4)
    yield from gradient_errors(suite.digits, 8)
