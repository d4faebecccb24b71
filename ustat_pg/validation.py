"""Checks of input at the public functions. Messages name the error, the value and the allowed values."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from math import inf
from typing import Any, TypeVar, dataclass_transform

import attrs
import numpy as np
from numpy.typing import ArrayLike, NDArray

from .rounding import DERIVED, GIVEN

Array = NDArray[np.float64]
"""Arrays of double precision, which :func:`finite_array` creates from the input."""
Record = TypeVar("Record")


MOST_WORKERS = 10_000
"""The largest number of things that are done together."""


class InputError(ValueError):
    """Input that this library refuses; the message says what is wrong and what is allowed."""


class MissingPackageError(ImportError, InputError):
    """An optional package is missing; the message says what to install."""


@contextmanager
def needed(what: str, extra: str) -> Iterator[None]:
    """Say what to install if a package that is imported in this context is missing.

    Arguments:
        what: the thing that needs the package, in the singular.
        extra: the name in ``pip install 'ustat_pg[...]'``.

    >>> with needed("a picture", "figures"):
    ...     import no_matplotlib
    Traceback (most recent call last):
    ...
    ustat_pg.validation.MissingPackageError: a picture needs pip install 'ustat_pg[figures]': No module ...
    """
    try:
        yield
    except MissingPackageError:
        raise
    except ImportError as error:  # a package that lacks one of its own says so in words of its own
        text = f"{what} needs pip install 'ustat_pg[{extra}]': {error}"
        raise MissingPackageError(text, name=error.name) from None


_TYPED: ContextVar[bool] = ContextVar("typed", default=False)


@contextmanager
def typed() -> Iterator[None]:
    """A context in which errors name arguments as options of a command line."""
    token = _TYPED.set(True)
    try:
        yield
    finally:
        _TYPED.reset(token)


def argument(name: str, value: str | None = None) -> str:
    """An argument as the caller writes it, for a function or for a command.

    Arguments:
        name: the argument's name.
        value: a text for its value; the default means True.

    >>> argument("group_size", "G")
    'group_size=G'
    >>> with typed():
    ...     argument("group_size", "G"), argument("off_policy")
    ('--group-size G', '--off-policy')
    """
    if not _TYPED.get():
        return f"{name}={value or True}"
    flag = f"--{name.replace('_', '-')}"
    return flag if value is None else f"{flag} {value}"


def integer(name: str, value: Any, minimum: int = 1, maximum: int = 2**63 - 1) -> int:
    """Return ``value`` as an int, or raise :class:`InputError` if it is not a whole number within limits.

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
    if number is None or not minimum <= number <= maximum:
        most = "below 2^63" if maximum == 2**63 - 1 else f"at most {maximum:,}"
        limit = "" if number is None or number < minimum else f" and {most}"
        raise InputError(
            f"{name} is {_shown(value)}: it must be a whole number of at least {minimum}{limit}"
        )
    return number


def _shown(value: Any) -> str:
    """The value as Python writes it; Python cannot write a number of thousands of digits."""
    try:
        return repr(value)
    except ValueError:
        return "a number of thousands of digits"


def number(
    name: str, value: Any, above: float = -inf, minimum: float = -inf, maximum: float = inf
) -> float:
    """Return ``value`` as a finite float within limits.

    >>> number("cost", -1.5, minimum=0)
    Traceback (most recent call last):
    ...
    ustat_pg.validation.InputError: cost is -1.5: it must be at least 0
    """
    if isinstance(value, int) and abs(value) >= 2**63:
        # NumPy stores an int beyond its range as an object.
        value = float(value) if abs(value) < 2**1000 else inf
    result = float(finite_array(name, value, 0))
    if not above < result <= maximum or result < minimum:
        allowed = f"be above {above:g}" if minimum == -inf else f"be at least {minimum:g}"
        if above == 0:
            allowed = "be positive"
        if maximum < inf:
            allowed += f" and at most {maximum:g}"
        raise InputError(f"{name} is {result!r}: it must {allowed}")
    return result


def positive(name: str, value: Any) -> float:
    """Return ``value`` as a finite float above 0."""
    return number(name, value, above=0.0)


def one_of(name: str, value: Any, allowed: Collection[str], cutoff: float = 0.6) -> str:
    """Return ``value``, one of some words; the error gives the nearest from a similarity ``cutoff`` on.

    >>> one_of("size", "huge", ("small", "large"))
    Traceback (most recent call last):
    ...
    ustat_pg.validation.InputError: size 'huge' is unknown: choose one of small, large
    """
    if not isinstance(value, str) or value not in allowed:
        near = nearest(value, allowed, cutoff=cutoff) if isinstance(value, str) else []
        meant = f", did you mean {near[0]}?" if near else ":"
        raise InputError(f"{name} {value!r} is unknown{meant} choose one of {', '.join(allowed)}")
    return value


