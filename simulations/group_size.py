"""Theorem 7: at a budget K = BG the mean gap depends on G through c₁ G + c₂ + c₃/(G-1), so that
G* = 1 + √(c₃/c₁) is best at every budget, number of steps and schedule.

Checked on whole training runs: with one identifiable direction the gap follows the curve at two
budgets, under constant and decaying rates, at two steps; the group sizes that the rivals would
choose lose to the best. With two directions it is the bound that is universal, not the gap: one and
the same pair of group sizes changes order with c. The oracle and vanilla are best at G = 1. Under
reshuffled epochs over few prompts c₁ cancels, and the best group is the largest. On digits, and on
a user's problem, the curve itself.

The curve is that of the linearised runs; its own error is of order 1/T under c/(t + t₀), and
allowed for as such. Falsified by a gap further off, or by an order that is not the predicted one.

Cost: about half a minute on two cores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log

import numpy as np

from ustat_pg.checks import equal, positive
from ustat_pg.engines import Constant, Decay, Estimator, GradientCell
from ustat_pg.engines.runs.schedules import Schedule
from ustat_pg.experiment import Check, Claim, Linear, LogSlope, Point, mean_of
from ustat_pg.predictions import (
    covariance_parts,
    gradient_mse,
    mse_constants,
)

from .problems import BanditEntry, Suite, mse_of
from .problems.landscapes import LandscapeEntry
from .problems.optima import NearOptimum, moments_of

STEM = "group_size"

PAPER = "sqrt(c3/c1)"
HALVED = "c3 halved"
INSIDE = "c2 inside the root"
ROOT = "G* ~ sqrt(K)"
ONE = "G = 1"
RIVALS = (PAPER, HALVED, INSIDE, ROOT, ONE)

START = 0.1
"""Distance from the optimum at which runs begin."""

REACH = 4.0
"""How many standard deviations of the noise, where it is largest, Θ goes beyond the start: the
projection is met once in 10⁴ runs, and the range of a gap is small."""

DECAY_ERROR, CONSTANT_ERROR = 2.5, 0.015
"""The error of the linearised theory, relative to the gap: the first over t + t₀ under c/(t + t₀), the
second under a constant rate."""


@dataclass(frozen=True)
class Split:
    """A split of a budget: training runs with B prompts a step and G outputs each.

    Arguments:
        entry: the problem.
        budget: K = BG.
        group_size: G.
        schedule: the rates.
        step: T, at which the gap is measured.
        baseline: of the estimator.
        design: iid or epochs.
        steps: the runs' length; T unless given.
        start: distance from the optimum.
        reach: in place of REACH.
    """

    entry: LandscapeEntry
    budget: int
    group_size: int
    schedule: Schedule
    step: int
    baseline: str = "grpo"
    design: str = "iid"
    steps: int = 0
    start: float = START
    reach: float = REACH

    @cached_property
    def runs(self) -> NearOptimum:
        """The training runs, on a ball that they hardly ever reach the edge of."""
        runs = NearOptimum(
            self.entry, self.group_size, self.steps or self.step, self.schedule,
            self.budget // self.group_size, self.design, (self.start,),
        )  # fmt: skip
        deviation = float(np.sqrt(runs.spread(self.estimator).max()))
        return replace(runs, radius=round(self.start + self.reach * deviation, 2))

    @property
    def estimator(self) -> Estimator:
        """The estimator of the baseline."""
        return Estimator(self.baseline)

    @property
    def gap(self) -> Linear:
        """What is measured: the mean gap after T steps."""
        return self.runs.gap(self.estimator, self.step)

    @property
    def predicted(self) -> float:
        """The mean gap of the linearised runs."""
        return self.runs.expected(self.estimator, self.step)

    @property
    def wrong(self) -> dict[str, float]:
        """The gaps that the rivals' curves say."""
        landscape, g, runs = self.entry.problem, self.group_size, self.runs
        first, single, pair = covariance_parts(moments_of(landscape), landscape.identifiable)
        noises = {
            PAPER: first + single / g + pair / g**2,
            HALVED: first + single / g + pair / (2 * g * (g - 1)),
        }
        return {
            name: runs.expected_with(noise / runs.batch_size, self.step)
            for name, noise in noises.items()
        }

    @property
    def error(self) -> float:
        """The error of the prediction."""
        if isinstance(self.schedule, Decay):
            return DECAY_ERROR / (self.step + self.schedule.t0) * self.predicted
        return CONSTANT_ERROR * self.predicted

    @property
    def label(self) -> str:
        """Its name in reports."""
        rate = "decay" if isinstance(self.schedule, Decay) else "constant"
        return f"{self.entry.name} K={self.budget} G={self.group_size}: {rate}, step {self.step}"


