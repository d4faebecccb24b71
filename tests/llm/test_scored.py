"""Scored pools: what is refused, what a file keeps, and what a selection loses."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.pools import ARRAYS, same
from tests.support.refusals import refuses
from ustat_pg.llm.scored import ScoredPool, leave_one_out, prompt_gradient_weights
from ustat_pg.validation import InputError


def pool(prompts=6, rollouts=5, folds=(0, 0, 1, 1, 1, 2), seed=0):
    rng = np.random.default_rng(seed)
    return ScoredPool.from_scores(
        rng.integers(0, 2, (prompts, rollouts)).astype(float),
        rng.normal(size=(prompts, rollouts, 3)),
        prompts=[f"p{i}" for i in range(prompts)],
        lengths=rng.integers(1, 9, (prompts, rollouts)),
        token_proxy=rng.random((prompts, rollouts)),
        folds=np.array(folds),
        config={"model": "tiny", "seed": 3},
    )


def parts(pool, **changed):
    own = {name: getattr(pool, name) for name in ("prompts", *ARRAYS, "config")}
    return own | changed


def test_from_scores_holds_inner_products_within_prompts_and_between_folds():
    rng = np.random.default_rng(1)
    z, s = rng.normal(size=(3, 4)), rng.normal(size=(3, 4, 2))
    found = ScoredPool.from_scores(z, s, folds=[0, 1, 0])
    advantages = [[row[i] - np.delete(row, i).mean() for i in range(4)] for row in z]
    gradients = np.einsum("xi,xik->xk", advantages, s) / 4
    sums = np.array([gradients[0] + gradients[2], gradients[1]])
    np.testing.assert_allclose(found.fold_gram, sums @ sums.T, rtol=1e-12)
    np.testing.assert_allclose(found.gram, np.einsum("xik,xjk->xij", s, s), rtol=1e-9)
    assert found.fold_sizes.tolist() == [2, 1]


def test_leave_one_out_leaves_nothing_of_equal_rewards_however_large():
    assert not leave_one_out(np.full((2, 7), 1e9 + 0.1)).any()
    weights = prompt_gradient_weights(np.array([1.0, 0.0, 0.0, 0.0]))
    assert weights.sum() == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("between", [True, False])
def test_a_file_keeps_everything(tmp_path, between):
    one = pool()
    if not between:
        one = ScoredPool(**parts(one, fold_gram=None))
    path = one.save(tmp_path / "below" / "pool.npz")
    same(one, ScoredPool.load(path))
    assert [file.name for file in path.parent.iterdir()] == ["pool.npz"]


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = pool().save(tmp_path / "pool.npz")
    before = path.read_bytes()

    def torn(file, **arrays):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", torn)
    with pytest.raises(OSError, match="disk full"):
        pool(seed=1).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_files_that_are_no_pools_are_refused(tmp_path):
    refuses("there is no scored pool", ScoredPool.load, tmp_path / "none.npz")
    refuses(r"must end in \.npz", pool().save, tmp_path / "pool.json")
    junk = tmp_path / "junk.npz"
    junk.write_bytes(b"PK\x03\x04 not a zip file")
    refuses("is not a scored pool", ScoredPool.load, junk)
    np.savez(junk, rewards=np.ones(3))
    refuses("of format 1", ScoredPool.load, junk)
    np.savez(junk, format=np.int64(1), rewards=np.ones(3))
    refuses("missing", ScoredPool.load, junk)
    # An object array needs a pickle, which is never read.
    np.savez(junk, format=np.array([{}], dtype=object), allow_pickle=True)
    refuses("is not a scored pool", ScoredPool.load, junk)


def with_entry(gram, place, value):
    out = np.array(gram)
    out[place] = value
    return out


GRAM = pool().gram


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompts": ("p0",) * 6}, "'p0' occurs twice"),
        ({"prompts": ("p0", "p1")}, "2 prompts and rewards of 6"),
        ({"prompts": ()}, "must be names"),
        ({"lengths": np.ones((6, 4))}, "lengths has shape"),
        ({"lengths": -np.ones((6, 5))}, "none may be negative"),
        ({"token_proxy": np.full((6, 5), np.nan)}, "must be finite"),
        ({"rewards": np.full((6, 5), np.inf)}, "must be finite"),
        ({"gram": np.ones((6, 5, 4))}, "gram has shape"),
        ({"gram": with_entry(GRAM, (2, 0, 1), GRAM[2, 0, 1] + 1)}, "'p2' is not symmetric"),
        ({"gram": with_entry(GRAM, (1, 3, 3), -1.0)}, r"'p1' has -1\.0 on its diagonal"),
        ({"folds": np.array([0, 0, 1, 1, 3, 3])}, "with no gap"),
        ({"folds": np.zeros(6)}, "must be whole numbers"),
        ({"fold_gram": np.ones((2, 2))}, "fold_gram has shape"),
        ({"fold_gram": np.diag([1.0, 1.0, -1.0])}, "cannot be negative"),
        ({"config": {"x": {1, 2}}}, "cannot be written as JSON"),
        ({"config": {"x": float("nan")}}, "cannot be written as JSON"),
    ],
)
def test_bad_pools_are_refused(change, message):
    refuses(message, ScoredPool, **parts(pool(), **change))


def test_fewer_than_four_rollouts_are_refused_with_their_number():
    with pytest.raises(InputError, match="there are 3 rollouts per prompt: at least 4"):
        ScoredPool.from_scores(np.ones((2, 3)), np.ones((2, 3, 1)))
    three = {name: getattr(pool(), name)[:, :3] for name in ("rewards", "lengths", "token_proxy")}
    with pytest.raises(InputError, match="there are 3 rollouts per prompt: at least 4"):
        ScoredPool(**parts(pool(), gram=pool().gram[:, :3, :3], **three))


def test_a_selection_keeps_what_is_between_whole_folds_and_whole_pools():
    one = pool()
    part = one.select_prompts([5, 2, 3, 4])
    assert part.prompts == ("p5", "p2", "p3", "p4")
    assert part.folds.tolist() == [1, 0, 0, 0]
    assert np.array_equal(part.fold_gram, one.fold_gram[1:, 1:])
    assert np.array_equal(part.gram[0], one.gram[5])
    assert one.select_prompts([0, 5]).fold_gram is None
    part = one.select_rollouts([4, 0, 1, 2])
    assert part.rollouts == 4
    assert np.array_equal(part.rewards, one.rewards[:, [4, 0, 1, 2]])
    assert part.gram[3, 0, 2] == one.gram[3, 4, 1]
    assert part.fold_gram is None
    assert one.select_rollouts([4, 3, 2, 1, 0]).fold_gram is not None


@pytest.mark.parametrize(
    ("chosen", "message"), [([], "no prompts"), ([6], "is not there"), ([1, 1], "chosen twice")]
)
def test_impossible_selections_are_refused(chosen, message):
    refuses(message, pool().select_prompts, chosen)
    refuses("at least 4", pool().select_rollouts, [0, 1, 2])


def test_arrays_of_a_pool_cannot_be_written():
    for name in ARRAYS:
        with pytest.raises(ValueError, match="read-only"):
            getattr(pool(), name)[0] = 0
