"""Digests: short names that only these very texts and arrays have."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["digest"]


def digest(*parts: str | ArrayLike | Mapping[str, ArrayLike]) -> str:
    """16 hexadecimal digits that name texts, arrays and named arrays in their order.

    Draws are addressed by these digits: another rule would move every draw.

    >>> digest({"theta": [0.0, 1.0]})
    'a1e0bf0158c876e1'
    """
    state = hashlib.sha256()

    def add(array: ArrayLike) -> None:
        state.update(np.ascontiguousarray(array, dtype="<f8").tobytes())

    for part in parts:
        if isinstance(part, str):
            state.update(part.encode())
        elif isinstance(part, Mapping):
            for name, array in part.items():
                state.update(f"{name}{np.shape(array)}".encode())
                add(array)
        else:
            add(part)
    return state.hexdigest()[:16]
