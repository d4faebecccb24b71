"""Lemma 6: the mean gap of the meta-algorithm lies under a bound that falls like 1/T for ηₜ = c/t
and stays at a floor for a constant rate.

First L, μ, μ' and M on a ball, each by a step from the place where it counts most, found by sums over
prompts and arms on a dense grid: on a return whose constants all differ. Then the bounds themselves,
(a), (b) and the recursion behind them, where the return is nearly quadratic and the noise nearly the
same everywhere: there they are attained, and a bound with another constant is refuted. Their closed
forms are held against the recursion iterated here, with μ < L. Last, runs on other problems, under
the bound at several steps, with slack reported; tighter bounds are refuted.

Falsified by a mean gap above the bound, a bound further above an attained gap than its constants
vary on the ball, a speed in T other than 1/T.

Cost: about 20 s on one core.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import numpy as np

from ustat_pg.checks import at_most, attained, equal
from ustat_pg.checks.intervals import Interval
from ustat_pg.checks.verdict import Statement
from ustat_pg.engines import Constant, Coordinate, Decay, Estimator, Gap, GradientCell
from ustat_pg.engines.runs.schedules import Schedule
from ustat_pg.experiment import Check, Claim, Linear, Point, mean_of
from ustat_pg.predictions import (
    bound_curve,
    constant_bound,
    constant_floor,
    decay_constant,
    gradient_mse,
)

from .problems import Suite, mse_of
from .problems.basins import Basin, Scan
from .problems.landscapes import LandscapeEntry
from .problems.optima import GRPO
from .problems.rates import rates_of

STEM = "suboptimality"

MU = "mu for 2 mu"
HALF = "L eta/2 for L eta"
ORACLE = "oracle's M at small G"
SLOPE = "slope -1/2 in T"
FLOOR = "no floor for the constant schedule"
TOP_L = "curvature at the optimum for L"
TOP_MU = "curvature at the optimum for mu"
WEAK = "mu' of weak strong concavity for mu"
BATCH = "M of one prompt, whatever B"
BEYOND = "the factor below 2/L beyond it"
LATE = "c/(t + 1 + t0) for c/(t + t0)"
RIVALS = (MU, HALF, ORACLE, SLOPE, FLOOR, TOP_L, TOP_MU, WEAK, BATCH, BEYOND, LATE)

WIDE = 1.0
"""Radius of the ball on which L, μ, μ' and the curvature at the optimum are all different."""

NARROW = 0.15
"""Radius on which curvature and noise vary by a few percent: there the bounds are attained."""

GRID = 0.003
"""The relative error of constants from a grid and from enclosures: each is below a third of it."""


def _pull(scan: Scan, where: float) -> Linear:
    """‖∇J‖ at a place: how far one step goes in the mean, over its rate."""
    training = scan.step(where, 1.0, 16, bounded=True)
    (way,) = scan.landscape.identifiable
    sign = -float(np.sign(where) * way[0])
    weights = ((Coordinate(GRPO, 1, 0), sign),)
    return Linear(training, weights, -sign * float(scan.place(where)[0]))


def _constants(entry: LandscapeEntry) -> Iterator[Check]:
    """μ, μ', L and M where they count most, and the curvature at the optimum between μ and L."""
    basin = Basin(entry, WIDE, WIDE)
    scan = basin.scan
    flat, weak, bent, noisy = (
        int(values.argmax())
        for values in (-scan.ratios, -scan.pulls, np.abs(scan.bend), scan.noise)
    )
    where, gap = float(scan.away[flat]), float(scan.gap[flat])
    edge = scan.step(where, 1.0, 16, bounded=True)
    yield entry.check(
        "gap at the start", mean_of(edge, Gap(GRPO, 0)), equal(gap, digits=1e-7 * gap)
    )
    # ‖∇J‖² = 2μ gap at the worst place.
    slope = sqrt(2 * basin.pl * gap)
    wrong = {
        MU: sqrt(basin.pl * gap),
        TOP_MU: sqrt(2 * basin.curvature * gap),
        WEAK: sqrt(2 * basin.weak * gap),
    }
    yield entry.check(
        "mu: one step from where the return is flattest",
        _pull(scan, where),
        equal(slope, wrong, digits=GRID * slope),
    )
    where = float(scan.away[weak])
    pull = basin.weak * abs(where)
    yield entry.check(
        "mu': one step from where the pull is weakest",
        _pull(scan, where),
        equal(pull, {TOP_MU: basin.curvature * abs(where)}, digits=GRID * pull),
    )
    yield _most_bent(basin, bent)
    yield _noisiest(basin, noisy)
    # From the optimum the gap after a short step is η²λM/2.
    rate = 0.02 / basin.smoothness
    mse = gradient_mse(scan.at(0.0).moments(), "grpo", 16).mse
    still = Linear(scan.step(0.0, rate, 16), ((Gap(GRPO, 1), 2 / (rate**2 * mse)),))
    between = Interval(basin.pl, basin.smoothness)
    yield entry.check(
        "mu <= curvature at the optimum <= L",
        still,
        Statement(basin.curvature, between, {}, basin.curvature, 0.4 * basin.curvature),
    )
    top = float(basin.curvature)
    coarse = equal(top, digits=3 * GRID * top, relative_margin=0.4)
    yield entry.check("curvature at the optimum", still, coarse)


