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
from dataclasses import replace
from itertools import product
from math import inf, log, sqrt
from typing import Any

import numpy as np

from ustat_pg.engines import Estimator, GradientCell
from ustat_pg.predictions import (
    bound_curve,
    constant_bound,
    constant_floor,
    decay_constant,
    finite_law,
    gradient_mse,
)

from .engines import Away, Constant, Coordinate, Decay, Gap
from .engines.runs.schedules import Schedule
from .evidence import (
    Check,
    EverySample,
    Interval,
    Known,
    Linear,
    Statement,
    at_most,
    attained,
    equal,
    mean_of,
    positive,
)
from .one_step import RIVALS as RIVALS_ON_NETWORKS  # noqa: F401
from .one_step import on_networks  # noqa: F401
from .problems import Suite, mse_of
from .problems.landscapes import LandscapeEntry
from .shared.basins import Basin, Least, largest, recursion, returns
from .shared.runs import GRPO, NearOptimum, rates_of

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

DEVIATIONS = 3.0
"""Standard deviations within which curvature and noise count. A gap weighs them by the squared distance: of
what grows with the fourth power of it a normal law's mean is that at 15^(1/4), 2 deviations.
"""


def _constants(entry: LandscapeEntry) -> Iterator[Check]:
    """μ, μ', L and M where they count most, and the curvature at the optimum between μ and L."""
    basin = Basin(entry, WIDE, WIDE)
    scan, top = basin.scan, basin.curvature
    flat, weak, bent, noisy = (
        scan.least(values) for values in (scan.ratios, scan.pulls, -np.abs(scan.bend), -scan.noise)
    )
    where, gap = float(scan.away[flat.place]), float(scan.gap[flat.place])
    weakest = abs(float(scan.away[weak.place]))
    start = mean_of(scan.step(where, 1.0, 16), Gap(GRPO, 0))
    yield entry.check("gap at the start", start, equal(gap))
    # ‖∇J‖² = 2μ gap at the worst place; μ' is its pull over the distance.
    wrong, slope = {MU: basin.pl / 2, TOP_MU: top, WEAK: basin.weak}, sqrt(2 * basin.pl * gap)
    for what, place, value, others, off in (
        (
            "mu: one step from where the return is flattest",
            where,
            slope,
            {name: sqrt(2 * pl * gap) for name, pl in wrong.items()},
            flat.error * gap / slope,
        ),
        (
            "mu': one step from where the pull is weakest",
            float(scan.away[weak.place]),
            basin.weak * weakest,
            {TOP_MU: top * weakest},
            weak.error * weakest,
        ),
    ):
        # ‖∇J‖ is how far one step goes in the mean, over its rate.
        sign = -float(np.sign(place) * scan.landscape.identifiable[0, 0])
        weights = ((Coordinate(GRPO, 1, 0), sign),)
        pull = Linear(scan.step(place, 1.0, 16), weights, -sign * float(scan.place(place)[0]))
        yield entry.check(what, pull, equal(value, others, digits=off))
    yield _most_bent(basin, bent)
    # By formulas for the derivatives, and by sums over prompts and arms, on a coarser grid.
    for name, found, constant in (
        ("L", replace(bent, value=-bent.value), basin.smoothness),
        ("mu", flat, basin.pl),
        ("mu'", weak, basin.weak),
    ):
        statement = equal(constant, digits=found.error)
        yield entry.check(f"{name} on two grids", Known(found.value), statement)
    # M, at B = 4.
    noisiest = GradientCell(scan.at(float(scan.away[noisy.place])), 2, 4)
    most = basin.mse("grpo", 2, 4)
    wrong = {ORACLE: basin.mse("oracle", 2, 4), BATCH: basin.mse("grpo", 2)}
    yield entry.check(
        "M: the error of a gradient where it is largest",
        mean_of(noisiest, mse_of("grpo")),
        equal(most, wrong, digits=basin.mse_reserve("grpo", 2, 4) + noisy.error / 4),
    )
    # From the optimum the gap after a short step is η²λM/2.
    rate = 0.005 / basin.smoothness
    mse = gradient_mse(scan.at(0.0).moments(), "grpo", 16).mse
    still = Linear(scan.step(0.0, rate, 16), ((Gap(GRPO, 1), 2 / (rate**2 * mse)),))
    between = _in_between(top, basin.pl, basin.smoothness)
    yield entry.check("mu <= curvature at the optimum <= L", still, between)
    # Weak strong concavity gives PL, with μ'²/L in place of μ'.
    least = basin.weak**2 / basin.smoothness
    wrong_least = {WEAK: Interval(basin.weak, inf)}
    at_least = Statement(least, Interval(least, inf), wrong_least, basin.pl, 0.1 * basin.pl)
    yield entry.check("mu is at least mu'^2/L", Known(flat.value), at_least)
    off = scan.spread(DEVIATIONS * rate * sqrt(mse)) * top
    coarse = equal(top, digits=off, relative_margin=0.4)
    yield entry.check("curvature at the optimum", still, coarse)


