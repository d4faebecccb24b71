"""Theorem 8: with ηₜ = c/t, T times the gap tends in law to Σ wₖ χ²₁, where w are the eigenvalues of ½ Λ^½ Γ
Λ^½ and Γ_jk = c² Σ_jk / (c λ_j + c λ_k - 1), for √T Uᵀ(θ_T - θ*) tends to N(0, Γ).

After many steps the second moments of Uᵀ(θ - θ*) are those of the linear recursion, Γ_T, up to an error of
order 1/T (cubic terms of the return). The size of this error is computed from the changes of curvature and
noise around the optimum. It is removed by extrapolation of runs of n, 2n and 4n steps with rates 1, 1/2 and
1/4 as large (Richardson).

The checks cover the Laplace transform of the gap; the characteristic function of Uᵀ(θ - θ*) in directions in
which its coordinates are correlated, with up to three directions and noise that does not commute with the
Hessian; the whole distribution by simulation, in a Dvoretzky-Kiefer-Wolfowitz band; and consistency: from a
distant start, 1 - E exp(-s gap), which bounds a multiple of P(gap > δ) for every δ, falls like 1/T.
:mod:`~simulations.parts.second_moments` checks second moments and their eigenvalues;
:mod:`~simulations.parts.gap_laws` checks the computed laws and the mixture of Assumption 8.
With too small a t₀ the run leaves the basin of the optimum and has another law.

The claim is falsified if one of these differs by more than the computed remainder.

Cost: about 20 seconds of one core.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from math import exp, inf, log, sqrt

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm

from ustat_pg.distributions import WeightedChi2, sup_distance
from ustat_pg.engines import Estimator
from ustat_pg.predictions import gap_transform

from .engines import GapTransform
from .evidence import Check, Extrapolation, Interval, LawDistance, Linear, Pit, Statement, equal
from .parts import gap_laws, second_moments
from .parts.gap_laws import NORMAL, so_far_off
from .parts.second_moments import (
    DIAGONAL,
    OFF_DIAGONAL,
    ONE,
    SQUARE,
    UNROTATED,
    moments_by,
    near,
    rate_sums,
    scaled,
    unrotated_noise,
    weights_by_rivals,
)
from .problems import Suite
from .problems.landscapes import LandscapeEntry
from .shared.basins import curvatures
from .shared.margins import COARSE, FINE, TRANSFORM
from .shared.runs import EXTRAPOLATED, GRPO, RADIUS, NearOptimum, parts_of

ORACLE = "oracle's weights at G = 2"
PROMPTS = "c1 dropped"
UNPROJECTED = "Hessian unprojected"
STAYS = "distance to the limit stays"
LAPLACE = "double exponential with the same covariance"
RIVALS = (NORMAL, *second_moments.RIVALS, ORACLE, PROMPTS, UNPROJECTED, STAYS, LAPLACE)


def rivals(runs: NearOptimum) -> dict[str, ArrayLike]:
    """The wrong weights of the gap that differ from the theorem's by design."""
    weights = np.array(runs.weights())
    wrong: dict[str, ArrayLike] = {
        **weights_by_rivals(runs, weights, partial(moments_by, runs), runs.time),
        SQUARE: runs.weights_by(lambda c1, c2, c3, g: c1 + c2 / g + c3 / g**2),
    }
    if runs.rank > 1:
        wrong[ONE] = [weights.sum()]
    if runs.group_size == 2:
        wrong[ORACLE] = runs.weights(Estimator("oracle"))
    between, within, _ = parts_of(runs.landscape)
    if np.trace(between) > 1e-9 * np.trace(within):
        wrong[PROMPTS] = runs.weights_by(lambda c1, c2, c3, g: c2 / g + c3 / (g * (g - 1)))
    if runs.landscape.d > runs.rank:
        wrong[UNPROJECTED] = runs.weights_along(np.eye(runs.landscape.d)[:, : runs.rank])
    return wrong


def _at(runs: NearOptimum) -> str:
    return f"G={runs.group_size} c={runs.decay.c:.3g} T={runs.steps}"


