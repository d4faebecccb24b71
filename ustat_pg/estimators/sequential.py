"""Leave-one-out advantages of groups with a size that depends on their rewards (adaptive_groups).

If a plan looks at the rewards, the mean of the other drawn rewards is not an unbiased baseline. The kernel ½
(s₁ - s₂)(z₁ - z₂) of the first two outputs is unbiased under every plan that draws at least two. So is its
mean over all orders of the outputs for which the plan stops at the same place (Rao and Blackwell; for
binomial plans Girshick, Mosteller and Savage 1946):

    ĝ = ½ Σᵥᵤ P(v, u) (s̄ᵥ - s̄ᵤ)(v - u),    P(v, u) the share of those orders that begin with the
                                              rewards v and u, s̄ᵥ the mean score of outputs with reward v

For a plan that never looks this is grpo.
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
"""The rewards of a group in increasing order, with the number of outputs of each."""

MOST_ORDERS = 200_000
"""The largest number of orders of a group's rewards that are enumerated."""


def two_stage(rewards: Array, *, pilot: int, trigger: str | Trigger = "mixed") -> Array:
    """Unbiased advantages for a pilot of n₁ outputs, with more outputs only if the pilot's rewards trigger
    them.

    A group of n₁ has grpo's advantages. A larger group has the mean of grpo's advantages over all n₁-subsets
    of its outputs that would trigger more outputs. If the trigger is unequal rewards, this is grpo of the
    whole group divided by the share of such subsets, 1 - Σᵥ C(nᵥ, n₁)/C(n, n₁). It is unbiased for every
    trigger and every reward (adaptive_groups).

    Arguments:
        rewards: (..., n), the pilot first; n = n₁ or larger.
        pilot: n₁ >= 2.
        trigger: ``mixed``, or a function of the pilot's rewards, (n₁,) in increasing order, that returns
            whether more are drawn; it must not be random.

    Returns:
        advantages (..., n); ĝ = (1/n) Σᵢ sᵢ Aᵢ.

    Raises:
        InputError: rewards are not finite, there are fewer than n₁, or the pilot of a larger group would not
            trigger more; or a function has too many kinds of pilots.

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
        raise InputError(f"rewards have groups of {size}, but the pilot has {first}")

    @cache
    def by_counts(counts: Counts) -> Floats:
        if size == first or goes_on is _mixed:
            return _mixed_subsets(counts, first)
        return _mean_over_subsets(counts, first, goes_on)

    def weigh(row: Floats, counts: Counts) -> Floats:
        if size > first and not goes_on(np.sort(row[:first])):
            raise InputError(
                f"a group of {size} has a pilot with rewards {row[:first].tolist()}, which does "
                f"not trigger more outputs: give outputs in the order in which they were drawn"
            )
        return by_counts(counts)

    return _by_reward(xp, rewards, weigh)


def sequential(rewards: Array, *, plan: str | Plan | Trigger) -> Array:
    """Unbiased advantages under any sampling plan: the kernel of the first two outputs, averaged over all
    orders for which the plan stops at the same place.

    Rewards 0 and 1 under a :class:`~ustat_pg.sampling.plans.Plan` need only numbers of paths: m(t) = share of
    paths that begin with a success and a failure, ĝ = m(t) (mean score of successes - mean score of
    failures).

    Arguments:
        rewards: (..., n) in the drawn order.
        plan: a plan or its words, for rewards 0 and 1; or, for any rewards, a function of the rewards so far,
            (m,) with m = 2, 3, ..., that returns whether to stop.

    Returns:
        advantages (..., n); ĝ = (1/n) Σᵢ sᵢ Aᵢ.

    Raises:
        InputError: rewards are not finite, or not 0 and 1 under a plan; the plan does not stop at a group, or
            may stop at one output; or there are too many orders.

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
                f"rewards hold {[reward for reward, _ in counts]}: a plan by counts needs 0 and "
                f"1; give a function of the rewards, or use two_stage"
            )
        mean = by_counts.kernel_mean(row) * len(row)
        return np.array([(mean if reward else -mean) / n for reward, n in counts])

    return _by_reward(xp, rewards, weigh)


