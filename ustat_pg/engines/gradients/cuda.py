"""The cuda engine: it uses the cpu engine's draws, a few GPU lanes per replication, and device sums.

The draws are the same integers as in the cpu engine: the same words select by the same thresholds,
made on the host. Each thread block adds a fixed set of replications in a fixed order and returns
their sums. These are merged in order, so every device gives the same bits.

It needs a CUDA device or its simulator, see :mod:`ustat_pg.engines.device`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import ceil
from threading import local
from typing import Any

import numpy as np

from ...problems import SoftmaxBandit
from ...sampling import rng
from .. import device, kinds
from ..base import Array, MomentSums, Replications
from ..device import OUTPUTS, SHARED_BYTES, WARP, Launch, power_of_2, require_device, stream
from . import scalar as bodies
from . import warps
from .cell import GradientCell, GradientQuantity
from .cpu import (
    DESIGNS,
    problem_tables,
    quantity_tables,
    require_compiled,
    takes_one_prompt,
)
from .warps import KEPT, Places, Shape, There

THREADS = 256
"""The largest number of threads in a thread block."""

BLOCKS = 2048
"""The largest number of thread blocks, which is more than the largest devices run at once."""

FEW_BLOCKS, ROUNDS = 256, 4
"""About as many thread blocks as these run at once, and the replications of each team in more blocks."""

STAGED_BYTES = 16 * 1024
"""The largest size of tables that are copied to shared memory."""

ROOM_BYTES = 2**28
"""The most global memory that replaces shared memory when shared memory is too small."""

COMPARED = 8
"""The largest group size at which outcomes are compared in pairs instead of counted."""

SUMS_OF_A_TEAM = 16
"""The most sums of which each team keeps its own copy; with more, the teams of a warp share them."""

FEW = 3
"""The most quantities for which a kernel is compiled for its shape alone: with five it would take more
instructions than the kernel for all shapes, and with thirty half a minute to compile.
"""

MOVING = (kinds.PROMPT_ONLY, kinds.BY_COUNT, kinds.NORM_WEIGHTED)
"""Estimators whose weights do not sum to 0; their norm depends on π."""


def measure(
    cell: GradientCell, quantities: Sequence[GradientQuantity], block: Replications
) -> MomentSums:
    """The sums of a block.

    Raises:
        InputError: the cpu engine refuses the call, or the machine has no device.
    """
    require_compiled("cuda", cell, quantities)
    require_device()
    launch, shape = launch_of(cell, quantities, block)
    launch.run()
    sums = launch.arguments[-1].copy_to_host(stream=stream())
    stream().synchronize()
    return merged(sums.reshape(launch.blocks, -1), block.count, shape)


def launch_of(
    cell: GradientCell, quantities: Sequence[GradientQuantity], block: Replications
) -> tuple[Launch, Shape]:
    """The launch of a block, and its shape; the last argument receives the sums of each thread block.

    If the cell's whole work is large and the quantities are few, the kernel is compiled for its shape alone,
    and keeps what it can in registers.
    """
    shape, places, asked, there = _prepared(cell, tuple(quantities))
    built_in = len(quantities) <= FEW and OUTPUTS.pays(block.whole * cell.outputs)
    in_registers = None
    if built_in and takes_one_prompt(cell, quantities):
        in_registers = of_one_prompt(shape)
    shape = in_registers or shape
    blocks = _blocks(shape, block.count)
    key = tuple(np.uint32(word) for word in rng.cell_key(block.seed, cell.name))
    out = _sums(blocks * (shape.quantities + shape.products))
    drawn = np.int64(block.first), np.int64(block.count), key
    kernel: Any = warps.kernel
    given: tuple[Any, ...] = (*drawn, there, _room(shape), out)
    if in_registers:
        kernel, given = warps.one_prompt(shape, places, asked), (*drawn, there, out)
    elif built_in:
        kernel = warps.built_in(shape, places, asked)
    else:
        given = _small(shape), _small(places), _uploaded(asked), *given
    return Launch(kernel, blocks, shape.teams * shape.lanes, shared_bytes(shape), given), shape


_OWN = local()


def _sums(size: int) -> Any:
    """Device memory for the sums of a call, which each thread keeps."""
    if getattr(_OWN, "sums", np.empty(0)).size < size:
        _OWN.sums = device.empty(size)
    return _OWN.sums[:size]


def _room(shape: Shape) -> tuple[Any, Any]:
    """Global memory that replaces too small a shared memory. Each thread has its own, because blocks of
    one cell run in parallel.
    """
    blocks = _most_blocks(shape) * shape.roomy
    sizes = (
        blocks * (shape.first_double + shape.teams * shape.doubles),
        blocks * (shape.first_integer + shape.teams * shape.integers),
    )
    if getattr(_OWN, "sizes", None) != sizes:
        _OWN.sizes = sizes
        _OWN.room = device.empty(sizes[0]), device.empty(sizes[1], np.uint32)
    return _OWN.room


def merged(sums: Array, count: int, shape: Shape) -> MomentSums:
    """The sums of all thread blocks together.

    Arguments:
        sums: each block's first values, and sums of values and products about them, (blocks, Q + products).
    """
    blocks, asked = len(sums), shape.quantities
    whole, rest = divmod(count, blocks * shape.teams)
    n = whole * shape.teams + np.clip(rest - np.arange(blocks) * shape.teams, 0, shape.teams)
    base, added, packed = np.split(sums, [asked, 2 * asked], axis=1)
    one = base + added / n[:, None]
    mean = one[0] + (n[:, None] * (one - one[0])).sum(0) / count
    about = one - mean
    products = np.zeros((asked, asked))
    q, p = np.tril_indices(asked)
    products[q, p] = products[p, q] = packed.sum(0)
    root = np.sqrt(n)[:, None]
    between, within = about * root, added / root
    return MomentSums(count, mean, products + between.T @ between - within.T @ within)


def _most_blocks(shape: Shape) -> int:
    bytes_of_block = 8 * (shape.first_double + shape.teams * shape.doubles)
    bytes_of_block += 4 * (shape.first_integer + shape.teams * shape.integers)
    return min(BLOCKS, max(1, ROOM_BYTES // bytes_of_block)) if shape.roomy else BLOCKS


def _blocks(shape: Shape, count: int) -> int:
    full = ceil(count / shape.teams)
    return min(_most_blocks(shape), max(min(full, FEW_BLOCKS), ceil(full / ROUNDS)))


def shared_bytes(shape: Shape) -> int:
    """The shared memory of a thread block."""
    if shape.roomy:
        return 0
    return 4 * (shape.first_integer + shape.teams * shape.integers)


def _packed(parts: dict[str, Any], kind: Any) -> tuple[dict[str, int], Any]:
    """Where each table begins in one array on the device, and the array."""
    flat = [np.ravel(part).astype(kind) for part in parts.values()]
    ends = np.cumsum([part.size for part in flat]).tolist()
    return dict(zip(parts, [0, *ends[:-1]], strict=True)), device.upload(np.concatenate(flat))


@lru_cache(maxsize=32)
def _tables(problem: SoftmaxBandit) -> tuple[dict[str, int], Any, Any]:
    """A problem's part of :class:`~ustat_pg.engines.gradients.warps.Places`, and its arrays."""
    tables = problem_tables(problem)
    counts, arms = problem.outcomes.counts, tables.arm
    span = np.zeros((problem.contexts, problem.arms, 2), np.int32)
    for x, count in enumerate(counts):
        every = np.arange(problem.arms)
        # Outcomes are sorted by their arms.
        span[x, :, 0] = np.searchsorted(arms[x, :count], every)
        span[x, :, 1] = np.searchsorted(arms[x, :count], every, side="right")
    row = np.empty((4, *arms.shape))
    for column, of_cpu in (
        (warps.REWARD, bodies.REWARD),
        (warps.LINEAR, bodies.LINEAR),
        (warps.PROB, bodies.PROB),
    ):
        row[column] = tables.row[..., of_cpu]
    row[warps.NORM] = np.take_along_axis(tables.norms, arms, axis=1)
    outcomes, contexts = tables.outcomes, tables.contexts
    places, words = _packed(
        {
            "cells": outcomes.cells,
            "guide": outcomes.guide,
            "ends": np.minimum(outcomes.ends, rng.MASK),
            "last": (outcomes.ends > rng.MASK).argmax(axis=-1),
            "context_guide": contexts.guide,
            "context_ends": np.minimum(contexts.ends, rng.MASK),
            "context_last": (contexts.ends > rng.MASK).argmax(),
            "span": span,
            "arm": arms,
        },
        np.uint32,
    )
    others, reals = _packed(
        {
            "row": row,
            "prompt": np.stack([tables.centre, tables.probs_sq, tables.features_sq], axis=-1),
            "probs": tables.probs,
            "features": tables.features,
            "dense": tables.dense,
        },
        np.float64,
    )
    return places | others, words, reals