def _transforms_at(runs: NearOptimum, rate: float) -> tuple[float, dict[str, float]]:
    """The Laplace transform at a rate, and the rivals' values."""
    weights = np.array(runs.weights())
    wrong = {name: gap_transform(law, rate) for name, law in rivals(runs).items()}
    # A normal law with the same mean and variance; its transform may exceed 1.
    wrong[NORMAL] = exp(-rate * weights.sum() + rate**2 * float((weights**2).sum()))
    return gap_transform(weights, rate), wrong


def _sensitivity(runs: NearOptimum, rate: float) -> float:
    """The decrease of the transform if all weights grow by a share, divided by the share."""
    grown = 2 * rate * np.array(runs.weights())
    return float(np.prod((1 + grown) ** -0.5) * (grown / (1 + grown)).sum() / 2)


def _transform(runs: NearOptimum) -> Check:
    rate = 1 / sum(runs.weights())
    value, wrong = _transforms_at(runs, rate)
    digits = runs.left_out * _sensitivity(runs, rate)
    return runs.entry.check(
        f"{_at(runs)}: transform at 1/mean",
        runs.transform(rate),
        equal(value, wrong, scale=1.0, relative_margin=TRANSFORM, digits=digits),
    )


def _extrapolated_transform(runs: NearOptimum, stages: int, times: float = 1.0) -> Check:
    """The extrapolated Laplace transform; its remainder consists of products of one run's error."""
    stretches, shares = zip(*EXTRAPOLATED[stages], strict=True)
    longer = [runs.stretched(stretch) for stretch in stretches]
    rates = [times / sum(stretched.weights()) for stretched in longer]
    values = [
        _transforms_at(stretched, rate) for stretched, rate in zip(longer, rates, strict=True)
    ]

    def extrapolated(terms: Iterable[float]) -> float:
        return sum(share * term for share, term in zip(shares, terms, strict=True))

    wrong = {name: extrapolated(of[name] for _, of in values) for name in values[0][1]}
    left_out = float(np.prod([stretched.left_out for stretched in longer]))
    digits = left_out * _sensitivity(runs, times / sum(runs.weights()))
    points = [stretched.transform(rate) for stretched, rate in zip(longer, rates, strict=True)]
    value = extrapolated(v for v, _ in values)
    return runs.entry.check(
        f"{_at(runs)}: transform at {times:g}/mean, extrapolated",
        Extrapolation(tuple(points), shares),
        equal(value, wrong, scale=1.0, relative_margin=FINE, digits=digits),
    )


def _cosines(runs: NearOptimum) -> Iterator[Check]:
    """The characteristic function of δ at kᵀΓk = 1, with k along sums and differences of coordinates."""
    gamma = moments_by(runs, runs.noise())
    others = {
        DIAGONAL: np.diag(np.diagonal(gamma)),
        OFF_DIAGONAL: gamma * np.where(np.eye(runs.rank) > 0, 1.0, 1 - 1 / rate_sums(runs)),
        UNROTATED: moments_by(runs, unrotated_noise(runs)),
    }
    signs = np.array([[1.0, 1.0, 1.0], [1.0, -1.0, 1.0]])[: runs.rank, : runs.rank]
    for sign in signs:
        k = sign / np.sqrt(np.diagonal(gamma))
        k = k / sqrt(k @ gamma @ k)
        wrong = {name: exp(-0.5 * k @ other @ k) for name, other in others.items()}
        wrong = (wrong if runs.rank > 1 else {}) | {LAPLACE: 1 / 1.5}
        way = "".join("+" if part > 0 else "-" for part in sign)
        yield runs.entry.check(
            f"{_at(runs)}: characteristic function along {way}",
            runs.within(RADIUS).cosine(k),
            equal(exp(-0.5), wrong, relative_margin=FINE, digits=runs.left_out * 0.5 * exp(-0.5)),
        )


