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


def by_all_orders(plan, stage_cost):
    """The mean of ‖ĝ‖² and of the cost in outputs over every order of each prompt's rollouts."""
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
            sizes.append(size + stage_cost * (size > plan.looks[0]))
    return np.mean(squares), np.mean(sizes)


@pytest.mark.parametrize("stage_cost", [0.0, 2.0])
@pytest.mark.parametrize("words", ["4", "3+2 if mixed", "2,3,5 until 1 success and 1 failure"])
def test_costs_are_those_of_all_orders(words, stage_cost):
    plan = Plan.parse(words)
    (cost,), (size,) = plan_costs(POOL, [plan], stage_cost)
    square, outputs = by_all_orders(plan, stage_cost)
    assert size == pytest.approx(outputs)
    assert cost.full[0] == pytest.approx(outputs * (square - constants(POOL).signal.value))


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
    assert f"a fixed group of {advice.group_size}" in str(advice).lower()
