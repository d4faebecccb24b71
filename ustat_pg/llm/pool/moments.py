"""Unbiased moments of each prompt of a scored pool, and means over prompts with jackknife errors.

Each moment is a mean over tuples of *different* rollouts, a U-statistic of K_ij = ⟨s_i, s_j⟩ and z, so it is
unbiased for any number of rollouts. Prompts are compared by sketches of their gradients. Errors come from a
jackknife that deletes prompts; they include the noise of rollouts and of random groups, which are independent
for each prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln
from scipy.stats import beta, binom

from ...inference import ERRORS, Means, means, shape_of, student
from ...validation import Array, InputError, finite_array, integer
from .scored import ScoredPool, averaged, leave_one_out


@dataclass(frozen=True, eq=False)
class PromptMoments:
    """Unbiased estimates of the moments of each prompt, arrays of shape (P,).

    Each has the true moment as its mean, so an estimate may be negative if the true moment is small. Names
    are those of :class:`ustat_pg.moments.record.Moments`.

    Arguments:
        value: V = E z.
        reward_variance: σ².
        fisher_trace: tr F = E‖s‖².
        norm_reward: E[‖s‖² z].
        norm_squared_reward: E[‖s‖² z²].
        norm_advantage: E[‖s‖² a], a = z - V.
        norm_squared_advantage: τ = E[‖s‖² a²].
        variance_trace: φ = σ² tr F.
        gradient_sq: ‖g‖².
        pool_gradient_sq: ‖ĝ_x‖² of the estimate from all rollouts; its mean is ‖g‖² plus the error at G = N.
    """

    value: Array
    reward_variance: Array
    fisher_trace: Array
    norm_reward: Array
    norm_squared_reward: Array
    norm_advantage: Array
    norm_squared_advantage: Array
    variance_trace: Array
    gradient_sq: Array
    pool_gradient_sq: Array

    def by_prompt(self, pool: ScoredPool) -> PromptMoments:
        """The moments of each different prompt, averaged over its rows."""
        return PromptMoments(
            **{name: pool.by_prompt(values) for name, values in vars(self).items()}
        )


@dataclass(frozen=True, eq=False)
class GroupMoments:
    """Unbiased estimates of moments of one group's gradient ĝ at each prompt, arrays of shape (P,).

    Arguments:
        second: E‖ĝ‖².
        cross: ⟨E ĝ, g⟩; NaN if g is not known.
        factor: f, such that f ĝ_x is unbiased for E ĝ, where ĝ_x is the prompt's gradient in the pool; 1 if ĝ
            is unbiased for g, NaN if no multiple is unbiased.
        vectors: unbiased sketches of E ĝ, (P, k), if no multiple is unbiased; else None.
        own: standard errors of ``second`` from the draw of groups, (P,); None if all groups are used.
    """

    second: Array
    cross: Array
    factor: Array
    vectors: Array | None = None
    own: Array | None = None

    @classmethod
    def unbiased(cls, error: Array, gradient_sq: Array) -> GroupMoments:
        """The moments of an estimator with mean g, from its error and ‖g‖², (P,) each."""
        return cls(error + gradient_sq, gradient_sq, np.ones_like(error))

    def scaled(self, by: float) -> GroupMoments:
        """The moments of a multiple of the estimator."""
        return replace(
            self,
            second=self.second * by**2,
            cross=self.cross * by,
            factor=self.factor * by,
            vectors=None if self.vectors is None else self.vectors * by,
        )


def prompt_moments(pool: ScoredPool) -> PromptMoments:
    """U-statistics of the pool, prompt by prompt (theory/language_models.md).

    With z̃ = z - z̄ and S = Σ z̃²,

        τ̂ = 1/N Σ_k K_kk (N(N-1) z̃_k² - S) / ((N-1)(N-2))        triples K_kk (z_k-z_i)(z_k-z_j)
        φ̂ = 1/N Σ_k K_kk · (variance of the other rewards)        triples K_kk (z_i-z_j)²/2
        ‖g‖²^ = mean over i ≠ j of K_ij (z_i - c_ij)(z_j - c_ij),  c_ij the mean of the others.

    >>> pool = ScoredPool.from_scores([[1.0, 0.0, 0.0, 0.0]], [[[1.0], [-1.0], [1.0], [-1.0]]])
    >>> moments = prompt_moments(pool)
    >>> moments.value.tolist(), moments.reward_variance.tolist(), moments.variance_trace.tolist()
    ([0.25], [0.25], [0.25])
    """
    if pool.weighted:
        raise InputError(
            "the scores of this pool are weighted by token, for rollouts of an older policy: it "
            "only gives the noise and the signal of that weighted gradient (noise_to_signal)"
        )
    z, norms, count = pool.rewards, pool.squared_norms, pool.rollouts
    apart = leave_one_out(z)
    centred = apart * ((count - 1) / count)
    spread = (centred**2).sum(axis=1)
    mean = z.mean(axis=1)
    pairs, triples = count * (count - 1), (count - 1) * (count - 2)
    others = (spread[:, None] - centred**2 * (count / (count - 1))) / (count - 2)
    # Sums over i ≠ j of K_ij z̃_i z̃_j and of K_ij (z̃_i² + z̃_j²).
    diagonal = (norms * centred**2).sum(axis=1)
    to_others = (pool.gram @ centred[..., None])[..., 0]
    products = (to_others * centred).sum(axis=1) - diagonal
    squares = 2 * ((pool.gram.sum(axis=2) * centred**2).sum(axis=1) - diagonal)
    gradient_sq = (((count - 1) ** 2 + 1) * products + (count - 1) * squares) / (
        (count - 2) ** 2 * pairs
    )
    variance = spread / (count - 1)
    return PromptMoments(
        value=mean,
        reward_variance=variance,
        fisher_trace=norms.mean(axis=1),
        norm_reward=(norms * z).mean(axis=1),
        norm_squared_reward=(norms * z**2).mean(axis=1),
        norm_advantage=(norms * apart).mean(axis=1),
        norm_squared_advantage=(norms * (pairs * centred**2 - spread[:, None])).mean(axis=1)
        / triples,
        variance_trace=(norms * others).mean(axis=1),
        gradient_sq=gradient_sq,
        pool_gradient_sq=(products + diagonal) / (count - 1) ** 2,
    )


_LARGEST, _LEAST_LARGEST, _HEAVY, _TAIL = 0.05, 10, 4.4, 6.0
"""The settings for the largest deviations: their share, their least number, the estimated tail index below
which squares may have no variance, and the number of errors by which a mean may be too small.
"""
_SEEN = 6.0
"""The fewest effective prompts behind the spread of a share for which it is treated as a mean."""


def share_interval(shares: Means, least: ArrayLike = 0.0) -> tuple[Array, Array]:
    """95% intervals, within [0, 1], of means of columns between 0 and 1; ``least`` is a lower bound of the
    errors.

    If few prompts carry the spread, the intervals are Clopper and Pearson's for a binomial law with the same
    error (Korn and Graubard, 1998): p(1-p)/se² trials, reduced because the error is itself uncertain. If all
    prompts have 0, or all have 1, the error is not known, and the interval is that of P trials with equal
    results.
    """
    count, looks, share = len(shares.without), shares.looks, np.clip(shares.full, 0.0, 1.0)
    if count < 2:
        return np.zeros_like(share), np.ones_like(share)
    spread, (_, freedom, carriers) = share * (1 - share), shape_of(shares.influences)
    error = np.maximum(shares.se, least)
    known = (error > 0) & (spread > 0)
    trials = np.where(known, spread / np.where(known, error**2, 1.0), count)
    wider = [
        student(max(n - 1, 1), looks) / student(f, looks)
        for n, f in zip(trials, freedom, strict=True)
    ]
    trials *= np.where(known, np.square(wider), 1.0)
    won, lost, half = trials * share, trials * (1 - share), ERRORS / (2 * looks)
    low = np.where(won > 0, beta.ppf(half, np.where(won > 0, won, 1.0), lost + 1), 0.0)
    high = np.where(lost > 0, beta.isf(half, won + 1, np.where(lost > 0, lost, 1.0)), 1.0)
    enough = carriers >= _SEEN
    times = np.where(shares.se > 0, error / np.where(shares.se > 0, shares.se, 1.0), 1.0)
    below, above = (
        np.clip(shares.full + (end - shares.full) * times, 0.0, 1.0) for end in shares.interval()
    )
    return np.where(enough, below, low), np.where(enough, above, high)


def _least_errors(shares: Array, same: Array) -> Array:
    """The variances of prompts' silent shares due to the rollouts, (P, Q).

    Shares (N + 1, Q) are given by the count n of the most common reward, with all other rewards treated as
    one. This count is binomial, with p(1-p) estimated by n(N-n)/(N(N-1)). Prompts that all have the least
    possible share show no error.
    """
    count = len(shares) - 1
    most = same.max(axis=1)
    spread = np.minimum(most * (count - most) / (count * max(count - 1, 1)), 0.25)
    rate = 0.5 + np.sqrt(0.25 - spread)
    law = binom.pmf(np.arange(count + 1), count, rate[:, None])
    variances: Array = law @ shares**2 - (law @ shares) ** 2
    return np.maximum(variances, 0.0)


def over_prompts(pool: ScoredPool, columns: Array) -> Means:
    """Means over prompts of columns that contain squares of rewards, (P, Q)."""
    return replace(means(pool.by_prompt(columns), pool.looks), tail=reward_tail(pool.rewards))


def reward_tail(rewards: Array) -> float:
    """The least number of errors between a mean of squared rewards and its upper end; half of it for
    products.

    If the largest 5% of deviations may fall more slowly than the fourth power (Hill's estimate), their
    squares have no variance. A sample without the largest then looks like a narrow law, and in 1 of 30
    samples its mean is too small by four to five of its own errors. Rewards with few values have no such
    tail.
    """
    apart = np.abs(leave_one_out(rewards)).ravel()
    count = max(round(_LARGEST * apart.size), _LEAST_LARGEST)
    if count >= apart.size:
        return 0.0
    largest = np.argpartition(apart, -count - 1)[-count - 1 :]
    values = np.sort(apart[largest])
    if 2 * len(np.unique(rewards.ravel()[largest])) < count or not values[0] > 0:
        return 0.0
    index = 1 / max(float(np.log(values[1:] / values[0]).mean()), 1e-12)
    return _TAIL if index < _HEAVY else 0.0


def gradients(pool: ScoredPool) -> Array:
    """Sketches of an unbiased gradient of each prompt, (P, k); one prompt is an error."""
    if pool.distinct < 2:
        raise InputError("there is 1 prompt: the spread between prompts needs at least 2")
    return pool.gradients


def frac_reward_zero_std(
    rewards: ScoredPool | ArrayLike,
    group_sizes: Sequence[int],
    clusters: Sequence[int] | NDArray[np.intp] | None = None,
) -> pd.DataFrame:
    """The share of groups whose rewards are all equal, so that they give no signal.

    Σ_v C(n_v, G)/C(N, G) for prompts with n_v rewards equal to v: unbiased, and it never rises with G.
    For groups larger than N there is no unbiased estimate and no share is given; it is at most that at G = N,
    so ``high`` is the upper end at G = N.

    Arguments:
        rewards: a pool, or (P, N).
        group_sizes: G, each at least 2.
        clusters: with rewards, the prompt of each row, (P,), if prompts repeat; their groups are averaged.

    Returns:
        a row for each group size: group_size, frac_reward_zero_std, low, high, se, biased (whether G > N:
        share and se are NaN).

    >>> found = frac_reward_zero_std([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]], [2, 4, 8])
    >>> found.frac_reward_zero_std.tolist()
    [0.75, 0.5, nan]
    """
    sizes = sizes_of(group_sizes)
    looks = rewards.looks if isinstance(rewards, ScoredPool) else 1
    table = (
        rewards.rewards if isinstance(rewards, ScoredPool) else finite_array("rewards", rewards, 2)
    )
    count = table.shape[1]
    # n is the count of each rollout's value; a sum over rollouts counts a value n times.
    same = (table[:, :, None] == table[:, None, :]).sum(axis=2).astype(np.float64)
    # The share of groups that contain only n given rollouts of the N, n = 0, ..., N.
    alike, taken = np.arange(count + 1)[:, None], np.minimum(sizes, count)
    enough = alike >= taken
    many = np.where(enough, alike, taken)
    log = gammaln(many + 1) - gammaln(many - taken + 1)
    log -= gammaln(count + 1) - gammaln(count - taken + 1)
    within = np.where(enough, np.exp(log), 0.0)
    shares = (within[same.astype(np.intp)] / same[..., None]).sum(axis=1)
    made = _least_errors(within + within[::-1], same)
    places = rewards.places if isinstance(rewards, ScoredPool) else None
    if clusters is not None:
        places = np.unique(clusters, return_inverse=True)[1]
    if places is not None:
        shares, made = averaged(shares, places), averaged(made, places)
        made /= np.bincount(places)[:, None]
    averages = means(shares, looks)
    low, high = share_interval(averages, np.sqrt(made.mean(axis=0) / len(made)))
    beyond = np.array(sizes) > count
    return pd.DataFrame(
        {
            "group_size": sizes,
            "frac_reward_zero_std": np.where(beyond, np.nan, averages.full),
            "low": np.where(beyond, 0.0, low),
            "high": high,
            "se": np.where(beyond, np.nan, averages.se),
            "biased": beyond,
        }
    )


def sizes_of(group_sizes: Sequence[int]) -> list[int]:
    """Group sizes as whole numbers, at least one of them."""
    sizes = [
        integer("group size", size) for size in np.atleast_1d(np.asarray(group_sizes)).tolist()
    ]
    if not sizes:
        raise InputError("no group sizes are given: give at least one")
    return sizes