def balanced(rewards: Array, *, outputs: int, divisor: str = "none") -> Array:
    """A sub-sample with equal numbers of successes and failures, centred at the mean of all drawn rewards.

    The first outputs/2 successes and failures are used, or more of one kind if the other has too few; Aᵢ =
    (zᵢ - p̂)/divisor, where p̂ is the mean of all n rewards, and 0 for unused outputs. Reinforce-Ada trains
    on this. It is biased; adaptive_groups gives its objective.

    Arguments:
        rewards: (..., n), 0 and 1, n at least the outputs used.
        outputs: the size of the sub-sample, even.
        divisor: ``none``; ``rate``, p̂; or ``std``, the deviation of all n rewards with ddof 1.

    Returns:
        advantages (..., n), n/outputs times as large: ĝ = (1/n) Σᵢ sᵢ Aᵢ is the sub-sample's mean.

    Raises:
        InputError: rewards are not 0 and 1, there are fewer than the used outputs, or the divisor is unknown.

    >>> import numpy as np
    >>> balanced(np.array([0.0, 1.0, 0.0, 0.0]), outputs=2).round(4)
    array([-0.5,  1.5,  0. ,  0. ])
    """
    used = integer("outputs", outputs, 2)
    if used % 2:
        raise InputError(f"outputs is {used}: a balanced sub-sample needs an even number")
    one_of("divisor", divisor, ("none", "rate", "std"))
    xp, rewards = rewards_of(rewards, "grpo")
    size = rewards.shape[-1]
    if size < used or not bool(xp.all((rewards == 0) | (rewards == 1))):
        raise InputError(
            f"a balanced sub-sample needs at least {used} outputs, with rewards 0 and 1"
        )
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
    """Advantages that depend on an output's reward and on the counts of rewards in its group."""
    try:
        host = np.asarray(np.from_dlpack(rewards), dtype=np.float64)
    except (BufferError, RuntimeError, TypeError):
        # For arrays on a GPU; to_device knows each library's name of the host.
        host = np.asarray(np.from_dlpack(to_device(rewards, "cpu")), dtype=np.float64)
    groups, place = np.unique(host.reshape(-1, host.shape[-1]), axis=0, return_inverse=True)
    advantages = np.empty(groups.shape)
    for row, group in enumerate(groups):
        values, index, numbers = np.unique(group, return_inverse=True, return_counts=True)
        counts = tuple(zip(values.tolist(), numbers.tolist(), strict=True))
        # Adding 0 removes -0.
        advantages[row] = weigh(group, counts)[index] + 0.0
    advantages = advantages[place].reshape(host.shape)
    if isinstance(rewards, np.ndarray):
        return advantages.astype(rewards.dtype)
    return xp.asarray(advantages.tolist(), dtype=rewards.dtype, device=device(rewards))


def _mixed_subsets(counts: Counts, first: int) -> Floats:
    """grpo's advantages by reward, divided by the share of subsets of n₁ outputs with unequal rewards; a
    pilot alone keeps grpo's advantages.
    """
    rewards, numbers = np.array([reward for reward, _ in counts]), [n for _, n in counts]
    size, total = sum(numbers), float(rewards @ np.array(numbers))
    advantages = rewards - (total - rewards) / (size - 1)
    if size == first:
        return advantages
    silent, every = sum(comb(n, first) for n in numbers), comb(size, first)
    return np.asarray(advantages * (every / (every - silent)))


def _mean_over_subsets(counts: Counts, first: int, goes_on: Trigger) -> Floats:
    """The mean of grpo's advantages over the subsets of n₁ outputs that trigger more, by reward."""
    rewards, numbers = np.array([reward for reward, _ in counts]), [n for _, n in counts]
    total, sums = 0, np.zeros(len(counts))
    for chosen in _compositions(numbers, first):
        subset = np.repeat(rewards, chosen)
        if not goes_on(subset):
            continue
        ways = prod(comb(n, c) for n, c in zip(numbers, chosen, strict=True))
        total += ways
        others = (subset.sum() - rewards) / (first - 1)
        # Each of n equal outputs is in the subset with chance c/n.
        sums += float(ways) * np.array(chosen) / np.array(numbers) * (rewards - others)
    if not total:
        raise InputError(
            f"no {first} outputs of a group with rewards {rewards.tolist()} trigger more"
        )
    return sums / total * (sum(numbers) / first)


def _compositions(numbers: list[int], total: int) -> Iterator[tuple[int, ...]]:
    """The ways to choose that many outputs, as counts of each reward."""
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
            f"a group of {size} has {orders} orders of its rewards: at most {MOST_ORDERS} can be "
            f"enumerated; rewards 0 and 1 under a Plan need no orders"
        )
    starts = np.zeros((len(counts), len(counts)))

    def follow(order: list[int], left: list[int]) -> int:
        """The number of continuations that stop when all outputs are drawn."""
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
