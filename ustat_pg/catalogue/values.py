"""Values in Python code, as far as they are certain."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Unknown:
    """A value that only the run itself knows."""


UNKNOWN = Unknown()


@dataclass(frozen=True)
class Literal:
    """A number, a text, a truth value or None.

    Arguments:
        value: the value.
        options: the script's own options that have it as their default.
    """

    value: Any
    options: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Items:
    """A tuple."""

    parts: tuple[Value, ...]


@dataclass(frozen=True)
class Imported:
    """What an import or Python itself gives, by its path."""

    path: str

    @property
    def last(self) -> str:
        return self.path.rpartition(".")[2]


@dataclass(frozen=True)
class Object:
    """A reference to an object that may change, by the place that makes it."""

    key: Any


@dataclass(frozen=True)
class Repeated:
    """The items of a ``range`` or of a comprehension.

    Arguments:
        count: their number.
        item: the value of each.
    """

    count: Value = UNKNOWN
    item: Value = UNKNOWN


@dataclass(frozen=True)
class Method:
    """A method with its object, or with the name of one that Python gives to the object's kind."""

    function: Value
    of: Value
    name: str


Value: TypeAlias = Any
"""One of the classes above, or a function of the code."""


@dataclass(frozen=True)
class Record:
    """The contents of an object.

    Arguments:
        kind: ``dict``, ``list``, ``instance``, ``class``, ``parser``, ``config`` or ``group``, one
            of rollouts.
        parts: its items, fields or options.
        whole: whether it has no other parts.
        of: its class, or for a class its bases.
        fields: the annotated fields of a class, in order.
        called: the name of a config's class.
    """

    kind: str
    parts: Mapping[Any, Value] = field(default_factory=dict)
    whole: bool = True
    of: Value = UNKNOWN
    fields: tuple[str, ...] = ()
    called: str = ""

    def with_parts(self, parts: Mapping[Any, Value]) -> Record:
        return replace(self, parts={**self.parts, **parts})

    def uncertain(self) -> Record:
        return replace(self, parts=dict.fromkeys(self.parts, UNKNOWN), whole=False)


Heap = dict[Any, Record]


def same(one: Value, other: Value) -> Value:
    """The value if two ways to it agree, else unknown."""
    match one, other:
        case Literal(), Literal():
            alike = type(one.value) is type(other.value) and one.value == other.value
            return Literal(one.value, one.options | other.options) if alike else UNKNOWN
        case Items(), Items() if len(one.parts) == len(other.parts):
            return Items(tuple(map(same, one.parts, other.parts)))
    return one if one == other else UNKNOWN


def same_names(one: Mapping[Any, Value], other: Mapping[Any, Value]) -> dict[Any, Value]:
    """The names of both; a name that one of them lacks is unknown."""
    return {
        name: same(one.get(name, UNKNOWN), other.get(name, UNKNOWN)) for name in {**one, **other}
    }


def same_objects(one: Heap, other: Heap) -> Heap:
    """The objects of both; an object that only one of them made is as made."""
    both = {**one, **other}
    for key in one.keys() & other.keys():
        if one[key] is not other[key]:
            both[key] = same_record(one[key], other[key])
    return both


def same_record(one: Record, other: Record) -> Record:
    return replace(
        one,
        parts=same_names(one.parts, other.parts),
        whole=one.whole and other.whole,
        fields=one.fields or other.fields,
    )


def plain(value: Value, heap: Heap) -> Literal | None:
    """A value made of literals alone; None if it is not one."""
    match value:
        case Literal():
            return value
        case Items(parts):
            return _all(parts, heap, tuple)
        case Object(key) if heap[key].whole and heap[key].kind in ("list", "dict"):
            record = heap[key]
            if record.kind == "list":
                return _all(record.parts.values(), heap, list)
            names = [*record.parts]
            return _all(
                record.parts.values(), heap, lambda values: dict(zip(names, values, strict=True))
            )
    return None


def _all(values: Any, heap: Heap, whole: Any) -> Literal | None:
    parts = [plain(value, heap) for value in values]
    if None in parts:
        return None
    known = [part for part in parts if part is not None]
    options = frozenset[str]().union(*(part.options for part in known))
    return Literal(whole([part.value for part in known]), options)


def computed(operator: type[ast.AST], *operands: Value) -> Value:
    """The result of an operator on numbers or texts; unknown if it could be large or is not defined."""
    known = [operand for operand in operands if isinstance(operand, Literal)]
    how = _OPERATORS.get(operator)
    if how is None or len(known) < len(operands):
        return UNKNOWN
    numbers = all(isinstance(each.value, int | float) for each in known)
    if not numbers and operator not in _OF_ALL:
        return UNKNOWN
    try:
        value = how(*(each.value for each in known))
    except (ArithmeticError, TypeError, ValueError):
        return UNKNOWN
    if isinstance(value, complex) or (isinstance(value, int) and abs(value) >= _LARGE):
        return UNKNOWN
    if isinstance(value, str) and len(value) > _LONG:
        return UNKNOWN
    return Literal(value, joined(*known))


def joined(*values: Value) -> frozenset[str]:
    """The options of several values."""
    return reduce(
        frozenset.union,
        (value.options for value in values if isinstance(value, Literal)),
        frozenset(),
    )


_LARGE = 2**63
"""The size from which whole numbers are not computed."""

_LONG = 10_000
"""The most characters of a text that is put together."""


def _power(base: Any, exponent: Any) -> Any:
    if abs(exponent) > 64:
        raise ValueError
    return base**exponent


_OPERATORS: dict[type[ast.AST], Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: _power,
    ast.USub: lambda a: -a,
    ast.UAdd: lambda a: +a,
    ast.Not: lambda a: not a,
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.Is: lambda a, b: a is b if None in (a, b) else a == b,
    ast.IsNot: lambda a, b: a is not b if None in (a, b) else a != b,
}
_OF_ALL = (ast.Add, ast.Not, ast.Eq, ast.NotEq, ast.Is, ast.IsNot)
