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
±.015 can tell, or a distance to the limit that does not fall like 1/T.

Cost: about half a minute on two cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import exp, inf, log

import numpy as np
from scipy.stats import norm

from ustat_pg.checks import Interval, Statement, equal
from ustat_pg.distributions import WeightedChi2
from ustat_pg.engines import Decay, Estimator, GapTransform, Pit
from ustat_pg.experiment import Check, Claim, LawDistance, Linear, LogSlope, mean_of
from ustat_pg.predictions import (
    covariance_parts,
    finite_weights,
    gap_transform,
    limit_weights,
    sup_distance,
)  # fmt: skip

from .problems import Suite
from .problems.landscapes import LandscapeEntry
from .problems.mixture import Mixture
from .problems.optima import GRPO, moments_of, parts_of
from .problems.runs import NearOptimum

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

TRANSFORM_ERROR = 0.008
LAW_ERROR = 0.02


def near(
    entry: LandscapeEntry, group_size: int, c: float, t0: float, steps: int, *away: float
) -> NearOptimum:
    """Runs of grpo with c/(t + t₀)."""
    return NearOptimum(entry, group_size, steps, Decay(c, t0), start=away)


def _without_one(runs: NearOptimum) -> np.ndarray:
    """The weights where Γ_jk = c² Σ_jk / (c λ_j + c λ_k)."""
    curvatures, schedule = runs.landscape.curvatures, runs.schedule
    assert isinstance(schedule, Decay)
    gamma = schedule.c * runs.noise() / np.add.outer(curvatures, curvatures)
    root = np.sqrt(curvatures)
    form = 0.5 * root[:, None] * gamma * root / (runs.steps + schedule.t0)
    return np.asarray(np.linalg.eigvalsh(form))


def _unprojected(runs: NearOptimum) -> np.ndarray:
    """The weights in the first r parameters as they come, in place of the identifiable directions."""
    landscape, rank, g = runs.landscape, runs.rank, runs.group_size
    c1, c2, c3 = covariance_parts(moments_of(landscape), np.eye(landscape.d)[:, :rank])
    bends = np.diagonal(-landscape.hessian(landscape.maximiser))[:rank]
    return finite_weights(bends, c1 + c2 / g + c3 / (g * (g - 1)), runs.schedule.rates(runs.steps))


def _pull_apart(runs: NearOptimum) -> bool:
    between, within, _ = parts_of(runs.landscape)
    return bool(np.trace(between) > 1e-9 * np.trace(within))


Weights = Callable[[NearOptimum], np.ndarray]
Condition = Callable[[NearOptimum], bool]

WRONG: dict[str, tuple[Weights, Condition | None]] = {
    EQUAL: (lambda runs: np.full(runs.rank, np.mean(runs.weights())), lambda runs: runs.rank > 1),
    ONE: (lambda runs: np.array([sum(runs.weights())]), lambda runs: runs.rank > 1),
    ORACLE: (
        lambda runs: np.array(runs.weights(Estimator("oracle"))),
        lambda runs: runs.group_size == 2,
    ),
    DENOMINATOR: (_without_one, None),
    HALF: (lambda runs: 2 * np.array(runs.weights()), None),
    SQUARE: (lambda runs: runs.weights_by(lambda c1, c2, c3, g: c1 + c2 / g + c3 / g**2), None),
    PROMPTS: (
        lambda runs: runs.weights_by(lambda c1, c2, c3, g: c2 / g + c3 / (g * (g - 1))),
        _pull_apart,
    ),
    UNPROJECTED: (_unprojected, lambda runs: runs.landscape.d > runs.rank),
}
"""The rivals' weights of the gap, and which runs they are other weights of: of all, unless said."""

RIVALS = (NORMAL, *WRONG, STAYS)


def rivals(runs: NearOptimum) -> dict[str, np.ndarray]:
    """The wrong weights of the gap."""
    return {
        name: weights(runs)
        for name, (weights, differ) in WRONG.items()
        if differ is None or differ(runs)
    }


def _at(runs: NearOptimum) -> str:
    c = runs.schedule.c if isinstance(runs.schedule, Decay) else 0.0
    return f"G={runs.group_size} c={c:.3g} T={runs.steps}"


def _transforms(runs: NearOptimum) -> Iterator[Check]:
    """The Laplace transform where the exponent is 1 and 4 in the mean."""
    weights, laws = np.array(runs.weights()), rivals(runs)
    for times in (1.0, 4.0):
        rate = float(times / weights.sum())
        wrong = {name: gap_transform(law, rate) for name, law in laws.items()}
        # A normal law of the same mean and variance; its transform may exceed 1.
        wrong[NORMAL] = exp(-times + rate**2 * float((weights**2).sum()))
        value = gap_transform(weights, rate)
        yield runs.entry.check(
            f"{_at(runs)}: transform at {times:g}/mean",
            mean_of(runs.training, GapTransform(GRPO, runs.steps, rate)),
            equal(value, wrong, scale=1.0, relative_margin=0.01, digits=TRANSFORM_ERROR),
        )


