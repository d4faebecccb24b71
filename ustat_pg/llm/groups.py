"""Errors of baselines that weight rollouts: over random groups of a pool, and at the best constant.

Two things are not linear in moments: the error of a weighted leave-one-out baseline, a mean over groups
that is taken over random groups of the pool (an incomplete U-statistic: unbiased, for groups that the
pool can fill), and that at the best constant b*, a ratio of moments.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..validation import InputError, integer, one_of
from .scored import ScoredPool, address

__all__ = ["WEIGHTED", "at_best_constant", "group_errors"]

Array = NDArray[np.float64]

WEIGHTED = ("norm-weighted", "length-weighted", "token-weighted")
"""Leave-one-out means with weights ‖s‖², the length, and verl's token proxy."""
_ENTRIES = 4_000_000
"""Entries of Gram matrices that are rearranged at once."""


def _leave_out_ratio(weights: Array, rewards: Array) -> Array:
    """Σ_{j≠i} w_j z_j / Σ_{j≠i} w_j along the last axis; 0 where all other weights are 0."""
    # Sums over the others, not total minus own, which would be rounding where one dwarfs the rest.
    apart = 1 - np.eye(rewards.shape[-1])
    weight, weighted = weights @ apart, (weights * rewards) @ apart
    empty = weight == 0
    return np.where(empty, 0.0, weighted / np.where(empty, 1.0, weight))


def at_best_constant(pool: ScoredPool) -> Array:
    """E[‖s‖² (z - b*)²] of each prompt, (P,).

    With b* of the same rollouts it is too low by a term of order 1/N, which a jackknife takes off.
    """
    z, norms, count = pool.rewards, pool.squared_norms, pool.rollouts
    total = norms.sum(axis=1, keepdims=True)
    best = (norms * z).sum(axis=1, keepdims=True) / np.where(total > 0, total, 1.0)
    plug_in = (norms * (z - best) ** 2).sum(axis=1) / count
    # Without rollout k the weighted sum of squares about its own best constant falls by
    # q_k (z_k - b)² T / (T - q_k), T the total weight.
    drop = norms * (z - best) ** 2
    left = total - norms
    ratio = np.where(left > 0, total / np.where(left > 0, left, 1.0), 0.0)
    without = np.maximum(plug_in[:, None] * count - drop * ratio, 0.0) / (count - 1)
    return count * plug_in - (count - 1) * without.mean(axis=1)


def _streams(pool: ScoredPool, seed: int, permutations: int) -> NDArray[np.intp]:
    """Random orders of the rollouts, (permutations, P, N), addressed by seed and prompt."""
    orders = np.empty((permutations, pool.size, pool.rollouts), dtype=np.intp)
    base = np.tile(np.arange(pool.rollouts), (permutations, 1))
    for x, name in enumerate(pool.prompts):
        orders[:, x] = np.random.default_rng([seed, address(name)]).permuted(base, axis=1)
    return orders


def group_errors(
    pool: ScoredPool,
    baselines: Sequence[str],
    group_sizes: Sequence[int],
    *,
    permutations: int = 16,
    seed: int = 0,
) -> Array:
    """E‖ĝ‖² - ‖g‖² of weighted baselines, from random groups of the pool.

    Each permutation of a prompt's rollouts is cut into ⌊N/G⌋ groups, which are i.i.d. rollouts of the
    policy, so the mean of ‖ĝ‖² = 1/G² Σ_ij A_i A_j K_ij over them is unbiased: an incomplete
    U-statistic of order G. All baselines and group sizes share the permutations. What is taken off is
    ‖g‖² from pairs of the pool whose rewards are centred as the baseline centres them, by the others
    of the pool: unbiased for any centre that looks at neither of the pair, and with nearly the noise
    that ‖ĝ‖² has, so that it cancels.

    Arguments:
        pool: of N rollouts.
        baselines: of :data:`WEIGHTED`.
        group_sizes: from 2 to N.
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
    names = [one_of("baseline", name, WEIGHTED) for name in baselines]
    sizes = [integer("group size", size) for size in group_sizes]
    if not names or not sizes:
        raise InputError("at least one baseline and one group size are needed")
    if min(sizes) < 2:
        raise InputError(f"group size is {min(sizes)}: leave-one-out needs at least 2")
    if max(sizes) > pool.rollouts:
        raise InputError(
            f"group size is {max(sizes)}: groups are drawn from the pool, which has "
            f"{pool.rollouts} rollouts a prompt; sample more, or take smaller groups"
        )
    if pool.gram is None:
        raise InputError(
            "this pool has no Gram matrices, of which errors of random groups are made: score it "
            "with memory for all completions of a prompt at once, or ask for baselines without weights"
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
            weights = {name: sources[name][part[:, None], order] for name in names}
            for place, size in enumerate(sizes):
                groups = pool.rollouts // size
                used, shape = groups * size, (len(part), groups, size)
                blocks = np.einsum(
                    "pgigj->pgij",
                    gram[:, :used, :used].reshape(len(part), groups, size, groups, size),
                )
                z = rewards[:, :used].reshape(shape)
                each = (weights[name][:, :used].reshape(shape) for name in names)
                stack = np.stack([z - _leave_out_ratio(own, z) for own in each], axis=-1)
                squares = (stack * (blocks @ stack)).sum(axis=2).mean(axis=1) / size**2
                total[:, place, part] += squares.T
    squares = np.stack([_pair_gradient_sq(pool, sources[name]) for name in names])
    return total / rounds - squares[:, None]


def _pair_gradient_sq(pool: ScoredPool, weights: Array) -> Array:
    """‖g‖² of each prompt from pairs i ≠ j, centred by the weighted mean of the others, (P,)."""
    z, count = pool.rewards, pool.rollouts
    assert pool.gram is not None
    total = np.zeros(pool.size)
    for i in range(count):
        rest = np.delete(np.arange(count), i)
        # Of rest each j has the weighted mean of those that are neither i nor j.
        centre = _leave_out_ratio(weights[:, rest], z[:, rest])
        total += (pool.gram[:, i, rest] * (z[:, [i]] - centre) * (z[:, rest] - centre)).sum(axis=1)
    return total / (count * (count - 1))
