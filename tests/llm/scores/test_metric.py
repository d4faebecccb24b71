"""Scores in Adam's metric are those of plain differentiation times √P."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.llm.scores.test_scoring import pool_of
from tests.support.adam import saved
from tests.support.models import output_by_hand
from tests.support.pools import same
from tests.support.refusals import refuses
from ustat_pg.llm.pool.constants import constants
from ustat_pg.llm.pool.metrics import metrics
from ustat_pg.llm.pool.scored import ScoredPool
from ustat_pg.llm.scores import Scores
from ustat_pg.llm.scores.metric import adam_metric
from ustat_pg.llm.scores.scoring import score_pool

WHOLE = 10**6
"""A sketch of more numbers than a score has."""


@pytest.fixture(scope="module")
def state(tiny, tmp_path_factory):
    """A file with the state of Adam, and √P of all parameters by hand."""
    path, v = saved(tiny.model, tmp_path_factory.mktemp("adam") / "optimizer.pt")
    # A tenth of all coordinates, spread over all parameters, are far below the median.
    data, flat = torch.load(path), torch.cat([each.flatten() for each in v.values()])
    for entry in data["state"].values():
        entry["exp_avg_sq"].view(-1)[::10] *= 1e-7
    torch.save(data, path)
    flat = torch.cat([_thinned(each) for each in v.values()]).double()
    return path, flat.numpy()


def _thinned(v):
    flat = v.flatten().clone()
    flat[::10] *= 1e-7
    return flat


def root(v, least=0.0):
    return 1 / np.sqrt(np.sqrt(np.maximum(v, least)) + 1e-8)


def floor_of(v):
    """A thousandth of the median; of two in the middle torch takes the lower one."""
    return 1e-3 * np.sort(v)[(len(v) - 1) // 2]


def by_hand(tiny, pools):
    """Scores of every completion by plain differentiation, (P, N, d)."""
    return np.array(
        [
            [output_by_hand(tiny.model, one.prompt_ids, ids)[1] for ids in one.completion_ids]
            for one in pools
        ]
    )


def products(pool):
    """Inner products of all scores of a pool, and their squared norms."""
    rows = pool.scores.reshape(pool.size * pool.rollouts, -1).astype(float)
    return rows @ rows.T, pool.squared_norms.flatten()


def agree(pool, scores):
    rows = scores.reshape(pool.size * pool.rollouts, -1)
    gram, norms = products(pool)
    expected = rows @ rows.T
    np.testing.assert_allclose(norms, np.diag(expected), rtol=1e-5)
    np.testing.assert_allclose(gram, expected, rtol=0, atol=1e-5 * expected.max())


@pytest.mark.parametrize("method", ["hooks", "loop"])
def test_every_metric_is_that_of_scaled_scores(tiny, state, method):
    path, v = state
    pools = pool_of(3)
    pool = score_pool(tiny, pools, sketch=WHOLE, optimizer=path, method=method)
    table, floor = by_hand(tiny, pools), floor_of(v)
    small = v < floor
    assert small.mean() > 0.1
    assert pool.config["metric"]["small_share"] == pytest.approx(small.mean())
    agree(pool, table * root(v))
    agree(pool.metrics["plain"], table)
    agree(pool.metrics["floored"], table * root(v, floor))
    agree(pool.metrics["small"], table * root(v) * small)
    assert pool.metric == "adam"
    assert {name: other.metric for name, other in pool.metrics.items()} == {
        name: name for name in ("plain", "floored", "small")
    }


def test_constants_in_each_metric(tiny, state):
    """What is printed is what scores say that are scaled by hand."""
    path, v = state
    pools = pool_of(6, count=8)
    found = metrics(score_pool(tiny, pools, sketch=WHOLE, optimizer=path))
    table, floor = by_hand(tiny, pools), floor_of(v)
    rewards = [one.rewards for one in pools]

    def known(scale):
        return constants(ScoredPool.from_scores(rewards, table * scale)).estimates

    scales = {"adam": root(v), "plain": 1.0, "floored": root(v, floor)}
    assert [*found.constants] == [*scales]
    for name, scale in scales.items():
        for what, estimate in known(scale).items():
            one = found.constants[name].estimates[what]
            for part in ("value", "low", "high"):
                expected = getattr(estimate, part)
                assert getattr(one, part) == pytest.approx(expected, rel=1e-3), (name, what, part)
    whole, part = known(root(v)), known(root(v) * (v < floor))
    for name in ("c1", "c2", "c3"):
        assert found.shares[name] == pytest.approx(part[name].value / whole[name].value, rel=1e-3)
    norms = np.square(table * root(v)).sum(axis=2).mean()
    of_small = np.square(table * root(v) * (v < floor)).sum(axis=2).mean()
    assert found.shares["E‖s‖²"] == pytest.approx(of_small / norms, rel=1e-4)


def test_the_plain_pool_is_the_one_without_a_metric(tiny, state):
    pools, path = pool_of(3), state[0]
    plain = score_pool(tiny, pools)
    other = score_pool(tiny, pools, optimizer=path).metrics["plain"]
    same(plain, replace(other, config=plain.config))
    assert (plain.metric, plain.metrics, metrics(plain)) == ("plain", {}, None)


def test_blocks_and_sketches(tiny, state):
    """Little memory gives equal numbers, and a sketch the same norms."""
    pools, path = pool_of(2), state[0]
    pool = score_pool(tiny, pools, optimizer=path, sketch=64)
    small = score_pool(tiny, pools, optimizer=path, sketch=64, memory=3 * 10**6)
    for name in ("scores", "other_norms", "plain_scores", "capped_scores"):
        np.testing.assert_allclose(getattr(small, name), getattr(pool, name), rtol=2e-4, atol=1e-3)
    assert [pool.scores.shape[2], pool.capped_scores.shape[2]] == [128, 64]
    exact = score_pool(tiny, pools, optimizer=path, sketch=WHOLE)
    np.testing.assert_array_equal(pool.squared_norms, exact.squared_norms)


def test_metrics_never_mix(tiny, state, tmp_path):
    """A folder keeps what was scored in each metric, and for each state of the optimizer."""
    pools, (path, _) = pool_of(2), state
    other, _ = saved(tiny.model, tmp_path / "other.pt", seed=5)
    made = {
        name: score_pool(tiny, pools, out=tmp_path / "out", optimizer=file)
        for name, file in (("none", None), ("one", path), ("other", other))
    }
    assert len({pool.squared_norms[0, 0] for pool in made.values()}) == 3
    assert len([*(tmp_path / "out" / "scored").iterdir()]) == 6
    states = {pool.config.get("metric", {}).get("state") for pool in made.values()}
    assert len(states) == 3
    read = ScoredPool.load(tmp_path / "out" / "scored.npz")
    same(read, made["other"])
    chosen = read.select_prompts([1]).select_rollouts([0, 2, 3, 4])
    np.testing.assert_array_equal(
        chosen.metrics["small"].scores[0], read.metrics["small"].scores[1, [0, 2, 3, 4]]
    )


def test_a_state_without_small_v(tiny, tmp_path):
    v = {name: torch.ones_like(p) for name, p in tiny.model.named_parameters()}
    torch.save(v, tmp_path / "v.pt")
    pool = score_pool(tiny, pool_of(3), optimizer=tmp_path / "v.pt")
    assert not pool.capped_scores.any()
    found = metrics(pool)
    assert (found.coordinates, {*found.shares.values()}) == (0.0, {0.0})
    values = [found.constants[name].c2.value for name in ("adam", "floored", "plain")]
    assert values == pytest.approx([values[0]] * 3, rel=1e-6)
    assert "0.0% of coordinates have less; they give 0% of E‖s‖²" in str(found)


REFUSED = {
    "missing": (lambda v: v.pop("model.norm.weight"), "has no exp_avg_sq of model.norm.weight"),
    "shape": (
        lambda v: v.update({"model.norm.weight": torch.ones(3)}),
        r"has shape \(3,\), and the parameter has \(16,\): this state is of another model",
    ),
    "zero": (lambda v: v["model.norm.weight"].zero_(), "of model.norm.weight is 0 everywhere"),
    "negative": (lambda v: v["model.norm.weight"].neg_(), "entries that are negative"),
    "nan": (lambda v: v["model.norm.weight"].fill_(float("nan")), "entries that are negative"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(tiny, tmp_path, case):
    change, message = REFUSED[case]
    v = {name: torch.ones_like(p) for name, p in tiny.model.named_parameters()}
    change(v)
    torch.save(v, tmp_path / "v.pt")
    refuses(message, Scores, tiny.model, optimizer=tmp_path / "v.pt")
    # Only what is scored must be there.
    Scores(tiny.model, optimizer=tmp_path / "v.pt", parameters="*q_proj*")


def test_a_step_without_bound(tiny, tmp_path):
    name = "model.norm.weight"
    v = torch.ones(16)
    v[3] = 0
    group = {"params": [name], "lr": 1.0, "eps": 0.0}
    state = {name: {"exp_avg_sq": v, "step": torch.tensor(5.0)}}
    torch.save({"state": state, "param_groups": [group]}, tmp_path / "v.pt")
    refuses("so the step has no bound", adam_metric, tmp_path / "v.pt", tiny.model, [name])
    state[name]["exp_avg_sq"][3] = 1
    torch.save({"state": state, "param_groups": [group]}, tmp_path / "v.pt")
    metric = adam_metric(tmp_path / "v.pt", tiny.model, [name])
    np.testing.assert_allclose(metric.root, (1 - 0.999**5) ** 0.25, rtol=1e-6)
