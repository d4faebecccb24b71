"""Theorem 8: with ηₜ = c/t, T times the gap tends in law to Σ wₖ χ²₁, w the eigenvalues of
½ Λ^½ Γ Λ^½ and Γ_jk = c² Σ_jk / (c λ_j + c λ_k - 1).

What is predicted at a finite T is Σ wₖ χ²₁ with Γ_T of the linear recursion. Its Laplace transform is
held against backward induction and against simulation, its distribution against simulation by a
Dvoretzky-Kiefer-Wolfowitz band: for one direction, for two with unequal weights, for more parameters
than the return sees, and on problems of three prompts. The linear recursion leaves an error of order 1/T
(cubic terms of the return), so the transform may be off by .008 and the distribution by .02; wrong
formulas are farther. That the distance to the limit itself vanishes is shown as a slope in T.

Where the noise depends on the endpoint (Assumption 8) the limit is a mixture: each run is held
against its own conditional law. A start with too small a t₀ leaves the basin of the optimum, and
then the law is another one: the assumption is needed.

Falsified by a transform farther from its law than that, a distribution farther as far as a band of
±.015 can tell, or a distance to the limit
that does not fall like 1/T.

Cost: about half a minute on two cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, inf, log
from typing import Any

import numpy as np
from scipy.special import expit
from scipy.stats import chi2, norm

from ustat_pg.checks import Interval, Statement, equal
from ustat_pg.distributions import WeightedChi2
from ustat_pg.engines import ConditionalPit, Decay, Estimator, GapTransform, Pit, Training
from ustat_pg.experiment import (
    Check,
    Claim,
    LawDistance,
    LawShare,
    Linear,
    LogSlope,
    Point,
    mean_of,
)  # fmt: skip
from ustat_pg.predictions import (
    covariance_parts,
    finite_weights,
    gap_transform,
    limit_weights,
    sup_distance,
)  # fmt: skip

from .problems import Suite
from .problems.landscapes import LandscapeEntry
from .problems.optima import NearOptimum, moments_of

STEM = "limit_law"

NORMAL = "normal"
EQUAL = "equal weights"
ONE = "one chi-square with the same mean"
ORACLE = "oracle's weights at G = 2"
DENOMINATOR = 'no "-1" in the Lyapunov denominator'
HALF = "no 1/2"
SQUARE = "G^2 for G(G-1)"
PROMPTS = "c1 dropped"
UNPROJECTED = "Hessian unprojected"
STAYS = "distance to the limit stays"
RIVALS = (
    NORMAL, EQUAL, ONE, ORACLE, DENOMINATOR, HALF, SQUARE, PROMPTS, UNPROJECTED, STAYS,
)  # fmt: skip

TRANSFORM_ERROR = 0.008
LAW_ERROR = 0.02

SPREAD = 3.0
"""Standard deviation of the mixture's second parameter at the start."""

GRPO = Estimator("grpo")


def near(
    entry: LandscapeEntry, group_size: int, c: float, t0: float, steps: int, *away: float
) -> NearOptimum:
    """Runs of grpo with c/(t + t₀)."""
    return NearOptimum(entry, group_size, steps, Decay(c, t0), start=away)


