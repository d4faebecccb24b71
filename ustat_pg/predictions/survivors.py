"""The exact objective if only some outputs survive (survivors).

An output y survives with probability h(y), independently of others: late, stale, truncated, rejected or
unscorable outputs are lost before the estimate. With leave-one-out advantages over the n survivors of a group
of G, and advantage 0 for a lone survivor,

    E ĝ   = P(n ≥ 2) ∇ E[h z]/E[h],        h fixed; n ~ Binomial(G, E h)
    E‖ĝ‖² = Σₙ P(n) [ ‖g̃‖² + tr Σ̃/n + (σ̃² tr F̃ + ‖g̃‖²)/(n(n-1)) ]

with moments g̃, Σ̃, σ̃², F̃ of the survivors' law π h/E h about its own means. So it climbs the mean reward
of survivors. Its mean is a multiple of the gradient if h depends only on the prompt, or, with rewards 0 and
1, only on the reward.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

from ..display.shown import Shown
from ..moments.record import SurvivorMoments
from ..rounding import SQUARE
from ..validation import Array, integer, one_of
from .closed_forms import grpo_error, pair_noise
from .mse import about


@dataclass(frozen=True, eq=False)
class SurvivorPrediction(Shown):
    """The effect of leave-one-out over survivors, in a batch of B groups.

    Arguments:
        mean: E ĝ, (d,).
        weight: P(n ≥ 2), the factor of the gradient of the survivors' mean reward, (X,).
        survivors: E n, (X,).
        second_moment: E‖ĝ‖² of one prompt's group, (X,).
        mse: E‖ĝ - g‖², where g is the gradient of J.
        squared_bias: ‖E ĝ - g‖².
        noise_to_signal: tr Cov ĝ/‖E ĝ‖²; None if E ĝ = 0.
        cosine: cosine of the angle between E ĝ and g; None if one of them is 0.
    """

    mean: Array
    weight: Array
    survivors: Array
    second_moment: Array
    mse: float
    squared_bias: float
    noise_to_signal: float | None
    cosine: float | None


def survivor_mse(
    moments: SurvivorMoments, group_size: int, batch_size: int = 1, *, lone: str = "zero"
) -> SurvivorPrediction:
    """Compute the mean and error of leave-one-out advantages over the outputs that survive (survivors).

    Arguments:
        moments: result of :func:`~ustat_pg.problems.survivor_moments`.
        group_size: G >= 2, before the loss of outputs.
        batch_size: B, prompts drawn independently.
        lone: part of a lone survivor: ``zero``, or its raw ``reward`` times its score.

    >>> from ustat_pg.problems import SoftmaxBandit, survivor_moments
    >>> coin = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    >>> survivor_mse(survivor_moments(coin, [[1.0, 1.0]]), 4).weight
    array([1.])
    >>> survivor_mse(survivor_moments(coin, [[0.5, 0.5]]), 2).mean
    array([ 0.0625, -0.0625])
    """
    size, batch = integer("group size", group_size, 2), integer("batch size", batch_size)
    one_of("lone", lone, ("zero", "reward"))
    left, probs = moments.moments, moments.moments.context_probs
    numbers = np.arange(size + 1)
    law = np.asarray(binom.pmf(numbers, size, np.minimum(moments.kept, 1.0)[:, None]))
    n = numbers[2:]
    first = left.norm_squared_advantage - left.gradient_sq
    second = pair_noise(left.reward_variance, left.fisher_trace, left.gradient_sq)
    enough = law[:, 2:].sum(axis=1)
    errors = grpo_error(n, first[:, None], second[:, None])
    square = left.gradient_sq * enough + (law[:, 2:] * errors).sum(axis=1)
    mean = left.weighted_gradient(enough)
    if lone == "reward":
        mean = mean + (probs * law[:, 1]) @ moments.lone_means
        square = square + law[:, 1] * moments.lone_squares
    length, target = float(mean @ mean), float(moments.target @ moments.target)
    variance = max(float(probs @ square) - length, 0.0) / batch
    bias = float(np.sum((mean - moments.target) ** 2))
    return SurvivorPrediction(
        **about(variance, length, float(mean @ moments.target), target, bias, SQUARE),
        mean=mean,
        weight=enough,
        survivors=size * moments.kept,
        second_moment=square,
    )
