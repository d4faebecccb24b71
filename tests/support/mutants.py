"""Planted mutants: a module of the library with one change of its source, loaded beside the true one."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from simulations.mutants.errors import planted
from ustat_pg import compiled

ROOT = Path(__file__).resolve().parents[2]


def mutated(file: str, *changes: tuple[str, str]) -> ModuleType:
    """The module of a file below the repository's root, with these changes, in its own package."""
    path = ROOT / file
    source = path.read_text(encoding="utf-8")
    for old, new in changes:
        source = planted(source, old, new)
    name = file.removesuffix(".py").replace("/", ".")
    spec = importlib.util.spec_from_loader(f"{name}_mutant", loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__package__ = name.rpartition(".")[0]
    sys.modules[module.__name__] = module
    # What is compiled must not meet the true one's cache.
    folder, compiled.folder = compiled.folder, lambda file: ""
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    finally:
        compiled.folder = folder
    # Records stay the true ones: a true body that is compiled for one is kept in the cache by its name.
    true = importlib.import_module(name)
    for word, made in list(vars(module).items()):
        if (
            isinstance(made, type)
            and issubclass(made, tuple)
            and made.__module__ == module.__name__
        ):
            setattr(module, word, getattr(true, word))
    return module


def mutated_function(function: Callable[..., Any], old: str, new: str) -> Callable[..., Any]:
    """A function or method with one change, in the names of its own module."""
    names = dict(vars(sys.modules[function.__module__]))
    exec(planted(textwrap.dedent(inspect.getsource(function)), old, new), names)
    made: Callable[..., Any] = names[function.__name__]
    return made