def _distance(distance: float, wrong: dict[str, float] | None = None) -> Statement:
    """A distribution that is so far from a law, and how far it would be from the wrong ones."""
    return equal(distance, wrong, scale=1.0, relative_margin=0.015, digits=LAW_ERROR)


def _distribution(runs: NearOptimum) -> Check:
    """The whole distribution; nothing of the wrong laws that are too near to be told apart."""
    law, pit = runs.law(), Pit(GRPO, runs.steps, runs.weights())
    distances = {name: sup_distance(WeightedChi2(w), law) for name, w in rivals(runs).items()}
    distances[NORMAL] = sup_distance(norm(law.mean(), law.var() ** 0.5), law)
    far = {name: distance for name, distance in distances.items() if distance > 2.5 * LAW_ERROR}
    functional = LawDistance(runs.training, pit)
    return runs.entry.check(f"{_at(runs)}: distribution", functional, _distance(0.0, far))


def _shrinking(entry: LandscapeEntry) -> Check:
    """(T + t₀) gap_T against the limit law itself: the difference of transforms falls like 1/T."""
    c, t0, times = 3.0 / float(entry.problem.curvatures[0]), 40.0, (200, 440)
    runs = near(entry, 2, c, t0, times[-1])
    limit = limit_weights(entry.problem.curvatures, runs.noise(), c)
    rate, cell = float(1 / limit.sum()), runs.training
    transforms = (GapTransform(GRPO, steps, rate * (steps + t0)) for steps in times)
    points = tuple(Linear(cell, ((each, -1.0),), gap_transform(limit, rate)) for each in transforms)
    # Of order 1/T by the claim; the plan needs a size: that of the cubic terms, roughly.
    sizes = tuple(7.0 / (steps + t0) for steps in times)
    return entry.check(
        "G=2: distance to the limit against T",
        LogSlope(tuple(log(t + t0) for t in times), points, sizes),
        equal(-1.0, {STAYS: 0.0}, scale=1.0, relative_margin=0.5, digits=0.2),
    )


def _mixture(entry: LandscapeEntry) -> Iterator[Check]:
    """Uniform against each run's own law; at a distance from the law of the mean weight."""
    runs, levels = Mixture(entry), np.linspace(0, 1, 501)[1:-1]
    distance = float(np.abs(runs.shares(levels) - levels).max())
    for law, pit, value in (
        ("conditional distribution", runs.own_law, 0.0),
        ("distance from the law of the mean weight", runs.mean_law, distance),
    ):
        yield entry.check(f"G=2: {law}", LawDistance(runs.training, pit), _distance(value))


def _leaves(entry: LandscapeEntry) -> Check:
    """Too small a t₀: first steps beyond the basin, and another law."""
    runs = near(entry, 2, 10.0, 4.0, 1000, 0.2, -0.2)
    return entry.check(
        f"{_at(runs)}, t0=4: the law is another one",
        LawDistance(runs.training, Pit(GRPO, 1000, runs.weights())),
        Statement(0.1, Interval(2.5 * LAW_ERROR, inf), {}, 1.0, 0.02),
    )


def claim(suite: Suite) -> Claim:
    """Transforms by both kinds of evidence, distributions by simulation, the mixture, a failure."""
    landscapes = suite.landscapes

    def runs(family: str, t0: float, steps: int, group_size: int = 2) -> list[NearOptimum]:
        """Runs on every landscape of a family, with c λ = 1.2 in the flattest direction."""
        return [
            near(entry, group_size, 1.2 / float(entry.problem.curvatures[0]), t0, steps)
            for entry in landscapes[family]
        ]

    pulls = runs("disagreement", 100.0, 800)
    rest = [*runs("tilted", 100.0, 800), *runs("plane", 300.0, 400)]
    laws = [*pulls, *rest, near(landscapes["diabetes"][0], 2, 16.0, 400.0, 1600)]
    if suite.size != "smoke":
        laws += [
            near(landscapes["slopes"][0], 2, 12.0, 100.0, 2000, 0.2, -0.2),
            near(landscapes["steep"][0], 2, 10.0, 80.0, 2000, 0.2, -0.2),
        ]
    few = (*pulls, *runs("disagreement", 100.0, 800, 8), *rest)
    checks = [check for each in few for check in _transforms(each)]
    checks += map(_distribution, laws)
    checks += map(_shrinking, landscapes["disagreement"])
    checks += [check for entry in landscapes["calm mixture"] for check in _mixture(entry)]
    checks.append(_leaves(landscapes["steep"][0]))
    return Claim(STEM, RIVALS, tuple(checks))
