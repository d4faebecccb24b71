"""Theorem 8 by second moments of Uᵀ(θ - θ*): the entries, and the weights, which are eigenvalues.

The first step from the optimum has the second moments η² Σ, up to rounding.
After two short steps they are those of the linear recursion. For many steps, values at two steps of a run
are extrapolated in T, and runs of n, 2n and 4n steps at rates times 1, 1/2 and 1/4 are combined
(Richardson): the results are compared with the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import sqrt

import numpy as np

from ustat_pg.predictions import (
    finite_covariance,
    finite_law,
    finite_weights,
    limit_law,
    mean_gap,
    stationary_covariance,
)

from ..engines import Decay
from ..evidence import Check, Eigenvalue, Linear, equal, mean_of
from ..problems import Suite
from ..problems.landscapes import LandscapeEntry
from ..shared.margins import AMONG, COARSE
from ..shared.runs import GRPO, RADIUS, Limit, NearOptimum

EQUAL = "equal weights"
ONE = "one chi-square with the same mean"
DENOMINATOR = 'no "-1" in the Lyapunov denominator'
HALF = "no 1/2"
SQUARE = "G^2 for G(G-1)"
DIAGONAL = "the diagonal for eigenvalues"
UNROTATED = "covariance not rotated to the eigenbasis"
OFF_DIAGONAL = 'no "-1" off the diagonal'
LATE = "rates one step late"
RIVALS = (EQUAL, ONE, DENOMINATOR, HALF, SQUARE, DIAGONAL, UNROTATED, OFF_DIAGONAL, LATE)


def near(
    entry: LandscapeEntry, group_size: int, c: float, t0: float, steps: int, *away: float
) -> NearOptimum:
    return NearOptimum(entry, group_size, steps, Decay(c, t0), start=away)


def scaled(
    entry: LandscapeEntry, group_size: int, exponent: float, t0: float, steps: int, *away: float
) -> NearOptimum:
    """Runs of grpo with c λ = ``exponent`` in the flattest direction."""
    flattest = float(entry.problem.curvatures[0])
    return near(entry, group_size, exponent / flattest, t0, steps, *away)


def moments_by(runs: NearOptimum, noise: np.ndarray) -> np.ndarray:
    """Γ_T of the recursion, if that were the covariance of a gradient."""
    return finite_covariance(runs.landscape.curvatures, noise, runs.rates(), runs.displacement)


def unrotated_noise(runs: NearOptimum) -> np.ndarray:
    """The covariance in the parameters' own coordinates, treated as eigendirections, (r, r)."""
    basis, rank = runs.landscape.identifiable, runs.rank
    return np.asarray((basis @ runs.noise() @ basis.T)[:rank, :rank])


def rate_sums(runs: NearOptimum) -> np.ndarray:
    """c λ_j + c λ_k."""
    curvatures = runs.landscape.curvatures
    return runs.decay.c * np.add.outer(curvatures, curvatures)


def without_one(runs: NearOptimum) -> np.ndarray:
    """Γ of the limit without the 1 in its denominators."""
    return np.asarray(runs.decay.c**2 * runs.noise() / rate_sums(runs))


def weights_by_rivals(
    runs: NearOptimum,
    weights: np.ndarray,
    gamma_of: Callable[[np.ndarray], np.ndarray],
    time: float = 1.0,
) -> dict[str, np.ndarray]:
    """The wrong weights that keep the right noise; ``gamma_of`` gives the second moments for a noise, and
    those of the limit are divided by ``time``.
    """
    root, plain = np.sqrt(runs.landscape.curvatures), without_one(runs)
    noise = runs.noise()

    def form(gamma: np.ndarray) -> np.ndarray:
        return np.asarray(0.5 * root[:, None] * gamma * root)

    wrong = {DENOMINATOR: np.linalg.eigvalsh(form(plain) / time), HALF: 2 * weights}
    if runs.rank > 1:
        wrong |= {
            EQUAL: np.full(runs.rank, weights.mean()),
            ONE: np.append(np.zeros(runs.rank - 1), weights.sum()),
            DIAGONAL: np.sort(np.diagonal(form(gamma_of(noise)))),
            UNROTATED: np.linalg.eigvalsh(form(gamma_of(unrotated_noise(runs)))),
        }
    return wrong