def _most_bent(basin: Basin, bent: int) -> Check:
    """L: what a step from the most bent place loses to curvature, beyond the slope's gain."""
    scan, group_size = basin.scan, 32
    where, slope = float(scan.away[bent]), abs(float(scan.slope[bent]))
    rate = 0.2 / float(abs(scan.bend[bent]))
    mse = gradient_mse(scan.at(where).moments(), "grpo", group_size).mse
    gap, local = float(scan.gap[bent]), float(scan.ratios[bent])
    linear = gap - rate * slope**2

    def lost(pl: float, smoothness: float) -> float:
        bound = bound_curve(gap, [rate], pl=pl, smoothness=smoothness, mse=mse)
        return float(bound[-1]) - linear

    right = lost(local, basin.smoothness)
    half = right - basin.smoothness * rate**2 * slope**2 / 4
    other = basin.curvature * rate**2 * (slope**2 + mse) / 2
    ratio = 1 + GRID + scan.spread(rate * (slope + 2 * sqrt(mse)), where)
    return basin.entry.check(
        "L: one step from where the return bends most",
        Linear(scan.step(where, rate, group_size), ((Gap(GRPO, 1), 1.0),), -linear),
        attained(
            right,
            right / sqrt(ratio),
            {TOP_L: other, HALF: half, MU: right + rate * local * gap},
            ratio=ratio,
        ),
    )


def _noisiest(basin: Basin, noisy: int) -> Check:
    """M: the error of a gradient where it is largest, at B = 4."""
    scan, batch_size = basin.scan, 4
    most = basin.mse("grpo", 2, batch_size)
    wrong = {ORACLE: basin.mse("oracle", 2, batch_size), BATCH: basin.mse("grpo", 2)}
    return basin.entry.check(
        "M: the error of a gradient where it is largest",
        mean_of(GradientCell(scan.at(float(scan.away[noisy])), 2, batch_size), mse_of("grpo")),
        equal(most, wrong, digits=GRID * most),
    )


def _one_step(entry: LandscapeEntry) -> Iterator[Check]:
    """A single long step from near the edge: the factor of the recursion. And from the optimum: its
    noise.
    """
    group_size, basin = 8, Basin(entry, NARROW, 0.8 * NARROW)
    rate, mu, smooth = 1 / (2 * basin.curvature), basin.pl, basin.smoothness
    mse = gradient_mse(basin.scan.at(basin.distance).moments(), "grpo", group_size).mse
    noise = smooth * rate**2 * mse / 2
    bound = float(basin.bounds([rate], mse)[-1])
    wrong = {
        MU: (1 - mu * rate + mu * smooth * rate**2) * basin.gap + noise,
        HALF: (1 - 2 * mu * rate + mu * smooth * rate**2 / 2) * basin.gap + noise,
    }
    yield entry.check(
        f"G={group_size}: one step of {rate:.3g}",
        mean_of(basin.scan.step(basin.distance, rate, group_size), Gap(GRPO, 1)),
        attained(bound, bound / 1.01, wrong),
    )
    rate = 0.02 / basin.curvature
    moments = basin.scan.at(0.0).moments()
    top = Basin(entry, 2 * rate * sqrt(gradient_mse(moments, "grpo", 4, 2).mse), 0.0)

    def after(baseline: str) -> float:
        mse = gradient_mse(moments, baseline, 4, 2).mse
        return float(bound_curve(0.0, [rate], mse=mse, **top.known)[-1])

    value = after("grpo")
    yield entry.check(
        f"B=2 G=4: one step of {rate:.3g} from the optimum",
        mean_of(basin.scan.step(0.0, rate, 4, 2), Gap(GRPO, 1)),
        equal(value, {ORACLE: after("oracle"), BATCH: 2 * value}, digits=2 * GRID * value),
    )


