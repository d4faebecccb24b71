"""A folder holds the scored pool in the end, and nothing large beside it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.support.pools import same
from tests.support.refusals import refuses
from ustat_pg.llm.pipeline import collect, score
from ustat_pg.llm.prompts import Prompt, Task
from ustat_pg.llm.scored import ScoredPool
from ustat_pg.llm.scores import Scores

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
    assert said == [("scored", PROMPTS, PROMPTS)]
    # What a pool is called is not what it was made of.
    assert score(tiny, pools, out=tmp_path, config={"seed": 2}).config["seed"] == 2
    assert scored_prompts == []


@pytest.mark.parametrize(
    ("change", "options"),
    [("rewards", {}), ("order", {}), ("damage", {}), ("", {"sketch": 512}), ("", {"parameters": ["*mlp*"]})],
)  # fmt: skip
def test_what_has_changed_is_scored_anew(tiny, pools, tmp_path, scored_prompts, change, options):
    score(tiny, pools, out=tmp_path)
    given = list(pools)
    if change == "rewards":
        given[2] = replace(given[2], rewards=np.array([1.0, 0, 0, 1]) - given[2].rewards)
    elif change == "order":
        given = given[::-1]
    elif change == "damage":
        (tmp_path / "scored.npz").write_bytes(b"torn")
    scored_prompts.clear()
    found = score(tiny, given, out=tmp_path, **options)
    assert len(scored_prompts) == PROMPTS
    same(found, score(tiny, given, **options))
    same(found, ScoredPool.load(tmp_path / "scored.npz"))


def test_too_little_memory_is_told_before_anything_is_sampled(tiny, task, tmp_path, rows):
    each = 4 * Scores(tiny.model).d
    options = {"memory": 2 * each, "autocast_bf16": False}
    said = f"memory is {2 * each} bytes: completions of 4 tokens"
    refuses(said, collect, tiny, task, 4, out=tmp_path, scoring=options)
    assert rows == []
    assert len(collect(tiny, task, 4, out=tmp_path, scoring={"memory": 10**8})) == PROMPTS
    assert len(rows) == 4 * PROMPTS
