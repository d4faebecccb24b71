"""Other processes: equal bytes, light tasks, the same program, and what is lost with a worker."""

from __future__ import annotations

import json
import pickle
import sys
from concurrent.futures import (
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from contextlib import nullcontext
from multiprocessing import get_context
from types import SimpleNamespace

import pytest
from threadpoolctl import threadpool_info

from simulations.__main__ import main
from simulations.evidence import Options, Store, blocks, executors, run_claims
from simulations.evidence.executors import Cluster, LostWorkers, run_there
from simulations.evidence.results import plain
from simulations.evidence.store import program
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


def test_without_the_extra_it_says_what_to_install(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert main(["verify", "mse", "--dask", "tcp://127.0.0.1:8786", "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "pip install 'ustat_pg[dask]'" in error
    assert error.count("\n") == 1
