"""The scalar body of trajectories: one run of the meta-algorithm per thread of a GPU.

It does the arithmetic of :mod:`simulations.engines.runs.lanes` for one lane only, with the same forms
of features. But no thread stores a group: with A = a + b z, the group's sum is

    Σᵢ Aᵢ fᵢ = b Σᵢ zᵢ fᵢ + a Σᵢ fᵢ.

A run is in its thread's own memory, and its tables are in shared memory. A kernel is compiled for one
:class:`Shape` (:func:`built_in`), or it takes the shape as an argument (:func:`roomy`), so that one kernel
serves all shapes that its memory has room for.

Counters and places have 32 bits, and loops are ``while`` loops: those over a ``range`` compile to five
times as many instructions.
"""

from __future__ import annotations

from functools import lru_cache
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float64, uint32

from ustat_pg.engines.device import SIMULATED, device_function, device_kernel
from ustat_pg.engines.draws import words_of_32
from ustat_pg.engines.kinds import BY_COUNT, PROMPT_ONLY, VALUE
from ustat_pg.execution.compiled import fma
from ustat_pg.execution.kernels import one_at_a_time
from ustat_pg.sampling.rng import CONTEXT_SLOT, MOST_PROMPTS

from .lanes.plan import BENT, BITS_OF_ONE, EPOCHS, IID, SPACED, UNIT
from .lanes.softmax import LEAST_EXPONENT, series

CONSTANT, SHARE, SLOPE, RADIUS, NEAR, TABLE = range(6)
"""Places of a run's numbers: what PROMPT_ONLY subtracts; a = -share Σ z and b = slope of advantages a + b z;
a ball's radius; the largest spread of logits for which powers are used; and where tables begin.
"""

WHOLE = 2.0**52
"""The number whose last bits hold a whole number that is added to it."""

BITS_OF_WHOLE = np.int64(0x4330000000000000)

COMPARED = 32
"""The most sums that a kernel of one shape compares one by one: it has those of arms in registers."""


class Shape(NamedTuple):
    """The shape for which a kernel is compiled, and where the parts of a run's numbers begin.

    These are, from TABLE on: features gₖ or φ(x, k) (K e, X), offset (K, X), thresholds of rewards except
    the last ((M - 1) K, X), rewards (M K, X), their means (K, X), δ(x) (d, X) or bends (K d, X); the
    offset of the logits (K, X) and thresholds of ρ (X,); advantages of failures and of successes by the
    number of successes (2, G+1); centre (d,) and basis (d, r) of a ball; rates per output (T,) and snapshots
    (S,). For equally spaced arms, the first offset is the weight at h = 0. WHOLE is added to thresholds.

    Arguments:
        arms, d, contexts, values: K, the parameters, X, and the rewards of an arm.
        width: e, the number of features: d, or 1 for those that are shared.
        group, batch, steps, kept: G, B, T, and the snapshots.
        kind, design, form: numbered as in :mod:`~ustat_pg.engines.kinds` and
            :mod:`~simulations.engines.runs.lanes.plan`.
        shared: whether arms share the direction δ(x).
        sure: whether the advantages of a group sum to 0, so that f̄ is not needed.
        plain: whether all arms' rewards have the same values.
        rank: the directions in which a ball bounds θ, 0 without one.
        half_arms, half_contexts: the first steps of bisections; 0 if all are compared.
        offset, law, rewards, means, ways, logits, chances, by_count, centre, basis, rates, snapshots: where
            these parts begin.
        staged: whether all parts but the rates and the snapshots are copied to shared memory.
        one: 1. Loops take steps of this size, which a compiler that does not know it cannot unroll.
    """

    arms: int
    d: int
    contexts: int
    values: int
    width: int
    group: int
    batch: int
    steps: int
    kept: int
    kind: int
    design: int
    form: int
    shared: int
    sure: int
    plain: int
    rank: int
    half_arms: int
    half_contexts: int
    offset: int
    law: int
    rewards: int
    means: int
    ways: int
    logits: int
    chances: int
    by_count: int
    centre: int
    basis: int
    rates: int
    snapshots: int
    staged: int
    one: int

    @property
    def ordered(self) -> int:
        """The prompts whose order a run stores."""
        return self.contexts if self.design == EPOCHS else 1


def narrow(shape: Shape) -> Shape:
    """The shape in numbers of 32 bits, as kernels read it."""
    numbers: Any = map(np.uint32, shape)
    return Shape(*numbers)


