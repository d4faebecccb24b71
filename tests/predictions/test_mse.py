"""Closed forms: by hand, against each other, and what they refuse.

That they agree with enumeration, in every design, is in ``tests/test_independent.py`` and in
``tests/engines/gradients/test_gradient_enumeration.py``; that rivals do not, in ``tests/simulations``.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from tests.support.moments import record
from ustat_pg.predictions import (
    critic_excess,
    explicit_bound,
    gradient_covariance,
    gradient_mse,
    grpo_beats_vanilla,
    learned_values,
    minimum_variance_gain,
    oracle_beats_vanilla,
    oracle_ratio,
)
from ustat_pg.problems import KINDS, SoftmaxBandit, random_problem
from ustat_pg.validation import InputError

every_kind = pytest.mark.parametrize("kind", KINDS)


def two_prompts():
    """Two contexts, equally likely."""
    return record(context_probs=np.array([0.5, 0.5]), mean_gradient_sq=0.15)


# Of the record: c1 = .25 - .15; E[|s|^2 (z-b)^2] - |g|^2 averages (2.9 + 19.6)/2 at b = 0,
# (2.9 + 11.6)/2 at b = V, (2.775 + 10.6)/2 at b*; c3 = (.5 + .1 + 4 + .4)/2.
C1, C3 = 0.1, 2.5
C2 = {"vanilla": 11.25, "oracle": 7.25, "minimum-variance": 6.6875}


def every_term(size, batch, first, second=0.0, shrink=1.0, f=1.0):
    """The prediction's terms, of c1, c2 and c3 that stand in the record."""
    pairs = size * (size - 1)
    terms = {
        "prompt_term": shrink * f * C1 / batch,
        "first_order_term": shrink * first / size / batch,
        "second_order_term": shrink * second / pairs / batch if second else 0.0,
        "squared_bias": 0.15 / size**2 if shrink != 1 else 0.0,
    }
    others = {
        "mse": sum(terms.values()),
        "oracle_mse": (f * C1 + C2["oracle"] / size) / batch,
        "vanilla_mse": (f * C1 + C2["vanilla"] / size) / batch,
    }
    moved = shrink > 0
    signal = {
        "mean_factor": np.full(2, shrink**0.5),
        "noise_to_signal": (others["mse"] - terms["squared_bias"]) / (shrink * 0.15)
        if moved
        else None,
        "cosine": 1.0 if moved else None,
        "table": None,
    }
    return {name: pytest.approx(value) for name, value in (terms | others | signal).items()}


@pytest.mark.parametrize(("size", "batch"), [(1, 1), (1, 3), (2, 1), (3, 1), (5, 4)])
@pytest.mark.parametrize("baseline", [*C2, "grpo", "group-mean"])
def test_every_term_by_hand(baseline, size, batch):
    if baseline == "grpo" and size == 1:
        return
    expected = every_term(size, batch, C2.get(baseline, C2["oracle"]))
    if baseline in ("grpo", "group-mean"):
        # E ĝ = (G-1)/G g for the group mean, whatever the batch.
        shrink = ((size - 1) / size) ** 2 if baseline == "group-mean" else 1.0
        expected = every_term(size, batch, C2["oracle"], C3 if size > 1 else 0.0, shrink)
    expected["paper_bound"] = None
    if baseline == "grpo":
        # R = 4, E|s|^2 = 3.
        bound = 16 * 3 / (size * (size - 1))
        assert explicit_bound(two_prompts(), size, batch) == pytest.approx(bound / batch)
        expected["paper_bound"] = pytest.approx((C1 + C2["oracle"] / size + bound) / batch)
    assert dataclasses.asdict(gradient_mse(two_prompts(), baseline, size, batch)) == expected


@pytest.mark.parametrize(
    ("design", "batch", "factor"),
    [("fixed", 2, 0.0), ("without-replacement", 2, 0.0), ("without-replacement", 1, 1.0)],
)
def test_a_design_changes_the_prompt_term_alone(design, batch, factor):
    found = dataclasses.asdict(gradient_mse(two_prompts(), "grpo", 3, batch, design))
    del found["paper_bound"]
    assert found == every_term(3, batch, C2["oracle"], C3, f=factor)


def test_a_constant_and_a_critic_by_hand():
    # E|s|^2 (z - b)^2 at b = 1: 3 - 1 + 2 and 20 - 12 + 4.
    ones = ((4 - 0.1) + (12 - 0.4)) / 2
    for baseline, known, first in (
        ("constant", {"constant": 1.0}, ones),
        ("critic", {"critic": np.ones(2)}, ones),
        ("critic", {"critic": np.array([1.0, 0.0])}, ((4 - 0.1) + (20 - 0.4)) / 2),
    ):
        found = dataclasses.asdict(gradient_mse(two_prompts(), baseline, 5, **known))
        assert found == {**every_term(5, 1, first), "paper_bound": None}


