"""Corollary 9: the design, what its predictions rest on, and that wrong formulas are caught."""

from __future__ import annotations

import numpy as np
import pytest

from simulations import oracle_policy
from simulations.landscapes import Landscapes, covariance_of, form_of_weight, projected
from simulations.problems import Suite
from ustat_pg.engines import Estimator, GradientCell
from ustat_pg.experiment import Options, Store, run_claims
from ustat_pg.predictions import gradient_covariance, limit_weights
from ustat_pg.problems import random_problem


@pytest.fixture(scope="module")
def grounds():
    return Landscapes(Suite("smoke"))


def test_enumeration_confirms_the_claim_and_refutes_every_rival(tmp_path):
    built = oracle_policy.claim(Suite("smoke", 3))
    run = run_claims([built], Options("smoke", engine="exact"), Store(tmp_path))
    (result,) = run.claims
    assert all(check.found["exact"].verdict == "CONFIRMED" for check in result.checks)
    assert {rival.name: rival.exact for rival in result.rivals} == dict.fromkeys(
        oracle_policy.RIVALS, "REFUTED"
    )


@pytest.mark.parametrize("kind", ["one", "pair", "flat"])
def test_in_one_direction_the_constant_is_that_of_the_weights_at_every_group_size(grounds, kind):
    for ground in grounds.triples(kind):
        curvatures, c = ground.landscape.curvatures, oracle_policy.scale(ground)
        (constant,) = oracle_policy.constants(ground)
        for size, batch in ((2, 1), (3, 4), (64, 1)):
            grpo, oracle = (
                limit_weights(curvatures, covariance_of(ground.landscape, name, size, batch), c)[0]
                for name in ("grpo", "oracle")
            )
            scaled = batch * size * (size - 1) * (grpo - oracle)
            assert scaled == pytest.approx(constant, rel=1e-9)


def test_in_two_directions_the_constants_are_limits(grounds):
    ground = grounds.slopes
    curvatures, c = ground.landscape.curvatures, oracle_policy.scale(ground)
    constants = oracle_policy.constants(ground)
    off = []
    for size in (2, 512, 2048):
        grpo, oracle = (
            limit_weights(curvatures, covariance_of(ground.landscape, name, size), c)
            for name in ("grpo", "oracle")
        )
        off.append(np.abs(size * (size - 1) * (grpo - oracle) / constants - 1).max())
    assert off[0] < 0.01
    # The remainder is of one order more, 1/G of the difference.
    assert off[1] == pytest.approx(4 * off[2], rel=0.2)


def test_prompts_of_the_pair_disagree_and_those_of_the_others_have_no_spread(grounds):
    large = 10**9
    for kind, spread in (("one", False), ("pair", True)):
        for ground in grounds.triples(kind):
            rest = covariance_of(ground.landscape, "oracle", large)[0, 0]
            assert (rest > 0.005) == spread


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


def test_the_form_of_a_weight_is_the_weight(grounds):
    ground = grounds.slopes
    landscape, c = ground.landscape, oracle_policy.scale(ground)
    noise = covariance_of(landscape, "grpo", 2)
    root, curvatures = np.sqrt(landscape.curvatures), landscape.curvatures
    gamma = c**2 * noise / (c * (curvatures[:, None] + curvatures) - 1)
    weights, axes = np.linalg.eigh(0.5 * root[:, None] * gamma * root)
    whole = landscape.identifiable @ noise @ landscape.identifiable.T
    for weight, axis in zip(weights, axes.T, strict=True):
        form = form_of_weight(landscape, axis, c)
        assert np.sum(form * whole) == pytest.approx(weight, rel=1e-12)
    assert weights == pytest.approx(limit_weights(curvatures, noise, c), rel=1e-12)


def test_the_error_of_a_finite_run_shrinks_as_allowed(grounds):
    ground = next(grounds.triples("one"))
    off = []
    for steps in (200, 800):
        functional, predicted = oracle_policy._runs(ground, 2, steps)
        quantities = [quantity for quantity, _ in functional.weights]
        means = functional.cell.measure("exact", quantities).mean
        off.append(abs((means[0] - means[1]) / predicted - 1))
        assert off[-1] < oracle_policy.ALLOWANCE / (steps + oracle_policy.OFFSET)
    assert off[0] > 1.7 * off[1]


def test_a_problem_of_the_users_own_has_no_checks_and_no_curves():
    suite = Suite("smoke", user=random_problem(0, "plain"))
    assert oracle_policy.claim(suite).checks == ()
    assert list(oracle_policy.curves(suite)) == []
