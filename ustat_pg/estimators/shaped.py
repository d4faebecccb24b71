"""The estimators with an advantage that is not a reward minus a baseline: it is divided by the group's
deviation or mean, or comes from the greatest rewards of subsets. Their means differ from the gradient of the
expected reward (normalised, count_advantages). Frameworks ship all of them, some under the name of GRPO.

The deviation of equal rewards is exactly 0, without rounding errors, and such a group is silent: its
    advantages are 0. Each takes finite rewards (..., G) and returns advantages of their shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

from array_api_compat import device

from ..validation import InputError, finite_array, integer, number
from .arrays import Array, after, before, require, rewards_of, sum_of_others

__all__ = [
    "best",
    "count_table",
    "gain_at_k",
    "loo_table",
    "maxrl",
    "others_standardised",
    "pass_at_k",
    "standardised",
    "unbiased_std",
]


def standardised(rewards: Array, *, ddof: int = 0, epsilon: float = 0.0) -> Array:
    """Group mean and standard deviation: Aᵢ = (zᵢ - m) / (√(Σⱼ (zⱼ - m)²/(G - ddof)) + ε).

    Lemma 11 (normalised): the gradient is biased; it tends to that of Lemma 1 divided by the reward's
    standard deviation at the prompt. A group with equal rewards, or with one output, has advantages 0.

    Arguments:
        rewards: (..., G).
        ddof: number subtracted from G in the variance: 0 (open-instruct, rllm) or 1 (TRL, verl).
        epsilon: number added to the deviation; frameworks use 1e-4 to 1e-9.

    >>> import numpy as np
    >>> standardised(np.array([1.0, 0.0, 0.0, 0.0])).round(4)
    array([ 1.7321, -0.5774, -0.5774, -0.5774])
    >>> standardised(np.array([0.1, 0.1, 0.1]))
    array([0., 0., 0.])
    """
    if ddof not in (0, 1):
        raise InputError(f"ddof is {ddof!r}: it must be 0 or 1")
    epsilon = number("epsilon", epsilon, minimum=0.0)
    xp, rewards = rewards_of(rewards, "std")
    size = rewards.shape[-1]
    centred = rewards - xp.mean(rewards, axis=-1, keepdims=True)
    squares = xp.sum(centred**2, axis=-1, keepdims=True) / max(size - ddof, 1)
    low, high = xp.min(rewards, axis=-1, keepdims=True), xp.max(rewards, axis=-1, keepdims=True)
    return _divided(xp, centred, xp.sqrt(squares) + epsilon, low == high)


def unbiased_std(rewards: Array) -> Array:
    """``standardised`` with ddof = 1: √((G-1)/G) times that with ddof = 0.

    >>> import numpy as np
    >>> unbiased_std(np.array([1.0, 0.0])).round(4)
    array([ 0.7071, -0.7071])
    """
    return standardised(rewards, ddof=1)


def others_standardised(rewards: Array) -> Array:
    """Leave-one-out mean divided by the others' standard deviation (ddof = 1), or undivided if that is 0:
    NeMo-RL's default.

    The others of a single success have no spread, so its advantage is 1, but the failures of its group are
    divided. In a group of two it is grpo.

    >>> import numpy as np
    >>> others_standardised(np.array([1.0, 0.0, 0.0])).round(4)
    array([ 1.    , -0.7071, -0.7071])
    """
    xp, rewards = rewards_of(rewards, "others-std")
    size = rewards.shape[-1]
    # Rewards are centred at the middle reward, which is never far outside the others. So sums of squares lose
    # no digits to a common offset or to one very large reward.
    middle = xp.sort(rewards, axis=-1)[..., size // 2]
    shifted = rewards - xp.expand_dims(middle, axis=-1)
    total, squares = sum_of_others(xp, shifted), sum_of_others(xp, shifted**2)
    mean = total / (size - 1)
    spread = xp.where(xp.isfinite(squares), squares - total * mean, squares)
    variance = xp.where(spread > 0, spread / max(size - 2, 1), xp.ones_like(spread))
    return (shifted - mean) / xp.sqrt(variance)


def maxrl(rewards: Array) -> Array:
    """Group mean with division by the mean: Aᵢ = (zᵢ - m)/m, and 0 if the mean is not positive (MaxRL).

    Its mean climbs the expected log pass rate cut off at order G-1 (count_advantages).

    >>> import numpy as np
    >>> maxrl(np.array([1.0, 0.0, 0.0, 0.0]))
    array([ 3., -1., -1., -1.])
    """
    xp, rewards = rewards_of(rewards, "maxrl")
    mean = xp.mean(rewards, axis=-1, keepdims=True)
    return _divided(xp, rewards - mean, mean, mean <= 0)


def pass_at_k(rewards: Array, *, k: int) -> Array:
    """k times (the mean greatest reward of the k-subsets with output i, minus that of k-subsets without it).

    It is unbiased for the gradient of E max of k rewards, max@k, which is pass@k for rewards 0 and 1
    (count_advantages). If k < G its advantages add up to 0. The subtracted mean over subsets of min(k, G-1)
    others only changes the variance.

    Arguments:
        rewards: (..., G) with G >= k.
        k: the number of attempts, at least 1.

    >>> import numpy as np
    >>> pass_at_k(np.array([1.0, 0.0, 0.0, 0.0]), k=2).round(4)
    array([ 2.    , -0.6667, -0.6667, -0.6667])
    """
    attempts = integer("k", k)
    return _greatest(rewards, "pass-at-k", attempts, attempts)


def gain_at_k(rewards: Array, *, k: int) -> Array:
    """k times the mean gain of the greatest reward when output i joins k-1 of the others (PKPO's
    "leave one out minus one").

    It is unbiased for the gradient of E max of k rewards, as :func:`pass_at_k` is. Only the baseline
    differs: here it is the greatest of the same k-1 others. No advantage is below 0. At k = G both are equal.

    Arguments:
        rewards: (..., G) with G >= k.
        k: the number of attempts, at least 2.

    >>> import numpy as np
    >>> gain_at_k(np.array([1.0, 0.5, 0.0]), k=2)
    array([1.5, 0.5, 0. ])
    """
    attempts = integer("k", k, 2)
    return _greatest(rewards, "gain-at-k", attempts, attempts - 1)


def _greatest(rewards: Array, name: str, attempts: int, left_out: int) -> Array:
    """k times (the mean greatest reward of an output and k-1 others, minus that of ``left_out`` others)."""
    xp, rewards = rewards_of(rewards, name)
    size = rewards.shape[-1]
    if attempts > size:
        raise InputError(f"{name} needs a group of at least k = {attempts}: group size is {size}")

    order = xp.argsort(rewards, axis=-1)
    increasing = xp.take_along_axis(rewards, order, axis=-1)

    def chances(subset: int) -> tuple[Array, Array]:
        """The chance that a reward is the greatest of a subset of the others, for an output after it and for
        one before it in increasing order.
        """
        ways = [comb(j, subset - 1) / comb(size - 1, subset) for j in range(size - 1)]
        return tuple(
            xp.asarray(each, dtype=rewards.dtype, device=device(rewards))
            for each in ([*ways, 0.0], [0.0, *ways])
        )

    low, high = chances(min(left_out, size - 1))
    without = before(xp, increasing * low) + after(xp, increasing * high)
    with_own = increasing
    if attempts > 1:
        low, high = chances(attempts - 1)
        own = increasing * before(xp, low)
        with_own = own + after(xp, increasing * high)
    place = xp.argsort(order, axis=-1)
    return xp.take_along_axis(attempts * (with_own - without), place, axis=-1)


def count_table(rewards: Array, *, values: Sequence[float]) -> Array:
    """A table by the number n of successes in the group: Aᵢ = a₁(n) if zᵢ = 1, a₀(n) if zᵢ = 0.

    With rewards 0 and 1 every critic-free estimator is such a table (count_advantages).

    Arguments:
        rewards: (..., G), each 0 or 1.
        values: a₁(1), ..., a₁(G), then a₀(0), ..., a₀(G-1), 2 G numbers.

    >>> import numpy as np
    >>> count_table(np.array([1.0, 0.0]), values=[0.7, 0.0, 0.0, -0.2])
    array([ 0.7, -0.2])
    """
    xp, rewards = rewards_of(rewards, "count-table")
    size = rewards.shape[-1]
    table = finite_array("values", values, 1)
    if len(table) != 2 * size:
        raise InputError(
            f"the table has {len(table)} values: a group of {size} needs {2 * size}, with those "
            f"of successes first"
        )
    require(
        lambda: xp.all((rewards == 0) | (rewards == 1)),
        "a table by counts needs rewards that are 0 or 1",
    )
    count = xp.astype(xp.sum(rewards, axis=-1), xp.int64)
    flat = xp.reshape(count, (-1,))
    won, lost = (
        xp.reshape(
            xp.take(xp.asarray(part, dtype=rewards.dtype, device=device(rewards)), flat),
            (*count.shape, 1),
        )
        for part in ([0.0, *table[:size]], [*table[size:], 0.0])
    )
    return xp.where(rewards == 1, won, lost)


def loo_table(rewards: Array, *, values: Sequence[float]) -> Array:
    """A leave-one-out baseline by the number k of successes among the others: Aᵢ = zᵢ - b(kᵢ).

    It is unbiased for every table that does not depend on this group; :func:`ustat_pg.predictions.best_table`
    gives the best one.

    Arguments:
        rewards: (..., G), each 0 or 1.
        values: b(0), ..., b(G-1).

    >>> import numpy as np
    >>> loo_table(np.array([1.0, 0.0]), values=[0.25, 0.75])
    array([ 0.75, -0.75])
    """
    _, rewards = rewards_of(rewards, "loo-table")
    table = finite_array("values", values, 1)
    if len(table) != rewards.shape[-1]:
        raise InputError(
            f"the table has {len(table)} values: a group of {rewards.shape[-1]} needs as many"
        )
    return count_table(rewards, values=[*(1 - table), *-table])


def best(rewards: Array, *, best_table: Sequence[float]) -> Array:
    """:func:`loo_table` with the table with the least error, :func:`ustat_pg.predictions.best_table`.

    >>> import numpy as np
    >>> best(np.array([1.0, 0.0]), best_table=[0.25, 0.75])
    array([ 0.75, -0.75])
    """
    return loo_table(rewards, values=best_table)


def _divided(xp: Array, top: Array, bottom: Array, silent: Array) -> Array:
    """top/bottom, and 0 in silent groups."""
    safe = xp.where(silent, xp.ones_like(bottom), bottom)
    return xp.where(silent, xp.zeros_like(top), top / safe)
