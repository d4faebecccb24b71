"""The benchmark of trajectories, tiny: its programs train the same policy, a wrong one is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from benchmarks import trajectories as benchmark
from benchmarks.trajectories import PEERS, Case, Effort

CASES = [
    Case("tiny", contexts=3, arms=5, d=2, group=2),
    Case("one prompt", contexts=1, arms=7, d=1, group=4),
]
SIZE = (4000, 30)
TINY = Effort(replications=300, steps=12, trial=2, rounds=2, quick=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
@pytest.mark.parametrize("library", PEERS)
def test_every_program_trains_as_the_engine_does(library, case):
    if not benchmark.installed(library):
        pytest.skip(f"{library} is not installed")
    ours = benchmark.engine(case, 0, *SIZE)
    before = case.problem.objective()
    assert benchmark.mean_and_error(case, ours)[0] > before + 0.005
    programs = PEERS[library](case, library == "torch")
    for name, program in programs.items():
        theta = program(1, *SIZE)
        assert benchmark.check(case, name, theta, ours) <= benchmark.ERRORS
        assert not np.array_equal(program(2, *SIZE), theta)


def test_the_engines_agree():
    one, two = (benchmark.engine(CASES[0], 0, 200, 20, name) for name in ("cpu", "reference"))
    assert one == pytest.approx(two, abs=1e-12)


def numpy_with(**wrong):
    """The program in NumPy with something of the case changed."""
    return lambda case: partial(benchmark.numpy_program, replace(case, **wrong), True, 500)


def spoiled(spoil):
    """The true program's parameters, spoiled."""
    return lambda case: lambda *where: spoil(numpy_with()(case)(*where))


WRONG = {
    "another rate": numpy_with(c=9.0),
    "another offset of the rate": numpy_with(t0=150.0),
    # The full group mean: (G - 1)/G of the rate.
    "the own reward in the mean": numpy_with(c=CASES[0].c / 2),
    "nan": spoiled(lambda theta: theta * np.nan),
    "a run less": spoiled(lambda theta: theta[:-1]),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_peer_stops_the_script(wrong, monkeypatch):
    monkeypatch.setattr(benchmark, "PEERS", {"NumPy": lambda case, _: {"planted": wrong(case)}})
    with pytest.raises(SystemExit, match=r"NumPy \(planted\), tiny: "):
        benchmark.compare(CASES[0], ["NumPy"], replace(TINY, replications=4000, steps=30))


def test_the_slope_of_a_straight_line():
    assert benchmark.slope([1, 2, 4], lambda size: 3.0 * size, 1) == pytest.approx(1.0)
    assert benchmark.slope([1, 2, 4], lambda size: 3.0 * size**2, 1) == pytest.approx(2.0)


def test_targets_that_are_not_met_are_called_so():
    rows = [["a", "NumPy", "", "", "", 5.0, ""], ["b", "NumPy", "", "", "", 4.9, ""]]
    line = benchmark.summary(rows).splitlines()
    assert line[1] == "- NumPy: 5.0x (a), 4.9x (b); at least 5x asked: NOT met"
    assert "- JAX: not installed" in line
    assert "asked: met" in benchmark.summary(rows[:1])


@pytest.mark.parametrize("alone", [False, True])
def test_the_script_prints_its_tables_or_says_what_is_not_there(alone, capsys, monkeypatch):
    if alone:
        monkeypatch.setattr(benchmark, "installed", lambda library: library == "NumPy")
    monkeypatch.setattr(benchmark, "slopes", lambda case, effort: (1.0, 1.3))
    arguments = ["--quick", "--replications", "200", "--steps", "8", "--rounds", "1"]
    assert benchmark.main(arguments, CASES[:1]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# Trajectories against their peers\n")
    for library in PEERS:
        assert (f"| {library} " in out) == benchmark.installed(library)
        assert (f"{library}: not installed" in out) != benchmark.installed(library)
    assert "slope of processor time 1.000 in R, 1.300 in T (NOT linear)" in out


def test_the_slopes_are_measured():
    in_r, in_t = benchmark.slopes(CASES[0], TINY)
    assert 0.3 < in_r < 1.7
    assert 0.3 < in_t < 1.7
