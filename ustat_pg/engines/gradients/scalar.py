"""The scalar bodies of the cuda engine: one replication of a minibatch, one thread each.

Each is a plain function of one replication, its scratch passed in, that numba compiles for a CPU
too: a law test runs it there beside the cpu engine. What :mod:`ustat_pg.engines.gradients.lanes` does
one replication at a time (prompts, groups, inner products, squares) is called from there, so that
both engines run the same lines. As there, an estimator is a combination of

    P = (1/G) Σ zᵢ sᵢ,   Q = (1/G) Σ sᵢ,   W = (1/G) Σ Aᵢ sᵢ  (Aᵢ norm-weighted),

:func:`minibatch` takes every cell and quantity, :func:`one_prompt` what most claims ask. The
scratch of all threads stands in arrays whose last axis is the thread, so that threads side by side
read numbers side by side.

Kernels are compiled anew in each process: numba's cache follows the file that a kernel stands in,
and these call another's functions. numba 0.68 has no option against fused multiply-adds on a
device; a float here may differ from the cpu engine's in the last places, an integer never does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import cuda, njit
from numpy.typing import NDArray

from ...rng import CONTEXT_SLOT
from .lanes import (
    DENSE,
    DISTANCE,
    GROUP_MEAN,
    GRPO,
    LINEAR,
    PROB,
    PROJECTION,
    PROMPT_ONLY,
    REWARD,
    SQUARED_ERROR,
    WITHOUT_REPLACEMENT,
    _apply,
    _coefficients,
    _cross_gram,
    _group,
    _own_gram,
    _pick_at,
    _prompts,
    _square,
)

__all__ = [
    "Room",
    "draw_kernel",
    "floor_kernel",
    "minibatch",
    "minibatch_kernel",
    "one_prompt",
    "one_prompt_kernel",
    "philox",
    "reduce_kernel",
]

_SLOT = np.uint64(CONTEXT_SLOT)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


class Room(NamedTuple):
    """Scratch of n threads, the last axis n: what a thread reads before it has written is order.

    Arguments:
        order, undo, xs: for the prompts, (X, n), (B, n), (B, n).
        chosen: outcomes, or arms, of a group, (G, n).
        rewards: of a group, (G, n), for one_prompt.
        mass: weights by arm or coordinate, (V, B, W, n); (1, K, 2, n) for one_prompt.
        weights: (V, G, n).
        sums: of rewards, (B, n).
        gram: (B, B, V, V, n).
        lin, lin_along: (B, V, n), (J, B, V, n).
        coef: (E, B, V, n); diff: (B, V, n).
    """

    order: NDArray[np.int64]
    undo: NDArray[np.int64]
    xs: NDArray[np.int64]
    chosen: NDArray[np.int32]
    rewards: NDArray[np.float64]
    mass: NDArray[np.float64]
    weights: NDArray[np.float64]
    sums: NDArray[np.float64]
    gram: NDArray[np.float64]
    lin: NDArray[np.float64]
    lin_along: NDArray[np.float64]
    coef: NDArray[np.float64]
    diff: NDArray[np.float64]


@njit(nogil=True, inline="always")
def philox(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> Any:
    """Philox 4x32-10 of :mod:`ustat_pg.rng`; words of 32 bits in, words in eight bytes out.

    Between rounds words stand in four bytes: the device's compiler then multiplies 32 bits by 32.
    """
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    w0, w1, w2, w3 = np.uint32(c0), np.uint32(c1), np.uint32(c2), np.uint32(c3)
    for _ in range(10):
        product_0 = np.uint64(0xD2511F53) * np.uint64(w0)
        product_1 = np.uint64(0xCD9E8D57) * np.uint64(w2)
        w0 = np.uint32((product_1 >> half) ^ np.uint64(w1) ^ k0)
        w1 = np.uint32(product_1 & mask)
        w2 = np.uint32((product_0 >> half) ^ np.uint64(w3) ^ k1)
        w3 = np.uint32(product_0 & mask)
        k0 = (k0 + np.uint64(0x9E3779B9)) & mask
        k1 = (k1 + np.uint64(0xBB67AE85)) & mask
    return np.uint64(w0), np.uint64(w1), np.uint64(w2), np.uint64(w3)


@njit(nogil=True)
def _choose(design: Any, rep: Any, key: Any, tables: Any, order: Any, undo: Any, xs: Any) -> None:
    """The prompts of one replication, (B,)."""
    if design == WITHOUT_REPLACEMENT:
        for x in range(len(order)):
            order[x] = x
    _prompts(design, rep, key, tables.contexts, order, undo, xs)


@njit(nogil=True, error_model="numpy")
def minibatch(
    rep: Any,
    i: Any,
    key: Any,
    group: Any,
    design: Any,
    tables: Any,
    asked: Any,
    room: Any,
    out: Any,
) -> None:
    """The quantities of replication ``rep``, (Q,), in column i of the scratch.

    One round of :func:`ustat_pg.engines.gradients.lanes.block`.
    """
    form, arm, reward, norms = tables.form, tables.arm, tables.reward, tables.norms
    dense, linear, along = tables.dense, tables.linear, asked.along
    xs, chosen, sums = room.xs[:, i], room.chosen[:, i], room.sums[:, i]
    mass, weights, gram = room.mass[:, :, :, i], room.weights[:, :, i], room.gram[:, :, :, :, i]
    lin, lin_along = room.lin[:, :, i], room.lin_along[:, :, :, i]
    coef, diff = room.coef[:, :, :, i], room.diff[:, :, i]
    vectors, batch, width = mass.shape
    directions = along.shape[0]
    share, per_prompt = 1.0 / group, 1.0 / batch
    _choose(design, rep, key, tables, room.order[:, i], room.undo[:, i], xs)
    for b in range(batch):
        x = xs[b]
        _group(rep, b, key, tables.outcomes, x, chosen)
        for v in range(vectors):
            lin[b, v] = 0.0
            for j in range(directions):
                lin_along[j, b, v] = 0.0
            if form == DENSE or batch > 1:
                for k in range(width):
                    mass[v, b, k] = 0.0
            else:
                for n in range(group):
                    mass[v, b, arm[x, chosen[n]]] = 0.0
        own_sum = 0.0
        for n in range(group):
            own_sum += reward[x, chosen[n]]
        sums[b] = own_sum
        weight_sum = 0.0
        weighted_sum = 0.0
        if asked.weighted:
            for n in range(group):
                weight_sum += norms[x, arm[x, chosen[n]]]
                weighted_sum += norms[x, arm[x, chosen[n]]] * reward[x, chosen[n]]
        for n in range(group):
            k = arm[x, chosen[n]]
            z = reward[x, chosen[n]]
            for v in range(vectors):
                w = share
                if v == 0:
                    w = z * share
                elif v == 2:
                    own = _others(x, n, chosen, tables, weight_sum, weighted_sum)
                    w = share * (z - own)
                weights[v, n] = w
                lin[b, v] += w * linear[x, k]
                for j in range(directions):
                    lin_along[j, b, v] += w * along[j, x, k]
                if form == DENSE:
                    for m in range(width):
                        mass[v, b, m] += w * dense[x, k, m]
                else:
                    mass[v, b, k] += w
        if form == DENSE:
            for v in range(vectors):
                for u in range(v + 1):
                    s = 0.0
                    for m in range(width):
                        s += mass[v, b, m] * mass[u, b, m]
                    gram[b, b, v, u] = s
                    gram[b, b, u, v] = s
        else:
            _own_gram(x, b, chosen, tables, weights, mass, gram)
    if batch > 1:
        _cross_gram(xs, tables, mass, gram)
    _coefficients(asked, group, xs, sums, coef)
    for q in range(len(asked.quantity)):
        first, second = asked.first[q], asked.second[q]
        if asked.quantity[q] == DISTANCE:
            for b in range(batch):
                for v in range(vectors):
                    diff[b, v] = coef[first, b, v] - coef[second, b, v]
            out[q] = _square(diff, gram) * per_prompt * per_prompt
        elif asked.quantity[q] == SQUARED_ERROR:
            out[q] = (
                _square(coef[first], gram) * per_prompt * per_prompt
                - 2.0 * _apply(coef[first], lin) * per_prompt
                + tables.target_sq
            )
        else:
            s = _apply(coef[first], lin_along[second]) * per_prompt - asked.target_along[second]
            out[q] = s if asked.quantity[q] == PROJECTION else s * s


@njit(nogil=True, error_model="numpy")
def _others(x: Any, i: Any, chosen: Any, tables: Any, weight: Any, weighted: Any) -> Any:
    """The norm-weighted mean reward of a group's other outputs; the sums are the whole group's."""
    arm, reward, norms = tables.arm, tables.reward, tables.norms
    norm = norms[x, arm[x, chosen[i]]]
    others = 0.0
    others_weighted = 0.0
    if weight - norm > 1e-3 * weight:
        others = weight - norm
        others_weighted = weighted - norm * reward[x, chosen[i]]
    else:
        # The own norm dwarfs the others: add them up rather than subtract.
        for j in range(len(chosen)):
            if j != i:
                n = norms[x, arm[x, chosen[j]]]
                others += n
                others_weighted += n * reward[x, chosen[j]]
    # 0/0 is a baseline of 0 by definition, which is minus the centre here.
    return others_weighted / others if others > 0.0 else -tables.centre[x]


@njit(nogil=True, error_model="numpy")
def one_prompt(
    rep: Any,
    i: Any,
    key: Any,
    group: Any,
    design: Any,
    tables: Any,
    asked: Any,
    tabled: Any,
    room: Any,
    out: Any,
) -> None:
    """What :func:`minibatch` does, for batch 1, scores in kron form, and quantities of P and Q alone.

    Outputs of the same arm are found in a table by arm, or, where ``tabled`` is false, by comparing
    each output with those before it: no memory but the group's own.
    """
    row, arm = tables.row, tables.arm
    ends, guide, shift = tables.outcomes.ends, tables.outcomes.guide, tables.outcomes.shift
    chosen, rewards, mass = room.chosen[:, i], room.rewards[:, i], room.mass[0, :, :, i]
    x = np.int64(0)
    if len(ends) > 1:
        _choose(design, rep, key, tables, room.order[:, i], room.undo[:, i], room.xs[:, i])
        x = room.xs[0, i]
    if tabled:
        for k in range(len(mass)):
            mass[k, 0] = 0.0
            mass[k, 1] = 0.0
    whole = at_p = at_q = lin_p = lin_q = pp = pq = qq = 0.0
    zero = np.uint64(0)
    w0, w1, w2, w3 = zero, zero, zero, zero
    for n in range(group):
        if n % 4 == 0:
            w0, w1, w2, w3 = philox(
                np.uint64(n // 4), zero, rep & _LOW, rep >> _HALF, key[0], key[1]
            )
        j = _pick_at(w0, x, ends, guide, shift)
        w0, w1, w2 = w1, w2, w3
        z, prob, linear, k = row[x, j, REWARD], row[x, j, PROB], row[x, j, LINEAR], arm[x, j]
        whole += z
        at_p += z * prob
        at_q += prob
        lin_p += z * linear
        lin_q += linear
        before = 0.0
        often = 0.0
        if tabled:
            before = mass[k, 0]
            often = mass[k, 1]
            mass[k, 0] = before + z
            mass[k, 1] = often + 1.0
        else:
            for m in range(n):
                if chosen[m] == k:
                    before += rewards[m]
                    often += 1.0
            chosen[n] = k
            rewards[n] = z
        pp += z * (2.0 * before + z)
        pq += z * often + before + z
        qq += 2.0 * often + 1.0
    share, scale, square = 1.0 / group, tables.features_sq[x], tables.probs_sq[x]
    for q in range(len(asked.quantity)):
        u, v = _multiples(asked, asked.first[q], x, group, whole)
        error = 1.0
        if asked.quantity[q] == DISTANCE:
            error = 0.0
            other_u, other_v = _multiples(asked, asked.second[q], x, group, whole)
            u -= other_u
            v -= other_v
        u *= share
        v *= share
        both = u * u * pp + 2.0 * u * v * pq + v * v * qq
        sum_ = u * whole + v * group
        at = u * at_p + v * at_q
        out[q] = scale * (both - 2.0 * sum_ * at + sum_ * sum_ * square) + error * (
            tables.target_sq - 2.0 * (u * lin_p + v * lin_q)
        )


@njit(nogil=True, error_model="numpy")
def _multiples(asked: Any, e: Any, x: Any, group: Any, whole: Any) -> Any:
    """An estimator's multiples of P and Q, from the sum of its group's rewards."""
    kind = asked.kinds[e]
    if kind == PROMPT_ONLY:
        return 1.0, -asked.baselines[e, x]
    if kind == GRPO:
        return group / (group - 1.0), -whole / (group - 1.0)
    if kind == GROUP_MEAN:
        return 1.0, -whole / group
    return np.nan, np.nan


@cuda.jit
def minibatch_kernel(
    first: Any,
    start: Any,
    count: Any,
    key: Any,
    group: Any,
    design: Any,
    tables: Any,
    asked: Any,
    room: Any,
    values: Any,
) -> None:
    """Fill columns ``start`` to ``start + count`` of values (Q, R): one replication a thread."""
    i: Any = cuda.grid(1)  # type: ignore[call-arg]
    if i < count:
        rep = np.uint64(first) + np.uint64(start + i)
        minibatch(rep, i, key, group, design, tables, asked, room, values[:, start + i])


@cuda.jit
def one_prompt_kernel(
    first: Any,
    start: Any,
    count: Any,
    key: Any,
    group: Any,
    design: Any,
    tables: Any,
    asked: Any,
    tabled: Any,
    room: Any,
    values: Any,
) -> None:
    """Fill columns ``start`` to ``start + count`` of values (Q, R): one replication a thread."""
    i: Any = cuda.grid(1)  # type: ignore[call-arg]
    if i < count:
        rep = np.uint64(first) + np.uint64(start + i)
        one_prompt(rep, i, key, group, design, tables, asked, tabled, room, values[:, start + i])


@cuda.jit
def draw_kernel(
    first: Any,
    count: Any,
    key: Any,
    design: Any,
    tables: Any,
    order: Any,
    undo: Any,
    xs: Any,
    contexts: Any,
    chosen: Any,
) -> None:
    """Fill contexts (B, count) and outcome numbers (B, G, count)."""
    i: Any = cuda.grid(1)  # type: ignore[call-arg]
    if i < count:
        rep = np.uint64(first) + np.uint64(i)
        _choose(design, rep, key, tables, order[:, i], undo[:, i], xs[:, i])
        for b in range(len(contexts)):
            contexts[b, i] = xs[b, i]
            _group(rep, b, key, tables.outcomes, contexts[b, i], chosen[b, :, i])


@cuda.jit
def reduce_kernel(values: Any, count: Any, tiles: Any, base: Any, sums: Any, products: Any) -> None:
    """Sums (tiles, Q) and products (tiles, Q, Q) about the first replication's
    values ``base`` (Q,), of values (Q, R).

    Tile t holds replications t, t + tiles, …, added in that order whatever the launch.
    """
    i: Any = cuda.grid(1)  # type: ignore[call-arg]
    used, total = sums.shape
    if i < used * total:
        # Threads side by side read replications side by side.
        q, t = i // used, i % used
        for p in range(q + 1):
            products[t, q, p] = 0.0
        added = 0.0
        for r in range(t, count, tiles):
            off = values[q, r] - values[q, 0]
            added += off
            for p in range(q + 1):
                products[t, q, p] += off * (values[p, r] - values[p, 0])
        sums[t, q] = added
        if t == 0:
            base[q] = values[q, 0]


@cuda.jit
def floor_kernel(first: Any, count: Any, key: Any, slots: Any, blocks: Any, out: Any) -> None:
    """The words of ``blocks`` blocks at each of ``slots`` slots, and nothing else: their xor, (count,).

    What no engine can be faster than: benchmarks compare with it.
    """
    i: Any = cuda.grid(1)  # type: ignore[call-arg]
    if i < count:
        rep = np.uint64(first) + np.uint64(i)
        seen = np.uint64(0)
        for slot in range(slots):
            for block in range(blocks):
                w0, w1, w2, w3 = philox(
                    np.uint64(block), np.uint64(slot), rep & _LOW, rep >> _HALF, key[0], key[1]
                )
                seen ^= w0 ^ w1 ^ w2 ^ w3
        out[i] = seen
