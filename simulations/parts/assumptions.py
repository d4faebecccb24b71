"""Lemma 6 without training: its assumptions and its closed forms.

L, μ, μ' and M on a ball are tested by a step from the worst point for each, found by sums over prompts
and arms on a dense grid; J* and Lemma 16 (curvatures lie between μ and L) too, and that runs stay where these
hold. The closed forms are compared with the recursion iterated here with μ < L, Lemma 14's worst
case.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf, sqrt
from typing import Any

import numpy as np

from ustat_pg.engines import GradientCell
from ustat_pg.predictions import (
    bound_curve,
    constant_bound,
    constant_floor,
    decay_constant,
    finite_law,
    gradient_mse,
)

from ..engines import Away, Constant, Coordinate, Gap
from ..evidence import (
    Check,
    EverySample,
    Interval,
    Known,
    Linear,
    Statement,
    attained,
    equal,
    mean_of,
    positive,
)
from ..problems import Suite, mse_of
from ..problems.landscapes import LandscapeEntry
from ..shared.basins import Basin, Least, largest, recursion, returns
from ..shared.margins import FAR_ORDER
from ..shared.runs import GRPO, NearOptimum

MU = "mu for 2 mu"
HALF = "L eta/2 for L eta"
ORACLE = "oracle's M at small G"
FLOOR = "no floor for the constant schedule"
TOP_L = "curvature at the optimum for L"
TOP_MU = "curvature at the optimum for mu"
WEAK = "mu' of weak strong concavity for mu"
BATCH = "M of one prompt, whatever B"
LATE = "c/(t + 1 + t0) for c/(t + t0)"
AT_ONCE = "(b) at every T, from the first step on"
RIVALS = (MU, HALF, ORACLE, FLOOR, TOP_L, TOP_MU, WEAK, BATCH, LATE, AT_ONCE)

WIDE = 1.0
"""Radius of the ball on which L, μ, μ' and the curvature at the optimum are all different."""


DEVIATIONS = 3.0
"""The standard deviations within which curvature and noise matter. A gap weights them by squared distance. If
they grow like its fourth power, a normal law's mean is the value at 15^(1/4), about 2 deviations.
"""


def constants_of(entry: LandscapeEntry) -> Iterator[Check]:
    """μ, μ', L and M at their worst points, and the curvature at the optimum, which lies between μ and L."""
    basin = Basin(entry, WIDE, WIDE)
    scan, top = basin.scan, basin.curvature
    flat, weak, bent, noisy = (
        scan.least(values) for values in (scan.ratios, scan.pulls, -np.abs(scan.bend), -scan.noise)
    )
    where, gap = float(scan.away[flat.place]), float(scan.gap[flat.place])
    weakest = abs(float(scan.away[weak.place]))
    start = mean_of(scan.step(where, 1.0, 16), Gap(GRPO, 0))
    yield entry.check("gap at the start", start, equal(gap))
    # At the worst point ‖∇J‖² = 2μ gap; μ' is the pull divided by the distance.
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
        # ‖∇J‖ is the mean length of one step divided by its rate.
        sign = -float(np.sign(place) * scan.landscape.identifiable[0, 0])
        weights = ((Coordinate(GRPO, 1, 0), sign),)
        pull = Linear(scan.step(place, 1.0, 16), weights, -sign * float(scan.place(place)[0]))
        yield entry.check(what, pull, equal(value, others, digits=off))
    yield _most_bent(basin, bent)
    # Computed by formulas for the derivatives, and by sums over prompts and arms on a coarser grid.
    for name, found, constant in (
        ("L", replace(bent, value=-bent.value), basin.smoothness),
        ("mu", flat, basin.pl),
        ("mu'", weak, basin.weak),
    ):
        statement = equal(constant, digits=found.error)
        yield entry.check(f"{name} on two grids", Known(found.value), statement)
    # M, at B = 4.
    noisiest = GradientCell(scan.at(float(scan.away[noisy.place])), 2, 4)
    most, less = basin.mse_with_error("grpo", 2, 4)
    wrong = {ORACLE: basin.mse("oracle", 2, 4), BATCH: basin.mse("grpo", 2)}
    yield entry.check(
        "M: the error of a gradient where it is largest",
        mean_of(noisiest, mse_of("grpo")),
        equal(most, wrong, digits=less + noisy.error / 4),
    )
    # From the optimum the gap after a short step is η²λM/2.
    rate = 0.005 / basin.smoothness
    mse = gradient_mse(scan.at(0.0).moments(), "grpo", 16).mse
    still = Linear(scan.step(0.0, rate, 16), ((Gap(GRPO, 1), 2 / (rate**2 * mse)),))
    between = _in_between(top, basin.pl, basin.smoothness)
    yield entry.check("mu <= curvature at the optimum <= L", still, between)
    # Weak strong concavity implies PL with μ'²/L instead of μ'.
    least = basin.weak**2 / basin.smoothness
    wrong_least = {WEAK: Interval(basin.weak, inf)}
    at_least = Statement(least, Interval(least, inf), wrong_least, basin.pl, 0.1 * basin.pl)
    yield entry.check("mu is at least mu'^2/L", Known(flat.value), at_least)
    off = scan.spread(DEVIATIONS * rate * sqrt(mse)) * top
    coarse = equal(top, digits=off, relative_margin=FAR_ORDER)
    yield entry.check("curvature at the optimum", still, coarse)