def _attained(entry: LandscapeEntry) -> Iterator[Check]:
    """(a) and (b) after many small steps, within a ball on which they are attained."""
    group_size, steps = 4, 60
    basin = Basin(entry, NARROW, NARROW / 3)
    most, oracle = (basin.mse(baseline, group_size) for baseline in ("grpo", "oracle"))
    eta = 0.05 / basin.curvature

    def constant(mse: float) -> float:
        return float(constant_bound(steps, basin.gap, eta, mse=mse, **basin.known))

    bound = constant(most)
    yield entry.check(
        f"G={group_size}: constant rate, (a) attained at T={steps}",
        basin.runs(group_size, steps, Constant(eta)).gap(),
        attained(bound, bound / 1.04, {ORACLE: constant(oracle), FLOOR: constant(0.0)}, ratio=1.08),
    )
    c = 1.5 / basin.curvature
    schedule = Decay(c, 30.0)
    # From where the gap is what c/t leaves after t₀ steps: so the start fades at once.
    limit = decay_constant(c, mse=most, **basin.known)
    basin = Basin(entry, NARROW, round(sqrt(2 * limit / basin.curvature / schedule.t0), 4))
    near, far = (float(step + schedule.t0) for step in (40, 80))
    wrong = {
        ORACLE: decay_constant(c, mse=oracle, **basin.known),
        SLOPE: limit * (far**1.5 - near**1.5) / (far - near) / sqrt(near),
    }
    # (T + t₀) gap is the limit and a term in 1/(T + t₀), which two T's cancel.
    weights = (
        (Gap(GRPO, 80), far**2 / (far - near)),
        (Gap(GRPO, 40), -(near**2) / (far - near)),
    )
    yield entry.check(
        f"G={group_size}: c/(t + t0), (b) attained as T grows",
        Linear(basin.runs(group_size, 80, schedule).training, weights),
        attained(limit, limit / 1.04, wrong, ratio=1.08),
    )


def _offset(entry: LandscapeEntry) -> Iterator[Check]:
    """A few short steps from the optimum, where the first rates count."""
    group_size, steps, schedule = 4, 6, Decay(0.1 / entry.problem.curvatures[0], 2.0)
    scan = Basin(entry, NARROW, 0.0).scan
    mse = gradient_mse(scan.at(0.0).moments(), "grpo", group_size).mse
    rates = rates_of(schedule, steps)
    # Three deviations of all the steps together.
    top = Basin(entry, 3 * sqrt(float(rates @ rates) * mse), 0.0)
    right, late = (
        float(bound_curve(0.0, each, mse=mse, **top.known)[-1])
        for each in (rates, rates_of(schedule, steps + 1)[1:])
    )
    yield entry.check(
        f"G={group_size}: c/(t + t0), {steps} short steps",
        Basin(entry, 0.5, 0.0).runs(group_size, steps, schedule).gap(),
        equal(right, {LATE: late}, digits=0.02 * right),
    )