def _consistent(entry: LandscapeEntry) -> Check:
    """The slope of log(1 - E exp(-s gap)) on log(T + t₀) at one s, from a start two deviations away."""
    ends, t0 = (200, 800), 75.0
    early = scaled(entry, 2, 2.0, t0, ends[0])
    away = 2 * sqrt(float(early.spread()[-1][0, 0]))
    runs = [scaled(entry, 2, 2.0, t0, end, away) for end in ends]
    rate = 0.25 / sum(early.weights())
    places = [log(end + t0) for end in ends]
    return entry.slope(
        "G=2: 1 - E exp(-s gap) against T, from a start away",
        places,
        [Linear(runs[1].training, ((GapTransform(GRPO, end, rate), -1.0),), 1.0) for end in ends],
        [1 - gap_transform(one.weights(), rate) for one in runs],
        {STAYS: 0.0},
        scale=1.0,
        relative_margin=COARSE,
        # The slope of a rate that is half as fast is between the two.
        digits=sum(one.left_out for one in runs) / (places[1] - places[0]),
    )


def _distribution(runs: NearOptimum) -> Check:
    law = runs.law()
    distance = LawDistance(runs.training, Pit(GRPO, runs.steps, tuple(law.weights.tolist())))
    apart = {name: sup_distance(WeightedChi2(w), law) for name, w in rivals(runs).items()}
    apart[NORMAL] = sup_distance(norm(law.mean(), law.var() ** 0.5), law)
    statement = so_far_off(0.0, apart, runs.off_of())
    return runs.entry.check(f"{_at(runs)}: distribution", distance, statement)


def _leaves(entry: LandscapeEntry) -> Check:
    """The check with too small a t₀: first steps leave the basin, and the law is not the recursion's."""
    runs = near(entry, 2, 10.0, 4.0, 250, 0.2, -0.2)
    distance = LawDistance(runs.training, Pit(GRPO, runs.steps, runs.weights()))
    far = Statement(0.1, Interval(0.05, inf), {}, 1.0, 0.02)
    return entry.check(f"{_at(runs)}, t0=4: the law is another one", distance, far)


def checks(suite: Suite) -> Iterator[Check]:
    """Checks of transforms, moments and laws by both kinds of evidence, of the mixture, and of a failure."""
    landscapes, smoke = suite.landscapes, suite.size == "smoke"
    stages = 2 if smoke else 3
    for family in ("disagreement", "tilted"):
        for entry in landscapes[family]:
            yield _transform(scaled(entry, 2, 1.2, 300.0, 300))
            yield _extrapolated_transform(scaled(entry, 2, 1.2, 100.0, 100), 3)
    for entry in landscapes["disagreement"]:
        yield _extrapolated_transform(scaled(entry, 2, 1.2, 100.0, 100), 3, 4.0)
        if not smoke or entry.origin == "made-up":
            yield _extrapolated_transform(scaled(entry, 8, 1.2, 100.0, 100), 2)
        yield from _cosines(scaled(entry, 2, 1.2, 360.0, 360))
        yield _distribution(scaled(entry, 2, 1.2, 300.0, 300))
        yield _consistent(entry)
        yield from curvatures(entry)
    for entry in landscapes["twisted"]:
        yield from curvatures(entry)
        yield _extrapolated_transform(scaled(entry, 2, 1.2, 90.0, 60), stages)
        yield from _cosines(scaled(entry, 2, 1.2, 180.0, 120))
        yield _distribution(scaled(entry, 2, 1.2, 720.0, 480))
    if not smoke:
        for entry in landscapes["ring"]:
            yield _extrapolated_transform(scaled(entry, 2, 1.2, 90.0, 60), 3)
    yield _distribution(near(landscapes["diabetes"][0], 2, 16.0, 400.0, 400))
    if suite.size == "card":
        for entry in (landscapes["disagreement"][0], landscapes["twisted"][0]):
            yield _distribution(scaled(entry, 2, 1.2, 300.0, 100_000))
    for entry in landscapes["twisted, r = 3"]:
        runs = scaled(entry, 2, 0.9, 960.0, 640)
        yield _transform(runs)
        yield from _cosines(runs)
    yield _leaves(landscapes["steep"][0])
    yield from second_moments.checks(suite)
    yield from gap_laws.checks(suite)