def _most_bent(basin: Basin, bent: Least) -> Check:
    """L: the loss from curvature, relative to the slope's gain, in a step from the most curved point."""
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


def _in_between(value: float, low: float, high: float, scale: float = 0.0) -> Statement:
    """A curvature between two constants, without a rival; the default scale is the curvature itself."""
    size = scale or value
    return Statement(value, Interval(low, high), {}, size, 0.4 * size)


def highest_return(entry: LandscapeEntry) -> Check:
    """J*, from which every gap is measured: the largest return if there are two peaks."""
    landscape = entry.problem
    way = landscape.identifiable[:, 0]
    most, missed = largest(lambda by: returns(landscape, by * way), landscape.radius, 1, 1001)
    statement = equal(landscape.maximum, digits=missed)
    return entry.check("the largest return", Known(most), statement)


def worst_case(entry: LandscapeEntry) -> Iterator[Check]:
    """The closed forms against the recursion itself, iterated here with μ < L: Lemma 14's worst case.
    It needs no draws.
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
    # (T + t₀) gap is the limit plus a term in 1/(T + t₀), which differences cancel; T doubles three times.
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
    # At c/t itself the constant bounds T times the gap only from some T on.
    early = 10 * iterated(c / np.arange(1, 11))[-1] - top
    statement = positive(early, [AT_ONCE], scale=top)
    yield entry.check("worst case: (b) from some T on alone", Known(early), statement)


AROUND, WITHIN = 0.15, 0.05
"""The radius of a ball that contains the runs, and the distance at which the return is measured."""


def curvatures_between(entry: LandscapeEntry) -> Iterator[Check]:
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
"""The mean number of times that a run, said to stay in Θ, may be stopped at its edge."""


def stays(runs: NearOptimum) -> Iterator[Check]:
    """The assumptions on the region of runs: none leaves the ball on which L, μ and M hold, few are stopped
    at its edge, and from every point that a step can reach, the return rises on the way back.
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
        _in_between(wide.weak, 0.0, inf, wide.curvature),
    )
    # The recursion gives this as a sum of tails of its law.
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


VISITED = ("dome", "disagreement", "tilted", "quarrel", "tug", "gamble", "slopes", "twisted")
"""Families of problems for the claims, with one or two directions."""


def checks(suite: Suite) -> Iterator[Check]:
    """The constants of balls, the closed forms, and the curvatures of every kind of problem."""
    for entry in suite.landscapes["shoulder"]:
        yield from constants_of(entry)
        yield from worst_case(entry)
    yield from map(highest_return, suite.landscapes["twin"])
    for family in VISITED:
        for entry in suite.landscapes[family]:
            yield from curvatures_between(entry)