def _beyond(entry: LandscapeEntry) -> Iterator[Check]:
    """A first step beyond 2/L, on a ball where μ < L; and the paper's c/t, t₀ = 0, which has such
    steps, projected on that ball.
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
        bound = float(bounds[step])
        yield entry.check(
            f"G=8: c/t from t = 1, step {step}",
            runs.gap(step=step),
            at_most(bound, min(0.9 * bound, runs.expected(step=step)), {FLOOR: float(free[step])}),
        )


def _recursion(entry: LandscapeEntry) -> Iterator[Check]:
    """The closed forms against the recursion itself, iterated here with μ < L: Lemma 14's worst case,
    which nothing draws.
    """
    basin = Basin(entry, WIDE, WIDE)
    mu, smooth, most, gap = basin.pl, basin.smoothness, basin.mse("grpo", 4), basin.gap
    cell = basin.scan.step(0.0, 1.0, 2)

    def check(name: str, value: float, predicted: float, digits: float) -> Check:
        number = Linear(cell, ((Gap(GRPO, 0), 0.0),), value)
        return entry.check(name, number, equal(predicted, digits=digits * predicted))

    def iterated(rates: np.ndarray) -> list[float]:
        values = [gap]
        for rate in rates.tolist():
            slope = mu if smooth * rate <= 2 else smooth
            kept = values[-1] - 2 * slope * rate * (1 - smooth * rate / 2) * values[-1]
            values.append(kept + smooth * rate * rate * most / 2)
        return values

    long, eta = np.array([1 / smooth] * 2000), 1 / smooth
    worst = iterated(long)
    yield check("worst case: constant rate, floor", worst[-1],
                constant_floor(eta, mse=most, **basin.known), 1e-9)  # fmt: skip
    slack = (worst[10] - worst[-1]) / (gap - worst[-1]) * worst[-1]
    yield check("worst case: constant rate, (a)", worst[10] + slack,
                float(constant_bound(10, gap, eta, mse=most, **basin.known)), 1e-9)  # fmt: skip
    for name, t0 in (("c/t", 0.0), ("c/(t + t0)", 20.0)):
        rates = np.array([5 / smooth / (t + t0) for t in range(1, 41)])
        yield check(f"worst case: {name}, recursion", iterated(rates)[-1],
                    float(basin.bounds(rates, most)[-1]), 1e-9)  # fmt: skip
    c = 1.5 / mu
    late = iterated(np.array([c / (t + c * smooth) for t in range(1, 200_001)]))
    near, far = 100_000 + c * smooth, 200_000 + c * smooth
    limit = (far**2 * late[200_000] - near**2 * late[100_000]) / (far - near)
    yield check("worst case: T times (b)", limit, decay_constant(c, mse=most, **basin.known), 1e-4)


CASES = ((4, 2, "grpo"), (8, 4, "grpo"), (4, 4, "oracle"), (8, 1, "vanilla"))
"""B, G and baseline."""


def _under(
    entry: LandscapeEntry,
    radius: float,
    share: float,
    cases: tuple[tuple[int, int, str], ...],
    steps: tuple[int, ...],
    schedules: tuple[str, ...] = ("constant", "decay"),
) -> Iterator[Check]:
    """The gap under the bound at every one of some steps, and its slack; rates up to share/L."""
    basin = Basin(entry, radius, radius / 3, 0.02)
    rate, c = share / basin.smoothness, 1.2 / basin.pl
    decay = Decay(c, float(np.ceil(c * basin.smoothness / share)))
    every: dict[str, Schedule] = {"constant": Constant(rate), "decay": decay}
    for batch_size, group_size, baseline in cases:
        most = basin.mse(baseline, group_size, batch_size)
        for name in schedules:
            schedule = every[name]
            runs = basin.runs(group_size, steps[-1], schedule, batch_size)
            rates, estimator = rates_of(schedule, steps[-1]), Estimator(baseline)
            bounds, free = basin.bounds(rates, most), basin.bounds(rates, 0.0)
            for step in steps:
                bound, value = float(bounds[step]), runs.expected(estimator, step)
                wrong = {FLOOR: float(free[step])} if step == steps[-1] else {}
                yield entry.check(
                    f"B={batch_size} G={group_size}: {baseline}, {name} rate, step {step}",
                    runs.gap(estimator, step),
                    at_most(bound, min(value, bound / 1.1), wrong),
                )


def claim(suite: Suite) -> Claim:
    """The constants, the bound attained where it can be, and held everywhere else."""
    checks: list[Check] = []
    for entry in suite.landscapes["shoulder"]:
        checks += [*_constants(entry), *_recursion(entry)]
    for entry in suite.landscapes["dome"]:
        for part in (_one_step, _attained, _offset, _beyond):
            checks += part(entry)
    shoulder, slopes, diabetes = (
        suite.landscapes[name][0] for name in ("shoulder", "slopes", "diabetes")
    )
    checks += _under(shoulder, WIDE, 0.05, ((1, 2, "grpo"),), (5, 60))
    if suite.size != "smoke":
        checks += _under(slopes, 0.6, 0.05, CASES, (5, 30), ("decay",))
    checks += _under(diabetes, 0.6, 0.05, CASES[:1], (5, 20), ("decay",))
    return Claim(STEM, RIVALS, tuple(checks))


def curves(suite: Suite) -> Iterator[Point]:
    """The mean gap against T beside its bound, for two schedules: from the edge of a ball where the
    bound is nearly attained, and of one where it is not.
    """
    bowl, slopes = (suite.landscapes[name][0] for name in ("bowl", "slopes"))
    steps = tuple(2**n for n in range(13))
    for basin, rate in ((Basin(bowl, 0.08, 0.07), 0.01), (Basin(slopes, 0.6, 0.5, 0.02), 0.02)):
        c = 1.5 / basin.pl
        decay = Decay(c, float(round(c / rate)))
        for name, schedule in (("constant", Constant(rate)), ("decay", decay)):
            runs = basin.runs(2, steps[-1], schedule)
            bounds = basin.bounds(rates_of(schedule, steps[-1]), basin.mse("grpo", 2))
            for step in steps:
                at = {"problem": basin.entry.name, "step": step}
                value, gap = runs.expected(step=step), runs.gap(step=step)
                yield Point(STEM, f"{name}: gap", at, value, gap)
                yield Point(STEM, f"{name}: bound", at, float(bounds[step]))
