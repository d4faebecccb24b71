"""The exact MSE of an advantage function against brute force and the exact engine."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

from tests.support.advantages import (
    dr_grpo,
    neighbour,
    normalised,
    other_prompts,
    rloo,
    signed_wrongly,
)
from ustat_pg.engines import Estimator, GradientCell, SquaredError
from ustat_pg.engines.base import Replications
from ustat_pg.engines.gradients.exact import ExactEngine
from ustat_pg.problems import random_problem
from ustat_pg.testing import exact_mse


def brute_force_mse(function, problem, size):
    """E ĝ and E‖ĝ - g‖² at one prompt, one outcome after the other."""
    mean, mse, target = 0.0, 0.0, problem.gradient()
    for x, chance in enumerate(problem.context_probs):
        table = problem.policy.scores(x)
        rollouts = [
            (p * q, table[k], z)
            for k, p in enumerate(problem.policy.probs[x])
            for q, z in zip(problem.reward_probs[x, k], problem.reward_values[x, k], strict=True)
        ]
        for group in itertools.product(rollouts, repeat=size):
            probability = chance * np.prod([p for p, _, _ in group])
            advantages = function(np.array([z for _, _, z in group]))
            estimate = sum(a * s for a, (_, s, _) in zip(advantages, group, strict=True)) / size
            mean = mean + probability * estimate
            mse += probability * np.sum((estimate - target) ** 2)
    return mean, mse


@pytest.mark.parametrize("function", [rloo, dr_grpo, normalised, neighbour, signed_wrongly])
def test_mse_against_brute_force(function):
    problem = random_problem(3, "linear", contexts=2)
    mean, mse = brute_force_mse(function, problem, 2)
    report = exact_mse(function, problem=problem, group_size=2)
    target = problem.gradient()
    assert report.mse == pytest.approx(mse, rel=1e-12)
    assert report.squared_bias == pytest.approx(np.sum((mean - target) ** 2), rel=1e-9, abs=1e-25)
    assert report.variance == pytest.approx(mse - report.squared_bias, rel=1e-12)
    factor = mean @ target / (target @ target)
    assert report.factor == pytest.approx(factor, rel=1e-12)
    if factor > 0:
        rescaled = functools.partial(lambda z, c: function(z) / c, c=factor)
        assert report.rescaled_mse == pytest.approx(
            brute_force_mse(rescaled, problem, 2)[1], rel=1e-12
        )
    else:
        assert np.isnan(report.rescaled_mse)


@pytest.mark.parametrize("batch", [1, 2])
def test_the_known_baselines_are_those_of_the_exact_engine(batch):
    problem = random_problem(5, "two-arms", contexts=2)
    report = exact_mse(rloo, problem=problem, group_size=3, batch_size=batch)
    names = ("grpo", "oracle", "vanilla", "minimum-variance")
    enumerated = ExactEngine().measure(
        GradientCell(problem, 3, batch),
        [SquaredError(Estimator(name)) for name in names],
        Replications(),
    )
    said = [report.grpo_mse, report.oracle_mse, report.vanilla_mse, report.minimum_variance_mse]
    assert said == pytest.approx(enumerated.mean, rel=1e-12)
    assert report.mse == pytest.approx(report.grpo_mse, rel=1e-12)
    assert report.ratio_to_grpo == pytest.approx(1, rel=1e-12)


def test_shrinking_the_gradient_is_no_gain():
    problem = random_problem(0)
    report = exact_mse(dr_grpo, problem=problem, group_size=3)
    assert report.ratio_to_grpo < 1
    assert report.rescaled_ratio_to_grpo == pytest.approx(1, rel=1e-9)
    assert report.factor == pytest.approx(2 / 3, rel=1e-12)
    assert "biased" in str(report)
    assert "times grpo's" in str(report)
    assert "biased" not in str(exact_mse(rloo, problem=problem, group_size=3))


def test_mse_in_the_minibatch_layout_sees_the_other_prompts():
    problem = random_problem(1, "two-arms", contexts=2)
    plain = exact_mse(rloo, problem=problem, group_size=2, batch_size=2)
    same = exact_mse(rloo, problem=problem, group_size=2, batch_size=2, layout="minibatch")
    assert same == plain
    other = exact_mse(
        other_prompts, problem=problem, group_size=2, batch_size=2, layout="minibatch"
    )
    assert other.squared_bias < 1e-25
    assert other.mse != pytest.approx(plain.mse, rel=1e-3)


def test_the_rounding_of_single_precision_is_no_bias_where_rtol_allows_it():
    def single(z):
        return rloo(z).astype(np.float32) * np.float32(1 + 1e-6)

    problem = random_problem(0)
    reports = [exact_mse(single, problem=problem, group_size=2, rtol=rtol) for rtol in (1e-9, 1e-5)]
    assert [report.squared_bias > 0 for report in reports] == [True, False]
    assert ["biased" in str(report) for report in reports] == [True, False]
