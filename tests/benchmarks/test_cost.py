"""The benchmark of costs, tiny: it measures what the runner measures, and fits what it is given."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import cost
from benchmarks.cost import CELLS, SERIES, Job


@pytest.mark.parametrize("kind", CELLS)
def test_bare_calls_and_the_runner_agree(kind, monkeypatch):
    monkeypatch.setattr(cost.options, "LARGEST_BLOCK", cost.REPLICATIONS // 4)
    job = Job(kind, 2, "quick")
    assert len(job.blocks) == 4
    cost.check_same(job)


def test_calls_that_measure_something_else_are_refused(monkeypatch):
    real = cost.measured
    monkeypatch.setattr(cost, "measured", lambda task: real(cost.replace(task, seed=1)))
    with pytest.raises(ValueError, match="the runner and bare calls differ"):
        cost.check_same(Job("one prompt", 1, "smoke"))


def test_a_slope_is_that_of_the_times(monkeypatch):
    series = cost.Series("R", "2", (2, 4, 8), lambda r: CELLS["one prompt"](0), lambda r: 1)
    times = iter([3.0, 12.0, 48.0, 1e9, 1e9, 1e9])
    monkeypatch.setattr(cost, "seconds", lambda call: next(times))
    row = cost.slope(series, series.sizes, 1.0, 2)
    assert row[3:5] == ["2.00 ± 0.00", "2.00"]


def test_a_series_changes_what_it_names():
    for series in SERIES:
        cells = [series.cell(size) for size in series.sizes[:3]]
        read = {
            "R": [series.replications(size) for size in series.sizes[:3]],
            "G": [cell.group_size for cell in cells],
            "K": [cell.problem.arms for cell in cells],
            "X": [cell.problem.contexts for cell in cells],
            "B": [cell.batch_size for cell in cells],
            "d": [cell.problem.d for cell in cells],
        }
        for name, values in read.items():
            if name == series.name[0]:
                assert tuple(values) == series.sizes[:3]
            elif not (name == "d" and series.name[0] in "KX"):
                assert len(set(values)) == 1


def test_doubled_work_is_other_work_of_the_same_size():
    one, two = Job("minibatch", 2, "smoke").blocks, Job("minibatch", 2, "smoke").doubled().blocks
    assert len({task.cell.name for task in two}) == 2 * len({task.cell.name for task in one}) == 4
    assert np.ptp([task.replications for task in two]) == 0


def test_the_script_prints_its_tables(monkeypatch, capsys):
    monkeypatch.setattr(
        cost, "CELLS", {"one prompt": CELLS["one prompt"], "minibatch": CELLS["one prompt"]}
    )
    assert cost.main(["--quick", "--rounds", "1"]) == 0
    out = capsys.readouterr().out
    for series in SERIES:
        assert f"| {series.name} " in out
    assert out.count("| one prompt ") == out.count("| minibatch ") == 2
    assert "| runner " in out