def rivals(runs: NearOptimum) -> dict[str, np.ndarray]:
    """The wrong weights of the gap."""
    landscape, g = runs.landscape, runs.group_size
    curvatures, schedule = landscape.curvatures, runs.schedule
    assert isinstance(schedule, Decay)
    between, first, second = covariance_parts(moments_of(landscape), landscape.identifiable)
    weights = np.array(runs.weights())
    exponents, root = schedule.c * curvatures, np.sqrt(curvatures)
    gamma = schedule.c**2 * runs.noise() / np.add.outer(exponents, exponents)
    no_one = 0.5 * root[:, None] * gamma * root / (runs.steps + schedule.t0)
    wrong = {
        DENOMINATOR: np.linalg.eigvalsh(no_one),
        HALF: 2 * weights,
        SQUARE: runs.weights_with(between + first / g + second / g**2),
    }
    if len(weights) > 1:
        wrong[EQUAL] = np.full(len(weights), weights.mean())
        wrong[ONE] = np.array([weights.sum()])
    if g == 2:
        wrong[ORACLE] = np.array(runs.weights(Estimator("oracle")))
    if np.trace(between) > 1e-9 * np.trace(first):
        wrong[PROMPTS] = runs.weights_with(first / g + second / (g * (g - 1)))
    if landscape.d > len(weights):
        # The first r parameters as they come, in place of the identifiable directions.
        axes = np.eye(landscape.d)[:, : len(weights)]
        raw = covariance_parts(moments_of(landscape), axes)
        bends = np.diagonal(-landscape.hessian(landscape.maximiser))[: len(weights)]
        noise = raw[0] + raw[1] / g + raw[2] / (g * (g - 1))
        wrong[UNPROJECTED] = finite_weights(bends, noise, schedule.rates(runs.steps))
    return wrong


def _name(runs: NearOptimum) -> str:
    c = runs.schedule.c if isinstance(runs.schedule, Decay) else 0.0
    return f"{runs.entry.name} G={runs.group_size} c={c:.3g} T={runs.steps}"


def _transforms(runs: NearOptimum) -> Iterator[Check]:
    """The Laplace transform where the exponent is 1 and 4 in the mean."""
    weights = np.array(runs.weights())
    for times in (1.0, 4.0):
        rate = float(times / weights.sum())
        wrong = {name: gap_transform(law, rate) for name, law in rivals(runs).items()}
        # A normal law of the same mean and variance; its transform may exceed 1.
        wrong[NORMAL] = exp(-times + rate**2 * float((weights**2).sum()))
        yield Check(
            f"{_name(runs)}: transform at {times:g}/mean",
            runs.entry.origin,
            mean_of(runs.training, GapTransform(GRPO, runs.steps, rate)),
            equal(
                gap_transform(weights, rate),
                wrong,
                scale=1.0,
                relative_margin=0.01,
                digits=TRANSFORM_ERROR,
            ),
        )


def _distribution(runs: NearOptimum) -> Check:
    """The whole distribution, and the distances at which the wrong laws are."""
    law = WeightedChi2(np.array(runs.weights()))
    distances = {name: sup_distance(WeightedChi2(w), law) for name, w in rivals(runs).items()}
    distances[NORMAL] = sup_distance(norm(law.mean(), law.var() ** 0.5), law)
    far = {name: distance for name, distance in distances.items() if distance > 2.5 * LAW_ERROR}
    return Check(
        f"{_name(runs)}: distribution",
        runs.entry.origin,
        LawDistance(runs.training, Pit(GRPO, runs.steps, runs.weights())),
        equal(0.0, far, scale=1.0, relative_margin=0.015, digits=LAW_ERROR),
    )


def _shrinking(entry: LandscapeEntry) -> Check:
    """(T + t₀) gap_T against the limit law itself: the difference of transforms falls like 1/T."""
    c, t0, times = 3.0 / float(entry.problem.curvatures[0]), 40.0, (200, 440)
    runs = near(entry, 2, c, t0, times[-1])
    limit = limit_weights(entry.problem.curvatures, runs.noise(), c)
    rate = float(1 / limit.sum())
    points = tuple(
        Linear(
            runs.training,
            ((GapTransform(GRPO, steps, rate * (steps + t0)), -1.0),),
            gap_transform(limit, rate),
        )
        for steps in times
    )
    # Of order 1/T by the claim; the plan needs a size: that of the cubic terms, roughly.
    sizes = tuple(7.0 / (steps + t0) for steps in times)
    return Check(
        f"{entry.name} G=2: distance to the limit against T",
        entry.origin,
        LogSlope(tuple(log(t + t0) for t in times), points, sizes),
        equal(-1.0, {STAYS: 0.0}, scale=1.0, relative_margin=0.5, digits=0.2),
    )


