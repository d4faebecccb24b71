"""The exact error and the best group size with a memory of earlier rewards (reward_memory).

The baseline of output i is the mean of the G-1 other rewards and of n earlier rewards of the same prompt.
With N = G-1+n, at one prompt,

    Cov(ĝ | x) = (1/G) [Σ + σ² F/N + (G-1) g gᵀ/N²],
    K MSE      = c1 G + c2 + c3/N - n E‖g(X)‖²/N²          at a budget of K = BG outputs,

for every G >= 1 (n >= 1 if G = 1). If the last term is small, G* = max(1, 1 + √(c3/c1) - n): each earlier
reward replaces one output of the group. If the policy has changed since, the earlier rewards have other means
V + e and variances σ'². The estimate stays unbiased, but the error grows; with the weight λ of the memory's
mean

    G MSE = τ - ‖g‖² - 2 λ e E[‖s‖² a] + λ² (e² + σ'²/n) tr F + (1-λ)² (σ² tr F + ‖g‖²)/(G-1).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..display.numbers import readable
from ..display.shown import Shown
from ..moments.record import Known, Moments, moments_of, takes_problems
from ..validation import Array, InputError, finite_array, integer, number
from .closed_forms import (
    baseline_square,
    best_amount,
    best_group_size,
    budget_noise,
    memory_budget_noise,
    memory_noise,
    memory_slope,
    minibatch_error,
    pair_noise,
)
from .group_size import MseConstants, feasible_sizes, mse_constants
from .mse import reward_weights


def _of_prompts(moments: Moments, name: str, values: ArrayLike) -> Array:
    """Numbers of the prompts, (X,), from one for all or one for each."""
    array = finite_array(name, values)
    if array.shape not in ((), (len(moments),)):
        raise InputError(
            f"{name} has shape {array.shape}: one number, or one per context ({len(moments)}), is needed"
        )
    return np.broadcast_to(array, (len(moments),))


def _past(
    moments: Moments, drift: ArrayLike, past_variance: ArrayLike | None
) -> tuple[Array, Array]:
    """e and σ'² of each prompt, (X,)."""
    variance = moments.reward_variance if past_variance is None else past_variance
    values = _of_prompts(moments, "variance of earlier rewards", variance)
    if values.min() < 0:
        raise InputError(f"variance of earlier rewards is {values.min()}: it must be at least 0")
    return _of_prompts(moments, "drift", drift), values


@takes_problems
def memory_mse(
    moments: Moments,
    group_size: int,
    memory: int,
    batch_size: int = 1,
    *,
    weight: float | None = None,
    drift: ArrayLike = 0.0,
    past_variance: ArrayLike | None = None,
) -> float:
    """The MSE with a memory of earlier rewards, which may come from an earlier policy (reward_memory).

    Arguments:
        moments: moments of the problem at the current parameters.
        group_size: G >= 1; G >= 2 with a weight.
        memory: n >= 1, the earlier rewards of each prompt.
        batch_size: B, prompts drawn independently.
        weight: λ in [0, 1] of the mean of the memory (default: n/(G-1+n), the mean of all rewards).
        drift: e, the mean of an earlier reward less V(x): a number or (X,).
        past_variance: σ'², the variance of an earlier reward: a number or (X,) (default: σ²).

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> coin = SoftmaxBandit.bernoulli([0.5, 0.5], [1, 0])
    >>> memory_mse(coin, 1, 4), memory_mse(coin, 1, 4, drift=0.25)
    (0.03125, 0.0625)
    """
    size, kept = integer("group size", group_size), integer("memory", memory)
    batch = integer("batch size", batch_size)
    if weight is not None:
        integer("group size with a weight", size, 2)
    off, variance = _past(moments, drift, past_variance)
    other, earlier = reward_weights(size, kept, weight)
    known = moments.norm_squared_advantage, moments.norm_advantage, moments.fisher_trace
    pair = pair_noise(moments.reward_variance, moments.fisher_trace, moments.gradient_sq)
    square = baseline_square(*known, kept * earlier * off) - moments.gradient_sq
    square += memory_noise(size, kept, other, earlier, pair, variance * moments.fisher_trace)
    within = float(moments.context_probs @ square) / size
    return float(minibatch_error(batch, mse_constants(moments).c1, within))


