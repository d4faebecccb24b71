"""Theorem 7: at a budget K = BG the mean gap depends on G through c₁ G + c₂ + c₃/(G-1), so that
G* = 1 + √(c₃/c₁) is best at every budget, number of steps and schedule.

Checked on whole training runs: with one identifiable direction the gap follows the curve at two
budgets, under constant and decaying rates, at two steps; the group sizes that the rivals would
choose lose to the best. With two directions it is the bound that is universal, not the gap: one and
the same pair of group sizes changes order with c. The oracle and vanilla are best at G = 1. Under
reshuffled epochs over few prompts c₁ cancels, and the best group is the largest. On digits the
curve itself.

The curve is that of the linearised runs; its own error is of order 1/T under c/(t + t₀), and
allowed for as such. Falsified by a gap further off, or by an order that is not the predicted one.

Cost: about half a minute on two cores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import sqrt

import numpy as np

from ustat_pg.engines import GradientCell
from ustat_pg.engines.gradients.cell import Mixed
from ustat_pg.predictions import (
    critical_budget,
    epoch_gap,
    gap_group_size,
    gradient_mse,
    group_size_advice,
    mse_constants,
    optimal_group_size,
    paper_group_size,
)
from ustat_pg.problems import SoftmaxBandit

from .engines import Constant, Decay
from .engines.runs.schedules import Schedule
from .evidence import Check, Extrapolation, Linear, equal, mean_of
from .problems import BanditEntry, Suite, mse_of
from .problems.landscapes import LandscapeEntry
from .shared.argmin import Best, Excess, Flat, Lowest, scaled
from .shared.runs import GRPO, Noise, at_optimum, moments_of, parts_of
from .shared.splits import Split
from .shared.weights import projected, solved

PAPER = "sqrt(c3/c1)"
HALVED = "c3 halved"
INSIDE = "c2 inside the root"
ROOT = "G* ~ sqrt(K)"
ONE = "G = 1"
WORST = "the worst feasible G"
TRACE = "G* of the gradient's error for that of the gap"
NO_NOISE = "K_crit without c2"
RIVALS = (PAPER, HALVED, INSIDE, ROOT, ONE, WORST, TRACE, NO_NOISE)

NOISES: dict[str, Noise] = {
    PAPER: lambda c1, c2, c3, g: c1 + c2 / g + c3 / g**2,
    HALVED: lambda c1, c2, c3, g: c1 + c2 / g + c3 / (2 * g * (g - 1)),
}
"""The covariance of a gradient at B = 1, as the rivals' curves have it."""


def rivals(split: Split) -> dict[str, float]:
    return {name: split.runs.expected_by(noise, split.step) for name, noise in NOISES.items()}


def follows(split: Split, wrong: Mapping[str, float] | None = None) -> Check:
    statement = equal(split.predicted, wrong, digits=split.error, relative_margin=0.1)
    return split.entry.check(split.label, split.gap, statement)


def beats(best: Split, other: Split, rivals: tuple[str, ...] = ()) -> Check:
    """The other group size has the larger gap."""
    baseline = "" if best.baseline == "grpo" else f" of {best.baseline}"
    return other.exceeds(best, f"more{baseline} than at G={best.group_size}", rivals)


def schedules(entry: LandscapeEntry) -> tuple[Schedule, Schedule]:
    """Decaying and constant rates on the scale of the curvature."""
    curvature = float(entry.problem.curvatures[0])
    return Decay(2 / curvature, 80.0), Constant(0.02 / curvature)


def _enumerable(entry: LandscapeEntry, many: bool) -> Iterator[Check]:
    """K = 6, where every outcome of every step can be enumerated; few checks or ``many``."""
    decay, constant = schedules(entry)
    steps = (100, 300) if many else (100,)
    for group_size in (2, 3, 6):
        for step in steps:
            split = Split(entry, 6, group_size, decay, step, steps=steps[-1])
            yield follows(split, rivals(split) if group_size <= 3 and step == 100 else None)
        if many:
            yield follows(Split(entry, 6, group_size, constant, 100))
    best = Split(entry, 6, 3, decay, 100, steps=steps[-1])
    yield beats(best, replace(best, group_size=2), (PAPER, ONE))
    for baseline in ("vanilla", "oracle") if many else ():
        one = Split(entry, 6, 1, decay, 40, baseline)
        yield beats(one, replace(one, group_size=2))


