"""Work: tasks that the store lacks, run by an executor, each kept as soon as it is done."""

from __future__ import annotations

import dataclasses
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import reduce
from typing import Any

from threadpoolctl import threadpool_limits

from ustat_pg.display.progress import bar
from ustat_pg.engines import MomentSums

from .blocks import Block, record_of, run_task, sums_of
from .executors import Cluster, LostWorkers, loss, run_there
from .options import Options
from .store import Store, program

CLUSTER_POLL_SECONDS = 5.0
"""Seconds after which a cluster is asked for its workers though no block has come."""


class Interrupted(KeyboardInterrupt):
    """The run was stopped; finished blocks are kept, and the same call continues."""


class Work:
    """Runs tasks that the store does not have."""

    def __init__(
        self,
        store: Store,
        options: Options,
        executor: Executor,
        on_done: Callable[[], None] | None = None,
    ) -> None:
        self.store, self.options, self.executor = store, options, executor
        self.on_done = on_done
        self.results: dict[str, MomentSums] = {}
        self.seconds: dict[str, float] = {}
        """Processor seconds of the tasks that threads of this process ran, by key."""
        self._cells: dict[int, tuple[Any, Any]] = {}

    def run(self, tasks: Iterable[Block], what: str) -> None:
        """Have the results of all tasks, from the store or by running them."""
        missing: dict[str, Block] = {}
        for task in tasks:
            key = self.store.key(task.description)
            if key in self.results or key in missing:
                continue
            record = self.store.get(task.description)
            if record is None:
                missing[key] = task
            else:
                self.results[key] = sums_of(record)
        total = sum(task.weight for task in missing.values())
        with bar(what, total, self.options.progress) as shown:
            self._drain(missing, shown)

    def _submit(self, task: Block) -> Future[Any]:
        if isinstance(self.executor, ThreadPoolExecutor):
            # The threads of this process read tasks where they are.
            return self.executor.submit(self._timed, task)
        fields = {field.name: getattr(task, field.name) for field in dataclasses.fields(task)}
        cell = fields.pop("cell")
        # A cell may be megabytes that hundreds of blocks share: it is pickled once.
        if id(cell) not in self._cells:
            data = pickle.dumps(cell)
            kept = self.executor.keep(data) if isinstance(self.executor, Cluster) else data
            self._cells[id(cell)] = cell, kept
        rest = pickle.dumps(fields)
        return self.executor.submit(run_there, program(), self._cells[id(cell)][1], rest)

    def _timed(self, task: Block) -> MomentSums:
        start = time.thread_time()
        result = run_task(task)
        self.seconds[self.store.key(task.description)] = time.thread_time() - start
        return result

    def taken(self, task: Block) -> float:
        """The processor seconds that a task took here; 0 where it ran elsewhere."""
        return self.seconds.get(self.store.key(task.description), 0.0)

    def _threads(self) -> int:
        if isinstance(self.executor, Cluster):
            return max(self.executor.threads(), 1)
        return self.options.workers

    def _drain(self, missing: dict[str, Block], shown: Any) -> None:
        queue = list(missing.items())[::-1]
        running: dict[Any, tuple[str, Block]] = {}
        try:
            while queue or running:
                # A short queue in the executor: an interruption waits for few blocks.
                most = 2 * self._threads()
                while queue and len(running) < most:
                    key, task = queue.pop()
                    running[self._submit(task)] = (key, task)
                done, _ = wait(running, timeout=CLUSTER_POLL_SECONDS, return_when=FIRST_COMPLETED)
                for future in done:
                    key, task = running.pop(future)
                    result = future.result()
                    self.results[key] = result
                    self.store.put(task.description, record_of(result))
                    shown.update(task.weight)
                    if self.on_done is not None:
                        self.on_done()
        except KeyboardInterrupt:
            raise Interrupted from None
        except Exception as error:
            message = loss(error)
            if message is None:
                raise
            raise LostWorkers(message) from error
        finally:
            # Finish and keep the blocks under way when a run stops, unless its executor can drop them.
            for future, (_, task) in running.items():
                if not future.cancel() and future.exception() is None:
                    self.store.put(task.description, record_of(future.result()))

    def sums(self, tasks: Sequence[Block]) -> MomentSums:
        """The sums of blocks, merged in their order."""
        results = (self.results[self.store.key(task.description)] for task in tasks)
        return reduce(MomentSums.merge, results)


@contextmanager
def environment(options: Options, executor: Executor | None) -> Iterator[Executor]:
    """An executor, and one thread in the linear algebra: equal sums whatever the workers."""
    with threadpool_limits(1):
        if executor is not None:
            yield executor
            return
        pool = ThreadPoolExecutor(options.workers)
        try:
            yield pool
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
