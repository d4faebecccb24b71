"""The benchmark of GPUs, tiny: it runs in the simulator, refuses what is wrong, leaves rows open."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numba import config
from numba import cuda as numba_cuda

from benchmarks import gpu as benchmark
from benchmarks import mse_kernel, trajectories
from ustat_pg.engines import GradientCell
from ustat_pg.engines.runs.cuda import Flips
from ustat_pg.engines.runs.trajectory import Trajectory

ROOT = Path(__file__).resolve().parents[2]
SQUARED = mse_kernel.Case(5, 4)
PATHS = trajectories.CASES[0]


def rows(page):
    """The cells of the tables, without their heads."""
    lines = [line for line in page.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] != "work" and not row[0].startswith("--")]


@pytest.mark.skipif(numba_cuda.is_available(), reason="a device is here")
def test_in_the_simulator_it_runs_and_reports_no_times(tmp_path):
    code = (
        "import warnings; import numpy as np; from benchmarks import gpu; from ustat_pg import rng;"
        # In the simulator the words' products are NumPy scalars, which say when they wrap.
        "warnings.filterwarnings('ignore', 'overflow encountered in scalar multiply');"
        "found = gpu.floor(3, 2, 8).copy_to_host();"
        "words = rng.words(rng.cell_key(0, 'floor'), np.arange(3)[:, None], [0, 1], 8);"
        "assert (found == np.bitwise_xor.reduce(words.reshape(3, -1), axis=1)).all();"
        f"raise SystemExit(gpu.main(['--tiny', '--out', {str(tmp_path / 'new')!r}]))"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    env = os.environ | {"NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True, text=True)
    assert (tmp_path / "new" / "gpu.md").read_text() == done.stdout
    assert "Device: numba's CUDA simulator." in done.stdout
    table = rows(done.stdout)
    torch_table = [line for line in table if len(line) == 7]
    table = [line for line in table if len(line) == 9]
    assert [line[0] for line in table] == ["squared error", "trajectories, T = 4"]
    assert {cell for line in table for cell in line[3:8]} == {"simulated"}
    assert {cell for line in torch_table for cell in line[3:]} == {"open"}
    assert table[0][8].startswith("means differ by")
    assert table[1][8].startswith("0 of 6 runs flipped in 48 draws")


def test_without_a_device_the_rows_are_open(monkeypatch, capsys):
    monkeypatch.setattr(config, "ENABLE_CUDASIM", 0)
    monkeypatch.setattr(numba_cuda, "is_available", lambda: False)
    assert benchmark.main([]) == 0
    out = capsys.readouterr().out
    assert "Device: none that numba can use" in out
    table = [line for line in rows(out) if len(line) == 9]
    assert len(table) == len(mse_kernel.SIZES) + len(trajectories.CASES)
    assert {cell for line in table for cell in line[2:]} == {"open"}


def test_torchs_results_are_compared_before_they_are_timed():
    works = benchmark.torch_works(benchmark.TINY, tiny=True)
    assert [work.work for work in works] == ["training", "exact moments", "squared error"]
    for work in works:
        line = benchmark.compare(work, "cpu", rounds=1)
        assert line[-1].startswith("0 of ")
        assert line[5].endswith("x as fast")


@pytest.mark.parametrize("spoil", [1e-6, np.nan])
def test_another_result_of_torch_is_refused(spoil):
    def results(name):
        return np.ones((8, 2)) + spoil * (name == "cuda")

    work = benchmark.TorchWork("w", "float64", 1, results)
    with pytest.raises(SystemExit, match="the devices differ in"):
        benchmark.compare(work, "cuda", rounds=1)


def on_the_cpu(monkeypatch, seed=0, spoil=1.0):
    """The cpu engine stands in for the device, of another seed or spoiled where asked."""
    measure, run = GradientCell.measure, Trajectory.run

    def measured(cell, engine, quantities, **where):
        if engine == "cpu":
            return measure(cell, engine, quantities, **where)
        found = measure(cell, "cpu", quantities, seed=seed, **where)
        return replace(found, mean=found.mean * spoil)

    monkeypatch.setattr(GradientCell, "measure", measured)
    monkeypatch.setattr(Trajectory, "run", lambda asked, _, **where: run(asked, "cpu", **where))
    monkeypatch.setattr(benchmark, "floor", lambda *sizes: None)


SMALL = benchmark.Effort(squares=5000, runs=2100, steps=5, compared=50, rounds=1, threads=2)


def flipping(diverged):
    """A count of flips in 10⁶ draws."""
    return lambda *_, replications: Flips(replications, 10**6, diverged, 3e-16)


def test_engines_that_agree_are_timed(monkeypatch):
    on_the_cpu(monkeypatch)
    monkeypatch.setattr(benchmark, "flips", flipping(1))
    line = benchmark.squared_error(SQUARED, SMALL)
    assert line[:3] == ["squared error", "K = 5, G = 4", "5,000"]
    assert line[5].endswith("x as fast")
    line = benchmark.paths(PATHS, SMALL)
    assert line[8] == "1 of 50 runs flipped in 1,000,000 draws; the others differ by 3.0e-16"
    assert [float(cell) > 0 for cell in (line[3], line[4])] == [True, True]


@pytest.mark.parametrize(
    ("wrong", "flipped", "said"),
    [
        *(
            (wrong, 0, r"squared error, K = 5, G = 4: the engines' means differ")
            for wrong in ({"seed": 1}, {"spoil": 1 + 1e-9}, {"spoil": np.nan})
        ),
        ({}, 2, r"trajectories, X = 3.* 2 of 50 runs take another path"),
    ],
)
def test_another_mean_and_many_flips_are_refused(monkeypatch, wrong, flipped, said):
    on_the_cpu(monkeypatch, **wrong)
    monkeypatch.setattr(benchmark, "flips", flipping(flipped))
    with pytest.raises(SystemExit, match=said):
        benchmark.paths(PATHS, SMALL) if flipped else benchmark.squared_error(SQUARED, SMALL)


def test_a_ratio_is_the_cpus_time_over_the_devices(monkeypatch):
    monkeypatch.setattr(config, "ENABLE_CUDASIM", 0)
    assert benchmark.row("w", "s", 1000, (3.0, 0.5, 0.125), "a") == [
        *("w", "s", "1,000", "3", "0.5", "6.00x as fast", "0.125", "4.0", "a")
    ]
    monkeypatch.setattr(config, "ENABLE_CUDASIM", 1)
    assert benchmark.row("w", "s", 1000, (3.0, 0.5, 0.125), "a")[3:8] == ["simulated"] * 5


def test_the_least_of_interleaved_rounds_counts(monkeypatch):
    calls, times = [], iter([5.0, 1.0, 2.0, 3.0])
    monkeypatch.setattr(benchmark, "seconds", lambda call: call() or next(times))
    found = benchmark.least(2, lambda: calls.append("a"), lambda: calls.append("b"))
    assert found == [2.0, 1.0]
    assert "".join(calls) == "ababab"


@pytest.mark.parametrize("total", [1, 1023, 5000, 9999])
def test_shares_are_all_replications_once(total):
    parts = benchmark.in_threads(lambda first, count: range(first, first + count), total, 2)
    assert [i for part in parts for i in part] == list(range(total))


def test_threads_do_not_change_the_cpu_engines_runs():
    trajectory = PATHS.trajectory(4)
    whole = trajectory.run("cpu", replications=2100)
    assert np.array_equal(benchmark.paths_on_cpu(trajectory, 2100, 2), whole)
    found = benchmark.squares_on_cpu(SQUARED.cell, 5000, 2)
    assert found.n == 5000
    alone = SQUARED.cell.measure("cpu", [mse_kernel.QUANTITY], replications=5000)
    assert found.mean == pytest.approx(alone.mean, rel=1e-12)
