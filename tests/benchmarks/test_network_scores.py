"""The benchmark of network scores, tiny: what it times is right, and what is wrong it refuses."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks import network_scores as benchmark
from benchmarks.network_scores import Case

TINY = Case(4, 2, 3)


def test_the_loop_gives_the_scores():
    policy = TINY.policy()
    assert np.allclose(benchmark.by_loop(policy, 5), policy.scores(0)[:5], rtol=0, atol=1e-12)


def test_the_sizes_asked_for_are_there():
    """Moments of a 20k-parameter transformer over 4,096 outputs."""
    sizes = {(case.policy().d, case.policy().space.count) for case in benchmark.MOMENTS}
    assert any(19_000 < d < 22_000 and k == 4096 for d, k in sizes)


@pytest.mark.parametrize("factor", [1 + 1e-9, np.nan])
def test_a_way_that_gives_other_scores_is_refused(monkeypatch, factor):
    original = benchmark.by_vmap
    monkeypatch.setattr(benchmark, "by_vmap", lambda policy: factor * original(policy))
    with pytest.raises(SystemExit, match="the two ways differ by"):
        benchmark.compare(TINY, 1, 4)


def test_the_script_runs(capsys):
    assert benchmark.main(["--quick", "--threads", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# Scores and exact moments of a transformer\n")
    assert sum(line.startswith("|") for line in out.splitlines()) == 6
