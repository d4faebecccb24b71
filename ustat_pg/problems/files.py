"""Files of problems: JSON, or ``.npz`` with the same arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..files.reading import read_arrays, read_json
from ..validation import InputError
from .episodes import holds_turns
from .mappings import problem_from_mapping
from .named import PREFIX, named_problem
from .softmax_bandit import SoftmaxBandit


def load_problem(source: SoftmaxBandit | Mapping[str, Any] | str | Path) -> SoftmaxBandit:
    """Read a problem: a ``.json`` or ``.npz`` file, named arrays, or one that ships with the library.

    Arguments:
        source: file, a name of :func:`named_problems` after ``ustat:``, or arrays as for
            :func:`problem_from_mapping`; a problem is returned unchanged.

    Raises:
        InputError: the file cannot be read, is of another kind, or has an invalid problem (the message begins
            with the file's name); or no problem has the name.

    >>> load_problem("ustat:skewed").moments().value
    array([0.8])
    """
    if isinstance(source, SoftmaxBandit):
        return source
    if isinstance(source, Mapping):
        return problem_from_mapping(source)
    if not isinstance(source, str | Path):
        raise InputError(
            f"problem is {source!r:.80}: it must be a SoftmaxBandit, named arrays, a file or ustat:NAME"
        )
    if holds_turns(source):
        raise InputError(f"{source}: it is a problem with turns: use load_episodes")
    if str(source).startswith(PREFIX):
        return named_problem(str(source)).problem
    path = Path(source)
    if path.suffix not in _READERS:
        other = ""
        if path.is_file():
            other = "; for the options of a trainer use ustat-pg explain"
            if path.suffix in _LOGS:
                other = "; for a log use ustat-pg rewards, or advise with rollouts of a ModelPool"
        raise InputError(f"{path}: its name must end in .json or .npz, or begin with ustat:{other}")
    data = _READERS[path.suffix](path)
    if not isinstance(data, dict):
        raise InputError(f"{path}: it must hold one object of named arrays")
    try:
        return problem_from_mapping(data)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (ValueError, OverflowError) as error:
        raise InputError(f"{path}: not a readable problem: {error}") from None


_READERS = {".json": read_json, ".npz": read_arrays}
_LOGS = (".jsonl", ".csv", ".parquet")


def save_problem(problem: SoftmaxBandit, path: str | Path) -> None:
    """Write a problem to a ``.json`` or ``.npz`` file, which can be read back without changes."""
    path = Path(path)
    if not problem.policy.in_files:
        raise InputError(f"{path}: files cannot store a {type(problem.policy).__name__}")
    if path.suffix == ".npz":
        with path.open("wb") as file:
            np.savez_compressed(file, **problem.arrays())  # type: ignore[arg-type]
    elif path.suffix == ".json":
        data = {name: array.tolist() for name, array in problem.arrays().items()}
        path.write_text(json.dumps(data) + "\n", encoding="utf-8")
    else:
        raise InputError(f"{path}: its name must end in .json or .npz")
