"""Leave-one-out advantages of groups whose size depends on the rewards seen (adaptive_groups).

Once a plan has looked at the rewards, the mean of the other rewards of what was drawn is no unbiased
baseline. The kernel ½ (s₁ - s₂)(z₁ - z₂) of the first two outputs is unbiased under every plan that
draws two, and so is its mean over all orders of the outputs in which the plan would have stopped where
it did (Rao and Blackwell; for binomial plans Girshick, Mosteller and Savage 1946):

    ĝ = ½ Σᵥᵤ P(v, u) (s̄ᵥ - s̄ᵤ)(v - u),    P(v, u) the share of those orders that begin with the
                                              rewards v and u, s̄ᵥ the mean score of outputs with reward v

A plan that never looks gives grpo back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import product
from math import comb, factorial, prod
from typing import Any

import numpy as np
from array_api_compat import device, to_device
from numpy.typing import NDArray

from ..sampling.plans import Plan
from ..validation import InputError, integer, one_of
from .arrays import Array, rewards_of

Floats = NDArray[np.float64]
Trigger = Callable[[Floats], bool]
Counts = tuple[tuple[float, int], ...]
"""The rewards of a group, increasing, and how many outputs have each."""

MOST_ORDERS = 200_000
"""The most orders of a group's rewards that are gone through."""


def two_stage(rewards: Array, *, pilot: int, trigger: str | Trigger = "mixed") -> Array:
    """Unbiased advantages of a pilot of n₁ outputs, and more outputs only where its rewards ask for them.

    A group of n₁ was not asked for more: it has grpo's advantages. A larger one was, and has the mean of
    grpo's over all n₁-subsets of its outputs that would have asked for more. Where the trigger is
    rewards that are not all equal, that is grpo of the whole group over the share of such subsets,
    1 - Σᵥ C(nᵥ, n₁)/C(n, n₁). Unbiased for every trigger and every reward (adaptive_groups).

    Arguments:
        rewards: (..., n), the pilot first; n = n₁ or larger.
        pilot: n₁ >= 2.
        trigger: ``mixed``, or a function of the pilot's rewards, (n₁,) in increasing order, that says
            whether more were drawn; it must not draw lots.

    Returns:
        advantages (..., n); ĝ = (1/n) Σᵢ sᵢ Aᵢ.

    Raises:
        InputError: rewards that are not finite, fewer than n₁, or whose pilot would not have asked
            for more; more kinds of pilots than a function is called on.

    >>> import numpy as np
    >>> two_stage(np.array([1.0, 0.0, 0.0, 1.0, 0.0]), pilot=3).round(4)
    array([ 0.8333, -0.5556, -0.5556,  0.8333, -0.5556])
    >>> two_stage(np.array([0.0, 0.0, 0.0]), pilot=3)
    array([0., 0., 0.])
    """
    first = integer("pilot", pilot, 2)
    goes_on = _mixed if isinstance(trigger, str) and trigger == "mixed" else trigger
    if not callable(goes_on):
        raise InputError(f"trigger is {trigger!r}: it must be 'mixed' or a function of rewards")
    xp, rewards = rewards_of(rewards, "grpo")
    size = rewards.shape[-1]
    if size < first:
        raise InputError(f"rewards have groups of {size}: the pilot alone has {first}")

    @cache
    def by_counts(counts: Counts) -> Floats:
        if size == first or goes_on is _mixed:
            return _mixed_subsets(counts, first)
        return _mean_over_subsets(counts, first, goes_on)

    def weigh(row: Floats, counts: Counts) -> Floats:
        if size > first and not goes_on(np.sort(row[:first])):
            raise InputError(
                f"a group of {size} has a pilot of rewards {row[:first].tolist()}, which would not have "
                "asked for more: give groups in the order they were drawn"
            )
        return by_counts(counts)

    return _by_reward(xp, rewards, weigh)


