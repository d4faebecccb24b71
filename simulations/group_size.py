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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import log

import numpy as np

from ustat_pg.checks import equal, positive
from ustat_pg.engines import Constant, Decay, Estimator, Gap, GradientCell, Training
from ustat_pg.engines.runs.schedules import Schedule
from ustat_pg.experiment import Check, Claim, Linear, LogSlope, Point, mean_of
from ustat_pg.moments import Moments
from ustat_pg.predictions import (
    covariance_parts,
    finite_covariance,
    gradient_covariance,
    gradient_mse,
    mean_gap,
    mse_constants,
)

from .landscapes import Ground, Landscapes, ball
from .problems import Entry, Suite, mse_of

STEM = "group_size"

PAPER = "sqrt(c3/c1)"
HALVED = "c3 halved"
INSIDE = "c2 inside the root"
ROOT = "G* ~ sqrt(K)"
ONE = "G = 1"
RIVALS = (PAPER, HALVED, INSIDE, ROOT, ONE)

START = 0.1
"""Where runs begin, from the optimum."""

REACH = 4.0
"""How many standard deviations of the noise, where it is largest, Θ goes beyond the start: the
projection is met once in 10⁴ runs, and the range of a gap is small."""

OWN_ERROR = 2.5
"""Error of the linearised theory: this over t + t₀ of the gap; under a constant rate 1.5% of it."""


@dataclass(frozen=True)
class Run:
    """Training runs of one group size on one problem.

    Arguments:
        ground: the problem.
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

    ground: Ground
    budget: int
    group_size: int
    schedule: Schedule
    step: int
    baseline: str = "grpo"
    design: str = "iid"
    steps: int = 0
    start: float = START
    reach: float = REACH

    @property
    def batch_size(self) -> int:
        """B = K/G."""
        return self.budget // self.group_size

    @property
    def length(self) -> int:
        """The length of the runs, in steps."""
        return self.steps or self.step

    @property
    def radius(self) -> float:
        """The radius of Θ."""
        landscape, basis = self.ground.landscape, self.ground.landscape.identifiable
        noise = gradient_covariance(self.moments, self.baseline, self.group_size, self.batch_size)
        rates = self.schedule.rates(self.length)
        spread = finite_covariance(
            landscape.curvatures, basis.T @ noise @ basis, rates, steps=np.arange(self.length + 1)
        )
        return round(self.start + self.reach * float(np.sqrt(spread.max())), 2)

    @property
    def gap(self) -> Linear:
        """What is measured: the mean gap after T steps."""
        landscape = self.ground.landscape
        training = Training(
            landscape,
            self.group_size,
            self.length,
            self.schedule,
            self.batch_size,
            self.design,
            start=landscape.maximiser + self.start * landscape.identifiable[:, 0],
            projection=ball(landscape, self.radius),
        )
        return mean_of(training, Gap(Estimator(self.baseline), self.step))

    @property
    def moments(self) -> Moments:
        """At the optimum."""
        return self.ground.landscape.at(self.ground.landscape.maximiser).moments()

    @property
    def predicted(self) -> float:
        """The mean gap of the linearised runs."""
        landscape, size = self.ground.landscape, self.group_size
        if self.design == "epochs":
            return epoch_gap(self)
        noise = gradient_covariance(self.moments, self.baseline, size, self.batch_size)
        basis = landscape.identifiable
        return self.gap_of(basis.T @ noise @ basis)

    def gap_of(self, noise: np.ndarray) -> float:
        """½ tr(Λ Γ_T) with that covariance of a gradient at the optimum, (r, r)."""
        curvatures = self.ground.landscape.curvatures
        away = np.zeros(len(curvatures))
        away[0] = self.start
        return float(mean_gap(curvatures, noise, self.schedule.rates(self.step), away))

    @property
    def wrong(self) -> dict[str, float]:
        """What the rivals' curves say."""
        first, single, pair = covariance_parts(self.moments, self.ground.landscape.identifiable)
        size = self.group_size
        parts = {PAPER: pair / size**2, HALVED: pair / (2 * size * (size - 1))}
        return {
            name: self.gap_of((first + single / size + part) / self.batch_size)
            for name, part in parts.items()
        }

    @property
    def own_error(self) -> float:
        """The prediction's own error."""
        if isinstance(self.schedule, Decay):
            return OWN_ERROR / (self.step + self.schedule.t0) * self.predicted
        return 0.015 * self.predicted

    @property
    def label(self) -> str:
        """Words for a report."""
        rate = "decay" if isinstance(self.schedule, Decay) else "constant"
        return f"{self.ground.name} K={self.budget} G={self.group_size}: {rate}, step {self.step}"


