"""Closed forms at their edges, and what they refuse.

That they agree with enumeration, in every design, is in ``tests/test_independent.py`` and
``tests/test_independent_tables.py``; claims refute an error planted in every term.
"""

import json
import math

import numpy as np
import pytest

from tests.support.moments import record
from tests.support.refusals import refusals, refuses
from ustat_pg.engines import enumerate_mse
from ustat_pg.policies import ArmLinearSoftmax
from ustat_pg.predictions import (
    critic_excess,
    gradient_covariance,
    gradient_mse,
    learned_values,
    mse_constants,
    oracle_ratio,
    plan_mse,
    turn_mean,
)
from ustat_pg.problems import (
    SoftmaxBandit,
    example_problem,
    load_problem,
    named_problem,
    problem_from_mapping,
    random_problem,
)

TWO = record()


def test_the_ratio_is_infinite_where_the_oracle_alone_has_no_error():
    coin = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    assert oracle_ratio(coin.moments(), 2) == math.inf
    assert oracle_ratio(coin.moments(), 1000) == math.inf


def test_the_ratio_is_nan_where_no_one_errs():
    sure = SoftmaxBandit.tabular([1.0], [[0.0, 1.0]], [[[0.5], [0.5]]], [[[1.0], [1.0]]])
    assert math.isnan(oracle_ratio(sure.moments(), 2))


@pytest.mark.parametrize("seed", range(20))
def test_rounding_gives_equal_rewards_no_ratio(seed):
    """No estimator with a mean as baseline errs here, whatever number the reward is."""
    moments = random_problem(seed, "equal-rewards").moments()
    assert gradient_mse(moments, "oracle", 4).mse < 1e-30
    assert math.isnan(oracle_ratio(moments, 4))


@pytest.mark.parametrize("function", [gradient_mse, gradient_covariance])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"estimator": "grpo", "group_size": 1}, "needs a group of at least 2: group size is 1"),
        ({"estimator": "norm-weighted"}, "norm-weighted has no closed form"),
        ({"estimator": "ppo"}, "estimator 'ppo' is unknown: choose one of vanilla"),
        (
            {"estimator": "grpo", "design": "random"},
            "design 'random' is unknown: choose one of iid",
        ),
        (
            {"estimator": "constant"},
            "constant is not given: the estimator constant subtracts a number",
        ),
        (
            {"estimator": "grpo", "constant": 0.5},
            "constant is given, which the estimator grpo does not",
        ),
        ({"estimator": "critic"}, "critic is not given: .*one for each context"),
        ({"estimator": "critic", "critic": [0.0, 0.0]}, "predicted values have 2 entries"),
    ],
)
def test_refused(function, arguments, message):
    moments = random_problem(0, "uniform-contexts").moments()
    refuses(message, function, moments, **({"group_size": 4} | arguments))


SIZES = np.array([[2, 3, 8], [4, 5, 16]])


@pytest.mark.parametrize(
    "estimator", ["grpo", "group-mean", "oracle", "std", "maxrl", "bayes:1,1", "best"]
)
@pytest.mark.parametrize(("sizes", "batches"), [([2, 4, 8], 1), (SIZES, [1, 2, 7]), (4, (1, 3))])
def test_sizes_broadcast(estimator, sizes, batches):
    problem = named_problem("uneven").problem
    all_of = gradient_mse(problem, estimator, sizes, batches)
    covariances = gradient_covariance(problem, estimator, sizes, batches)
    shape = np.broadcast_shapes(np.shape(sizes), np.shape(batches))
    assert covariances.shape == (*shape, problem.d, problem.d)
    groups, prompts = (np.broadcast_to(given, shape) for given in (sizes, batches))
    for place in np.ndindex(shape):
        pair = int(groups[place]), int(prompts[place])
        one = gradient_mse(problem.moments(), estimator, *pair)
        for name, value in vars(one).items():
            found = getattr(all_of, name)
            assert found.shape == (*shape, *np.shape(value))
            if name == "table":
                assert (found[place] is None) == (value is None)
                assert value is None or found[place].baseline.tolist() == value.baseline.tolist()
            else:
                # None is NaN.
                same = np.array(value, dtype=float)
                assert np.array_equal(found[place], same, equal_nan=True), name
        assert np.array_equal(
            covariances[place], gradient_covariance(problem.moments(), estimator, *pair)
        )


