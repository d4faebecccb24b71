"""Running out of memory: told by type or by the allocator's text, and from nothing else."""

import numpy as np
import pytest

from tests.support.refusals import refuses
from ustat_pg.execution import memory
from ustat_pg.execution.memory import (
    ChunkWarning,
    at_once,
    in_slices,
    out_of_memory,
    refused,
    slices,
)


class OutOfMemoryError(RuntimeError):
    """The name that torch gives to the error of a device."""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_memory_is_told(error):
    assert out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(),
        ValueError("DefaultCPUAllocator"),
        ValueError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        OSError(28, "No space left on device"),
        KeyboardInterrupt(),
        RecursionError("maximum recursion depth exceeded"),
        ChunkWarning("out of memory"),
    ],
)
def test_other_errors_are_not_memory(error):
    assert not out_of_memory(error)


def test_the_words_of_numpy_and_of_the_installed_torch():
    with pytest.raises(MemoryError) as caught:
        np.empty(2**47)
    assert out_of_memory(caught.value)
    torch = pytest.importorskip("torch")
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**47, dtype=torch.float64)
    assert out_of_memory(caught.value)
    assert out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(RuntimeError) as caught:
        torch.zeros(2) @ torch.zeros(3)
    assert not out_of_memory(caught.value)


@pytest.mark.parametrize(
    ("total", "size", "ends"),
    [(5, 2.5, [2, 4, 5]), (4, 2, [2, 4]), (3, 0.2, [1, 2, 3]), (2, 9, [2]), (0, 3, [])],
)
def test_slices_cover_everything_once(total, size, ends):
    found = list(slices(total, size))
    assert [some.stop for some in found] == ends
    assert [some.start for some in found] == [0, *ends[:-1]][: len(ends)]


def test_a_pass_is_sized_by_the_devices_memory(monkeypatch):
    """A GPU's free memory, that which torch holds for nothing included; a CPU's share and its caches."""
    torch = pytest.importorskip("torch")
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (6 * 10**9, 10**11))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 5 * 10**9)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 10**9)
    assert at_once(gpu, 1000) == 10**6
    assert at_once(gpu, 1000, 3000) == 10**5
    assert at_once(gpu, 10**12) == 1
    assert at_once(cpu, 1000) == memory.MEMORY // 8000
    assert at_once(cpu, 0, 4096) == memory.CACHE_BYTES // 2**15
    # Few long gradients cost more in calls than in caches, and no more than the memory allows.
    assert at_once(cpu, 0, 2**19) == 16
    assert at_once(cpu, 0, 2**24) == 1


def test_slices_halve_where_memory_runs_out():
    asked = []

    def run(some):
        asked.append((some.start, some.stop))
        if some.stop - some.start > 2:
            raise MemoryError
        return some.stop

    with pytest.warns(ChunkWarning, match="out of memory with") as caught:
        parts = [(some.start, value) for some, value in in_slices(7, 5, "groups", run)]
    assert asked == [(0, 5), (0, 2), (2, 4), (4, 6), (6, 7)]
    assert parts == [(0, 2), (2, 4), (4, 6), (6, 7)]
    assert str(caught[0].message) == "out of memory with 5 groups at once: going on with 2"

    def never(some):
        raise MemoryError

    with pytest.warns(ChunkWarning):
        refuses("groups do not fit in memory one at a time", list, in_slices(2, 2, "groups", never))
    with pytest.raises(ZeroDivisionError):
        list(in_slices(2, 1, "groups", lambda some: 1 / 0))


def test_what_another_package_raises_is_one_line():
    def reading(error):
        with refused("the file cannot be read"):
            raise error

    refuses("^the file cannot be read: KeyError: 'a'$", reading, KeyError("a"))
    refuses("^the file cannot be read: ValueError: first$", reading, ValueError("first\nsecond"))
    with pytest.raises(MemoryError):
        reading(MemoryError())
