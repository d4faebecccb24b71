"""Plans of sampling on a pool: by all orders of its rollouts, and beside its constants."""

from itertools import permutations

import numpy as np
import pytest

from ustat_pg.estimators import sequential
from ustat_pg.llm.constants import constants
from ustat_pg.llm.plans import adaptive_pool_advice, plan_costs
from ustat_pg.llm.pool import ScoredPool
from ustat_pg.sampling import Plan

REWARDS = np.array([[1, 0, 0, 0, 1], [0, 1, 1, 0, 1], [1, 1, 1, 1, 0], [0, 0, 0, 0, 0]], float)
SCORES = np.random.default_rng(0).normal(size=(4, 5, 3))
POOL = ScoredPool.from_scores(REWARDS, SCORES)


def by_all_orders(plan):
    """The mean of ‖ĝ‖² and of the size over every order of each prompt's rollouts."""
    squares, sizes = [], []
    for rewards, scores in zip(REWARDS, SCORES, strict=True):
        for order in map(list, permutations(range(5))):
            z = rewards[order]
            size = next(
                (
                    look
                    for look, chances in zip(plan.looks, plan.go_on, strict=False)
                    if not chances[int(z[:look].sum())]
                ),
                plan.looks[-1],
            )
            estimate = sequential(z[:size], plan=plan) @ scores[order[:size]] / size
            squares.append(estimate @ estimate)
            sizes.append(size)
    return np.mean(squares), np.mean(sizes)


@pytest.mark.parametrize("words", ["4", "3+2 if mixed", "2,3,5 until 1 success and 1 failure"])
def test_second_moments_are_those_of_all_orders(words):
    plan = Plan.parse(words)
    (cost,), (size,) = plan_costs(POOL, [plan])
    square, outputs = by_all_orders(plan)
    signal = constants(POOL).gradient_sq
    assert size == pytest.approx(outputs)
    assert cost.full[0] == pytest.approx(outputs * (square - signal))


def test_a_stage_that_costs():
    plan = Plan.parse("3+2 if mixed")
    free, _ = plan_costs(POOL, [plan])
    _, (size,) = plan_costs(POOL, [plan], 2.0)
    _, outputs = by_all_orders(plan)
    assert size == pytest.approx(outputs + 2.0 * (outputs - 3) / 2)
    assert free[0].full[0] > 0


def test_advice_of_a_pool():
    rng = np.random.default_rng(3)
    rates = rng.beta(0.3, 0.3, size=(60, 1))
    rewards = (rng.random((60, 24)) < rates).astype(float)
    scores = rng.normal(size=(60, 24, 6)) + 0.6 * (rewards - rates)[..., None]
    advice = adaptive_pool_advice(ScoredPool.from_scores(rewards, scores))
    low, high = advice.plan_interval
    assert low <= advice.plan_ratio <= high
    assert advice.bound_ratio < 1
    assert advice.plan.endswith("if mixed")
    assert str(advice).endswith(advice.sentence())
