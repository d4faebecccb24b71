"""Running out of memory: told by type or by the allocator's text, and from nothing else."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from ustat_pg.memory import ChunkWarning, out_of_memory

ALLOCATOR = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 1125899906842624 bytes. Error code 12 (Cannot allocate memory)"
)


class OutOfMemoryError(RuntimeError):
    """The name that torch gives to the error of a device."""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("Unable to allocate 1.00 TiB for an array"),
        OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError(ALLOCATOR),
        RuntimeError(
            "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"
        ),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_memory_is_told(error):
    assert out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shapes do not match"),
        RuntimeError(),
        ValueError("DefaultCPUAllocator"),
        ValueError("CUDA error: out of memory"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        OSError(28, "No space left on device"),
        KeyboardInterrupt(),
        RecursionError("maximum recursion depth exceeded"),
        ChunkWarning("out of memory"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_are_not_memory(error):
    assert not out_of_memory(error)


@pytest.mark.skipif(find_spec("torch") is None, reason="torch not installed")
def test_the_words_of_the_installed_torch():
    import torch

    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**47, dtype=torch.float64)
    assert out_of_memory(caught.value)
    assert out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(RuntimeError) as caught:
        torch.zeros(2) @ torch.zeros(3)
    assert not out_of_memory(caught.value)


def test_the_words_of_numpy():
    import numpy as np

    with pytest.raises(MemoryError) as caught:
        np.empty(2**47)
    assert out_of_memory(caught.value)
