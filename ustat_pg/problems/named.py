"""Named problems that ship with the library, for citing and comparing: ``ustat:skewed``.

Each is a JSON file with the arrays of the problem, its source, its licence, and its exact moments at these
parameters. A file never changes: another problem gets another name, and a correction gets another
version. A paper cites ``ustat:skewed@1``.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from ..validation import Array, InputError, nearest, record
from .mappings import problem_from_mapping
from .softmax_bandit import SoftmaxBandit

PREFIX = "ustat:"
"""The prefix of these problems' names, which separates them from files."""


@record()
class NamedProblem:
    """A problem that ships with the library.

    Arguments:
        name: name after ``ustat:``.
        version: number that would increase with a change of the file.
        title: description in one line.
        origin: made-up or real.
        source: source in words.
        licence: licence of the file.
        problem: the problem itself.
        moments: its exact moments by the names of :class:`~ustat_pg.moments.record.Moments`: arrays (X,), and
            mean_gradient_sq.
        constants: c1, c2, c3 and vanilla of :class:`~ustat_pg.predictions.MseConstants`.
        objective: J, the expected reward.
        digest: digest of the problem's arrays.
    """

    name: str
    version: int
    title: str
    origin: str
    source: str
    licence: str
    problem: SoftmaxBandit
    moments: dict[str, Array | float]
    constants: dict[str, float]
    objective: float
    digest: str

    @property
    def cited(self) -> str:
        """The name with its version."""
        return f"{PREFIX}{self.name}@{self.version}"


def _folder() -> Any:
    return files(__package__) / "named"


@cache
def _names() -> tuple[str, ...]:
    names = (file.name for file in _folder().iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in names if name.endswith(".json")))


@cache
def _read(name: str) -> NamedProblem:
    data = json.loads((_folder() / f"{name}.json").read_text(encoding="utf-8"))
    data["problem"] = problem_from_mapping(data["problem"])
    data["moments"] = {
        key: np.array(value) if isinstance(value, list) else float(value)
        for key, value in data["moments"].items()
    }
    return NamedProblem(**data)


def named_problems() -> tuple[NamedProblem, ...]:
    """All problems that ship with the library, sorted by name.

    >>> [each.name for each in named_problems()][:3]
    ['balanced', 'coin', 'digits-3']
    """
    return tuple(map(_read, _names()))


def named_problem(name: str) -> NamedProblem:
    """A problem that ships with the library, with its exact moments, source and licence.

    Arguments:
        name: ``skewed``, ``ustat:skewed`` or ``ustat:skewed@1``.

    >>> named_problem("ustat:skewed").moments["value"]
    array([0.8])
    """
    bare, at, version = name.removeprefix(PREFIX).partition("@")
    if bare not in _names():
        near = nearest(bare, _names())
        meant = f", did you mean {PREFIX}{near[0]}?" if near else ":"
        raise InputError(
            f"problem {PREFIX}{bare} is unknown{meant} choose one of {', '.join(_names())}"
        )
    problem = _read(bare)
    if at and version != str(problem.version):
        raise InputError(
            f"the library has version {problem.version} of problem {PREFIX}{bare}, not {version or 'none'}"
        )
    return problem
