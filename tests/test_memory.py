"""Running out of memory: told by type or by the allocator's text, and from nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from ustat_pg.memory import ChunkWarning, out_of_memory


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
