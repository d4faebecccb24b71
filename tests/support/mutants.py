"""Planted mutants: a module of the library with one change of its source, loaded beside the true one."""

import inspect
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simulations.mutants.errors import planted

ROOT = Path(__file__).resolve().parents[2]


def mutated_function(function: Callable[..., Any], old: str, new: str) -> Callable[..., Any]:
    """A function or method with one change, in the names of its own module."""
    names = dict(vars(sys.modules[function.__module__]))
    exec(planted(textwrap.dedent(inspect.getsource(function)), old, new), names)
    made: Callable[..., Any] = names[function.__name__]
    return made
