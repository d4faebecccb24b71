"""Verifiers found by name, and told apart: the name and the source of the function that rewards."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import operator
import os
import sys
from pathlib import Path
from typing import Any

from ..validation import InputError
from .prompts import Prompt, Verifier

__all__ = ["function_name", "load_verifier", "source_digest", "verified_by"]


def load_verifier(name: str | Verifier) -> Verifier:
    """The function named ``module:function``; a module may also be the path of a ``.py`` file.

    A module is looked for where Python looks, then in the current folder.

    Raises:
        InputError: the name has another form, the module cannot be imported, or it has no such
            function.

    >>> load_verifier("math:fsum").__name__
    'fsum'
    """
    if callable(name):
        return name
    module_name, colon, path = str(name).rpartition(":")
    if not colon or not module_name or not path:
        raise InputError(
            f"the verifier is {name!r}: it must be named as module:function, for instance "
            "my_rewards:exact_answer or rewards.py:exact_answer"
        )
    try:
        module = _module(module_name)
    except Exception as error:
        raise InputError(
            f"the verifier {name!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    try:
        function = operator.attrgetter(path)(module)
    except AttributeError:
        raise InputError(
            f"the verifier {name!r} does not exist: {module_name} has no {path!r}"
        ) from None
    if not callable(function):
        raise InputError(
            f"the verifier {name!r} is a {type(function).__name__}: it must be a function"
        )
    return function


def _module(name: str) -> Any:
    """A module by name or by the path of its file."""
    if name.endswith(".py"):
        path = Path(name)
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {name}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise
    # A command started through its script does not have the current folder on its path.
    sys.path.insert(0, os.getcwd())
    try:
        importlib.invalidate_caches()
        return importlib.import_module(name)
    finally:
        sys.path.remove(os.getcwd())


def function_name(function: Any) -> str:
    """A function's module and name; of a module loaded from a file by its path, this path."""
    inner = _defined(function)
    module, name = getattr(inner, "__module__", ""), getattr(inner, "__qualname__", "")
    known = vars(sys.modules[module]) if module in sys.modules else {}
    spaces = getattr(inner, "__globals__", None)
    # Two files of one name, or a file named like a module, are told apart by their paths only.
    if spaces is not None and spaces is not known and "__file__" in spaces:
        module = str(Path(spaces["__file__"]).resolve())
    return f"{module}:{name}"


def _defined(function: Any) -> Any:
    """The function or class whose source says what a callable does."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif hasattr(function, "__func__"):
            function = function.__func__
        else:
            return function if hasattr(function, "__qualname__") else type(function)


def source_digest(function: Any) -> str:
    """A hash of the file that a function is defined in; of its name where there is no such file."""
    inner = _defined(function)
    try:
        source = Path(inspect.getsourcefile(inner) or "").read_bytes()
    except (OSError, TypeError):
        try:
            source = inspect.getsource(inner).encode()
        except (OSError, TypeError):
            source = function_name(function).encode()
    while isinstance(function, functools.partial):
        given = json.dumps([function.args, function.keywords], default=_type_name)
        source, function = source + given.encode(), function.func
    return hashlib.blake2b(source, digest_size=16).hexdigest()


def _type_name(value: Any) -> str:
    return type(value).__qualname__


def verified_by(prompt: Prompt, source: str) -> str:
    """A hash of what a prompt's rewards depend on besides its completions."""
    known = [prompt.text, sorted(prompt.columns.items(), key=lambda item: item[0]), source]
    text = json.dumps(known, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
