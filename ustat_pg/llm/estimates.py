"""What a scored pool says about every group size: unbiased moments, error curves, constants.

Every conditional MSE of Theorem 2 (mse) is linear in moments of one prompt,

    MSE_b(G)    = (E[‖s‖² (z-b)²] - ‖g‖²) / G                      vanilla, oracle, any constant
    MSE_grpo(G) = (τ - ‖g‖²) / G + (φ + ‖g‖²) / (G (G-1)),

with τ = E[‖s‖² a²], φ = σ² tr F. Each moment is a mean over tuples of *different* rollouts, a
U-statistic of K_ij = ⟨s_i, s_j⟩ and z, so each is unbiased however few rollouts there are, and so is
the whole curve. Two things are not linear: the error at the best constant b*, a ratio of moments
(``biased`` says so), and that of weighted leave-one-out baselines, a mean over groups that is taken
over random groups of the pool (an incomplete U-statistic: unbiased, for groups that the pool can fill).
Baselines that are tables by counts take the mean over all groups of the pool at once: hypergeometric in
the number of successes, times sums of blocks of K (successes x successes, and so on).

Prompts are compared through folds. With ĝ_x the gradient estimate of all rollouts of prompt x,
Σ_{x≠y} ⟨ĝ_x, ĝ_y⟩ / (P(P-1)) is unbiased for ‖g‖²; the pairs x = y are taken out by their norms.
Errors are those of a jackknife that deletes a fold (Busing, Meijer and van der Leeden 1999 for folds
of unequal size). They ask for folds that prompts were dealt to at random, as score_pool does by a
permutation with a fixed seed, whatever the order of a file; they hold the noise of rollouts and of
random groups too, since both are drawn anew for each prompt.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln
from scipy.stats import hypergeom
from scipy.stats import t as student

from ..baselines import ALIASES, parse
from ..baselines import BASELINES as RECORDS
from ..moments import Moments
from ..predictions import CountTable, MseConstants, best_table, count_table
from ..validation import InputError, finite_array, integer
from .scored import ScoredPool, leave_one_out

__all__ = [
    "BASELINES",
    "DESIGNS",
    "TABLES",
    "WEIGHTED",
    "ConstantsEstimate",
    "PromptMoments",
    "constants",
    "curves",
    "group_errors",
    "oracle_ratio",
    "ordering",
    "prompt_moments",
    "prompt_table",
    "summary",
    "table_errors",
    "zero_signal",
]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

WEIGHTED = ("norm-weighted", "length-weighted", "token-weighted")
"""Leave-one-out means with weights ‖s‖², the length, and verl's token proxy."""
BASELINES = ("vanilla", "grpo", "oracle", "minimum-variance", *WEIGHTED)
"""What :func:`curves` draws, and ``constant`` with its number."""
TABLES = ("bayes:1,1", "best")
"""Leave-one-out tables by counts, of which it draws any by name: Bayes, and the best, which is learned on
the prompts of other folds than it is judged on. Rewards are 0 and 1."""
DESIGNS = ("prompt", "fixed", "iid")
"""One prompt, the fixed set once each, prompts drawn i.i.d."""
_PAPER = ("vanilla", "grpo", "oracle")
"""The paper's reading of Figure 4, the largest error first."""
_LEVEL = 0.95
_FLAT = 1.05
_ENTRIES = 4_000_000
"""Entries of Gram matrices that are rearranged at once."""
_TIE = 1e-12


@dataclass(frozen=True, eq=False)
class PromptMoments:
    """Unbiased estimates of the moments of each prompt, arrays of shape (P,).

    Each has the true moment as its mean, so one of them may be negative where the true one is
    small. Names are those of :class:`ustat_pg.moments.Moments`.

    Arguments:
        value: V = E z.
        value_sq: V².
        reward_variance: σ².
        fisher_trace: tr F = E‖s‖².
        norm_reward: E[‖s‖² z].
        norm_squared_reward: E[‖s‖² z²].
        norm_advantage: E[‖s‖² a], a = z - V.
        norm_squared_advantage: τ = E[‖s‖² a²].
        variance_trace: φ = σ² tr F.
        value_sq_trace: V² tr F.
        gradient_sq: ‖g‖².
        pool_gradient_sq: ‖ĝ_x‖² of the estimate from all rollouts; this one is no moment of the
            prompt: its mean is ‖g‖² and the error at G = N.
    """

    value: Array
    value_sq: Array
    reward_variance: Array
    fisher_trace: Array
    norm_reward: Array
    norm_squared_reward: Array
    norm_advantage: Array
    norm_squared_advantage: Array
    variance_trace: Array
    value_sq_trace: Array
    gradient_sq: Array
    pool_gradient_sq: Array

    def centred(self, baseline: float) -> Array:
        """E[‖s‖² (z - b)²] for a constant b, (P,)."""
        return (
            self.norm_squared_reward
            - 2 * baseline * self.norm_reward
            + baseline**2 * self.fisher_trace
        )