def _most_bent(basin: Basin, bent: Least) -> Check:
    """L: what a step from the most bent place loses to curvature, beyond the slope's gain."""
    scan, group_size = basin.scan, 64
    where, slope = float(scan.away[bent.place]), abs(float(scan.slope[bent.place]))
    rate = 0.12 / -bent.value
    mse = gradient_mse(scan.at(where).moments(), "grpo", group_size).mse
    gap, local = float(scan.gap[bent.place]), float(scan.ratios[bent.place])
    linear = gap - rate * slope**2
    bound = bound_curve(gap, [rate], pl=local, smoothness=basin.smoothness, mse=mse)
    right = float(bound[-1]) - linear
    wrong = {
        TOP_L: basin.curvature * rate**2 * (slope**2 + mse) / 2,
        HALF: right - basin.smoothness * rate**2 * slope**2 / 4,
        MU: right + rate * local * gap,
    }
    least = (-bent.value - bent.error) / basin.smoothness
    ratio = (1 + scan.spread(rate * (slope + DEVIATIONS * sqrt(mse)), where)) / least
    return basin.entry.check(
        "L: one step from where the return bends most",
        Linear(scan.step(where, rate, group_size), ((Gap(GRPO, 1), 1.0),), -linear),
        attained(right, right / sqrt(ratio), wrong, ratio=ratio),
    )


def _in_between(curvature: float, low: float, high: float) -> Statement:
    """A curvature between two constants: nothing is wrong with another there."""
    return Statement(curvature, Interval(low, high), {}, curvature, 0.4 * curvature)


def _highest(entry: LandscapeEntry) -> Check:
    """J*, which every gap is taken from: the largest return of all, where there are two peaks."""
    landscape = entry.problem
    way = landscape.identifiable[:, 0]
    most, missed = largest(lambda by: returns(landscape, by * way), landscape.radius, 1, 1001)
    statement = equal(landscape.maximum, digits=missed)
    return entry.check("the largest return", Known(most), statement)


def _between_ends(bound: float, least: float, most: float, wrong: dict[str, float]) -> Statement:
    """A bound that is attained up to what its constants vary by where runs are, as their own recursions
    say; so are rivals.
    """
    ratio = most / least
    return attained(bound, bound / sqrt(ratio), wrong, ratio=ratio, relative_margin=0.06)


