"""Lemma 6: the mean gap of the meta-algorithm lies under a bound that falls like 1/T for ηₜ = c/t
and stays at a floor for a constant rate.

First L, μ, μ' and M on a ball, each by a step from the place where it counts most, found by sums over
prompts and arms on a dense grid: on a return whose constants all differ. Then the bounds themselves,
(a), (b) and the recursion behind them, where the return is nearly quadratic and the noise nearly the
same everywhere: there they are attained, and a bound with another constant is refuted. Their closed
forms are held against the recursion iterated here, with μ < L, which is Lemma 14's worst case; and
where c is below 1/(2λ) the gap falls more slowly than 1/T. Runs on other problems lie under the bound
at several steps, with slack reported; tighter bounds are refuted. Last, Lemma 16: the curvatures of
every kind of problem lie between μ and L of a ball around its optimum.

Falsified by a mean gap above the bound, a bound further above an attained gap than its constants
vary on the ball, a speed in T other than 1/T.

Cost: about 15 s on one core.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, log, sqrt

import numpy as np
from numpy.typing import ArrayLike

from ustat_pg.checks import at_most, attained, equal, positive
from ustat_pg.checks.intervals import Interval
from ustat_pg.checks.verdict import Statement
from ustat_pg.engines import Away, Constant, Coordinate, Decay, Estimator, Gap, GradientCell
from ustat_pg.engines.runs.schedules import Schedule
from ustat_pg.experiment import Check, Claim, EverySample, Linear, LogSlope, Point, mean_of
from ustat_pg.predictions import (
    bound_curve,
    constant_bound,
    constant_floor,
    decay_constant,
    finite_law,
    gradient_mse,
)

from .one_step import on_networks as on_networks
from .problems import Suite, mse_of
from .problems.basins import Basin, Scan, recursion, returns
from .problems.landscapes import LandscapeEntry
from .problems.optima import GRPO
from .problems.rates import rates_of
from .problems.runs import NearOptimum

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
AT_ONCE = "(b) at every T, from the first step on"
ANY_RATE = "slope -1 in T for every c"
RIVALS = (
    MU, HALF, ORACLE, SLOPE, FLOOR, TOP_L, TOP_MU, WEAK, BATCH, BEYOND, LATE, AT_ONCE, ANY_RATE,
)  # fmt: skip

WIDE = 1.0
"""Radius of the ball on which L, μ, μ' and the curvature at the optimum are all different."""

NARROW = 0.15
"""Radius on which curvature and noise vary by a few percent: there the bounds are attained."""

GRID = 0.003
"""The relative error of constants from two grids."""


def _pull(scan: Scan, where: float) -> Linear:
    """‖∇J‖ at a place: how far one step goes in the mean, over its rate."""
    training = scan.step(where, 1.0, 16)
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
    edge = scan.step(where, 1.0, 16)
    yield entry.check("gap at the start", mean_of(edge, Gap(GRPO, 0)), equal(gap))
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
    yield from _on_grids(basin)
    yield _noisiest(basin, noisy)
    # From the optimum the gap after a short step is η²λM/2.
    rate = 0.005 / basin.smoothness
    mse = gradient_mse(scan.at(0.0).moments(), "grpo", 16).mse
    still = Linear(scan.step(0.0, rate, 16), ((Gap(GRPO, 1), 2 / (rate**2 * mse)),))
    between = Interval(basin.pl, basin.smoothness)
    yield entry.check(
        "mu <= curvature at the optimum <= L",
        still,
        Statement(basin.curvature, between, {}, basin.curvature, 0.4 * basin.curvature),
    )
    # Weak strong concavity gives PL, with μ'²/L in place of μ'.
    yield _number(
        basin,
        "mu is at least mu'^2/L",
        float(scan.ratios.min()),
        Statement(
            basin.weak**2 / basin.smoothness,
            Interval(basin.weak**2 / basin.smoothness, inf),
            {WEAK: Interval(basin.weak, inf)},
            basin.pl,
            0.1 * basin.pl,
        ),
    )
    top = float(basin.curvature)
    # What the curvature varies by within two deviations of the step.
    off = scan.spread(2 * rate * sqrt(mse)) * top
    coarse = equal(top, digits=off, relative_margin=0.4)
    yield entry.check("curvature at the optimum", still, coarse)


