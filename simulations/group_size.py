"""Theorem 7: at a budget K = BG the mean gap depends on G through c₁ G + c₂ + c₃/(G-1), so that
G* = 1 + √(c₃/c₁) is best at every budget, number of steps and schedule.

The checks use whole training runs. With one identifiable direction the gap follows the curve at two budgets,
under constant and decaying rates, at two steps; the group sizes of the rivals lose to the best. With two
directions the bound is universal but the gap is not: the same pair of group sizes changes order with c. The
oracle and vanilla are best at G = 1. Under reshuffled epochs over few prompts c₁ cancels, and the best group
is the largest. On digits the curve itself is checked.

The curve is that of the linearised runs; its own error is of order 1/T under c/(t + t₀), and the checks allow
for it. The claim is falsified if a gap differs by more, or if an order differs from the prediction.

Cost: about half a minute on two cores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ustat_pg.engines import Estimator
from ustat_pg.predictions import epoch_gap, gap_group_size, group_size_advice

from .engines import Constant, Decay
from .engines.runs.schedules import Schedule
from .evidence import Check, Extrapolation, equal
from .parts import advice, metrics
from .parts.advice import BUDGET, HALVED, INSIDE, ONE, PAPER, SIZES
from .problems import Suite
from .problems.landscapes import LandscapeEntry
from .shared.argmin import Best, Lowest
from .shared.margins import AMONG, LOOSE, ORDER, ROUGH
from .shared.runs import at_optimum, moments_of, parts_of
from .shared.splits import Split

ROOT = "G* ~ sqrt(K)"
RIVALS = (*advice.RIVALS, ROOT, *metrics.RIVALS)


def rivals(split: Split) -> dict[str, float]:
    noises = advice.NOISES.items()
    return {name: split.runs.expected_by(noise, split.step) for name, noise in noises}


def follows(
    split: Split, wrong: Mapping[str, float] | None = None, what: str = "", margin: float = 0.1
) -> Check:
    statement = equal(split.predicted, wrong, digits=split.error, relative_margin=margin)
    return split.entry.check(split.label + what, split.gap, statement)


def gaps_of(splits: Sequence[Split]) -> tuple[advice.Curve, np.ndarray, np.ndarray]:
    """The gaps of splits as a curve over group sizes, with bounds from the predictions' own errors."""
    values = tuple(split.predicted for split in splits)
    gaps, errors = np.array(values), np.array([split.error for split in splits])
    points = tuple(split.gap for split in splits)
    return (tuple(s.group_size for s in splits), points, values), gaps - errors, gaps + errors


def beats(best: Split, other: Split, rivals: tuple[str, ...] = ()) -> Check:
    """The check that the other group size has the larger gap."""
    whose = "" if best.estimator.name == "grpo" else f" of {best.estimator.name}"
    return other.exceeds(best, f"more{whose} than at G={best.group_size}", rivals)


def schedules(entry: LandscapeEntry) -> tuple[Schedule, Schedule]:
    """Decaying and constant rates on the scale of the curvature."""
    curvature = float(entry.problem.curvatures[0])
    return Decay(2 / curvature, 80.0), Constant(0.02 / curvature)


def _enumerable(entry: LandscapeEntry, many: bool) -> Iterator[Check]:
    """The checks at K = 6, where every outcome of every step can be enumerated; few checks or ``many``."""
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
    for name in ("vanilla", "oracle") if many else ():
        one = Split(entry, 6, 1, decay, 40, Estimator(name))
        yield beats(one, replace(one, group_size=2))


def _curve(entry: LandscapeEntry) -> Iterator[Check]:
    """The checks of the whole curve at K = 24, and of the root at a large budget."""
    for schedule in schedules(entry):
        for group_size in (2, 3, 4, 6, 12):
            split = Split(entry, 24, group_size, schedule, 50)
            yield follows(split, rivals(split) if group_size == 3 else None)
    four = Split(entry, 64, 4, schedules(entry)[0], 60)
    yield beats(four, replace(four, group_size=8), (ROOT,))


def _epochs(entry: LandscapeEntry, schedule: Schedule, measured: bool) -> Iterator[Check]:
    """The checks of repeated epochs over few prompts: the remaining curve and its minimum."""
    largest = Split(entry, 24, 12, schedule, 24, design="epochs")
    third = replace(largest, group_size=3)
    yield beats(largest, third)
    if measured and entry.origin == "made-up":
        yield beats(replace(third, design="iid"), replace(largest, design="iid"))
    for group_size in (2, 4, 12) if measured else (4,):
        yield follows(replace(largest, group_size=group_size))


SMALL_C, LARGE_C = (Decay(26.5, 5.0), 60), (Decay(200.0, 60.0), 60)
"""The schedule and steps for which two directions have different best group sizes."""