def _one_step(entry: LandscapeEntry) -> Iterator[Check]:
    """A single long step from near the edge: the factor of the recursion."""
    group_size, basin = 64, Basin(entry, NARROW, 0.7 * NARROW)
    rate, mu, smooth = 1 / (2 * basin.curvature), basin.pl, basin.smoothness
    mse = gradient_mse(basin.scan.at(basin.distance).moments(), "grpo", group_size).mse
    noise = smooth * rate**2 * mse / 2
    # Half as far from the optimum it ends; three deviations of it lie within the ball.
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
    """A single short step from the optimum: the noise, of minibatches and of REINFORCE's one output."""
    rate, scan = 0.02 / float(entry.problem.curvatures[0]), Basin(entry, NARROW, 0.0).scan
    moments = scan.at(0.0).moments()
    for batch, size, baseline in ((2, 4, "grpo"), (1, 1, "vanilla")):
        largest = gradient_mse(moments, baseline, size, batch).mse
        other = gradient_mse(moments, "oracle", size, batch).mse
        top = Basin(entry, DEVIATIONS * rate * sqrt(largest), 0.0)
        value, oracle = (float(top.bounds([rate], mse)[-1]) for mse in (largest, other))
        least, most = top.both([rate], top.radius, largest)
        wrong = {ORACLE: oracle, **({BATCH: batch * value} if batch > 1 else {})}
        yield entry.check(
            f"B={batch} G={size}: one step of {baseline} of {rate:.3g} from the optimum",
            mean_of(scan.step(0.0, rate, size, batch), Gap(Estimator(baseline), 1)),
            equal(value, wrong, digits=most[-1] - least[-1]),
        )


def _attained(entry: LandscapeEntry) -> Iterator[Check]:
    """(a) after many small steps, within a ball on which it is attained."""
    group_size, steps = 2, 90
    basin = Basin(entry, NARROW, NARROW / 3)
    most = basin.mse("grpo", group_size)
    eta = 0.02 / basin.curvature
    bound, oracle, free = (
        float(constant_bound(steps, basin.gap, eta, mse=mse, **basin.known))
        for mse in (most, basin.mse("oracle", group_size), 0.0)
    )
    # What is left of the start, and the whole floor.
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
    yield from _stays(runs)


def _attained_later(entry: LandscapeEntry) -> Iterator[Check]:
    """(b), which the gap times T + t₀ tends to, on the same ball, from where the start fades at once."""
    group_size, (near_end, end), narrow = 2, (40, 80), Basin(entry, NARROW, NARROW / 3)
    most, oracle = (narrow.mse(baseline, group_size) for baseline in ("grpo", "oracle"))
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
    # (T + t₀) gap is the limit and a term in 1/(T + t₀), which two T's cancel.
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
    yield from _stays(runs)


def _both(basin: Basin, rates: np.ndarray, group_size: int) -> tuple[np.ndarray, np.ndarray]:
    """The recursion from below and above, with what its constants are within the start of runs and some
    deviations of their end.
    """
    most = basin.mse("grpo", group_size)
    left = float(recursion(basin.gap, rates, mse=most, **basin.known)[-1])
    reach = max(basin.distance, DEVIATIONS * sqrt(2 * left / basin.curvature))
    return basin.both(rates, reach, most, basin.least_mse(reach, "grpo", group_size))


def _offset(entry: LandscapeEntry) -> Iterator[Check]:
    """A few short steps from the optimum, where the first rates count."""
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
        bound, wrong = float(bounds[step]), {FLOOR: float(free[step])}
        statement = at_most(bound, min(0.9 * bound, runs.expected(step=step)), wrong)
        yield entry.check(f"G=8: c/t from t = 1, step {step}", runs.gap(step=step), statement)


