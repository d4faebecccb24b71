"""Other processes: equal bytes, light tasks, the same program, and what is lost with a worker."""

import json
import pickle
import sys
from concurrent.futures import (
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import replace
from multiprocessing import get_context
from types import SimpleNamespace

import pytest
from threadpoolctl import threadpool_info

from simulations.evidence import Options, Store, blocks, executors, run_claims, work
from simulations.evidence.executors import Cluster, LostWorkers, run_there
from simulations.evidence.results import plain
from simulations.evidence.store import Memory, program
from simulations.problems import mse_of
from tests.support.claims import SKEWED, small_claim
from tests.support.refusals import refuses
from ustat_pg.engines import GradientCell

OPTIONS = Options("smoke", workers=2)


def block(size: int = 2) -> blocks.Block:
    return blocks.Block(GradientCell(SKEWED, size), (mse_of("grpo"),), "cpu", 0, 0, 1_000)


def parts(task: blocks.Block) -> tuple[bytes, bytes]:
    """A task's cell and its other fields, as they travel."""
    fields = dict(vars(task))
    return pickle.dumps(fields.pop("cell")), pickle.dumps(fields)


def settle(folder, executor=None, on_done=None) -> str:
    run = run_claims([small_claim()], OPTIONS, Store(folder), executor, on_done)
    return json.dumps([plain(result) for result in run.claims])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return settle(tmp_path_factory.mktemp("whole"))


class Asked(ThreadPoolExecutor):
    """Threads that note what they were asked."""

    def __init__(self) -> None:
        super().__init__(2)
        self.asked: list[tuple] = []

    def submit(self, fn, /, *args, **kwargs) -> Future:
        self.asked.append(args)
        return super().submit(fn, *args, **kwargs)


def test_a_cell_is_left_on_the_workers_once_and_changes_no_byte(whole, tmp_path):
    kept: list[bytes] = []

    def keep(data: bytes) -> bytes:
        kept.append(data)
        return data

    with Asked() as pool:
        assert settle(tmp_path, Cluster(pool, lambda: 1, keep)) == whole
    assert len(pool.asked) == len(list(tmp_path.glob("*.json"))) > len(kept)
    cells = {pickle.loads(data).name for data in kept}
    assert len(cells) == 2
    # What was kept stands in every call, and what travels with it is a few words.
    assert {id(cell) for _, cell, _ in pool.asked} == {id(data) for data in kept}
    assert max(len(rest) for _, _, rest in pool.asked) < 1_000


def test_a_worker_process_computes_with_one_thread_of_linear_algebra(monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:

        def threads() -> set[int]:
            result = pool.submit(threadpool_info).result()
            return {entry["num_threads"] for entry in result if entry["user_api"] == "blas"}

        pool.submit(pickle.loads, pickle.dumps(block())).result()
        assert threads() == {2}
        pool.submit(run_there, program(), *parts(block())).result()
        assert threads() == {1}


def test_a_cluster_that_has_gone_stops_the_run(tmp_path):
    left = [3]

    def threads() -> int:
        left[0] -= 1
        if not left[0]:
            raise LostWorkers("no worker")
        return 1

    with Asked() as pool, pytest.raises(LostWorkers, match="no worker"):
        settle(tmp_path, Cluster(pool, threads))
    assert list(tmp_path.glob("*.json"))


class Late(Executor):
    """Does the last of what it was asked when it is waited for; notes how much it was asked before."""

    def __init__(self):
        self.waiting, self.most = [], 0

    def submit(self, fn, /, *args, **kwargs) -> Future:
        self.waiting.append((future := Future(), fn, args, kwargs))
        self.most = max(self.most, len(self.waiting))
        return future

    def wait(self, running, timeout, return_when):
        future, fn, args, kwargs = self.waiting.pop()
        assert timeout == work.CLUSTER_POLL_SECONDS
        future.set_result(fn(*args, **kwargs))
        return {future}, set(running) - {future}


@pytest.mark.parametrize("workers", [1, 2])
def test_the_queue_of_an_executor_is_short(workers, monkeypatch):
    pool, done, shown = Late(), [], []
    monkeypatch.setattr(work, "wait", pool.wait)
    monkeypatch.setattr(
        work,
        "bar",
        lambda what, total, on: nullcontext(SimpleNamespace(update=shown.append, total=total)),
    )
    how = work.Work(Memory(), Options("smoke", workers=workers), pool, lambda: done.append(None))
    tasks = [replace(block(), replications=1_000 + n) for n in range(9)]
    how.run([*tasks, tasks[0]], "blocks")
    assert (pool.most, len(done)) == (2 * workers, 9)
    assert sorted(shown) == sorted(task.weight for task in tasks)
    # In other processes nobody reads the clock of this one.
    assert {how.taken(task) for task in tasks} == {0.0}
    together = how.sums(tasks[:2])
    assert together.n == 2_001
    how.run(tasks, "again")
    assert len(done) == 9


def test_a_cluster_without_workers_is_asked_for_one_thing_at_a_time():
    for count, threads in ((0, 1), (5, 5)):
        cluster = Cluster(AtOnce(), lambda count=count: count)
        assert work.Work(Memory(), OPTIONS, cluster)._threads() == threads
    assert work.Work(Memory(), OPTIONS, AtOnce())._threads() == 2


class Reset:
    """Notes how it was shut down."""

    def shutdown(self, wait, **more):
        self.waited = wait


def test_a_cluster_is_shut_down_with_what_it_stands_for():
    for words, waited in (({}, True), ({"wait": False}, False), ({"cancel_futures": True}, True)):
        inner = Reset()
        Cluster(inner, lambda: 1).shutdown(**words)
        assert inner.waited == waited


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            BrokenProcessPool("a\nprocess"),
            "a worker process died (a process); finished blocks are kept",
        ),
        (BrokenProcessPool(), "a worker process died (BrokenProcessPool); finished"),
        (CancelledError(), "the connection to the scheduler was lost; finished"),
        (
            type("KilledWorker", (Exception,), {})("x"),
            "workers died one after another on the same block",
        ),
        (
            type("Odd", (Exception,), {"__module__": "distributed.comm"})("x"),
            "the Dask cluster failed: x;",
        ),
        (type("Odd", (Exception,), {"__module__": "distribute.comm"})("x"), None),
        (ValueError("x"), None),
    ],
)
def test_what_is_lost_with_workers_is_told_from_errors_of_the_work(error, said):
    found = executors.loss(error)
    assert found is None if said is None else found.startswith(said)