class Room(NamedTuple):
    """A run's own memory. Only the order of an epoch's prompts needs a value at the start.

    Arguments:
        theta, total: θ, and the sum of the step.
        ends: the sums of the arms' weights up to each arm; logits before.
        centre: Σₖ weightₖ fₖ.
        features, products: Σᵢ fᵢ and Σᵢ zᵢ fᵢ over a group.
        order: the order of an epoch's prompts.
        along: a projection's coordinates.
    """

    theta: Any
    total: Any
    ends: Any
    centre: Any
    features: Any
    products: Any
    order: Any
    along: Any


if SIMULATED:

    def bits_of(number: Any) -> Any:
        """The bits of a float."""
        return np.float64(number).view(np.int64)

    def of_bits(bits: Any) -> Any:
        """The float with these bits."""
        return np.int64(bits).view(np.float64)

else:
    from numba.cuda.libdevice import double_as_longlong as bits_of
    from numba.cuda.libdevice import longlong_as_double as of_bits


@device_function
def at(place):
    """A place of a run's numbers or memory, which are fewer than 2³²."""
    return np.uint32(place)


@device_function
def whole_of(word):
    """WHOLE + w of a word's bits, because a conversion takes four times as long."""
    return of_bits(np.int64(word) | BITS_OF_WHOLE)


@device_function
def power(y):
    """eʸ for |y| <= 708."""
    e, whole = series(y)
    return e * of_bits((bits_of(whole) << np.int64(52)) + BITS_OF_ONE)


@device_function
def exponential(x):
    """eˣ for x <= 0; 0 below -708."""
    e = power(x if x > LEAST_EXPONENT else LEAST_EXPONENT)
    return e if x >= LEAST_EXPONENT else 0.0


@device_function
def feature(n, table, x, room, k, j):
    """φ(x, k)ⱼ, minus ψ(x, k)ⱼ θⱼ if logits bend; or gₖ."""
    row = (k * n.width + j) * n.contexts + x
    value = table[at(TABLE + row)]
    if n.form == BENT:
        value -= table[at(n.ways + row)] * room.theta[at(j)]
    return value


@device_function
def choose(n, total, half, level, ends, first):
    """The first of ``total`` sums from ``first`` on that is above a level; they never decrease."""
    k = at(0)
    if half > 0:
        while half > 0:
            m = at(k + half)
            if m < total and level >= ends[at(first + m - 1)]:
                k = m
            half = at(half >> 1)
        return k
    m = at(1)
    while m < total:
        k = m if level >= ends[at(first + m - 1)] else k
        m = at(m + n.one)
    return k


@device_function
def choose_prompt(n, word, place, table, order):
    """The context of the prompt at a place in its epoch."""
    if n.design == IID:
        return choose(n, n.contexts, n.half_contexts, whole_of(word), table, n.chances)
    if place == 0:
        x = at(0)
        while x < n.contexts:
            order[x] = x
            x = at(x + n.one)
    other = at(place + ((np.int64(word) * np.int64(n.contexts - place)) >> 32))
    taken = order[other]
    order[other] = order[place]
    order[place] = taken
    return taken


@device_function
def find_along(n, table, x, theta):
    """⟨δ(x), θ⟩."""
    along = table[at(n.ways + x)] * theta[at(0)]
    j = at(1)
    while j < n.d:
        along = fma(table[at(n.ways + j * n.contexts + x)], theta[at(j)], along)
        j = at(j + n.one)
    return along


@device_function
def find_logits(n, table, x, along, room):
    """Logits, in the place of ``ends``; returns the greatest."""
    most = 0.0
    k = at(0)
    while k < n.arms:
        row = k * n.contexts + x
        logit = table[at(n.logits + row)]
        if n.shared:
            logit = fma(table[at(TABLE + row)], along, logit)
        else:
            j = at(0)
            while j < n.d:
                row = (k * n.d + j) * n.contexts + x
                logit = fma(table[at(TABLE + row)], room.theta[at(j)], logit)
                j = at(j + n.one)
        if n.form == BENT:
            j = at(0)
            while j < n.d:
                off = table[at(n.ways + (k * n.d + j) * n.contexts + x)] * room.theta[at(j)]
                logit = fma(-0.5 * off, room.theta[at(j)], logit)
                j = at(j + n.one)
        room.ends[at(k)] = logit
        most = logit if k == 0 or logit > most else most
        k = at(k + n.one)
    return most


