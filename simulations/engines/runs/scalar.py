"""The scalar body of trajectories: one run of the meta-algorithm per thread of a GPU.

It does the arithmetic of :mod:`simulations.engines.runs.lanes`, in the same order of terms, for one
lane only. A run is in its thread's own memory, and its tables are in shared memory.

A kernel is compiled for a :class:`Shape`. Its numbers are arguments, with room for the next powers of
two (:func:`roomy`), or constants (:func:`built_in`), which is faster but compiles for each shape.
"""

from __future__ import annotations

from functools import lru_cache
from math import floor, ldexp, sqrt
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float64, int32

from ustat_pg.engines.device import device_function, device_kernel, index
from ustat_pg.engines.draws import words_of_32
from ustat_pg.engines.kinds import BY_COUNT, GROUP_MEAN, GRPO, PROMPT_ONLY, VALUE
from ustat_pg.execution.compiled import body
from ustat_pg.sampling.rng import CONTEXT_SLOT, MOST_PROMPTS

from .lanes.plan import IID, UNIT
from .lanes.softmax import LEAST_EXPONENT, LN2_HIGH, LN2_LOW, LOG2_E


class Shape(NamedTuple):
    """The shape for which a kernel is compiled.

    Arguments:
        arms, d, contexts, values: K, the parameters, X, and the rewards of an arm.
        group, batch, steps, kept: G, B, T, and the snapshots.
        kind, design: numbered as in :mod:`~ustat_pg.engines.kinds` and
            :mod:`~simulations.engines.runs.lanes.plan`.
        bent: whether logits are quadratic in θ.
        rank: the directions in which a ball bounds θ, 0 without one.
        staged: whether tables are copied to shared memory.
    """

    arms: int
    d: int
    contexts: int
    values: int
    group: int
    batch: int
    steps: int
    kept: int
    kind: int
    design: int
    bent: int
    rank: int
    staged: int


class There(NamedTuple):
    """A trajectory on the device.

    Arguments:
        table: flat, in this order: features (K, d, X), offset (K, X), thresholds of rewards except the last
            (M - 1, X, K), rewards (M, X, K), their means (K, X), bends (K, d, X) if there are any.
        contexts: thresholds of ρ.
        constant: the number that PROMPT_ONLY subtracts.
        by_count: the advantages of failures, then of successes, by the number of successes.
        rates, snapshots: rates and snapshots of the trajectory.
        centre, basis, radius: centre, basis and radius of a ball.
    """

    table: Any
    contexts: Any
    constant: float
    by_count: Any
    rates: Any
    snapshots: Any
    centre: Any
    basis: Any
    radius: float


class Room(NamedTuple):
    """A run's own memory. Only the order of an epoch's prompts needs a value at the start.

    Arguments:
        theta, total, centre: θ, the sum of the step, and f̄.
        weights, ends: exp(logit - max) and its sums up to each arm.
        arms, rewards: those of a group; rewards are later replaced by advantages.
        order: the order of an epoch's prompts.
        along: a projection's coordinates.
    """

    theta: Any
    total: Any
    centre: Any
    weights: Any
    ends: Any
    arms: Any
    rewards: Any
    order: Any
    along: Any


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
    # 1 + (r + r² p): add the large term last, because its rounding is that of the result.
    return 1.0 + (r + r * r * p)


@body
def exponential(x):
    """eˣ for x <= 0 to two units in the last place; 0 below -708.

    x = n ln 2 + r with |r| <= ½ ln 2. The code builds no float from bits, because numba cannot compile that
    for a device.
    """
    y = x if x > LEAST_EXPONENT else LEAST_EXPONENT
    n = floor(y * LOG2_E + 0.5)
    e = series((y - n * LN2_HIGH) - n * LN2_LOW)
    return ldexp(e, n) if x >= LEAST_EXPONENT else 0.0


# The places where tables begin.


@device_function
def offsets_at(n):
    return n.arms * n.d * n.contexts


@device_function
def law_at(n):
    return n.arms * (n.d + 1) * n.contexts


@device_function
def rewards_at(n):
    return n.arms * (n.d + n.values) * n.contexts


@device_function
def means_at(n):
    return n.arms * (n.d + 2 * n.values) * n.contexts


@device_function
def bends_at(n):
    return n.arms * (n.d + 2 * n.values + 1) * n.contexts


