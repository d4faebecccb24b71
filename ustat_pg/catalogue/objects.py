"""The objects of Python code, with what is certain about their parts."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from .scopes import Scope
from .values import (
    UNKNOWN,
    Heap,
    Imported,
    Items,
    Literal,
    Method,
    Object,
    Record,
    Value,
    same_record,
)

State = tuple[dict[str, Value], Heap]


@dataclass(eq=False)
class Frame:
    """A scope while it is followed.

    Arguments:
        scope: the scope.
        parent: the frame around it.
        names: what its names hold.
        inline: whether it is followed at its place, as class bodies and comprehensions are.
        returned: what it returned so far, with the objects then.
        loops: the states in which the loops around this place are left.
    """

    scope: Scope
    parent: Frame | None = None
    names: dict[str, Value] = field(default_factory=dict)
    inline: bool = False
    returned: list[tuple[Value, Heap]] = field(default_factory=list)
    loops: list[list[State]] = field(default_factory=list)


@dataclass(frozen=True)
class Function:
    """A function of the code.

    Arguments:
        node: its node.
        frame: the frame that defines it.
        defaults: the defaults of its arguments.
        given: what a command line gives to its arguments, if it makes a command of it.
        hidden: whether an unknown decorator wraps it.
    """

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    frame: Frame
    defaults: tuple[tuple[str, Value], ...] = ()
    given: tuple[tuple[str, Value], ...] = ()
    hidden: bool = False

    @property
    def arguments(self) -> list[str]:
        args = self.node.args
        return [each.arg for each in (*args.posonlyargs, *args.args)]


@dataclass
class Call:
    """A call whose parts are known as values.

    Arguments:
        node: its node.
        values: its positional arguments; None if their number is not known.
        keywords: its keyword arguments.
        whole: whether it has no other keyword arguments.
    """

    node: ast.Call
    values: list[Value] | None
    keywords: dict[str, Value]
    whole: bool

    def argument(self, place: int, name: str, default: Value = UNKNOWN) -> Value:
        if name in self.keywords:
            return self.keywords[name]
        if self.values is not None and place < len(self.values):
            return self.values[place]
        return default if self.whole and self.values is not None else UNKNOWN


class Memory:
    """The objects that code made so far, while it is followed."""

    def __init__(self) -> None:
        self.heap: Heap = {}
        self.made: Heap = {}
        self.path: tuple[ast.AST, ...] = ()
        self.away: set[ast.AST] = set()
        self.given: set[Any] = set()

    def record(self, value: Object) -> Record:
        return self.heap.get(value.key) or self.made[value.key]

    def make(self, node: ast.AST, record: Record, *more: Any) -> Object:
        """A new object; one that the same place made before may be this one too."""
        key = (*self.path, node, *more)
        self.heap[key] = same_record(self.heap[key], record) if key in self.heap else record
        self.made[key] = self.heap[key]
        return Object(key)

    def change(self, value: Value, record: Record) -> None:
        self.heap[value.key] = self.made[value.key] = record

    def release(self, value: Value) -> None:
        """Give a value away to code that is not known, which may change or call it."""
        if isinstance(value, Function):
            self.away.add(value.node)
        elif isinstance(value, Items):
            for part in value.parts:
                self.release(part)
        elif isinstance(value, Method):
            self.release(value.function)
            self.release(value.of)
        elif isinstance(value, Object):
            record = self.record(value)
            uncertain = record.uncertain()
            self.given.add(value.key)
            if record.kind in ("dict", "list", "instance", "parser") and record != uncertain:
                self.change(value, uncertain)
                for part in record.parts.values():
                    self.release(part)

    def put(self, owner: Value, key: Value, value: Value) -> None:
        """Assign a part of an object."""
        if not isinstance(owner, Object):
            self.release(value)
            return
        record = self.record(owner)
        named = isinstance(key, Literal) and isinstance(key.value, str | int)
        sure = named and record.kind != "list"
        self.change(owner, record.with_parts({key.value: value}) if sure else record.uncertain())
        if record.kind == "class":
            for place, each in [*self.heap.items()]:
                if each.kind == "instance" and each.of == owner:
                    self.change(Object(place), each.uncertain())

    def update(self, owner: Object, more: Value) -> None:
        """Add the items of another dict."""
        record = self.record(owner)
        if isinstance(more, Object) and self.record(more).kind == "dict":
            added = self.record(more)
            record = record if added.whole else record.uncertain()
            self.change(owner, record.with_parts(added.parts))
        else:
            self.change(owner, record.uncertain())

    def attribute(self, owner: Value, name: str) -> Value:
        match owner:
            case Imported(path):
                return Imported(f"{path}.{name}")
            case Object():
                record = self.record(owner)
                if record.kind in ("dict", "list", "parser"):
                    return Method(None, owner, name)
                held = record.parts.get(name)
                if held is None and record.kind != "class" and isinstance(record.of, Object):
                    held = self.record(record.of).parts.get(name)
                    held = held if isinstance(held, Function) else None
                if isinstance(held, Function) and record.kind != "class":
                    return Method(held, owner, name)
                if name == "__dict__":
                    return owner
                return Method(None, owner, name) if held is None else held
        return UNKNOWN

    def item(self, owner: Value, key: Value) -> Value:
        if isinstance(owner, Items) and isinstance(key, Literal) and type(key.value) is int:
            inside = -len(owner.parts) <= key.value < len(owner.parts)
            return owner.parts[key.value] if inside else UNKNOWN
        if isinstance(owner, Object) and isinstance(key, Literal):
            return self.record(owner).parts.get(key.value, UNKNOWN)
        return UNKNOWN