def crossing(entry: LandscapeEntry, group_size: int, c: tuple[Schedule, int]) -> Split:
    """Runs on two directions, with a small or a large c."""
    return Split(entry, 48, group_size, *c, start=0.0, reach=3.0)


def _one_epoch(entry: LandscapeEntry) -> Check:
    """The mean gap of epochs of two batches each, from measured errors: of one batch, V, and of the mean of
    both, (V + C)/2 with the covariance C of the two.
    """
    problem, group_size, batch_size = at_optimum(entry.problem), 2, entry.problem.contexts // 2
    bend, basis = float(entry.problem.curvatures[0]), entry.problem.identifiable
    rates = 0.6 / bend / np.arange(1, 6)
    value = epoch_gap(
        problem.moments(), basis, bend, rates, group_size=group_size, batch_size=batch_size
    )
    # The share of each step's noise that remains at the end of the linear recursion.
    shares = rates * np.append(np.cumprod((1 - rates * bend)[::-1])[-2::-1], 1.0)
    squares, within = float(shares @ shares), float(2 * (shares[:-1:2] @ shares[1::2]))
    points = (
        advice.grpo_error(problem, group_size, batch_size, "without-replacement"),
        advice.grpo_error(problem, group_size, 2 * batch_size, "fixed"),
    )
    return entry.check(
        f"G={group_size} B={batch_size}: gap after two epochs and a half, by errors of batches",
        Extrapolation(points, (bend / 2 * (squares - within), bend * within)),
        equal(value, relative_margin=ROUGH),
    )


def _universal(entry: LandscapeEntry, many: bool) -> Iterator[Check]:
    """The best group size of whole runs, under several schedules and numbers of steps."""
    decay, constant = schedules(entry)
    advised = group_size_advice(moments_of(entry.problem), BUDGET).group_size
    for schedule, step in ((decay, 40), (constant, 40), (decay, 100))[: 3 if many else 2]:
        splits = [Split(entry, BUDGET, size, schedule, step, start=0.0) for size in SIZES]
        curve, low, high = gaps_of(splits)
        # If the gaps' own errors do not separate sizes, either may be the best in runs.
        able = np.array(SIZES)[low <= high.min()]
        yield entry.check(
            f"BG={BUDGET}, BGT={BUDGET * step}: {splits[0].rate}, the best group size",
            Best(*curve),
            equal(advised, relative_margin=AMONG, digits=float(np.ptp(able))),
        )


def _short(entry: LandscapeEntry) -> Iterator[Check]:
    """A few short steps, for which the first rates matter and the linear theory is nearly exact."""
    schedule = Decay(0.05 / float(entry.problem.curvatures[0]), 2.0)
    split = Split(entry, 6, 3, schedule, 6, start=0.0)
    yield follows(split, what=", short")
    parts, bends = parts_of(entry.problem), entry.problem.curvatures
    best = gap_group_size(parts[0], parts[2], bends, 2 / bends[0])
    curve, low, high = gaps_of([replace(split, group_size=size) for size in SIZES])
    lowest = Lowest(*curve)
    # The tolerance is the shift of the curve's minimum by the gaps' own errors.
    off = lowest.between(low, high).half_width
    statement = equal(best, {PAPER: best - 1}, digits=off, relative_margin=LOOSE)
    yield entry.check("G* of the gap, by runs at G = 2, 3, 6", lowest, statement)


def checks(suite: Suite) -> Iterator[Check]:
    """Checks of the curve, by gradients and by whole runs, and of each rival's choice against the best."""
    landscapes, full = suite.landscapes, suite.sized(False, False, True)
    yield from advice.checks(suite)
    yield from metrics.checks(suite)
    for entry in landscapes["lopsided"]:
        yield from _short(entry)
        yield from _universal(entry, full)
    yield from map(_one_epoch, landscapes["pairs"])
    # Six epochs of two batches in large groups have little noise of their own; with the same order in all
    # epochs the remainders of the batches would add up.
    pairs = landscapes["pairs"][0]
    slow = Constant(0.1 / float(pairs.problem.curvatures[0]))
    yield follows(Split(pairs, 64, 32, slow, 12, design="epochs", start=0.0), margin=ORDER)
    for entry in landscapes["tug"]:
        many = full and entry.origin == "made-up"
        yield from _enumerable(entry, many)
        yield from _curve(entry) if many else ()
    for entry in landscapes["accord"]:
        nine = Split(entry, 9, 9, schedules(entry)[0], 40)
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


RIVALS_ON_NETWORKS = (PAPER, HALVED)


def on_networks(suite: Suite) -> Iterator[Check]:
    """The checks of the gradient's error on every problem at two group sizes and one budget."""
    for entry in suite.token_problems:
        yield from advice.gradient_errors(entry, 4)