def mixture(entry: LandscapeEntry) -> tuple[Training, float, float]:
    """The runs of a mixture, and the weights of their gap where the second action is never and
    always 1.
    """
    landscape, schedule = entry.problem, Decay(8.0, 60.0)
    weights = []
    for logit in (-40.0, 40.0):
        point = landscape.maximiser.copy()
        point[-1] = logit
        parts = covariance_parts(landscape.at(point).moments(), landscape.identifiable)
        noise = parts[0] + parts[1] / 2 + parts[2] / 2
        weights.append(float(finite_weights(landscape.curvatures, noise, schedule.rates(1000))[0]))
    runs = Training(landscape, 2, 1000, schedule, start_scale=np.array([0.0, SPREAD]))
    return runs, weights[0], weights[1]


def endpoint_weights(low: float, high: float) -> np.ndarray:
    """Equally likely weights: the second parameter hardly moves, so where it ends is where it began."""
    logits = SPREAD * norm.ppf((np.arange(500) + 0.5) / 500)
    return np.asarray(low + (high - low) * expit(logits))


def _mixture(entry: LandscapeEntry) -> Iterator[Check]:
    """Uniform against each run's own law; at a distance from the law of the mean weight."""
    runs, low, high = mixture(entry)
    pit = ConditionalPit(GRPO, 1000, runs.landscape.d - 1, low, high)
    yield Check(
        f"{entry.name} G=2: conditional distribution",
        entry.origin,
        LawDistance(runs, pit),
        equal(0.0, scale=1.0, relative_margin=0.015, digits=LAW_ERROR),
    )
    levels = np.linspace(0, 1, 501)[1:-1]
    mean, mixed = _mixed(low, high, levels)
    distance = float(np.abs(mixed - levels).max())
    yield Check(
        f"{entry.name} G=2: distance from the law of the mean weight",
        entry.origin,
        LawDistance(runs, Pit(GRPO, 1000, (mean,))),
        equal(distance, scale=1.0, relative_margin=0.015, digits=LAW_ERROR),
    )


def _mixed(low: float, high: float, levels: np.ndarray) -> tuple[float, np.ndarray]:
    """The mean weight of a mixture, and its cdf at the quantiles of the law of that weight."""
    weights = endpoint_weights(low, high)
    places = weights.mean() * chi2.ppf(levels, 1)[:, None]
    return float(weights.mean()), chi2.cdf(places / weights, 1).mean(axis=1)


def _leaves(entry: LandscapeEntry) -> Check:
    """Too small a t₀: first steps beyond the basin, and another law."""
    runs = near(entry, 2, 10.0, 4.0, 1000, 0.2, -0.2)
    return Check(
        f"{_name(runs)}, t0=4: the law is another one",
        entry.origin,
        LawDistance(runs.training, Pit(GRPO, 1000, runs.weights())),
        Statement(0.1, Interval(2.5 * LAW_ERROR, inf), {}, 1.0, 0.02),
    )


def _one(entry: LandscapeEntry, group_size: int = 2) -> NearOptimum:
    """Runs in one identifiable direction."""
    return near(entry, group_size, 1.2 / float(entry.problem.curvatures[0]), 100.0, 800)


def _two(entry: LandscapeEntry) -> NearOptimum:
    """Runs in two directions of unequal weights."""
    return near(entry, 2, 1.2 / float(entry.problem.curvatures[0]), 300.0, 400)


