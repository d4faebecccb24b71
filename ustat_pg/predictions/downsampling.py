"""The objective where a group is cut down by its rewards before the step (down-sampling, PODS).

n outputs of a prompt are drawn and scored, m of them are kept by their rewards, and advantages are those of
the kept ones alone (PODS, arXiv 2504.13818, keeps the m of largest variance). With rewards 0 and 1 the kept
ones are a group of m in which κ(k) of the k successes stand, and given the rewards the outputs stay
independent. With k ~ Binomial(n, p), j = κ(k), q = 1 - p and the table a₁, a₀ of a group of m,

    E ĝ    = w(p) g,   w(p) = (1/m) E[ j a₁(j)/p - (m-j) a₀(j)/q ]
    E‖ĝ‖²  = (1/m²) E[ j a₁² E[‖s‖²|z=1] + (m-j) a₀² E[‖s‖²|z=0]
                       + ‖g‖² ( j(j-1) a₁²/p² + (m-j)(m-j-1) a₀²/q² - 2 j (m-j) a₁ a₀/(pq) ) ]

So E Φ(V(X)) is climbed, with Φ' = w. Where the variance decides and n is large, half of the kept outputs are
successes: for even m, w of grpo tends to m/(4 (m-1) p q) and Φ to a multiple of the log-odds log(p/q), so
that prompts which are nearly always or nearly never solved weigh most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..moments import Moments, takes_problems
from ..shown import Shown
from ..validation import InputError, integer, one_of
from .count_tables import binomial, count_table, require_binary

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_KEPT: dict[str, Callable[[Counts, int, int], Counts]] = {
    # As near to half as there are enough of both; of an odd m the larger half are successes.
    "variance": lambda k, n, m: np.clip((m + 1) // 2, np.maximum(0, m - (n - k)), np.minimum(k, m)),
    "highest": lambda k, n, m: np.minimum(k, m),
    "lowest": lambda k, n, m: np.maximum(0, m - (n - k)),
}

DOWNSAMPLING = tuple(_KEPT)
"""By what outputs are kept: the largest variance of rewards, the highest rewards, the lowest."""


@dataclass(frozen=True, eq=False)
class DownsampledPrediction(Shown):
    """The effect of an estimator on groups that are cut down by their rewards.

    Arguments:
        estimator: its name.
        drawn, kept: n and m.
        by: what outputs are kept by.
        weights: w(p) of each prompt, by which its mean estimate is longer than g(x), (X,).
        second_moments: E‖ĝ‖² of one prompt's group, (X,).
        mse: E‖ĝ - ∇J‖² of a batch.
        squared_bias: ‖E ĝ - ∇J‖².
        noise_to_signal: tr Cov ĝ/‖E ĝ‖²; None where the mean gradient is 0.
        cosine: of the angle between E ĝ and ∇J; None where either is 0.
        silent: share of the groups whose kept rewards are all equal.
    """

    estimator: str
    drawn: int
    kept: int
    by: str
    weights: Array
    second_moments: Array
    mse: float
    squared_bias: float
    noise_to_signal: float | None
    cosine: float | None
    silent: float

    def __str__(self) -> str:
        weights = " ".join(f"{weight:.4g}" for weight in self.weights[:12])
        return "\n".join(
            [
                f"{self.estimator} on {self.kept} of {self.drawn} outputs, kept by {self.by}",
                f"MSE about the gradient of the expected reward {self.mse:.6g}",
                f"squared bias {self.squared_bias:.6g}",
                f"noise over signal {self.noise_to_signal or float('nan'):.6g}",
                f"mean estimate over gradient, by prompt {weights}",
                f"share of groups without a signal {self.silent:.4g}",
            ]
        )


def kept_successes(drawn: int, kept: int, by: str = "variance") -> Counts:
    """κ(k), the successes among the m that are kept of n outputs with k successes, (n+1,).

    Arguments:
        drawn: n >= 1.
        kept: m, 1 to n.
        by: one of :data:`DOWNSAMPLING`.

    >>> kept_successes(6, 4)
    array([0, 1, 2, 2, 2, 3, 4])
    """
    n, m = integer("drawn", drawn, 1), integer("kept", kept, 1)
    if m > n:
        raise InputError(f"kept is {m}: it must be at most drawn, {n}")
    return np.asarray(_KEPT[one_of("by", by, DOWNSAMPLING)](np.arange(n + 1), n, m))


@takes_problems
def downsampled_mse(
    moments: Moments,
    estimator: str,
    drawn: int,
    kept: int,
    batch_size: int = 1,
    by: str = "variance",
) -> DownsampledPrediction:
    """The mean and error of an estimator on groups that are cut down by their rewards.

    Arguments:
        moments: of a problem with rewards 0 and 1, or the problem.
        estimator: one that is a table by counts, see :func:`~ustat_pg.predictions.count_table`.
        drawn: n, outputs that are drawn and scored.
        kept: m, outputs that the step uses, 1 to n.
        batch_size: B >= 1, prompts drawn independently.
        by: one of :data:`DOWNSAMPLING`.

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> rare = SoftmaxBandit.bernoulli([0.1, 0.9], [1, 0])
    >>> downsampled_mse(rare, "grpo", 4, 4).weights, downsampled_mse(rare, "grpo", 32, 4).weights.round(3)
    (array([1.]), array([3.463]))
    """
    require_binary(moments, "down-sampling by rewards")
    batch = integer("batch_size", batch_size)
    successes = kept_successes(drawn, kept, by)
    table = count_table(estimator, kept, moments)
    chances = binomial(drawn, moments.value)
    # The parts of successes and of failures: their numbers times their advantages.
    won = successes * table.successes[successes]
    lost = (kept - successes) * table.failures[successes]
    pass_rate, failing = moments.value, 1 - moments.value
    # A prompt that is always or never solved has no gradient, and any weight.
    solved, missed = (np.where(rate > 0, rate, 1.0) for rate in (pass_rate, failing))
    weights = (chances @ won / solved - chances @ lost / missed) / kept

    norm_won = moments.norm_reward / solved
    norm_lost = (moments.fisher_trace - moments.norm_reward) / missed
    squares_won, squares_lost = won * table.successes[successes], lost * table.failures[successes]
    pairs = (
        chances @ (won**2 - squares_won) / solved**2
        + chances @ (lost**2 - squares_lost) / missed**2
        - 2 * (chances @ (won * lost)) / (solved * missed)
    )
    second = (
        chances @ squares_won * norm_won
        + chances @ squares_lost * norm_lost
        + pairs * moments.gradient_sq
    ) / kept**2

    probs = moments.context_probs
    square, along = moments.mean_gradient(weights)
    target = moments.mean_gradient_sq
    variance = max(float(probs @ second) - square, 0.0) / batch
    bias = max(square - 2 * along + target, 0.0)
    return DownsampledPrediction(
        estimator=estimator,
        drawn=drawn,
        kept=kept,
        by=by,
        weights=weights,
        second_moments=second,
        mse=variance + bias,
        squared_bias=bias,
        noise_to_signal=variance / square if square > 0 else None,
        cosine=along / (square * target) ** 0.5 if square * target > 0 else None,
        silent=float(probs @ (chances @ ((successes == 0) | (successes == kept)))),
    )
