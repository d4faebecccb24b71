"""Tasks on their way to another process: light, since a worker keeps the large problems it has seen.

A block is a few words and its problem, which may be megabytes that hundreds of blocks share. So the
problem stays behind where it is large; a worker that lacks it says so, and gets the task again with it.
"""

from __future__ import annotations

import pickle
from concurrent.futures import Executor, Future
from io import BytesIO
from platform import node
from threading import Lock
from typing import Any

from .._version import __version__
from ..problems import SoftmaxBandit
from ..validation import InputError
from .blocks import Task, run_task
from .store import code_version, computed_by

__all__ = ["Post", "WrongVersion", "program", "run_parcel"]

LARGE = 100_000
"""Bytes from which on a problem is left behind."""

_MOST = 8
_KEPT: dict[str, SoftmaxBandit] = {}
"""A worker's last few large problems, by digest."""
_LOCK = Lock()


class WrongVersion(InputError):
    """A worker would compute with other code than the process that asks it."""


class _MissingError(Exception):
    """The task's problem is not here."""


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> str | None:
        return obj.digest if isinstance(obj, SoftmaxBandit) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, problem: SoftmaxBandit | None) -> None:
        super().__init__(BytesIO(data))
        self.problem = problem

    def persistent_load(self, pid: str) -> SoftmaxBandit:
        if self.problem is not None:
            return self.problem
        with _LOCK:
            if pid not in _KEPT:
                raise _MissingError
            return _KEPT[pid]


def program() -> str:
    """What computes here, in words that are equal where results are interchangeable.

    Of the processor it says nothing: kinds of processors may differ in a last digit.
    """
    return f"ustat_pg {__version__} (code {code_version()}, {computed_by()})"


def run_parcel(data: bytes, problem: SoftmaxBandit | None, asked: str) -> dict[str, Any] | None:
    """Do the work in a parcel; None where its problem is wanted.

    Arguments:
        data: the task without its problem.
        problem: it, where it is sent along.
        asked: the :func:`program` whose results are asked for.

    Raises:
        WrongVersion: here is another one.
    """
    if program() != asked:
        raise WrongVersion(
            f"a worker on {node()} has {program()}, and this process has {asked}: "
            "install the same versions there and start the worker again"
        )
    try:
        task = _Unpickler(data, problem).load()
    except _MissingError:
        return None
    if problem is not None:
        with _LOCK:
            _KEPT.pop(problem.digest, None)
            while len(_KEPT) >= _MOST:
                del _KEPT[next(iter(_KEPT))]
            _KEPT[problem.digest] = problem
    return run_task(task)


class Post:
    """Submits tasks as parcels.

    Arguments:
        executor: of other processes.
    """

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._large: dict[str, bool] = {}

    def submit(self, task: Task, *, whole: bool = False) -> Future[dict[str, Any] | None]:
        """What :func:`run_parcel` makes of a task.

        Arguments:
            task: it.
            whole: with its problem, however large.
        """
        problem = getattr(task.cell, "problem", None)
        if not isinstance(problem, SoftmaxBandit):
            return self.executor.submit(run_parcel, pickle.dumps(task), None, program())
        if problem.digest not in self._large:
            self._large[problem.digest] = len(pickle.dumps(problem)) > LARGE
        if not self._large[problem.digest]:
            return self.executor.submit(run_parcel, pickle.dumps(task), None, program())
        light = BytesIO()
        _Pickler(light).dump(task)
        along = problem if whole else None
        return self.executor.submit(run_parcel, light.getvalue(), along, program())
