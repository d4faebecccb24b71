"""Options in Python files and notebooks: the keyword arguments of one call, which are read but not run."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

from ..files.reading import json_value, read_text
from ..validation import InputError
from .records import catalogue
from .sources import MOST_CODE, Source, of_sections


def of_python(path: Path) -> Source:
    return _of_code(read_text(path, MOST_CODE), path)


def of_notebook(path: Path) -> Source:
    cells = json_value(read_text(path), path)
    try:
        texts = ["".join(cell["source"]) for cell in cells["cells"] if cell["cell_type"] == "code"]
    except (KeyError, TypeError):
        raise InputError(f"{path}: not a notebook") from None
    lines = "\n".join(texts).splitlines()
    code = "\n".join("" if line.lstrip()[:1] in "%!" else line for line in lines)
    return replace(_of_code(code, path), text="\n".join(lines))


def _of_code(text: str, path: Path) -> Source:
    """The keyword arguments of the only call of a config class that the catalogue knows."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{path}: not Python: {error}") from None
    classes = {name for each in catalogue().frameworks.values() for name in each.classes}
    calls, imports, assigned = list[ast.Call](), list[str](), dict[str, list[ast.expr]]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) in classes:
            calls.append(node)
        elif isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imports.append(node.module or "")
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr | ast.For):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            value = None if isinstance(node, ast.For | ast.AugAssign) else node.value
            for target in targets:
                if isinstance(target, ast.Name):
                    assigned.setdefault(target.id, []).append(value or ast.Name("unknown"))
    if len(calls) != 1:
        lines = ", ".join(str(call.lineno) for call in calls)
        raise InputError(
            f"{path}: it calls {' or '.join(sorted(classes))} "
            + (f"{len(calls)} times, in lines {lines}: write the options" if calls else "nowhere")
        )
    (call,) = calls
    source = Source(str(path), runs="\n".join([*imports, str(_called(call))]), text=text)
    for keyword in call.keywords:
        value = keyword.value
        if isinstance(value, ast.Name) and len(assigned.get(value.id, ())) == 1:
            (value,) = assigned[value.id]
        try:
            literal = ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            source.unread.append(keyword.arg or f"**{ast.unparse(value)}")
        else:
            source.named += of_sections(path, {str(keyword.arg): literal})
    return source


def _called(call: ast.Call) -> str | None:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