@pytest.mark.parametrize("function", [gradient_mse, gradient_covariance])
@pytest.mark.parametrize(
    ("sizes", "batches", "message"),
    [
        ([4, 1], 1, r"needs a group of at least 2: group size is 1, at \[1\]"),
        ([[2], [2.5]], [1, 2], r"group size is 2.5: .*, at \[1, 0\]"),
        ([2, 4], [1, 0], r"batch size is 0: .* at least 1, at \[1\]"),
        ([2, 4.0], 1, r"group size is 4.0: it must be a whole number of at least 1, at \[1\]"),
        ([[2], [3, 4]], 1, r"group size is \[2\]: it must be a whole number"),
        (
            [2, 3],
            [1, 2, 3],
            r"group size has shape \(2,\) and batch size \(3,\): they do not broadcast",
        ),
        ([], 1, "is empty: give at least one"),
        ({2, 4}, 1, r"group size is \{2, 4\}: it must be a whole number of at least 1$"),
    ],
)
def test_sizes_that_are_refused(function, sizes, batches, message):
    refuses(message, function, named_problem("uneven").problem, "grpo", sizes, batches)


test_learning_and_covariances_that_are_refused = refusals(
    (lambda: learned_values(TWO, 3, 0.0), "step size is 0.0: it must be positive and at most 1"),
    (lambda: critic_excess(TWO, TWO.value, 2, variance=[-1.0, 0.0]), "must be at least 0"),
    (lambda: critic_excess(TWO, TWO.value, 2, variance=[1.0]), r"one per context \(2\)"),
    (lambda: gradient_covariance(TWO, "grpo", 4), "only traces"),
)


def test_a_gradient_that_only_rounding_keeps_from_0_has_no_noise_over_signal():
    """Two prompts of weights .6 and .4 that pull by .2 and -.3, and rewards that are all alike."""
    policy = ArmLinearSoftmax([[[1.1], [-0.3]]] * 2, [0.7])
    for values in ([[0.8, 0.6], [0.4, 0.7]], [[0.7, 0.7], [0.7, 0.7]]):
        rewards = np.array(values)[..., None]
        problem = SoftmaxBandit(policy, [0.6, 0.4], rewards, np.ones_like(rewards))
        for found in (gradient_mse(problem, "vanilla", 3), enumerate_mse(problem, "vanilla", 3)):
            assert found.mse > 0
            assert (found.noise_to_signal, found.cosine, found.squared_bias) == (None, None, 0.0)
    # Pulls of .15 and .25 against .4: in doubles they leave 1e-17.
    policy = ArmLinearSoftmax([[[1.1], [-0.3]]] * 4, [0.7])
    rewards = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])[..., None]
    problem = SoftmaxBandit(policy, [0.15, 0.25, 0.4, 0.2], rewards, np.ones_like(rewards))
    plan = plan_mse(problem, "3", "vanilla")
    assert plan.mse > 0
    assert (plan.noise_to_signal, plan.cosine, plan.critical_budget) == (None, None, None)


def test_a_problem_may_be_given_as_compare_takes_it(tmp_path):
    """By name, as named arrays, or as a file; and the text of its moments has no problem in it."""
    problem = load_problem("ustat:uneven")
    arrays = example_problem()
    (tmp_path / "mine.json").write_text(json.dumps(arrays))
    own = gradient_mse(problem_from_mapping(arrays), "grpo", 4).mse
    assert gradient_mse(arrays, "grpo", 4).mse == own
    assert gradient_mse(tmp_path / "mine.json", "grpo", 4).mse == own
    assert gradient_mse("ustat:uneven", "grpo", 4).mse == gradient_mse(problem, "grpo", 4).mse
    whole = mse_constants(problem)
    assert mse_constants("ustat:uneven") == whole
    assert turn_mean("ustat:tool", "episode", 1, lone="zero").multiple == 0.0
    refuses("did you mean ustat:uneven", gradient_mse, "ustat:unevn", "grpo", 4)
    assert "Softmax" not in repr(problem.moments())