def sequential(rewards: Array, *, plan: str | Plan | Trigger) -> Array:
    """Unbiased advantages under any plan of sampling: the kernel of the first two outputs, averaged over
    all orders in which the plan would have stopped where it did.

    Rewards 0 and 1 under a :class:`~ustat_pg.sampling.plans.Plan` need numbers of paths alone: m(t) = paths
    that begin with a success and a failure over all, ĝ = m(t) (mean score of successes - of failures).

    Arguments:
        rewards: (..., n) in the order drawn.
        plan: a plan or its words, for rewards 0 and 1; or, for any rewards, a function of the rewards so
            far, (m,) with m = 2, 3, ..., that says whether to stop.

    Returns:
        advantages (..., n); ĝ = (1/n) Σᵢ sᵢ Aᵢ.

    Raises:
        InputError: rewards that are not finite, or not 0 and 1 under a plan; a group at which the plan
            does not stop; a plan that may stop at one output; or too many orders.

    >>> import numpy as np
    >>> sequential(np.array([0.0, 0.0, 1.0, 0.0]), plan="2..8 until 1 success and 1 failure")
    Traceback (most recent call last):
    ...
    ustat_pg.validation.InputError: plan '2..8 until 1 success and 1 failure' stops at 3 outputs with ...
    >>> sequential(np.array([0.0, 0.0, 1.0]), plan="2..8 until 1 success and 1 failure")
    array([0., 0., 0.])
    >>> sequential(np.array([0.0, 0.0, 1.0]), plan=lambda z: len(z) == 3)
    array([-0.5, -0.5,  1. ])
    """
    xp, rewards = rewards_of(rewards, "grpo")
    if callable(plan):
        stop = plan
        over_orders = cache(partial(_over_orders, stop))

        def of_orders(row: Floats, counts: Counts) -> Floats:
            if any(bool(stop(row[:m])) != (m == len(row)) for m in range(2, len(row) + 1)):
                raise InputError(
                    f"the plan does not stop after the rewards {row.tolist()}, or stops before their end"
                )
            return over_orders(counts)

        return _by_reward(xp, rewards, of_orders)
    by_counts = Plan.parse(plan)
    by_counts.require_two()

    def weigh(row: Floats, counts: Counts) -> Floats:
        if not {reward for reward, _ in counts} <= {0.0, 1.0}:
            raise InputError(
                f"rewards hold {[reward for reward, _ in counts]}: a plan by counts takes 0 and 1; give "
                "a function of the rewards, or take two_stage"
            )
        mean = by_counts.kernel_mean(row) * len(row)
        return np.array([(mean if reward else -mean) / n for reward, n in counts])

    return _by_reward(xp, rewards, weigh)


