"""The mean gap of training runs, computed from moments and schedules (Lemma 6, suboptimality; Theorem 7,
group_size).

Near the optimum a run is a linear recursion, and its mean gap follows from the curvatures and the
gradient's covariance there (:func:`linear_gap`). If prompts are drawn in reshuffled epochs, they are
correlated between steps; :func:`epoch_gap` adds this effect. The gap after a single step of any length, from
any point, is a sum over all outcomes (:func:`one_step_gap`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import ArrayLike

from ..moments.record import Moments, takes_problems
from ..rounding import DERIVED
from ..validation import Array, InputError, finite_array, integer
from .closed_forms import grpo_error, left_share, minibatch_error
from .covariance import covariance_parts, gradient_covariance
from .limit_law import mean_gap


@takes_problems
def linear_gap(
    moments: Moments,
    basis: ArrayLike,
    curvatures: ArrayLike,
    rates: ArrayLike,
    *,
    estimator: str = "grpo",
    constant: float | None = None,
    group_size: int,
    batch_size: int = 1,
    displacement: ArrayLike | None = None,
    steps: ArrayLike | None = None,
) -> Array:
    """The mean gap of linearised runs, a number, or (n,) if steps are given (Theorem 8, limit_law).

    E gap_T = ½ tr(Λ Γ_T), with Γ_T from the recursion δ⁺ = (I - ηΛ)δ + ηξ with Cov ξ = Uᵀ Cov(ĝ) U

    The error of the linearisation is of order 1/T under c/(t + t₀).

    Arguments:
        moments: moments at the optimum, with matrices.
        basis: U (d, r), the identifiable directions.
        curvatures, rates, displacement, steps: arguments of :func:`mean_gap`.
        estimator, constant, group_size, batch_size: arguments of :func:`gradient_covariance`.

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> level, way = SoftmaxBandit.bernoulli([0.5, 0.5], [0.5, 0.5]), [[0.5**0.5], [-(0.5**0.5)]]
    >>> f"{linear_gap(level.moments(), way, [1.0], [0.5] * 10, group_size=2):.4f}"
    '0.0208'
    """
    frame = np.asarray(basis)
    noise = gradient_covariance(moments, estimator, group_size, batch_size, constant=constant)
    return mean_gap(curvatures, frame.T @ noise @ frame, rates, displacement, steps)


@takes_problems
def epoch_gap(
    moments: Moments,
    basis: ArrayLike,
    curvature: float,
    rates: ArrayLike,
    *,
    group_size: int,
    batch_size: int,
    displacement: float = 0.0,
) -> float:
    """The mean gap of linearised runs of grpo over reshuffled epochs, in one direction (Theorem 7).

    δ_T = Σₜ wₜ (ḡₜ + ξₜ), wₜ = ηₜ (1 - ηₜ₊₁λ) ⋯ (1 - η_Tλ), and the mean gradients ḡ of the
    m = N/B batches of an epoch add up to 0 at the optimum. So an epoch leaves (c₁/B)(N-B)/(N-1) · m/(m-1) ·
    [Σ w² - (Σ w)²/m] of them, which is 0 if its weights are equal.

    Arguments:
        moments: moments of N equally likely prompts at the optimum, with matrices.
        basis: U (d, 1), the one identifiable direction.
        curvature: λ > 0 of -J there.
        rates: η₁ to η_T, (T,), positive.
        group_size: G, at least 2.
        batch_size: B, a divisor of N.
        displacement: δ₀.

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> opposed = SoftmaxBandit.bernoulli([[0.5, 0.5], [0.5, 0.5]], [[1, 0], [0, 1]])
    >>> moments, way = opposed.moments(), [[0.5], [-0.5], [0.5], [-0.5]]
    >>> both = {"group_size": 2, "batch_size": 2}
    >>> whole = epoch_gap(moments, way, 1.0, [0.5] * 10, **both)
    >>> drawn = linear_gap(moments, way, [1.0], [0.5] * 10, **both)
    >>> bool(whole < drawn)                      # the prompts' own spread is gone
    True
    """
    schedule, prompts = finite_array("rates", rates, 1), len(moments)
    size, batch = integer("group size", group_size, 2), integer("batch size", batch_size)
    if prompts % batch:
        raise InputError(f"batch size is {batch}: it must divide the number of prompts, {prompts}")
    if np.ptp(moments.context_probs) > DERIVED:
        raise InputError("epochs need equally likely prompts")
    first, single, pair = (float(part[0, 0]) for part in covariance_parts(moments, basis))
    start = np.array([float(displacement)])
    within = grpo_error(size, single, pair) / batch
    total = float(mean_gap([curvature], [[within]], schedule, start))
    per_epoch = prompts // batch
    if per_epoch == 1:
        return total
    shrink = np.cumprod(1 - curvature * schedule[::-1])[::-1]
    weights = schedule * np.append(shrink[1:], 1.0)
    spread = minibatch_error(batch, first, 0.0, left_share(batch, prompts))
    spread *= per_epoch / (per_epoch - 1)
    for begin in range(0, len(weights), per_epoch):
        epoch = weights[begin : begin + per_epoch]
        total += 0.5 * curvature * spread * float((epoch**2).sum() - epoch.sum() ** 2 / per_epoch)
    return float(total)


def one_step_gap(
    prompts: Iterable[tuple[float, ArrayLike, ArrayLike, ArrayLike]], gap: Callable[[Array], float]
) -> float:
    """The mean gap after one step of grpo at G = 2 and B = 1, by enumeration (Lemma 6, suboptimality).

    E gap(ĝ), ĝ = ½ (s - s')(z - z') at a prompt x and two outputs

    Arguments:
        prompts: for each prompt its probability, and its outputs' probabilities (K,), scores (K, d) and sure
            rewards (K,).
        gap: function from a gradient estimate (d,) to the gap after the step.

    >>> coin = (1.0, [0.5, 0.5], [[1.0], [-1.0]], [1.0, 0.0])
    >>> one_step_gap([coin], lambda estimate: 1 - float(estimate[0]))
    0.5
    """
    mean = 0.0
    for share, chances, scores, rewards in prompts:
        probs, rows, values = (np.asarray(part, dtype=float) for part in (chances, scores, rewards))
        for i in range(len(values)):
            for j in range(i, len(values)):
                chance = share * probs[i] * probs[j] * (1 + (i < j))
                mean += chance * gap((rows[i] - rows[j]) * (values[i] - values[j]) / 2)
    return float(mean)
