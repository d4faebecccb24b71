"""The kernel of one prompt: a few lanes per replication, with outputs and sums in registers.

It serves what the cpu engine's lanes serve (:mod:`ustat_pg.engines.gradients.lanes`), where no two outcomes
have one arm and the quantities are few. Its shape is built in, so that the compiler unrolls all loops.

Each team adds up about its own first values. At the end all teams of a thread block move to those of the
first team.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numba import cuda, float64, uint32

from ....execution.kernels import one_at_a_time
from ....sampling.rng import CONTEXT_SLOT
from ...device import WARP, device_function, device_kernel, index, meet, total
from ...draws import LOW, words_of_32
from ..scalar import DISTANCE, FIXED, SHARED, WITHOUT_REPLACEMENT
from .groups import combination, count, count_of, search
from .kernels import copy
from .shapes import FEATURES_SQ, LINEAR, PROB, PROBS_SQ, REWARD, Places, Shape, after


@device_function
def pick(n, words, x, p, t, table, at_cells, at, chosen):
    """The outcomes of four words: by their cells, or by a search if a cell has several thresholds."""
    shift, none = np.uint32(n.shift), np.uint32(np.uint32(0xFFFFFFFF) >> np.uint32(n.shift))
    found = True
    for i in range(4):
        cell = np.uint32((x << (32 - n.shift)) + (words[i] >> shift))
        end = np.uint64(words[i]) + np.uint64(table[index(at_cells + cell)])
        o = np.uint32(np.uint32(end & LOW) >> shift)
        chosen[at + i] = o
        found = found and o != none
    if not found:
        for i in range(4):
            if chosen[at + i] == none:
                guide = p.guide + (x << (32 - n.shift)) + (words[i] >> shift)
                start, last = t.words[index(guide)], t.words[index(p.last + x)]
                ends = p.ends + x * n.outcomes
                chosen[at + i] = search(words[i], t.words, ends, start, last)


@device_function
def prompt_of(n, p, low, high, keys, t):
    """The prompt of a replication."""
    if n.contexts == 1 or n.design == FIXED:
        return np.uint32(0)
    word = words_of_32(np.uint32(0), np.uint32(CONTEXT_SLOT), low, high, keys)[0]
    if n.design == WITHOUT_REPLACEMENT:
        return np.uint32((np.uint64(word) * np.uint64(n.contexts)) >> np.uint64(32))
    start = t.words[index(p.context_guide + (word >> np.uint32(n.context_shift)))]
    return np.uint32(search(word, t.words, p.context_ends, start, t.words[index(p.context_last)]))


@device_function
def replicate(n, p, a, rep, keys, t, rows, at_rows, table, at_cells, counts, lane, own, value):
    """Compute the quantities of one replication, without their constants; all lanes have the same values."""
    ints, chosen, rewards = own
    low, high = np.uint32(rep & 0xFFFFFFFF), np.uint32((rep >> 32) & 0xFFFFFFFF)
    x = prompt_of(n, p, low, high, keys, t)
    row = at_rows + x * n.outcomes
    # The sum of -0.0 and a number is the number: the first additions are left out.
    whole, along_p, along_q, at_p, at_q = -0.0, -0.0, -0.0, -0.0, -0.0
    for turn in range(n.quads):
        quad = np.int32(lane + turn * n.lanes)
        words = words_of_32(np.uint32(quad), np.uint32(0), low, high, keys)
        pick(n, words, x, p, t, table, at_cells, 4 * turn, chosen)
        for i in range(4):
            if 4 * quad + i < n.group:
                o = chosen[4 * turn + i]
                z = rows[index(row + REWARD * n.rows + o)]
                slope = rows[index(row + LINEAR * n.rows + o)]
                rewards[4 * turn + i] = z
                whole += z
                along_p += z * slope
                along_q += slope
                if n.moving:
                    prob = rows[index(row + PROB * n.rows + o)]
                    at_p += z * prob
                    at_q += prob
                count(n, counts, o, ints)
    meet()
    whole = total(whole, n.lanes)
    pp, pq, qq = -0.0, -0.0, -0.0
    for turn in range(n.quads):
        for i in range(4):
            if 4 * (lane + turn * n.lanes) + i < n.group:
                often = float(count_of(n, counts, chosen[4 * turn + i], ints))
                z = rewards[4 * turn + i]
                qq += often
                pq += often * z
                pp += often * z * z
    meet()
    for turn in range(n.quads):
        for i in range(4):
            if 4 * (lane + turn * n.lanes) + i < n.group:
                ints[index(counts + (chosen[4 * turn + i] >> n.count_bits))] = 0
    scale = t.reals[index(p.prompt + 3 * x + FEATURES_SQ)] if n.form == SHARED else 1.0
    for q in range(n.quantities):
        e, other = a[n.first + q], a[n.second + q]
        of_p, of_q = combination(n, p, e, a[e], x, whole, 0.0, t)
        if a[n.kind + q] == DISTANCE:
            less_p, less_q = combination(n, p, other, a[other], x, whole, 0.0, t)
            of_p, of_q = of_p - less_p, of_q - less_q
        of_p, of_q = of_p * n.share, of_q * n.share
        s = of_p * (of_p * pp + 2.0 * of_q * pq) + of_q * of_q * qq
        weight = 0.0
        if n.moving:
            weight = whole * of_p + n.group * of_q
            s -= 2.0 * weight * (of_p * at_p + of_q * at_q)
        s *= scale
        if a[n.kind + q] != DISTANCE:
            s -= 2.0 * (of_p * along_p + of_q * along_q)
        s = total(s, n.lanes)
        if n.moving:
            s += scale * weight * weight * t.reals[index(p.prompt + 3 * x + PROBS_SQ)]
        value[index(q)] = s
    meet()


@device_function
def body(n, p, a, first, count, keys, t, out, chosen, rewards, base, value, sums):
    """Fill ``out`` (blocks, Q + products): the first values of each thread block, and sums about them."""
    reals, ints = cuda.shared.array(0, float64), cuda.shared.array(0, uint32)
    thread, threads = np.int32(cuda.threadIdx.x), np.int32(cuda.blockDim.x)
    team, lane = np.int32(thread >> n.lane_bits), np.int32(thread & (n.lanes - 1))
    rows, at_rows, table, at_cells = t.reals, p.row, t.words, p.cells
    if n.columns:
        rows, at_rows = reals, n.quantities
        copy(t.reals, p.row, reals, at_rows, n.columns * n.rows, thread, threads)
    if n.draws:
        table, at_cells = ints, n.first_integer - n.draws
        copy(t.words, p.cells, ints, at_cells, n.draws, thread, threads)
    i = thread
    while i < n.teams * n.words:
        ints[index(n.first_integer + i)] = 0
        i = after(i, threads)
    cuda.syncthreads()
    for i in range(n.products):
        sums[index(i)] = 0.0
    for q in range(n.quantities):
        base[index(q)] = 0.0
    done = 0
    counts = np.int32(n.first_integer + team * n.words)
    start, stride = np.int64(cuda.blockIdx.x) * n.teams, np.int64(cuda.gridDim.x) * n.teams
    while start < count:
        rep, own = first + start + team, (ints, chosen, rewards)
        replicate(n, p, a, rep, keys, t, rows, at_rows, table, at_cells, counts, lane, own, value)
        if start + team < count:
            for q in range(n.quantities):
                base[index(q)] = value[index(q)] if done == 0 else base[index(q)]
            for i in range(n.products):
                s = value[index(a[n.left + i])] - base[index(a[n.left + i])]
                if a[n.right + i] >= 0:
                    s *= value[index(a[n.right + i])] - base[index(a[n.right + i])]
                sums[index(i)] += s
            done += 1
        start += stride
    if thread == 0:
        for q in range(n.quantities):
            reals[index(q)] = base[index(q)]
    cuda.syncthreads()
    for i in range(n.products):
        # The sums of the quantities themselves come first.
        q, r = a[n.left + i], a[n.right + i]
        off, s = base[index(q)] - reals[index(q)], sums[index(i)]
        if r < 0:
            s += done * off
        else:
            off_r = base[index(r)] - reals[index(r)]
            s += off * sums[index(r)] + off_r * sums[index(q)] + done * off * off_r
        s = total(s if lane == 0 else 0.0, WARP)
        if thread % WARP == 0:
            reals[index(n.first_product + thread // WARP * n.products + i)] = s
    cuda.syncthreads()
    at_out = cuda.blockIdx.x * (n.quantities + n.products)
    if thread < n.quantities:
        out[index(at_out + thread)] = reals[index(thread)] + t.of_reals[index(p.added + thread)]
    if thread < n.products:
        s = 0.0
        for j in range(n.teams * n.lanes // WARP):
            s += reals[index(n.first_product + j * n.products + thread)]
        out[index(at_out + n.quantities + thread)] = s


@one_at_a_time
@lru_cache(maxsize=64)
def one_prompt(n: Shape, p: Places, a: tuple[int, ...]) -> Any:
    """A kernel of one shape, with its numbers as constants."""
    outputs, quantities, products = 4 * n.quads, n.quantities, n.products

    @device_kernel
    def made(first, count, keys, t, out):
        body(
            n,
            p,
            a,
            first,
            count,
            keys,
            t,
            out,
            cuda.local.array(outputs, uint32),
            cuda.local.array(outputs, float64),
            cuda.local.array(quantities, float64),
            cuda.local.array(quantities, float64),
            cuda.local.array(products, float64),
        )

    return made
