"""Lemma 6: the mean gap of the meta-algorithm lies under a bound that falls like 1/T for ηₜ = c/t
and stays at a floor for a constant rate.

:mod:`~simulations.parts.assumptions` checks the constants and the closed forms, which need no training. The
other checks are of the bounds (a), (b) and the recursion behind them. If the return is nearly quadratic and
the noise nearly constant, the bounds are attained and a bound with another constant is refuted; if c is below
1/(2λ) the gap falls more slowly than 1/T. Runs on other problems are below the bound at several steps, with
reported slack; tighter bounds are refuted.

The claim is falsified if a mean gap is above the bound, if a bound exceeds an attained gap by more than its
constants vary on the ball, or if the speed in T is not 1/T.

Cost: about 15 s on one core.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import log, sqrt

import numpy as np

from ustat_pg.engines import Estimator
from ustat_pg.predictions import constant_bound, decay_constant, gradient_mse

from .engines import Constant, Decay, Gap
from .engines.runs.schedules import Schedule
from .evidence import Check, Linear, Statement, at_most, attained, equal, mean_of
from .parts import assumptions
from .parts.assumptions import BATCH, DEVIATIONS, FLOOR, HALF, LATE, MU, ORACLE, WIDE, stays
from .parts.one_step import RIVALS as RIVALS_ON_NETWORKS  # noqa: F401
from .parts.one_step import on_networks  # noqa: F401
from .problems import Suite
from .problems.landscapes import LandscapeEntry
from .shared.basins import Basin, recursion
from .shared.margins import ATTAINED, COARSE
from .shared.runs import GRPO, NearOptimum, rates_of

SLOPE = "slope -1/2 in T"
BEYOND = "the factor below 2/L beyond it"
ANY_RATE = "slope -1 in T for every c"
RIVALS = (*assumptions.RIVALS, SLOPE, BEYOND, ANY_RATE)

NARROW = 0.15
"""The radius within which curvature and noise vary by a few percent, so that the bounds are attained."""


def _between_ends(bound: float, least: float, most: float, wrong: dict[str, float]) -> Statement:
    """The check of a bound that is attained up to the variation of its constants in the region of runs,
    computed by their recursions; the same for rivals.
    """
    ratio = most / least
    return attained(bound, bound / sqrt(ratio), wrong, ratio=ratio, relative_margin=ATTAINED)


def _one_step(entry: LandscapeEntry) -> Iterator[Check]:
    """The checks of a single long step from near the edge, for the recursion's factor."""
    group_size, basin = 64, Basin(entry, NARROW, 0.7 * NARROW)
    rate, mu, smooth = 1 / (2 * basin.curvature), basin.pl, basin.smoothness
    mse = gradient_mse(basin.scan.at(basin.distance).moments(), "grpo", group_size).mse
    noise = smooth * rate**2 * mse / 2
    # It ends at half the distance from the optimum, and three deviations of it are within the ball.
    least, most = basin.both([rate], basin.radius, mse)
    wrong = {
        MU: (1 - mu * rate + mu * smooth * rate**2) * basin.gap + noise,
        HALF: (1 - 2 * mu * rate + mu * smooth * rate**2 / 2) * basin.gap + noise,
    }
    yield entry.check(
        f"G={group_size}: one step of {rate:.3g}",
        mean_of(basin.scan.step(basin.distance, rate, group_size), Gap(GRPO, 1)),
        _between_ends(float(basin.bounds([rate], mse)[-1]), least[-1], most[-1], wrong),
    )


def _from_the_optimum(entry: LandscapeEntry) -> Iterator[Check]:
    """Checks of a short step from the optimum, for the noise of minibatches and of REINFORCE's one output."""
    rate, scan = 0.02 / float(entry.problem.curvatures[0]), Basin(entry, NARROW, 0.0).scan
    moments = scan.at(0.0).moments()
    for batch, size, estimator in ((2, 4, "grpo"), (1, 1, "vanilla")):
        largest = gradient_mse(moments, estimator, size, batch).mse
        other = gradient_mse(moments, "oracle", size, batch).mse
        top = Basin(entry, DEVIATIONS * rate * sqrt(largest), 0.0)
        value, oracle = (float(top.bounds([rate], mse)[-1]) for mse in (largest, other))
        least, most = top.both([rate], top.radius, largest)
        wrong = {ORACLE: oracle, **({BATCH: batch * value} if batch > 1 else {})}
        yield entry.check(
            f"B={batch} G={size}: one step of {estimator} of {rate:.3g} from the optimum",
            mean_of(scan.step(0.0, rate, size, batch), Gap(Estimator(estimator), 1)),
            equal(value, wrong, digits=most[-1] - least[-1]),
        )