def epoch_gap(run: Run) -> float:
    """The mean gap of linearised runs over reshuffled epochs, one direction.

    δ_T = Σₜ wₜ (ḡₜ + ξₜ), wₜ = ηₜ (1 - ηₜ₊₁λ) ⋯ (1 - η_Tλ), and the mean gradients ḡ of the m = N/B batches
    of an epoch add up to 0 at the optimum: an epoch leaves
    (c₁/B)(N-B)/(N-1) · m/(m-1) · [Σ w² - (Σ w)²/m] of them, nothing where its weights are equal.
    """
    landscape, moments = run.ground.landscape, run.moments
    (curvature,), prompts, batch = landscape.curvatures, len(moments), run.batch_size
    rates = run.schedule.rates(run.step)
    shrink = np.cumprod(1 - curvature * rates[::-1])[::-1]
    weights = rates * np.append(shrink[1:], 1.0)
    first, single, pair = (
        float(np.trace(part)) for part in covariance_parts(moments, landscape.identifiable)
    )
    size = run.group_size
    within = (single / size + pair / (size * (size - 1))) / batch
    total = (shrink[0] * run.start) ** 2 + within * float((weights**2).sum())
    per_epoch = prompts // batch
    if per_epoch > 1:
        spread = first / batch * (prompts - batch) / (prompts - 1) * per_epoch / (per_epoch - 1)
        for begin in range(0, run.step, per_epoch):
            own = weights[begin : begin + per_epoch]
            total += spread * float((own**2).sum() - own.sum() ** 2 / per_epoch)
    return 0.5 * float(curvature) * total


def follows(run: Run, rivals: Mapping[str, float] | None = None, margin: float = 0.1) -> Check:
    """The gap is the predicted one."""
    value = run.predicted
    statement = equal(value, rivals, digits=run.own_error, relative_margin=margin)
    return Check(run.label, run.ground.origin, run.gap, statement)


def beats(best: Run, other: Run, rivals: tuple[str, ...] = ()) -> Check:
    """The other group size has the larger gap: the logarithm of the ratio is positive."""
    low, high = best.predicted, other.predicted
    ratio = log(high / low)
    words = "" if best.baseline == "grpo" else f" of {best.baseline}"
    reshuffled = ", epochs" if best.design == "epochs" else ""
    return Check(
        f"{other.label}{reshuffled}: more{words} than at G={best.group_size}",
        best.ground.origin,
        LogSlope((0.0, 1.0), (best.gap, other.gap), (low, high)),
        positive(ratio, rivals, scale=ratio),
    )


def schedules(ground: Ground) -> tuple[Schedule, Schedule]:
    """Decaying and constant rates on the scale of the curvature."""
    curvature = float(ground.landscape.curvatures[0])
    return Decay(2 / curvature, 80.0), Constant(0.02 / curvature)


def _enumerable(ground: Ground, smoke: bool) -> Iterator[Check]:
    """K = 6, where every outcome of every step can be enumerated."""
    decay, constant = schedules(ground)
    more = not smoke and ground.origin == "made-up"
    steps = (100, 300) if more else (100,)
    for size in (2, 3, 6):
        for step in steps:
            run = Run(ground, 6, size, decay, step, steps=steps[-1])
            yield follows(run, run.wrong if size <= 3 and step == 100 else None)
        if more:
            yield follows(Run(ground, 6, size, constant, 100))
    best = Run(ground, 6, 3, decay, 100, steps=steps[-1])
    yield beats(best, replace(best, group_size=2), (PAPER, ONE))
    if not more:
        return
    for baseline in ("vanilla", "oracle"):
        one = Run(ground, 6, 1, decay, 40, baseline)
        yield beats(one, replace(one, group_size=2))


def _curve(ground: Ground) -> Iterator[Check]:
    """The whole curve at K = 24, and the root of a large budget."""
    decay, constant = schedules(ground)
    for schedule in (decay, constant):
        for size in (2, 3, 4, 6, 12):
            for step in (50, 100):
                run = Run(ground, 24, size, schedule, step, steps=100)
                yield follows(run, run.wrong if size == 3 and step == 100 else None)
    four = Run(ground, 64, 4, decay, 60)
    yield beats(four, replace(four, group_size=8), (ROOT,))


def _epochs(ground: Ground, smoke: bool) -> Iterator[Check]:
    """Few prompts, again and again: what is left of the curve, and where its least value goes."""
    for schedule in schedules(ground)[: 1 if smoke or ground.origin == "generated" else 2]:
        largest = Run(ground, 24, 12, schedule, 48, design="epochs")
        third = replace(largest, group_size=3)
        yield beats(largest, third)
        if smoke:
            continue
        if ground.origin == "made-up":
            yield beats(replace(third, design="iid"), replace(largest, design="iid"))
        for size in (2, 4, 12):
            check = follows(replace(largest, group_size=size))
            yield replace(check, name=f"{check.name}, epochs")


SMALL_C, LARGE_C = (Decay(26.5, 5.0), 60), (Decay(200.0, 60.0), 60)
"""For the crossing: schedule and steps."""


def _crossing(ground: Ground) -> Iterator[Check]:
    """Two directions: the same pair of group sizes at a small and at a large c."""
    for (schedule, step), best, other in ((SMALL_C, 3, 8), (LARGE_C, 8, 3)):
        run = Run(ground, 48, best, schedule, step, start=0.0, reach=3.0)
        yield beats(run, replace(run, group_size=other))