def prompt_moments(pool: ScoredPool) -> PromptMoments:
    """U-statistics of the pool, prompt by prompt (theory/language_models.md).

    With z̃ = z - z̄ and S = Σ z̃²,

        τ̂ = 1/N Σ_k K_kk (N(N-1) z̃_k² - S) / ((N-1)(N-2))        triples K_kk (z_k-z_i)(z_k-z_j)
        φ̂ = 1/N Σ_k K_kk · (variance of the other rewards)        triples K_kk (z_i-z_j)²/2
        ‖g‖²^ = mean over i ≠ j of K_ij (z_i - c_ij)(z_j - c_ij),  c_ij the mean of the others.

    >>> pool = ScoredPool.from_scores([[1.0, 0.0, 0.0, 0.0]], [[[1.0], [-1.0], [1.0], [-1.0]]])
    >>> found = prompt_moments(pool)
    >>> found.value.tolist(), found.reward_variance.tolist(), found.variance_trace.tolist()
    ([0.25], [0.25], [0.25])
    """
    z, gram = pool.rewards, pool.gram
    count = pool.rollouts
    norms = pool.squared_norms
    apart = leave_one_out(z)
    centred = apart * ((count - 1) / count)
    spread = (centred**2).sum(axis=1)
    mean = z.mean(axis=1)
    pairs, triples = count * (count - 1), (count - 1) * (count - 2)
    others = (spread[:, None] - centred**2 * (count / (count - 1))) / (count - 2)
    rest, rest_sq = z.sum(axis=1, keepdims=True) - z, (z**2).sum(axis=1, keepdims=True) - z**2
    # Sums over i ≠ j of K_ij z̃_i z̃_j and of K_ij (z̃_i² + z̃_j²).
    own = (norms * centred**2).sum(axis=1)
    products = np.einsum("pi,pij,pj->p", centred, gram, centred, optimize=True) - own
    squares = 2 * ((centred**2 * gram.sum(axis=2)).sum(axis=1) - own)
    gradient_sq = (((count - 1) ** 2 + 1) * products + (count - 1) * squares) / (
        (count - 2) ** 2 * pairs
    )
    variance = spread / (count - 1)
    return PromptMoments(
        value=mean,
        value_sq=mean**2 - variance / count,
        reward_variance=variance,
        fisher_trace=norms.mean(axis=1),
        norm_reward=(norms * z).mean(axis=1),
        norm_squared_reward=(norms * z**2).mean(axis=1),
        norm_advantage=(norms * apart).mean(axis=1),
        norm_squared_advantage=(norms * (pairs * centred**2 - spread[:, None])).mean(axis=1)
        / triples,
        variance_trace=(norms * others).mean(axis=1),
        value_sq_trace=(norms * (rest**2 - rest_sq)).mean(axis=1) / triples,
        gradient_sq=gradient_sq,
        pool_gradient_sq=(products + own) / (count - 1) ** 2,
    )


def _leave_out_ratio(weights: Array, rewards: Array) -> Array:
    """Σ_{j≠i} w_j z_j / Σ_{j≠i} w_j along the last axis; 0 where all other weights are 0."""
    # Sums over the others, not total minus own, which would be rounding where one dwarfs the rest.
    apart = 1 - np.eye(rewards.shape[-1])
    weight, weighted = weights @ apart, (weights * rewards) @ apart
    empty = weight == 0
    return np.where(empty, 0.0, weighted / np.where(empty, 1.0, weight))


def _at_best_constant(pool: ScoredPool, method: str) -> Array:
    """E[‖s‖² (z - b*)²] of each prompt, (P,): biased, in the way the method says."""
    z, norms, count = pool.rewards, pool.squared_norms, pool.rollouts
    if method == "split":
        return (norms * (z - _leave_out_ratio(norms, z)) ** 2).mean(axis=1)
    total = norms.sum(axis=1, keepdims=True)
    best = (norms * z).sum(axis=1, keepdims=True) / np.where(total > 0, total, 1.0)
    plug_in = (norms * (z - best) ** 2).sum(axis=1) / count
    if method == "plug-in":
        return plug_in
    # Without rollout k the weighted sum of squares about its own best constant falls by
    # q_k (z_k - b)² T / (T - q_k), T the total weight.
    drop = norms * (z - best) ** 2
    left = total - norms
    ratio = np.where(left > 0, total / np.where(left > 0, left, 1.0), 0.0)
    without = np.maximum(plug_in[:, None] * count - drop * ratio, 0.0) / (count - 1)
    return count * plug_in - (count - 1) * without.mean(axis=1)


_METHODS = ("jackknife", "plug-in", "split")


def _streams(pool: ScoredPool, seed: int, permutations: int) -> NDArray[np.intp]:
    """Random orders of the rollouts, (permutations, P, N), addressed by seed and prompt."""
    orders = np.empty((permutations, pool.size, pool.rollouts), dtype=np.intp)
    base = np.tile(np.arange(pool.rollouts), (permutations, 1))
    for x, name in enumerate(pool.prompts):
        address = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
        orders[:, x] = np.random.default_rng([seed, address]).permuted(base, axis=1)
    return orders


def _group_advantages(name: str, rewards: Array, weights: dict[str, Array]) -> Array:
    if name == "vanilla":
        return rewards
    if name == "grpo":
        return leave_one_out(rewards)
    return rewards - _leave_out_ratio(weights[name], rewards)