@device_function
def softmax(n, table, x, room):
    """The sums of weights up to each arm, with f̄ and V(x) times their total where the kind needs them.

    Returns:
        the total, and V(x) times it.
    """
    along, most, ratio, raised = 0.0, 0.0, 0.0, 1.0
    if n.shared:
        along = find_along(n, table, x, room.theta)
    near = n.form == SPACED and abs(along) <= table[at(NEAR)]
    if near:
        ratio = power(along)
        k = at(0)
        while k < n.arms:
            room.ends[at(k)] = table[at(n.offset + k * n.contexts + x)] * raised
            raised *= ratio
            k = at(k + n.one)
    else:
        most = find_logits(n, table, x, along, room)
        k = at(0)
        while k < n.arms:
            room.ends[at(k)] = exponential(room.ends[at(k)] - most)
            k = at(k + n.one)
    # The advantages of grpo and the group mean sum to 0, so f̄ cancels.
    if not n.sure:
        j = at(0)
        while j < n.width:
            room.centre[at(j)] = 0.0
            j = at(j + n.one)
    whole, value = 0.0, 0.0
    k = at(0)
    while k < n.arms:
        weight = room.ends[at(k)]
        whole += weight
        room.ends[at(k)] = whole
        if not n.sure:
            j = at(0)
            while j < n.width:
                room.centre[at(j)] = fma(
                    weight, feature(n, table, x, room, k, j), room.centre[at(j)]
                )
                j = at(j + n.one)
        if n.kind == VALUE:
            value = fma(weight, table[at(n.means + k * n.contexts + x)], value)
        k = at(k + n.one)
    return whole, value


@device_function
def draw_group(n, low, high, slot, key, table, x, whole, room):
    """Draw one prompt's group and add up its features, with and without rewards; returns Σ z."""
    j = at(0)
    while j < n.width:
        room.features[at(j)] = 0.0
        room.products[at(j)] = 0.0
        j = at(j + n.one)
    unit, total = whole * UNIT, 0.0
    w0, w1, w2, w3 = low, low, low, low
    i = at(0)
    while i < n.group:
        if i & 1 == 0:
            w0, w1, w2, w3 = words_of_32(i >> 1, slot, low, high, key)
        level, luck = (whole_of(w0) - WHOLE) * unit, whole_of(w1)
        w0, w1 = w2, w3
        k = choose(n, n.arms, n.half_arms, level, room.ends, 0)
        row = k * n.contexts + x
        column = x if n.plain else row
        reward = table[at(n.rewards + column)]
        m = at(0)
        while m < (n.values - 1) * n.arms * n.contexts:
            if luck >= table[at(n.law + m + row)]:
                reward = table[at(n.rewards + n.arms * n.contexts + m + column)]
            m = at(m + n.arms * n.contexts)
        total += reward
        j = at(0)
        while j < n.width:
            f = feature(n, table, x, room, k, j)
            room.features[at(j)] += f
            room.products[at(j)] = fma(reward, f, room.products[at(j)])
            j = at(j + n.one)
        i = at(i + n.one)
    return total


@device_function
def step_total(n, table, x, whole, value, total, room):
    """Add a prompt's part to the sum of a step."""
    base, slope, pull = -total * table[at(SHARE)], table[at(SLOPE)], 0.0
    if n.kind == PROMPT_ONLY:
        base = -table[at(CONSTANT)]
    elif n.kind == VALUE:
        base = -value / whole
    elif n.kind == BY_COUNT:
        wins = n.by_count + int(total)
        base = table[at(wins)]
        slope = table[at(wins + n.group + 1)] - base
    if not n.sure:
        pull = fma(slope, total, base * n.group) / whole
    j = at(0)
    while j < n.width:
        part = fma(slope, room.products[at(j)], base * room.features[at(j)])
        if not n.sure:
            part = fma(-pull, room.centre[at(j)], part)
        if n.shared:
            i = at(0)
            while i < n.d:
                way = table[at(n.ways + i * n.contexts + x)]
                room.total[at(i)] = fma(way, part, room.total[at(i)])
                i = at(i + n.one)
        else:
            room.total[at(j)] += part
        j = at(j + n.one)


