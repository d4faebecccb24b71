"""Scored pools: what is refused, what a file keeps, and what a selection loses."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.pools import ARRAYS, same
from tests.support.refusals import refuses
from ustat_pg.llm.pool.scored import ScoredPool


def pool(prompts=6, rollouts=5, seed=0):
    rng = np.random.default_rng(seed)
    made = ScoredPool.from_scores(
        rng.integers(0, 2, (prompts, rollouts)).astype(float),
        rng.normal(size=(prompts, rollouts, 3)),
        lengths=rng.integers(1, 9, (prompts, rollouts)),
        token_proxy=rng.random((prompts, rollouts)),
    )
    return replace(made, config={"model": "tiny", "seed": 3})


def parts(pool, **changed):
    own = {name: getattr(pool, name) for name in ("prompts", *ARRAYS, "config")}
    return own | changed


def test_from_scores_holds_norms_products_and_gradients():
    rng = np.random.default_rng(1)
    z, s = rng.normal(size=(3, 4)), rng.normal(size=(3, 4, 2))
    result = ScoredPool.from_scores(z, s)
    advantages = [[row[i] - np.delete(row, i).mean() for i in range(4)] for row in z]
    gradients = np.einsum("xi,xik->xk", advantages, s) / 4
    np.testing.assert_allclose(result.gradients, gradients, rtol=1e-12)
    np.testing.assert_allclose(result.gram, np.einsum("xik,xjk->xij", s, s), rtol=1e-9)
    np.testing.assert_allclose(result.squared_norms, (s**2).sum(axis=2), rtol=1e-12)
    flat = replace(result, rewards=np.full((3, 4), 0.1))
    assert not flat.gradients.any()


def test_norms_stand_for_a_sketchs_own():
    """A score's product with itself is exact, whatever its sketch."""
    one = pool()
    half = replace(one, scores=one.scores / 2)
    own = np.eye(one.rollouts, dtype=bool)
    np.testing.assert_array_equal(half.gram[:, own], one.squared_norms)
    np.testing.assert_allclose(half.gram[:, ~own], one.gram[:, ~own] / 4)


def test_a_selection_is_the_pool_of_what_is_left():
    one = pool()
    rows, columns = [4, 0], [3, 1, 2, 0]
    part = one.select_prompts(rows).select_rollouts(columns)
    assert part.prompts == ("4", "0")
    for name in ("rewards", "squared_norms", "scores", "lengths", "token_proxy"):
        expected = getattr(one, name)[rows][:, columns]
        np.testing.assert_array_equal(getattr(part, name), expected)
    np.testing.assert_allclose(part.gram, one.gram[rows][:, columns][:, :, columns], rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_file_keeps_everything(tmp_path, dtype):
    one = pool()
    given = parts(one, surprise=np.ones((6, 5)), surprise_variance=np.ones((6, 5)))
    for some in (given, parts(one)):
        some["scores"] = one.scores.astype(dtype)
        kept = ScoredPool(**some)
        path = kept.save(tmp_path / "below" / "pool.npz")
        read = ScoredPool.load(path)
        same(kept, read)
        assert read.scores.dtype == dtype
        assert [file.name for file in path.parent.iterdir()] == ["pool.npz"]


def test_files_that_are_no_pools_are_refused(tmp_path):
    refuses("none.npz: No such file", ScoredPool.load, tmp_path / "none.npz")
    junk = tmp_path / "junk.npz"
    np.savez(junk, rewards=np.ones(3))
    refuses("'format' is missing", ScoredPool.load, junk)
    np.savez(junk, format=np.int64(2), rewards=np.ones(3))
    refuses("of format 3: it has format 2: score the rollouts again", ScoredPool.load, junk)
    np.savez(junk, format=np.int64(3), rewards=np.ones(3))
    refuses("'prompts' is missing", ScoredPool.load, junk)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompts": ("0",) * 6}, "each of the 6 needs its own name"),
        ({"lengths": np.ones((6, 4))}, r"lengths has shape \(6, 4\): it must be \(6, 5\)"),
        ({"rewards": np.full((6, 5), np.inf)}, "must be finite"),
        ({"scores": np.ones((6, 4, 7))}, r"scores has shape .* it must be \(6, 5, None\)"),
    ],
)
def test_bad_pools_are_refused(change, message):
    refuses(message, ScoredPool, **parts(pool(), **change))
    few = np.ones((2, 3)), np.ones((2, 3, 1))
    refuses("there are 3 rollouts per prompt: at least 4", ScoredPool.from_scores, *few)


DATA = Path(__file__).parents[2] / "data" / "pools"


def test_a_pool_of_an_earlier_version_is_read():
    one = ScoredPool.load(DATA / "scored.npz")
    assert (one.prompts, one.rollouts, one.config["seed"]) == (("0", "1", "2"), 4, 2)
    assert one.rewards.tolist() == [[0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]]
    assert one.scores.shape == (3, 4, 64)


def test_surprise_is_given_in_its_standard_errors():
    one = pool()
    assert one.on_policy_z is None
    for surprise, variance, z in ((0.5, 4.0, 0.25 * 30**0.5), (0.5, 0.0, np.inf), (0.0, 0.0, 0.0)):
        given = parts(one, surprise=np.full((6, 5), surprise))
        given["surprise_variance"] = np.full((6, 5), variance)
        assert ScoredPool(**given).on_policy_z == pytest.approx(z)
    nothing = parts(
        pool(), **dict.fromkeys(("lengths", "surprise", "surprise_variance"), np.zeros((6, 5)))
    )
    assert ScoredPool(**nothing).on_policy_z == 0.0
