"""Plans of sampling on a pool: by all orders of its rollouts, and beside its constants."""

from itertools import permutations

import numpy as np
import pytest

from ustat_pg.estimators import sequential
from ustat_pg.inference import Means, ratio_interval
from ustat_pg.llm.pool.constants import constants
from ustat_pg.llm.pool.moments import prompt_moments
from ustat_pg.llm.pool.plans import adaptive_pool_advice, plan_costs
from ustat_pg.llm.pool.scored import ScoredPool
from ustat_pg.moments.record import Moments
from ustat_pg.predictions.adaptive import known_rates_bound, two_stage_plans
from ustat_pg.sampling.plans import Plan

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


def random_pool(prompts, rollouts):
    rng = np.random.default_rng(3)
    rates = rng.beta(0.6, 0.6, size=(prompts, 1))
    rewards = (rng.random((prompts, rollouts)) < rates).astype(float)
    scores = rng.normal(size=(prompts, rollouts, 6)) + 0.6 * (rewards - rates)[..., None]
    return ScoredPool.from_scores(rewards, scores)


@pytest.mark.parametrize("stage_cost", [0.0, 3.0])
def test_advice_of_a_pool(stage_cost):
    """The least of all costs, the ratio's interval by deleting prompts, and the bound of eight classes."""
    pool, every = random_pool(12, 6), list(range(12))
    plans = [Plan.parse(size) for size in range(2, 7)], two_stage_plans(5, 6)
    (fixed, staged) = (plan_costs(pool, own, stage_cost) for own in plans)
    best, second = (int(np.argmin([cost.full[0] for cost in own])) for own, _ in (fixed, staged))
    pair = [plans[1][second], plans[0][best]]

    def costs(chosen):
        return [
            cost.full[0] for cost in plan_costs(pool.select_prompts(chosen), pair, stage_cost)[0]
        ]

    without = [costs([y for y in every if y != x]) for x in every]
    low, high = ratio_interval(Means(np.array(costs(every)), np.array(without)))
    advice = adaptive_pool_advice(pool, stage_cost=stage_cost)
    assert (advice.group_size, advice.plan) == (best + 2, plans[1][second].text)
    assert advice.plan_size == pytest.approx(staged[1][second])
    least = fixed[0][best].full[0]
    assert advice.plan_ratio == pytest.approx(staged[0][second].full[0] / least)
    assert advice.plan_interval == pytest.approx((low, high))
    # Prompts by their pass rates, in eight classes: the first four have one more.
    moments = prompt_moments(pool)
    classes = np.array_split(np.argsort(moments.value, kind="stable"), 8)
    assert [len(part) for part in classes] == [2] * 4 + [1] * 4

    def mean(values):
        return np.array([values[part].mean() for part in classes])

    sketches, both = pool.gradients, list(permutations(every, 2))
    known = Moments(
        context_probs=np.array([len(part) / 12 for part in classes]),
        value=mean(moments.value),
        reward_variance=np.maximum(mean(moments.variance_trace), 0) / mean(moments.fisher_trace),
        fisher_trace=mean(moments.fisher_trace),
        norm_advantage=np.zeros(8),
        norm_squared_advantage=np.maximum(mean(moments.norm_squared_advantage), 0),
        gradient_sq=np.maximum(mean(moments.gradient_sq), 0),
        mean_gradient_sq=max(np.mean([sketches[x] @ sketches[y] for x, y in both]), 0),
        reward_range=(0.0, 1.0),
    )
    assert advice.bound_ratio == pytest.approx(known_rates_bound(known, 6)[0] / least)
    assert f"a fixed group of {advice.group_size}" in str(advice).lower()
