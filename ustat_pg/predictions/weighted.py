"""The mean and error of estimators that sum weighted scores, with rewards 0 and 1 (practical_mse).

    ĝ = (1/G) Σᵢ (Aᵢ uᵢ + vᵢ),    Aᵢ a table a₁(n), a₀(n) by the number of successes,

where u is a score weighted by length or by an importance ratio, with a mean that may differ from 0, and v is
a penalty without advantage. With m ~ Binomial(G-1, p) and l ~ Binomial(G-2, p) successes among the others,

    E ĝ    = E a₁(m+1) E[u z] + E a₀(m) E[u (1-z)] + E v
    E‖ĝ‖²  = (1/G) ( E a₁(m+1)² E‖u‖² z + E a₀(m)² E‖u‖² (1-z) + 2 E a₁(m+1) E⟨u, v⟩ z
                     + 2 E a₀(m) E⟨u, v⟩ (1-z) + E‖v‖² )
             + ((G-1)/G) E[ ‖f₁(l+2)‖² + 2 ⟨f₁(l+1), f₀(l+1)⟩ + ‖f₀(l)‖² ]

with f₁(n) = a₁(n) E[u z] + E[v z] and f₀(n) = a₀(n) E[u (1-z)] + E[v (1-z)].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..display.shown import Shown
from ..moments.record import WeightedOutcomes
from ..validation import Array, integer
from .count_tables import CountTable, binomial, count_table


@dataclass(frozen=True)
class WeightedPrediction(Shown):
    """The mean and error of a minibatch gradient that sums weighted scores.

    Arguments:
        means: E[ĝ | x], (X, d).
        mean: E ĝ, (d,).
        mse: E‖ĝ - target‖², the variance plus the squared bias.
        variance: tr Cov ĝ, over prompts drawn independently.
        squared_bias: ‖E ĝ - target‖².
    """

    means: Array
    mean: Array
    mse: float
    variance: float
    squared_bias: float


def weighted_mse(
    outcomes: WeightedOutcomes, estimator: str | CountTable, group_size: int, batch_size: int = 1
) -> WeightedPrediction:
    """Compute the mean and error of a minibatch gradient that sums weighted scores (practical_mse).

    Arguments:
        outcomes: outcomes with weighted scores; a problem's ``weighted_outcomes()``.
        estimator: a name that is a table by counts, such as grpo or std, or the table.
        group_size: G.
        batch_size: B, prompts drawn independently.

    >>> from ustat_pg.problems import SoftmaxBandit, WeightedBandit
    >>> coin = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    >>> unweighted = WeightedBandit.of(coin, [[1.0, 1.0]]).weighted_outcomes()
    >>> round(weighted_mse(unweighted, "grpo", 2).mse, 12)
    0.125
    >>> weighted_mse(WeightedBandit.of(coin, [[1.0, 0.5]]).weighted_outcomes(), "grpo", 2).mean
    array([ 0.1875, -0.1875])
    """
    size, prompts = integer("group size", group_size), integer("batch size", batch_size)
    table = estimator if isinstance(estimator, CountTable) else count_table(estimator, size)
    u_won = outcomes.scores
    u_lost = u_won if outcomes.lost_scores is None else outcomes.lost_scores
    v = np.zeros_like(u_won) if outcomes.penalty is None else outcomes.penalty
    of_won, of_lost = outcomes.probs * outcomes.success, outcomes.probs * (1 - outcomes.success)

    def mean(chances: Array, vectors: Array) -> Array:
        return np.einsum("xk,xkd->xd", chances, vectors)

    def product(chances: Array, one: Array, other: Array) -> Array:
        return np.einsum("xk,xkd,xkd->x", chances, one, other)

    score_won, score_lost = mean(of_won, u_won), mean(of_lost, u_lost)
    penalty_won, penalty_lost = mean(of_won, v), mean(of_lost, v)
    pass_rates = of_won.sum(axis=1)
    alone = binomial(size - 1, pass_rates)
    won, lost = table.successes[1:], table.failures[:-1]
    first, second = alone @ won, alone @ lost
    means = first[:, None] * score_won + second[:, None] * score_lost + penalty_won + penalty_lost
    squares = (
        (alone @ won**2) * product(of_won, u_won, u_won)
        + (alone @ lost**2) * product(of_lost, u_lost, u_lost)
        + 2 * (first * product(of_won, u_won, v) + second * product(of_lost, u_lost, v))
        + product(outcomes.probs, v, v)
    ) / size
    if size > 1:
        # (G+1, X, d): the parts of a success and of a failure, by the number of successes in the whole group.
        winning = table.successes[:, None, None] * score_won + penalty_won
        losing = table.failures[:, None, None] * score_lost + penalty_lost
        pairs = (
            (winning[2:] ** 2).sum(axis=-1)
            + 2 * (winning[1:-1] * losing[1:-1]).sum(axis=-1)
            + (losing[:-2] ** 2).sum(axis=-1)
        )
        both = binomial(size - 2, pass_rates)
        squares = squares + (both.T * pairs).sum(axis=0) * (size - 1) / size
    probs = outcomes.context_probs
    average = probs @ means
    variance = max(float(probs @ squares - average @ average), 0.0) / prompts
    off = average - probs @ outcomes.targets
    bias = float(off @ off)
    return WeightedPrediction(means, average, variance + bias, variance, bias)