def _attained(entry: LandscapeEntry) -> Iterator[Check]:
    """The checks of (a) after many small steps, within a ball on which it is attained."""
    group_size, steps = 2, 90
    basin = Basin(entry, NARROW, NARROW / 3)
    most = basin.mse("grpo", group_size)
    eta = 0.02 / basin.curvature
    bound, oracle, free = (
        float(constant_bound(steps, basin.gap, eta, mse=mse, **basin.known))
        for mse in (most, basin.mse("oracle", group_size), 0.0)
    )
    # The remaining part of the start, and the whole floor.
    start, floor = (
        float(recursion(gap, np.full(count, eta), mse=mse, **basin.known)[-1])
        for gap, count, mse in ((basin.gap, steps, 0.0), (0.0, 20 * steps, most))
    )
    least, _ = _both(basin, np.full(steps, eta), group_size)
    runs = basin.runs(group_size, steps, Constant(eta))
    yield entry.check(
        f"G={group_size}: constant rate, (a) attained at T={steps}",
        runs.gap(),
        _between_ends(bound, least[-1], start + floor, {ORACLE: oracle, FLOOR: free}),
    )
    yield from stays(runs)


def _attained_later(entry: LandscapeEntry) -> Iterator[Check]:
    """Checks of (b), the limit of the gap times T + t₀, on the same ball, from a start that decays fast."""
    group_size, (near_end, end), narrow = 2, (40, 80), Basin(entry, NARROW, NARROW / 3)
    most, oracle = (narrow.mse(estimator, group_size) for estimator in ("grpo", "oracle"))
    c = 1.5 / narrow.curvature
    schedule = Decay(c, 80.0)
    limit = decay_constant(c, mse=most, **narrow.known)
    # λ c² M/(2(2λc - 1)) over t₀.
    start = c**2 * narrow.curvature * most / (4 * schedule.t0)
    basin = Basin(entry, NARROW, round(sqrt(2 * start / narrow.curvature), 4))
    near, far = near_end + schedule.t0, end + schedule.t0
    wrong = {
        ORACLE: decay_constant(c, mse=oracle, **basin.known),
        SLOPE: limit * (far**1.5 - near**1.5) / (far - near) / sqrt(near),
    }
    # (T + t₀) gap is the limit plus a term in 1/(T + t₀), which cancels between two T.
    weights = (far**2 / (far - near), -(near**2) / (far - near))
    low, high = (
        float(weights[0] * curve[end] + weights[1] * curve[near_end])
        for curve in _both(basin, rates_of(schedule, end), group_size)
    )
    runs = basin.runs(group_size, end, schedule)
    gaps = ((Gap(GRPO, end), weights[0]), (Gap(GRPO, near_end), weights[1]))
    yield entry.check(
        f"G={group_size}: c/(t + t0), (b) attained as T grows",
        Linear(runs.training, gaps),
        _between_ends(limit, low, high, wrong),
    )
    yield from stays(runs)


def _both(basin: Basin, rates: np.ndarray, group_size: int) -> tuple[np.ndarray, np.ndarray]:
    """The recursion from below and above, with the bounds of its constants from the start of runs to some
    deviations of their end.
    """
    most = basin.mse("grpo", group_size)
    left = float(recursion(basin.gap, rates, mse=most, **basin.known)[-1])
    reach = max(basin.distance, DEVIATIONS * sqrt(2 * left / basin.curvature))
    return basin.both(rates, reach, most, basin.least_mse(reach, "grpo", group_size))


def _offset(entry: LandscapeEntry) -> Iterator[Check]:
    """The checks of a few short steps from the optimum, for which the first rates matter."""
    group_size, steps, schedule = 4, 6, Decay(0.1 / entry.problem.curvatures[0], 2.0)
    scan = Basin(entry, NARROW, 0.0).scan
    mse = gradient_mse(scan.at(0.0).moments(), "grpo", group_size).mse
    rates = rates_of(schedule, steps)
    top = Basin(entry, DEVIATIONS * sqrt(float(rates @ rates) * mse), 0.0)
    right, late = (
        float(top.bounds(rate, mse)[-1]) for rate in (rates, rates_of(schedule, steps + 1)[1:])
    )
    noise = top.mse("grpo", group_size), top.least_mse(top.radius, "grpo", group_size)
    low, high = top.both(rates, top.radius, *noise)
    yield entry.check(
        f"G={group_size}: c/(t + t0), {steps} short steps",
        Basin(entry, 0.5, 0.0).runs(group_size, steps, schedule).gap(),
        equal(right, {LATE: late}, digits=float(high[-1] - low[-1])),
    )


