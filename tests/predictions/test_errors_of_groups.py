"""Errors of minibatches in closed form against every group of three outputs of a small problem."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest

from ustat_pg.estimators import advantages
from ustat_pg.predictions import (
    best_shrinkage,
    best_table,
    count_table,
    frac_reward_zero_std,
    gradient_mse,
    mean_gradient,
)
from ustat_pg.problems import SoftmaxBandit

SIZE = 3
REWARDS = [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 0.0, 1.0]]
LOGITS = [[0.4, -0.3, 0.1], [0.0, 0.9, -1.6], [0.2, 0.3, -0.7]]


def bandit(context_probs):
    values = np.array(REWARDS)[..., None]
    return SoftmaxBandit.tabular(context_probs, LOGITS, values, np.ones(values.shape))


EVEN, UNEVEN = bandit([1 / 3] * 3), bandit([0.5, 0.2, 0.3])
MOMENTS = UNEVEN.moments()
CRITIC = [0.3, 0.9, 0.1]
OF_PROMPT = {
    "vanilla": lambda x: 0.0,
    "constant": lambda x: 0.35,
    "oracle": lambda x: MOMENTS.value[x],
    "minimum-variance": lambda x: MOMENTS.optimal_baseline[x],
    "critic": lambda x: CRITIC[x],
}
GIVEN = {"constant": {"constant": 0.35}, "critic": {"critic": CRITIC}}
BY_COUNT = (
    *("grpo", "group-mean", "std", "std-ddof1", "others-std", "maxrl", "pass-at-k:2"),
    *("shrinkage:0.3,0.4", "bayes:1,0.5", "loo-table:0.2,0.3,0.6"),
    "count-table:0.9,0.8,0.6,-0.1,-0.2,-0.6",
)


def weigh(name, x, rewards):
    if name in OF_PROMPT:
        return rewards - OF_PROMPT[name](x)
    if name == "best":
        return advantages(best_table(MOMENTS, SIZE).spec, rewards)
    return advantages(name, rewards)


@cache
def of_groups(name, problem=UNEVEN):
    """The mean estimate (X, d) and E‖ĝ‖² (X,) of one prompt's group, over every group."""
    means, squares = [], []
    for x in range(3):
        probs, scores, rewards = (
            problem.policy.probs[x],
            problem.policy.scores(x),
            np.array(REWARDS[x]),
        )
        mean, square = 0.0, 0.0
        for arms in map(list, product(range(3), repeat=SIZE)):
            chance = probs[arms].prod()
            estimate = weigh(name, x, rewards[arms]) @ scores[arms] / SIZE
            mean, square = mean + chance * estimate, square + chance * estimate @ estimate
        means.append(mean)
        squares.append(square)
    return np.array(means), np.array(squares)


def errors(problem, name, batch, design):
    """The mean (d,), the variance, and the error of a minibatch."""
    means, squares = of_groups(name, problem)
    law = problem.context_probs
    mean = law @ means
    within = law @ (squares - (means**2).sum(axis=1))
    between = law @ (means**2).sum(axis=1) - mean @ mean
    factor = {"iid": 1.0, "fixed": 0.0, "without-replacement": (3 - batch) / 2}[design]
    variance = (within + factor * between) / batch
    off = mean - problem.gradient()
    return mean, variance, variance + off @ off


@pytest.mark.parametrize("name", [*OF_PROMPT, *BY_COUNT, "best"])
@pytest.mark.parametrize("batch", [1, 4])
def test_independent_prompts(name, batch):
    result = gradient_mse(UNEVEN, name, SIZE, batch, **GIVEN.get(name, {}))
    mean, variance, error = errors(UNEVEN, name, batch, "iid")
    gradient = UNEVEN.gradient()
    assert result.mse == pytest.approx(error, rel=1e-10)
    parts = (result.prompt_term, result.first_order_term, result.second_order_term)
    assert sum(parts) == pytest.approx(variance, rel=1e-10)
    assert result.squared_bias == pytest.approx(error - variance, abs=1e-12)
    assert result.noise_to_signal == pytest.approx(variance / (mean @ mean), rel=1e-9)
    cosine = mean @ gradient / np.sqrt(mean @ mean * (gradient @ gradient))
    assert result.cosine == pytest.approx(cosine, rel=1e-12)
    means, _ = of_groups(name)
    gradients, _ = of_groups("oracle")
    np.testing.assert_allclose(means, result.mean_factor[:, None] * gradients, atol=1e-13)
    for other, found in (("oracle", result.oracle_mse), ("vanilla", result.vanilla_mse)):
        assert found == pytest.approx(errors(UNEVEN, other, batch, "iid")[2], rel=1e-10)
    assert (result.paper_bound is None) == (name != "grpo")
    assert (result.table is None) == (name in OF_PROMPT or name in ("grpo", "group-mean"))