@device_function
def project(n, table, theta, along):
    """Move θ to the nearest point of Θ."""
    square = 0.0
    v = at(0)
    while v < n.rank:
        s = 0.0
        j = at(0)
        while j < n.d:
            s += (theta[at(j)] - table[at(n.centre + j)]) * table[at(n.basis + j * n.rank + v)]
            j = at(j + n.one)
        along[at(v)] = s
        square += s * s
        v = at(v + n.one)
    norm, radius = sqrt(square), table[at(RADIUS)]
    # All threads subtract, so that those of a warp stay together: 0 within Θ.
    excess = 1.0 - radius / (norm if norm > radius else radius)
    j = at(0)
    while j < n.d:
        back = 0.0
        v = at(0)
        while v < n.rank:
            back += along[at(v)] * table[at(n.basis + j * n.rank + v)]
            v = at(v + n.one)
        theta[at(j)] -= excess * back
        j = at(j + n.one)


@device_function
def path(n, rep, i, key, numbers, table, room, begin, out):
    """Run ``rep`` from row i of θ₀ (n, d); it fills row i of θ at the snapshots, (n, S, d)."""
    low, high = np.uint32(rep & 0xFFFFFFFF), np.uint32((rep >> 32) & 0xFFFFFFFF)
    j = at(0)
    while j < n.d:
        room.theta[at(j)] = begin[at(i), at(j)]
        j = at(j + n.one)
    w0, w1, w2, w3 = low, low, low, low
    x, prompt, place, kept = at(0), at(0), at(0), at(0)
    wanted = at(numbers[at(n.snapshots)])
    step = at(0)
    while True:
        if step == wanted:
            j = at(0)
            while j < n.d:
                out[at(i), kept, at(j)] = room.theta[at(j)]
                j = at(j + n.one)
            kept = at(kept + 1)
            if kept < n.kept:
                wanted = at(numbers[at(n.snapshots + kept)])
        if step == n.steps:
            break
        step = at(step + 1)
        j = at(0)
        while j < n.d:
            room.total[at(j)] = 0.0
            j = at(j + n.one)
        b = at(0)
        while b < n.batch:
            if n.contexts > 1:
                if prompt & 3 == 0:
                    w0, w1, w2, w3 = words_of_32(prompt >> 2, CONTEXT_SLOT, low, high, key)
                x = choose_prompt(n, w0, place, table, room.order)
                w0, w1, w2 = w1, w2, w3
                prompt = at(prompt + 1)
                place = at(place + 1)
                place = place if place < n.contexts else at(0)
            whole, value = softmax(n, table, x, room)
            slot = step * MOST_PROMPTS + b
            total = draw_group(n, low, high, slot, key, table, x, whole, room)
            step_total(n, table, x, whole, value, total, room)
            b = at(b + n.one)
        rate = numbers[at(n.rates + step - 1)]
        j = at(0)
        while j < n.d:
            room.theta[at(j)] = fma(rate, room.total[at(j)], room.theta[at(j)])
            j = at(j + n.one)
        if n.rank > 0:
            project(n, table, room.theta, room.along)


def _kernel(fixed: Shape, is_fixed: bool, staged: int, arms: int, d: int, order: int) -> Any:
    """A kernel with this room, for a fixed shape or with the shape as its first argument."""

    @device_kernel
    def kernel(given, first, count, key, numbers, begin, out):
        n = fixed if is_fixed else given
        room = Room(
            cuda.local.array(d, float64),
            cuda.local.array(d, float64),
            cuda.local.array(arms, float64),
            cuda.local.array(d, float64),
            cuda.local.array(d, float64),
            cuda.local.array(d, float64),
            cuda.local.array(order, uint32),
            cuda.local.array(d, float64),
        )
        table = numbers
        if staged:
            table = cuda.shared.array(0, float64)
            j = at(cuda.threadIdx.x)
            while j < n.rates:
                table[j] = numbers[j]
                j = at(j + cuda.blockDim.x)
            cuda.syncthreads()
        i = cuda.grid(1)
        if i < count:
            path(n, first + i, i, key, numbers, table, room, begin, out)

    return kernel


@one_at_a_time
@lru_cache(maxsize=64)
def roomy(staged: int, arms: int, d: int, order: int) -> Any:
    """A kernel with this room, which takes its shape as the first argument."""
    return _kernel(narrow(Shape(*(0,) * len(Shape._fields))), False, staged, arms, d, order)


@one_at_a_time
@lru_cache(maxsize=64)
def built_in(n: Shape) -> Any:
    """A kernel of one shape."""
    halves = {
        "half_arms": n.half_arms * (n.arms > COMPARED),
        "half_contexts": n.half_contexts * (n.contexts > COMPARED),
    }
    n = n._replace(**halves)
    return _kernel(narrow(n), True, n.staged, n.arms, n.d, n.ordered)