def group_errors(
    pool: ScoredPool,
    baselines: Sequence[str],
    group_sizes: Sequence[int],
    *,
    permutations: int = 16,
    seed: int = 0,
) -> Array:
    """E‖ĝ‖² - ‖g‖² of baselines that read the group, from random groups of the pool.

    Each permutation of a prompt's rollouts is cut into ⌊N/G⌋ groups, which are i.i.d. rollouts of the
    policy, so the mean of ‖ĝ‖² = 1/G² Σ_ij A_i A_j K_ij over them is unbiased: an incomplete
    U-statistic of order G. All baselines and group sizes share the permutations. What is taken off is
    ‖g‖² from pairs of the pool whose rewards are centred as the baseline centres them, by the others
    of the pool: unbiased for any centre that looks at neither of the pair, and with nearly the noise
    that ‖ĝ‖² has, so that it cancels.

    Arguments:
        pool: of N rollouts.
        baselines: of vanilla, grpo and :data:`WEIGHTED`.
        group_sizes: from 2 to N (vanilla: from 1).
        permutations: of each prompt's rollouts.
        seed: of them; a prompt's own depend on the seed and its name only.

    Returns:
        the error at each prompt, (baselines, group sizes, P).

    Raises:
        InputError: an unknown baseline, or a group size that the pool cannot fill.

    >>> pool = ScoredPool.from_scores([[1.0, 0.0, 0.0, 0.0]], [[[1.0], [-1.0], [1.0], [-1.0]]])
    >>> group_errors(pool, ["norm-weighted"], [2, 4]).shape
    (1, 2, 1)
    """
    names = [ALIASES.get(name, name) for name in baselines]
    allowed = ("vanilla", "grpo", *WEIGHTED)
    for name in names:
        if name not in allowed:
            raise InputError(f"baseline {name!r} is not one of {', '.join(allowed)}")
    sizes = [integer("group size", size) for size in group_sizes]
    if not names or not sizes:
        raise InputError("at least one baseline and one group size are needed")
    if min(sizes) < 2 and set(names) - {"vanilla"}:
        raise InputError(f"group size is {min(sizes)}: leave-one-out needs at least 2")
    if max(sizes) > pool.rollouts:
        raise InputError(
            f"group size is {max(sizes)}: groups are drawn from the pool, which has "
            f"{pool.rollouts} rollouts a prompt; sample more, or take smaller groups"
        )
    rounds = integer("permutations", permutations)
    orders = _streams(pool, integer("seed", seed, 0), rounds)
    sources = {
        "norm-weighted": pool.squared_norms,
        "length-weighted": pool.lengths,
        "token-weighted": pool.token_proxy,
    }
    total = np.zeros((len(names), len(sizes), pool.size))
    step = max(1, _ENTRIES // pool.rollouts**2)
    for start in range(0, pool.size, step):
        part = np.arange(start, min(start + step, pool.size))
        for order in orders[:, part]:
            gram = pool.gram[part[:, None, None], order[:, :, None], order[:, None, :]]
            rewards = pool.rewards[part[:, None], order]
            weights = {
                name: sources[name][part[:, None], order] for name in names if name in WEIGHTED
            }
            for place, size in enumerate(sizes):
                groups = pool.rollouts // size
                used, shape = groups * size, (len(part), groups, size)
                blocks = np.einsum(
                    "pgigj->pgij",
                    gram[:, :used, :used].reshape(len(part), groups, size, groups, size),
                )
                z = rewards[:, :used].reshape(shape)
                own = {name: w[:, :used].reshape(shape) for name, w in weights.items()}
                stack = np.stack([_group_advantages(name, z, own) for name in names], axis=-1)
                squares = (stack * (blocks @ stack)).sum(axis=2).mean(axis=1) / size**2
                total[:, place, part] += squares.T
    return (
        total / rounds
        - np.stack([_pair_gradient_sq(pool, name, sources) for name in names])[:, None]
    )


def _pair_gradient_sq(pool: ScoredPool, name: str, sources: dict[str, Array]) -> Array:
    """‖g‖² of each prompt from pairs i ≠ j, centred by the baseline of the others, (P,)."""
    if name == "grpo":
        return prompt_moments(pool).gradient_sq
    z, count = pool.rewards, pool.rollouts
    total = np.zeros(pool.size)
    for i in range(count):
        rest = np.delete(np.arange(count), i)
        centre: Array | float = 0.0
        if name in WEIGHTED:
            # Of rest each j has the weighted mean of those that are neither i nor j.
            centre = _leave_out_ratio(sources[name][:, rest], z[:, rest])
        total += (pool.gram[:, i, rest] * (z[:, [i]] - centre) * (z[:, rest] - centre)).sum(axis=1)
    return total / (count * (count - 1))


def table_errors(pool: ScoredPool, table: CountTable) -> Array:
    """E‖ĝ‖² - ‖g‖² of an unbiased table by counts at each prompt, from all groups of the pool, (P,).

    With m ~ Hypergeometric(N-1, ·, G-1) of the pool's successes beside one rollout and
    l ~ Hypergeometric(N-2, ·, G-2) beside two, the mean of G² ‖ĝ‖² over all groups is

        G/N Σᵢ Kᵢᵢ E Aᵢ(m)² + G(G-1)/(N(N-1)) Σ_{i≠j} Kᵢⱼ E Aᵢ(l) Aⱼ(l) :

    a complete U-statistic, unbiased.

    Arguments:
        pool: of N rollouts, rewards 0 and 1.
        table: of groups of at most N, a leave-one-out baseline.

    Raises:
        InputError: other rewards, a group that the pool cannot fill, or a table whose mean is no
            gradient.

    >>> pool = ScoredPool.from_scores([[1.0, 0.0, 0.0, 0.0]], [[[1.0], [-1.0], [1.0], [-1.0]]])
    >>> table_errors(pool, count_table("grpo", 2)).round(12).tolist()
    [0.375]
    """
    won, lost = table.successes, table.failures
    size, count, z = table.group_size, pool.rollouts, pool.rewards
    if not ((z == 0) | (z == 1)).all():
        raise InputError("a table by counts takes rewards that are 0 or 1: this pool has others")
    if size > count:
        raise InputError(
            f"group size is {size}: groups are drawn from the pool, which has {count} rollouts a "
            "prompt; sample more, or take smaller groups"
        )
    if not table.unbiased:
        raise InputError(
            "the table is biased: only errors of leave-one-out baselines are estimated"
        )

    def beside(excluded: int, own: int, values: Array) -> Array:
        """E of values(0), ... of the successes beside some rollouts, ``own`` of them successes, (P,)."""
        drawn, others = size - excluded, count - excluded
        left = np.clip(z.sum(axis=1) - own, 0, others)
        chances = hypergeom.pmf(np.arange(drawn + 1), others, left[:, None], drawn)
        return np.asarray(chances @ values)

    norms, solved = pool.squared_norms, z.astype(bool)
    alone = (norms * z).sum(axis=1) * beside(1, 1, won[1:] ** 2)
    alone += (norms * (1 - z)).sum(axis=1) * beside(1, 0, lost[:-1] ** 2)
    if size > 1:
        to_won, to_lost = (np.einsum("pij,pj->pi", pool.gram, each) for each in (z, 1 - z))
        both = np.where(solved, to_won - norms, 0.0).sum(axis=1)
        none = np.where(solved, 0.0, to_lost - norms).sum(axis=1)
        pairs = both * beside(2, 2, won[2:] ** 2) + none * beside(2, 0, lost[:-2] ** 2)
        pairs += 2 * (z * to_lost).sum(axis=1) * beside(2, 1, won[1:-1] * lost[1:-1])
        alone += pairs * (size - 1) / (count - 1)
    return alone / (count * size) - prompt_moments(pool).gradient_sq


def _learned_errors(pool: ScoredPool, moments: PromptMoments, group_size: int) -> Array:
    """Those of the best table, each fold's made of the other folds' prompts, (P,)."""
    if len(pool.fold_sizes) < 2:
        raise InputError("the best table is learned on other folds: this pool has one")
    out = np.empty(pool.size)
    for fold in range(len(pool.fold_sizes)):
        judged = pool.folds == fold
        table = best_table(_as_moments(moments, ~judged), group_size)
        out[judged] = table_errors(pool.select_prompts(np.flatnonzero(judged).tolist()), table)
    return out


def _as_moments(found: PromptMoments, chosen: NDArray[np.bool_]) -> Moments:
    """Some prompts' estimates as moments of a problem: shares of successes as pass rates."""
    value, trace = found.value[chosen], found.fisher_trace[chosen]
    return Moments(
        context_probs=np.full(len(value), 1 / len(value)),
        value=value,
        reward_variance=value * (1 - value),
        fisher_trace=trace,
        norm_advantage=found.norm_reward[chosen] - value * trace,
        norm_squared_advantage=np.maximum(found.norm_squared_advantage[chosen], 0.0),
        gradient_sq=np.maximum(found.gradient_sq[chosen], 0.0),
        mean_gradient_sq=0.0,
        reward_range=(0.0, 1.0),
    )


@dataclass(frozen=True)
class _Folded:
    """Means over prompts, and the same without each fold: what a jackknife needs.

    Arguments:
        full: (Q,).
        without: (F, Q).
        sizes: prompts in each fold, (F,).
    """

    full: Array
    without: Array
    sizes: Integers

    def apply(self, function: Callable[[Array], Array]) -> _Folded:
        """The same of a function of the means; it maps (..., Q) to (..., Q')."""
        return _Folded(function(self.full), function(self.without), self.sizes)

    @cached_property
    def covariance(self) -> Array:
        """Of the estimates, (Q, Q), by the delete-a-fold jackknife; NaN where there is one fold."""
        folds, count = len(self.sizes), int(self.sizes.sum())
        if folds < 2:
            return np.full((len(self.full), len(self.full)), np.nan)
        parts = (count / self.sizes)[:, None]
        centre = folds * self.full - ((1 - 1 / parts) * self.without).sum(axis=0)
        pseudo = parts * self.full - (parts - 1) * self.without
        scaled = (pseudo - centre) / np.sqrt(parts - 1)
        return scaled.T @ scaled / folds

    @property
    def se(self) -> Array:
        """Standard errors, (Q,)."""
        return np.sqrt(np.diagonal(self.covariance))

    @property
    def quantile(self) -> float:
        """Of Student's law with one degree of freedom fewer than folds; infinite for one fold."""
        return _quantile(len(self.sizes))

    def interval(self) -> tuple[Array, Array]:
        """95% intervals, from -∞ to ∞ where the error is not known."""
        known = np.isfinite(self.se)
        half = np.full(known.shape, np.inf)
        half[known] = self.quantile * self.se[known]
        return self.full - half, self.full + half


def _quantile(folds: int) -> float:
    return float(student.ppf((1 + _LEVEL) / 2, folds - 1)) if folds > 1 else math.inf


def _folded(folds: Integers, columns: Array) -> _Folded:
    """Means of per-prompt columns (P, Q)."""
    sizes = np.bincount(folds)
    sums = np.zeros((len(sizes), columns.shape[1]))
    np.add.at(sums, folds, columns)
    count = len(columns)
    left = (count - sizes)[:, None]
    # From the mean, so that columns that are all alike have no error at all.
    mean = columns.mean(axis=0)
    shifts = np.zeros_like(sums)
    np.add.at(shifts, folds, columns - mean)
    without = mean - np.divide(shifts, left, out=np.full_like(sums, np.nan), where=left > 0)
    return _Folded(mean, without, sizes)


def _mean_gradient_sq(pool: ScoredPool, moments: PromptMoments) -> tuple[float, Array]:
    """‖g‖² of all prompts and without each fold, by pairs of different prompts."""
    if pool.fold_gram is None:
        raise InputError(
            "this pool holds no inner products between prompts (fold_gram is None): c1 and the "
            "i.i.d. design need a pool as it was scored, not a selection from one"
        )
    if pool.size < 2:
        raise InputError("there is 1 prompt: the spread between prompts needs at least 2")
    own = np.bincount(pool.folds, weights=moments.pool_gradient_sq)
    left = pool.size - pool.fold_sizes
    rows, diagonal = pool.fold_gram.sum(axis=1), np.diagonal(pool.fold_gram)
    total = float(pool.fold_gram.sum())
    full = (total - own.sum()) / (pool.size * (pool.size - 1))
    cross = total - 2 * rows + diagonal - (own.sum() - own)
    pairs = left * (left - 1)
    without = np.divide(cross, pairs, out=np.full(len(left), np.nan), where=pairs > 0)
    return float(full), without


def _with_mean_gradient(pool: ScoredPool, moments: PromptMoments, columns: Array) -> _Folded:
    """Means of columns, and c1 = E‖g(X)‖² - ‖g‖² as the last one."""
    found = _folded(pool.folds, np.column_stack([columns, moments.gradient_sq]))
    full, without = _mean_gradient_sq(pool, moments)
    found.full[-1] -= full
    found.without[:, -1] -= without
    return found


def _names(baselines: Sequence[str], constant: float | None) -> list[str]:
    if isinstance(baselines, str):
        raise InputError(f"baselines are {baselines!r}: give a list of names")
    names = [ALIASES.get(name, name) for name in baselines]
    for name in names:
        if name in (*BASELINES, "constant"):
            continue
        family = RECORDS.get(name.partition(":")[0])
        if family is None or not family.by_count:
            raise InputError(
                f"baseline {name!r} is unknown: choose one of {', '.join([*BASELINES, 'constant'])}, "
                f"or a leave-one-out table such as {', '.join(TABLES)}"
            )
    if not names:
        raise InputError("no baselines are given: at least one is needed")
    if (constant is not None) != ("constant" in names):
        raise InputError("a constant is given with, and only with, the baseline constant")
    return names


def _errors(
    pool: ScoredPool,
    moments: PromptMoments,
    names: Sequence[str],
    sizes: Sequence[int],
    constant: float | None,
    method: str,
    permutations: int,
    seed: int,
) -> Array:
    """The conditional MSE at each prompt, (baselines, group sizes, P)."""
    if method not in _METHODS:
        raise InputError(f"minimum_variance is {method!r}: choose one of {', '.join(_METHODS)}")
    group = np.array(sizes, dtype=np.float64)[:, None]
    if "grpo" in names and min(sizes) < 2:
        raise InputError(f"group size is {min(sizes)}: leave-one-out needs at least 2")
    weighted = [name for name in dict.fromkeys(names) if name in WEIGHTED]
    drawn = {}
    if weighted:
        found = group_errors(pool, weighted, sizes, permutations=permutations, seed=seed)
        drawn = dict(zip(weighted, found, strict=True))
    out = np.empty((len(names), len(sizes), pool.size))
    for i, name in enumerate(names):
        if name in drawn:
            out[i] = drawn[name]
            continue
        if name not in (*BASELINES, "constant"):
            learned = bool(parse(name)[0].needs)
            for place, size in enumerate(sizes):
                out[i, place] = (
                    _learned_errors(pool, moments, size)
                    if learned
                    else table_errors(pool, count_table(name, size))
                )
            continue
        if name == "vanilla":
            square = moments.norm_squared_reward
        elif name == "constant":
            square = moments.centred(float(finite_array("constant", constant, 0)))  # type: ignore[arg-type]
        elif name == "minimum-variance":
            square = _at_best_constant(pool, method)
        else:
            square = moments.norm_squared_advantage
        out[i] = (square - moments.gradient_sq) / group
        if name == "grpo":
            out[i] += (moments.variance_trace + moments.gradient_sq) / (group * (group - 1))
    return out


def _sizes(group_sizes: Sequence[int]) -> list[int]:
    sizes = [
        integer("group size", size) for size in np.atleast_1d(np.asarray(group_sizes)).tolist()
    ]
    if not sizes:
        raise InputError("no group sizes are given: at least one is needed")
    return sizes


def _scale(pool: ScoredPool, design: str, batch_size: int) -> float:
    if design not in DESIGNS:
        raise InputError(f"design {design!r} is unknown: choose one of {', '.join(DESIGNS)}")
    batch = integer("batch size", batch_size)
    if design != "iid" and batch != 1:
        raise InputError(f"batch size is {batch}: the design {design!r} takes none")
    return {"prompt": 1.0, "fixed": 1 / pool.size, "iid": 1 / batch}[design]


def curves(
    pool: ScoredPool,
    group_sizes: Sequence[int],
    baselines: Sequence[str] = ("vanilla", "grpo", "oracle", "minimum-variance"),
    *,
    design: str = "prompt",
    batch_size: int = 1,
    constant: float | None = None,
    minimum_variance: str = "jackknife",
    permutations: int = 16,
    seed: int = 0,
) -> pd.DataFrame:
    """The gradient MSE of every baseline at every group size, with 95% intervals.

    Arguments:
        pool: of N rollouts a prompt.
        group_sizes: G, at least 1; 2 for grpo; from 2 to N for weighted baselines; to N for tables.
        baselines: of :data:`BASELINES`, constant, and leave-one-out tables by name: :data:`TABLES`.
        design: prompt, the mean over prompts of the error given the prompt; fixed, that over P, the
            error of the mean gradient of these P prompts (Figure 4); iid, B prompts drawn anew, so
            that the spread between prompts counts (Proposition 3, minibatch).
        batch_size: B, for iid only.
        constant: b, for the baseline constant only.
        minimum_variance: how the error at b* is found, a ratio of moments: plug-in is too low by a
            term of order 1/N; jackknife takes that term off; split takes b* from the other rollouts,
            which is the exact error of a b* so learned and above the least.
        permutations, seed: for weighted baselines, see :func:`group_errors`.

    Returns:
        a row for each baseline and group size: baseline, group_size, mse, low, high, se, biased.
        Estimates are unbiased where ``biased`` is false, so they may be negative. Intervals regard
        the prompts as a sample of all prompts; for the fixed set itself they are wider than needed.

    Raises:
        InputError: any of these is not as said.

    >>> pool = ScoredPool.from_scores([[1.0, 0.0, 0.0, 0.0]], [[[1.0], [-1.0], [1.0], [-1.0]]])
    >>> curves(pool, [2, 4], ["grpo"])[["baseline", "group_size", "mse"]].round(4).values.tolist()
    [['grpo', 2, 0.25], ['grpo', 4, 0.0903]]
    """
    names, sizes = _names(baselines, constant), _sizes(group_sizes)
    scale = _scale(pool, design, batch_size)
    moments = prompt_moments(pool)
    errors = _errors(
        pool, moments, names, sizes, constant, minimum_variance, permutations, seed
    ).reshape(-1, pool.size)
    if design == "iid":
        found = _with_mean_gradient(pool, moments, errors.T).apply(
            lambda means: means[..., :-1] + means[..., -1:]
        )
    else:
        found = _folded(pool.folds, errors.T)
    low, high = found.interval()
    frame = pd.DataFrame(
        {
            "baseline": np.repeat(names, len(sizes)),
            "group_size": np.tile(sizes, len(names)),
            "mse": found.full * scale,
            "low": low * scale,
            "high": high * scale,
            "se": found.se * scale,
        }
    )
    frame["biased"] = frame["baseline"] == "minimum-variance"
    return frame


@dataclass(frozen=True, eq=False)
class ConstantsEstimate:
    """c1, c2, c3 and vanilla's constant of Proposition 3 (minibatch), estimated from a pool.

    Arguments:
        c1: tr Cov_X g(X); as an unbiased estimate it may be negative.
        c2: E[τ - ‖g‖²].
        c3: E[φ + ‖g‖²].
        vanilla: E[E[‖s‖² z²] - ‖g‖²].
        covariance: of the four estimates in this order, (4, 4); NaN where there is one fold.
        folds: F of the jackknife.
        prompts: P.
    """

    c1: float
    c2: float
    c3: float
    vanilla: float
    covariance: Array
    folds: int
    prompts: int

    NAMES = ("c1", "c2", "c3", "vanilla")

    def se(self, name: str) -> float:
        """The standard error of a constant."""
        return float(np.sqrt(self.covariance[self._place(name), self._place(name)]))

    def interval(self, name: str) -> tuple[float, float]:
        """The 95% interval of a constant, by Student's law with F - 1 degrees of freedom."""
        value, error = float(getattr(self, self.NAMES[self._place(name)])), self.se(name)
        half = _quantile(self.folds) * error if math.isfinite(error) else math.inf
        return value - half, value + half

    def _place(self, name: str) -> int:
        if name not in self.NAMES:
            raise InputError(f"constant {name!r} is unknown: choose one of {', '.join(self.NAMES)}")
        return self.NAMES.index(name)

    @property
    def clipped(self) -> tuple[str, ...]:
        """The constants whose estimates are negative and count as 0 in :meth:`predictions`."""
        return tuple(name for name in self.NAMES if getattr(self, name) < 0)

    def predictions(self) -> MseConstants:
        """The constants that predictions and advice take; negative estimates become 0."""
        return MseConstants(**{name: max(float(getattr(self, name)), 0.0) for name in self.NAMES})

    @property
    def unbounded(self) -> bool:
        """Whether the data allow c1 = 0, so that G* has no upper limit."""
        return self.interval("c1")[0] <= 0

    @property
    def g_star_exact(self) -> float | None:
        """1 + √(c3/c1); None where the estimate of c1 is not positive."""
        paper = self.g_star_paper
        return None if paper is None else 1 + paper

    @property
    def g_star_paper(self) -> float | None:
        """√(c3/c1) [reconstructed]; None where the estimate of c1 is not positive."""
        return math.sqrt(max(self.c3, 0.0) / self.c1) if self.c1 > 0 else None

    def g_star_interval(self, kind: str = "exact") -> tuple[float, float]:
        """The 95% interval of G*, from Fieller's for c3/c1.

        The ratios r for which c3 - r c1 = 0 is not rejected. Where the interval of c1 reaches 0 no
        ratio is too large, and the upper end is infinite.

        Arguments:
            kind: exact or paper.
        """
        if kind not in ("exact", "paper"):
            raise InputError(f"kind is {kind!r}: choose exact or paper")
        low, high = self._ratio_interval()
        shift = 1.0 if kind == "exact" else 0.0
        return shift + math.sqrt(low), shift + math.sqrt(high)

    def _ratio_interval(self) -> tuple[float, float]:
        quantile = _quantile(self.folds)
        if not math.isfinite(quantile) or not np.isfinite(self.covariance).all():
            return 0.0, math.inf
        own, both, third = (
            quantile**2 * self.covariance[i, j] for i, j in ((0, 0), (0, 2), (2, 2))
        )
        # a r² - 2 b r + c <= 0.
        a, b, c = self.c1**2 - own, self.c1 * self.c3 - both, self.c3**2 - third
        inside = b * b - a * c
        if a > 0 and self.c1 > 0:
            root = math.sqrt(max(inside, 0.0))
            return max((b - root) / a, 0.0), max((b + root) / a, 0.0)
        if a >= 0 or inside <= 0 or c <= 0:
            # c1 below 0 by more than its error, or c3 not told from 0: nothing is excluded.
            return 0.0, math.inf
        return max((b - math.sqrt(inside)) / a, 0.0), math.inf

    def flat_interval(self) -> tuple[float, float]:
        """The real G whose grpo MSE at a given budget is at most 5% above the least, at the estimates.

        c1 H + c3/H <= 1.05 (c1 + c2 + 2 √(c1 c3)) - c1 - c2 with H = G - 1; infinite above where
        c1 is not positive. It does not hold the error of the estimates, see
        :meth:`g_star_interval`.
        """
        known = self.predictions()
        base, pair = known.c1 + known.c2, known.c3
        half = (_FLAT * (base + 2 * math.sqrt(known.c1 * pair)) - base) / 2
        if known.c1 == 0:
            return (1 + pair / (2 * half) if half > 0 else math.inf if pair else 1.0), math.inf
        root = math.sqrt(max(half**2 - known.c1 * pair, 0.0))
        high = (half + root) / known.c1
        return 1 + (pair / (half + root) if half + root > 0 else 0.0), 1 + high

    def frame(self) -> pd.DataFrame:
        """A row for each constant and for G*: name, value, low, high, se; NaN where there is none."""
        rows = [(n, getattr(self, n), *self.interval(n), self.se(n)) for n in self.NAMES]
        for kind in ("exact", "paper"):
            value = getattr(self, f"g_star_{kind}")
            ends = self.g_star_interval(kind)
            rows.append((f"g_star_{kind}", math.nan if value is None else value, *ends, math.nan))
        return pd.DataFrame(rows, columns=["name", "value", "low", "high", "se"])


def constants(pool: ScoredPool) -> ConstantsEstimate:
    """The constants behind MSE(G, B) = (1/B)(c1 + c2/G + c3/(G(G-1))) and G* (Theorem 7, group_size).

    Raises:
        InputError: one prompt only, or a pool without inner products between prompts.

    >>> pool = ScoredPool.from_scores(
    ...     [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0]],
    ...     [[[1.0], [-1.0], [1.0], [-1.0]], [[-1.0], [1.0], [1.0], [-1.0]]],
    ... )
    >>> found = constants(pool)
    >>> round(found.c2, 12), round(found.c3, 4), found.folds, found.unbounded
    (0.0625, 0.5208, 2, True)
    """
    moments = prompt_moments(pool)
    found = _with_mean_gradient(
        pool,
        moments,
        np.column_stack(
            [
                moments.norm_squared_advantage - moments.gradient_sq,
                moments.variance_trace + moments.gradient_sq,
                moments.norm_squared_reward - moments.gradient_sq,
            ]
        ),
    ).apply(lambda means: means[..., [3, 0, 1, 2]])
    c1, c2, c3, vanilla = (float(value) for value in found.full)
    return ConstantsEstimate(c1, c2, c3, vanilla, found.covariance, len(pool.fold_sizes), pool.size)


def ordering(
    pool: ScoredPool,
    group_size: int,
    baselines: Sequence[str] = _PAPER,
    *,
    constant: float | None = None,
    minimum_variance: str = "jackknife",
    permutations: int = 16,
    seed: int = 0,
) -> pd.DataFrame:
    """Which baseline has the larger MSE at a group size, pair by pair, by paired differences.

    The spread between prompts cancels, so the answer is the same in every design.

    Arguments:
        as for :func:`curves`.

    Returns:
        a row for each pair: first, second, difference (of the mean errors given the prompt, first
        less second), low, high, se, larger (the name, tie or open), paper (what the paper's
        reading vanilla > grpo > oracle says is larger; none where it says nothing) and reading
        (holds, fails, tie, open or none).

    >>> pool = ScoredPool.from_scores([[1.0, 0.0, 0.0, 0.0]], [[[1.0], [-1.0], [1.0], [-1.0]]])
    >>> ordering(pool, 4)[["first", "second", "larger", "paper"]].values.tolist()[0]
    ['vanilla', 'grpo', 'open', 'vanilla']
    """
    names = _names(baselines, constant)
    if len(set(names)) < max(2, len(names)):
        raise InputError(f"baselines are {names}: at least two different ones are needed")
    sizes = [integer("group size", group_size)]
    moments = prompt_moments(pool)
    errors = _errors(pool, moments, names, sizes, constant, minimum_variance, permutations, seed)
    pairs = [(i, j) for i in range(len(names)) for j in range(i + 1, len(names))]
    found = _folded(pool.folds, np.stack([errors[i, 0] - errors[j, 0] for i, j in pairs], axis=1))
    low, high = found.interval()
    rows = []
    for place, (i, j) in enumerate(pairs):
        first, second = names[i], names[j]
        larger = "open"
        if low[place] > 0 or high[place] < 0:
            larger = first if low[place] > 0 else second
        elif low[place] == high[place] == 0:
            larger = "tie"
        paper = reading = "none"
        if first in _PAPER and second in _PAPER:
            paper = min(first, second, key=_PAPER.index)
            reading = "holds" if larger == paper else "fails"
            if larger in ("open", "tie"):
                reading = larger
        rows.append(
            (
                first,
                second,
                found.full[place],
                low[place],
                high[place],
                found.se[place],
                larger,
                paper,
                reading,
            )
        )
    columns = ["first", "second", "difference", "low", "high", "se", "larger", "paper", "reading"]
    return pd.DataFrame(rows, columns=columns)


def oracle_ratio(
    pool: ScoredPool,
    group_sizes: Sequence[int],
    *,
    design: str = "prompt",
    permutations: int = 16,
    seed: int = 0,
) -> pd.DataFrame:
    """MSE of grpo over MSE of the oracle (Corollary 4, oracle), predicted and from groups.

    Predicted from moments, 1 + (φ + ‖g‖²) / ((G-1)(τ - ‖g‖²)), in the design iid
    1 + c3 / ((G-1)(G c1 + c2)); and measured, with grpo's error taken from random groups of the pool,
    which does not use Theorem 2. Both are ratios of unbiased estimates, so biased by a term of
    order 1/P. Intervals are of the logarithm.

    Arguments:
        group_sizes: G >= 2; the measured ratio is NaN above N.
        design: prompt (fixed is the same) or iid.
        permutations, seed: see :func:`group_errors`.

    Returns:
        a row for each group size: group_size, predicted, low, high, measured, measured_low,
        measured_high, sample_price (G/(G-1), what it is where one sample is the price).
    """
    sizes = _sizes(group_sizes)
    if min(sizes) < 2:
        raise InputError(f"group size is {min(sizes)}: leave-one-out needs at least 2")
    _scale(pool, design, 1)
    moments = prompt_moments(pool)
    both = _errors(pool, moments, ["grpo", "oracle"], sizes, None, "plug-in", 1, seed)
    inside = [size for size in sizes if size <= pool.rollouts]
    drawn = np.full((len(sizes), pool.size), np.nan)
    if inside:
        places = [size <= pool.rollouts for size in sizes]
        drawn[places] = group_errors(pool, ["grpo"], inside, permutations=permutations, seed=seed)[
            0
        ]
    columns = np.concatenate([both[0], drawn, both[1]]).T
    if design == "iid":
        found = _with_mean_gradient(pool, moments, columns).apply(
            lambda means: means[..., :-1] + means[..., -1:]
        )
    else:
        found = _folded(pool.folds, columns)

    def logs(means: Array) -> Array:
        top, measured, below = np.split(means, 3, axis=-1)
        whole = np.concatenate([top, measured], axis=-1)
        under = np.concatenate([below, below], axis=-1)
        good = (whole > 0) & (under > 0)
        return np.where(
            good, np.log(np.where(good, whole, 1.0)) - np.log(np.where(good, under, 1.0)), np.nan
        )

    ratio = found.apply(logs)
    low, high = ratio.interval()
    known = np.isfinite(ratio.full)
    middle = np.where(known, np.exp(np.where(known, ratio.full, 0.0)), np.nan)
    ends = [np.where(known, np.exp(np.where(known, end, 0.0)), np.nan) for end in (low, high)]
    count = len(sizes)
    return pd.DataFrame(
        {
            "group_size": sizes,
            "predicted": middle[:count],
            "low": ends[0][:count],
            "high": ends[1][:count],
            "measured": middle[count:],
            "measured_low": ends[0][count:],
            "measured_high": ends[1][count:],
            "sample_price": [size / (size - 1) for size in sizes],
        }
    )


def zero_signal(
    rewards: ScoredPool | ArrayLike, group_sizes: Sequence[int], folds: ArrayLike | None = None
) -> pd.DataFrame:
    """The share of groups whose rewards are all equal, so that they teach nothing.

    Σ_v C(n_v, G)/C(N, G) for prompts with n_v rewards equal to v: unbiased up to G = N. Above, the
    plug-in Σ_v (n_v/N)^G, which is biased.

    Arguments:
        rewards: a scored pool, or rewards alone (P, N).
        group_sizes: G >= 1.
        folds: (P,), with rewards alone; None for a fold for each prompt.

    Returns:
        a row for each group size: group_size, share, low, high, se, biased.

    >>> zero_signal([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]], [2, 8]).share.round(4).tolist()
    [0.75, 0.5501]
    """
    sizes = _sizes(group_sizes)
    if isinstance(rewards, ScoredPool):
        if folds is not None:
            raise InputError("a scored pool has folds of its own: give none")
        table, labels = rewards.rewards, rewards.folds
    else:
        table = finite_array("rewards", rewards, 2)
        labels = np.arange(len(table)) if folds is None else np.asarray(folds)
        if labels.shape != (len(table),) or labels.dtype.kind not in "iu" or labels.min() < 0:
            raise InputError(
                f"folds have shape {labels.shape}: one whole number a prompt is needed"
            )
        labels = np.unique(labels, return_inverse=True)[1]
    count = table.shape[1]
    # n of the value of each rollout; summing over rollouts counts a value n times.
    same = (table[:, :, None] == table[:, None, :]).sum(axis=2).astype(np.float64)
    shares = np.empty((len(table), len(sizes)))
    for place, size in enumerate(sizes):
        if size > count:
            shares[:, place] = ((same / count) ** size / same).sum(axis=1)
            continue
        enough = same >= size
        many = np.where(enough, same, size)
        log = gammaln(many + 1) - gammaln(many - size + 1)
        log -= gammaln(count + 1) - gammaln(count - size + 1)
        shares[:, place] = np.where(enough, np.exp(log) / same, 0.0).sum(axis=1)
    found = _folded(labels, shares)
    low, high = found.interval()
    return pd.DataFrame(
        {
            "group_size": sizes,
            "share": found.full,
            "low": np.clip(low, 0.0, 1.0),
            "high": np.clip(high, 0.0, 1.0),
            "se": found.se,
            "biased": [size > count for size in sizes],
        }
    )


def prompt_table(pool: ScoredPool) -> pd.DataFrame:
    """A row for each prompt: its moments, b*, corr(‖s‖², z), and whether oracle beats vanilla.

    b* = E[‖s‖² z]/E‖s‖² is a ratio (biased by order 1/N; V where all scores are 0), the correlation is
    NaN where rewards or norms are all equal. Whether the oracle beats vanilla is the sign of an unbiased
    estimate of the difference, 1 or 0 and not a proof; it is NaN where all rewards are equal, which
    says nothing of it.
    """
    found = prompt_moments(pool)
    norms = pool.squared_norms
    moving = found.fisher_trace > 0
    best = np.where(
        moving, found.norm_reward / np.where(moving, found.fisher_trace, 1.0), found.value
    )
    apart = norms - norms.mean(axis=1, keepdims=True)
    centred = leave_one_out(pool.rewards)
    width = np.sqrt((apart**2).sum(axis=1) * (centred**2).sum(axis=1))
    varied = (np.ptp(norms, axis=1) > _TIE * norms.max(axis=1)) & (np.ptp(pool.rewards, axis=1) > 0)
    product = (apart * centred).sum(axis=1)
    correlation = np.where(varied, product / np.where(varied, width, 1.0), np.nan)
    gain = found.norm_squared_reward - found.norm_squared_advantage
    return pd.DataFrame(
        {
            "prompt": pool.prompts,
            "value": found.value,
            "reward_variance": found.reward_variance,
            "fisher_trace": found.fisher_trace,
            "gradient_sq": found.gradient_sq,
            "norm_squared_advantage": found.norm_squared_advantage,
            "variance_trace": found.variance_trace,
            "optimal_baseline": best,
            "correlation": correlation,
            "oracle_beats_vanilla": np.where(
                np.ptp(pool.rewards, axis=1) > 0,
                gain > _TIE * np.abs(found.norm_squared_reward),
                np.nan,
            ),
        }
    )


def summary(pool: ScoredPool) -> pd.DataFrame:
    """What the pool says in a few numbers, with 95% intervals.

    pass_rate E V; reward_variance E σ²; fisher_trace E tr F; gradient_sq E‖g(X)‖²; correlation of ‖s‖²
    and z within prompts, E cov / √(E var E var); optimal_baseline, E[‖s‖² z]/E tr F, the best constant of
    all prompts; best_less_value, E[‖s‖² a]/E tr F, that less the value so weighted (0 under
    Assumption 2); mixed, the share of prompts whose rewards are not all equal; oracle_beats_vanilla, its
    share of the mixed prompts by :func:`prompt_table`, drawn towards a half by sampling errors.

    Returns:
        a row for each: name, value, low, high, se, biased.
    """
    found, table = prompt_moments(pool), prompt_table(pool)
    norms, count = pool.squared_norms, pool.rollouts
    apart = norms - norms.mean(axis=1, keepdims=True)
    columns = np.column_stack(
        [
            found.value,
            found.reward_variance,
            found.fisher_trace,
            found.gradient_sq,
            found.norm_reward,
            table["oracle_beats_vanilla"].fillna(0.0),
            table["oracle_beats_vanilla"].notna().astype(float),
            found.norm_advantage,
            (apart**2).sum(axis=1) / (count - 1),
        ]
    )

    def quantities(means: Array) -> Array:
        parts = np.moveaxis(means, -1, 0)
        value, variance, trace, gradient, reward, better, mixed, product, spread = parts
        width = np.sqrt(np.maximum(spread * variance, 0.0))
        wide, moving = width > 0, trace > 0
        correlation = np.where(wide, product / np.where(wide, width, 1.0), np.nan)
        below = np.where(moving, trace, 1.0)
        best, gap = np.where(moving, reward / below, value), np.where(moving, product / below, 0.0)
        share = np.where(mixed > 0, better / np.where(mixed > 0, mixed, 1.0), np.nan)
        columns = [value, variance, trace, gradient, correlation, best, gap, mixed, share]
        return np.stack(columns, axis=-1)

    known = _folded(pool.folds, columns).apply(quantities)
    low, high = known.interval()
    names: dict[str, Any] = {
        "pass_rate": False,
        "reward_variance": False,
        "fisher_trace": False,
        "gradient_sq": False,
        "correlation": True,
        "optimal_baseline": True,
        "best_less_value": True,
        "mixed": False,
        "oracle_beats_vanilla": True,
    }
    return pd.DataFrame(
        {
            "name": list(names),
            "value": known.full,
            "low": low,
            "high": high,
            "se": known.se,
            "biased": list(names.values()),
        }
    )
