"""Bandits in a metric, against enumeration of the weighed squared error, and what is refused."""

from itertools import product

import numpy as np
import pytest

from tests.support.refusals import refuses
from ustat_pg.engines import enumerate_mse
from ustat_pg.estimators import grpo
from ustat_pg.predictions import gradient_mse
from ustat_pg.problems import WeightedBandit, in_metric, named_problem, random_problem

FEATURES = named_problem("features").problem


def by_hand(problem, metric, size):
    """E (ĝ-g)ᵀ P (ĝ-g) of one prompt's group, group by group."""
    total, target = 0.0, problem.gradient()
    for x in range(problem.contexts):
        one = problem.restrict([x]).outcomes
        for chosen in product(range(one.counts[0]), repeat=size):
            chosen = list(chosen)
            scores = problem.policy.scores(x)[one.arms[0, chosen]]
            off = grpo(one.rewards[0, chosen]) @ scores / size - target
            chance = problem.context_probs[x] * np.prod(one.probs[0, chosen])
            total += chance * off @ metric @ off
    return total


@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize("problem", [FEATURES, random_problem(3, "binary", contexts=2)])
def test_errors_in_a_metric_are_weighed_errors(problem, diagonal):
    rng = np.random.default_rng(0)
    root = rng.normal(size=(problem.d, problem.d))
    metric = np.diag(rng.exponential(size=problem.d) ** 3) if diagonal else root @ root.T
    seen = in_metric(problem, metric.diagonal() if diagonal else metric)
    wanted = by_hand(problem, metric, 3)
    assert gradient_mse(seen, "grpo", 3).mse == pytest.approx(wanted, rel=1e-9)
    assert enumerate_mse(seen, "grpo", 3).mse == pytest.approx(wanted, rel=1e-9)
    length = problem.gradient() @ metric @ problem.gradient()
    assert seen.moments().mean_gradient_sq == pytest.approx(length, rel=1e-9)


def test_a_parameter_of_no_weight_drops_out():
    first = np.eye(5)[0]
    for metric in (first, np.diag(first)):
        seen = in_metric(FEATURES, metric).gradient()
        assert seen == pytest.approx(FEATURES.gradient() * first, abs=1e-12)


def test_refusals():
    refuses("metric has shape .3,.: it must be", in_metric, FEATURES, [1, 1, 1])
    refuses(
        "metric differs from its transpose by 1", in_metric, FEATURES, np.eye(5) + np.eye(5, k=1)
    )
    for metric in ([1, 1, 1, 1, -1], np.diag([1, 1, 1, 1, -1])):
        refuses("metric has the eigenvalue -1: none may be negative", in_metric, FEATURES, metric)
    weighted = WeightedBandit.of(FEATURES, np.ones((4, FEATURES.arms)))
    refuses("weighted scores: give the problem before", in_metric, weighted, np.ones(5))
