"""The defaults of a script's own options, as argparse, dataclasses, click, typer, fire and others declare
them; and what the few functions return through which such values go.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .flow import Flow
from .objects import Call, Frame, Function
from .scopes import READING
from .values import (
    UNKNOWN,
    Imported,
    Items,
    Literal,
    Method,
    Object,
    Record,
    Repeated,
    Value,
    same,
)

Label = Callable[[str], str]


def known(flow: Flow, function: Imported | Method, call: Call) -> Value | None:
    """What a call returns; None if the function is not known."""
    if isinstance(function, Method):
        how = _METHODS.get(function.name)
        return how(flow, function.of, call) if how and isinstance(function.of, Object) else None
    how_called = _FUNCTIONS.get(function.path) or _FUNCTIONS.get(function.last)
    if how_called:
        return how_called(flow, call)
    return UNKNOWN if function.last in _HARMLESS else None


def as_command(flow: Flow, function: Function, node: ast.expr, frame: Frame) -> Function:
    """The function behind a decorator, which may make a command of it."""
    called = node.func if isinstance(node, ast.Call) else node
    held = flow.value(called, frame)
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    call = flow.parts(node, frame) if isinstance(node, ast.Call) else None
    if call and isinstance(held, Imported) and name in ("option", "argument"):
        names = [str(each.value) for each in call.values or () if isinstance(each, Literal)]
        off = Literal(False) if call.keywords.get("is_flag") == Literal(True) else Literal(None)
        value = call.argument(99, "default", off)
        dest, flag = _destination(names)
        flagged = _flagged(value, flag) if name == "option" and flag else UNKNOWN
        return replace(function, given=(*function.given, (dest, flagged)))
    if name in ("command", "callback"):
        return function if function.given else replace(function, given=_defaults(function, _dashed))
    if name in _TRANSPARENT:
        return function
    return replace(function, hidden=True)


def _destination(names: list[str]) -> tuple[str, str]:
    """The name of an option in the code, and the name that a user types."""
    flags = [name for name in names if name.startswith("-")]
    own = [name for name in names if not name.startswith("-")]
    flag = next((each for each in flags if each.startswith("--")), flags[0] if flags else "")
    flag = flag.partition("/")[0]
    return (own[0] if own else flag.lstrip("-").replace("-", "_")), flag


def _flagged(value: Value, flag: str) -> Value:
    return Literal(value.value, value.options | {flag}) if isinstance(value, Literal) else value


def _defaults(function: Function, label: Label) -> tuple[tuple[str, Value], ...]:
    return tuple((name, _flagged(value, label(name))) for name, value in function.defaults)


def _dashed(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _long(name: str) -> str:
    return f"--{name}"


def _instance(flow: Flow, of: Value, call: Call, label: Label, before: str = "") -> Value:
    """The object of a class whose fields are the options of a command line."""
    if not isinstance(of, Object) or flow.record(of).kind != "class":
        return UNKNOWN
    made = flow.instance(of, replace(call, values=[], keywords={}, whole=True))
    if not isinstance(made, Object):
        return UNKNOWN
    parts = dict(flow.record(made).parts)
    for name in flow.record(of).fields:
        part = parts[name]
        if isinstance(part, Object) and flow.record(part).kind == "instance":
            inner = flow.record(part)
            parts[name] = _instance(flow, inner.of, call, label, f"{before}{name}.")
        else:
            parts[name] = _flagged(part, label(before + name))
    return flow.make(call.node, Record("instance", parts, True, of), before, of.key)


def _from_line(label: Label) -> Callable[[Flow, Call], Value]:
    """A call that fills a class, or the arguments of a function, from the command line."""

    def filled(flow: Flow, call: Call) -> Value:
        of = call.argument(0, "f")
        if not isinstance(of, Function):
            return _instance(flow, of, call, label)
        given = dict(_defaults(of, label))
        for each in (*of.node.args.args, *of.node.args.kwonlyargs):
            if each.arg not in given and each.annotation is not None:
                given[each.arg] = _instance(
                    flow, flow.value(each.annotation, of.frame), call, label
                )
        line = replace(call, values=[], keywords=given, whole=True)
        return flow.result(of, line)

    return filled


def _parser(flow: Flow, call: Call) -> Value:
    return flow.make(call.node, Record("parser", {}, "parents" not in call.keywords))


def _add_argument(flow: Flow, parser: Object, call: Call) -> Value:
    names = [each.value for each in call.values or () if isinstance(each, Literal)]
    if not names or not call.whole or not all(isinstance(name, str) for name in names):
        flow.change(parser, flow.record(parser).uncertain())
        return UNKNOWN
    dest, flag = _destination(names)
    own = call.keywords.get("dest", Literal(dest))
    action = call.keywords.get("action")
    word = action.value if isinstance(action, Literal) else None
    absent = Literal({"store_true": False, "store_false": True}.get(str(word)))
    value = call.keywords.get("default", absent)
    kind = call.keywords.get("type")
    if isinstance(value, Literal) and isinstance(value.value, str) and kind:
        # argparse reads a default that is a text as it reads the command line.
        value = _converted(kind.path if isinstance(kind, Imported) else "", value)
    if (
        not flag
        or call.keywords.get("required") == Literal(True)
        or value == Literal("==SUPPRESS==")
    ):
        value = UNKNOWN
    if isinstance(own, Literal):
        dest = str(own.value)
        value = _flagged(value, flag)
        parts = flow.record(parser).parts
        flow.put(parser, own, same(parts[dest], value) if dest in parts else value)
    else:
        flow.change(parser, flow.record(parser).uncertain())
    return UNKNOWN


def _converted(path: str, value: Literal) -> Value:
    how: Any = {"int": int, "float": float, "str": str}.get(path)
    try:
        return Literal(how(value.value), value.options)
    except (ArithmeticError, TypeError, ValueError):
        return UNKNOWN


def _add_arguments(flow: Flow, parser: Object, call: Call) -> Value:
    dest = call.argument(1, "dest")
    flow.put(parser, dest, _instance(flow, call.argument(0, "dataclass"), call, _long))
    return UNKNOWN


def _set_defaults(flow: Flow, parser: Object, call: Call) -> Value:
    record = flow.record(parser)
    record = record if call.whole else record.uncertain()
    parts = {name: _flagged(value, _long(name)) for name, value in call.keywords.items()}
    flow.change(parser, record.with_parts(parts))
    return UNKNOWN


def _parse_args(flow: Flow, parser: Object, call: Call) -> Value:
    record, line = flow.record(parser), call.argument(0, "args", Literal(None))
    empty = isinstance(line, Object) and flow.record(line) == Record("list")
    parts = record.parts if empty or line == Literal(None) else record.uncertain().parts
    return flow.make(call.node, Record("instance", parts, record.whole))


def _parse_known(flow: Flow, parser: Object, call: Call) -> Value:
    return Items((_parse_args(flow, parser, call), UNKNOWN))


def _parser_of_classes(flow: Flow, call: Call) -> Value:
    of = call.argument(0, "dataclass_types")
    classes = of.parts if isinstance(of, Items) else [of]
    if isinstance(of, Object) and flow.record(of).kind == "list":
        classes = tuple(flow.record(of).parts.values())
    return flow.make(call.node, Record("parser", dict(enumerate(classes))))


def _parse_classes(flow: Flow, parser: Object, call: Call) -> Value:
    record = flow.record(parser)
    made = [_instance(flow, of, call, _long) for of in record.parts.values()]
    more = [UNKNOWN] if call.keywords.get("return_remaining_strings") else []
    return Items((*made, *more))


def _field(flow: Flow, call: Call) -> Value:
    factory = call.argument(99, "default_factory", Literal(None))
    if factory == Literal(None):
        return call.argument(0, "default")
    return flow.result(factory, replace(call, values=[], keywords={}, whole=True))


def _first(flow: Flow, call: Call) -> Value:
    """The default that is the first argument; ``...`` means that there is none."""
    return call.argument(0, "default")


def _namespace(flow: Flow, call: Call) -> Value:
    return flow.make(call.node, Record("instance", call.keywords, call.whole))


def _dict(flow: Flow, call: Call) -> Value:
    made = flow.make(call.node, Record("dict"))
    flow.change(made, Record("dict"))
    for value in call.values or ():
        flow.update(made, value)
    record = flow.record(made)
    whole = call.whole and call.values is not None
    flow.change(made, (record if whole else record.uncertain()).with_parts(call.keywords))
    return made


def _replaced(flow: Flow, call: Call) -> Value:
    of = call.argument(0, "obj")
    if not isinstance(of, Object):
        return UNKNOWN
    record = flow.record(of)
    record = record if call.whole else record.uncertain()
    return flow.noted(call, flow.make(call.node, record.with_parts(call.keywords)))


def _copied(flow: Flow, of: Value, call: Call) -> Value:
    if not isinstance(of, Object):
        return of
    record = flow.record(of)
    made = flow.make(call.node, record)
    flow.change(made, record)
    return flow.noted(call, made)


def _as_dict(flow: Flow, call: Call) -> Value:
    copy = _copied(flow, call.argument(0, "obj"), call)
    if isinstance(copy, Object):
        record = flow.record(copy)
        flow.change(copy, Record("dict", record.parts, record.whole))
    return copy


def _get(flow: Flow, of: Object, call: Call) -> Value:
    record, key = flow.record(of), call.argument(0, "key")
    if isinstance(key, Literal) and (key.value in record.parts or record.whole):
        return record.parts.get(key.value, call.argument(1, "default", Literal(None)))
    return UNKNOWN


def _update(flow: Flow, of: Object, call: Call) -> Value:
    for value in call.values or ():
        flow.update(of, value)
    record = flow.record(of)
    whole = call.whole and call.values is not None
    flow.change(of, (record if whole else record.uncertain()).with_parts(call.keywords))
    return Literal(None)


def _set_default(flow: Flow, of: Object, call: Call) -> Value:
    held = _get(flow, of, call)
    flow.put(of, call.argument(0, "key"), held)
    return held


def _pop(flow: Flow, of: Object, call: Call) -> Value:
    held, record, key = _get(flow, of, call), flow.record(of), call.argument(0, "key")
    if isinstance(key, Literal):
        rest = {name: part for name, part in record.parts.items() if name != key.value}
        flow.change(of, replace(record, parts=rest))
    else:
        flow.change(of, record.uncertain())
    return held


def _set_attribute(flow: Flow, call: Call) -> Value:
    flow.put(call.argument(0, "obj"), call.argument(1, "name"), call.argument(2, "value"))
    return Literal(None)


def _get_attribute(flow: Flow, call: Call) -> Value:
    of, name = call.argument(0, "obj"), call.argument(1, "name")
    known_part = isinstance(of, Object) and isinstance(name, Literal)
    return flow.record(of).parts.get(name.value, UNKNOWN) if known_part else UNKNOWN


def _number(of: Callable[[Any], Any]) -> Callable[[Flow, Call], Value]:
    def converted(flow: Flow, call: Call) -> Value:
        value = call.argument(0, "x")
        if not isinstance(value, Literal):
            return UNKNOWN
        try:
            return Literal(of(value.value), value.options)
        except (ArithmeticError, TypeError, ValueError):
            return UNKNOWN

    return converted


def _range(flow: Flow, call: Call) -> Value:
    return Repeated(call.argument(0, "stop")) if len(call.values or ()) == 1 else UNKNOWN


def _group(flow: Flow, call: Call) -> Value:
    """A group of the rollouts that a comprehension makes."""
    rollouts = call.argument(0, "trajectories")
    return _group_of(flow, call, rollouts.count if isinstance(rollouts, Repeated) else UNKNOWN)


def _group_of(flow: Flow, call: Call, size: Value) -> Value:
    return flow.make(call.node, Record("group", {"group_size": size}))


def _same(flow: Flow, call: Call) -> Value:
    return call.argument(0, "obj")


_FUNCTIONS: dict[str, Callable[[Flow, Call], Value]] = {
    "ArgumentParser": _parser,
    "HfArgumentParser": _parser_of_classes,
    "TrlParser": _parser_of_classes,
    "tyro.cli": _from_line(_dashed),
    "typer.run": _from_line(_dashed),
    "fire.Fire": _from_line(_long),
    "simple_parsing.parse": _from_line(_long),
    "chz.entrypoint": _from_line(str),
    "chz.nested_entrypoint": _from_line(str),
    "typer.Option": _first,
    "dataclasses.field": _field,
    "chz.field": _field,
    "pydantic.Field": _field,
    "simple_parsing.field": _field,
    "SimpleNamespace": _namespace,
    "argparse.Namespace": _namespace,
    "dict": _dict,
    "dataclasses.replace": _replaced,
    "chz.replace": _replaced,
    "dataclasses.asdict": _as_dict,
    "copy.copy": lambda flow, call: _copied(flow, call.argument(0, "x"), call),
    "copy.deepcopy": lambda flow, call: _copied(flow, call.argument(0, "x"), call),
    "range": _range,
    "TrajectoryGroup": _group,
    "make_group_rollout_fn": lambda flow, call: _group_of(
        flow, call, call.argument(1, "n", Literal(4))
    ),
    "gather_trajectory_groups": lambda flow, call: call.argument(0, "groups"),
    "ruler_score_group": lambda flow, call: call.argument(0, "group"),
    "art.TrainConfig": _dict,
    "art.types.TrainConfig": _dict,
    "art.dev.TrainConfig": _dict,
    "vars": _same,
    "asyncio.run": _same,
    "setattr": _set_attribute,
    "getattr": _get_attribute,
    "int": _number(int),
    "float": _number(float),
    "bool": _number(bool),
    "str": _number(str),
    "abs": _number(abs),
    "round": _number(round),
}
"""What a function returns, by its path or by the last part of it."""

_METHODS: dict[str, Callable[[Flow, Object, Call], Value]] = {
    "add_argument": _add_argument,
    "add_arguments": _add_arguments,
    "add_argument_group": lambda flow, of, call: of,
    "add_mutually_exclusive_group": lambda flow, of, call: of,
    "add_subparsers": lambda flow, of, call: of,
    "add_parser": lambda flow, of, call: of,
    "set_defaults": _set_defaults,
    "parse_args": _parse_args,
    "parse_known_args": _parse_known,
    "parse_args_into_dataclasses": _parse_classes,
    "parse_args_and_config": _parse_classes,
    "get": _get,
    "update": _update,
    "setdefault": _set_default,
    "pop": _pop,
    "copy": _copied,
    **dict.fromkeys(set(READING) & {"items", "keys", "values"}, lambda flow, of, call: UNKNOWN),
}
"""What a method returns that Python or a library gives to an object."""

_HARMLESS = (
    *("print", "len", "repr", "isinstance", "hasattr", "sorted", "list", "tuple", "set", "type"),
    *("info", "debug", "warning", "error", "dumps", "pprint", "pformat", "id", "sum", "min", "max"),
    *("Path", "exists", "join", "getLogger", "dataclass"),
)
"""Functions that do not change their arguments and do not call them."""

_TRANSPARENT = ("cache", "lru_cache", "record", "no_grad", "main", "property", "chz")
"""Decorators behind which a function is called with the arguments that the code gives."""
