"""The error of practical GRPO: importance ratios, clipping and a KL penalty (Theorem 12, practical_mse).

A batch of outputs is drawn at θ_old, and all minibatches except the first are used at another policy π_θ. At
θ

    ĝ = (1/G) Σᵢ Σₜ [ wₜ Aᵢ + β (π_ref/π_θ - 1) ] sₜ,

where wₜ is the token's ratio ρₜ = π_θ/π_old, the ratio up to the token, that of the whole sequence, or the
latter to the power 1/T (GSPO). With the whole sequence's ratio, on the penalty too, the mean is

    w_G(p_old) ∇V_θ - β E_θ Σₜ (1 - π_ref/π_θ) sₜ,

where w_G is the weight of the advantage's table. The distance of the other ratios' means from it is the
*ratio bias*. Near θ_old it is linear in Δ = θ - θ_old: sequence ratios expand to ρ ≈ 1 + Σ_u s_u·Δ, other
ratios leave out some u, and

    bias ≈ D Δ,    D = -E[ ψ Σ_{(t,u) left out} sₜ s_uᵀ ] - β E[ Σₜ cₜ sₜ Σ_u s_uᵀ ],

where ψ is the mean advantage of an output with that reward. So its square is of order η², or β² η² for the
penalty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..moments.record import TokenOutcomes, WeightedOutcomes
from ..validation import Array, InputError, integer, number, one_of
from .count_tables import CountTable, count_table
from .weighted import WeightedPrediction, weighted_mse

_RATIOS: dict[str, Callable[[Array, Array], Any]] = {
    "none": lambda ratios, inside: np.ones_like(ratios),
    "token": lambda ratios, inside: ratios,
    "prefix": lambda ratios, inside: np.cumprod(ratios, axis=-1),
    "sequence": lambda ratios, inside: np.prod(ratios, axis=-1, keepdims=True),
    "gspo": lambda ratios, inside: (
        np.prod(ratios, axis=-1, keepdims=True) ** (1 / inside.sum(axis=-1, keepdims=True))
    ),
}
"""The weights of tokens from their ratios, (X, K, T); 1 past an output's end."""

_COUPLINGS: dict[str, Callable[[Array], Array]] = {
    "none": lambda inside: np.zeros((*inside.shape, inside.shape[-1])),
    "token": lambda inside: np.broadcast_to(
        np.eye(inside.shape[-1]), (*inside.shape, inside.shape[-1])
    ),
    "prefix": lambda inside: np.broadcast_to(
        np.tri(inside.shape[-1]), (*inside.shape, inside.shape[-1])
    ),
    "sequence": lambda inside: np.ones((*inside.shape, inside.shape[-1])),
    "gspo": lambda inside: (
        np.ones((*inside.shape, inside.shape[-1])) / inside.sum(axis=-1)[:, None, None]
    ),
}
"""∂wₜ/∂l_u at equal policies, (K, T, T)."""


def _table(outcomes: TokenOutcomes, estimator: str | CountTable, group_size: int) -> CountTable:
    if not outcomes.binary:
        raise InputError("rewards are not all 0 or 1: use enumeration instead")
    size = integer("group size", group_size)
    return estimator if isinstance(estimator, CountTable) else count_table(estimator, size)


def _penalty(outcomes: TokenOutcomes) -> Array:
    """cₜ = π_ref/π_θ - 1 of each token, 0 past an output's end, (X, K, T)."""
    return np.asarray(np.expm1(outcomes.reference - outcomes.new))


def _vectors(outcomes: TokenOutcomes, weights: Array) -> Array:
    """Σₜ wₜ sₜ of each output, (X, K, d)."""
    return np.einsum("xkt,xktd->xkd", np.broadcast_to(weights, outcomes.old.shape), outcomes.scores)