def _most_bent(basin: Basin, bent: int) -> Check:
    """L: what a step from the most bent place loses to curvature, beyond the slope's gain."""
    scan, group_size = basin.scan, 64
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


def _on_grids(basin: Basin) -> Iterator[Check]:
    """L, μ and μ' by formulas for the derivatives, and by differences of sums over prompts and arms."""
    scan = basin.scan
    for name, value, constant in (
        ("L", float(np.abs(scan.bend).max()), basin.smoothness),
        ("mu", float(scan.ratios.min()), basin.pl),
        ("mu'", float(scan.pulls.min()), basin.weak),
    ):
        yield _number(basin, f"{name} on two grids", value, equal(constant, digits=GRID * constant))


def _number(basin: Basin, name: str, value: float, statement: Statement) -> Check:
    """A statement about a number that sums over prompts and arms give, and nothing draws."""
    cell = basin.scan.step(0.0, 1.0, 2)
    return basin.entry.check(name, Linear(cell, ((Gap(GRPO, 0), 0.0),), value), statement)


def _highest(entry: LandscapeEntry) -> Check:
    """J*, which every gap is taken from: the largest return of all, where there are two peaks."""
    landscape = entry.problem
    ways = np.linspace(-1, 1, 1001)[:, None] * landscape.radius * landscape.identifiable[:, 0]
    most = float(returns(landscape, ways).max())
    name, top = "the largest return", landscape.maximum
    return _number(Basin(entry, NARROW, 0.0), name, most, equal(top, digits=1e-5 * top))


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


def _between_ends(bound: float, least: float, most: float, wrong: dict[str, float]) -> Statement:
    """A bound that is attained up to what its constants vary by where runs are, as their own recursions
    say; so are rivals.
    """
    ratio = max(most / least, 1 + GRID)
    return attained(bound, bound / sqrt(ratio), wrong, ratio=ratio, relative_margin=0.06)


def _one_step(entry: LandscapeEntry) -> Iterator[Check]:
    """A single long step from near the edge: the factor of the recursion. And from the optimum: its
    noise.
    """
    group_size, basin = 64, Basin(entry, NARROW, 0.8 * NARROW)
    rate, mu, smooth = 1 / (2 * basin.curvature), basin.pl, basin.smoothness
    mse = gradient_mse(basin.scan.at(basin.distance).moments(), "grpo", group_size).mse
    noise = smooth * rate**2 * mse / 2
    bound = float(basin.bounds([rate], mse)[-1])
    # Half as far from the optimum it ends; two deviations of it lie within the start.
    ends = basin.other_ends(basin.distance)
    least, most = (
        float(recursion(basin.gap, [rate], mse=mse, **each)[-1]) for each in (ends, basin.known)
    )
    wrong = {
        MU: (1 - mu * rate + mu * smooth * rate**2) * basin.gap + noise,
        HALF: (1 - 2 * mu * rate + mu * smooth * rate**2 / 2) * basin.gap + noise,
    }
    yield entry.check(
        f"G={group_size}: one step of {rate:.3g}",
        mean_of(basin.scan.step(basin.distance, rate, group_size), Gap(GRPO, 1)),
        _between_ends(bound, least, most, wrong),
    )
    rate = 0.02 / basin.curvature
    moments = basin.scan.at(0.0).moments()
    # B, G and baseline: minibatches of groups, and REINFORCE's single output.
    for batch, size, own in ((2, 4, "grpo"), (1, 1, "vanilla")):
        largest = gradient_mse(moments, own, size, batch).mse
        top = Basin(entry, 2 * rate * sqrt(largest), 0.0)

        def after(baseline: str, b: int = batch, g: int = size, top: Basin = top) -> float:
            mse = gradient_mse(moments, baseline, g, b).mse
            return float(bound_curve(0.0, [rate], mse=mse, **top.known)[-1])

        value = after(own)
        least, most = (
            float(recursion(0.0, [rate], mse=largest, **each)[-1])
            for each in (top.other_ends(top.radius), top.known)
        )
        wrong = {ORACLE: after("oracle"), **({BATCH: batch * value} if batch > 1 else {})}
        yield entry.check(
            f"B={batch} G={size}: one step of {own} of {rate:.3g} from the optimum",
            mean_of(basin.scan.step(0.0, rate, size, batch), Gap(Estimator(own), 1)),
            equal(value, wrong, digits=most - least),
        )


