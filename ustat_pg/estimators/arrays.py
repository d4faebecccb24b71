"""Checks of an estimator's arrays, and sums over the others of a group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from ..registry import ESTIMATORS
from ..validation import InputError

Array = Any  # any array of the array API

_TRUSTED = ContextVar("trusted", default=False)


@contextmanager
def trusted() -> Iterator[None]:
    """Checked numbers are not checked again, because each check needs an answer from the device."""
    token = _TRUSTED.set(True)
    try:
        yield
    finally:
        _TRUSTED.reset(token)


def require(holds: Callable[[], Array], text: str) -> None:
    """Raise an error if an array violates a condition, unless its numbers are trusted."""
    if not _TRUSTED.get() and not bool(holds()):
        raise InputError(text)


def floating(name: str, value: Any, like: Array | None = None) -> tuple[Any, Array]:
    """The namespace of an array, and the array as finite floating-point numbers.

    Integers and booleans are converted to the library's default type; lists and numbers become NumPy arrays.

    Arguments:
        name: its name in errors.
        value: array, or nested lists of numbers.
        like: floating-point array; lists and numbers get its library, type and device, and integers and
            booleans get its type.
    """
    try:
        xp = array_namespace(value)
    except TypeError:
        xp, value = listed(name, value, like)
    if not xp.isdtype(value.dtype, "real floating"):
        if not xp.isdtype(value.dtype, ("bool", "integral")):
            raise InputError(f"{name} have type {value.dtype}: they must be real numbers")
        default = xp.__array_namespace_info__().default_dtypes()["real floating"]
        same = like is not None and array_namespace(like) is xp
        value = xp.astype(value, like.dtype if same and like is not None else default)
    require(
        lambda: xp.all(xp.isfinite(value)), f"{name} contain NaN or infinity: all must be finite"
    )
    return xp, value


def listed(name: str, value: Any, like: Array | None = None) -> tuple[Any, Array]:
    """An array from lists, tuples, numbers or columns of a table."""
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError):
        raise InputError(f"{name} are ragged: rows must have equal lengths") from None
    if array.dtype.kind not in "iufb":
        raise InputError(
            f"{name} is a {type(value).__name__}: it must be an array (NumPy, torch, ...) or a list "
            "of numbers"
        )
    xp = array_namespace(array if like is None else like)
    if like is None:
        return xp, array.astype(np.float64)
    return xp, xp.asarray(array.tolist(), dtype=like.dtype, device=device(like))


def rewards_of(rewards: Any, name: str) -> tuple[Any, Array]:
    """The rewards' namespace and the checked rewards."""
    xp, array = floating("rewards", rewards)
    least = ESTIMATORS[name].least_group
    if array.ndim < 1 or array.shape[-1] < least:
        size = array.shape[-1] if array.ndim else 0
        raise InputError(
            f"{name} needs a group of at least {least} rewards on the last axis: "
            f"the shape is {tuple(array.shape)}, group size {size}"
        )
    return xp, array


def beside(name: str, value: Any, rewards: Array, xp: Any) -> Array:
    """An array of finite real numbers of the rewards' library."""
    array, same = floating(name, value, rewards)
    if array is not xp:
        raise InputError(
            f"rewards and {name} must be arrays of the same library, not of {xp.__name__} "
            f"and {array.__name__}"
        )
    return same


def norms_of(squared_norms: Any, rewards: Array, xp: Any) -> Array:
    """Checked squared norms: they have the rewards' shape and are not negative."""
    norms = beside("squared_norms", squared_norms, rewards, xp)
    if tuple(norms.shape) != tuple(rewards.shape):
        raise InputError(
            f"squared_norms has shape {tuple(norms.shape)}: "
            f"it must have the rewards' shape {tuple(rewards.shape)}"
        )
    require(lambda: xp.all(norms >= 0), "squared_norms must not be negative")
    return norms


def before(xp: Any, values: Array) -> Array:
    """The sum of the entries before each entry on the last axis; 0 for the first."""
    return xp.cumulative_sum(values, axis=-1, include_initial=True)[..., :-1]


def after(xp: Any, values: Array) -> Array:
    """The sum of the entries after each entry on the last axis; 0 for the last."""
    return xp.flip(before(xp, xp.flip(values, axis=-1)), axis=-1)


def sum_of_others(xp: Any, values: Array) -> Array:
    """For each entry, the sum of the other entries on the last axis."""
    # The total minus the own entry would be rounding noise if the own entry is much larger than the others.
    return before(xp, values) + after(xp, values)
