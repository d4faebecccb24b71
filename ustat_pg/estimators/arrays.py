"""What the arrays given to an estimator must be."""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

from ..baselines import BASELINES
from ..validation import InputError

Array = Any  # any array of the array API


def namespace(name: str, array: Array) -> Any:
    """The namespace of an array; what is none, or not of finite real numbers, is refused."""
    try:
        xp = array_namespace(array)
    except TypeError:
        raise InputError(
            f"{name} is a {type(array).__name__}: it must be an array (NumPy, torch, ...)"
        ) from None
    if not xp.isdtype(array.dtype, "real floating"):
        raise InputError(f"{name} have type {array.dtype}: they must be floating-point numbers")
    if not bool(xp.all(xp.isfinite(array))):
        raise InputError(f"{name} hold NaN or infinity: all must be finite")
    return xp


def rewards_of(rewards: Array, name: str) -> Any:
    """The array's namespace, after refusing what no estimator can use."""
    xp, least = namespace("rewards", rewards), BASELINES[name].least_group
    if rewards.ndim < 1 or rewards.shape[-1] < least:
        size = rewards.shape[-1] if rewards.ndim else 0
        raise InputError(
            f"{name} needs a group of at least {least} rewards on the last axis: "
            f"the shape is {tuple(rewards.shape)}, group size {size}"
        )
    return xp


def require_beside(name: str, array: Array, xp: Any) -> None:
    """Refuse what is no array of finite real numbers of the rewards' own library."""
    own = namespace(name, array)
    if own is not xp:
        raise InputError(
            f"rewards and {name} must be arrays of one library, not of {xp.__name__} "
            f"and {own.__name__}"
        )


def require_norms(squared_norms: Array, rewards: Array, xp: Any) -> None:
    """Refuse squared norms of another shape than the rewards', or negative ones."""
    require_beside("squared_norms", squared_norms, xp)
    if tuple(squared_norms.shape) != tuple(rewards.shape):
        raise InputError(
            f"squared_norms has shape {tuple(squared_norms.shape)}: "
            f"it must have the rewards' shape {tuple(rewards.shape)}"
        )
    if not bool(xp.all(squared_norms >= 0)):
        raise InputError("squared_norms must not be negative")
