"""Mean and error of estimators that sum weighted scores, with rewards 0 and 1 (practical_mse).

    ĝ = (1/G) Σᵢ (Aᵢ uᵢ + vᵢ),    Aᵢ a table a₁(n), a₀(n) by the number of successes,

where u is a score weighted by length or by an importance ratio, whose mean need not be 0, and v a
penalty that no advantage weighs. With m ~ Binomial(G-1, p) and l ~ Binomial(G-2, p) the successes among
the others,

    E ĝ    = E a₁(m+1) E[u z] + E a₀(m) E[u (1-z)] + E v
    E‖ĝ‖²  = (1/G) ( E a₁(m+1)² E‖u‖² z + E a₀(m)² E‖u‖² (1-z) + 2 E a₁(m+1) E⟨u, v⟩ z
                     + 2 E a₀(m) E⟨u, v⟩ (1-z) + E‖v‖² )
             + ((G-1)/G) E[ ‖f₁(l+2)‖² + 2 ⟨f₁(l+1), f₀(l+1)⟩ + ‖f₀(l)‖² ]

with f₁(n) = a₁(n) E[u z] + E[v z] and f₀(n) = a₀(n) E[u (1-z)] + E[v (1-z)].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..moments import WeightedMoments
from ..shown import Shown
from ..validation import integer
from .count_tables import CountTable, binomial, count_table

Array = NDArray[np.float64]


@dataclass(frozen=True)
class WeightedPrediction(Shown):
    """The mean of a minibatch gradient that sums weighted scores, and its error.

    Arguments:
        means: E[ĝ | x], (X, d).
        mean: E ĝ, (d,).
        mse: E‖ĝ - target‖², the variance and the squared bias together.
        variance: tr Cov ĝ, over prompts drawn independently.
        squared_bias: ‖E ĝ - target‖².
    """

    means: Array
    mean: Array
    mse: float
    variance: float
    squared_bias: float


def weighted_mse(
    moments: WeightedMoments, estimator: str | CountTable, group_size: int, batch_size: int = 1
) -> WeightedPrediction:
    """Mean and error of a minibatch gradient that sums weighted scores (practical_mse).

    Arguments:
        moments: of the weighted scores; a problem's ``weighted_moments()``.
        estimator: a name that is a table by counts, such as grpo or std, or the table.
        group_size: G.
        batch_size: B, prompts drawn independently.

    >>> from ustat_pg.problems import SoftmaxBandit, WeightedBandit
    >>> coin = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    >>> unweighted = WeightedBandit.of(coin, [[1.0, 1.0]]).weighted_moments()
    >>> round(weighted_mse(unweighted, "grpo", 2).mse, 12)
    0.125
    >>> weighted_mse(WeightedBandit.of(coin, [[1.0, 0.5]]).weighted_moments(), "grpo", 2).mean
    array([ 0.1875, -0.1875])
    """
    size, prompts = integer("group size", group_size), integer("batch size", batch_size)
    table = estimator if isinstance(estimator, CountTable) else count_table(estimator, size)
    alone = binomial(size - 1, moments.value)
    won, lost = table.successes[1:], table.failures[:-1]
    first, second = alone @ won, alone @ lost
    means = (
        first[:, None] * moments.won
        + second[:, None] * moments.lost
        + moments.penalty_won
        + moments.penalty_lost
    )
    squares = (
        (alone @ won**2) * moments.won_squares
        + (alone @ lost**2) * moments.lost_squares
        + 2 * (first * moments.crossed_won + second * moments.crossed_lost)
        + moments.penalty_squares
    ) / size
    if size > 1:
        # (G+1, X, d): what a success and a failure add beside so many successes in the whole group.
        winning = table.successes[:, None, None] * moments.won + moments.penalty_won
        losing = table.failures[:, None, None] * moments.lost + moments.penalty_lost
        pairs = (
            (winning[2:] ** 2).sum(axis=-1)
            + 2 * (winning[1:-1] * losing[1:-1]).sum(axis=-1)
            + (losing[:-2] ** 2).sum(axis=-1)
        )
        both = binomial(size - 2, moments.value)
        squares = squares + (both.T * pairs).sum(axis=0) * (size - 1) / size
    mean = moments.context_probs @ means
    variance = max(float(moments.context_probs @ squares - mean @ mean), 0.0) / prompts
    off = mean - moments.context_probs @ moments.targets
    bias = float(off @ off)
    return WeightedPrediction(means, mean, variance + bias, variance, bias)