def _recursion(entry: LandscapeEntry) -> Iterator[Check]:
    """The closed forms against the recursion itself, iterated here with μ < L: Lemma 14's worst case,
    which nothing draws.
    """
    basin = Basin(entry, WIDE, WIDE)
    mu, smooth, most, gap = basin.pl, basin.smoothness, basin.mse("grpo", 4), basin.gap

    def iterated(rates: Any) -> list[float]:
        return list(recursion(gap, rates, mu, smooth, most).tolist())

    worst, eta = iterated([1 / smooth] * 2000), 1 / smooth
    floor = smooth * eta * most / (2 * mu)
    slack = (worst[10] - worst[-1]) / (gap - worst[-1]) * worst[-1]
    c, ends = 1.5 / mu, (2_500, 5_000, 10_000, 20_000)
    late = iterated(c / (np.arange(1, ends[-1] + 1) + c * smooth))
    squares = [(step + c * smooth) ** 2 * late[step] for step in ends]
    # (T + t₀) gap is the limit and a term in 1/(T + t₀), which two T's cancel; half as late, and a quarter.
    limits = np.diff(squares) / np.diff(ends)
    limit, off = float(limits[-1]), float(np.abs(np.diff(limits)).max())
    top = decay_constant(c, mse=most, **basin.known)
    questions: list[tuple[str, float, float, dict[str, float], float]] = [
        (
            "constant rate, floor",
            worst[-1],
            constant_floor(eta, mse=most, **basin.known),
            {HALF: floor / (2 - smooth * eta / 2)},
            1e-9,
        ),
        (
            "constant rate, (a)",
            worst[10] + slack,
            float(constant_bound(10, gap, eta, mse=most, **basin.known)),
            {FLOOR: worst[10] - worst[-1]},
            1e-9,
        ),
    ]
    for name, t0 in (("c/t", 0.0), ("c/(t + t0)", 20.0)):
        rates = 5 / smooth / (np.arange(1, 42) + t0)
        bound, one_late = (float(basin.bounds(r, most)[-1]) for r in (rates[:-1], rates[1:]))
        value = iterated(rates[:-1])[-1]
        questions.append((f"{name}, recursion", value, bound, {LATE: one_late}, 1e-9))
    wrong = {MU: smooth * c**2 * most / (2 * (mu * c - 1))}
    questions.append(("T times (b)", limit, top, wrong, off / top))
    for name, value, predicted, others, digits in questions:
        statement = equal(predicted, others, digits=digits * predicted)
        yield entry.check(f"worst case: {name}", Known(value), statement)
    # At c/t itself the constant bounds T times the gap from some T on alone.
    early = 10 * iterated(c / np.arange(1, 11))[-1] - top
    statement = positive(early, [AT_ONCE], scale=top)
    yield entry.check("worst case: (b) from some T on alone", Known(early), statement)


def _slowly(entry: LandscapeEntry) -> Iterator[Check]:
    """c below 1/(2λ): the start is forgotten like T^(-2cλ), more slowly than 1/T."""
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
        relative_margin=0.2,
        digits=2 * runs.left_out / (places[1] - places[0]),
    )


VISITED = ("dome", "disagreement", "tilted", "quarrel", "tug", "gamble", "slopes", "twisted")
"""Families on which claims run, with one direction or two."""

AROUND, WITHIN = 0.15, 0.05
"""Radius of a ball that runs stay on, and how far from the optimum the return is measured."""


def _between(entry: LandscapeEntry) -> Iterator[Check]:
    """Lemma 16: μ and L of a ball, for each eigendirection: μ h² <= 2 gap <= L h² at distance h."""
    curvatures, basin = entry.problem.curvatures, Basin(entry, AROUND, WITHIN)
    for place, curvature in enumerate(curvatures.tolist()):
        start = np.eye(len(curvatures))[place] * WITHIN
        runs = NearOptimum(entry, 2, 1, Constant(1.0), start=tuple(start.tolist()))
        yield entry.check(
            f"mu <= curvature {place + 1} <= L",
            Linear(runs.training, ((Gap(GRPO, 0), 2 / WITHIN**2),)),
            _in_between(curvature, basin.pl, basin.smoothness),
        )


SELDOM = 0.1
"""How often, in the mean, a run that is said to stay on Θ may be stopped at its edge."""


