"""The warps of the cuda engine: a few lanes of a warp per replication, with sums on the device.

A team of lanes takes a replication, and its peers share one of the prompts. Each lane draws four outputs
at a time, counts them in shared memory and sums its share. Shuffles add the shares in a fixed
order. The quantities follow from inner products of the vectors P, Q and W of
:mod:`ustat_pg.engines.gradients.scalar`, for each prompt; for dense scores, from their coordinates.

Team t of thread block b takes the replications (round · blocks + b) · teams + t, and a thread block adds
its teams in order. So no result depends on the number of thread blocks that run at once. All lanes of a warp
run all steps, also those without a replication or a prompt, which add nothing.

The functions of a warp call the shape n, the places of tables p, what is asked a, the tables t, and the
thread's position ``at``; ``own`` is the size of a group, or 0 for lanes without a prompt.

A kernel is compiled for a :class:`Shape`. Its numbers are arguments or constants; constants are
faster, but each shape needs a new compilation (:func:`built_in`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numba import cuda, float64, uint32

from ....execution.kernels import one_at_a_time
from ...device import any_lane, device_function, device_kernel, meet, short
from ..scalar import DENSE, SHARED, SQUARED_PROJECTION
from .groups import coefficients, draw_group, draw_prompts, linear_parts, prompt_sums
from .pairs import add_coordinates, add_products
from .shapes import Place, Places, Shape, after


@device_function
def replicate(n, p, a, rep, keys, t, draws, at_guide, rows, at_rows, at, ints, reals):
    """Compute the quantities of one replication in the first part of its team's values."""
    low, high = np.uint32(rep & 0xFFFFFFFF), np.uint32((rep >> 32) & 0xFFFFFFFF)
    together = np.int32(n.lanes >> n.peer_bits)
    parts = n.lanes if n.form == DENSE else together
    q = np.int32(at.lane)
    while q < parts * n.quantities:
        reals[short(at.doubles + n.values + q)] = 0.0
        q = after(q, n.lanes)
    draw_prompts(n, p, low, high, keys, t, at, ints)
    turn = np.int32(0)
    while turn < n.batch:
        b = np.int32(turn + at.part)
        own = n.group if b < n.batch else 0
        b = b if b < n.batch else np.int32(0)
        x = ints[short(at.integers + b)]
        draw_group(n, p, own, low, high, b, x, keys, t, draws, at_guide, at, ints)
        meet()
        prompt_sums(n, p, own, b, x, rows, at_rows, t, at, ints, reals)
        coefficients(n, p, a, own, b, x, t, at, reals)
        linear_parts(n, p, a, own, b, x, rows, at_rows, t, at, ints, reals)
        turn = after(turn, together)
    if n.form == DENSE:
        add_coordinates(n, p, a, rows, at_rows, t, at, ints, reals)
    else:
        turn = np.int32(0)
        while turn < n.batch:
            c = np.int32(0)
            while c < n.batch and c < turn + together:
                b = np.int32(turn + at.part)
                own = n.group if c <= b < n.batch else 0
                b = b if b < n.batch else np.int32(0)
                x, y = ints[short(at.integers + b)], ints[short(at.integers + c)]
                if x != y and n.form != SHARED:
                    own = 0
                if any_lane(own > 0):
                    add_products(n, p, a, own, b, c, x, y, rows, at_rows, t, at, ints, reals)
                c = after(c, n.one)
            turn = after(turn, together)
    meet()
    values = np.int32(at.doubles + n.values)
    q = np.int32(at.lane)
    while q < n.quantities:
        s = t.of_reals[short(p.added + q)]
        for part in range(parts):
            s += reals[short(values + part * n.quantities + q)]
        reals[short(values + q)] = s * s if a[short(n.kind + q)] == SQUARED_PROJECTION else s
        q = after(q, n.lanes)
    if n.counted:
        b = np.int32(0)
        while b < n.batch:
            i = np.int32(at.lane)
            while i < n.group:
                o = ints[short(at.integers + n.chosen + b * n.group + i)]
                ints[short(at.integers + n.counts + b * n.words + (o >> n.count_bits))] = 0
                i = after(i, n.lanes)
            b = after(b, n.one)
    meet()


@device_function
def copy(source, begin, target, at, size, thread, threads):
    """Copy some numbers; each thread takes some of them."""
    i = thread
    while i < size:
        target[short(at + i)] = source[short(begin + i)]
        i = after(i, threads)


