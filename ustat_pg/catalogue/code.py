"""Options in Python files and notebooks: the keyword arguments of calls of config classes, which are read but
not run.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from functools import reduce
from pathlib import Path

from ..files.reading import json_value, read_text
from ..validation import InputError
from .defaults import as_command, known
from .flow import Flow
from .framework import Framework
from .objects import Call
from .records import catalogue
from .sources import Source, of_sections
from .values import UNKNOWN, Literal, Object, Record, Repeated, Value, plain, same, same_record


def of_python(path: Path) -> list[Source]:
    """The options of each call of a config class, in order; calls with the same options are one."""
    return _of_code(read_text(path, MOST_PYTHON), path)


def of_notebook(path: Path) -> list[Source]:
    cells = json_value(read_text(path), path)
    try:
        texts = ["".join(cell["source"]) for cell in cells["cells"] if cell["cell_type"] == "code"]
    except (KeyError, TypeError):
        raise InputError(f"{path}: not a notebook") from None
    return _of_code("\n".join(map(_without_magics, texts)), path, "\n".join(texts))


def _without_magics(cell: str) -> str:
    """A cell with only its Python."""
    other = _CELL.match(cell)
    if other and other["name"] not in ("time", "timeit", "capture"):
        return ""
    return _MAGIC.sub(r"\g<indent>pass", cell)


def _of_code(text: str, path: Path, whole: str | None = None) -> list[Source]:
    if len(text) > MOST_PYTHON:
        raise InputError(
            f"{path}: it has {len(text)} characters of code: at most {MOST_PYTHON} are read"
        )
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(text)
        imports = "\n".join(_imports(tree))
        frameworks = [each for each in catalogue().frameworks.values() if _may_be(each, imports)]
        classes = {name for each in frameworks for name in each.classes}
        flow = Flow(
            tree,
            known,
            as_command,
            lambda name: name.rpartition(".")[2] in classes,
            lambda name, call: _trained(frameworks, name, call),
        )
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, InputError):
            raise InputError(f"{path}: {error}") from None
        raise InputError(f"{path}: not Python: {error}") from None
    modules = {
        alias.asname or alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    roots = {name.partition(".")[0] for name in imports.splitlines()}
    found: dict[str, Source] = {}
    for call in sorted(flow.configs, key=lambda call: (call.lineno, call.col_offset)):
        record = reduce(same_record, map(flow.record, flow.configs[call]))
        source = Source(
            str(path),
            text=text if whole is None else whole,
            runs=f"{imports}\n{_whole(record.called, call, modules, roots)}",
            program=record.called,
            line=call.lineno,
        )
        for name, value in _parts(record, flow, tree, frameworks):
            literal = plain(value, flow.heap)
            if literal is None:
                source.unread.append(name)
                continue
            source.named += of_sections(path, {name: literal.value})
            if literal.options:
                source.defaults[name] = " and ".join(sorted(literal.options))
        if not record.whole:
            source.unread.append("**")
        options = source.runs, source.named, source.unread, source.defaults
        found.setdefault(repr(options), source)
    if not found:
        raise InputError(
            f"{path}: it does not call {' or '.join(sorted(classes))}: give the file of its options, or the "
            "command that starts it"
        )
    sources = [*found.values()]
    if len(sources) > MOST_CONFIGS:
        raise InputError(f"{path}: it has {len(sources)} configs: write the options of one")
    for source in sources if len(sources) > 1 else []:
        source.place = f"{path}, line {source.line}: {source.program}"
    return sources


def _may_be(framework: Framework, imports: str) -> bool:
    """Whether code with these imports may be a framework's."""
    return not framework.in_code or any(
        re.search(rf"(?m)^{pattern}$", imports) for pattern in framework.commands
    )


def _whole(called: str, call: ast.Call, modules: dict[str, str], roots: set[str]) -> str:
    """The name of a class; with its module, if that is of a package whose frameworks have no such class, and
    the code imports none that has.
    """
    packages = {
        (each.package or each.name).partition("-")[0]
        for each in catalogue().frameworks.values()
        if called in each.classes and not each.in_code
    }
    inner: ast.expr = call.func
    while isinstance(inner, ast.Attribute):
        inner = inner.value
    module = modules.get(inner.id, "") if isinstance(inner, ast.Name) else ""
    return f"{module}.{called}" if module and packages and not roots & packages else called


def _trained(frameworks: list[Framework], name: str, call: Call) -> dict[str, Value] | None:
    forms = [form for each in frameworks for form in each.calls if form.method == name]
    every = (form.arguments(call.values or (), call.keywords) for form in forms)
    return next((given for given in every if given is not None), None)


def _parts(
    record: Record, flow: Flow, tree: ast.Module, frameworks: list[Framework]
) -> Iterator[tuple[str, Value]]:
    """The options of a config. Where a framework has them in code alone, they may stand in an argument of an
    argument, and the groups and the classes that the code names decide some.
    """
    methods = {form.method: each for each in frameworks for form in each.calls}
    classes = {name: each for each in frameworks if each.in_code for name in each.classes}
    own = methods.get(record.called) or classes.get(record.called)
    if own is None:
        yield from record.parts.items()
        return
    found: list[tuple[str, Value]] = []
    for name, value in record.parts.items():
        found += _inner(name, value, flow, record.called in methods and name.endswith("config"))
    if not any(name.endswith(".group_size") for name, _ in found):
        sizes = [each.parts["group_size"] for each in flow.made.values() if each.kind == "group"]
        found.append(("group_size", reduce(same, sizes) if sizes else UNKNOWN))
    words = {word for node in ast.walk(tree) for word in _words(node)}
    for option, values in own.implied.items():
        chosen = {value for name, value in values.items() if name in words}
        if chosen:
            found.append((option, Literal(chosen.pop()) if len(chosen) == 1 else UNKNOWN))
    yield from found


def _inner(name: str, value: Value, flow: Flow, holds: bool) -> Iterator[tuple[str, Value]]:
    """The options in an argument, or the argument itself; ``**`` if it holds options that are not known."""
    while isinstance(value, Repeated):
        value = value.item
    record = flow.record(value) if isinstance(value, Object) else Record("")
    if record.kind == "group" or (holds and record.kind == "dict"):
        for part, held in record.parts.items():
            yield f"{name}.{part}", held
    else:
        yield name, value
    if holds and not (record.whole if record.kind == "dict" else isinstance(value, Literal)):
        yield "**", UNKNOWN


def _words(node: ast.AST) -> Iterator[str]:
    """The names in a node of the code."""
    match node:
        case ast.Name(name) | ast.Attribute(_, name) | ast.alias(name):
            yield name


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


MOST_PYTHON = 2**17
"""Size of the largest program that is read, in bytes; a megabyte would take three seconds."""

MOST_CONFIGS = 32
"""The most configs of one file that are explained."""

_CELL = re.compile(r"\s*%%(?P<name>\w+)")
_MAGIC = re.compile(r"(?m)^(?P<indent>[ \t]*)(?:[%!]|\w+ *= *[!%](?=\w))(?:.*\\\n)*.*$")
"""A line of a notebook that is not Python, with the lines on which it goes on."""