def follows(split: Split, rivals: Mapping[str, float] | None = None) -> Check:
    """The gap is the predicted one."""
    statement = equal(split.predicted, rivals, digits=split.error, relative_margin=0.1)
    epochs = ", epochs" if split.design == "epochs" else ""
    return Check(f"{split.label}{epochs}", split.entry.origin, split.gap, statement)


def beats(best: Split, other: Split, rivals: tuple[str, ...] = ()) -> Check:
    """The other group size has the larger gap: the logarithm of the ratio is positive."""
    low, high = best.predicted, other.predicted
    baseline = "" if best.baseline == "grpo" else f" of {best.baseline}"
    epochs = ", epochs" if best.design == "epochs" else ""
    return Check(
        f"{other.label}{epochs}: more{baseline} than at G={best.group_size}",
        best.entry.origin,
        LogSlope((0.0, 1.0), (best.gap, other.gap), (low, high)),
        positive(log(high / low), rivals, scale=log(high / low)),
    )


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
            yield follows(split, split.wrong if group_size <= 3 and step == 100 else None)
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
            for step in (50, 100):
                split = Split(entry, 24, group_size, schedule, step, steps=100)
                yield follows(split, split.wrong if group_size == 3 and step == 100 else None)
    four = Split(entry, 64, 4, schedules(entry)[0], 60)
    yield beats(four, replace(four, group_size=8), (ROOT,))


def _epochs(entry: LandscapeEntry, schedule: Schedule, measured: bool) -> Iterator[Check]:
    """Few prompts, again and again: what is left of the curve, and where its least value goes."""
    largest = Split(entry, 24, 12, schedule, 48, design="epochs")
    third = replace(largest, group_size=3)
    yield beats(largest, third)
    if measured and entry.origin == "made-up":
        yield beats(replace(third, design="iid"), replace(largest, design="iid"))
    for group_size in (2, 4, 12) if measured else ():
        yield follows(replace(largest, group_size=group_size))


SMALL_C, LARGE_C = (Decay(26.5, 5.0), 60), (Decay(200.0, 60.0), 60)
"""Schedule and steps with which two directions want different group sizes."""


def crossing(entry: LandscapeEntry, group_size: int, c: tuple[Schedule, int]) -> Split:
    """Runs on two directions, with a small or a large c."""
    return Split(entry, 48, group_size, *c, start=0.0, reach=3.0)


def gradient_errors(entry: BanditEntry, budget: int) -> Iterator[Check]:
    """The curve of the gradient's error at G = 2 and 4, without training."""
    moments = entry.problem.moments()
    for group_size in (2, 4):
        batch_size = budget // group_size
        value = gradient_mse(moments, "grpo", group_size, batch_size).mse
        pair, pairs = mse_constants(moments).c3 / batch_size, group_size * (group_size - 1)
        wrong = {
            PAPER: value - pair / pairs + pair / group_size**2,
            HALVED: value - pair / (2 * pairs),
        }
        yield Check(
            f"{entry.name} K={budget} G={group_size}: error of the gradient",
            entry.origin,
            mean_of(GradientCell(entry.problem, group_size, batch_size), mse_of("grpo")),
            equal(value, wrong if group_size == 2 else None, scale=value),
        )