def _attained(entry: LandscapeEntry) -> Iterator[Check]:
    """(a) and (b) after many small steps, within a ball on which they are attained."""
    group_size, steps = 2, 90
    basin = Basin(entry, NARROW, NARROW / 3)
    most, oracle = (basin.mse(baseline, group_size) for baseline in ("grpo", "oracle"))
    eta = 0.02 / basin.curvature

    def constant(mse: float) -> float:
        return float(constant_bound(steps, basin.gap, eta, mse=mse, **basin.known))

    bound, rates = constant(most), np.full(steps, eta)
    start, floor = (
        recursion(gap, np.full(count, eta), mse=mse, **basin.known)[-1]
        for gap, count, mse in ((basin.gap, steps, 0.0), (0.0, 20 * steps, most))
    )
    yield entry.check(
        f"G={group_size}: constant rate, (a) attained at T={steps}",
        basin.runs(group_size, steps, Constant(eta)).gap(),
        _between_ends(
            bound,
            float(_least(basin, rates, group_size)[-1]),
            # What is left of the start, and the whole floor.
            float(start + floor),
            {ORACLE: constant(oracle), FLOOR: constant(0.0)},
        ),
    )
    yield from _stays(basin.runs(group_size, steps, Constant(eta)))
    c, ends = 1.5 / basin.curvature, (40, 80)
    schedule = Decay(c, 80.0)
    # From where the gap is what c/t leaves after t₀ steps: so the start fades at once.
    limit = decay_constant(c, mse=most, **basin.known)
    # λ c² M/(2(2λc - 1)) over t₀.
    start = c**2 * basin.curvature * most / (4 * schedule.t0)
    basin = Basin(entry, NARROW, round(sqrt(2 * start / basin.curvature), 4))
    near, far = (step + schedule.t0 for step in ends)
    wrong = {
        ORACLE: decay_constant(c, mse=oracle, **basin.known),
        SLOPE: limit * (far**1.5 - near**1.5) / (far - near) / sqrt(near),
    }
    # (T + t₀) gap is the limit and a term in 1/(T + t₀), which two T's cancel.
    weights = (far**2 / (far - near), -(near**2) / (far - near))
    rates = rates_of(schedule, ends[-1])
    low, high = (
        float(weights[0] * each[ends[1]] + weights[1] * each[ends[0]])
        for each in (
            _least(basin, rates, group_size),
            recursion(basin.gap, rates, mse=most, **basin.known),
        )
    )
    yield entry.check(
        f"G={group_size}: c/(t + t0), (b) attained as T grows",
        Linear(
            basin.runs(group_size, ends[-1], schedule).training,
            tuple(zip((Gap(GRPO, ends[1]), Gap(GRPO, ends[0])), weights, strict=True)),
        ),
        _between_ends(limit, low, high, wrong),
    )
    yield from _stays(basin.runs(group_size, ends[-1], schedule))


