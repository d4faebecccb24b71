"""The gap after one step: against a loop over ordered groups, its draws, and what is refused."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tests.support.refusals import refuses
from ustat_pg.engines import Estimator, Gap, GapAfterStep, InfeasibleError, OneStep
from ustat_pg.policies import PrefixSoftmax
from ustat_pg.problems import digit_addition, modular_sum, random_problem

TASK = modular_sum(2, 2, end=True)
POLICY = PrefixSoftmax.random(TASK.space, TASK.contexts, seed=1)
PROBLEM = TASK.at(POLICY)
GRPO = GapAfterStep(Estimator("grpo"))


def by_hand(estimator, group_size, rate):
    """The mean gap after a step, over every group in its order."""
    total = 0.0
    for x, share in enumerate(PROBLEM.context_probs):
        probs, scores = PROBLEM.policy.probs[x], PROBLEM.policy.scores(x)
        rewards = TASK.rewards[x]
        for group in product(range(len(probs)), repeat=group_size):
            own = rewards[list(group)]
            others = (own.sum() - own) / (group_size - 1)
            advantages = own - (others if estimator == "grpo" else 0.0)
            estimate = (advantages[:, None] * scores[list(group)]).mean(axis=0)
            after = TASK.bandit(POLICY.with_theta(POLICY.theta + rate * estimate))
            total += share * np.prod(probs[list(group)]) * TASK.gap(after)
    return total


@pytest.mark.parametrize(("estimator", "group_size"), [("grpo", 2), ("vanilla", 2), ("grpo", 3)])
def test_it_is_the_mean_over_all_groups_and_draws_come_to_it(estimator, group_size):
    cell, asked = OneStep(PROBLEM, group_size, 2.0), [GapAfterStep(Estimator(estimator))]
    found = cell.measure("exact", asked).mean[0]
    assert found == pytest.approx(by_hand(estimator, group_size, 2.0), rel=1e-12)
    assert found != pytest.approx(TASK.gap(PROBLEM), rel=1e-2)
    drawn = cell.measure("reference", asked, replications=20_000)
    error = float(np.sqrt(drawn.covariance[0, 0] / drawn.n))
    assert abs(drawn.mean[0] - found) < 4 * error < 0.02
    low, high = cell.range(asked[0])
    assert low <= found <= high == TASK.optimum


def test_parts_of_a_block_are_the_block():
    cell, both = OneStep(PROBLEM, 2, 2.0, 3), [GRPO, GapAfterStep(Estimator("group-mean"))]
    whole = cell.measure("reference", both, replications=100)
    parts = [
        cell.measure("reference", both, first=first, replications=count)
        for first, count in ((0, 30), (30, 70))
    ]
    assert parts[0].merge(parts[1]).mean == pytest.approx(whole.mean, rel=1e-12)
    assert cell == OneStep(PROBLEM, 2, 2.0, 3)
    assert len({cell, OneStep(PROBLEM, 2, 2.5, 3), OneStep(PROBLEM, 2, 2.0)}) == 3


def test_what_is_no_step_is_refused():
    cell = OneStep(PROBLEM, 2, 2.0)
    refuses("these are drawn", OneStep, random_problem(0), 2, 1.0)
    refuses("no quantity of a OneStep", cell.measure, "exact", [Gap(Estimator("grpo"), 1)])
    refuses("2", OneStep(PROBLEM, 1, 1.0).measure, "exact", [GRPO])
    own = GapAfterStep(Estimator("own", function=lambda rewards, draws: rewards))
    refuses("one step cannot take own", cell.measure, "exact", [own])
    task = digit_addition(4, 1)
    large = task.at(PrefixSoftmax.random(task.space, task.contexts, seed=1))
    with pytest.raises(InfeasibleError, match="enumeration needs"):
        OneStep(large, 64, 1.0).measure("exact", [GRPO])