def _gradient(entry: Entry, budget: int, sizes: tuple[int, ...]) -> Iterator[Check]:
    """The curve of the gradient's error, without training."""
    moments = entry.problem.moments()
    known = mse_constants(moments)
    for size in sizes:
        batch = budget // size
        value = gradient_mse(moments, "grpo", size, batch).mse
        pair = known.c3 / batch
        wrong = {
            PAPER: value - pair / (size * (size - 1)) + pair / size**2,
            HALVED: value - pair / (2 * size * (size - 1)),
        }
        yield Check(
            f"{entry.name} K={budget} G={size}: error of the gradient",
            entry.origin,
            mean_of(GradientCell(entry.problem, size, batch), mse_of("grpo")),
            equal(value, wrong if size == 2 else None, scale=value),
        )


def claim(suite: Suite) -> Claim:
    """The curve on training runs, and each rival's choice of a group size against the best."""
    if suite.user is not None:
        return Claim(STEM, RIVALS, tuple(_gradient(suite.given[0], 4, (2, 4))))
    if suite.on != "bandit":
        from .network_runs import GROUP_SIZE_RIVALS
        from .network_runs import group_sizes as trained

        own = [check for entry in suite.given for check in _gradient(entry, 4, (2, 4))]
        if not suite.trains:
            return Claim(STEM, (PAPER, HALVED), tuple(own))
        named = (PAPER, HALVED, *GROUP_SIZE_RIVALS)
        return Claim(STEM, named, (*own, *trained(suite)), GROUP_SIZE_RIVALS)
    grounds, smoke = Landscapes(suite), suite.size == "smoke"
    checks: list[Check] = []
    for ground in grounds.tugs("tug"):
        checks += _enumerable(ground, smoke)
        if not smoke and ground.origin == "made-up":
            checks += _curve(ground)
    for ground in grounds.tugs("accord"):
        nine = Run(ground, 9, 9, schedules(ground)[0], 60)
        checks.append(beats(nine, replace(nine, group_size=3), (ROOT, ONE)))
    for ground in grounds.tugs("rare"):
        slow = Constant(0.01 / float(ground.landscape.curvatures[0]))
        two = Run(ground, 6, 2, slow, 40, start=0.0)
        checks.append(beats(two, replace(two, group_size=6), (INSIDE,)))
    for ground in grounds.tugs("crowd"):
        checks += _epochs(ground, smoke)
    if not smoke:
        checks += _crossing(grounds.crossing)
    checks += _gradient(suite.digits_rows(3), 4, (2, 4))
    checks += _gradient(suite.digits, 8, (2, 4))
    return Claim(STEM, RIVALS, tuple(checks))


def curves(suite: Suite) -> Iterator[Point]:
    """The gap over its least value against G: budgets and schedules, epochs, two values of c."""
    if suite.user is not None:
        return
    if suite.on != "bandit":
        from .network_runs import group_size_points

        if suite.trains:
            yield from group_size_points(suite)
        return
    grounds = Landscapes(suite)
    tug = next(grounds.tugs("tug"))
    decay, constant = schedules(tug)
    for budget, schedule, word, step in (
        (12, decay, "decay", 200),
        (24, decay, "decay", 100),
        (24, constant, "constant", 100),
        (48, constant, "constant", 100),
    ):
        sizes = [size for size in (2, 3, 4, 6, 8, 12) if budget % size == 0]
        runs = [Run(tug, budget, size, schedule, step) for size in sizes]
        yield from _normalised("universal", f"K = {budget}, {word}, T = {step}", runs, runs)
    crowd = next(grounds.tugs("crowd"))
    drawn = [Run(crowd, 24, size, schedules(crowd)[0], 96) for size in (2, 3, 4, 6, 12)]
    again = [replace(run, design="epochs") for run in drawn]
    yield from _normalised("epochs", "i.i.d.", drawn, drawn)
    yield from _normalised("epochs", "epochs", again, drawn)
    for word, (schedule, step) in (("small c", SMALL_C), ("large c", LARGE_C)):
        runs = [
            Run(grounds.crossing, 48, size, schedule, step, start=0.0, reach=3.0)
            for size in (2, 3, 4, 6, 8, 12)
        ]
        yield from _normalised("c", word, runs, runs)


def _normalised(panel: str, series: str, runs: list[Run], unit: list[Run]) -> Iterator[Point]:
    """Gaps over the least predicted one, and the curve between them."""
    least = min(run.predicted for run in unit)
    for run in runs:
        gap = run.gap
        ((quantity, _),) = gap.weights
        yield Point(
            "group_size",
            series,
            {"panel": panel, "group_size": run.group_size, "budget": run.budget, "step": run.step},
            run.predicted / least,
            Linear(gap.cell, ((quantity, 1 / least),)),
        )
    if runs[0].design == "epochs":
        return
    first, single, pair = covariance_parts(runs[0].moments, runs[0].ground.landscape.identifiable)
    for size in np.geomspace(2, 12, 30)[1:-1]:
        noise = (first * size + single + pair / (size - 1)) / runs[0].budget
        at: dict[str, float | str] = {"panel": panel, "group_size": float(size)}
        yield Point("group_size", series, at, runs[0].gap_of(noise) / least)