def nearest(word: str, allowed: Collection[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
    """The allowed words that are similar to a word, the nearest first; capitals do not matter.

    >>> nearest("Rlooo", ("grpo", "rloo"))
    ['rloo']
    """
    by_small = {other.lower(): other for other in allowed}
    matches = get_close_matches(word.lower(), by_small, n=count, cutoff=cutoff)
    return [by_small[small] for small in matches]


def device_name(value: Any) -> str:
    """Return the name of a device for torch; this machine may or may not have the device."""
    if not isinstance(value, str) or not re.fullmatch(r"(cpu|cuda)(:\d+)?", value):
        raise InputError(f"device is {value!r}: choose cpu, cuda or cuda:N")
    return value


def frozen(array: Array) -> Array:
    """The array itself, made read-only, because a shared and hashed array must not change."""
    array.setflags(write=False)
    return array


def finite_array(
    name: str, value: ArrayLike, ndim: int | None = None, minimum: float = -inf
) -> Array:
    """Return ``value`` as a float64 array of ``ndim`` dimensions with finite entries >= ``minimum``."""
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
    if array.min() < minimum:
        raise InputError(f"{name} holds {array.min()}: all entries must be at least {minimum:g}")
    array.setflags(write=False)
    return array


def shares(name: str, value: ArrayLike, ndim: int | None = None) -> Array:
    """Return ``value`` as a float64 array of numbers in [0, 1]."""
    array = finite_array(name, value, ndim)
    if array.min() < 0 or array.max() > 1:
        wrong = array.min() if array.min() < 0 else array.max()
        raise InputError(f"{name} is {wrong:g}: it must lie in [0, 1]")
    return array


def probabilities(name: str, value: ArrayLike, ndim: int) -> Array:
    """Return ``value`` as probabilities that sum to 1 along the last axis."""
    array = finite_array(name, value, ndim)
    if (array < 0).any():
        where = tuple(int(i) for i in np.argwhere(array < 0)[0])
        raise InputError(
            f"{name} is {array[where]} at {list(where)}: probabilities must not be negative"
        )
    total = array.sum(axis=-1)
    off = np.abs(total - 1) > GIVEN
    if off.any():
        if array.ndim == 1:
            raise InputError(f"{name} sums to {float(total)!r}: probabilities must sum to 1")
        where = tuple(int(i) for i in np.argwhere(off)[0])
        raise InputError(
            f"{name} sums to {float(total[where])!r} at {list(where)}: probabilities must sum to 1"
        )
    # If a sum is 1 up to rounding, it is kept, so that stored probabilities are the same after reading.
    if (np.abs(total - 1) > DERIVED).any():
        array = np.where(np.abs(total - 1)[..., None] > DERIVED, array / total[..., None], array)
        array.setflags(write=False)
    return array


def field(
    require: Callable[..., Any],
    *,
    name: str | None = None,
    default: Any = attrs.NOTHING,
    **limits: Any,
) -> Any:
    """A field of a :func:`record`, which a function of this module checks.

    Arguments:
        require: called as ``require(name, value, **limits)``; its result is stored.
        name: the field's name in errors; by default its own name.
        default: if it is None, None is allowed as well.
    """

    def convert(value: Any, attribute: attrs.Attribute[Any]) -> Any:
        if value is None and default is None:
            return None
        return require(name or attribute.name, value, **limits)

    return attrs.field(default=default, converter=attrs.Converter(convert, takes_field=True))


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def record(*, eq: bool = False) -> Callable[[type[Record]], type[Record]]:
    """A decorator for classes of records with checked fields.

    >>> @record()
    ... class Circle:
    ...     centre: Array = field(finite_array, ndim=1)
    ...     radius: float = field(positive, default=1.0)
    >>> Circle([0, 2]).centre
    array([0., 2.])
    >>> Circle([0, 2], radius=-1)
    Traceback (most recent call last):
    ...
    ustat_pg.validation.InputError: radius is -1.0: it must be positive
    """
    # The class has no slots, because cached properties need the instance's dictionary.
    return attrs.define(eq=eq, frozen=True, slots=False)


def changed(instance: Record, **changes: Any) -> Record:
    """A copy of a record with other values in some fields."""
    return attrs.evolve(instance, **changes)  # type: ignore[misc]
