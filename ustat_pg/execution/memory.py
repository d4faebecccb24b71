"""Work in pieces that fit in memory, and the handling of memory errors."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ..validation import InputError

T = TypeVar("T")

MEMORY = 2**28
"""The most bytes of gradients at once on a CPU."""

BYTES = 8
"""The bytes of a number."""

GRADIENT_COPIES = 3
"""The copies of a gradient that exist at once: the result of a backward pass, and its buffer."""

CACHE_BYTES = 2**25
"""The bytes of gradients above which larger chunks cost a CPU more in its caches than they gain."""

_LEAST_AT_ONCE = 16
"""The number of gradients below which a chunk costs a CPU more in calls than in its caches."""

_TEXTS = ("DefaultCPUAllocator", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


class ChunkWarning(RuntimeWarning):
    """Memory ran out, and the work continues in smaller chunks."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out, on this machine or on a device.

    Torch's errors are known by name and text, so that torch need not be there.

    >>> out_of_memory(MemoryError()), out_of_memory(RuntimeError("shapes do not match"))
    (True, False)
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    # numba's errors of a driver are of several types.
    if "CUDA_ERROR_OUT_OF_MEMORY" in str(error):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS)


@contextmanager
def refused(text: str, kind: type[InputError] = InputError) -> Iterator[None]:
    """Convert any error of another package to one InputError, except memory errors.

    >>> with refused("the number cannot be read"):
    ...     int("seven")
    Traceback (most recent call last):
    ...
    ustat_pg.validation.InputError: the number cannot be read: ValueError: invalid literal for int() ...
    """
    try:
        yield
    except Exception as error:
        if out_of_memory(error):
            raise
        reason = str(error).strip().partition("\n")[0]
        raise kind(f"{text}: {type(error).__name__}: {reason}") from error


def free_memory(device: Any) -> int:
    """The bytes for a computation: four fifths of a GPU's free memory, or half of the machine's.

    GPU memory that torch has reserved but does not use counts as free.

    Arguments:
        device: a torch device.
    """
    if device.type == "cuda":
        import torch

        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(0.8 * (torch.cuda.mem_get_info(device)[0] + idle))
    import psutil

    return int(psutil.virtual_memory().available) // 2


def allowance(device: Any) -> int:
    """The bytes for gradients at once on a torch device: the free memory of a GPU, or a fixed part of a
    CPU's.
    """
    return free_memory(device) if device.type == "cuda" else MEMORY


def at_once(device: Any, numbers: int, entries: int = 0) -> int:
    """The number of items that fit at once, at least 1, from the numbers and gradient entries of each.

    A GPU uses all its memory, because each pass costs launches but no caches.

    Arguments:
        device: a torch device.
    """
    size = allowance(device) // (BYTES * (numbers + GRADIENT_COPIES * entries))
    if device.type == "cpu":
        size = min(size, max(_LEAST_AT_ONCE, CACHE_BYTES // (BYTES * max(entries, 1))))
    return max(1, size)


def refuse_beyond(what: str, count: int, each: int) -> None:
    """Raise an error before any work if the result does not fit in this machine's memory.

    Arguments:
        what: its name, in the plural.
        count: number of items.
        each: least number of bytes of one item.

    >>> refuse_beyond("completions", 10**12, 100)
    Traceback (most recent call last):
    ...
    ustat_pg.validation.InputError: 1,000,000,000,000 completions take at least 100,000 GB of memory: ...
    """
    if not hasattr(os, "sysconf"):
        return
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if count * each > room:
        raise InputError(
            f"{count:,} {what} take at least {count * each // 10**9:,} GB of memory: this machine has "
            f"{room // 10**9:,}"
        )


def slices(total: int, size: float) -> Iterator[slice]:
    """0 to ``total`` in slices of a size, at least 1; the last one may be shorter.

    >>> list(slices(5, 2.5))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = max(1, int(size))
    return (slice(start, min(start + step, total)) for start in range(0, total, step))


def in_slices(
    total: int, size: int, what: str, run: Callable[[slice], T]
) -> Iterator[tuple[slice, T]]:
    """Call ``run`` over 0 to ``total`` in slices; the size halves if memory runs out.

    Arguments:
        total: number of items.
        size: number of items in a slice.
        what: word for the items in warnings.
        run: function for one slice.
    """
    start = 0
    while start < total:
        some = slice(start, min(start + size, total))
        count = some.stop - start
        try:
            part = run(some)
        except Exception as error:
            if not out_of_memory(error):
                raise
            if count == 1:
                raise InputError(
                    f"{what} do not fit in memory one at a time: take a smaller policy or group, "
                    "a coarser dtype or shorter outputs"
                ) from None
            size = count // 2
            warnings.warn(
                f"out of memory with {count} {what} at once: going on with {size}",
                ChunkWarning,
                stacklevel=2,
            )
        else:
            yield some, part
            start = some.stop
