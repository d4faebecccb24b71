"""The best of k outputs with graded rewards, max@k: exact error at every group size, and its limit
(count_advantages).

A reward is a sum over thresholds, z = Σ_l d_l 1{z ≥ v_l}, where d_l = v_l - v_{l-1} and d_0 = v_0. The
greatest of several rewards is the same sum of "one of them is at least v_l". So the advantages of max@k are
the sum of the tables of pass@k at all thresholds, and with p_l = P(z ≥ v_l)

    E ĝ = Σ_l d_l w(p_l) ∇p_l,       E‖ĝ‖² = Σ_{l,m} d_l d_m E⟨ĝ_l, ĝ_m⟩,

where E⟨ĝ_l, ĝ_m⟩ is :func:`~ustat_pg.predictions.closed_forms.nested_moment`. This is true for every
estimator whose advantages are such a sum, also for leave-one-out. With Φ' = w the mean is the gradient of
∫ Φ(P(z > v)) dv. As G grows, G tr Cov ĝ tends to

    tr Cov( k s (ψ(z) - c) + k (k-1) γ(z) ),
    ψ(z) = E max(z, k-1 others),    γ(z) = E[s₁ max(z, z₁, k-2 others)],

where c is the limit of the baseline: E max of k for ``pass-at-k``, of k-1 for ``gain-at-k``, 0 for none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import binom

from ..display.shown import Shown
from ..moments.record import RewardLevels
from ..registry import parse
from ..rounding import SQUARE
from ..validation import Array, InputError, finite_array, integer
from .closed_forms import best_of_baseline, best_of_noise, minibatch_error, nested_moment
from .count_tables import CountTable, binomial, count_table


@dataclass(frozen=True, eq=False)
class GradedPrediction(Shown):
    """The mean and the noise of an estimator with graded rewards, in a batch of B groups.

    Arguments:
        mean: E ĝ, (d,).
        second_moment: E‖ĝ‖² of one prompt's group, (X,).
        variance: tr Cov ĝ of a batch.
        noise_to_signal: tr Cov ĝ/‖E ĝ‖²; None if E ĝ = 0.
    """

    mean: Array
    second_moment: Array
    variance: float
    noise_to_signal: float | None


def graded_mse(
    levels: RewardLevels, estimator: str | CountTable, group_size: int, batch_size: int = 1
) -> GradedPrediction:
    """Mean and noise of an estimator whose advantages are sums over thresholds, such as max@k.

    Arguments:
        levels: result of :meth:`~ustat_pg.problems.SoftmaxBandit.reward_levels`.
        estimator: ``pass-at-k:K``, ``gain-at-k:K``, ``grpo``, ``group-mean`` or ``vanilla``; or a table,
            which is used at every threshold.
        group_size: G.
        batch_size: B, prompts drawn independently.

    Raises:
        InputError: the estimator's advantages are not a sum over thresholds, or the group is too small.

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> three = SoftmaxBandit.from_probs([0.25, 0.25, 0.5], [1.0, 0.5, 0.0])
    >>> best = graded_mse(three.reward_levels(), "max-at-k:2", 4)
    >>> best.mean.round(4), round(best.variance, 4)
    (array([ 0.2031,  0.0156, -0.2188]), 0.0728)
    """
    size, batch = integer("group size", group_size), integer("batch size", batch_size)
    table = estimator if isinstance(estimator, CountTable) else _table(estimator, size)
    if table.group_size != size:
        raise InputError(
            f"the table is of groups of {table.group_size}, and the group size is {size}"
        )
    steps = np.diff(levels.values, prepend=0.0)
    reach = np.minimum(_at_least(levels.probs), 1.0)
    gradients = _at_least(levels.scores)
    weights = steps * table.weight(reach)
    means = np.einsum("xl,xld->xd", weights, gradients)
    square = np.zeros(len(reach))
    for low, step in enumerate(steps):
        for high in range(low, len(steps)):
            times = step * steps[high] * (1 if low == high else 2)
            if times:
                square += times * _pair(table, levels, low, high)
    mean = levels.context_probs @ means
    length = float(mean @ mean)
    of_prompts = np.sum(means**2, axis=1)
    between = float(levels.context_probs @ of_prompts) - length
    within = float(levels.context_probs @ (square - of_prompts))
    variance = max(float(minibatch_error(batch, between, within)), 0.0)
    nothing = SQUARE * float(levels.context_probs @ square)
    return GradedPrediction(mean, square, variance, variance / length if length > nothing else None)


def expected_best(levels: RewardLevels, k: int) -> Array:
    """E max of k rewards at each prompt, (X,).

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> three = SoftmaxBandit.from_probs([0.25, 0.25, 0.5], [1.0, 0.5, 0.0])
    >>> expected_best(three.reward_levels(), 2)
    array([0.59375])
    """
    below = np.cumsum(levels.probs, axis=1) ** integer("k", k)
    return np.asarray(np.diff(below, axis=1, prepend=0.0) @ levels.values)


def best_of_limit(levels: RewardLevels, k: int, baseline: ArrayLike | None = None) -> Array:
    """The limit of G tr Cov ĝ for max@k as the group grows, at each prompt, (X,).

    Arguments:
        levels: result of :meth:`~ustat_pg.problems.SoftmaxBandit.reward_levels`.
        k: the number of attempts.
        baseline: c, a number or one for each prompt (default: E max of k, as for ``pass-at-k``; for
            ``gain-at-k`` give ``expected_best(levels, k - 1)``).

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> levels = SoftmaxBandit.from_probs([0.25, 0.25, 0.5], [1.0, 0.5, 0.0]).reward_levels()
    >>> for c in (None, expected_best(levels, 1), best_max_baseline(levels, 2), 0.0):
    ...     print(best_of_limit(levels, 2, c).round(4))
    [0.0806]
    [0.166]
    [0.0781]
    [0.8691]
    """
    tries = integer("k", k)
    c = expected_best(levels, tries) if baseline is None else finite_array("baseline", baseline)
    if c.shape not in ((), (len(levels.probs),)):
        raise InputError(f"baseline has shape {c.shape}: give a number, or one for each prompt")
    best, follow = _projections(levels, tries)
    off = best - c[..., None]
    gradient = tries * np.einsum("xld,xl->xd", levels.scores, best)
    return np.asarray(
        best_of_noise(
            tries,
            (levels.squares * off**2).sum(axis=1),
            np.einsum("xld,xld,xl->x", levels.scores, follow, off),
            (levels.probs * np.sum(follow**2, axis=2)).sum(axis=1),
            np.sum(gradient**2, axis=1),
        )
    )


def best_max_baseline(levels: RewardLevels, k: int) -> Array:
    """The number c* for which :func:`best_of_limit` is least at each prompt, (X,); NaN if all scores are 0.

    Neither E max of k nor E max of k-1 is it in general.

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> levels = SoftmaxBandit.from_probs([0.25, 0.25, 0.5], [1.0, 0.5, 0.0]).reward_levels()
    >>> best_max_baseline(levels, 2).round(4), best_max_baseline(levels, 1).round(4)
    (array([0.5625]), array([0.525]))
    """
    tries = integer("k", k)
    best, follow = _projections(levels, tries)
    fisher = levels.squares.sum(axis=1)
    return np.asarray(
        best_of_baseline(
            tries,
            (levels.squares * best).sum(axis=1),
            np.einsum("xld,xld->x", levels.scores, follow),
            np.where(fisher > 0, fisher, np.nan),
        )
    )


def _table(estimator: str, size: int) -> CountTable:
    record, _ = parse(estimator)
    if not record.of_thresholds:
        raise InputError(
            f"the advantages of {record.name} are not a sum over thresholds of the reward: call "
            "ustat_pg.engines.enumerate_mse"
        )
    return count_table(estimator, size)


def _at_least(by_level: Array) -> Array:
    """Sums over all rewards that are at least a value, (X, L, ...)."""
    return np.asarray(np.cumsum(by_level[:, ::-1], axis=1)[:, ::-1])


def _projections(levels: RewardLevels, k: int) -> tuple[Array, Array]:
    """ψ and γ at each reward, (X, L) and (X, L, d); γ is 0 if k = 1."""
    below = np.minimum(np.cumsum(levels.probs, axis=1), 1.0)

    def with_others(others: int) -> Array:
        """E max(v, others) for each value v, (X, L)."""
        chances = np.diff(below**others, axis=1, prepend=0.0)
        above = _at_least(chances * levels.values) - chances * levels.values
        return np.asarray(levels.values * below**others + above)

    if k == 1:
        return with_others(0), np.zeros_like(levels.scores)
    greatest = with_others(k - 2)
    level = np.arange(len(levels.values))
    largest = greatest[:, np.maximum.outer(level, level)]
    return with_others(k - 1), np.einsum("xlm,xmd->xld", largest, levels.scores)


def _pair(table: CountTable, levels: RewardLevels, low: int, high: int) -> Array:
    """E⟨ĝ, ĝ'⟩ of the table at two thresholds, (X,)."""

    def classes(by_level: Array) -> Array:
        ends = (slice(0, low), slice(low, high), slice(high, None))
        return np.stack([by_level[:, end].sum(axis=1) for end in ends])

    chances, scores = classes(levels.probs), classes(levels.scores)
    products = np.einsum("cxd,exd->cex", scores, scores)
    mean = _beside(table.group_size, chances)
    return np.asarray(nested_moment(table, table, mean, classes(levels.squares), products))


def _beside(size: int, chances: Array) -> Callable[[int, Array, Array], Any]:
    """The mean over the others' numbers at two thresholds; ``chances`` of the three classes, (3, X)."""
    either = np.minimum(chances[1] + chances[2], 1.0)
    share = np.divide(chances[2], either, out=np.zeros_like(either), where=either > 0)

    laws = {}
    for aside in range(1, min(size, 2) + 1):
        n = np.arange(size - aside + 1)
        among = binom.pmf(n, n[:, None], np.minimum(share, 1.0)[:, None, None])
        laws[aside] = binomial(size - aside, either)[..., None] * among

    def mean(aside: int, values: Array, others: Array) -> Array:
        return np.asarray((values * (laws[aside] @ others)).sum(axis=-1))

    return mean
