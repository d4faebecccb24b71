"""``--dask`` on real workers: equal bytes, and what is lost when processes are killed.

Everything runs in processes of its own, for distributed warns.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.commands import ROOT, python
from tests.support.kills import blocks

COMMAND = [sys.executable, "-m", "simulations", "verify", "ustatistic", "--size", "smoke"]

needs_dask = pytest.mark.skipif(find_spec("distributed") is None, reason="the extra dask")


_started: list[subprocess.Popen[str]] = []


def start(words: list[str]) -> subprocess.Popen[str]:
    """A command of this repository."""
    process = subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    _started.append(process)
    return process


@pytest.fixture(autouse=True)
def _leave_nothing_running() -> Iterator[None]:
    yield
    while _started:
        process = _started.pop()
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=1200)


def until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait for a condition while a process runs."""
    deadline = time.monotonic() + 1200
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def claims_in(folder: Path) -> list[dict[str, object]]:
    return json.loads((folder / "verdicts.json").read_text())["claims"]


def claims_of(folder: Path) -> str:
    return json.dumps(claims_in(folder))


@pytest.fixture(scope="module")
def whole(whole_run) -> str:
    """What the claim says in the run of all."""
    return json.dumps([entry for entry in claims_in(whole_run) if entry["stem"] == "ustatistic"])


class DaskCluster:
    """A scheduler and workers of one thread each, in processes that do not restart."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder, self.variables = folder, variables
        self.file = folder / "scheduler.json"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.scheduler = self._start("dask_scheduler", "--host", "127.0.0.1", "--port", "0",
                                     "--dashboard-address", "127.0.0.1:0",
                                     "--scheduler-file", str(self.file))  # fmt: skip
        self.workers = [self.worker(), self.worker()]

    def _start(self, module: str, *words: str, cwd: Path = ROOT) -> subprocess.Popen[bytes]:
        log = self.folder / f"{len(self.processes)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.{module}", "--no-dashboard", *words],
                cwd=cwd, stdout=file, stderr=file, env={**os.environ, **self.variables},
            )  # fmt: skip
        self.processes.append(process)
        return process

    def worker(self, cwd: Path = ROOT) -> subprocess.Popen[bytes]:
        """One more worker, which finds the package in ``cwd``."""
        return self._start("dask_worker", "--scheduler-file", str(self.file), "--no-nanny",
                           "--host", "127.0.0.1", "--nthreads", "1", "--memory-limit", "0",
                           "--local-directory", str(self.folder), cwd=cwd)  # fmt: skip

    def ask(self, code: str) -> str:
        """What a client of the cluster prints."""
        first = "import json, os, time; from distributed import Client"
        code = f"{first}\nc = Client(scheduler_file={str(self.file)!r})\n{code}"
        done = python(code)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def wait_for(self, count: int) -> str:
        """The scheduler's address, once there are as many workers."""
        address, places = json.loads(
            self.ask(
                f"c.wait_for_workers({count}, timeout=1000)\n"
                "print(json.dumps([c.scheduler.address, c.run(os.getpid)]))"
            )
        )
        self.places = {process: place for place, process in places.items()}
        return str(address)

    def lose(self, worker: subprocess.Popen[bytes]) -> None:
        """Kill a worker that has blocks on it, so that they are lost."""
        worker.send_signal(signal.SIGSTOP)
        try:
            self.ask(f"while not c.processing()[{self.places[worker.pid]!r}]: time.sleep(0.01)")
        finally:
            worker.kill()
            worker.wait()

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def dask(tmp_path) -> Iterator[Callable[..., DaskCluster]]:
    started: list[DaskCluster] = []

    def build(**variables: str) -> DaskCluster:
        folder = tmp_path / "cluster"
        folder.mkdir()
        started.append(DaskCluster(folder, **variables))
        return started[-1]

    yield build
    for cluster in started:
        cluster.close()


