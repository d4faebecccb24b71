"""The scalar body of trajectories: one run of the meta-algorithm, one thread of a GPU to each.

The arithmetic of :mod:`ustat_pg.engines.runs.lanes`, term by term in the same order, for one
lane alone: compiled for a CPU it gives the same bits, and a law test holds it to that. The scratch
is passed in, in arrays whose last axis is the thread. Tables are those of the cpu engine.

Kernels are compiled anew in each process: numba's cache follows the file that a kernel stands in,
and this one calls another's functions.
"""

from __future__ import annotations

from math import floor, ldexp, sqrt
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, njit
from numpy.typing import NDArray

from ...rng import CONTEXT_SLOT, MOST_PROMPTS
from ..gradients.scalar import philox
from .lanes import (
    _LN2_HIGH,
    _LN2_LOW,
    _LOG2_E,
    BOX,
    FREE,
    GROUP_MEAN,
    GRPO,
    IID,
    MINIMUM_VARIANCE,
    NORM_WEIGHTED,
    PROMPT_ONLY,
    VALUE,
)

__all__ = ["Room", "path", "path_kernel"]

_SLOT = np.uint64(CONTEXT_SLOT)
_PROMPTS = np.uint64(MOST_PROMPTS)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_UNIT = 2.0**-32


class Room(NamedTuple):
    """Scratch of n threads, the last axis n: what a thread reads before it has written is order.

    Arguments:
        theta, total, centre: θ, the sum of the step, and f̄, (d, n).
        weights, ends: exp(logit - max) and its sums up to each arm, (K, n).
        arms: of a group, (G, n); rewards, then advantages, (G, n).
        norms: ‖s‖², (G, n), and before: sums up to each output, (2 G, n), for norm-weighted.
        order: of an epoch's prompts, (X, n).
        along: a projection's coordinates, (r, n).
    """

    theta: NDArray[np.float64]
    total: NDArray[np.float64]
    centre: NDArray[np.float64]
    weights: NDArray[np.float64]
    ends: NDArray[np.float64]
    arms: NDArray[np.int32]
    rewards: NDArray[np.float64]
    norms: NDArray[np.float64]
    before: NDArray[np.float64]
    order: NDArray[np.int32]
    along: NDArray[np.float64]


@njit(nogil=True)
def _exponential(x: Any) -> Any:
    """eˣ for x <= 0, the bits of :func:`ustat_pg.engines.runs.lanes.exponential`.

    Its last step reads an integer as a float, which numba does not compile for a device.
    """
    y = x if x > -708.0 else -708.0
    n = floor(y * _LOG2_E + 0.5)
    r = (y - n * _LN2_HIGH) - n * _LN2_LOW
    p = 1.6059043836821613e-10
    p = p * r + 2.08767569878681e-09
    p = p * r + 2.505210838544172e-08
    p = p * r + 2.755731922398589e-07
    p = p * r + 2.7557319223985893e-06
    p = p * r + 2.48015873015873e-05
    p = p * r + 1.984126984126984e-04
    p = p * r + 1.388888888888889e-03
    p = p * r + 8.333333333333333e-03
    p = p * r + 4.1666666666666664e-02
    p = p * r + 1.6666666666666666e-01
    p = p * r + 0.5
    e = 1.0 + (r + r * r * p)
    return ldexp(e, n) if x >= -708.0 else 0.0


@njit(nogil=True)
def _feature(plan: Any, bends: Any, theta: Any, x: Any, k: Any, j: Any) -> Any:
    """φ(x, k)ⱼ, less ψ(x, k)ⱼ θⱼ where logits bend."""
    if bends.shape[0] > 0:
        return plan.features[k, j, x] - bends[k, j, x] * theta[j]
    return plan.features[k, j, x]


@njit(nogil=True)
def _prompt(word: Any, n: Any, plan: Any, order: Any) -> Any:
    """The context of prompt n of the run."""
    ends = plan.contexts
    total = len(ends)
    if plan.design == IID:
        low, high = 0, total - 1
        while low < high:
            middle = (low + high) // 2
            if word >= ends[middle]:
                low = middle + 1
            else:
                high = middle
        return low
    # Fisher-Yates: place j of an epoch swaps with one of the places j to X-1.
    place = n % total
    if place == 0:
        for x in range(total):
            order[x] = x
    other = place + np.int64((word * np.uint64(total - place)) >> _HALF)
    order[place], order[other] = order[other], order[place]
    return np.int64(order[place])


