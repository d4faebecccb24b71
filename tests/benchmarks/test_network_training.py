"""The benchmark of networks' training, tiny: what it times is one and the same, or it stops."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks import network_training as benchmark
from benchmarks.network_training import Case

TINY = Case(4, steps=3, vocabulary=3, length=2, group_size=4, batch_size=2)


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_all_ways_make_the_same_runs(precision):
    training = Case(4, precision, steps=3, vocabulary=3, length=2).training(3)
    found = [way(training, 3, 1) for way in benchmark.WAYS.values()]
    limit = {"float64": 1e-12, "float32": 1e-5}[precision]
    for other in found[1:]:
        assert np.abs(other - found[0]).max() < limit
    assert np.abs(found[0] - np.array(training.policy.theta)).max() > 1e-3
    assert np.abs(found[0][0] - found[0][1]).max() > 1e-3


def test_the_sizes_asked_for_are_there():
    """Networks of 10³ and 10⁵ parameters."""
    sizes = {case.training(1).d for case in benchmark.CASES}
    assert any(900 < d < 1100 for d in sizes)
    assert any(90_000 < d < 110_000 for d in sizes)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda theta, start: theta * (1 + 1e-6),
        lambda theta, start: theta * np.nan,
        # The full mean's advantages, (G - 1)/G of the others.
        lambda theta, start: start + (theta - start) * 3 / 4,
    ],
    ids=["a digit off", "nan", "without the group factor"],
)
def test_a_way_that_makes_other_runs_is_refused(spoil, monkeypatch):
    def wrong(training, runs, seed):
        return spoil(benchmark.by_script(training, runs, seed), np.array(training.policy.theta))

    monkeypatch.setattr(benchmark, "WAYS", {"at once": benchmark.at_once, "script": wrong})
    with pytest.raises(SystemExit, match="script differs from at once"):
        benchmark.check(TINY, 2)


def test_the_script_runs(capsys):
    import torch

    before = torch.get_num_threads()
    assert benchmark.main(["--quick"]) == 0
    assert torch.get_num_threads() == before
    out = capsys.readouterr().out
    assert out.startswith("# Training many networks at once\n")
    assert sum(line.startswith("|") for line in out.splitlines()) == 3