@takes_problems
def best_memory_weight(
    moments: Moments,
    group_size: int,
    memory: int,
    *,
    drift: ArrayLike = 0.0,
    past_variance: ArrayLike | None = None,
) -> float:
    """The weight λ* of the memory's mean with the least error, one for all prompts (reward_memory).

    λ* = (A + E e E[‖s‖² a])/(A + E (e² + σ'²/n) tr F), A = E[σ² tr F + ‖g‖²]/(G-1); clipped to [0, 1].

    Without drift it is more than n/(G-1+n), since a mean of others also costs ‖g‖²; a large drift sends it to
    0. Arguments as for :func:`memory_mse`.

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> coin = SoftmaxBandit.bernoulli([0.5, 0.5], [1, 0])
    >>> [round(best_memory_weight(coin, 5, 4, drift=e), 3) for e in (0.0, 0.25, 0.5)]
    [0.667, 0.5, 0.286]
    """
    size, kept = integer("group size", group_size, 2), integer("memory", memory)
    off, variance = _past(moments, drift, past_variance)
    probs, trace = moments.context_probs, moments.fisher_trace
    noise = pair_noise(moments.reward_variance, trace, moments.gradient_sq)
    pair, cross, square = (
        float(probs @ each)
        for each in (
            noise / (size - 1),
            off * moments.norm_advantage,
            (off**2 + variance / kept) * trace,
        )
    )
    if pair + square <= 0:
        return 1.0
    return float(np.clip(best_amount(pair, cross, square), 0.0, 1.0))


@dataclass(frozen=True)
class MemoryAdvice(Shown):
    """The group size with a memory of earlier rewards, at a budget.

    Arguments:
        memory: n, the earlier rewards of each prompt.
        g_star: max(1, 1 + √(c3/c1) - n); infinite if c1 = 0.
        g_star_exact: the real G >= 1 with the least error, E‖g(X)‖² included; infinite if c1 = 0.
        group_size: the feasible group size with the least error, from 1.
        ratio: its error over the least error of a feasible group without memory.
        ratio_at_one: the same of groups of one.
        memory_for_one: the least n with which groups of one have the least error of all feasible ones; None
            if there is none up to the budget.
        tolerated_drift: the root mean square e by which the mean of the earlier rewards may be off before the
            gain is lost, if ‖s‖² and the reward are uncorrelated; None if there is no gain, or tr F is not
            known.
        g_star_interval, ratio_interval, ratio_at_one_interval: 95% intervals, if the constants are estimates.

    >>> from ustat_pg import load_problem
    >>> found = memory_group_size(load_problem("ustat:uneven"), 8, 64)
    >>> found.group_size, found.memory_for_one
    (1, 1)
    """

    memory: int
    g_star: float
    g_star_exact: float
    group_size: int
    ratio: float
    ratio_at_one: float
    memory_for_one: int | None
    tolerated_drift: float | None
    g_star_interval: tuple[float, float] | None = None
    ratio_interval: tuple[float, float] | None = None
    ratio_at_one_interval: tuple[float, float] | None = None

    def __str__(self) -> str:
        size = readable(self.g_star_exact) if math.isfinite(self.g_star_exact) else "unbounded"
        size += _ends(self.g_star_interval)
        lines = [
            f"With {self.memory} earlier rewards per prompt in the baseline the best real G is {size}, and "
            f"G = {self.group_size} has {readable(self.ratio)}{_ends(self.ratio_interval)} times the least "
            "error without a memory.",
            self.answer,
        ]
        if self.tolerated_drift is not None:
            lines.append(
                f"The gain lasts while the mean of the earlier rewards is off by less than "
                f"{readable(self.tolerated_drift, 2)} (root mean square over prompts), as the policy changes."
            )
        return "\n".join(lines)

    @property
    def answer(self) -> str:
        """The answer to the question whether groups of one suffice with this memory."""
        times = (
            f"its error is {readable(self.ratio_at_one)}{_ends(self.ratio_at_one_interval)} times the least "
            "without a memory."
        )
        if self.group_size == 1:
            end = self.ratio_at_one_interval
            unsure = " These rollouts do not tell whether it gains." if end and end[1] >= 1 else ""
            return f"G = 1 is the best with this memory: {times}{unsure}"
        if self.memory_for_one is None:
            return f"G = 1 is not the best with any memory that this budget could fill: {times}"
        least = f"It is the best from n = {self.memory_for_one}."
        return f"G = 1 is not the best with this memory: {times} {least}"