@device_function
def feature(n, table, theta, x, k, j):
    """φ(x, k)ⱼ, minus ψ(x, k)ⱼ θⱼ if logits bend."""
    at = (k * n.d + j) * n.contexts + x
    if n.bent:
        return table[index(at)] - table[index(bends_at(n) + at)] * theta[index(j)]
    return table[index(at)]


@device_function
def choose_prompt(n, word, place, t, order):
    """The context of the prompt at a place in the run."""
    if n.design == IID:
        low, high = 0, n.contexts - 1
        while low < high:
            middle = (low + high) // 2
            if word >= t.contexts[index(middle)]:
                low = middle + 1
            else:
                high = middle
        return low
    place %= n.contexts
    if place == 0:
        for x in range(n.contexts):
            order[index(x)] = x
    other = place + ((np.int64(word) * (n.contexts - place)) >> 32)
    taken = order[index(other)]
    order[index(other)] = order[index(place)]
    order[index(place)] = taken
    return np.int64(taken)


@device_function
def softmax(n, table, x, room):
    """exp(logit - max) and its cumulative sums over the arms; returns the total."""
    most = 0.0
    for k in range(n.arms):
        logit = table[index(offsets_at(n) + k * n.contexts + x)]
        for j in range(n.d):
            logit += table[index((k * n.d + j) * n.contexts + x)] * room.theta[index(j)]
        if n.bent:
            for j in range(n.d):
                off = (
                    table[index(bends_at(n) + (k * n.d + j) * n.contexts + x)]
                    * room.theta[index(j)]
                )
                logit -= 0.5 * off * room.theta[index(j)]
        room.weights[index(k)] = logit
        if k == 0 or logit > most:
            most = logit
    whole = 0.0
    for k in range(n.arms):
        weight = exponential(room.weights[index(k)] - most)
        room.weights[index(k)] = weight
        whole = weight if k == 0 else whole + weight
        room.ends[index(k)] = whole
    return whole


