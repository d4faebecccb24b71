"""Scored pools: what is refused, what a file keeps, and what a selection loses."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.pools import ARRAYS, same
from tests.support.refusals import refuses
from ustat_pg.llm.pool import ScoredPool, moment_weights


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


def test_from_scores_holds_norms_sums_and_gradients():
    rng = np.random.default_rng(1)
    z, s = rng.normal(size=(3, 4)), rng.normal(size=(3, 4, 2))
    result = ScoredPool.from_scores(z, s)
    advantages = [[row[i] - np.delete(row, i).mean() for i in range(4)] for row in z]
    gradients = np.einsum("xi,xik->xk", advantages, s) / 4
    np.testing.assert_allclose(result.sketches, gradients, rtol=1e-12)
    np.testing.assert_allclose(result.gram, np.einsum("xik,xjk->xij", s, s), rtol=1e-9)
    np.testing.assert_allclose(result.squared_norms, (s**2).sum(axis=2), rtol=1e-12)
    for x in range(3):
        a = z[x] - z[x].mean()
        three = np.stack([np.ones(4), a, a**2]) @ s[x]
        np.testing.assert_allclose(result.sums[x], three @ three.T, rtol=1e-9)


@pytest.mark.parametrize("known", [("sketches", "gram"), ("surprise", "surprise_variance"), ()])
def test_a_file_keeps_everything(tmp_path, known):
    one = pool()
    given = parts(one, surprise=np.ones((6, 5)), surprise_variance=np.ones((6, 5)))
    for name in {"sketches", "gram", "surprise", "surprise_variance"} - set(known):
        given[name] = None
    one = ScoredPool(**given)
    path = one.save(tmp_path / "below" / "pool.npz")
    same(one, ScoredPool.load(path))
    assert [file.name for file in path.parent.iterdir()] == ["pool.npz"]


def test_files_that_are_no_pools_are_refused(tmp_path):
    refuses("none.npz: No such file", ScoredPool.load, tmp_path / "none.npz")
    junk = tmp_path / "junk.npz"
    np.savez(junk, rewards=np.ones(3))
    refuses("'format' is missing", ScoredPool.load, junk)
    np.savez(junk, format=np.int64(1), rewards=np.ones(3))
    refuses("of format 2: it has format 1", ScoredPool.load, junk)
    np.savez(junk, format=np.int64(2), rewards=np.ones(3))
    refuses("'prompts' is missing", ScoredPool.load, junk)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompts": ("0",) * 6}, "each of the 6 needs its own name"),
        ({"lengths": np.ones((6, 4))}, r"lengths has shape \(6, 4\): it must be \(6, 5\)"),
        ({"rewards": np.full((6, 5), np.inf)}, "must be finite"),
        ({"sketches": np.ones((2, 7))}, r"sketches has shape \(2, 7\): it must be \(6, None\)"),
    ],
)
def test_bad_pools_are_refused(change, message):
    refuses(message, ScoredPool, **parts(pool(), **change))
    few = np.ones((2, 3)), np.ones((2, 3, 1))
    refuses("there are 3 rollouts per prompt: at least 4", ScoredPool.from_scores, *few)


DATA = Path(__file__).parents[1] / "data" / "pools"


def test_a_pool_of_an_earlier_version_is_read():
    one = ScoredPool.load(DATA / "scored.npz")
    assert (one.prompts, one.rollouts, one.config["seed"]) == (("0", "1", "2"), 4, 2)
    assert one.rewards.tolist() == [[0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]]
    weights = moment_weights(one.rewards)
    expected = weights @ one.gram @ weights.swapaxes(1, 2)
    np.testing.assert_allclose(one.sums, expected, atol=1e-6 * expected.max())


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


@pytest.mark.parametrize("name", ["sums", "gram"])
def test_inner_products_are_symmetric_whatever_their_last_digits(name):
    given = parts(pool())
    apart = given[name] * (1 + 1e-9 * np.triu(np.ones_like(given[name])))
    held = getattr(ScoredPool(**given | {name: apart}), name)
    np.testing.assert_array_equal(held, held.swapaxes(1, 2))
    np.testing.assert_allclose(held, (apart + apart.swapaxes(1, 2)) / 2, rtol=1e-12)