@lru_cache(maxsize=64)
def _prepared(
    cell: GradientCell, quantities: tuple[GradientQuantity, ...]
) -> tuple[Shape, Places, tuple[int, ...], There]:
    """The shape of a call, its quantities, and its tables on the device."""
    problem, asked = problem_tables(cell.problem), quantity_tables(cell, quantities)
    ends = {
        bodies.SQUARED_ERROR: lambda _: problem.target_sq,
        bodies.PROJECTION: lambda number: -asked.target_along[number],
        bodies.SQUARED_PROJECTION: lambda number: -asked.target_along[number],
    }
    added = [
        ends[kind](number) if kind in ends else 0.0
        for kind, number in zip(asked.quantity, asked.second, strict=True)
    ]
    every = (len(asked.along), *problem.arm.shape)
    places, words, reals = _tables(cell.problem)
    others, of_reals = _packed(
        {
            "along": np.take_along_axis(asked.along, np.broadcast_to(problem.arm, every), 2),
            "baselines": asked.baselines,
            "by_count": asked.by_count,
            "added": np.array(added),
        },
        np.float64,
    )
    size = len(quantities)
    rows, columns = np.tril_indices(size)
    numbers = (
        *(asked.kinds, asked.quantity, asked.first, asked.second),
        *(np.append(range(size), rows), np.append([-1] * size, columns)),
    )
    return (
        shape_of(cell, problem, asked),
        Places(**places, **others),
        tuple(np.concatenate(numbers).tolist()),
        There(words, reals, of_reals),
    )


