"""Corollary 9: the design, what its predictions rest on, and that wrong formulas are caught."""

from __future__ import annotations

import numpy as np
import pytest

from simulations import oracle_policy
from simulations.problems import Suite
from simulations.shared.runs import GRPO, ORACLE, covariance_of
from simulations.shared.weights import constants, projected, scale
from ustat_pg.engines import Estimator, Gap, GradientCell
from ustat_pg.predictions import gradient_covariance, limit_weights
from ustat_pg.problems import random_problem


@pytest.fixture(scope="module")
def landscapes():
    return Suite("smoke").landscapes


@pytest.mark.parametrize("kind", ["triple", "quarrel", "flat triple"])
def test_in_one_direction_the_constant_is_that_of_the_weights_at_every_group_size(landscapes, kind):
    for entry in landscapes[kind]:
        curvatures, c = entry.problem.curvatures, scale(entry)
        (constant,) = constants(entry)
        for size, batch in ((2, 1), (3, 4), (64, 1)):
            grpo, oracle = (
                limit_weights(curvatures, covariance_of(entry.problem, name, size, batch), c)[0]
                for name in ("grpo", "oracle")
            )
            scaled = batch * size * (size - 1) * (grpo - oracle)
            assert scaled == pytest.approx(constant, rel=1e-9)


def test_in_two_directions_the_constants_are_limits(landscapes):
    entry = landscapes["slopes"][0]
    curvatures, c = entry.problem.curvatures, scale(entry)
    tends_to = constants(entry)
    off = []
    for size in (2, 512, 2048):
        grpo, oracle = (
            limit_weights(curvatures, covariance_of(entry.problem, name, size), c)
            for name in ("grpo", "oracle")
        )
        off.append(np.abs(size * (size - 1) * (grpo - oracle) / tends_to - 1).max())
    assert off[0] < 0.01
    # The remainder is of one order more, 1/G of the difference.
    assert off[1] == pytest.approx(4 * off[2], rel=0.2)


@pytest.mark.parametrize("seed", range(3))
def test_squared_projections_add_up_to_any_form(seed):
    problem = random_problem(seed, "shared-linear", contexts=2)
    matrix = np.random.default_rng(seed).normal(size=(problem.d, problem.d))
    matrix = matrix + matrix.T
    terms = projected(problem, Estimator("grpo"), matrix)
    cell, quantities = GradientCell(problem, 2), [quantity for quantity, _ in terms]
    means = cell.measure("exact", quantities).mean
    found = float(means @ [weight for _, weight in terms])
    expected = float((matrix * gradient_covariance(problem.moments(), "grpo", 2)).sum())
    assert found == pytest.approx(expected, rel=1e-9)


def test_the_error_of_a_finite_run_shrinks_as_is_computed(landscapes):
    for entry in (landscapes["triple"][0], landscapes["quarrel"][0]):
        off = []
        for steps in (25, 50, 200):
            runs = oracle_policy.runs_at(entry, 2, steps, 0.6 * steps)
            means = runs.training.measure("exact", [Gap(GRPO, steps), Gap(ORACLE, steps)]).mean
            for estimator, mean in zip((GRPO, ORACLE), means, strict=True):
                own = mean / runs.expected(estimator) - 1
                assert abs(own) < runs.left_out_of(estimator)
            off.append(
                abs((means[0] - means[1]) / (runs.expected(GRPO) - runs.expected(ORACLE)) - 1)
            )
        assert off[0] > 1.7 * off[1] > 5 * off[2]