@needs_dask
def test_a_dask_worker_killed_in_mid_run_loses_nothing(whole, dask, tmp_path):
    cluster, out = dask(), tmp_path / "out"
    address = cluster.wait_for(2)
    run = start([*COMMAND, "--dask", address, "--out", str(out)])
    until(lambda: blocks(out) >= 5, run)
    cluster.lose(cluster.workers[0])
    assert run.poll() is None, "it was in mid-run"
    text, error = run.communicate(timeout=1200)
    assert (run.returncode, error) == (0, "")
    assert "1 of 1 results confirmed" in text
    assert claims_of(out) == whole
    assert json.loads((out / "verdicts.json").read_text())["run"]["workers"] == 2

    # A worker with another program is refused, with both versions.
    other = tmp_path / "other"
    for name in ("ustat_pg", "simulations"):
        shutil.copytree(ROOT / name, other / name)
    with (other / "ustat_pg" / "sampling" / "rng.py").open("a") as file:
        file.write("# changed\n")
    stranger = cluster.worker(other)
    cluster.wait_for(2)
    run = start([*COMMAND, "--dask", address, "--out", str(out)])
    text, error = run.communicate(timeout=1200)
    assert (run.returncode, text, error.count("\n")) == (2, "", 1)
    assert error.count("ustat_pg 0.") == error.count("(code ") == 2
    assert "install the same versions there" in error
    stranger.kill()
    stranger.wait()

    # That a run waits for another one, and how long, is in ``evidence/test_executors.py``.
    cluster.workers[1].kill()
    run = start([*COMMAND, "--dask", address, "--out", str(out)])
    assert "has no workers" in run.communicate(timeout=1200)[1]
    assert run.returncode == 2


@needs_dask
def test_an_address_where_no_scheduler_answers_is_refused_in_time():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        places = "nonsense", f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        for place in places:
            done = python(
                "from simulations.evidence.executors import dask_cluster\n"
                "from ustat_pg.validation import InputError\n"
                "try:\n"
                f"    with dask_cluster({place!r}, answer=0.5): print('found one')\n"
                "except InputError as error: print(error)\n"
            )
            assert repr(place) in done.stdout
            assert "tcp://host:8786" in done.stdout


@needs_dask
def test_a_block_that_kills_and_a_scheduler_that_dies_leave_what_was_finished(
    whole, dask, tmp_path
):
    cluster, out = dask(DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="0"), tmp_path / "out"
    address = cluster.wait_for(2)
    run = start([*COMMAND, "--dask", address, "--out", str(out)])
    until(lambda: blocks(out) >= 3, run)
    cluster.lose(cluster.workers[0])
    text, error = run.communicate(timeout=1200)
    assert (run.returncode, text, error.count("\n")) == (2, "", 1)
    assert "workers died one after another on the same block; finished blocks are kept" in error
    kept = blocks(out)
    assert kept >= 3

    # A connection that is lost for a moment ends the run too, and the client's thread is silent.
    script = (
        "import time\n"
        "from simulations.evidence.executors import dask_cluster\n"
        f"with dask_cluster({address!r}) as cluster:\n"
        "    client = cluster.keep(b'').client\n"
        "    client.loop.add_callback(lambda: 1 / 0)\n"
        "    client.loop.add_callback(client.scheduler_comm.comm.abort)\n"
        "    while True: cluster.threads(), time.sleep(0.1)\n"
    )
    done = python(script)
    assert "LostWorkers: the connection to the scheduler was lost; finished" in done.stderr
    assert "ZeroDivisionError" not in done.stderr

    run = start([*COMMAND, "--dask", address, "--out", str(out)])
    until(lambda: blocks(out) >= kept + 3, run)
    cluster.scheduler.kill()
    text, error = run.communicate(timeout=1200)
    assert (run.returncode, text, error.count("\n")) == (2, "", 1)
    assert "scheduler" in error
    assert "finished blocks are kept" in error
    assert not (out / "verdicts.json").exists()

    kept = blocks(out)
    run = start([*COMMAND, "--workers", "2", "--out", str(out)])
    assert run.communicate(timeout=1200)[1] == ""
    assert run.returncode == 0
    assert kept < blocks(out)
    assert claims_of(out) == whole
