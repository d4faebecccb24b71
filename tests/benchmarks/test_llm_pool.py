"""The benchmark of the pool, tiny: both methods estimate the same errors, or it stops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks import llm_pool as benchmark
from benchmarks.llm_pool import QUICK, Subject


def repeats(seed=0, mean=0.0, sd=1.0, prompts=50, rounds=6):
    return np.random.default_rng(seed).normal(mean, sd, (rounds, prompts))


def test_the_standard_error_of_a_mean_over_prompts():
    found = benchmark.standard_error(repeats(sd=3.0, prompts=2000))
    assert found == pytest.approx(3 / np.sqrt(2000), rel=0.05)


def test_the_ratio_of_variances_has_its_interval():
    full, low, high = benchmark.gain(
        repeats(1, sd=1.0, prompts=400), repeats(2, sd=5.0, prompts=400)
    )
    assert full == pytest.approx(25, rel=0.15)
    assert low < 25 < high < 1.4 * low


@pytest.mark.parametrize("off", [2.0, np.nan])
def test_methods_that_do_not_agree_are_refused(off):
    benchmark.same(repeats(1), repeats(2), "grpo")
    with pytest.raises(SystemExit, match="grpo at G = 4: the pool gives"):
        benchmark.same(repeats(1), repeats(2) + off, "grpo at G = 4")


def test_brute_force_that_computes_something_else_stops_the_script(monkeypatch):
    own = benchmark.by_sampling

    def wrong(*arguments):
        found = own(*arguments)
        return replace(found, mse=np.full_like(found.mse, 1e6))

    monkeypatch.setattr(benchmark, "by_sampling", wrong)
    effort = replace(QUICK, prompts=3, group_sizes=(2,), rounds=3)
    with pytest.raises(SystemExit, match="vanilla at G = 2: the pool gives"):
        benchmark.compare(Subject.load("embedded:strong", 3), effort)


def test_every_group_size_lies_between_measured_ones():
    assert benchmark.over_sizes([2, 4], [2.0, 4.0], 4) == pytest.approx(9)
    squares = sum(g**2 for g in range(2, 9))
    assert benchmark.over_sizes([2, 8], [4.0, 64.0], 8) == pytest.approx(squares)


def test_exponents_of_a_product_of_powers():
    cells = {(p, n): 3.0 * p * n**2 for p in (1, 2, 4) for n in (16, 32)}
    (prompts, _), (rollouts, _) = benchmark.exponents(cells)
    assert prompts == pytest.approx(1)
    assert rollouts == pytest.approx(2)


def test_the_tables_of_the_script(capsys):
    assert benchmark.main(["--quick", "--parts", "equal", "growth"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# One pool against sampling every point anew\n")
    baselines = ("| vanilla", "| grpo", "| oracle")
    assert sum(line.startswith(baselines) for line in out.splitlines()) == 6
    assert "- all three: brute force at the group sizes of the table" in out
    assert "- scoring: exponent " in out


def test_the_command_is_run_and_measured():
    row, line = benchmark.command("embedded:strong", 4, 2)
    assert line.startswith("embedded:strong: 2 prompts, 4 rollouts of each")
    assert float(row[1]) > 0
    assert 100 < float(row[3]) < 2000


def test_a_command_that_fails_stops_the_script():
    with pytest.raises(SystemExit, match=r"ustat-pg llm mse .* gave 2:"):
        benchmark.command("embedded:strong", 4, "none")