@njit(nogil=True)
def _softmax(plan: Any, bends: Any, x: Any, theta: Any, weights: Any, ends: Any) -> None:
    """exp(logit - max) and its sums up to each arm, (K,) both."""
    arms, d, _ = plan.features.shape
    bent = bends.shape[0] > 0
    most = -np.inf
    for k in range(arms):
        logit = plan.offset[k, x]
        for j in range(d):
            logit += plan.features[k, j, x] * theta[j]
        if bent:
            for j in range(d):
                off = bends[k, j, x] * theta[j]
                logit -= 0.5 * off * theta[j]
        weights[k] = logit
        if k == 0 or logit > most:
            most = logit
    total = 0.0
    for k in range(arms):
        weight = _exponential(weights[k] - most)
        weights[k] = weight
        total = weight if k == 0 else total + weight
        ends[k] = total


@njit(nogil=True)
def _group(
    rep: Any, slot: Any, key: Any, plan: Any, x: Any, ends: Any, arms: Any, rewards: Any
) -> None:
    """Arms and rewards of one prompt's group, (G,)."""
    last = len(ends) - 1
    law, values = plan.law, plan.rewards
    zero = np.uint64(0)
    w0, w1, w2, w3 = zero, zero, zero, zero
    for i in range(len(arms)):
        if i % 2 == 0:
            w0, w1, w2, w3 = philox(
                np.uint64(i // 2), slot, rep & _LOW, rep >> _HALF, key[0], key[1]
            )
        level = np.float64(w0) * _UNIT * ends[last]
        # A count, as in the lanes, but of sums that never fall: it stops at the first above.
        k = 0
        while k < last and level >= ends[k]:
            k += 1
        column = x * len(ends) + k
        reward = values[0, column]
        for m in range(len(law)):
            if w1 >= law[m, column]:
                reward = values[m + 1, column]
        arms[i] = k
        rewards[i] = reward
        w0, w1 = w2, w3


@njit(nogil=True, error_model="numpy")
def _centre(plan: Any, bends: Any, theta: Any, x: Any, weights: Any, total: Any, out: Any) -> None:
    """f̄, (d,)."""
    for j in range(len(out)):
        s = 0.0
        for k in range(len(weights)):
            s += weights[k] * _feature(plan, bends, theta, x, k, j)
        out[j] = s / total


@njit(nogil=True)
def _norm(plan: Any, bends: Any, theta: Any, x: Any, k: Any, centre: Any) -> Any:
    """‖s(x, k)‖²."""
    s = 0.0
    for j in range(len(centre)):
        off = _feature(plan, bends, theta, x, k, j) - centre[j]
        s += off * off
    return s


@njit(nogil=True, error_model="numpy")
def _value(plan: Any, bends: Any, theta: Any, x: Any, weights: Any, total: Any, centre: Any) -> Any:
    """V(x), or the minimum-variance baseline."""
    value = 0.0
    for k in range(len(weights)):
        value += weights[k] * plan.mean_rewards[k, x]
    value /= total
    if plan.kind != MINIMUM_VARIANCE:
        return value
    weight = 0.0
    shift = 0.0
    for k in range(len(weights)):
        part = weights[k] * _norm(plan, bends, theta, x, k, centre)
        weight += part
        shift += part * (plan.mean_rewards[k, x] - value)
    return value + shift / weight if weight > 0.0 else value


@njit(nogil=True, error_model="numpy")
def _subtract_others(rewards: Any, norms: Any, before: Any) -> None:
    """Rewards less the norm-weighted mean of the other outputs', in place, (G,).

    The others' sums are those before an output plus those after it: no difference loses digits.
    """
    weight = 0.0
    shift = 0.0
    for i in range(len(rewards)):
        before[2 * i] = weight
        before[2 * i + 1] = shift
        weight += norms[i]
        shift += norms[i] * rewards[i]
    weight = 0.0
    shift = 0.0
    for i in range(len(rewards) - 1, -1, -1):
        others = weight + before[2 * i]
        others_shift = shift + before[2 * i + 1]
        z = rewards[i]
        weight += norms[i]
        shift += norms[i] * z
        if others > 0.0:
            rewards[i] = z - others_shift / others


@njit(nogil=True)
def _advantages(kind: Any, baseline: Any, rewards: Any) -> None:
    """Rewards less the baseline, in place, (G,): all kinds but the norm-weighted."""
    group = len(rewards)
    if kind in (PROMPT_ONLY, VALUE, MINIMUM_VARIANCE):
        for i in range(group):
            rewards[i] -= baseline
        return
    whole = 0.0
    for i in range(group):
        whole += rewards[i]
    if kind == GRPO:
        share = 1.0 / (group - 1)
        for i in range(group):
            rewards[i] -= (whole - rewards[i]) * share
    else:
        share = 1.0 / group
        for i in range(group):
            rewards[i] -= whole * share


@njit(nogil=True)
def _project(plan: Any, theta: Any, along: Any) -> None:
    """θ to the nearest point of Θ, (d,)."""
    d = len(theta)
    if plan.theta_set == BOX:
        for j in range(d):
            # numba 0.68 does not compile min and max of two numbers for a device.
            if theta[j] < plan.low[j]:
                theta[j] = plan.low[j]
            if theta[j] > plan.high[j]:
                theta[j] = plan.high[j]
        return
    square = 0.0
    for v in range(plan.basis.shape[1]):
        s = 0.0
        for j in range(d):
            s += (theta[j] - plan.centre[j]) * plan.basis[j, v]
        along[v] = s
        square += s * s
    norm = sqrt(square)
    if norm > plan.radius:
        excess = 1.0 - plan.radius / norm
        for j in range(d):
            back = 0.0
            for v in range(plan.basis.shape[1]):
                back += along[v] * plan.basis[j, v]
            theta[j] -= excess * back


@njit(nogil=True, error_model="numpy")
def path(
    rep: Any, i: Any, key: Any, batch: Any, plan: Any, bends: Any, room: Any, begin: Any, out: Any
) -> None:
    """Run ``rep`` from θ₀ (d,): θ at the snapshots, (S, d), with column i of the scratch.

    ``bends`` is ψ(x, k), (K, d, X), or (0, 0, 0) where logits are linear.
    """
    theta, total, centre = room.theta[:, i], room.total[:, i], room.centre[:, i]
    weights, ends, rewards = room.weights[:, i], room.ends[:, i], room.rewards[:, i]
    arms, order = room.arms[:, i], room.order[:, i]
    kind = plan.kind
    group, d, last = len(arms), len(theta), len(ends) - 1
    contexts, kept = len(plan.contexts), len(plan.snapshots)
    for j in range(d):
        theta[j] = begin[j]
    place = 0
    if plan.snapshots[0] == 0:
        for j in range(d):
            out[0, j] = theta[j]
        place = 1
    zero = np.uint64(0)
    w0, w1, w2, w3 = zero, zero, zero, zero
    x = np.int64(0)
    for t in range(1, len(plan.rates) + 1):
        for j in range(d):
            total[j] = 0.0
        for b in range(batch):
            if contexts > 1:
                n = (t - 1) * batch + b
                if n % 4 == 0:
                    w0, w1, w2, w3 = philox(
                        np.uint64(n // 4), _SLOT, rep & _LOW, rep >> _HALF, key[0], key[1]
                    )
                x = _prompt(w0, n, plan, order)
                w0, w1, w2 = w1, w2, w3
            _softmax(plan, bends, x, theta, weights, ends)
            slot = np.uint64(t) * _PROMPTS + np.uint64(b)
            _group(rep, slot, key, plan, x, ends, arms, rewards)
            sure = kind in (GRPO, GROUP_MEAN)
            if not sure:
                _centre(plan, bends, theta, x, weights, ends[last], centre)
            if kind == NORM_WEIGHTED:
                norms = room.norms[:, i]
                for g in range(group):
                    norms[g] = _norm(plan, bends, theta, x, arms[g], centre)
                _subtract_others(rewards, norms, room.before[:, i])
            else:
                baseline = plan.constant
                if kind in (VALUE, MINIMUM_VARIANCE):
                    baseline = _value(plan, bends, theta, x, weights, ends[last], centre)
                _advantages(kind, baseline, rewards)
            # The advantages of grpo and the group mean sum to 0, and f̄ drops out.
            whole = 0.0
            for g in range(group):
                whole += rewards[g]
            for j in range(d):
                s = total[j]
                for g in range(group):
                    s += rewards[g] * _feature(plan, bends, theta, x, arms[g], j)
                total[j] = s if sure else s - whole * centre[j]
        step = plan.rates[t - 1] / (group * batch)
        for j in range(d):
            theta[j] += step * total[j]
        if plan.theta_set != FREE:
            _project(plan, theta, room.along[:, i])
        if place < kept and plan.snapshots[place] == t:
            for j in range(d):
                out[place, j] = theta[j]
            place += 1


@cuda.jit
def path_kernel(
    first: Any,
    start: Any,
    count: Any,
    key: Any,
    batch: Any,
    plan: Any,
    bends: Any,
    room: Any,
    begin: Any,
    out: Any,
) -> None:
    """Fill out (S, d, n) from begin (d, n), ``count`` columns of each: one run a thread."""
    i: Any = cuda.grid(1)  # type: ignore[call-arg]
    if i < count:
        rep = np.uint64(first) + np.uint64(start + i)
        path(rep, i, key, batch, plan, bends, room, begin[:, i], out[:, :, i])