def _stays(runs: NearOptimum) -> Iterator[Check]:
    """The assumptions on what runs visit: none leaves the ball on which L, μ and M hold, few are stopped
    at its edge, and wherever a step can lead the return rises on the way back.
    """
    landscape, radius = runs.landscape, runs.radius
    assert radius is not None
    rates, steps = runs.rates(), range(1, runs.steps + 1)
    longest = Basin(runs.entry, radius, 0.0).scan.longest(float(rates.max()))
    wide = Basin(runs.entry, radius + longest, 0.0)
    name = f"G={runs.group_size} T={runs.steps}, {type(runs.schedule).__name__.lower()} rate"
    yield runs.entry.check(
        f"{name}: mu' > 0 wherever a step can lead",
        Known(float(wide.scan.pulls.min())),
        Statement(wide.weak, Interval(0.0, inf), {}, wide.curvature, 0.4 * wide.curvature),
    )
    # By the recursion, a sum of tails of its law.
    edge = landscape.curvatures[0] * radius**2 / 2
    recursed = landscape.curvatures, runs.noise()
    tails = sum(
        float(finite_law(*recursed, rates[:step], runs.displacement).sf(edge)) for step in steps
    )
    stops, leaves = (
        tuple((Away(GRPO, step, distance), 1.0) for step in steps)
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


LONG = (1000, 100_000)
"""Steps of the runs of a GPU."""


def _under(
    entry: LandscapeEntry,
    radius: float,
    cases: tuple[tuple[int, int, str], ...],
    steps: tuple[int, int],
    schedules: tuple[str, ...],
) -> Iterator[Check]:
    """The gap under the bound at every one of some steps, and its slack; rates up to 1/20 of 1/L."""
    basin = Basin(entry, radius, radius / 3)
    rate, c = 0.05 / basin.smoothness, 1.2 / basin.pl
    decay = Decay(c, float(np.ceil(c * basin.smoothness / 0.05)))
    by_name: dict[str, Schedule] = {"constant": Constant(rate), "decay": decay}
    for (batch_size, group_size, baseline), name in product(cases, schedules):
        most, estimator = basin.mse(baseline, group_size, batch_size), Estimator(baseline)
        runs = basin.runs(group_size, steps[-1], by_name[name], batch_size)
        bounds, free = (basin.bounds(runs.rates(), mse) for mse in (most, 0.0))
        for step in steps:
            bound, value = float(bounds[step]), runs.expected(estimator, step)
            wrong = {FLOOR: float(free[step])} if step == steps[-1] else {}
            yield entry.check(
                f"B={batch_size} G={group_size}: {baseline}, {name} rate, step {step}",
                runs.gap(estimator, step),
                at_most(bound, min(value, bound / 1.1), wrong),
            )


def checks(suite: Suite) -> Iterator[Check]:
    """The constants, the bound attained where it can be, and held everywhere else."""
    for entry in suite.landscapes["shoulder"]:
        yield from _constants(entry)
        yield from _recursion(entry)
    yield from map(_highest, suite.landscapes["twin"])
    for entry in suite.landscapes["dome"]:
        for part in (
            *(_one_step, _from_the_optimum, _attained, _attained_later),
            *(_offset, _beyond, _slowly),
        ):
            yield from part(entry)
    for family in VISITED:
        for entry in suite.landscapes[family]:
            yield from _between(entry)
    shoulder, slopes, diabetes = (
        suite.landscapes[name][0] for name in ("shoulder", "slopes", "diabetes")
    )
    yield from _under(shoulder, WIDE, ((1, 2, "grpo"),), (5, 60), ("constant", "decay"))
    if suite.size != "smoke":
        yield from _under(slopes, 0.6, CASES, (5, 30), ("decay",))
    yield from _under(diabetes, 0.6, CASES[:1], (5, 20), ("decay",))
    if suite.size == "card":
        yield from _under(shoulder, WIDE, ((1, 2, "grpo"),), LONG, ("decay",))