def claim(suite: Suite) -> Claim:
    """Transforms by both kinds of evidence, distributions by simulation, the mixture, a failure."""
    landscapes = suite.landscapes
    pulls, flats = landscapes["disagreement"], landscapes["tilted"]
    rest = [*map(_one, flats), *map(_two, landscapes["plane"])]
    pairs = [_one(entry, group_size) for entry in pulls for group_size in (2, 8)]
    checks = [check for runs in (*pairs, *rest) for check in _transforms(runs)]
    laws = [*map(_one, pulls), *rest]
    laws.append(near(landscapes["diabetes"][0], 2, 16.0, 400.0, 1600))
    if suite.size != "smoke":
        laws += [
            near(landscapes["slopes"][0], 2, 12.0, 100.0, 2000, 0.2, -0.2),
            near(landscapes["steep"][0], 2, 10.0, 80.0, 2000, 0.2, -0.2),
        ]
    checks += map(_distribution, laws)
    checks += map(_shrinking, pulls)
    checks += [check for entry in landscapes["calm mixture"] for check in _mixture(entry)]
    checks.append(_leaves(landscapes["steep"][0]))
    return Claim(STEM, RIVALS, tuple(checks))


LEVELS = np.arange(1, 64) / 64


def curves(suite: Suite) -> Iterator[Point]:
    """Densities and quantiles of (T + t₀) gap, of the predicted law and of two rivals; a mixture."""
    runs = near(suite.landscapes["steep"][0], 2, 10.0, 80.0, 2000, 0.2, -0.2)
    time, law = 2080.0, WeightedChi2(np.array(runs.weights()))
    pit = Pit(GRPO, runs.steps, runs.weights())
    for level in LEVELS.tolist():
        at = {"level": level, "quantile": float(law.ppf(level)) * time}
        measured = LawShare(runs.training, pit, level)
        yield Point(STEM, "weighted chi-square", at, level, measured)
    laws: dict[str, Any] = {
        "weighted chi-square": law,
        NORMAL: norm(law.mean(), law.var() ** 0.5),
        ORACLE: WeightedChi2(rivals(runs)[ORACLE]),
    }
    places = np.linspace(0, float(law.ppf(0.99)), 160)
    for name, other in laws.items():
        for place, density in zip(places, other.pdf(places), strict=True):
            at = {"quantile": float(place) * time}
            yield Point(STEM, f"density: {name}", at, float(density) / time)
        for level in LEVELS.tolist() if other is not law else ():
            at = {"level": level, "quantile": float(other.ppf(level)) * time}
            yield Point(STEM, name, at, level)
    yield from _mixture_curves(suite.landscapes["calm mixture"][0])


def _mixture_curves(entry: LandscapeEntry) -> Iterator[Point]:
    """Runs that end at different points of the ridge of maximisers, and the law of their gap."""
    runs, low, high = mixture(entry)
    landscape = runs.landscape
    mean, mixed = _mixed(low, high, LEVELS)
    pits: dict[str, tuple[Pit | ConditionalPit, np.ndarray]] = {
        "own weight": (ConditionalPit(GRPO, 1000, landscape.d - 1, low, high), LEVELS),
        "mean weight": (Pit(GRPO, 1000, (mean,)), mixed),
    }
    for series, (pit, shares) in pits.items():
        for level, share in zip(LEVELS.tolist(), shares.tolist(), strict=True):
            at = {"problem": entry.name, "level": level}
            yield Point("mixture", series, at, share, LawShare(runs, pit, level))
    heights = np.linspace(-4, 4, 9)
    for x in np.linspace(-1.2, 2.0, 41).tolist():
        points = np.stack([np.full(len(heights), x), heights], axis=-1)
        for y, value in zip(heights, landscape.maximum - landscape.gap(points), strict=True):
            yield Point("mixture", "return", {"x": x, "y": float(y)}, float(value))
    steps = (*range(64), *(round(2 ** (n / 4)) for n in range(24, 49)))
    for run, start in enumerate(((-0.8, -3.0), (1.5, -1.0), (-0.8, 1.0), (1.5, 3.0))):
        paths = Training(landscape, 2, steps[-1], Decay(20.0, 60.0), start=start)
        path = paths.trajectory(GRPO, steps).run("cpu", seed=run, replications=1)[0]
        for step, point in zip(steps, path, strict=True):
            at = {"run": run, "step": step, "x": float(point[0]), "y": float(point[1])}
            yield Point("mixture", "run", at, landscape.maximum - float(landscape.gap(point)))
