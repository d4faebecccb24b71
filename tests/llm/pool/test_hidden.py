"""What rests on the gradients of prompts has no upper end where too few prompts show one."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest

from ustat_pg.llm.pool.estimates import constants, curves, oracle_ratio, ordering, summary
from ustat_pg.llm.pool.scored import ScoredPool
from ustat_pg.predictions import gradient_mse, mse_constants
from ustat_pg.problems import SoftmaxBandit


def nearly_solved(prompts, rate):
    """One output in six is wrong, seldom drawn, and of a long score."""
    rng = np.random.default_rng(3)
    features = rng.normal(size=(prompts, 6, 5))
    features[:, 0] += 1.0
    rewards = np.ones((prompts, 6, 1))
    rewards[:, 0] = 0.0
    right = rate * rng.dirichlet(np.full(5, 2.0), size=prompts)
    logits = np.log(np.column_stack([np.full(prompts, 1 - rate), right]))
    even = np.full(prompts, 1 / prompts)
    return SoftmaxBandit.linear(
        even, features, np.zeros(5), rewards, np.ones_like(rewards), offset=logits
    )


@pytest.mark.parametrize(("rate", "prompts"), [(0.98, 60), (0.99, 100), (0.95, 20)])
def test_nearly_solved_prompts_hide_no_value_above_an_interval(rate, prompts):
    """Pools of 8 rollouts; the exact value lies above few upper ends (half of them without the rule)."""
    problem = nearly_solved(200, rate)
    moments = problem.moments()
    square = float(moments.context_probs @ moments.gradient_sq)
    errors = [gradient_mse(moments, name, 4).mse - mse_constants(moments).c1 for name in NAMES]
    above, counted = np.zeros(4), 0
    for seed in range(60):
        drawn = problem.sample(np.random.default_rng([5, seed]), 8, prompts)
        if not np.ptp(drawn.rewards, axis=1).any():
            continue
        pool = ScoredPool.from_scores(drawn.rewards, drawn.scores)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            table = summary(pool).set_index("name")
            (pair,) = (
                row for row in ordering(pool, 4).itertuples() if (row.first, row.second) == NAMES
            )
            ratio = oracle_ratio(pool, [4])["high"].iloc[0]
        above += [
            constants(pool).c3.high < mse_constants(moments).c3,
            table.loc["gradient_sq", "high"] < square,
            ratio < errors[0] / errors[1],
            pair.high < errors[0] - errors[1],
        ]
        counted += 1
    assert counted > 40
    assert (above <= 0.1 * counted).all()


NAMES = ("grpo", "oracle")


def test_where_enough_prompts_show_it_ends_are_known():
    rng = np.random.default_rng(0)
    z = rng.integers(0, 2, (40, 8)).astype(float)
    pool = ScoredPool.from_scores(z, rng.normal(size=(40, 8, 4)))
    assert math.isfinite(constants(pool).c3.high)
    assert np.isfinite(summary(pool).set_index("name").loc["gradient_sq", "high"])
    z[2:], z[:2, 2:] = 0.0, 0.0
    hidden = ScoredPool.from_scores(z, rng.normal(size=(40, 8, 4)))
    assert constants(hidden).not_known.keys() >= {"c1", "c3"}
    assert summary(hidden).set_index("name").loc["gradient_sq", "high"] == math.inf
    turned = ordering(hidden, 4, ["oracle", "grpo"])
    assert turned["low"].tolist() == [-math.inf]


def test_one_prompt_of_far_longer_scores_says_that_others_may_be_unseen():
    rng = np.random.default_rng(1)
    z, scores = rng.integers(0, 2, (40, 8)).astype(float), rng.normal(size=(40, 8, 4))
    names = tuple(f"number {place}" for place in range(40))
    usual = replace(ScoredPool.from_scores(z, scores), prompts=names)
    scores[7] *= 6
    long = replace(ScoredPool.from_scores(z, scores), prompts=names)
    scores[[5, 9, 11]] *= 6
    several = replace(ScoredPool.from_scores(z, scores), prompts=names)
    for pool, seen in ((usual, True), (several, True), (long, False)):
        found = constants(pool)
        said = [each for each in found.not_known.values() if "'number 7' alone has" in each]
        assert bool(said) != seen
        if not seen:
            assert found.not_known.keys() >= {"c1", "c2", "c3", "vanilla"}
            assert {found.c1.high, found.c2.high, found.c3.high} == {math.inf}
            assert np.isinf(curves(pool, [2, 4])["high"]).all()
            assert summary(pool).set_index("name").loc["gradient_sq", "high"] == math.inf