def balanced(rewards: Array, *, outputs: int, divisor: str = "none") -> Array:
    """A sub-sample of successes and failures in equal numbers, centred at the mean of all that were drawn.

    The first outputs/2 successes and failures are used, more of one kind where the other is short;
    Aᵢ = (zᵢ - p̂)/divisor, p̂ the mean of all n rewards, and 0 for outputs that are not used. What
    Reinforce-Ada trains on. Biased: what it climbs is in adaptive_groups.

    Arguments:
        rewards: (..., n), 0 and 1, n at least the outputs used.
        outputs: the size of the sub-sample, even.
        divisor: ``none``; ``rate``, p̂; or ``std``, the deviation of all n rewards with ddof 1.

    Returns:
        advantages (..., n), n/outputs times as large: ĝ = (1/n) Σᵢ sᵢ Aᵢ is the sub-sample's mean.

    Raises:
        InputError: rewards that are not 0 and 1, fewer than the outputs used, or another divisor.

    >>> import numpy as np
    >>> balanced(np.array([0.0, 1.0, 0.0, 0.0]), outputs=2).round(4)
    array([-0.5,  1.5,  0. ,  0. ])
    """
    used = integer("outputs", outputs, 2)
    if used % 2:
        raise InputError(f"outputs is {used}: a balanced sub-sample has halves of equal number")
    one_of("divisor", divisor, ("none", "rate", "std"))
    xp, rewards = rewards_of(rewards, "grpo")
    size = rewards.shape[-1]
    if size < used or not bool(xp.all((rewards == 0) | (rewards == 1))):
        raise InputError(f"a balanced sub-sample takes {used} outputs or more with rewards 0 and 1")
    number = xp.sum(rewards, axis=-1, keepdims=True)
    mean = number / size
    successes = xp.clip(number, max=xp.clip(used - size + number, min=used // 2))
    place = xp.cumulative_sum(rewards, axis=-1)
    other = xp.cumulative_sum(1 - rewards, axis=-1)
    kept = xp.where(rewards == 1, place <= successes, other <= used - successes)
    mixed = (number > 0) & (number < size)
    by = {
        "none": xp.ones_like(mean),
        "rate": mean,
        "std": xp.sqrt(mean * (1 - mean) * (size / (size - 1))),
    }[divisor]
    advantages = (rewards - mean) / xp.where(mixed, by, xp.ones_like(by)) * (size / used)
    return xp.where(kept & mixed, advantages, xp.zeros_like(advantages))


def _mixed(pilot: Floats) -> bool:
    return bool(pilot[0] != pilot[-1])


def _by_reward(xp: Any, rewards: Array, weigh: Callable[[Floats, Counts], Floats]) -> Array:
    """Advantages that depend on an output's reward and on how often each reward occurs in its group."""
    try:
        host = np.asarray(np.from_dlpack(rewards), dtype=np.float64)
    except (BufferError, RuntimeError, TypeError):
        # On a GPU; to_device knows each library's own name of the host.
        host = np.asarray(np.from_dlpack(to_device(rewards, "cpu")), dtype=np.float64)
    groups, place = np.unique(host.reshape(-1, host.shape[-1]), axis=0, return_inverse=True)
    advantages = np.empty(groups.shape)
    for row, group in enumerate(groups):
        values, index, numbers = np.unique(group, return_inverse=True, return_counts=True)
        counts = tuple(zip(values.tolist(), numbers.tolist(), strict=True))
        # Adding 0 leaves no -0.
        advantages[row] = weigh(group, counts)[index] + 0.0
    advantages = advantages[place].reshape(host.shape)
    if isinstance(rewards, np.ndarray):
        return advantages.astype(rewards.dtype)
    return xp.asarray(advantages.tolist(), dtype=rewards.dtype, device=device(rewards))


def _mixed_subsets(counts: Counts, first: int) -> Floats:
    """Grpo's advantages over the share of subsets of n₁ outputs that are not all equal, by reward; those of a
    pilot alone as they are.
    """
    rewards, numbers = np.array([reward for reward, _ in counts]), [n for _, n in counts]
    size, total = sum(numbers), float(rewards @ np.array(numbers))
    advantages = rewards - (total - rewards) / (size - 1)
    if size == first:
        return advantages
    silent, every = sum(comb(n, first) for n in numbers), comb(size, first)
    return np.asarray(advantages * (every / (every - silent)))


def _mean_over_subsets(counts: Counts, first: int, goes_on: Trigger) -> Floats:
    """The mean of grpo's advantages over the subsets of n₁ outputs that ask for more, by reward."""
    rewards, numbers = np.array([reward for reward, _ in counts]), [n for _, n in counts]
    total, sums = 0, np.zeros(len(counts))
    for chosen in _compositions(numbers, first):
        subset = np.repeat(rewards, chosen)
        if not goes_on(subset):
            continue
        ways = prod(comb(n, c) for n, c in zip(numbers, chosen, strict=True))
        total += ways
        others = (subset.sum() - rewards) / (first - 1)
        # One of n equal outputs is in the subset with chance c/n.
        sums += float(ways) * np.array(chosen) / np.array(numbers) * (rewards - others)
    if not total:
        raise InputError(
            f"no {first} outputs of a group with rewards {rewards.tolist()} would have asked for more"
        )
    return sums / total * (sum(numbers) / first)


def _compositions(numbers: list[int], total: int) -> Iterator[tuple[int, ...]]:
    """The ways to choose that many outputs, by how many of each reward."""
    ranges = [range(min(n, total) + 1) for n in numbers]
    if prod(map(len, ranges)) > MOST_ORDERS:
        raise InputError(
            f"{sum(numbers)} outputs with {len(numbers)} different rewards have more than {MOST_ORDERS} "
            "kinds of pilots"
        )
    return (chosen for chosen in product(*ranges) if sum(chosen) == total)


def _over_orders(stop: Trigger, counts: Counts) -> Floats:
    """The kernel of the first two outputs, averaged over the orders of the rewards, by reward."""
    rewards, numbers = np.array([reward for reward, _ in counts]), [n for _, n in counts]
    size = sum(numbers)
    orders = factorial(size) // prod(map(factorial, numbers))
    if orders > MOST_ORDERS:
        raise InputError(
            f"a group of {size} has {orders} orders of its rewards: at most {MOST_ORDERS} are gone "
            "through; rewards 0 and 1 under a Plan need none"
        )
    starts = np.zeros((len(counts), len(counts)))

    def follow(order: list[int], left: list[int]) -> int:
        """The number of orders that go on from here and stop with all outputs drawn."""
        drawn = len(order)
        if drawn >= 2 and bool(stop(rewards[order])) != (drawn == size):
            return 0
        if drawn == size:
            return 1
        number = 0
        for kind in [kind for kind, count in enumerate(left) if count]:
            left[kind] -= 1
            further = follow([*order, kind], left)
            left[kind] += 1
            number += further
            if drawn == 1:
                starts[order[0], kind] += further
        return number

    total = follow([], numbers)
    gaps = np.subtract.outer(rewards, rewards)
    return np.asarray(
        ((starts + starts.T) * gaps).sum(axis=1) * size / (2 * total * np.array(numbers))
    )