def _beyond(entry: LandscapeEntry) -> Iterator[Check]:
    """The checks of a first step beyond 2/L, on a ball with μ < L; and of the paper's c/t with t₀ = 0, which
    has such steps, projected on that ball.
    """
    basin = Basin(entry, 0.8, NARROW)
    rate, mu, smooth = 2.8 / basin.smoothness, basin.pl, basin.smoothness
    most = basin.mse("grpo", 64)
    bound = float(basin.bounds([rate], most)[-1])
    below = (1 - 2 * mu * rate + mu * smooth * rate**2) * basin.gap + smooth * rate**2 * most / 2
    yield entry.check(
        f"G=64: one step of {rate:.3g}, beyond 2/L",
        mean_of(basin.scan.step(basin.distance, rate, 64), Gap(GRPO, 1)),
        at_most(bound, 0.9 * bound, {BEYOND: below}),
    )
    steps, schedule = (1, 4, 16, 40), Decay(2.8 / basin.smoothness, 0.0)
    rates = rates_of(schedule, steps[-1])
    bounds, free = (basin.bounds(rates, mse) for mse in (basin.mse("grpo", 8), 0.0))
    runs = basin.runs(8, steps[-1], schedule)
    for step in steps:
        bound, wrong = float(bounds[step]), {FLOOR: float(free[step])}
        statement = at_most(bound, min(0.9 * bound, runs.expected(step=step)), wrong)
        yield entry.check(f"G=8: c/t from t = 1, step {step}", runs.gap(step=step), statement)


def _slowly(entry: LandscapeEntry) -> Iterator[Check]:
    """The check with c below 1/(2λ): the effect of the start decays like T^(-2cλ), more slowly than 1/T."""
    ends, t0 = (15, 60), 4.0
    decay = Decay(0.3 / float(entry.problem.curvatures[0]), t0)
    runs = NearOptimum(entry, 8, ends[-1], decay, start=(0.1,), radius=0.6)
    places = tuple(log(end + t0) for end in ends)
    yield entry.slope(
        "G=8: slope in T at c = 0.3/curvature",
        places,
        [runs.gap(step=end) for end in ends],
        [runs.expected(step=end) for end in ends],
        {ANY_RATE: -1.0},
        scale=1.0,
        relative_margin=COARSE,
        digits=2 * runs.left_out / (places[1] - places[0]),
    )


CASES = ((4, 2, "grpo"), (8, 4, "grpo"), (4, 4, "oracle"), (8, 1, "vanilla"))
"""B, G and estimator."""


def _under(
    entry: LandscapeEntry,
    radius: float,
    cases: tuple[tuple[int, int, str], ...],
    steps: tuple[int, int],
    schedules: tuple[str, ...],
) -> Iterator[Check]:
    """Checks that the gap is below the bound at several steps, with its slack, at rates up to 1/20 of 1/L."""
    basin = Basin(entry, radius, radius / 3)
    rate, c = 0.05 / basin.smoothness, 1.2 / basin.pl
    decay = Decay(c, float(np.ceil(c * basin.smoothness / 0.05)))
    by_name: dict[str, Schedule] = {"constant": Constant(rate), "decay": decay}
    for (batch_size, group_size, chosen), name in product(cases, schedules):
        most, estimator = basin.mse(chosen, group_size, batch_size), Estimator(chosen)
        runs = basin.runs(group_size, steps[-1], by_name[name], batch_size)
        bounds, free = (basin.bounds(runs.rates(), mse) for mse in (most, 0.0))
        for step in steps:
            bound, value = float(bounds[step]), runs.expected(estimator, step)
            wrong = {FLOOR: float(free[step])} if step == steps[-1] else {}
            yield entry.check(
                f"B={batch_size} G={group_size}: {chosen}, {name} rate, step {step}",
                runs.gap(estimator, step),
                at_most(bound, min(value, bound / 1.1), wrong),
            )


def checks(suite: Suite) -> Iterator[Check]:
    """The checks of the constants, of the bound in cases that attain it, and of the bound elsewhere."""
    yield from assumptions.checks(suite)
    parts = _one_step, _from_the_optimum, _attained, _attained_later, _offset, _beyond, _slowly
    for entry, part in product(suite.landscapes["dome"], parts):
        yield from part(entry)
    names = ("shoulder", "slopes", "diabetes")
    shoulder, slopes, diabetes = (suite.landscapes[name][0] for name in names)
    yield from _under(shoulder, WIDE, ((1, 2, "grpo"),), (5, 60), ("constant", "decay"))
    if suite.size != "smoke":
        yield from _under(slopes, 0.6, CASES, (5, 30), ("decay",))
    yield from _under(diabetes, 0.6, CASES[:1], (5, 20), ("decay",))
    if suite.size == "card":
        yield from _under(shoulder, WIDE, ((1, 2, "grpo"),), (1000, 100_000), ("decay",))
