"""The cuda engine: the cpu engine's draws and arithmetic, one replication to a thread of a GPU.

The draws are the cpu engine's integers: the same words, chosen by the same thresholds, which are
made on the host. A replication's quantities depend on its number alone, and sums are taken on the
device in an order that the number of quantities fixes: a smaller chunk gives the same bits.

It needs a CUDA device. Where there is none, numba's simulator can stand in for tests of small
sizes, in a process of its own, with ``NUMBA_ENABLE_CUDASIM=1`` and ``NUMBA_DISABLE_JIT=1``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import ceil, prod
from typing import Any, TypeVar

import numpy as np
from numba import config, cuda

from ... import rng
from ...validation import InputError
from ..base import (
    PROMPT_ONLY,
    Cell,
    Integers,
    MomentSums,
    Quantity,
    check_block,
    check_estimators,
    estimators_of,
)
from . import scalar as bodies
from .cpu import _DESIGNS, _KINDS, _asked, _is_plain, _tables

__all__ = [
    "ENGINE",
    "allocate",
    "device_name",
    "draw",
    "free_bytes",
    "in_chunks",
    "launch",
    "require_device",
    "upload",
]

T = TypeVar("T")
Shapes = Mapping[str, tuple[tuple[int, ...], Any]]
"""Name, shape and type of a thread's scratch."""

MOST_THREADS = 2**18
"""In one launch: as many as the largest devices hold at once."""

_BLOCK = 128
_SHARE = 0.8
"""Of the free memory, that scratch may take."""

_SEGMENT_VALUES = 2**24
"""Values kept on the device between two reductions."""

_COMPARED = 64
"""Groups at most that large find their equal arms by comparison; a guess, for no device was at hand."""

_SETTINGS: Any = config
# The last chunk of a block is a small grid: that is no news.
_SETTINGS.CUDA_LOW_OCCUPANCY_WARNINGS = 0


def require_device() -> None:
    """Refuse to go on without a device or its simulator.

    Raises:
        InputError: there is none, or the simulator runs beside compiled code.
    """
    if _SETTINGS.ENABLE_CUDASIM:
        if not _SETTINGS.DISABLE_JIT:
            raise InputError(
                "the CUDA simulator cannot call compiled functions: set NUMBA_DISABLE_JIT=1 beside "
                "NUMBA_ENABLE_CUDASIM=1"
            )
    elif not cuda.is_available():
        raise InputError(
            "engine cuda finds no CUDA device that it can use (a driver and numba's CUDA toolkit): "
            "use engine cpu or reference, or, for tests of small sizes, the simulator "
            "(NUMBA_ENABLE_CUDASIM=1 and NUMBA_DISABLE_JIT=1)"
        )


def device_name() -> str:
    """What the current device calls itself."""
    if _SETTINGS.ENABLE_CUDASIM:
        return "numba's CUDA simulator"
    name = cuda.get_current_device().name
    return str(name.decode() if isinstance(name, bytes) else name)


def free_bytes() -> float:
    """Free memory of the current device; infinite in the simulator."""
    return float(cuda.current_context().get_memory_info().free)


def _size(count: float) -> str:
    """A number of bytes in words.

    >>> _size(3 * 2**30), _size(512)
    ('3.0 GiB', '512 bytes')
    """
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count:.0f} bytes"


def _out_of_memory(error: Exception) -> bool:
    """Whether the driver, whatever binding numba takes, ran out of memory."""
    return isinstance(error, MemoryError) or "OUT_OF_MEMORY" in str(error)


def allocate(what: str, shape: tuple[int, ...], dtype: Any = np.float64) -> Any:
    """An array on the device.

    Raises:
        InputError: it does not fit; its name and size, and what is free.
    """
    try:
        return cuda.device_array(shape, dtype)
    except Exception as error:
        if not _out_of_memory(error):
            raise
        wanted = prod(shape) * np.dtype(dtype).itemsize
        raise InputError(
            f"{what} {shape} take {_size(wanted)}: the device has {_size(free_bytes())} free"
        ) from error


