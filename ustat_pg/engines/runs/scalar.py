"""The scalar body of trajectories: one run of the meta-algorithm, one thread of a GPU to each.

The arithmetic of :mod:`ustat_pg.engines.runs.lanes`, term by term in the same order, for one
lane alone: compiled for a CPU it gives the same bits, and a law test holds it to that. The scratch
is passed in, in arrays whose last axis is the thread. Tables are those of the cpu engine.

The kernel is compiled anew in each process: numba keeps none.
"""

from __future__ import annotations

from math import floor, ldexp, sqrt
from typing import NamedTuple

import numpy as np
from numba import cuda
from numpy.typing import NDArray

from ...compiled import body
from ...rng import CONTEXT_SLOT, MOST_PROMPTS
from ..draws import swap, words_at
from ..kinds import BY_COUNT, GROUP_MEAN, GRPO, PROMPT_ONLY, VALUE
from .lanes.plan import FREE, IID, UNIT
from .lanes.softmax import LEAST_EXPONENT, LN2_HIGH, LN2_LOW, LOG2_E


class Room(NamedTuple):
    """Scratch of n threads, the last axis n: what a thread reads before it has written is order.

    Arguments:
        theta, total, centre: θ, the sum of the step, and f̄, (d, n).
        weights, ends: exp(logit - max) and its sums up to each arm, (K, n).
        arms: arms of a group, (G, n); rewards, then advantages, (G, n).
        order: order of an epoch's prompts, (X, n).
        along: a projection's coordinates, (r, n).
    """

    theta: NDArray[np.float64]
    total: NDArray[np.float64]
    centre: NDArray[np.float64]
    weights: NDArray[np.float64]
    ends: NDArray[np.float64]
    arms: NDArray[np.int32]
    rewards: NDArray[np.float64]
    order: NDArray[np.int32]
    along: NDArray[np.float64]


@body(inline=True)
def series(r):
    """eʳ for |r| <= ½ ln 2 by Taylor's series to degree 13, whose remainder is below 5e-18."""
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
    # 1 + (r + r² p): the large term last, for its rounding is the result's.
    return 1.0 + (r + r * r * p)


@body
def exponential(x):
    """eˣ for x <= 0 to two units in the last place; 0 below -708.

    x = n ln 2 + r with |r| <= ½ ln 2. No float is made of its bits, which numba does not compile
    for a device.
    """
    y = x if x > LEAST_EXPONENT else LEAST_EXPONENT
    n = floor(y * LOG2_E + 0.5)
    e = series((y - n * LN2_HIGH) - n * LN2_LOW)
    return ldexp(e, n) if x >= LEAST_EXPONENT else 0.0


@body
def _feature(plan, bends, theta, x, k, j):
    """φ(x, k)ⱼ, less ψ(x, k)ⱼ θⱼ where logits bend."""
    if bends.shape[0] > 0:
        return plan.features[k, j, x] - bends[k, j, x] * theta[j]
    return plan.features[k, j, x]


@body
def _prompt(word, n, plan, order):
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
    place = n % total
    if place == 0:
        for x in range(total):
            order[x] = x
    swap(order, place, word)
    return np.int64(order[place])


@body
def _softmax(plan, bends, x, theta, weights, ends):
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
        weight = exponential(weights[k] - most)
        weights[k] = weight
        total = weight if k == 0 else total + weight
        ends[k] = total


@body
def _group(rep, slot, key, plan, x, ends, arms, rewards):
    """Arms and rewards of one prompt's group, (G,)."""
    last = len(ends) - 1
    law, values = plan.law, plan.rewards
    w0, w1, w2, w3 = 0, 0, 0, 0
    for i in range(len(arms)):
        if i % 2 == 0:
            w0, w1, w2, w3 = words_at(i // 2, slot, rep, key)
        level = np.float64(w0) * UNIT * ends[last]
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


@body
def _centre(plan, bends, theta, x, weights, total, out):
    """f̄, (d,)."""
    for j in range(len(out)):
        s = 0.0
        for k in range(len(weights)):
            s += weights[k] * _feature(plan, bends, theta, x, k, j)
        out[j] = s / total


@body
def _value(plan, x, weights, total):
    """V(x)."""
    value = 0.0
    for k in range(len(weights)):
        value += weights[k] * plan.mean_rewards[k, x]
    return value / total


@body
def _advantages(kind, baseline, by_count, rewards):
    """Advantages in place of rewards, (G,)."""
    group = len(rewards)
    if kind in (PROMPT_ONLY, VALUE):
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
    elif kind == BY_COUNT:
        for i in range(group):
            rewards[i] = by_count[int(rewards[i]), int(whole)]
    else:
        share = 1.0 / group
        for i in range(group):
            rewards[i] -= whole * share


@body
def _project(plan, theta, along):
    """θ of one run to the nearest point of Θ, (d,), with room for its coordinates ``along`` (r,)."""
    d = len(theta)
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


@body
def path(rep, i, key, batch, plan, bends, room, begin, out):
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
    w0, w1, w2, w3 = 0, 0, 0, 0
    x = np.int64(0)
    for t in range(1, len(plan.rates) + 1):
        for j in range(d):
            total[j] = 0.0
        for b in range(batch):
            if contexts > 1:
                n = (t - 1) * batch + b
                if n % 4 == 0:
                    w0, w1, w2, w3 = words_at(n // 4, CONTEXT_SLOT, rep, key)
                x = _prompt(w0, n, plan, order)
                w0, w1, w2 = w1, w2, w3
            _softmax(plan, bends, x, theta, weights, ends)
            slot = t * MOST_PROMPTS + b
            _group(rep, slot, key, plan, x, ends, arms, rewards)
            sure = kind in (GRPO, GROUP_MEAN)
            if not sure:
                _centre(plan, bends, theta, x, weights, ends[last], centre)
            baseline = plan.constant
            if kind == VALUE:
                baseline = _value(plan, x, weights, ends[last])
            _advantages(kind, baseline, plan.by_count, rewards)
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
def path_kernel(first, start, count, key, batch, plan, bends, room, begin, out):
    """Fill out (S, d, n) from begin (d, n), ``count`` columns of each: one run a thread."""
    i = cuda.grid(1)
    if i < count:
        path(first + start + i, i, key, batch, plan, bends, room, begin[:, i], out[:, :, i])
