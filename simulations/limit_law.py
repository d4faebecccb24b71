"""Theorem 8: with ηₜ = c/t, T times the gap tends in law to Σ wₖ χ²₁, w the eigenvalues of
½ Λ^½ Γ Λ^½ and Γ_jk = c² Σ_jk / (c λ_j + c λ_k - 1).

What is predicted at a finite T is Σ wₖ χ²₁ with Γ_T of the linear recursion: its Laplace transform by
backward induction and simulation, its distribution by simulation, in a Dvoretzky-Kiefer-Wolfowitz
band. The recursion leaves an error of order 1/T (cubic terms of the return), so the transform may be
off by .008 and the distribution by .02; wrong formulas are farther. That the distance to the limit
itself vanishes is shown as a slope in T.

Where the noise depends on the endpoint (Assumption 8) the limit is a mixture: each run is held
against its own law. A start with too small a t₀ leaves the basin of the optimum: another law.

Falsified by a transform or a distribution farther off than that, as far as a band of ±.015 can tell,
or a distance to the limit that does not fall like 1/T.

Cost: about half a minute on two cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import exp, inf, log

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm

from ustat_pg.checks import Interval, Statement, equal
from ustat_pg.distributions import WeightedChi2
from ustat_pg.engines import Decay, Estimator, GapTransform, Pit
from ustat_pg.experiment import Check, Claim, LawDistance, Linear, LogSlope, mean_of
from ustat_pg.predictions import gap_transform, limit_weights, sup_distance

from .problems import Suite
from .problems.landscapes import LandscapeEntry
from .problems.mixture import Mixture
from .problems.optima import GRPO
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

TRANSFORM_ERROR, LAW_ERROR = 0.008, 0.02


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


WRONG: dict[str, Callable[[NearOptimum], ArrayLike]] = {
    EQUAL: lambda runs: np.full(runs.rank, np.mean(runs.weights())),
    ONE: lambda runs: [sum(runs.weights())],
    ORACLE: lambda runs: runs.weights(Estimator("oracle")),
    DENOMINATOR: _without_one,
    HALF: lambda runs: 2 * np.array(runs.weights()),
    SQUARE: lambda runs: runs.weights_by(lambda c1, c2, c3, g: c1 + c2 / g + c3 / g**2),
    PROMPTS: lambda runs: runs.weights_by(lambda c1, c2, c3, g: c2 / g + c3 / (g * (g - 1))),
    UNPROJECTED: lambda runs: runs.weights_along(np.eye(runs.landscape.d)[:, : runs.rank]),
}
"""The rivals' weights of the gap."""

DIFFER: dict[str, Callable[[NearOptimum], bool]] = {
    EQUAL: lambda runs: runs.rank > 1,
    ONE: lambda runs: runs.rank > 1,
    ORACLE: lambda runs: runs.group_size == 2,
    PROMPTS: lambda runs: runs.prompts_disagree,
    UNPROJECTED: lambda runs: runs.landscape.d > runs.rank,
}
"""Where these rivals have other weights than the theorem; the others have everywhere."""

RIVALS = (NORMAL, *WRONG, STAYS)


def rivals(runs: NearOptimum) -> dict[str, ArrayLike]:
    """The wrong weights of the gap."""
    others = (name for name in WRONG if name not in DIFFER or DIFFER[name](runs))
    return {name: WRONG[name](runs) for name in others}


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
    apart = {name: sup_distance(WeightedChi2(w), law) for name, w in rivals(runs).items()}
    apart[NORMAL] = sup_distance(norm(law.mean(), law.var() ** 0.5), law)
    far = {name: off for name, off in apart.items() if off > 2.5 * LAW_ERROR}
    distance = LawDistance(runs.training, pit)
    return runs.entry.check(f"{_at(runs)}: distribution", distance, _distance(0.0, far))


def _shrinking(entry: LandscapeEntry) -> Check:
    """(T + t₀) gap_T against the limit law itself: the difference of transforms falls like 1/T."""
    c, t0, times = 3.0 / float(entry.problem.curvatures[0]), 40.0, (200, 440)
    runs = near(entry, 2, c, t0, times[-1])
    limit = limit_weights(entry.problem.curvatures, runs.noise(), c)
    rate, cell = float(1 / limit.sum()), runs.training
    transforms = (GapTransform(GRPO, steps, rate * (steps + t0)) for steps in times)
    points = tuple(Linear(cell, ((each, -1.0),), gap_transform(limit, rate)) for each in transforms)
    # The plan needs sizes: those of the cubic terms, roughly.
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
    # Too small a t₀: first steps beyond the basin.
    leaves = near(landscapes["steep"][0], 2, 10.0, 4.0, 1000, 0.2, -0.2)
    distance = LawDistance(leaves.training, Pit(GRPO, 1000, leaves.weights()))
    far = Statement(0.1, Interval(2.5 * LAW_ERROR, inf), {}, 1.0, 0.02)
    name = f"{_at(leaves)}, t0=4: the law is another one"
    checks.append(leaves.entry.check(name, distance, far))
    return Claim(STEM, RIVALS, tuple(checks))
