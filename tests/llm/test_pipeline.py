"""A folder holds the scored pool, and the scored prompts that the next one takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.support.pools import ARRAYS, same
from ustat_pg.llm.files import load_rollouts
from ustat_pg.llm.models import load_model
from ustat_pg.llm.pool import ScoredPool
from ustat_pg.llm.prompts import Prompt, Task
from ustat_pg.llm.rollouts import collect
from ustat_pg.llm.scoring import score

PROMPTS = 5


def long(prompts, completions, **columns):
    return [float(len(text) > 3) for text in completions]


@pytest.fixture(scope="module")
def task():
    prompts = tuple(Prompt(f"p{i}", f"{i}+{i}=", {}) for i in range(PROMPTS))
    return Task("sums", prompts, long, 4)


@pytest.fixture(scope="module")
def pools(tiny, task):
    return collect(tiny, task, 4)


def test_a_rerun_reads_what_is_there(tiny, pools, tmp_path, scored_prompts):
    calls = []
    first = score(tiny, pools, out=tmp_path, config={"seed": 1})
    same(first, ScoredPool.load(tmp_path / "scored.npz"))
    scored_prompts.clear()
    options = {"out": tmp_path, "progress": lambda *now: calls.append(now)}
    same(first, score(tiny, pools, config={"seed": 1}, **options))
    assert calls[-1] == ("scored", PROMPTS, PROMPTS)
    # A pool's name is no part of its key.
    assert score(tiny, pools, out=tmp_path, config={"seed": 2}).config["seed"] == 2
    assert scored_prompts == []


def test_a_pool_takes_the_prompts_of_the_last_one(tiny, pools, tmp_path, scored_prompts):
    """More prompts, fewer and in another order: each is scored once, and none is lost."""
    for chosen, anew in (([0, 1], 2), ([3, 1, 0], 1), ([1, 4], 1), ([4, 3, 2, 1, 0], 1), ([0], 0)):
        given = [pools[place] for place in chosen]
        scored_prompts.clear()
        pool = score(tiny, given, out=tmp_path)
        assert len(scored_prompts) == anew
        same(pool, score(tiny, given))
        same(pool, ScoredPool.load(tmp_path / "scored.npz"))
    assert len(list((tmp_path / "scored").iterdir())) == PROMPTS


def test_scores_are_those_of_an_earlier_version():
    data = Path(__file__).parents[1] / "data" / "pools"
    model, before = load_model("embedded:short"), ScoredPool.load(data / "scored.npz")
    rollouts = load_rollouts(data / "rollouts.jsonl", model)
    now = score(model, rollouts, parameters=["*norm*"], sketch=64, config={"seed": 2})
    for name in ARRAYS:
        if getattr(before, name) is not None:
            expected = getattr(before, name)
            largest = np.abs(expected).max()
            np.testing.assert_allclose(getattr(now, name), expected, rtol=0, atol=1e-5 * largest)
    assert now.config["weights"] == before.config["weights"]
