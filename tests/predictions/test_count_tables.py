"""Tables by counts at their edges, and what is refused. Every outcome is added up in fractions in
``tests/test_independent_tables.py``, and every count in ``test_large_groups.py``.
"""

import numpy as np
import pytest

from tests.support.refusals import refusals
from ustat_pg.predictions import (
    best_shrinkage,
    best_table,
    count_table,
    frac_reward_zero_std,
    gradient_mse,
    mean_gradient,
)
from ustat_pg.problems import SoftmaxBandit, named_problem, random_problem


def noise(rates, weights):
    """Prompts whose reward is no fault of their two outputs: norms alike, and no gradient."""
    law = np.stack([rates, 1 - rates], axis=-1)[:, None].repeat(2, axis=1)
    rewards = np.tile([1.0, 0.0], (len(rates), 2, 1))
    return SoftmaxBandit.tabular(weights, np.zeros((len(rates), 2)), rewards, law)


def test_a_count_that_no_prompt_shows_has_some_entry():
    sure = noise(np.array([1.0]), np.array([1.0])).moments()
    table = best_table(sure, 3)
    assert table.unbiased
    assert table.baseline[-1] == pytest.approx(1.0)
    assert gradient_mse(sure, "best", 3).mse == pytest.approx(0.0, abs=1e-15)


def test_prompts_always_or_never_solved():
    problem = noise(np.array([0.0, 1.0]), np.array([0.5, 0.5]))
    moments = problem.moments()
    assert frac_reward_zero_std(moments, 4) == 1.0
    result = gradient_mse(moments, "std", 4)
    assert (result.mse, result.noise_to_signal, result.cosine) == (0.0, None, None)
    weights = count_table("std", 4).weight([0.0, 1.0])
    assert weights == pytest.approx([3**0.5, 3**0.5])


BINARY = noise(np.array([0.2, 0.7]), np.array([0.8, 0.2])).moments()
GRADED = random_problem(0).moments()
test_what_is_refused = refusals(
    (lambda: count_table("stdd", 4), "did you mean std"),
    (lambda: count_table("oracle", 4), "oracle is not a table"),
    (lambda: count_table("grpo", 1), "at least 2: group size is 1"),
    (lambda: count_table("best", 4), "give the problem's moments"),
    (
        lambda: count_table("loo-table:0,1", 4),
        "2 values: a group of 4",
    ),
    (lambda: count_table("std", 4).weight(1.5), "pass rate is 1.5"),
    (lambda: count_table("std", 4).clipped(0), "limit is 0"),
    (lambda: gradient_mse(GRADED, "std", 4), "std has a closed form for rewards"),
    (lambda: best_table(BINARY, 4, [1.0, 1.0]), r"needs \(4,\)"),
    (
        lambda: mean_gradient(BINARY, "vanilla", 4, dynamic_sampling=True),
        "groups of equal rewards are not silent with vanilla",
    ),
    (
        lambda: mean_gradient(
            noise(np.array([1.0]), np.array([1.0])).moments(), "std", 4, dynamic_sampling=True
        ),
        "every group is silent",
    ),
    (
        lambda: gradient_mse(BINARY, "std", 4, constant=0.5),
        "which the estimator std does not take",
    ),
)


def test_a_share_is_at_most_one():
    rates = np.arange(1, 10) / 10
    assert frac_reward_zero_std(noise(rates, np.full(9, 1 / 9)).moments(), 1) == 1.0


@pytest.mark.parametrize("size", [2, 3, 10, 100, 1100])
def test_rounding_leaves_no_negative_error(size):
    """One prompt with two equal arms, the first rewarded: the best table has no error at all."""
    coin = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    result = gradient_mse(coin.moments(), "best", size)
    assert 0 <= result.mse < 1e-15
    assert result.first_order_term >= 0


@pytest.mark.parametrize("mean", [None, 0.45])
@pytest.mark.parametrize("size", [2, 5])
def test_no_shrinkage_has_less_error_than_the_best(size, mean):
    uneven = named_problem("uneven").problem.moments()
    amount = best_shrinkage(uneven, size, mean)
    assert 0 < amount < 1
    centre = float(uneven.context_probs @ uneven.value) if mean is None else mean
    around, least, beyond = (
        gradient_mse(uneven, f"shrinkage:{amount + off!r},{centre!r}", size).mse
        for off in (-1e-3, 0.0, 1e-3)
    )
    assert least < min(around, beyond)


def test_the_amount_is_held_between_grpo_and_the_constant():
    # b* is .13 and V .8: a mean below V would be overtaken, one above it is the wrong way.
    skewed = SoftmaxBandit.bernoulli([0.8, 0.1, 0.05, 0.05], [1, 0, 0, 0]).moments()
    assert best_shrinkage(skewed, 4, 0.6) == 1.0
    assert best_shrinkage(skewed, 4, 1.5) == 0.0
    # Nothing to choose from: all rewards alike.
    assert best_shrinkage(SoftmaxBandit.bernoulli([0.5, 0.5], [1, 1]).moments(), 4, 1.0) == 1.0
