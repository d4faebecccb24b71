"""Refusing bad input at the public edge: what was wrong, the value, what is allowed."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["InputError", "finite_array", "frozen", "integer", "number", "probabilities"]

PROBABILITY_TOLERANCE = 1e-9
"""How far probabilities may sum from 1 before they are refused (they are then renormalised)."""


class InputError(ValueError):
    """Input that this library refuses; the message says what is wrong and what is allowed."""


def integer(name: str, value: Any, minimum: int = 1) -> int:
    """Return ``value`` as an int, or raise :class:`InputError` if it is not a whole number >= ``minimum``.

    >>> integer("group size", 8)
    8
    >>> integer("group size", 2.5)
    Traceback (most recent call last):
    ...
    ustat_pg.validation.InputError: group size is 2.5: it must be a whole number of at least 1
    """
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or not minimum <= number < 2**63:
        limit = "" if number is None or number < minimum else " and below 2^63"
        raise InputError(
            f"{name} is {value!r}: it must be a whole number of at least {minimum}{limit}"
        )
    return number


def frozen(array: NDArray[np.float64]) -> NDArray[np.float64]:
    """The array itself, no longer writable: what is shared and hashed must not change."""
    array.setflags(write=False)
    return array


def finite_array(name: str, value: ArrayLike, ndim: int | None = None) -> NDArray[np.float64]:
    """Return ``value`` as a float64 array of ``ndim`` dimensions with finite entries.

    Raises:
        InputError: the array is ragged, not numeric, of another dimension, or holds NaN or infinity.
    """
    try:
        array = np.asarray(value)
    except ValueError:
        raise InputError(f"{name} is ragged: its rows must have equal lengths") from None
    if array.dtype.kind not in "iufb":
        raise InputError(f"{name} is not an array of numbers (its type is {array.dtype})")
    array = np.array(array, dtype=np.float64)
    if ndim is not None and array.ndim != ndim:
        raise InputError(f"{name} has shape {array.shape}: it must have {ndim} dimension(s)")
    if array.size == 0:
        raise InputError(f"{name} has shape {array.shape}: it must not be empty")
    bad = ~np.isfinite(array)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise InputError(
            f"{name} holds {array[where]} at {list(where)}: all entries must be finite"
        )
    return frozen(array)


def number(name: str, value: Any, above: float) -> float:
    """Return ``value`` as a finite number above a limit, or raise :class:`InputError`.

    >>> number("rate", 1, above=0.0)
    1.0
    """
    found = float(finite_array(name, value, 0))
    if not found > above:
        raise InputError(f"{name} is {found!r}: it must be above {above:g}")
    return found


def probabilities(name: str, value: ArrayLike, ndim: int) -> NDArray[np.float64]:
    """Return ``value`` as probabilities that sum to 1 along the last axis.

    Raises:
        InputError: an entry is negative, or a sum is further from 1 than 1e-9.
    """
    array = finite_array(name, value, ndim)
    if (array < 0).any():
        where = tuple(int(i) for i in np.argwhere(array < 0)[0])
        raise InputError(
            f"{name} is {array[where]} at {list(where)}: probabilities must not be negative"
        )
    total = array.sum(axis=-1)
    off = np.abs(total - 1) > PROBABILITY_TOLERANCE
    if off.any():
        if array.ndim == 1:
            raise InputError(f"{name} sums to {float(total)!r}: probabilities must sum to 1")
        where = tuple(int(i) for i in np.argwhere(off)[0])
        raise InputError(
            f"{name} sums to {float(total[where])!r} at {list(where)}: probabilities must sum to 1"
        )
    # Sums already at 1 to rounding are left alone, so that probabilities read back are the same.
    return np.where(np.abs(total - 1)[..., None] > 1e-12, array / total[..., None], array)
