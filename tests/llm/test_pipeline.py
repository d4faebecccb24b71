"""A folder holds the scored pool in the end, and nothing large beside it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.support.pools import same
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


def test_files_of_prompts_are_deleted_once_the_pool_is_saved(tiny, pools, tmp_path):
    other = tmp_path / "scored" / "prompt-of-another-pool.npz"
    other.parent.mkdir()
    other.write_bytes(b"mine")
    pool = score(tiny, pools, out=tmp_path, config={"seed": 1})
    assert list((tmp_path / "scored").iterdir()) == [other]
    same(pool, ScoredPool.load(tmp_path / "scored.npz"))
    same(pool, score(tiny, pools, config={"seed": 1}))
    other.unlink()
    same(pool, score(tiny, pools, out=tmp_path, config={"seed": 1}))
    assert not (tmp_path / "scored").exists()


def test_a_rerun_reads_the_pool(tiny, pools, tmp_path, scored_prompts):
    options, said = {"out": tmp_path, "config": {"seed": 1}}, []
    first = score(tiny, pools, **options)
    scored_prompts.clear()
    same(first, score(tiny, pools, **options, progress=lambda *now: said.append(now)))
    assert scored_prompts == []
    assert said[-1] == ("scored", PROMPTS, PROMPTS)
    # What a pool is called is not what it was made of.
    assert score(tiny, pools, out=tmp_path, config={"seed": 2}).config["seed"] == 2
    assert scored_prompts == []


@pytest.mark.parametrize(
    ("change", "options"),
    [("rewards", {}), ("damage", {}), ("", {"sketch": 512}), ("", {"parameters": ["*mlp*"]})],
)
def test_what_has_changed_is_scored_anew(tiny, pools, tmp_path, scored_prompts, change, options):
    score(tiny, pools, out=tmp_path)
    anew = 1 if change == "rewards" else PROMPTS
    given = list(pools)
    if change == "rewards":
        given[2] = replace(given[2], rewards=np.array([1.0, 0, 0, 1]) - given[2].rewards)
    elif change == "damage":
        (tmp_path / "scored.npz").write_bytes(b"torn")
    scored_prompts.clear()
    found = score(tiny, given, out=tmp_path, **options)
    assert len(scored_prompts) == anew
    same(found, score(tiny, given, **options))
    same(found, ScoredPool.load(tmp_path / "scored.npz"))
    # Nothing of the old rollouts, weights or options stays.
    assert not (tmp_path / "scored").exists()


def test_a_pool_takes_the_prompts_of_the_last_one(tiny, pools, tmp_path, scored_prompts):
    """More prompts, fewer and in another order: each is scored once, and none is lost."""
    for chosen, anew in (([0, 1], 2), ([3, 1, 0], 1), ([1, 4], 1), ([4, 3, 2, 1, 0], 1), ([0], 0)):
        given = [pools[place] for place in chosen]
        scored_prompts.clear()
        found = score(tiny, given, out=tmp_path)
        assert len(scored_prompts) == anew
        same(found, score(tiny, given))
        same(found, ScoredPool.load(tmp_path / "scored.npz"))
    assert len(list((tmp_path / "scored").iterdir())) == PROMPTS - 1


def test_a_pool_that_cannot_be_saved_loses_none_of_the_last(
    tiny, pools, tmp_path, monkeypatch, scored_prompts
):
    score(tiny, pools, out=tmp_path)
    scored_prompts.clear()

    def full(self, path):
        raise OSError("no space")

    with monkeypatch.context() as patched:
        patched.setattr(ScoredPool, "save", full)
        with pytest.raises(OSError, match="no space"):
            score(tiny, pools[:2], out=tmp_path)
    score(tiny, pools[:3], out=tmp_path)
    score(tiny, pools, out=tmp_path)
    assert scored_prompts == []
    assert not (tmp_path / "scored").exists()
