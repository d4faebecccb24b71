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
from .records import catalogue
from .sources import Source, of_sections
from .values import plain, same_record


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
    classes = {name for each in catalogue().frameworks.values() for name in each.classes}
    if len(text) > MOST_PYTHON:
        raise InputError(
            f"{path}: it has {len(text)} characters of code: at most {MOST_PYTHON} are read"
        )
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(text)
        flow = Flow(tree, known, as_command, lambda name: name.rpartition(".")[2] in classes)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, InputError):
            raise InputError(f"{path}: {error}") from None
        raise InputError(f"{path}: not Python: {error}") from None
    imports = "\n".join(_imports(tree))
    found: dict[str, Source] = {}
    for call in sorted(flow.configs, key=lambda call: (call.lineno, call.col_offset)):
        record = reduce(same_record, map(flow.record, flow.configs[call]))
        source = Source(
            str(path),
            text=text if whole is None else whole,
            runs=f"{imports}\n{record.called}",
            program=record.called,
            line=call.lineno,
        )
        for name, value in record.parts.items():
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
