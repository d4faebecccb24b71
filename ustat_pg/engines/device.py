"""A CUDA device: its memory, and how kernels are launched on it.

Where there is no device, numba's simulator can stand in for tests of small sizes, in a process of
its own, with ``NUMBA_ENABLE_CUDASIM=1`` and ``NUMBA_DISABLE_JIT=1``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from math import ceil, prod
from typing import Any, TypeVar

import numpy as np
from numba import config, cuda

from ..validation import InputError

__all__ = [
    "MOST_THREADS",
    "Shapes",
    "allocate",
    "device_name",
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
"""The threads of one launch: as many as the largest devices hold at once."""

BLOCK_THREADS = 128
SCRATCH_SHARE = 0.8
"""The share of the free memory that scratch may take."""

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
        InputError: the array does not fit; its name and size, and what is free.
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
    threads = min(BLOCK_THREADS, count)
    kernel[ceil(count / threads), threads](*arguments)


def in_chunks(total: int, shapes: Shapes, run: Callable[[int, int, list[Any]], None]) -> None:
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
    chunk = max(1, int(min(total, MOST_THREADS, SCRATCH_SHARE * free / each)))
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