def practical_mse(
    outcomes: TokenOutcomes,
    estimator: str | CountTable,
    group_size: int,
    batch_size: int = 1,
    *,
    ratio: str = "token",
    clip: float | tuple[float, float] | None = None,
    beta: float = 0.0,
    kl_ratio: str = "none",
) -> WeightedPrediction:
    """Compute the mean and error of a practical minibatch gradient at π_θ, with outputs of π_old (Theorem
    12).

    The error is measured from the mean with the sequence ratio, w_G(p_old) ∇V_θ plus the penalty's mean under
    π_θ. So ``squared_bias`` is due to ratio, clipping and penalty, and not to the group.

    Arguments:
        outcomes: outcomes of the problem, token by token; rewards 0 and 1.
        estimator: a name that is a table by counts, such as std or grpo, or the table.
        group_size: G.
        batch_size: B, prompts drawn independently.
        ratio: none, token, prefix, sequence or gspo.
        clip: ε of PPO's clipping, for both sides or (below, above) (default: no clipping).
        beta: β of the KL penalty, k3 in the loss.
        kl_ratio: ratio on the penalty; Algorithm 2 has none.

    Raises:
        InputError: rewards are not 0 or 1, the name is unknown, or an estimator is clipped and its advantages
            do not have the reward's sign.

    >>> import numpy as np
    >>> from ustat_pg.policies import PrefixSoftmax
    >>> from ustat_pg.problems import modular_sum, token_outcomes
    >>> task = modular_sum(2, 2, prompts=[(1,)])
    >>> bandit = task.at(PrefixSoftmax.random(task.space, 1, seed=1))
    >>> away = token_outcomes(bandit, bandit.policy.theta + 0.1 * bandit.gradient())
    >>> found = practical_mse(away, "std", 8)
    >>> round(found.variance, 4), round(found.squared_bias, 8)
    (0.0733, 2.457e-05)
    >>> round(practical_mse(away, "std", 8, ratio="sequence").squared_bias, 12)
    0.0
    """
    table = _table(outcomes, estimator, group_size)
    one_of("ratio", ratio, _RATIOS)
    one_of("ratio of the penalty", kl_ratio, _RATIOS)
    beta = number("beta", beta, minimum=0.0)
    ratios = np.exp(outcomes.new - outcomes.old)
    weights = np.broadcast_to(_RATIOS[ratio](ratios, outcomes.inside), ratios.shape)
    rising = falling = weights
    if clip is not None:
        sides = clip if isinstance(clip, tuple) else (clip, clip)
        low, high = (number("clip", side, minimum=0.0) for side in sides)
        if (table.successes[1:] < 0).any() or (table.failures[:-1] > 0).any():
            raise InputError(
                "clipping depends on the reward here, so advantages must have its sign"
            )
        rising = np.where(weights <= 1 + high, weights, 0.0)
        falling = np.where(weights >= 1 - low, weights, 0.0)
    penalty = beta * _penalty(outcomes)
    won, scores = outcomes.new_probs * outcomes.rewards, _vectors(outcomes, np.ones(()))
    gradients = np.einsum("xk,xkd->xd", won, scores)
    pulled = np.einsum("xk,xkd->xd", outcomes.new_probs, _vectors(outcomes, penalty))
    weighted = WeightedOutcomes(
        outcomes.context_probs,
        outcomes.probs,
        outcomes.rewards,
        _vectors(outcomes, rising),
        table.weight(outcomes.value)[:, None] * gradients + pulled,
        lost_scores=_vectors(outcomes, falling),
        penalty=_vectors(outcomes, penalty * _RATIOS[kl_ratio](ratios, outcomes.inside)),
    )
    return weighted_mse(weighted, table, group_size, batch_size)


