"""The scopes of Python code: the names that each scope binds, and the scopes that write names of others."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass
class Scope:
    """A module, function, class body or comprehension.

    Arguments:
        node: its node.
        parent: the scope around it.
        bound: how many times the code in it binds each name: assignments, arguments, loops, imports and all
            other ways.
        declared: names that it declares ``global`` or ``nonlocal``.
        rebound: its names that an inner scope binds.
        changed: its names whose objects an inner scope may change.
        open: whether any name may be bound in it, by ``import *`` or by code that is made at run time.
    """

    node: ast.AST
    parent: Scope | None = None
    bound: Counter[str] = field(default_factory=Counter)
    declared: set[str] = field(default_factory=set)
    rebound: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    open: bool = False


def scopes_of(tree: ast.Module) -> dict[ast.AST, Scope]:
    """The scope of each node that opens one."""
    scopes: dict[ast.AST, Scope] = {}
    written: list[tuple[Scope, str, str]] = []
    ahead: list[tuple[ast.AST, Scope | None]] = [(tree, None)]
    while ahead:
        node, parent = ahead.pop()
        scope = scopes[node] = Scope(node, parent)
        if isinstance(node, Function):
            every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            every += [each for each in (node.args.vararg, node.args.kwarg) if each]
            scope.bound.update(each.arg for each in every)
        inner = list(_inside(node))
        while inner:
            part = inner.pop()
            scope.bound.update(_binds(part))
            if isinstance(part, ast.Global | ast.Nonlocal):
                scope.declared.update(part.names)
                how = "global" if isinstance(part, ast.Global) else "nonlocal"
                written += [(scope, name, how) for name in part.names]
            written += [(scope, name, "changed") for name in _changed(part)]
            scope.open |= _opens(part)
            if isinstance(part, Function | ast.ClassDef | Comprehension):
                ahead.append((part, scope))
                inner += _outside(part)
            else:
                inner += ast.iter_child_nodes(part)
    for scope, name, how in written:
        of: Scope | None = scopes[tree] if how == "global" else scope
        while of and how != "global" and (name not in of.bound or name in of.declared):
            of = of.parent
        if of and of is not scope:
            (of.changed if how == "changed" else of.rebound).add(name)
    return scopes


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node that are run in its own scope."""
    body = getattr(node, "body", None)
    if isinstance(node, Comprehension):
        yield from ast.iter_child_nodes(node)
    elif isinstance(body, list):
        yield from body
    elif isinstance(body, ast.AST):
        yield body


def _outside(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node with a scope of its own that are run around it."""
    if isinstance(node, Comprehension):
        # An assignment in a comprehension binds the name around it.
        yield from (each for each in ast.walk(node) if isinstance(each, ast.NamedExpr))
        return
    own = {*map(id, _inside(node))}
    yield from (each for each in ast.iter_child_nodes(node) if id(each) not in own)


def _binds(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.alias(name=path, asname=name) if path != "*":
            yield name or path.partition(".")[0]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
            yield name
        case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            yield name


def _changed(node: ast.AST) -> Iterator[str]:
    """The name of an object that a node may change: a part is assigned, or a method is called."""
    match node:
        case ast.Attribute(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
            yield name
        case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
            yield name
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)):
            if method not in READING:
                yield name


def _opens(node: ast.AST) -> bool:
    match node:
        case ast.alias(name="*") | ast.Call(func=ast.Name(id="exec" | "globals" | "locals")):
            return True
    return False


READING = ("get", "items", "keys", "values", "copy", "parse_args", "parse_known_args", "index")
"""Methods that do not change their object."""