def _least(basin: Basin, rates: ArrayLike, group_size: int) -> np.ndarray:
    """The recursion from below, with what its constants are within the start of runs and two
    deviations of their end.
    """
    most = basin.mse("grpo", group_size)
    left = recursion(basin.gap, rates, mse=most, **basin.known)[-1]
    reach = max(basin.distance, 2 * sqrt(2 * float(left) / basin.curvature))
    least = basin.least_mse(reach, "grpo", group_size)
    return recursion(basin.gap, rates, mse=least, **basin.other_ends(reach))


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
    low, high = (
        float(recursion(0.0, rates, mse=noise, **each)[-1])
        for noise, each in (
            (top.least_mse(top.radius, "grpo", group_size), top.other_ends(top.radius)),
            (top.mse("grpo", group_size), top.known),
        )
    )
    yield entry.check(
        f"G={group_size}: c/(t + t0), {steps} short steps",
        Basin(entry, 0.5, 0.0).runs(group_size, steps, schedule).gap(),
        equal(right, {LATE: late}, digits=high - low),
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

    def check(name: str, value: float, predicted: float, digits: float, **wrong: float) -> Check:
        named = {NAMES[key]: each for key, each in wrong.items()}
        return _number(basin, name, value, equal(predicted, named, digits=digits * predicted))

    def iterated(rates: np.ndarray) -> list[float]:
        return list(recursion(gap, rates, mu, smooth, most).tolist())

    long, eta = np.array([1 / smooth] * 2000), 1 / smooth
    worst = iterated(long)
    floor = smooth * eta * most / (2 * mu)
    yield check("worst case: constant rate, floor", worst[-1],
                constant_floor(eta, mse=most, **basin.known), 1e-9,
                half=floor / (2 - smooth * eta / 2))  # fmt: skip
    slack = (worst[10] - worst[-1]) / (gap - worst[-1]) * worst[-1]
    yield check("worst case: constant rate, (a)", worst[10] + slack,
                float(constant_bound(10, gap, eta, mse=most, **basin.known)), 1e-9,
                floor=worst[10] - worst[-1])  # fmt: skip
    for name, t0 in (("c/t", 0.0), ("c/(t + t0)", 20.0)):
        rates = np.array([5 / smooth / (t + t0) for t in range(1, 42)])
        one_late = float(basin.bounds(rates[1:], most)[-1])
        yield check(f"worst case: {name}, recursion", iterated(rates[:-1])[-1],
                    float(basin.bounds(rates[:-1], most)[-1]), 1e-9, late=one_late)  # fmt: skip
    c = 1.5 / mu
    ends = (5_000, 10_000, 20_000)
    late = iterated(np.array([c / (t + c * smooth) for t in range(1, ends[-1] + 1)]))
    squares = [(step + c * smooth) ** 2 * late[step] for step in ends]
    # (T + t₀) gap is the limit and a term in 1/(T + t₀), which two T's cancel; half as late, the same.
    coarser, limit = ((squares[k + 1] - squares[k]) / (ends[k + 1] - ends[k]) for k in (0, 1))
    top = decay_constant(c, mse=most, **basin.known)
    yield check("worst case: T times (b)", limit, top, abs(limit - coarser) / limit,
                mu=smooth * c**2 * most / (2 * (mu * c - 1)))  # fmt: skip
    # At c/t itself the constant bounds T times the gap from some T on alone.
    early = 10 * iterated(np.array([c / t for t in range(1, 11)]))[-1]
    yield _number(
        basin, "worst case: (b) from some T on alone", early - top,
        positive(early - top, [AT_ONCE], scale=top),
    )  # fmt: skip


NAMES = {"half": HALF, "floor": FLOOR, "late": LATE, "mu": MU}
"""The rivals of the worst case, by a word."""


def _slowly(entry: LandscapeEntry) -> Check:
    """c below 1/(2λ): the start is forgotten like T^(-2cλ), more slowly than 1/T."""
    ends, t0 = (15, 60), 4.0
    decay = Decay(0.3 / float(entry.problem.curvatures[0]), t0)
    runs = NearOptimum(entry, 8, ends[-1], decay, start=(0.1,), radius=0.6)
    places = tuple(log(end + t0) for end in ends)
    expected = tuple(runs.expected(step=end) for end in ends)
    predicted = float(np.polyfit(places, np.log(expected), 1)[0])
    return entry.check(
        "G=8: slope in T at c = 0.3/curvature",
        LogSlope(places, tuple(runs.gap(step=end) for end in ends), expected),
        equal(
            predicted, {ANY_RATE: -1.0},
            scale=1.0, relative_margin=0.2, digits=2 * runs.left_out / (places[1] - places[0]),
        ),
    )  # fmt: skip


VISITED = ("dome", "disagreement", "tilted", "quarrel", "tug", "gamble", "slopes", "twisted")
"""Families on which claims run, with one direction or two."""

AROUND, WITHIN = 0.15, 0.05
"""Radius of a ball that runs stay on, and how far from the optimum the return is measured."""


def _between(entry: LandscapeEntry) -> Iterator[Check]:
    """Lemma 16: μ and L of a ball, for each eigendirection: μ h² <= 2 gap <= L h² at distance h."""
    landscape = entry.problem
    basin = Basin(entry, AROUND, WITHIN)
    for place, curvature in enumerate(landscape.curvatures.tolist()):
        start = np.eye(len(landscape.curvatures))[place] * WITHIN
        runs = NearOptimum(entry, 2, 1, Constant(1.0), start=tuple(start.tolist()))
        between = Interval(basin.pl, basin.smoothness)
        yield entry.check(
            f"mu <= curvature {place + 1} <= L",
            Linear(runs.training, ((Gap(GRPO, 0), 2 / WITHIN**2),)),
            Statement(curvature, between, {}, curvature, 0.4 * curvature),
        )


SELDOM = 0.1
"""How often, in the mean, a run that is said to stay on Θ may be stopped at its edge."""


def _stays(runs: NearOptimum) -> Iterator[Check]:
    """The assumptions on what runs visit: Θ is the ball on which L, μ and M hold, and its projection.

    No run leaves it, and none is worse off for that: wherever a step can lead, the return rises on the
    way back. And few are stopped at all: so often, in the mean, that fewer runs ever are.
    """
    landscape, radius = runs.landscape, runs.radius
    assert radius is not None
    rates, noise = runs.rates(), runs.noise()
    inner = Basin(runs.entry, radius, 0.0)
    wide = Basin(runs.entry, radius + inner.scan.longest(float(rates.max())), 0.0)
    name = f"G={runs.group_size} T={runs.steps}, {type(runs.schedule).__name__.lower()} rate"
    pull = wide.weak
    yield _number(
        wide,
        f"{name}: mu' > 0 wherever a step can lead",
        float(wide.scan.pulls.min()),
        Statement(pull, Interval(0.0, inf), {}, wide.curvature, 0.4 * wide.curvature),
    )
    # By the recursion, a sum of tails of its law.
    edge = landscape.curvatures[0] * radius**2 / 2
    tails = sum(
        float(finite_law(landscape.curvatures, noise, rates[:step], runs.displacement).sf(edge))
        for step in range(1, runs.steps + 1)
    )
    stops, leaves = (
        tuple((Away(GRPO, step, distance), 1.0) for step in range(1, runs.steps + 1))
        for distance in (radius, radius * (1 + 1e-6))
    )
    yield runs.entry.check(
        f"{name}: stops at the edge of the ball, a run",
        Linear(runs.training, stops),
        Statement(tails, Interval(0.0, SELDOM), {}, 1.0, SELDOM / 2),
    )
    yield runs.entry.check(
        f"{name}: steps that end beyond the ball",
        EverySample(runs.training, leaves),
        equal(0.0, scale=1.0),
    )


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
    basin = Basin(entry, radius, radius / 3)
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
    checks += map(_highest, suite.landscapes["twin"])
    for entry in suite.landscapes["dome"]:
        for part in (_one_step, _attained, _offset, _beyond):
            checks += part(entry)
        checks.append(_slowly(entry))
    for family in VISITED:
        for entry in suite.landscapes[family]:
            checks += _between(entry)
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
    for basin, rate in ((Basin(bowl, 0.08, 0.07), 0.01), (Basin(slopes, 0.6, 0.5), 0.02)):
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