def _curve(entry: LandscapeEntry) -> Iterator[Check]:
    """The whole curve at K = 24, and the root of a large budget."""
    for schedule in schedules(entry):
        for group_size in (2, 3, 4, 6, 12):
            split = Split(entry, 24, group_size, schedule, 50)
            yield follows(split, rivals(split) if group_size == 3 else None)
    four = Split(entry, 64, 4, schedules(entry)[0], 60)
    yield beats(four, replace(four, group_size=8), (ROOT,))


def _epochs(entry: LandscapeEntry, schedule: Schedule, measured: bool) -> Iterator[Check]:
    """Few prompts, again and again: what is left of the curve, and where its least value goes."""
    largest = Split(entry, 24, 12, schedule, 24, design="epochs")
    third = replace(largest, group_size=3)
    yield beats(largest, third)
    if measured and entry.origin == "made-up":
        yield beats(replace(third, design="iid"), replace(largest, design="iid"))
    for group_size in (2, 4, 12) if measured else (4,):
        yield follows(replace(largest, group_size=group_size))


SMALL_C, LARGE_C = (Decay(26.5, 5.0), 60), (Decay(200.0, 60.0), 60)
"""Schedule and steps with which two directions want different group sizes."""


def crossing(entry: LandscapeEntry, group_size: int, c: tuple[Schedule, int]) -> Split:
    """Runs on two directions, with a small or a large c."""
    return Split(entry, 48, group_size, *c, start=0.0, reach=3.0)


def gradient_errors(entry: BanditEntry, budget: int) -> Iterator[Check]:
    """The curve of the gradient's error at G = 2 and 4, without training."""
    constants = mse_constants(entry.problem.moments())
    for group_size in (2, 4):
        batch_size = budget // group_size
        value = constants.mse(group_size, batch_size)
        # By c₃ alone the rivals are off.
        right = constants.c3 / (group_size * (group_size - 1))
        wrong = {
            name: value + (noise(0, 0, constants.c3, group_size) - right) / batch_size
            for name, noise in NOISES.items()
        }
        yield entry.check(
            f"K={budget} G={group_size}: error of the gradient",
            mean_of(GradientCell(entry.problem, group_size, batch_size), mse_of("grpo")),
            equal(value, wrong if group_size == 2 else None, scale=value),
        )


AWAY = 0.3
"""How far from the optimum gradients are measured, so that their mean is not 0."""


def _away(entry: LandscapeEntry) -> SoftmaxBandit:
    return entry.problem.at(entry.problem.maximiser + AWAY)


def _error(
    problem: SoftmaxBandit, group_size: int, batch_size: int = 1, design: str = "iid"
) -> Linear:
    return mean_of(GradientCell(problem, group_size, batch_size, design), mse_of("grpo"))


def _errors(
    problem: SoftmaxBandit, splits: Iterable[tuple[int, int]], population: int | None = None
) -> tuple[tuple[Linear, ...], tuple[float, ...]]:
    """The errors of splits in groups and prompts: measured, and by c₁, c₂ and c₃."""
    splits, constants = list(splits), mse_constants(problem.moments())
    design = "without-replacement" if population else "iid"
    return (
        tuple(_error(problem, *split, design) for split in splits),
        tuple(constants.mse(*split, population=population) for split in splits),
    )


