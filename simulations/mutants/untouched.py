"""The public functions that no planted error touches: nothing shows that `verify` sees an error there."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from importlib import import_module
from inspect import isfunction, unwrap
from pathlib import Path

from .errors import ROOT, PlantedError, pattern

__all__ = ["untouched"]


def untouched(errors: Iterable[PlantedError]) -> list[str]:
    """The public functions of the rooms that errors stand in, but for those that one of them touches.

    An error touches what it stands in, and what reads that in the same file, by whatever steps.
    """
    errors = [error for error in errors if error.file.startswith("ustat_pg/")]
    missing = []
    for room in dict.fromkeys(error.file.removesuffix(".py").split("/")[1] for error in errors):
        public = import_module(f"ustat_pg.{room}")
        for name in public.__all__:
            function = unwrap(getattr(public, name))
            if isfunction(function):
                file = Path(function.__code__.co_filename)
                here = [error.old for error in errors if ROOT / error.file == file]
                if not _touched(file.read_text(encoding="utf-8"), function.__name__, here):
                    missing.append(f"{room}.{name}")
    return missing


def _touched(source: str, name: str, snippets: Iterable[str]) -> bool:
    """Whether a snippet stands in what a file defines under a name, or in what that reads there."""
    parts: dict[str, ast.stmt] = {}
    for part in ast.parse(source).body:
        if isinstance(part, ast.FunctionDef | ast.ClassDef):
            parts[part.name] = part
        elif isinstance(part, ast.Assign | ast.AnnAssign):
            names = [each.id for each in ast.walk(part) if isinstance(each, ast.Name)]
            parts[names[0]] = part
    reached, left = set(), [name]
    while left:
        if (each := left.pop()) in parts and each not in reached:
            reached.add(each)
            left += [node.id for node in ast.walk(parts[each]) if isinstance(node, ast.Name)]
    lines = [source.count("\n", 0, found.start()) + 1
             for old in snippets for found in pattern(old).finditer(source)]  # fmt: skip
    return any(
        parts[each].lineno <= line <= (parts[each].end_lineno or 0)
        for each in reached
        for line in lines
    )
