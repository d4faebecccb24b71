"""The errors of weighted leave-one-out baselines, and of the best constant, at each prompt of a pool.

The error of a weighted baseline is grpo's error, which is known, plus the mean of their difference over
random groups of the pool (an incomplete U-statistic: unbiased, for groups that fit in the pool). In groups of
two they are the same estimator, so there is no random part.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...estimators import norm_weighted
from ...execution.memory import slices
from ...predictions.closed_forms import grpo_error, pair_noise
from ...registry import ESTIMATORS
from ...validation import Array, InputError
from .moments import PromptMoments, prompt_moments
from .scored import ScoredPool, address

WEIGHTED = (
    *(name for name, record in ESTIMATORS.items() if record.of_pools and record.within_rewards),
    "length-weighted",
    "token-weighted",
)
"""Leave-one-out means with weights ‖s‖², the length, and verl's token proxy."""
_ENTRIES = 4_000_000
"""The number of Gram matrices' entries that are rearranged at once."""
_ROUND, _MOST = 64, 2**12
"""The numbers of orders of a prompt's rollouts that are drawn at once, and in total."""
_OWN = 0.01
"""The largest relative error of a mean over random groups from the draw of groups."""


def at_best_constant(pool: ScoredPool) -> Array:
    """E[‖s‖² (z - b*)²] of each prompt, (P,).

    With b* from the same rollouts it is too low by a term of order 1/N, which a jackknife removes.
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


def group_errors(
    pool: ScoredPool,
    estimators: Sequence[str],
    group_sizes: Sequence[int],
    *,
    permutations: int | None = None,
    seed: int = 0,
) -> tuple[Array, Array]:
    """E‖ĝ‖² - ‖g‖² of weighted baselines, from random groups of the pool, and the errors of this drawing.

    Each permutation of a prompt's rollouts is cut into ⌊N/G⌋ groups, which are i.i.d. rollouts of the
    policy, so the mean of ‖ĝ‖² = 1/G² Σ_ij A_i A_j K_ij over them is unbiased: an incomplete
    U-statistic of order G. grpo's value on the same groups is subtracted, and its mean over all groups, a
    closed form, is added. The same is done with ‖g‖² from pairs of the pool: pairs with rewards centred as by
    the baseline minus pairs centred as by grpo. This difference is unbiased for 0 and has nearly the same
    noise as ‖ĝ‖²; it is weighted by (G-2)/(G-1), the share of a centre that comes from others than the pair.
    The permutations depend on the seed and on the prompt's name only.

    Arguments:
        permutations: number per prompt (default: enough for a relative error of 1% in the mean over prompts,
            at most 4,096).

    Returns:
        the errors at each prompt, (baselines, group sizes, P), and their standard errors from the
        permutations.

    >>> pool = ScoredPool.from_scores([[1.0, 0.0, 0.0, 0.0]], [[[1.0], [-1.0], [1.0], [-1.0]]])
    >>> errors, own = group_errors(pool, ["norm-weighted"], [2, 4])
    >>> errors.round(4).tolist(), own.round(4).tolist()
    ([[[0.25], [0.0903]]], [[[0.0], [0.0]]])
    """
    if min(group_sizes) < 2:
        raise too_small(min(group_sizes))
    if max(group_sizes) > pool.rollouts:
        raise too_large(max(group_sizes), pool)
    sources = {
        "norm-weighted": pool.squared_norms,
        "length-weighted": pool.lengths,
        "token-weighted": pool.token_proxy,
    }
    weights = np.stack([*(sources[name] for name in estimators), np.ones_like(pool.rewards)])
    pairs = np.stack([_pair_gradient_sq(pool, each) for each in weights])
    moments = prompt_moments(pool)
    known = np.stack(
        [
            grpo_errors(moments, size) - (size - 2) / (size - 1) * (pairs[:-1] - pairs[-1])
            for size in group_sizes
        ],
        axis=1,
    )
    draws = [np.random.default_rng([seed, address(name)]) for name in pool.prompts]
    most, done = permutations or _MOST, 0
    total = np.zeros((2, *known.shape))
    while done < most:
        count = min(_ROUND, most - done)
        base = np.tile(np.arange(pool.rollouts), (count, 1))
        orders = np.stack([draw.permuted(base, axis=1) for draw in draws])
        for part in slices(pool.size, _ENTRIES / (count * pool.rollouts**2)):
            for place, size in enumerate(group_sizes):
                apart = _apart(pool, weights[:, part], part, orders[part], size)
                total[:, :, place, part] += [apart.sum(axis=2), np.square(apart).sum(axis=2)]
        done += count
        mean = total[0] / done
        spread = np.maximum(total[1] / done - mean**2, 0.0) / max(done - 1, 1)
        own = np.sqrt(spread.sum(axis=-1)) / pool.size
        if permutations is None and (own <= _OWN * np.abs((known + mean).mean(axis=-1))).all():
            break
    return known + mean, np.sqrt(spread)


def _apart(
    pool: ScoredPool, weights: Array, part: slice, orders: NDArray[np.intp], size: int
) -> Array:
    """‖ĝ‖² minus that of the last weights, as means over the groups of each order, (baselines, p, orders)."""
    count = pool.rollouts // size
    groups = orders[..., : count * size].reshape(*orders.shape[:2], count, size)
    place = np.arange(len(orders))[:, None, None, None]
    z, chosen = pool.rewards[part][place, groups], weights[:, place, groups]
    blocks = pool.gram[part][place[..., None], groups[..., :, None], groups[..., None, :]]
    stack = np.stack([norm_weighted(z, squared_norms=each) for each in chosen], axis=-1)
    squares = (stack * (blocks @ stack)).sum(axis=3).mean(axis=2) / size**2
    return np.moveaxis(squares[..., :-1] - squares[..., -1:], -1, 0)


def grpo_errors(moments: PromptMoments, size: int) -> Array:
    """The error of grpo at each prompt, (P,)."""
    single = moments.norm_squared_advantage - moments.gradient_sq
    pair = pair_noise(1.0, moments.variance_trace, moments.gradient_sq)
    return np.asarray(grpo_error(size, single, pair))


def too_small(size: int) -> InputError:
    return InputError(f"group size is {size}: leave-one-out needs at least 2")


def _pair_gradient_sq(pool: ScoredPool, weights: Array) -> Array:
    """‖g‖² of each prompt from pairs i ≠ j, centred by the weighted mean of the others, (P,)."""
    z, count = pool.rewards, pool.rollouts
    total = np.zeros(pool.size)
    for i in range(count):
        rest = np.delete(np.arange(count), i)
        # Each j in rest has the weighted mean of those that are neither i nor j.
        apart = norm_weighted(z[:, rest], squared_norms=weights[:, rest])
        total += (pool.gram[:, i, rest] * (z[:, [i]] - z[:, rest] + apart) * apart).sum(axis=1)
    return total / (count * (count - 1))


ONE_MORE = "  and the mean of a biased table needs one more rollout"
"""The reason why groups of all rollouts are too large for ⟨E ĝ, g⟩."""


def too_large(size: int, pool: ScoredPool, more: str = "") -> InputError:
    """The error for groups that are larger than the pool."""
    return InputError(
        f"group size is {size}: groups are drawn from the pool, which has {pool.rollouts} "
        f"rollouts per prompt{more}; sample more, or take smaller groups"
    )