def test_another_program_is_refused_where_it_would_compute():
    refuses("and this process has another", run_there, "another", *parts(block()))
    here = run_there(program(), *parts(block()))
    assert here.n == 1_000


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({}, "the Dask cluster at here has no workers"),
        ({"a": program(), "b": "older"}, "the worker b has older, and this process has"),
        (
            {"a": ValueError("no\nmodule")},
            "the worker a has no version that this one can use .no module.",
        ),
        (OSError("gone"), "the workers at here do not answer: gone"),
        ({"a": program()}, None),
    ],
)
def test_a_cluster_must_compute_with_the_same_program(answers, said):
    def run(asked, on_error):
        if isinstance(answers, Exception):
            raise answers
        return answers

    client = SimpleNamespace(run=run)
    if said is None:
        executors._same_program(client, "here")
    else:
        refuses(said, executors._same_program, client, "here")


class AtOnce(Executor):
    """Does what it is asked before it answers, and counts it."""

    asked = 0

    def submit(self, fn, /, *args, **kwargs) -> Future:
        self.asked += 1
        (future := Future()).set_result(fn(*args, **kwargs))
        return future


def test_what_was_under_way_when_a_run_stopped_is_kept(tmp_path):
    def stop():
        raise ValueError("stopped")

    pool = AtOnce()
    with pytest.raises(ValueError, match="stopped"):
        settle(tmp_path, pool, stop)
    assert 1 < pool.asked == len(list(tmp_path.rglob("*.json")))


def test_a_cluster_is_watched_by_a_clock(monkeypatch):
    """Without Dask: a client that says what it is told to."""
    client = SimpleNamespace(
        run=lambda *_, **__: {"a": program()}, get_executor=lambda **_: None, scheduler_comm=object(),
        nthreads=lambda: {"a": 2, "b": 1},
    )  # fmt: skip
    clock = [100.0]
    dask = SimpleNamespace(Client=lambda *_, **__: nullcontext(client))
    monkeypatch.setitem(sys.modules, "distributed", dask)
    monkeypatch.setattr(executors, "_identify", lambda *_: None)
    monkeypatch.setattr(executors, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    with executors.dask_cluster("tcp://a:8786", patience=5.0) as cluster:

        def later(seconds):
            clock[0] += seconds
            return cluster.threads()

        assert later(0) == 3
        client.nthreads = dict
        # Asked once a second; without workers for 5 seconds it is given up, and not before.
        assert (later(0.9), later(0.1), later(4)) == (3, 0, 0)
        refuses("has had no worker for 5 s", later, 1)
        client.nthreads = lambda: {"a": 1}
        assert later(1) == 1
        client.scheduler_comm = object()
        refuses("the connection to the scheduler was lost", later, 1)
        client.nthreads = lambda: 1 / 0
        refuses(r"no longer answers \(division by zero\)", later, 1)
