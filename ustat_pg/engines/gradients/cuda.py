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
from ..device import OUTPUTS, SHARED_BYTES, Launch, power_of_2, require_device, stream
from . import scalar as bodies
from . import warps
from .cell import GradientCell, GradientQuantity
from .cpu import DESIGNS, problem_tables, quantity_tables, require_compiled
from .warps import KEPT, Asked, Shape, There

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
    """The launch of a block, and its shape; the last argument receives the sums of each thread block."""
    shape, asked, there = _prepared(cell, tuple(quantities))
    blocks = _blocks(shape, block.count)
    first, second = (np.uint32(word) for word in rng.cell_key(block.seed, cell.name))
    out = _sums(blocks * (shape.quantities + shape.products))
    given = block.first, block.count, (first, second), there, _room(shape), out
    threads, shared = shape.teams * shape.lanes, shared_bytes(shape)
    if OUTPUTS.pays(block.whole * cell.outputs):
        return Launch(warps.built_in(shape, asked), blocks, threads, shared, given), shape
    return Launch(warps.kernel, blocks, threads, shared, (shape, _uploaded(asked), *given)), shape


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


@lru_cache(maxsize=32)
def _tables(problem: SoftmaxBandit) -> dict[str, Any]:
    """A problem's part of :class:`~ustat_pg.engines.gradients.warps.There`."""
    tables = problem_tables(problem)
    counts, arms = problem.outcomes.counts, tables.arm
    span = np.zeros((problem.contexts, problem.arms, 2), np.int32)
    for x, count in enumerate(counts):
        every = np.arange(problem.arms)
        # Outcomes are sorted by their arms.
        span[x, :, 0] = np.searchsorted(arms[x, :count], every)
        span[x, :, 1] = np.searchsorted(arms[x, :count], every, side="right")
    row = tables.row.copy()
    row[..., warps.NORM] = np.take_along_axis(tables.norms, arms, axis=1)
    searches = tables.contexts, tables.outcomes
    return {
        name: device.upload(np.ravel(array).astype(kind))
        for name, array, kind in (
            ("context_ends", np.minimum(searches[0].ends, rng.MASK), np.uint32),
            ("context_guide", searches[0].guide, np.uint32),
            ("ends", np.minimum(searches[1].ends, rng.MASK), np.uint32),
            ("guide", searches[1].guide, np.uint32),
            ("last", np.append(*((s.ends > rng.MASK).argmax(axis=-1) for s in searches)), np.int32),
            ("span", span, np.int32),
            ("arm", arms, np.int32),
            ("row", row, np.float64),
            (
                "prompt",
                np.stack([tables.centre, tables.probs_sq, tables.features_sq], axis=-1),
                np.float64,
            ),
            ("probs", tables.probs, np.float64),
            ("features", tables.features, np.float64),
            ("dense", tables.dense, np.float64),
        )
    }


@lru_cache(maxsize=64)
def _prepared(
    cell: GradientCell, quantities: tuple[GradientQuantity, ...]
) -> tuple[Shape, Asked, There]:
    """The shape of a call, its quantities, and its tables on the device."""
    problem, asked = problem_tables(cell.problem), quantity_tables(cell, quantities)
    shape = shape_of(cell, problem, asked)
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
    there = There(
        **_tables(cell.problem),
        along=device.upload(
            np.take_along_axis(asked.along, np.broadcast_to(problem.arm, every), 2).ravel()
        ),
        baselines=device.upload(asked.baselines.ravel()),
        by_count=device.upload(asked.by_count.ravel()),
        added=device.upload(np.array(added)),
    )
    lower = np.tril_indices(len(quantities))
    numbers = Asked(
        kinds=asked.kinds,
        quantity=asked.quantity,
        first=asked.first,
        second=asked.second,
        left=np.append(range(len(quantities)), lower[0]),
        right=np.append([-1] * len(quantities), lower[1]),
    )
    return shape, Asked(*(tuple(map(int, part)) for part in numbers)), there


@lru_cache(maxsize=64)
def _uploaded(asked: Asked) -> Asked:
    return Asked(*(device.upload(np.array(part, np.int32)) for part in asked))


def shape_of(cell: GradientCell, problem: bodies.Tables, asked: bodies.Quantities) -> Shape:
    """The shape of a call: a thread block takes as many replications as its memory can hold."""
    group, batch, size = cell.group_size, cell.batch_size, len(asked.quantity)
    contexts, outcomes = problem.arm.shape
    peers = min(32, power_of_2(ceil(group / 4)))
    dense = problem.form == bodies.DENSE
    lanes = 32 if dense else min(32, peers * power_of_2(batch))
    parts = lanes if dense else lanes // peers
    vectors, products = 3 if asked.weighted else 2, size + size * (size + 1) // 2
    sharers = 1 if products <= SUMS_OF_A_TEAM else 32 // lanes
    doubles = batch * (KEPT + len(asked.kinds) * vectors) + parts * size + lanes * size * dense
    counts = 4 if group < 2**8 else 2 if group < 2**16 else 1
    words = ceil(outcomes / counts)
    integers = batch * (1 + group) + 2 * batch * (cell.design == "without-replacement")
    rows, draws = problem.row.size, problem.arm.size + problem.outcomes.guide.size

    def bytes_of(rows: int, draws: int, words: int) -> tuple[int, int]:
        """The bytes of one thread block's own data, and the bytes of the teams that share their sums."""
        team = 8 * doubles + 4 * (integers + batch * words)
        return 8 * (size + rows) + 4 * (draws + 1), sharers * team + 8 * products

    # Takes the first layout that fits. It copies tables and counts outcomes if there is room.
    rows, draws = rows * (8 * rows <= STAGED_BYTES), draws * (4 * draws <= STAGED_BYTES)
    words *= not dense and group > COMPARED
    choices = [(rows, draws, words), (0, 0, words), (0, 0, 0)]
    fit = [choice for choice in choices if sum(bytes_of(*choice)) <= SHARED_BYTES]
    rows, draws, words = [*fit, (0, 0, words)][0]
    own, some = bytes_of(rows, draws, words)
    most = (SHARED_BYTES - own) // some * sharers if fit else sharers
    teams = min(THREADS // lanes, most)
    integers += batch * words
    first_double = size + rows + teams // sharers * products
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
        moving=int(any(kind in MOVING for kind in asked.kinds)),
        standardised=int(asked.standardised),
        peers=peers,
        lanes=lanes,
        teams=teams,
        distinct=int(problem.distinct),
        counted=int(words > 0),
        counts=counts,
        words=words,
        shift=problem.outcomes.shift,
        context_shift=problem.contexts.shift,
        draws=int(draws > 0),
        rows=int(rows > 0),
        roomy=int(not fit),
        sharers=sharers,
        integers=integers,
        doubles=doubles,
        first_product=size + rows,
        first_double=first_double,
        first_integer=2 * (first_double + teams * doubles) + draws + 1,
    )
