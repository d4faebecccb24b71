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
from dataclasses import replace
from math import log

from ustat_pg.checks import equal, positive
from ustat_pg.engines import Constant, Decay, GradientCell
from ustat_pg.engines.runs.schedules import Schedule
from ustat_pg.experiment import Check, Claim, LogSlope, mean_of
from ustat_pg.predictions import gradient_mse, mse_constants

from .problems import BanditEntry, Suite, mse_of
from .problems.landscapes import LandscapeEntry
from .problems.optima import Noise
from .problems.splits import Split

STEM = "group_size"

PAPER = "sqrt(c3/c1)"
HALVED = "c3 halved"
INSIDE = "c2 inside the root"
ROOT = "G* ~ sqrt(K)"
ONE = "G = 1"
RIVALS = (PAPER, HALVED, INSIDE, ROOT, ONE)

NOISES: dict[str, Noise] = {
    PAPER: lambda c1, c2, c3, g: c1 + c2 / g + c3 / g**2,
    HALVED: lambda c1, c2, c3, g: c1 + c2 / g + c3 / (2 * g * (g - 1)),
}
"""The covariance of a gradient at B = 1, as the rivals' curves have it."""


def rivals(split: Split) -> dict[str, float]:
    """The gaps that the rivals' curves say."""
    return {name: split.runs.expected_by(noise, split.step) for name, noise in NOISES.items()}


def follows(split: Split, wrong: Mapping[str, float] | None = None) -> Check:
    """The gap is the predicted one."""
    statement = equal(split.predicted, wrong, digits=split.error, relative_margin=0.1)
    return split.entry.check(split.label, split.gap, statement)


def beats(best: Split, other: Split, rivals: tuple[str, ...] = ()) -> Check:
    """The other group size has the larger gap: the logarithm of the ratio is positive."""
    low, high = best.predicted, other.predicted
    gain, baseline = log(high / low), "" if best.baseline == "grpo" else f" of {best.baseline}"
    return best.entry.check(
        f"{other.label}: more{baseline} than at G={best.group_size}",
        LogSlope((0.0, 1.0), (best.gap, other.gap), (low, high)),
        positive(gain, rivals, scale=gain),
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
            for step in (50, 100):
                split = Split(entry, 24, group_size, schedule, step, steps=100)
                yield follows(split, rivals(split) if group_size == 3 and step == 100 else None)
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
    constants = mse_constants(moments)
    for group_size in (2, 4):
        batch_size = budget // group_size
        value = gradient_mse(moments, "grpo", group_size, batch_size).mse
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
