"""The cuda engine: the cpu engine's draws and arithmetic, one replication to a thread of a GPU.

The draws are the cpu engine's integers: the same words, chosen by the same thresholds, which are
made on the host. A replication's quantities depend on its number alone, and their sums are taken on
the host: a smaller chunk gives the same bits.

It needs a CUDA device or its simulator, see :mod:`ustat_pg.engines.device`. The kernel is compiled
anew in each process: numba keeps none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import cuda

from ... import rng
from ..base import MomentSums, Replications
from ..device import in_chunks, launch, require_device, upload
from .cell import GradientCell, GradientQuantity
from .cpu import DESIGNS, problem_tables, quantity_tables, require_compiled, scratch_shapes
from .scalar import WITHOUT_REPLACEMENT, Room, minibatches, room_of


@cuda.jit
def kernel(first, start, count, key, group, design, tables, quantities, room, values):
    """Fill the first ``count`` columns of values (Q, n): one replication a thread."""
    i = cuda.grid(1)
    if i < count:
        scratch = room_of(room, i)
        if design == WITHOUT_REPLACEMENT:
            for x in range(len(scratch.order)):
                scratch.order[x] = x
        rep = first + start + i
        minibatches(rep, 1, key, group, design, tables, quantities, scratch, values[:, i : i + 1])


def measure(
    cell: GradientCell, quantities: Sequence[GradientQuantity], block: Replications
) -> MomentSums:
    """The sums of a block, one thread of the device to a replication.

    Raises:
        InputError: what the cpu engine refuses, and a machine without a device.
    """
    require_compiled("cuda", cell, quantities)
    require_device()
    problem, tables = problem_tables(cell.problem), quantity_tables(cell, quantities)
    shapes = scratch_shapes(cell, tables, problem)
    shapes["values"] = (len(quantities),), np.float64
    there = upload(problem), upload(tables)
    key, design = cuda.to_device(rng.cell_key(block.seed, cell.name)), DESIGNS[cell.design]
    values = np.empty((block.count, len(quantities)))

    def run(start: int, count: int, scratch: list[Any]) -> None:
        *room, out = scratch
        where = (block.first, start, count, key, cell.group_size, design, *there, Room(*room))
        launch(kernel, count, *where, out)
        values[start : start + count] = out.copy_to_host().T[:count]

    in_chunks(block.count, shapes, run)
    return MomentSums.of(values)