def claim(suite: Suite) -> Claim:
    """The curve on training runs, and each rival's choice of a group size against the best."""
    landscapes, smoke = suite.landscapes, suite.size == "smoke"
    checks: list[Check] = []
    for entry in landscapes["tug"]:
        many = not smoke and entry.origin == "made-up"
        checks += [*_enumerable(entry, many), *(_curve(entry) if many else ())]
    for entry in landscapes["accord"]:
        nine = Split(entry, 9, 9, schedules(entry)[0], 60)
        checks.append(beats(nine, replace(nine, group_size=3), (ROOT, ONE)))
    for entry in landscapes["rare"]:
        slow = Constant(0.01 / float(entry.problem.curvatures[0]))
        two = Split(entry, 6, 2, slow, 40, start=0.0)
        checks.append(beats(two, replace(two, group_size=6), (INSIDE,)))
    for entry in landscapes["crowd"]:
        both = not smoke and entry.origin == "made-up"
        for schedule in schedules(entry)[: 2 if both else 1]:
            checks += _epochs(entry, schedule, not smoke)
    (two_ways,) = landscapes["crossing"]
    for c, best, other in ((SMALL_C, 3, 8), (LARGE_C, 8, 3)) if not smoke else ():
        checks.append(beats(crossing(two_ways, best, c), crossing(two_ways, other, c)))
    checks += gradient_errors(suite.digits_rows(3), 4)
    checks += gradient_errors(suite.digits, 8)
    return Claim(STEM, RIVALS, tuple(checks))


def curves(suite: Suite) -> Iterator[Point]:
    """The gap over its least value against G: budgets and schedules, epochs, two values of c."""
    tug, crowd, two_ways = (suite.landscapes[name][0] for name in ("tug", "crowd", "crossing"))
    decay, constant = schedules(tug)
    for budget, schedule, name, step in (
        (12, decay, "decay", 200),
        (24, decay, "decay", 100),
        (24, constant, "constant", 100),
        (48, constant, "constant", 100),
    ):
        group_sizes = [g for g in (2, 3, 4, 6, 8, 12) if budget % g == 0]
        splits = [Split(tug, budget, g, schedule, step) for g in group_sizes]
        yield from _normalised("universal", f"K = {budget}, {name}, T = {step}", splits, splits)
    drawn = [Split(crowd, 24, g, schedules(crowd)[0], 96) for g in (2, 3, 4, 6, 12)]
    again = [replace(split, design="epochs") for split in drawn]
    yield from _normalised("epochs", "i.i.d.", drawn, drawn)
    yield from _normalised("epochs", "epochs", again, drawn)
    for name, c in (("small c", SMALL_C), ("large c", LARGE_C)):
        splits = [crossing(two_ways, g, c) for g in (2, 3, 4, 6, 8, 12)]
        yield from _normalised("c", name, splits, splits)


def _normalised(
    panel: str, series: str, splits: Sequence[Split], unit: Sequence[Split]
) -> Iterator[Point]:
    """Gaps over the least predicted one, and the curve between them."""
    least = min(split.predicted for split in unit)
    for split in splits:
        gap = split.gap
        ((quantity, _),) = gap.weights
        at = {"panel": panel, "group_size": split.group_size}
        at |= {"budget": split.budget, "step": split.step}
        measured = Linear(gap.cell, ((quantity, 1 / least),))
        yield Point(STEM, series, at, split.predicted / least, measured)
    if splits[0].design == "epochs":
        return
    split, landscape = splits[0], splits[0].entry.problem
    first, single, pair = covariance_parts(moments_of(landscape), landscape.identifiable)
    for size in np.geomspace(2, 12, 30)[1:-1].tolist():
        noise = (first * size + single + pair / (size - 1)) / split.budget
        at = {"panel": panel, "group_size": size}
        yield Point(STEM, series, at, split.runs.expected_with(noise, split.step) / least)
