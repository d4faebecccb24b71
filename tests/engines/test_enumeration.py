"""Enumerated means and errors against plain loops over ordered minibatches, and against closed forms."""

import itertools
import math

import numpy as np
import pytest

from tests.support.advantages import batch_normalised, neighbour
from tests.support.refusals import refusals
from ustat_pg.engines import (
    Estimator,
    GradientCell,
    SquaredError,
    enumerate_mean,
    enumerate_mse,
    enumerate_weights,
)
from ustat_pg.predictions import gradient_mse
from ustat_pg.problems import SoftmaxBandit

TWO = SoftmaxBandit.bernoulli([[0.6, 0.4], [0.2, 0.8]], [[1, 0], [1, 0]])
UNEQUAL = SoftmaxBandit.from_probs([[0.6, 0.4], [0.2, 0.8]], [[1, 0], [2, -1]], [0.3, 0.7])


def by_loops(problem, function, size, batch):
    """Weights, mean and MSE of prompts drawn independently, with groups in every order."""
    rolls = [
        (
            problem.context_probs[x],
            x,
            list(zip(*(column[:count] for column in columns), strict=True)),
        )
        for x, (count, *columns) in enumerate(
            zip(
                problem.outcomes.counts,
                problem.outcomes.probs,
                problem.outcomes.arms,
                problem.outcomes.rewards,
                strict=True,
            )
        )
    ]
    weights, mse = np.zeros((problem.contexts, problem.arms)), 0.0
    groups = [(rho, x, g) for rho, x, one in rolls for g in itertools.product(one, repeat=size)]
    for minibatch in itertools.product(groups, repeat=batch):
        chance = math.prod(rho * math.prod(p for p, _, _ in g) for rho, _, g in minibatch)
        advantages = function(np.array([[z for _, _, z in g] for _, _, g in minibatch]))
        estimate = np.zeros(problem.d)
        for (_, x, group), row in zip(minibatch, advantages, strict=True):
            for (_, arm, _), advantage in zip(group, row, strict=True):
                weights[x, arm] += chance * advantage / (size * batch)
                estimate += problem.policy.scores(x)[arm] * advantage / (size * batch)
        mse += chance * float(np.sum((estimate - problem.gradient()) ** 2))
    mean = sum(problem.policy.scores(x).T @ row for x, row in enumerate(weights))
    return weights, mean, mse


@pytest.mark.parametrize(
    "function", [neighbour, batch_normalised], ids=["by order", "over prompts"]
)
@pytest.mark.parametrize("problem", [TWO, UNEQUAL], ids=["two", "unequal"])
def test_a_function_of_the_ordered_minibatch_matches_loops(problem, function):
    mine = Estimator("mine", function=lambda z, draws: np.stack([function(one) for one in z]))
    weights, mean, mse = by_loops(problem, function, 2, 2)
    np.testing.assert_allclose(enumerate_weights(problem, mine, 2, 2), weights, atol=1e-14)
    np.testing.assert_allclose(enumerate_mean(problem, mine, 2, 2), mean, atol=1e-14)
    found = enumerate_mse(problem, mine, 2, 2)
    np.testing.assert_allclose(found.mean, mean, atol=1e-14)
    assert found.mse == pytest.approx(mse, rel=1e-12)
    bias = np.sum((mean - problem.gradient()) ** 2)
    assert found.squared_bias == pytest.approx(bias, rel=1e-12, abs=1e-24)
    assert found.noise_to_signal == pytest.approx((mse - bias) / (mean @ mean), rel=1e-12)
    assert found.prompt_term is found.first_order_term is found.mean_factor is None


@pytest.mark.parametrize("name", ["norm-weighted", "std", "maxrl"])
def test_prompts_one_at_a_time_have_the_error_of_prompts_together(name):
    together = GradientCell(UNEQUAL, 3, 2).measure("exact", [SquaredError(Estimator(name))])
    assert enumerate_mse(UNEQUAL, name, 3, 2).mse == pytest.approx(together.mean[0], rel=1e-12)


def test_estimators_with_numbers_of_their_own():
    for mine, words in (
        (Estimator("constant", 0.3), {"constant": 0.3}),
        (Estimator("critic", values=(0.5, -1.0)), {"critic": [0.5, -1.0]}),
    ):
        known = gradient_mse(UNEQUAL, mine.name, 3, 2, **words)
        assert enumerate_mse(UNEQUAL, mine, 3, 2).mse == pytest.approx(known.mse, rel=1e-12)


def test_a_prompt_without_a_gradient_has_a_factor_of_one():
    problem = SoftmaxBandit.from_probs([[0.3, 0.7], [0.2, 0.8]], [[0.1, 0.1], [1, 0]])
    assert enumerate_mse(problem, "std", 3).mean_factor[0] == 1.0


test_refused = refusals(
    (lambda: enumerate_mse(3, "grpo", 2), "problem is 3: it must be a SoftmaxBandit"),
    (lambda: enumerate_mse(TWO, "grpo", 1), "needs a group of at least 2"),
    (lambda: enumerate_mse(TWO, "best", 2), "engines have no best"),
    (lambda: enumerate_mse(TWO, "rlooo", 2), "did you mean rloo"),
    (lambda: enumerate_mse(TWO, "grpo", 2, 0), "batch size is 0"),
    (lambda: enumerate_mean(TWO, "grpo", 2, 3, "fixed"), "fixed"),
    (lambda: enumerate_mean(UNEQUAL, "grpo", 2, 2, "fixed"), "equally likely|uniform|equal"),
    (
        lambda: enumerate_mse(TWO, "grpo", 10**6),
        "a smaller group or batch, or a problem with fewer",
    ),
    (lambda: gradient_mse(UNEQUAL, "norm-weighted", 2), "call ustat_pg.engines.enumerate_mse"),
    (lambda: gradient_mse(UNEQUAL, "std", 2), "and are not; call ustat_pg.engines.enumerate_mse"),
)
