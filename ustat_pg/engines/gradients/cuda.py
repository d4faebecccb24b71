"""The cuda engine: the cpu engine's draws and arithmetic, one replication to a thread of a GPU.

The draws are the cpu engine's integers: the same words, chosen by the same thresholds, which are
made on the host. A replication's quantities depend on its number alone, and sums are taken on the
device in an order that the number of quantities fixes: a smaller chunk gives the same bits.

It needs a CUDA device or its simulator, see :mod:`ustat_pg.engines.device`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from numba import cuda

from ... import rng
from ..base import Integers, MomentSums, Replications
from ..device import Shapes, allocate, in_chunks, launch, require_device, upload
from . import kernels
from .cell import GradientCell, GradientQuantity
from .cpu import (
    DESIGNS,
    problem_tables,
    quantity_tables,
    require_compiled,
    scratch_shapes,
    takes_one_prompt,
)
from .scalar import Room

__all__ = ["ENGINE", "draw"]

REDUCED_VALUES = 2**24
"""The values kept on the device between two reductions."""

COMPARED_OUTPUTS = 64
"""Groups at most that large find their equal arms by comparison; a guess, for no device was at hand."""


def draw(
    cell: GradientCell, *, seed: int, first: int, replications: int
) -> tuple[Integers, Integers]:
    """Contexts (R, B) and outcome numbers (R, B, G) of the cell's replications."""
    require_device()
    problem = upload(problem_tables(cell.problem), "the problem's tables")
    key, design = cuda.to_device(rng.cell_key(seed, cell.name)), DESIGNS[cell.design]
    batch, group = cell.batch_size, cell.group_size
    contexts = np.empty((replications, batch), np.int64)
    chosen = np.empty((replications, batch, group), np.int64)
    shuffled = cell.design == "without-replacement"
    room_shapes: Shapes = {
        "order": ((cell.problem.contexts if shuffled else 1,), np.int64),
        "undo": ((batch,), np.int64),
        "contexts": ((batch,), np.int64),
        "outcomes": ((batch, group), np.int64),
    }

    def run(start: int, count: int, scratch: list[Any]) -> None:
        launch(kernels.draw_kernel, count, first + start, count, key, design, problem, *scratch)
        where, picked = scratch[2:]
        contexts[start : start + count] = where.copy_to_host().T[:count]
        chosen[start : start + count] = np.moveaxis(picked.copy_to_host(), -1, 0)[:count]

    in_chunks(replications, room_shapes, run)
    return contexts, chosen


class CudaEngine:
    """One thread of the device to a replication; sums of the quantities in a fixed order."""

    name = "cuda"

    def require(self, cell: GradientCell, quantities: Sequence[GradientQuantity]) -> None:
        """Refuse what the cpu engine refuses, and a machine without a device."""
        require_compiled(self.name, cell, quantities)
        require_device()

    def measure(
        self, cell: GradientCell, quantities: Sequence[GradientQuantity], block: Replications
    ) -> MomentSums:
        segment = _segment(len(quantities))
        problem, asked = problem_tables(cell.problem), quantity_tables(cell, quantities)
        plain = takes_one_prompt(cell, quantities)
        tabled = cell.group_size > COMPARED_OUTPUTS and cell.problem.arms < cell.group_size**2
        room_shapes = scratch_shapes(cell, asked, problem, plain, tabled)
        there = upload(problem, "the problem's tables"), upload(asked, "the quantities' tables")
        key, design = cuda.to_device(rng.cell_key(block.seed, cell.name)), DESIGNS[cell.design]
        values = allocate("the quantities' values", (len(quantities), min(segment, block.count)))
        parts = []
        for begin in range(0, block.count, segment):
            size = min(segment, block.count - begin)

            def run(start: int, count: int, scratch: list[Any], begin: int = begin) -> None:
                where = (block.first + begin, start, count, key, cell.group_size, design, *there)
                room = Room(*scratch)
                if plain:
                    launch(kernels.one_prompt_kernel, count, *where, tabled, room, values)
                else:
                    launch(kernels.minibatch_kernel, count, *where, room, values)

            in_chunks(size, room_shapes, run)
            parts.append(_reduced(values, size))
        return reduce(MomentSums.merge, parts)


def _segment(quantities: int) -> int:
    """Replications that are reduced together: a function of the number of quantities alone."""
    return max(2**16, REDUCED_VALUES // quantities)


def _tiles(quantities: int) -> int:
    """Sums that are taken side by side: a function of the number of quantities alone."""
    return max(2**8, 2**16 // quantities**2)


def _reduced(values: Any, count: int) -> MomentSums:
    """The sums of the first ``count`` columns of values (Q, R) on the device."""
    quantities = len(values)
    tiles = _tiles(quantities)
    used = min(tiles, count)
    sums = allocate("the quantities' sums", (used, quantities))
    products = allocate("the quantities' products", (used, quantities, quantities))
    base = allocate("the first values", (quantities,))
    launch(kernels.reduce_kernel, used * quantities, values, count, tiles, base, sums, products)
    added = sums.copy_to_host().sum(axis=0)
    # The other triangle is never written: whatever the memory held.
    lower = np.tril(products.copy_to_host()).sum(axis=0)
    both = lower + np.tril(lower, -1).T - np.outer(added, added) / count
    return MomentSums(count, base.copy_to_host() + added / count, both)


ENGINE = CudaEngine()