def ratio_bias_matrix(
    outcomes: TokenOutcomes,
    estimator: str | CountTable,
    group_size: int,
    *,
    ratio: str = "token",
    beta: float = 0.0,
    kl_ratio: str = "none",
) -> Array:
    """D, the derivative of the ratio bias in θ at θ_old, (d, d) (Theorem 12): bias ≈ D (θ - θ_old).

    For the token ratio D = -w_G(p) E[z Σ_{t≠u} sₜ s_uᵀ] - β E[Σₜ (π_ref/π - 1) sₜ sᵀ]: it is 0 without
    penalty if outputs have one token. Clipping changes nothing here, because it acts only away from ratio 1.

    Arguments:
        outcomes: outcomes at θ = θ_old; rewards 0 and 1.
        estimator, group_size, ratio, beta, kl_ratio: as for :func:`practical_mse`.
    """
    table = _table(outcomes, estimator, group_size)
    if (outcomes.new != outcomes.old).any():
        raise InputError("the derivative is computed at equal policies")
    won, lost = table.mean_advantages(outcomes.value)
    advantages = won[:, None] * outcomes.rewards + lost[:, None] * (1 - outcomes.rewards)
    total = np.zeros((outcomes.scores.shape[-1],) * 2)
    penalty = number("beta", beta, minimum=0.0) * _penalty(outcomes)
    shares = outcomes.context_probs[:, None] * outcomes.probs
    for name, weights in (
        (one_of("ratio", ratio, _RATIOS), np.broadcast_to(advantages[..., None], penalty.shape)),
        (one_of("ratio of the penalty", kl_ratio, _RATIOS), penalty),
    ):
        left_out = _COUPLINGS["sequence"](outcomes.inside) - _COUPLINGS[name](outcomes.inside)
        total -= np.einsum(
            "xk,xkt,ktu,xktd,xkue->de",
            *(shares, weights, left_out, outcomes.scores, outcomes.scores),
            optimize=True,
        )
    return total


def leading_ratio_bias(
    outcomes: TokenOutcomes,
    estimator: str | CountTable,
    group_size: int,
    batch_size: int = 1,
    *,
    learning_rate: float,
    minibatch: int = 2,
    ratio: str = "token",
    beta: float = 0.0,
    kl_ratio: str = "none",
) -> float:
    """The squared ratio bias E‖ratio bias‖² at a minibatch of a batch, to order η² (Theorem 12).

    After h steps of plain gradient, Δ = η Σ ĝ, it is η² E‖D Σ ĝ‖² = η² (h tr Cov(D ĝ) + h² ‖D E ĝ‖²).

    Arguments:
        outcomes: outcomes at θ = θ_old, at the start of the batch; rewards 0 and 1.
        estimator, group_size, batch_size, ratio, beta, kl_ratio: as for :func:`practical_mse`, for every
            minibatch.
        learning_rate: η.
        minibatch: h + 1, the number of the minibatch in its batch; the first has no bias.

    >>> from ustat_pg.policies import PrefixSoftmax
    >>> from ustat_pg.problems import modular_sum, token_outcomes
    >>> task = modular_sum(2, 2, prompts=[(1,)])
    >>> found = token_outcomes(task.at(PrefixSoftmax.random(task.space, 1, seed=1)))
    >>> leading_ratio_bias(found, "std", 8, learning_rate=0.1, minibatch=1)
    0.0
    >>> round(leading_ratio_bias(found, "std", 8, learning_rate=0.1) * 1e6, 2)
    125.45
    """
    rate, steps = number("learning rate", learning_rate), integer("minibatch", minibatch) - 1
    matrix = ratio_bias_matrix(
        outcomes, estimator, group_size, ratio=ratio, beta=beta, kl_ratio=kl_ratio
    )
    scores = _vectors(outcomes, np.ones(())) @ matrix.T
    weighted = WeightedOutcomes(
        outcomes.context_probs,
        outcomes.probs,
        outcomes.rewards,
        scores,
        np.zeros((len(scores), scores.shape[-1])),
        penalty=_vectors(outcomes, beta * _penalty(outcomes)) @ matrix.T,
    )
    mse = weighted_mse(weighted, estimator, group_size, batch_size)
    return rate**2 * (steps * mse.variance + steps**2 * mse.squared_bias)
