"""The warps of the cuda engine: a few lanes of a warp per replication, with sums on the device.

A team of lanes takes a replication, and its peers share one of the prompts. Each lane draws four outputs
at a time, counts them in shared memory and sums its share. Shuffles add the shares in a fixed
order. The quantities follow from inner products of the vectors P, Q and W of
:mod:`ustat_pg.engines.gradients.scalar`, for each prompt; for dense scores, from their coordinates.

Team t of thread block b takes the replications (round · blocks + b) · teams + t, and a thread block adds
its teams in order. So no result depends on the number of thread blocks that run at once.

A kernel is compiled for a :class:`Shape`. Its numbers are arguments or constants; constants are
faster, but each shape needs a new compilation (:func:`built_in`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numba import cuda, float64, uint32

from ...device import device_function, device_kernel, index, meet
from ..scalar import DENSE, SHARED, SQUARED_PROJECTION
from .groups import coefficients, draw_group, draw_prompts, linear_parts, prompt_sums
from .pairs import add_coordinates, add_products
from .shapes import Asked, Place, Shape, chosen_at, counts_at, turns, values_at, within


@device_function
def parts_of(n):
    """The number of parts in which a team sums its quantities."""
    return n.lanes if n.form == DENSE else n.lanes // n.peers


@device_function
def replicate(n, a, rep, key, t, draws, rows, at, ints, reals):
    """Compute the quantities of one replication in the first part of its team's values."""
    together, parts = n.lanes // n.peers, parts_of(n)
    for turn in range(turns(parts * n.quantities, n.lanes)):
        q = at.lane + turn * n.lanes
        if within(q, parts * n.quantities, n.lanes):
            reals[index(values_at(n, at, 0) + q)] = 0.0
    draw_prompts(n, rep, key, t, at, ints)
    meet(n.lanes)
    for turn in range(turns(n.batch, together)):
        b = at.part + turn * together
        if within(b, n.batch, together):
            x = np.int64(ints[index(at.integers + b)])
            draw_group(n, rep, b, x, key, t, draws, at, ints)
            meet(n.peers)
            prompt_sums(n, b, x, rows, t, at, ints, reals)
            coefficients(n, a, b, x, t, at, reals)
            linear_parts(n, a, b, x, rows, t, at, ints, reals)
    meet(n.lanes)
    if n.form == DENSE:
        add_coordinates(n, a, rows, t, at, ints, reals)
    else:
        for turn in range(turns(n.batch, together)):
            b = at.part + turn * together
            if within(b, n.batch, together):
                x = np.int64(ints[index(at.integers + b)])
                add_products(n, a, b, b, x, x, rows, t, at, ints, reals)
                for c in range(b if n.batch > 1 else 0):
                    y = np.int64(ints[index(at.integers + c)])
                    if x == y or n.form == SHARED:
                        add_products(n, a, b, c, x, y, rows, t, at, ints, reals)
    meet(n.lanes)
    values = values_at(n, at, 0)
    for turn in range(turns(n.quantities, n.lanes)):
        q = at.lane + turn * n.lanes
        if within(q, n.quantities, n.lanes):
            s = t.added[index(q)]
            for part in range(parts):
                s += reals[index(values + part * n.quantities + q)]
            reals[index(values + q)] = s * s if a.quantity[q] == SQUARED_PROJECTION else s
    if n.counted:
        for turn in range(turns(n.batch, together)):
            b = at.part + turn * together
            if within(b, n.batch, together):
                for own in range(turns(n.group, n.peers)):
                    i = at.peer + own * n.peers
                    if within(i, n.group, n.peers):
                        o = np.int64(ints[index(chosen_at(n, at, b) + i)])
                        ints[index(counts_at(n, at, b) + o // n.counts)] = 0
    meet(n.lanes)


@device_function
def body(n, a, first, count, key, t, room, out):
    """Fill ``out`` (blocks, Q + products): the first values of each thread block, and sums about them."""
    reals = cuda.shared.array(0, float64)
    ints = cuda.shared.array(0, uint32)
    if n.roomy:
        size = n.first_double + n.teams * n.doubles
        reals = room[0][cuda.blockIdx.x * size : (cuda.blockIdx.x + 1) * size]
        size = n.first_integer + n.teams * n.integers
        ints = room[1][cuda.blockIdx.x * size : (cuda.blockIdx.x + 1) * size]
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    team, lane = thread // n.lanes, thread % n.lanes
    at = Place(
        n.first_integer + team * n.integers,
        n.first_double + team * n.doubles,
        lane,
        lane % n.peers,
        lane // n.peers if n.peers < n.lanes else 0,
    )
    # The thread block's own data: first values, whether they are set, and tables.
    begun = n.first_integer - 1
    if thread == 0:
        ints[index(begun)] = 0
    rows, ends, guide = t.row, t.ends, t.guide
    if n.rows:
        for i in range(thread, 4 * n.contexts * n.outcomes, threads):
            reals[index(n.quantities + i)] = t.row[index(i)]
        rows = reals[n.quantities : n.quantities + 4 * n.contexts * n.outcomes]
    if n.draws:
        size, places = n.contexts * n.outcomes, n.contexts << (32 - n.shift)
        start = begun - size - places
        for i in range(thread, size, threads):
            ints[index(start + i)] = t.ends[index(i)]
        for i in range(thread, places, threads):
            ints[index(start + size + i)] = t.guide[index(i)]
        ends, guide = ints[start : start + size], ints[start + size : begun]
    for b in range(n.batch):
        for turn in range(turns(n.words, n.lanes)):
            i = lane + turn * n.lanes
            if within(i, n.words, n.lanes):
                ints[index(counts_at(n, at, b) + i)] = 0
    # Some teams of a warp share their sums.
    those = n.lanes * n.sharers
    products = n.first_product + thread // those * n.products
    for turn in range(turns(n.products, those)):
        i = thread % those + turn * those
        if within(i, n.products, those):
            reals[index(products + i)] = 0.0
    cuda.syncthreads()
    block, blocks = cuda.blockIdx.x, cuda.gridDim.x
    values = values_at(n, at, 0)
    rounds = (count + blocks * n.teams - 1) // (blocks * n.teams)
    for k in range(rounds):
        rep = (k * blocks + block) * n.teams + team
        if rep < count:
            replicate(n, a, first + rep, key, t, (ends, guide), rows, at, ints, reals)
        if ints[index(begun)] == 0:
            # This does not test the round, because the compiler would then duplicate the first one.
            cuda.syncthreads()
            if team == 0:
                for turn in range(turns(n.quantities, n.lanes)):
                    q = lane + turn * n.lanes
                    if within(q, n.quantities, n.lanes):
                        reals[index(q)] = reals[index(values + q)]
                ints[index(begun)] = 1
            cuda.syncthreads()
        meet(those)
        for j in range(n.sharers):
            other = team // n.sharers * n.sharers + j - team
            if rep + other < count:
                theirs = values + other * n.doubles
                for turn in range(turns(n.products, those)):
                    i = thread % those + turn * those
                    if within(i, n.products, those):
                        q, p = a.left[i], a.right[i]
                        s = reals[index(theirs + q)] - reals[index(q)]
                        if p >= 0:
                            s *= reals[index(theirs + p)] - reals[index(p)]
                        reals[index(products + i)] += s
        meet(those)
    cuda.syncthreads()
    at_out = block * (n.quantities + n.products)
    for q in range(thread, n.quantities, threads):
        out[at_out + q] = reals[index(q)]
    for i in range(thread, n.products, threads):
        s = 0.0
        for j in range(n.teams // n.sharers):
            s += reals[index(n.first_product + j * n.products + i)]
        out[at_out + n.quantities + i] = s


@device_kernel
def kernel(n, a, first, count, key, t, room, out):
    body(n, a, first, count, key, t, room, out)


@lru_cache(maxsize=64)
def built_in(n: Shape, a: Asked) -> Any:
    """A kernel of one shape, with its numbers as constants."""

    @device_kernel
    def made(first, count, key, t, room, out):
        body(n, a, first, count, key, t, room, out)

    return made
