"""The benchmark of language models' scores, tiny: all ways give the same norms, or it stops."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks import llm_scores as benchmark
from benchmarks.llm_scores import TINY, WAYS

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:FutureWarning")


def here(way, name, count, length, limit):
    """The measurement in this process."""
    assert name == "tiny"
    return benchmark.measure(way, TINY, count, length)


@pytest.mark.parametrize("way", [way for way in WAYS if benchmark.installed(way)])
def test_all_ways_give_the_same_norms(way):
    prompt, rows = benchmark.tokens(TINY, 5, 6)
    expected = benchmark.norms_by_loop(TINY)(prompt, rows)
    assert np.allclose(WAYS[way](TINY)(prompt, rows), expected, rtol=1e-4)


@pytest.mark.parametrize("factor", [1.01, np.nan])
def test_a_way_that_gives_other_norms_is_refused(monkeypatch, factor):
    wrong = {
        **WAYS,
        "one pass": lambda size: lambda p, r: factor * WAYS["loop, norms"](size)(p, r),
    }
    monkeypatch.setattr(benchmark, "WAYS", {k: wrong[k] for k in list(wrong)[:5]})
    with pytest.raises(SystemExit, match="one pass at tiny, 3 tokens: norms differ by"):
        benchmark.compare("tiny", 3, 4, 1, 60, run=here)


def test_what_takes_too_long_is_tried_once_and_said(monkeypatch):
    asked = []

    def slow(way, *arguments):
        asked.append(way)
        return None if way == "torch.func, norms" else here(way, *arguments)

    monkeypatch.setattr(benchmark, "installed", lambda way: not way.startswith("Opacus"))
    rows = benchmark.compare("tiny", 3, 4, 2, 60, run=slow)
    cells = {row[2]: row[3] for row in rows}
    assert asked.count("torch.func, norms") == 1
    assert cells["torch.func, norms"] == "over 60"
    assert cells["Opacus, norms"] == "not installed"


def test_the_sizes_are_what_they_are_called():
    counts = [
        sum(p.numel() for p in size.model().parameters()) for size in benchmark.SIZES.values()
    ]
    assert [round(count / 1e6, 1) for count in counts] == [0.1, 0.3, 3.2, 24.9]


def test_a_process_of_its_own():
    found = benchmark.in_process("one pass", "tiny", 3, 4, 100)
    assert len(found["norms"]) == 3
    assert found["seconds"] > 0


def test_the_part_for_devices_runs_on_a_cpu_too():
    config = benchmark.QWEN | {"vocab_size": 64, "hidden_size": 28, "num_hidden_layers": 1}
    rows = benchmark.on_device("cpu", 4, 5, 1, 2**30, config, 64)
    assert [row[0] for row in rows] == ["float32", "bfloat16 autocast"]
    assert all(len(row) == len(benchmark.DEVICE_HEAD) for row in rows)


def test_operations_are_counted_in_hooks_too():
    import torch

    a = torch.ones(4, 5, requires_grad=True)
    b = a * 1

    def product(slope):
        _ = torch.ones(2, 3) @ torch.ones(3, 7)

    b.register_hook(product)
    assert benchmark.flops_of(lambda: b.sum().backward()) == 2 * 2 * 3 * 7