@device_function
def draw_group(n, low, high, slot, key, table, x, whole, room):
    """Arms and rewards of one prompt's group."""
    for pair in range((n.group + 1) // 2):
        w0, w1, w2, w3 = words_of_32(pair, slot, low, high, key)
        for second in range(2):
            i = 2 * pair + second
            if i < n.group:
                level = np.float64(w2 if second else w0) * UNIT * whole
                word = np.float64(w3 if second else w1)
                # Sums never decrease, so the sums below a level are the first ones.
                k = 0
                for m in range(n.arms - 1):
                    k += 1 if level >= room.ends[index(m)] else 0
                column = x * n.arms + k
                reward = table[index(rewards_at(n) + column)]
                for m in range(n.values - 1):
                    after = (m * n.contexts * n.arms) + column
                    if word >= table[index(law_at(n) + after)]:
                        reward = table[index(rewards_at(n) + after + n.contexts * n.arms)]
                room.arms[index(i)] = k
                room.rewards[index(i)] = reward


@device_function
def find_centre(n, table, x, whole, room):
    """f̄."""
    for j in range(n.d):
        s = 0.0
        for k in range(n.arms):
            s += room.weights[index(k)] * feature(n, table, room.theta, x, k, j)
        room.centre[index(j)] = s / whole


@device_function
def value_of(n, table, x, whole, weights):
    """V(x)."""
    value = 0.0
    for k in range(n.arms):
        value += weights[index(k)] * table[index(means_at(n) + k * n.contexts + x)]
    return value / whole


@device_function
def find_advantages(n, baseline, by_count, rewards):
    """Replace rewards by advantages."""
    if n.kind in (PROMPT_ONLY, VALUE):
        for i in range(n.group):
            rewards[index(i)] -= baseline
        return
    whole = 0.0
    for i in range(n.group):
        whole += rewards[index(i)]
    if n.kind == GRPO:
        share = 1.0 / (n.group - 1)
        for i in range(n.group):
            rewards[index(i)] -= (whole - rewards[index(i)]) * share
    elif n.kind == BY_COUNT:
        for i in range(n.group):
            rewards[index(i)] = by_count[index(int(rewards[index(i)]) * (n.group + 1) + int(whole))]
    else:
        share = 1.0 / n.group
        for i in range(n.group):
            rewards[index(i)] -= whole * share


@device_function
def project(n, t, theta, along):
    """Move θ to the nearest point of Θ."""
    square = 0.0
    for v in range(n.rank):
        s = 0.0
        for j in range(n.d):
            s += (theta[index(j)] - t.centre[j]) * t.basis[j * n.rank + v]
        along[v] = s
        square += s * s
    norm = sqrt(square)
    if norm > t.radius:
        excess = 1.0 - t.radius / norm
        for j in range(n.d):
            back = 0.0
            for v in range(n.rank):
                back += along[v] * t.basis[j * n.rank + v]
            theta[index(j)] -= excess * back


@device_function
def step_total(n, table, x, room):
    """Add a prompt's part to the sum of a step."""
    sure = n.kind in (GRPO, GROUP_MEAN)
    whole = 0.0
    for g in range(n.group):
        whole += room.rewards[index(g)]
    for j in range(n.d):
        s = room.total[index(j)]
        for g in range(n.group):
            s += room.rewards[index(g)] * feature(n, table, room.theta, x, room.arms[index(g)], j)
        # The advantages of grpo and the group mean sum to 0, so f̄ cancels.
        room.total[index(j)] = s if sure else s - whole * room.centre[index(j)]


@device_function
def path(n, rep, i, key, t, table, room, begin, out):
    """Run ``rep`` from column i of θ₀ (d, n); it fills column i of θ at the snapshots, (S, d, n)."""
    low, high = np.uint32(rep & 0xFFFFFFFF), np.uint32((rep >> 32) & 0xFFFFFFFF)
    for j in range(n.d):
        room.theta[index(j)] = begin[j, i]
    place = 0
    if t.snapshots[0] == 0:
        for j in range(n.d):
            out[0, j, i] = room.theta[index(j)]
        place = 1
    w0, w1, w2, w3 = low, low, low, low
    x = 0
    for step in range(1, n.steps + 1):
        for j in range(n.d):
            room.total[index(j)] = 0.0
        for b in range(n.batch):
            if n.contexts > 1:
                prompt = (step - 1) * n.batch + b
                if prompt % 4 == 0:
                    w0, w1, w2, w3 = words_of_32(prompt // 4, CONTEXT_SLOT, low, high, key)
                x = choose_prompt(n, w0, prompt, t, room.order)
                w0, w1, w2 = w1, w2, w3
            whole = softmax(n, table, x, room)
            draw_group(n, low, high, step * MOST_PROMPTS + b, key, table, x, whole, room)
            if n.kind not in (GRPO, GROUP_MEAN):
                find_centre(n, table, x, whole, room)
            baseline = t.constant
            if n.kind == VALUE:
                baseline = value_of(n, table, x, whole, room.weights)
            find_advantages(n, baseline, t.by_count, room.rewards)
            step_total(n, table, x, room)
        rate = t.rates[index(step - 1)] / (n.group * n.batch)
        for j in range(n.d):
            room.theta[index(j)] += rate * room.total[index(j)]
        if n.rank > 0:
            project(n, t, room.theta, room.along)
        if place < n.kept and t.snapshots[place] == step:
            for j in range(n.d):
                out[place, j, i] = room.theta[index(j)]
            place += 1


def _kernel(
    fixed: Shape, is_fixed: bool, arms: int, d: int, group: int, order: int, rank: int
) -> Any:
    """A kernel with this room, for a fixed shape or with the shape as its first argument."""

    @device_kernel
    def kernel(given, first, count, key, t, begin, out):
        n = fixed if is_fixed else given
        room = Room(
            cuda.local.array(d, float64),
            cuda.local.array(d, float64),
            cuda.local.array(d, float64),
            cuda.local.array(arms, float64),
            cuda.local.array(arms, float64),
            cuda.local.array(group, int32),
            cuda.local.array(group, float64),
            cuda.local.array(order, int32),
            cuda.local.array(rank, float64),
        )
        table = t.table
        copy = cuda.shared.array(0, float64)
        if n.staged:
            for j in range(cuda.threadIdx.x, len(table), cuda.blockDim.x):
                copy[index(j)] = table[index(j)]
            cuda.syncthreads()
            table = copy
        i = cuda.grid(1)
        if i < count:
            path(n, first + i, i, key, t, table, room, begin, out)

    return kernel


@lru_cache(maxsize=64)
def roomy(arms: int, d: int, group: int, order: int, rank: int) -> Any:
    """A kernel with this room, which takes its shape as the first argument."""
    return _kernel(Shape(*(0,) * len(Shape._fields)), False, arms, d, group, order, rank)


@lru_cache(maxsize=64)
def built_in(n: Shape) -> Any:
    """A kernel of one shape."""
    return _kernel(n, True, n.arms, n.d, n.group, n.contexts, max(n.rank, 1))