def first_step(entry: LandscapeEntry) -> Iterator[Check]:
    """Second moments after one step from the optimum are exactly those of one gradient."""
    runs = scaled(entry, 2, 1.2, 4.0, 1).within(RADIUS)
    value = moments_by(runs, runs.noise())
    (rate,) = runs.rates()
    late = value * (runs.rates(2)[1] / rate) ** 2
    square = rate**2 * runs.noise_by(lambda c1, c2, c3, g: c1 + c2 / g + c3 / g**2)
    for j in range(runs.rank):
        for k in range(j + 1):
            size = sqrt(value[j, j] * value[k, k])
            wrong = {LATE: late[j, k], SQUARE: square[j, k]}
            says = equal(float(value[j, k]), wrong, scale=size)
            drawn = mean_of(runs.training, runs.product(k, j))
            yield entry.check(f"first step: E d{k + 1} d{j + 1}", drawn, says)


def short_runs(entry: LandscapeEntry) -> Iterator[Check]:
    """Two short steps from a start away from the optimum, where the recursion is nearly exact: its second
    moments, its mean gap, the mean of its law, and its weights as eigenvalues.
    """
    still = scaled(entry, 2, 1.2, 1200.0, 2)
    sizes = np.sqrt(np.diagonal(still.spread()[-1]))
    runs = replace(still, start=(2 * float(sizes[0]), -float(sizes[1]))).within(2 * RADIUS)
    curvatures, rates = runs.landscape.curvatures, runs.rates()
    recursion = (curvatures, runs.noise(), rates, runs.displacement)
    gamma, root = finite_covariance(*recursion), np.sqrt(curvatures)
    pairs = [(j, k) for j in range(runs.rank) for k in range(j + 1)]
    for j, k in pairs:
        size = sqrt(gamma[j, j] * gamma[k, k])
        says = equal(float(gamma[j, k]), scale=size, digits=runs.left_out * size)
        drawn = mean_of(runs.training, runs.product(j, k))
        yield entry.check(f"two short steps: E d{k + 1} d{j + 1}", drawn, says)
    for what, value in (
        ("mean gap", float(mean_gap(*recursion))),
        ("mean of the gap's law", finite_law(*recursion).mean()),
    ):
        says = equal(value, digits=runs.left_out * value)
        yield entry.check(f"two short steps: {what}", runs.gap(), says)
    form = tuple(
        Linear(runs.training, ((runs.product(j, k), 0.5 * float(root[j] * root[k])),))
        for j, k in pairs
    )
    weights = finite_weights(*recursion)
    most = float(weights[-1])
    for place, weight in enumerate(weights.tolist()):
        yield entry.check(
            f"two short steps: weight {place + 1}",
            Eigenvalue((form,), (1.0,), place),
            equal(weight, scale=most, relative_margin=COARSE, digits=runs.left_out * most),
        )


def limits(runs: NearOptimum, first: int, stages: int) -> Iterator[Check]:
    """Γ, entry by entry, and the weights of the limit law."""
    curvatures, c, noise = runs.landscape.curvatures, runs.decay.c, runs.noise()
    gamma, plain = stationary_covariance(curvatures, noise, c), without_one(runs)
    limit = Limit(runs, first, stages)
    left_out = limit.left_out_of(GRPO)
    name = f"G={runs.group_size} c={c:.3g} T={first}, {runs.steps}"
    for j in range(runs.rank):
        for k in range(j + 1):
            wrong = dict.fromkeys((DENOMINATOR, OFF_DIAGONAL)[: 1 + (j != k)], plain[j, k])
            scale = sqrt(gamma[j, j] * gamma[k, k])
            margins = {"scale": scale, "relative_margin": AMONG, "digits": left_out * scale}
            yield runs.entry.check(
                f"{name}: limit of (T + t0) E d{k + 1} d{j + 1}",
                limit.entry(j, k),
                equal(float(gamma[j, k]), wrong, **margins),
            )
    weights = limit_law(curvatures, noise, c).weights
    wrong_weights = weights_by_rivals(
        runs, weights, lambda noise: stationary_covariance(curvatures, noise, c)
    )
    most = float(weights[-1])
    margins = {"scale": most, "relative_margin": AMONG, "digits": left_out * most}
    for place, weight in enumerate(weights.tolist()):
        wrong = {rival: float(others[place]) for rival, others in wrong_weights.items()}
        yield runs.entry.check(
            f"{name}: limit weight {place + 1}",
            Eigenvalue((limit.form(),), (1.0,), place),
            equal(weight, wrong, **margins),
        )


def checks(suite: Suite) -> Iterator[Check]:
    """The first steps, and the limits of long runs."""
    for entry in suite.landscapes["disagreement"]:
        yield from limits(scaled(entry, 2, 0.7, 40.0, 120), 40, 3)
    for entry in suite.landscapes["twisted"]:
        yield from first_step(entry)
        yield from short_runs(entry)
        yield from limits(scaled(entry, 2, 0.7, 40.0, 60), 20, suite.sized(2, 3, 3))