def upload(tables: T, what: str = "the tables") -> T:
    """A tuple of tuples, arrays and numbers with its arrays on the device.

    Raises:
        InputError: they do not fit; the largest of them, its size, and what is free.
    """
    arrays = list(_arrays(tables, what))
    wanted, free = sum(array.nbytes for _, array in arrays), free_bytes()
    name, largest = max(arrays, key=lambda pair: pair[1].nbytes)
    refusal = InputError(
        f"{what} take {_size(wanted)}, of which {name} {largest.shape} takes "
        f"{_size(largest.nbytes)}: the device has {_size(free)} free; use engine cpu"
    )
    if wanted > free:
        raise refusal
    try:
        return _uploaded(tables)
    except Exception as error:
        if not _out_of_memory(error):
            raise
        raise refusal from error


def _arrays(value: Any, name: str) -> Any:
    """The arrays in a tuple of tuples, with their names."""
    if isinstance(value, np.ndarray):
        yield name, value
    for field in getattr(value, "_fields", ()):
        yield from _arrays(getattr(value, field), field)


def _uploaded(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return cuda.to_device(np.ascontiguousarray(value))
    if isinstance(value, tuple):
        return type(value)(*(_uploaded(part) for part in value))
    return value


def launch(kernel: Any, count: int, *arguments: Any) -> None:
    """Run a kernel on so many threads."""
    threads = min(_BLOCK, count)
    kernel[ceil(count / threads), threads](*arguments)


def in_chunks(
    total: int,
    shapes: Shapes,
    run: Callable[[int, int, list[Any]], None],
) -> None:
    """``run(start, count, scratch)`` over all replications, so many at once as fit the device.

    Arguments:
        total: replications.
        shapes: one thread's scratch by name; ``run`` gets arrays of these shapes with a last axis
            for the threads.
        run: leaves results that do not depend on how replications were shared out.

    Raises:
        InputError: the scratch of one replication does not fit.

    Warns:
        UserWarning: the device ran out of memory and the chunk was halved.
    """
    each = sum(prod(shape) * np.dtype(dtype).itemsize for shape, dtype in shapes.values())
    free = free_bytes()
    chunk = max(1, int(min(total, MOST_THREADS, _SHARE * free / each)))
    start, scratch = 0, None
    while start < total:
        count = min(chunk, total - start)
        try:
            if scratch is None:
                scratch = [
                    cuda.device_array((*shape, chunk), dtype) for shape, dtype in shapes.values()
                ]
            run(start, count, scratch)
            cuda.synchronize()
        except Exception as error:
            if not _out_of_memory(error):
                raise
            scratch = None
            if chunk == 1:
                name, (shape, dtype) = max(
                    shapes.items(),
                    key=lambda item: prod(item[1][0]) * np.dtype(item[1][1]).itemsize,
                )
                raise InputError(
                    f"the scratch of one replication takes {_size(each)}, of which {name} {shape} "
                    f"takes {_size(prod(shape) * np.dtype(dtype).itemsize)}: the device has "
                    f"{_size(free_bytes())} free; use engine cpu"
                ) from error
            chunk = ceil(chunk / 2)
            warnings.warn(
                f"the device ran out of memory: {chunk} replications at once from here on, "
                "with the same results",
                stacklevel=3,
            )
        else:
            start += count


def _shapes(cell: Cell, asked: Any, tables: Any, plain: bool, tabled: bool) -> Shapes:
    """The fields of :class:`~ustat_pg.engines.gradients.scalar.Room`; unused ones hold one number."""
    one, batch, group = (1,), cell.batch_size, cell.group_size
    ints, reals = np.int64, np.float64
    vectors = 3 if asked.weighted else 2
    width = tables.dense.shape[2] if tables.form == bodies.DENSE else tables.probs.shape[1]
    shuffled = cell.design == "without-replacement"
    shapes: dict[str, tuple[tuple[int, ...], Any]] = {
        "order": ((cell.problem.contexts if shuffled else 1,), ints),
        "undo": ((batch,), ints),
        "xs": ((batch,), ints),
        "chosen": ((group,), np.int32),
        "rewards": ((group,), reals),
    }
    if plain:
        return shapes | {
            "mass": ((1, width if tabled else 1, 2), reals),
            "weights": ((1, 1), reals),
            "sums": (one, reals),
            "gram": ((1, 1, 1, 1), reals),
            "lin": ((1, 1), reals),
            "lin_along": ((1, 1, 1), reals),
            "coef": ((1, 1, 1), reals),
            "diff": ((1, 1), reals),
        }
    return shapes | {
        "rewards": (one, reals),
        "mass": ((vectors, batch, width), reals),
        "weights": ((vectors, group), reals),
        "sums": ((batch,), reals),
        "gram": ((batch, batch, vectors, vectors), reals),
        "lin": ((batch, vectors), reals),
        "lin_along": ((max(len(asked.along), 1), batch, vectors), reals),
        "coef": ((len(asked.kinds), batch, vectors), reals),
        "diff": ((batch, vectors), reals),
    }


def draw(cell: Cell, *, seed: int, first: int, replications: int) -> tuple[Integers, Integers]:
    """Contexts (R, B) and outcome numbers (R, B, G) of the cell's replications.

    Raises:
        InputError: there is no device.
    """
    require_device()
    tables = upload(_tables(cell.problem), "the problem's tables")
    key, design = cuda.to_device(rng.cell_key(seed, cell.name)), _DESIGNS[cell.design]
    batch, group = cell.batch_size, cell.group_size
    contexts = np.empty((replications, batch), np.int64)
    chosen = np.empty((replications, batch, group), np.int64)
    shuffled = cell.design == "without-replacement"
    shapes: Shapes = {
        "order": ((cell.problem.contexts if shuffled else 1,), np.int64),
        "undo": ((batch,), np.int64),
        "xs": ((batch,), np.int64),
        "contexts": ((batch,), np.int64),
        "outcomes": ((batch, group), np.int64),
    }

    def run(start: int, count: int, scratch: list[Any]) -> None:
        *prompts, where, picked = scratch
        launch(
            bodies.draw_kernel,
            count,
            first + start,
            count,
            key,
            design,
            tables,
            *prompts,
            where,
            picked,
        )
        contexts[start : start + count] = where.copy_to_host().T[:count]
        chosen[start : start + count] = np.moveaxis(picked.copy_to_host(), -1, 0)[:count]

    in_chunks(replications, shapes, run)
    return contexts, chosen


class CudaEngine:
    """One thread of the device to a replication; sums of the quantities in a fixed order."""

    name = "cuda"
    enumerates = False

    def check(self, cell: Cell, quantities: Sequence[Quantity]) -> None:
        """Refuse what the cpu engine refuses, and a machine without a device."""
        for estimator in estimators_of(quantities):
            compiled = estimator.baseline in _KINDS or estimator.baseline in PROMPT_ONLY
            if estimator.function is not None or not compiled:
                raise InputError(
                    f"engine cuda cannot run {estimator.label}: use reference or exact"
                )
        check_estimators(cell, quantities)
        require_device()

    def measure(
        self,
        cell: Cell,
        quantities: Sequence[Quantity],
        *,
        seed: int = 0,
        first: int = 0,
        replications: int = 0,
    ) -> MomentSums:
        """See :class:`~ustat_pg.engines.Engine`."""
        check_block(quantities, first, replications)
        self.check(cell, quantities)
        segment = _segment(len(quantities))
        tables, asked = _tables(cell.problem), _asked(cell.problem, quantities)
        plain = _is_plain(cell, quantities)
        tabled = cell.group_size > _COMPARED and cell.problem.arms < cell.group_size**2
        shapes = _shapes(cell, asked, tables, plain, tabled)
        there = upload(tables, "the problem's tables"), upload(asked, "the quantities' tables")
        key, design = cuda.to_device(rng.cell_key(seed, cell.name)), _DESIGNS[cell.design]
        values = allocate("the quantities' values", (len(quantities), min(segment, replications)))
        parts = []
        for begin in range(0, replications, segment):
            size = min(segment, replications - begin)

            def run(start: int, count: int, scratch: list[Any], begin: int = begin) -> None:
                where = (first + begin, start, count, key, cell.group_size, design, *there)
                room = bodies.Room(*scratch)
                if plain:
                    launch(bodies.one_prompt_kernel, count, *where, tabled, room, values)
                else:
                    launch(bodies.minibatch_kernel, count, *where, room, values)

            in_chunks(size, shapes, run)
            parts.append(_reduced(values, size))
        return reduce(MomentSums.merge, parts)


def _segment(quantities: int) -> int:
    """Replications that are reduced together: a function of the number of quantities alone."""
    return max(2**16, _SEGMENT_VALUES // quantities)


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
    launch(bodies.reduce_kernel, used * quantities, values, count, tiles, base, sums, products)
    added = sums.copy_to_host().sum(axis=0)
    lower = np.tril(products.copy_to_host().sum(axis=0))
    both = lower + np.tril(lower, -1).T - np.outer(added, added) / count
    return MomentSums(count, base.copy_to_host() + added / count, both)


ENGINE = CudaEngine()