@lru_cache(maxsize=64)
def _uploaded(asked: tuple[int, ...]) -> Any:
    return device.upload(np.array(asked, np.int32))


@lru_cache(maxsize=64)
def _small(numbers: Any) -> Any:
    """The same numbers in 32 bits, with which a device computes faster."""
    return type(numbers)(*(np.int32(n) if isinstance(n, int) else n for n in numbers))


def of_one_prompt(shape: Shape) -> Shape | None:
    """The shape of the kernel of one prompt. A team's numbers in shared memory are its counts alone.

    None if two outcomes have one arm, or if the counts are too large.
    """
    size, packed, teams = shape.rows, shape.count_bits, THREADS // shape.lanes
    columns, cells = 2 + shape.moving, shape.contexts << (32 - shape.shift)
    first_product = shape.quantities

    def products_of(teams: int) -> int:
        return teams * shape.lanes // WARP * shape.products

    def bytes_of(teams: int, bits: int, columns: int, cells: int) -> int:
        counts = teams * ceil(shape.outcomes / 2**bits)
        return 8 * (first_product + columns * size + products_of(teams)) + 4 * (cells + counts)

    least = 0 if teams * shape.outcomes * 4 <= STAGED_BYTES else packed
    choices = [(teams, least, columns, cells), (teams, least, columns, 0)]
    choices += [(teams, packed, columns, 0), (teams, packed, 0, 0)]
    choices.append((max(THREADS // 2, WARP) // shape.lanes, packed, 0, 0))
    fit = [choice for choice in choices if bytes_of(*choice) <= SHARED_BYTES]
    if not (fit and shape.distinct):
        return None
    teams, bits, columns, cells = fit[0]
    products = products_of(teams)
    first_product += columns * size
    first_double = first_product + products
    return shape._replace(
        teams=teams,
        count_bits=bits,
        words=ceil(shape.outcomes / 2**bits),
        columns=columns,
        draws=cells,
        roomy=0,
        integers=ceil(shape.outcomes / 2**bits),
        doubles=0,
        first_product=first_product,
        first_double=first_double,
        first_integer=2 * first_double + cells,
    )


def shape_of(cell: GradientCell, problem: bodies.Tables, asked: bodies.Quantities) -> Shape:
    """The shape of a call: a thread block takes as many replications as its memory can hold."""
    group, batch, size = cell.group_size, cell.batch_size, len(asked.quantity)
    contexts, outcomes = problem.arm.shape
    peers = min(WARP, power_of_2(ceil(group / 4)))
    dense = problem.form == bodies.DENSE
    # Lanes share the prompts of a minibatch, and the coordinates of dense scores.
    wide = power_of_2(problem.dense.shape[2]) if dense else 1
    lanes = min(WARP, max(peers * power_of_2(batch), wide))
    parts = lanes if dense else lanes // peers
    vectors, products = 3 if asked.weighted else 2, size + size * (size + 1) // 2
    # The teams of a whole warp, of which some share their sums.
    those = WARP // lanes
    sharers = 1 if products <= SUMS_OF_A_TEAM else those
    moving = not dense and any(kind in MOVING for kind in asked.kinds)
    weights = batch * (KEPT + len(asked.kinds) * vectors)
    values = weights + batch * group * (vectors == 3)
    doubles = values + parts * size + lanes * size * dense
    count_bits = 2 if group < 2**8 else 1 if group < 2**16 else 0
    words = ceil(outcomes / 2**count_bits)
    integers = batch * (1 + group) + 2 * batch * (cell.design == "without-replacement")
    columns = 4 if vectors == 3 else 2 + moving
    draws = problem.arm.size + problem.outcomes.guide.size

    def bytes_of(columns: int, draws: int, words: int) -> tuple[int, int]:
        """The bytes of one thread block's own data, and the bytes of a warp's teams and their sums."""
        team = 8 * doubles + 4 * (integers + batch * words)
        own = 8 * (size + columns * problem.arm.size) + 4 * (draws + 1)
        return own, those * team + 8 * products * (those // sharers)

    # Takes the first layout that fits. It copies tables and counts outcomes if there is room.
    columns *= 8 * columns * problem.arm.size <= STAGED_BYTES
    draws *= 4 * draws <= STAGED_BYTES
    words *= not dense and group > COMPARED
    choices = [(columns, draws, words), (0, 0, words), (0, 0, 0)]
    fit = [choice for choice in choices if sum(bytes_of(*choice)) <= SHARED_BYTES]
    columns, draws, words = [*fit, (0, 0, words)][0]
    own, some = bytes_of(columns, draws, words)
    most = (SHARED_BYTES - own) // some if fit else 1
    teams = min(THREADS // WARP, most) * those
    integers += batch * words
    first_product = size + columns * problem.arm.size
    first_double = first_product + teams // sharers * products
    return Shape(
        group=group,
        batch=batch,
        contexts=contexts,
        outcomes=outcomes,
        arms=problem.probs.shape[1],
        width=problem.dense.shape[2] if dense else problem.features.shape[1],
        form=problem.form,
        design=DESIGNS[cell.design],
        vectors=vectors,
        estimators=len(asked.kinds),
        quantities=size,
        products=products,
        directions=len(asked.along),
        kind=len(asked.kinds),
        first=len(asked.kinds) + size,
        second=len(asked.kinds) + 2 * size,
        left=len(asked.kinds) + 3 * size,
        right=len(asked.kinds) + 3 * size + products,
        moving=int(moving),
        standardised=int(asked.standardised),
        peers=peers,
        lanes=lanes,
        teams=teams,
        peer_bits=peers.bit_length() - 1,
        lane_bits=lanes.bit_length() - 1,
        quads=ceil(group / (4 * peers)),
        distinct=int(problem.distinct),
        counted=int(words > 0),
        count_bits=count_bits,
        words=words,
        shift=problem.outcomes.shift,
        context_shift=problem.contexts.shift,
        columns=columns,
        draws=draws,
        roomy=int(not fit),
        sharers=sharers,
        sharer_bits=sharers.bit_length() - 1,
        integers=integers,
        doubles=doubles,
        chosen=batch,
        counts=batch * (1 + group),
        moved=batch * (1 + group + words),
        coefficients=batch * KEPT,
        weights=weights,
        values=values,
        rows=problem.arm.size,
        first_product=first_product,
        first_double=first_double,
        first_integer=2 * (first_double + teams * doubles) + draws + 1,
        one=1,
        share=1 / group,
    )
