"""Executors on other machines: a running Dask cluster.

For the runner a cluster is a ``concurrent.futures`` executor. This module has the details of a cluster: how
to reach it, whether its workers run the same program, how many there are at the moment, and which errors
mean that workers were lost.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from platform import node
from typing import Any

from ustat_pg.engines import MomentSums
from ustat_pg.validation import InputError

from .blocks import Block, run_task
from .store import program

ANSWER_SECONDS = 10.0
"""Seconds within which a scheduler must answer."""
PATIENCE_SECONDS = 60.0
"""The seconds that a run waits for workers when none is left."""
_KEEPS = "finished blocks are kept, and the same command continues from them"


class LostWorkers(InputError):
    """Workers, or their scheduler, are gone; finished blocks are kept, and the same call continues."""


class WrongVersion(InputError):
    """A worker has other code than the calling process."""


def run_there(expected: str, cell: bytes, rest: bytes) -> MomentSums:
    """Do the work in another process.

    Arguments:
        expected: the :func:`~simulations.evidence.store.program` whose results are asked for.
        cell: the task's cell, pickled; a cluster may keep these bytes on its workers.
        rest: the task's other fields, pickled.
    """
    if program() != expected:
        raise WrongVersion(
            f"a worker on {node()} has {program()}, and this process has {expected}: "
            "install the same versions there and start the worker again"
        )
    return run_task(Block(cell=pickle.loads(cell), **pickle.loads(rest)))


class Cluster(Executor):
    """An executor with workers in other processes, which may come and go.

    Arguments:
        executor: what runs the tasks.
        threads: function to the number of tasks that run at a time now; raises :class:`LostWorkers`.
        keep: leaves bytes on the workers, and returns what stands for them as an argument of
            ``submit``; the bytes themselves travel with each task unless given.
    """

    def __init__(
        self, executor: Executor, threads: Callable[[], int], keep: Callable[[bytes], Any] = bytes
    ) -> None:
        self._executor, self.threads, self.keep = executor, threads, keep

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See :class:`concurrent.futures.Executor`."""
        return self._executor.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See :class:`concurrent.futures.Executor`."""
        self._executor.shutdown(wait=wait)


def loss(error: BaseException) -> str | None:
    """The message of an executor's error about its workers, or None if the error is not theirs."""
    if isinstance(error, BrokenExecutor):
        return f"a worker process died ({_line(error)}); {_KEEPS}"
    if isinstance(error, CancelledError):
        return f"the connection to the scheduler was lost; {_KEEPS}"
    if type(error).__name__ == "KilledWorker":
        return f"workers died one after another on the same block; {_KEEPS} ({_line(error)})"
    if type(error).__module__.split(".")[0] == "distributed":
        return f"the Dask cluster failed: {_line(error)}; {_KEEPS}"
    return None


def _line(error: BaseException) -> str:
    words = " ".join(str(error).split())
    return words or type(error).__name__


@contextmanager
def dask_cluster(
    address: str, answer: float = ANSWER_SECONDS, patience: float = PATIENCE_SECONDS
) -> Iterator[Cluster]:
    """The workers of a running Dask cluster, as an executor.

    If a worker dies, Dask gives its unfinished blocks to another worker.

    Arguments:
        address: address of its scheduler, as ``tcp://host:8786``.
        answer: seconds within which the scheduler must answer.
        patience: seconds to wait for workers to come back when none is left.

    Raises:
        InputError: ``distributed`` is not installed, the address is malformed or nothing answers
            there, it has no workers, or they have another version of this package.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise InputError(
            f"a Dask cluster needs the package distributed ({_line(error)}): "
            "pip install 'ustat_pg[dask]'"
        ) from None
    _identify(address, answer)
    with _quiet(), Client(address, timeout=answer, set_as_default=False) as client:
        _same_program(client, address)
        connection = client.scheduler_comm
        seen = [time.monotonic(), 0.0]  # when there were workers; when that was asked for
        count = [0]

        def threads() -> int:
            now = time.monotonic()
            if now - seen[1] >= 1:
                try:
                    count[0] = sum(client.nthreads().values())
                except Exception as error:
                    raise LostWorkers(
                        f"the scheduler at {address} no longer answers ({_line(error)}); {_KEEPS}"
                    ) from None
                if client.scheduler_comm is not connection:
                    # A client that connects anew has dropped its futures, some of them in silence.
                    raise LostWorkers(f"the connection to the scheduler was lost; {_KEEPS}")
                seen[1] = now
                if count[0]:
                    seen[0] = now
                elif now - seen[0] > patience:
                    raise LostWorkers(
                        f"the cluster at {address} has had no worker for {patience:g} s; {_KEEPS}"
                    )
            return count[0]

        def keep(data: bytes) -> Any:
            # A task that the scheduler knows: done again where the worker that had its result died.
            return client.submit(bytes, data)

        yield Cluster(client.get_executor(pure=False), threads, keep)


def _identify(address: str, answer: float) -> None:
    """Refuse an address at which no scheduler answers in time.

    A client would wait for more than its time-out where something else listens there.
    """
    import asyncio

    from distributed.core import rpc
    from distributed.security import Security

    async def ask() -> dict[str, Any]:
        async with rpc(
            address, connection_args=Security().get_connection_args("client")
        ) as scheduler:
            return dict(await scheduler.identity())

    async def ask_in_time() -> dict[str, Any]:
        return await asyncio.wait_for(ask(), answer)

    try:
        # In a thread of its own: the caller may be in a notebook, which has a loop running.
        with ThreadPoolExecutor(1) as pool:
            kind = pool.submit(asyncio.run, ask_in_time()).result().get("type")
    except TimeoutError:
        raise InputError(
            f"no Dask scheduler answers at {address!r} within {answer:g} s: give the address "
            "that it printed when it was started, such as tcp://host:8786"
        ) from None
    except Exception as error:
        # Any program may listen there, and fail in any way.
        raise InputError(
            f"{address!r} is not the address of a Dask scheduler ({_line(error)}): "
            "give one such as tcp://host:8786"
        ) from None
    if kind != "Scheduler":
        raise InputError(f"{address!r} is a Dask {kind}: give the scheduler's address")


def _same_program(client: Any, address: str) -> None:
    """Refuse a cluster without workers, or with any that would compute something else."""
    try:
        answers = client.run(program, on_error="return")
    except Exception as error:
        raise InputError(f"the workers at {address} do not answer: {_line(error)}") from None
    if not answers:
        raise InputError(f"the Dask cluster at {address} has no workers: start some and try again")
    for worker, answer in answers.items():
        if isinstance(answer, BaseException):
            answer = f"no version that this one can use ({_line(answer)})"
        if answer != program():
            raise WrongVersion(
                f"the worker {worker} has {answer}, and this process has {program()}: "
                "install the same versions there and start the worker again"
            )


@contextmanager
def _quiet() -> Iterator[None]:
    """No log of lost connections on the terminal: the runner says what matters, distributed all the rest."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
