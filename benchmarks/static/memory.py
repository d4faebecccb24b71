"""Memory that stands for a card's: NumPy arrays that numba types and packs as arrays on a device."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np

Array = Any


class Held(np.ndarray):
    """An array in the arena, with what numba's own CUDA target and numba-cuda ask of one on a device."""

    __cuda_memory__ = True
    __cuda_ndarray__ = True

    @property
    def ptr(self) -> int:
        return int(self.ctypes.data)

    @property
    def device_ctypes_pointer(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.ptr)

    @property
    def _strided_memory_view_shim(self) -> Held:
        return self

    @property
    def _layout(self) -> SimpleNamespace:
        return SimpleNamespace(strides_in_bytes=self.strides)


ARENA: Any = np.zeros(2**30, np.uint8).view(Held)
"""All memory of the card; pages that nobody touches cost nothing."""

_TOP = [0]


def empty(shape: Any, kind: Any = np.float64) -> Any:
    """An array in the arena."""
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    start, _TOP[0] = _TOP[0], _TOP[0] + -(-size // 256) * 256
    if _TOP[0] > ARENA.size:
        raise MemoryError("the arena is full")
    return ARENA[start : start + size].view(kind).reshape(shape)


def upload(value: Any) -> Any:
    """A copy of a nested tuple of arrays and numbers, with its arrays in the arena."""
    if isinstance(value, np.ndarray):
        held = empty(value.shape, value.dtype)
        held[...] = value
        return held
    if isinstance(value, tuple):
        return (
            type(value)(*map(upload, value))
            if hasattr(value, "_fields")
            else (*map(upload, value),)
        )
    return value