@device_function
def body(n, p, a, first, count, keys, t, room, out):
    """Fill ``out`` (blocks, Q + products): the first values of each thread block, and sums about them."""
    reals = cuda.shared.array(0, float64)
    ints = cuda.shared.array(0, uint32)
    if n.roomy:
        size = n.first_double + n.teams * n.doubles
        reals = room[0][cuda.blockIdx.x * size : (cuda.blockIdx.x + 1) * size]
        size = n.first_integer + n.teams * n.integers
        ints = room[1][cuda.blockIdx.x * size : (cuda.blockIdx.x + 1) * size]
    thread, threads = np.int32(cuda.threadIdx.x), np.int32(cuda.blockDim.x)
    team, lane = np.int32(thread >> n.lane_bits), np.int32(thread & (n.lanes - 1))
    at = Place(
        np.int32(n.first_integer + team * n.integers),
        np.int32(n.first_double + team * n.doubles),
        lane,
        np.int32(lane & (n.peers - 1)),
        np.int32(lane >> n.peer_bits),
    )
    # The thread block's own data: first values, whether they are set, and tables.
    begun = n.first_integer - 1
    if thread == 0:
        ints[short(begun)] = 0
    rows, at_rows, draws, at_guide = t.reals, p.row, t.words, p.guide
    if n.columns:
        rows, at_rows = reals, n.quantities
        copy(t.reals, p.row, reals, at_rows, n.columns * n.rows, thread, threads)
    if n.draws:
        draws, at_guide = ints, begun - n.draws
        copy(t.words, p.guide, ints, at_guide, n.draws, thread, threads)
    i = np.int32(lane)
    while i < n.batch * n.words:
        ints[short(at.integers + n.counts + i)] = 0
        i = after(i, n.lanes)
    # Some teams of a warp share their sums.
    those = np.int32(n.lanes * n.sharers)
    products = np.int32(n.first_product + (team >> n.sharer_bits) * n.products)
    own = np.int32(thread & (those - 1))
    i = np.int32(own)
    while i < n.products:
        reals[short(products + i)] = 0.0
        i = after(i, those)
    cuda.syncthreads()
    block, blocks = cuda.blockIdx.x, cuda.gridDim.x
    values = np.int32(at.doubles + n.values)
    start, stride = block * n.teams, np.int64(blocks) * n.teams
    while start < count:
        rep = start + team
        # Whether the first team of the warp has a replication.
        if start + ((thread >> 5) << 5 >> n.lane_bits) < count:
            replicate(
                n, p, a, first + rep, keys, t, draws, at_guide, rows, at_rows, at, ints, reals
            )
        if ints[short(begun)] == 0:
            # This does not test the round, because the compiler would then duplicate the first one.
            cuda.syncthreads()
            if team == 0:
                q = np.int32(lane)
                while q < n.quantities:
                    reals[short(q)] = reals[short(values + q)]
                    q = after(q, n.lanes)
                ints[short(begun)] = 1
            cuda.syncthreads()
        meet()
        j = np.int32(0)
        while j < n.sharers:
            other = (team >> n.sharer_bits << n.sharer_bits) + j - team
            theirs = values + other * n.doubles
            i = np.int32(own)
            while i < n.products:
                if rep + other < count:
                    q, r = a[short(n.left + i)], a[short(n.right + i)]
                    s = reals[short(theirs + q)] - reals[short(q)]
                    if r >= 0:
                        s *= reals[short(theirs + r)] - reals[short(r)]
                    reals[short(products + i)] += s
                i = after(i, those)
            j = after(j, n.one)
        meet()
        start += stride
    cuda.syncthreads()
    at_out = block * (n.quantities + n.products)
    copy(reals, 0, out, at_out, n.quantities, thread, threads)
    i = thread
    while i < n.products:
        s = 0.0
        j = np.int32(0)
        while j < n.teams >> n.sharer_bits:
            s += reals[short(n.first_product + j * n.products + i)]
            j = after(j, n.one)
        out[short(at_out + n.quantities + i)] = s
        i = after(i, threads)


@device_kernel
def kernel(n, p, a, first, count, keys, t, room, out):
    body(n, p, a, first, count, keys, t, room, out)


@one_at_a_time
@lru_cache(maxsize=64)
def built_in(n: Shape, p: Places, a: tuple[int, ...]) -> Any:
    """A kernel of one shape, with its numbers as constants."""

    @device_kernel
    def made(first, count, keys, t, room, out):
        body(n, p, a, first, count, keys, t, room, out)

    return made
