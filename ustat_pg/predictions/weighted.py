"""The mean and error of estimators that sum weighted scores, with rewards 0 and 1 (practical_mse).

    ĝ = (1/G) Σᵢ (Aᵢ uᵢ + vᵢ),    Aᵢ a table a₁(n), a₀(n) by the number of successes,

where u is a score weighted by length or by an importance ratio, whose mean need not be 0, and v a
penalty that no advantage weighs. With m ~ Binomial(G-1, p) the successes among the others,

    E ĝ    = E a₁(m+1) E[u z] + E a₀(m) E[u (1-z)] + E v
    E‖ĝ‖²  = E‖ĝ_u‖² + 2 E⟨ĝ_u, ĝ_v⟩ + E‖ĝ_v‖²,

ĝ_u = (1/G) Σᵢ Aᵢ uᵢ, and ĝ_v = (1/G) Σᵢ vᵢ by a table of advantages 1: inner products by
:func:`~ustat_pg.predictions.closed_forms.table_shares`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..display.shown import Shown
from ..moments.record import WeightedOutcomes
from ..validation import Array, integer
from .closed_forms import inner_product, table_shares
from .count_tables import CountTable, beside, count_table

Vectors = tuple[Array, Array]
"""Of each output where it is a success and where it is a failure, (X, K, d)."""


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
    chances = outcomes.probs * outcomes.rewards, outcomes.probs * (1 - outcomes.rewards)
    won, lost = outcomes.scores, outcomes.lost_scores
    scores = won, won if lost is None else lost
    mean = beside(size, outcomes.value)

    def means(vectors: Vectors) -> tuple[Array, ...]:
        """E u z and E u (1-z), (X, d) each."""
        pairs = zip(chances, vectors, strict=True)
        return tuple(np.einsum("xk,xkd->xd", *pair) for pair in pairs)

    def product(one: CountTable, other: CountTable, u: Vectors, v: Vectors) -> Array:
        """E of the inner product of (1/G) Σ Aᵢ uᵢ by one table and (1/G) Σ A'ᵢ vᵢ by another, (X,)."""
        lone = (np.einsum("xk,xkd,xkd->x", *each) for each in zip(chances, u, v, strict=True))
        apart = np.einsum("axd,bxd->abx", means(u), means(v))
        pairs = apart[0, 0], apart[1, 1], apart[0, 1], apart[1, 0]
        return np.asarray(inner_product(table_shares(one, mean, other), (*lone, *pairs)))

    of_won, of_lost = means(scores)
    of_success, of_failure = table.means(mean)
    estimates = of_success[:, None] * of_won + of_failure[:, None] * of_lost
    squares = product(table, table, scores, scores)
    if outcomes.penalty is not None:
        alike = CountTable(np.ones(size + 1), np.ones(size + 1))
        penalties = outcomes.penalty, outcomes.penalty
        estimates = estimates + sum(means(penalties))
        squares = squares + 2 * product(table, alike, scores, penalties)
        squares = squares + product(alike, alike, penalties, penalties)
    probs = outcomes.context_probs
    average = probs @ estimates
    variance = max(float(probs @ squares - average @ average), 0.0) / prompts
    off = average - probs @ outcomes.targets
    bias = float(off @ off)
    return WeightedPrediction(estimates, average, variance + bias, variance, bias)