@pytest.mark.parametrize("name", ["grpo", "group-mean", "std", "vanilla"])
@pytest.mark.parametrize(
    ("design", "batch"),
    [
        ("fixed", 3),
        ("without-replacement", 1),
        ("without-replacement", 2),
        ("without-replacement", 3),
    ],
)
def test_designs(name, design, batch):
    result = gradient_mse(EVEN, name, SIZE, batch, design)
    assert result.mse == pytest.approx(errors(EVEN, name, batch, design)[2], rel=1e-10)


@pytest.mark.parametrize("name", BY_COUNT)
def test_tables(name):
    table = count_table(name, SIZE)
    means, squares = of_groups(name)
    np.testing.assert_allclose(table.second_moments(MOMENTS), squares, rtol=1e-10)
    matrices = [matrix for matrix, _ in table.second_moment_matrices(MOMENTS)]
    np.testing.assert_allclose(np.trace(matrices, axis1=1, axis2=2), squares, rtol=1e-10)
    expected = UNEVEN.context_probs @ means
    np.testing.assert_allclose(mean_gradient(UNEVEN, name, SIZE), expected, atol=1e-14)
    again = count_table(table.spec, SIZE)
    np.testing.assert_array_equal(again.successes[1:], table.successes[1:])
    np.testing.assert_array_equal(again.failures[:-1], table.failures[:-1])
    half = table.scaled(0.5)
    np.testing.assert_allclose(table.less(half).delta, half.delta, rtol=1e-14)
    np.testing.assert_allclose(half.weight(0.3), table.weight(0.3) / 2, rtol=1e-14)
    assert table.unbiased == bool(np.abs(means - of_groups("oracle")[0]).max() < 1e-12)


def test_silent_groups_and_their_replacement():
    p = MOMENTS.value
    silent = UNEVEN.context_probs @ (p**SIZE + (1 - p) ** SIZE)
    assert frac_reward_zero_std(UNEVEN, SIZE) == pytest.approx(silent)
    for name in ("std", "grpo", "maxrl"):
        plain = mean_gradient(UNEVEN, name, SIZE)
        kept = mean_gradient(UNEVEN, name, SIZE, dynamic_sampling=True)
        np.testing.assert_allclose(kept, plain / (1 - silent), rtol=1e-12)


def variance(table, size):
    """The variance that outputs bring into the estimate of a table."""
    prediction = gradient_mse(UNEVEN, table, size)
    return prediction.first_order_term + prediction.second_order_term


@pytest.mark.parametrize("size", [2, 3, 6])
def test_no_table_has_less_error_than_the_best(size):
    best = best_table(UNEVEN, size)
    least = gradient_mse(UNEVEN, "best", size).mse
    assert least == pytest.approx(gradient_mse(UNEVEN, best.spec, size).mse, rel=1e-12)
    for place in range(size):
        for step in (1e-3, -1e-3):
            moved = best.baseline.copy()
            moved[place] += step
            text = "loo-table:" + ",".join(map(repr, moved.tolist()))
            assert gradient_mse(UNEVEN, text, size).mse > least
    # With another mean: each success counts as much again on the first failure beside it.
    gains = np.linspace(1.0, 1.5, size)
    other = best_table(UNEVEN, size, gains)
    np.testing.assert_allclose(other.delta, gains, rtol=1e-12)
    least = variance(other.spec, size)
    for place in range(size):
        failures = other.failures[:-1].copy()
        failures[place] += 1e-3
        numbers = [*(gains + failures), *failures]
        text = "count-table:" + ",".join(map(repr, map(float, numbers)))
        assert variance(text, size) > least


@pytest.mark.parametrize("mean", [None, 0.45])
@pytest.mark.parametrize("size", [2, 5])
def test_no_shrinkage_has_less_error_than_the_best(size, mean):
    amount = best_shrinkage(UNEVEN, size, mean)
    assert 0 < amount < 1
    centre = UNEVEN.context_probs @ MOMENTS.value if mean is None else mean

    def error(share):
        return gradient_mse(UNEVEN, f"shrinkage:{share!r},{float(centre)!r}", size).mse

    least = error(amount)
    assert least < min(error(amount + 1e-3), error(amount - 1e-3))