def _feasible(sizes: Iterable[int], budget: int) -> list[tuple[int, int]]:
    return [(size, budget // size) for size in sizes]


def _budgets(
    problem: SoftmaxBandit, sizes: Iterable[int]
) -> tuple[tuple[Linear, ...], tuple[float, ...]]:
    """The errors at one prompt times the group size: those of a budget of 1, were prompts divisible."""
    sizes = list(sizes)
    points, values = _errors(problem, ((size, 1) for size in sizes))
    return (
        tuple(map(scaled, points, sizes)),
        tuple(size * value for size, value in zip(sizes, values, strict=True)),
    )


def _constants(entry: LandscapeEntry) -> Iterator[Check]:
    """The error at B > N, G > 8, of other baselines and without replacement, by c₁, c₂ and c₃."""
    problem = _away(entry)
    moments = problem.moments()
    for group_size, batch_size, baseline in (
        *((2, 1, "grpo"), (2, 3, "grpo"), (5, 2, "grpo"), (12, 1, "grpo")),
        *((3, 3, "oracle"), (3, 3, "vanilla"), (1, 2, "vanilla")),
    ):
        measured = mean_of(GradientCell(problem, group_size, batch_size), mse_of(baseline))
        name = f"G={group_size} B={batch_size}: error of {baseline}"
        by_curve = mse_constants(moments).mse(group_size, batch_size, baseline)
        direct = gradient_mse(moments, baseline, group_size, batch_size).mse
        yield entry.check(name, measured, equal(by_curve))
        yield entry.check(f"{name}, direct", measured, equal(direct))


def _lowest(entry: LandscapeEntry) -> Iterator[Check]:
    """G*, the least error and K_crit, from errors at three group sizes; with a cost of prompts too."""
    problem, sizes = _away(entry), (2, 5, 24)
    moments = problem.moments()
    constants, signal = mse_constants(moments), float(moments.mean_gradient_sq)
    curve = sizes, *_budgets(problem, sizes)
    ratio = constants.c3 / constants.c1
    wrong = {
        PAPER: sqrt(ratio),
        HALVED: 1 + sqrt(ratio / 2),
        INSIDE: 1 + sqrt((constants.c2 + constants.c3) / constants.c1),
        ONE: 1.0,
    }
    budget = critical_budget(constants, signal)
    points, values = curve[1:]
    in_signals = (
        sizes,
        tuple(scaled(p, 1 / signal) for p in points),
        tuple(v / signal for v in values),
    )
    for what, lowest, value, others in (
        ("G*, by errors at G = 2, 5, 24", Lowest(*curve), optimal_group_size(constants), wrong),
        ("the paper's G* is less by one", Lowest(*curve), 1 + paper_group_size(constants), {}),
        ("least error at a budget", Lowest(*curve, value=True), constants.least_mse(1), {}),
        (
            "K_crit: outputs at which noise equals signal, at the best G",
            Lowest(*in_signals, value=True),
            budget,
            {NO_NOISE: budget - constants.c2 / signal},
        ),
    ):
        yield entry.check(what, lowest, equal(value, others, relative_margin=0.2))
    for cost in (0.5, 4.0):
        best = optimal_group_size(constants, prompt_cost=cost)
        yield entry.check(
            f"G* where a prompt costs {cost:g} outputs",
            Lowest(*curve, cost=cost),
            equal(best, relative_margin=0.3),
        )


def _finite(entry: LandscapeEntry) -> Iterator[Check]:
    """Four prompts of which each step takes several, without replacement."""
    problem, budget, sizes = _away(entry), 12, (4, 6, 12)
    population = problem.contexts
    points, errors = _errors(problem, _feasible(sizes, budget), population)
    for size, point, error in zip(sizes, points, errors, strict=True):
        yield entry.check(f"K={budget} G={size}: error without replacement", point, equal(error))
    constants = mse_constants(problem.moments())
    best = optimal_group_size(constants, population=population, budget=budget)
    yield entry.check(
        f"K={budget}: G* without replacement",
        Lowest(sizes, points, errors, least_size=budget / population),
        equal(best, relative_margin=0.3),
    )


def _one_epoch(entry: LandscapeEntry) -> Check:
    """The mean gap of epochs of two batches each, by errors that are measured: of one batch, and of
    both, whose mean has (V + C)/2 where V is the first and C the covariance of the two.
    """
    problem, group_size, batch_size = at_optimum(entry.problem), 2, entry.problem.contexts // 2
    bend, basis = float(entry.problem.curvatures[0]), entry.problem.identifiable
    rates = 0.6 / bend / np.arange(1, 6)
    value = epoch_gap(
        problem.moments(), basis, bend, rates, group_size=group_size, batch_size=batch_size
    )
    # The share of each step's noise that the linear recursion leaves at the end.
    shares = rates * np.append(np.cumprod((1 - rates * bend)[::-1])[-2::-1], 1.0)
    squares, within = float(shares @ shares), float(2 * (shares[:-1:2] @ shares[1::2]))
    points = (
        _error(problem, group_size, batch_size, "without-replacement"),
        _error(problem, group_size, 2 * batch_size, "fixed"),
    )
    return entry.check(
        f"G={group_size} B={batch_size}: gap after two epochs and a half, by errors of batches",
        Extrapolation(points, (bend / 2 * (squares - within), bend * within)),
        equal(value, relative_margin=0.5),
    )


def _reshuffled(entry: LandscapeEntry) -> Check:
    """Six epochs of two batches in large groups, whose own noise is small: in one order for all epochs
    the prompts would add up what the batches leave.
    """
    slow = Constant(0.1 / float(entry.problem.curvatures[0]))
    split = Split(entry, 64, 32, slow, 12, design="epochs", start=0.0)
    statement = equal(split.predicted, digits=split.error, relative_margin=0.25)
    return entry.check(split.label, split.gap, statement)


def _advice(entry: LandscapeEntry) -> Iterator[Check]:
    """The advice against every feasible split of a budget, enumerated."""
    problem, budget, sizes = _away(entry), 6, (2, 3, 6)
    advice = group_size_advice(problem.moments(), budget)
    points, errors = _errors(problem, _feasible(sizes, budget))
    yield entry.check(
        f"K={budget}: the best of all group sizes",
        Best(sizes, points, errors),
        equal(advice.group_size, relative_margin=2.0),
    )
    rows = {row.group_size: row for row in advice.table}
    if set(rows) != set(sizes):
        raise ArithmeticError(f"the advice has rows for {sorted(rows)}, and not for {sizes}")
    # Which group size is the reference is for the enumeration to say.
    for size, point in zip(sizes, points, strict=True):
        row, name = rows[size], f"K={budget} G={size}"
        yield entry.check(f"{name}: the advised error", point, equal(row.mse))
        over = equal(row.ratio_to_best, relative_margin=0.1)
        yield entry.check(f"{name}: over the best", Excess(sizes, points, errors, size), over)
    twice = 2 * budget
    whole = tuple(range(2, twice + 1))
    curve = whole, *_budgets(problem, whole)
    feasible = tuple(size for size in whole if twice % size == 0)
    for up, end in zip(
        (False, True), group_size_advice(problem.moments(), twice).g_interval, strict=True
    ):
        yield entry.check(
            f"K={twice}: the {'largest' if up else 'smallest'} G within 5% of the best",
            Flat(*curve, feasible, up=up),
            equal(end, relative_margin=4.0),
        )
    least = min(errors)
    in_least = tuple(scaled(p, 1 / least) for p in points), tuple(e / least for e in errors)
    yield entry.check(
        f"K={budget}: what whole numbers cost",
        Lowest(sizes, *in_least, value=True),
        equal(1 / advice.ratio_to_real, relative_margin=1.0),
    )


def _far(entry: LandscapeEntry) -> Check:
    """The advice where prompts nearly agree: rivals choose far from the best."""
    problem, budget, sizes = at_optimum(entry.problem), 6, (2, 3, 6)
    points, errors = _errors(problem, _feasible(sizes, budget))
    wrong = {ONE: float(min(sizes)), WORST: float(sizes[int(np.argmax(errors))])}
    advised = group_size_advice(problem.moments(), budget).group_size
    best = Best(sizes, points, errors)
    return entry.check(f"K={budget}: the best of all group sizes", best, equal(advised, wrong))


def _silent(entry: LandscapeEntry) -> Iterator[Check]:
    """The share of groups that teach nothing, which advice gives for each group size."""
    problem, budget = _away(entry), 6
    advice = group_size_advice(
        problem.moments(), budget, frac_reward_zero_std=problem.zero_signal_share
    )
    for row in advice.table:
        cell, share = (
            GradientCell(problem, row.group_size, row.batch_size),
            row.frac_reward_zero_std,
        )
        yield entry.check(
            f"K={budget} G={row.group_size}: groups that teach nothing",
            Linear(cell, ((Mixed(), -1.0),), 1.0),
            equal(1.0 if share is None else share, scale=1.0),
        )


def _costly(entry: LandscapeEntry) -> Check:
    """The advice where prompts cost something: every group size is feasible, and measured."""
    problem, total, cost = _away(entry), 18, 2
    sizes = tuple(range(2, total - cost + 1))
    points, errors = _errors(problem, ((size, total // (cost + size)) for size in sizes))
    constants = mse_constants(problem.moments())
    advice = group_size_advice(constants, total, prompt_cost=cost, output_cost=1.0)
    return entry.check(
        f"prompts cost {cost}, C={total}: the best of all group sizes",
        Best(sizes, points, errors),
        equal(advice.group_size, relative_margin=1.5),
    )


def _universal(entry: LandscapeEntry, many: bool) -> Iterator[Check]:
    """The best group size of whole runs, under several schedules and numbers of steps."""
    sizes, decay, constant = (2, 3, 6), *schedules(entry)
    constants = mse_constants(moments_of(entry.problem))
    advice = group_size_advice(constants, 6)
    for schedule, step in ((decay, 40), (constant, 40), (decay, 100))[: 3 if many else 2]:
        splits = [Split(entry, 6, size, schedule, step, start=0.0) for size in sizes]
        points = tuple(split.gap for split in splits)
        values = tuple(split.predicted for split in splits)
        # Where the gaps' own errors do not tell sizes apart, either may be the best of runs.
        gaps, errors = np.array(values), np.array([split.error for split in splits])
        able = np.array(sizes)[gaps - errors <= (gaps + errors).min()]
        yield entry.check(
            f"BG=6, BGT={6 * step}: {splits[0].rate}, the best group size",
            Best(sizes, points, values),
            equal(advice.group_size, relative_margin=2.0, digits=float(np.ptp(able))),
        )


def _short(entry: LandscapeEntry) -> Iterator[Check]:
    """A few short steps, where the first rates count and the linear theory is all but exact."""
    schedule = Decay(0.05 / float(entry.problem.curvatures[0]), 2.0)
    split = Split(entry, 6, 3, schedule, 6, start=0.0)
    yield entry.check(
        f"{split.label}, short", split.gap, equal(split.predicted, digits=split.error)
    )
    parts, bends = parts_of(entry.problem), entry.problem.curvatures
    best = gap_group_size(parts[0], parts[2], bends, 2 / bends[0])
    splits = [replace(split, group_size=size) for size in (2, 3, 6)]
    values = tuple(split.predicted for split in splits)
    lowest = Lowest((2, 3, 6), tuple(split.gap for split in splits), values)
    # As far as the gaps' own errors move the least place of the curve through them.
    gaps, errors = np.array(values), np.array([split.error for split in splits])
    off = lowest.between(gaps - errors, gaps + errors).half_width
    yield entry.check(
        "G* of the gap, by runs at G = 2, 3, 6",
        lowest,
        equal(best, {PAPER: best - 1}, digits=off, relative_margin=0.3),
    )


def _directions(entry: LandscapeEntry) -> Iterator[Check]:
    """G* of the gap with two curvatures: of the limit of its mean, with covariances that are measured
    and the Lyapunov equation solved by SciPy.
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
            equal(best, wrong, relative_margin=0.2),
        )


def checks(suite: Suite) -> Iterator[Check]:
    """The curve and its least value by enumeration, the curve on training runs, and each rival's choice
    of a group size against the best.
    """
    landscapes, full = suite.landscapes, suite.sized(False, False, True)
    for entry in landscapes["lopsided"]:
        for part in (_constants, _lowest, _advice):
            yield from part(entry)
        yield _costly(entry)
        yield from _short(entry)
        yield from _universal(entry, full)
    for entry in landscapes["gamble"]:
        yield from _silent(entry)
    for entry in landscapes["pairs"]:
        yield from _finite(entry)
        yield _one_epoch(entry)
    yield _reshuffled(landscapes["pairs"][0])
    for entry in landscapes["crossing"]:
        yield from _directions(entry)
    for entry in landscapes["tug"]:
        many = full and entry.origin == "made-up"
        yield from _enumerable(entry, many)
        yield from _curve(entry) if many else ()
    for entry in landscapes["accord"]:
        nine = Split(entry, 9, 9, schedules(entry)[0], 40)
        yield _far(entry)
        yield beats(nine, replace(nine, group_size=3), (ROOT, ONE))
    for entry in landscapes["rare"]:
        slow = Constant(0.01 / float(entry.problem.curvatures[0]))
        two = Split(entry, 6, 2, slow, 40, start=0.0)
        yield beats(two, replace(two, group_size=6), (INSIDE,))
    for entry in landscapes["crowd"]:
        both = full and entry.origin == "made-up"
        for schedule in schedules(entry)[: 2 if both else 1]:
            yield from _epochs(entry, schedule, full)
    two_ways = landscapes["crossing"][0]
    for c, best, other in ((SMALL_C, 3, 8), (LARGE_C, 8, 3)) if full else ():
        yield beats(crossing(two_ways, best, c), crossing(two_ways, other, c))
    yield from gradient_errors(suite.digits_rows(3), 4)
    yield from gradient_errors(suite.digits, 8)


RIVALS_ON_NETWORKS = (PAPER, HALVED)


def on_networks(suite: Suite) -> Iterator[Check]:
    """The gradient's error on every problem at two group sizes and one budget."""
    for entry in suite.token_problems:
        yield from gradient_errors(entry, 4)
