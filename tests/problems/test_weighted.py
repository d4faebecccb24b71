"""Bandits whose estimates sum weighted scores."""

from itertools import product

import numpy as np
import pytest

from tests.support.refusals import refusals
from ustat_pg.engines import Estimator, GradientCell, SquaredError
from ustat_pg.estimators import advantages
from ustat_pg.predictions import weighted_mse
from ustat_pg.problems import WeightedBandit, random_problem


def weighted(seed=3, vectors=False):
    problem, rng = random_problem(seed, "binary", contexts=2), np.random.default_rng(seed)
    shape = (problem.contexts, problem.arms)
    if not vectors:
        return WeightedBandit.of(problem, rng.uniform(0.2, 2.0, shape))
    return WeightedBandit.of(problem, rng.normal(size=(*shape, 3)), rng.normal(size=(2, 3)))


def plain_error(problem, name, size):
    """E of the squared error of one prompt's group, outcome by outcome."""
    total, mean = 0.0, np.zeros(problem.d)
    target = problem.context_probs @ problem.targets
    for x in range(problem.contexts):
        one = problem.restrict([x]).outcomes
        for chosen in product(range(one.counts[0]), repeat=size):
            chance = problem.context_probs[x] * np.prod(one.probs[0, list(chosen)])
            weights = advantages(name, one.rewards[0, list(chosen)])
            estimate = weights @ problem.policy.scores(x)[one.arms[0, list(chosen)]] / size
            total, mean = (
                total + chance * ((estimate - target) ** 2).sum(),
                mean + chance * estimate,
            )
    return total, mean


@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize("name", ["vanilla", "grpo", "std", "maxrl"])
def test_the_closed_form_is_the_sum_over_all_groups(name, vectors):
    problem = weighted(vectors=vectors)
    for size in (2, 3):
        result = weighted_mse(problem.weighted_outcomes(), name, size)
        error, mean = plain_error(problem, name, size)
        assert result.mse == pytest.approx(error, rel=1e-12)
        assert result.mean == pytest.approx(mean, rel=1e-12)
        assert problem.context_probs @ result.means == pytest.approx(mean, rel=1e-12)
        assert result.mse == pytest.approx(result.variance + result.squared_bias)


def test_a_group_of_one_and_several_prompts():
    problem = weighted()
    for size, batch in ((1, 1), (2, 2)):
        cell = GradientCell(problem, size, batch)
        exact = cell.measure("exact", [SquaredError(Estimator("vanilla"))]).mean[0]
        result = weighted_mse(problem.weighted_outcomes(), "vanilla", size, batch)
        assert result.mse == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_engines_draw_weighted_scores(engine):
    cell, asked = GradientCell(weighted(vectors=True), 4), [SquaredError(Estimator("std"))]
    exact = cell.measure("exact", asked).mean[0]
    drawn = cell.measure(engine, asked, replications=20_000)
    assert abs(drawn.mean[0] - exact) < 5 * (drawn.covariance[0, 0] / drawn.n) ** 0.5


def test_some_contexts():
    rng = np.random.default_rng(1)
    wide = WeightedBandit.of(
        random_problem(3, "binary", contexts=2),
        rng.normal(size=(2, 4, 40)),
        rng.normal(size=(2, 40)),
    )
    assert wide.restrict([1]).gradient() == pytest.approx(wide.targets[1])


PROBLEM = random_problem(3, "binary", contexts=2)
GRADED = random_problem(1, "negative-rewards", contexts=2)

test_what_is_refused = refusals(
    (lambda: WeightedBandit.of(PROBLEM, np.ones((2, 3))), r"weights have shape \(2, 3\)"),
    (lambda: WeightedBandit.of(PROBLEM, np.ones((2, 4)), np.ones((2, 5))), "targets have shape"),
    (lambda: weighted().moments(), "no moments of scores"),
    (lambda: weighted().with_theta(np.zeros(weighted().d)), "only at their own parameters"),
    (
        lambda: WeightedBandit.of(GRADED, np.ones((2, GRADED.arms))).weighted_outcomes(),
        "not all 0 or 1",
    ),
)


def test_weighted_scores_are_no_gradients_of_a_network():
    """Claims on networks that ask for them beside gradients run on any engine."""
    for problem, engine in ((weighted(), "cpu"), (random_problem(0), "autograd")):
        assert GradientCell(problem, 2).engine("autograd") == engine
