"""The benchmark of the MSE kernel, tiny: what it times is right, and what is wrong it refuses."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks import mse_kernel
from benchmarks.mse_kernel import Case, Effort

ROOT = Path(__file__).resolve().parents[2]
CASES = [Case(5, 4), Case(40, 6), Case(300, 3)]
TINY = Effort(rounds=2, slice=0.001, trial=0.0005, quick=True)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_numpy_program_estimates_the_prediction(case):
    peers = mse_kernel.numpy_peers(case)
    assert len(peers) == (9 if case.arms < 255 else 7)
    for name, run in peers.items():
        mse_kernel.check_mean(case, name, run, least=8_000)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_engine_and_the_drawing_are_its_own(case):
    mse_kernel.check_engine(case, 20_000)
    for body in (mse_kernel._draw_by_search, mse_kernel._draw_by_comparison):
        mse_kernel.check_draws(case, body, 100)


def full_mean(case):
    """The group's mean with the own reward: the full mean's estimator, G - 1 for G."""
    wrong, share = Case(case.arms, case.group), (case.group - 1) / case.group
    wrong.__dict__["combine"] = lambda n, sq: share**2 * case.combine(n, sq)
    return partial(mse_kernel.tabulated, wrong, mse_kernel.by_search)


def scaled(factor):
    """A true program whose results are multiplied."""
    true = mse_kernel.numpy_peers(CASES[0])["alias"]
    return lambda case: lambda state, replications: factor * true(state, replications)


@pytest.mark.parametrize("wrong", [full_mean, *map(scaled, (0.9, 1.1, np.nan))])
def test_a_wrong_peer_stops_the_script(wrong, monkeypatch):
    monkeypatch.setattr(mse_kernel, "numpy_peers", lambda case: {"planted": wrong(case)})
    with pytest.raises(SystemExit, match=r"planted at K=5, G=4 computes something else"):
        mse_kernel.measure(CASES[0], ("NumPy",), TINY)


def test_a_drawing_that_is_not_the_engines_is_refused(monkeypatch):
    case = CASES[0]

    def half(first, replications, key, group, search):
        return mse_kernel._draw_by_search(first, replications // 2, key, group, search)

    with pytest.raises(SystemExit, match="half does not make the engine's draws"):
        mse_kernel.check_draws(case, half)


def test_the_table_has_every_program_and_the_best_of_each():
    rows = mse_kernel.measure(CASES[0], ("NumPy",), TINY)
    assert [row[1] for row in rows] == ["cpu engine", "drawing alone", *["NumPy"] * 9]
    assert rows[0][4] == 1.0
    best = mse_kernel.best_rows(rows)
    assert [row[1] for row in best] == ["cpu engine", "drawing alone", "NumPy"]
    assert best[2][4] == min(row[4] for row in rows[2:])
    assert mse_kernel.table(best).count("\n") == 4
    line = mse_kernel.summary(rows).splitlines()[-1].split("|")
    assert [word.strip() for word in line[6:8]] == ["not installed"] * 2
    assert float(line[5].strip()[:-1]) == pytest.approx(min(row[4] for row in rows[2:]), abs=0.06)
    assert float(line[8].strip()[:-1]) == pytest.approx(1 / rows[1][4], abs=0.06)


@pytest.mark.parametrize("alone", [False, True])
def test_the_script_runs_with_what_is_installed(alone, monkeypatch, capsys):
    if alone:
        monkeypatch.setattr(mse_kernel, "installed", lambda library: library == "NumPy")
    assert mse_kernel.main(["--quick"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# The MSE kernel against its peers\n")
    for library in ("torch", "JAX"):
        assert (f"| {library} " in out) == mse_kernel.installed(library)
        assert (f"{library}: not installed" in out) != mse_kernel.installed(library)
