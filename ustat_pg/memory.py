"""Running out of memory: how it is told from other errors, and said."""

from __future__ import annotations

__all__ = ["ChunkWarning", "out_of_memory"]


_TEXTS = ("DefaultCPUAllocator", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


class ChunkWarning(RuntimeWarning):
    """Memory ran out; the work goes on in smaller chunks."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on this machine or on a device.

    Torch's errors are known by name and text, so that torch need not be there.

    >>> out_of_memory(MemoryError()), out_of_memory(RuntimeError("shapes do not match"))
    (True, False)
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS)