def test_ratios_by_hand():
    # A minibatch: ratio - 1 = c3 / ((G-1) (G c1 + c2)); no c1 in a fixed set.
    expected = 1 + C3 / ((100 - 1) * (100 * C1 + C2["oracle"]))
    assert oracle_ratio(two_prompts(), 100, 7) == pytest.approx(expected)
    expected = 1 + C3 / ((4 - 1) * C2["oracle"])
    assert oracle_ratio(two_prompts(), 4, 2, "fixed") == pytest.approx(expected)


def test_the_ratio_is_infinite_where_the_oracle_alone_has_no_error():
    coin = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    assert oracle_ratio(coin.moments(), 2) == math.inf
    assert oracle_ratio(coin.moments(), 1000) == math.inf


def test_the_ratio_is_nan_where_no_one_errs():
    sure = SoftmaxBandit.tabular([1.0], [[0.0, 1.0]], [[[0.5], [0.5]]], [[[1.0], [1.0]]])
    assert math.isnan(oracle_ratio(sure.moments(), 2))


@pytest.mark.parametrize("seed", range(20))
def test_rounding_makes_no_ratio_of_equal_rewards(seed):
    """No estimator with a mean as baseline errs here, whatever number the reward is."""
    moments = random_problem(seed, "equal-rewards").moments()
    assert gradient_mse(moments, "oracle", 4).mse < 1e-30
    assert math.isnan(oracle_ratio(moments, 4))


def direct(moments, better, worse, size):
    """Prompt by prompt, the difference of two MSEs."""
    return np.array(
        [
            gradient_mse(moments.at(x), worse, size).mse
            - gradient_mse(moments.at(x), better, size).mse
            for x in range(len(moments))
        ]
    )


@every_kind
def test_where_grpo_and_oracle_beat_vanilla(kind):
    for seed in range(6):
        moments = random_problem(seed, kind).moments()
        for size in (2, 3, 8, 200):
            gain = direct(moments, "grpo", "vanilla", size)
            clear = np.abs(gain) > 1e-12 * moments.norm_squared_reward
            found = grpo_beats_vanilla(moments, size)
            assert found.shape == gain.shape
            assert found.dtype == np.bool_
            assert np.array_equal(found[clear], (gain > 0)[clear])
        gain = direct(moments, "oracle", "vanilla", 2)
        clear = np.abs(gain) > 1e-12 * moments.norm_squared_reward
        assert np.array_equal(oracle_beats_vanilla(moments)[clear], (gain > 0)[clear])


@every_kind
def test_the_minimum_variance_gain_is_the_difference_of_two_errors(kind):
    for seed in range(4):
        moments = random_problem(seed, kind).moments()
        for size, batch in ((1, 1), (4, 1), (4, 3)):
            difference = (
                gradient_mse(moments, "oracle", size, batch).mse
                - gradient_mse(moments, "minimum-variance", size, batch).mse
            )
            found = minimum_variance_gain(moments, size, batch)
            scale = float(moments.norm_squared_reward.max())
            assert found == pytest.approx(difference, rel=1e-8, abs=1e-13 * scale)
            assert found >= 0


@pytest.mark.parametrize("function", [gradient_mse, gradient_covariance])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"baseline": "grpo", "group_size": 1}, "needs a group of at least 2: group size is 1"),
        ({"baseline": "norm-weighted"}, "norm-weighted has no closed form"),
        ({"baseline": "ppo"}, "baseline 'ppo' is unknown: choose one of vanilla"),
        ({"baseline": "grpo", "design": "random"}, "design 'random' is unknown: choose one of iid"),
        (
            {"baseline": "constant"},
            "constant is not given: the baseline constant subtracts a number",
        ),
        (
            {"baseline": "grpo", "constant": 0.5},
            "constant is given, which the baseline grpo does not",
        ),
        ({"baseline": "critic"}, "critic is not given: .*one for each context"),
        ({"baseline": "critic", "critic": [0.0, 0.0]}, "predicted values have 2 entries"),
    ],
)
def test_refused(function, arguments, message):
    moments = random_problem(0, "uniform-contexts").moments()
    with pytest.raises(InputError, match=message):
        function(moments, **({"group_size": 4} | arguments))


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda m: learned_values(m, 3, 0.0), "step size is 0: it must be above 0 and at most 1"),
        (lambda m: critic_excess(m, m.value, 2, variance=[-1.0, 0.0]), "must be at least 0"),
        (lambda m: critic_excess(m, m.value, 2, variance=[1.0]), r"one per context \(2\)"),
    ],
)
def test_learning_that_is_refused(ask, message):
    with pytest.raises(InputError, match=message):
        ask(two_prompts())


def test_a_covariance_needs_matrices():
    with pytest.raises(InputError, match="traces only"):
        gradient_covariance(two_prompts(), "grpo", 4)