def _ends(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f" (95%: {readable(interval[0])} to {readable(interval[1])})"


def memory_group_size(
    moments: Known | MseConstants,
    memory: int,
    budget: int,
    *,
    spread: float | None = None,
    fisher_trace: float | None = None,
) -> MemoryAdvice:
    """The best group size if the baseline includes n earlier rewards of each prompt (reward_memory).

    Arguments:
        moments: a problem, its moments, or constants from :func:`~ustat_pg.predictions.mse_constants`.
        memory: n >= 1.
        budget: K = BG; feasible group sizes divide it.
        spread: E‖g(X)‖², if constants are given (default: c1, as if ‖g‖ were 0).
        fisher_trace: E tr F, if constants are given, for the tolerated drift.
    """
    kept, total = integer("memory", memory), integer("budget", budget, 2)
    if not isinstance(moments, MseConstants):
        return _of_moments(moments_of(moments), kept, total)
    constants = moments
    known = constants.c1, constants.c2, constants.c3
    square = constants.c1 if spread is None else number("spread", spread, minimum=0.0)
    sizes = feasible_sizes(total, 1)

    def noise(number: int) -> Array:
        return np.asarray(memory_budget_noise(sizes, number, *known, square))

    errors = noise(kept)
    without = float(budget_noise(sizes[1:], *known).min())
    if without <= 0:
        raise InputError("the rewards of each prompt are all equal: no group size has an error")
    gain = without - float(errors.min())
    size = int(sizes[errors.argmin()])
    # The drift e of the memory's mean adds (e n/N)² tr F.
    share = kept / (size - 1 + kept)
    best = best_group_size(constants.c3 / constants.c1) if constants.c1 else math.inf
    # Groups of one stay the best with more earlier rewards, because c3 >= 2 E‖g(X)‖².
    numbers = range(1, total + 1)
    enough = bisect_left(numbers, True, key=lambda n: noise(n).argmin() == 0)
    return MemoryAdvice(
        memory=kept,
        g_star=max(1.0, best - kept),
        g_star_exact=_exact(kept, constants, square),
        group_size=size,
        ratio=float(errors.min()) / without,
        ratio_at_one=float(errors[0]) / without,
        memory_for_one=numbers[enough] if enough < total else None,
        tolerated_drift=math.sqrt(gain / fisher_trace) / share
        if fisher_trace and gain > 0
        else None,
    )


def _of_moments(moments: Moments, memory: int, budget: int) -> MemoryAdvice:
    return memory_group_size(
        mse_constants(moments),
        memory,
        budget,
        spread=float(moments.context_probs @ moments.gradient_sq),
        fisher_trace=float(moments.context_probs @ moments.fisher_trace),
    )


def _exact(memory: int, constants: MseConstants, spread: float) -> float:
    """The real G >= 1 with the least error: 1, or a real root of the slope."""
    if not constants.c1:
        return math.inf
    known = constants.c1, constants.c2, constants.c3, spread
    roots = np.roots(memory_slope(memory, constants.c1, constants.c3, spread))
    sizes = [float(root.real) + 1 - memory for root in roots if not root.imag]
    return min(
        (1.0, *(size for size in sizes if size > 1)),
        key=lambda size: memory_budget_noise(size, memory, *known),
    )
