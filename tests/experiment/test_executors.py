"""Other processes: equal bytes, light tasks, the same program, and what is lost with a worker."""

from __future__ import annotations

import json
import pickle
import sys
from concurrent.futures import (
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from multiprocessing import get_context

import pytest
from threadpoolctl import threadpool_info

from simulations.__main__ import main
from simulations.problems import mse_of
from tests.support.claims import SKEWED, small_claim
from ustat_pg.engines import GradientCell
from ustat_pg.experiment import Options, Store, blocks, run_claims
from ustat_pg.experiment.executors import (
    Cluster,
    LostWorkers,
    run_there,
)
from ustat_pg.experiment.store import program
from ustat_pg.results import plain

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


def test_without_the_extra_it_says_what_to_install(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert main(["verify", "mse", "--dask", "tcp://127.0.0.1:8786", "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "pip install 'ustat_pg[dask]'" in error
    assert error.count("\n") == 1
