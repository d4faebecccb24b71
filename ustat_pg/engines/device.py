"""A CUDA device: its memory, and how kernels are launched on it.

Where there is no device, numba's simulator can stand in for tests of small sizes, in a process of
its own, with ``NUMBA_ENABLE_CUDASIM=1`` and ``NUMBA_DISABLE_JIT=1``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, prod
from typing import Any, TypeVar

import numpy as np
from numba import config, cuda

from ..memory import in_slices, out_of_memory
from ..validation import InputError

__all__ = [
    "MOST_THREADS",
    "Shapes",
    "allocate",
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
    """Refuse to go on without a device or its simulator."""
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


def _fitting(what: str, size: int, make: Callable[[], T]) -> T:
    """Refuse what the device has no memory for."""
    try:
        return make()
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise InputError(
            f"{what} take {_size(size)}: the device has {_size(free_bytes())} free; use engine cpu"
        ) from error


def allocate(what: str, shape: tuple[int, ...]) -> Any:
    """An array of floats on the device."""
    return _fitting(what, 8 * prod(shape), lambda: cuda.device_array(shape, np.float64))


def upload(tables: T, what: str) -> T:
    """A tuple of tuples, arrays and numbers with its arrays on the device."""
    return _fitting(what, _bytes(tables), lambda: _uploaded(tables))


def _bytes(value: Any) -> int:
    if isinstance(value, tuple):
        return sum(map(_bytes, value))
    return value.nbytes if isinstance(value, np.ndarray) else 0


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
    """``run(start, count, scratch)`` over all replications, as many at once as fit the device.

    Arguments:
        total: replications.
        shapes: one thread's scratch by name; ``run`` gets arrays of these shapes with a last axis
            for the threads.
        run: leaves results that do not depend on how replications were shared out.

    Warns:
        ChunkWarning: the device ran out of memory and the chunk was halved.
    """
    each = sum(prod(shape) * np.dtype(dtype).itemsize for shape, dtype in shapes.values())
    most = max(1, int(min(total, MOST_THREADS, SCRATCH_SHARE * free_bytes() / each)))
    scratch: list[Any] = []

    def chunk(rows: slice) -> None:
        count = rows.stop - rows.start
        try:
            if not scratch:
                scratch.extend(
                    cuda.device_array((*shape, count), dtype) for shape, dtype in shapes.values()
                )
            run(rows.start, count, list(scratch))
            cuda.synchronize()
        except Exception:
            # A smaller chunk has scratch of its own.
            scratch.clear()
            raise

    for _ in in_slices(total, most, "replications", chunk, lambda _: None):
        pass
