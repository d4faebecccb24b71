"""Corollary 10: the design, and what is said of problems with and without the assumption."""

from __future__ import annotations

import numpy as np
import pytest

from simulations import optimal_policy
from simulations.landscapes import Ground, Landscapes, covariance_of
from simulations.problems import Suite
from ustat_pg.distributions import WeightedChi2
from ustat_pg.engines import Estimator, GapTransform
from ustat_pg.experiment import LawExcess, Options, Store, run_claims
from ustat_pg.predictions import limit_weights, matrix_correlation
from ustat_pg.problems import LocationBandit, norm_only_problem, random_problem

SEEDS = (0, 1, 5)


def moments_of(ground):
    return ground.landscape.at(ground.landscape.maximiser).moments()


def form(ground):
    """E[Uᵀ s sᵀ U a] averaged over prompts."""
    landscape = ground.landscape
    found = matrix_correlation(moments_of(ground), landscape.identifiable)
    return np.einsum("x,xij->ij", landscape.context_probs, found)


def test_enumeration_confirms_what_it_can_and_refutes_every_rival(tmp_path):
    built = optimal_policy.claim(Suite("smoke", 3))
    run = run_claims([built], Options("smoke", engine="exact"), Store(tmp_path))
    (result,) = run.claims
    for check in result.checks:
        if not isinstance(check.check.functional, LawExcess):
            assert check.found["exact"].verdict == "CONFIRMED", check.name
    assert {rival.name: rival.exact for rival in result.rivals} == dict.fromkeys(
        optimal_policy.RIVALS, "REFUTED"
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_each_problem_has_the_form_that_it_is_there_for(seed):
    grounds = Landscapes(Suite("quick", seed))
    for ground in (*grounds.ordered(), *grounds.ordered(2)):
        assert np.abs(form(ground)).max() < 1e-12
    for ground in (*grounds.uneven(), Ground("norm only", "made-up", norm_only_problem())):
        found = form(ground)
        assert abs(np.trace(found)) < 1e-12
        assert np.abs(found).max() > 0.2


@pytest.mark.parametrize("seed", SEEDS)
def test_with_linear_logits_the_form_is_minus_the_curvature(seed):
    grounds = Landscapes(Suite("quick", seed))
    chosen = (grounds.bowl, *grounds.bowls(), grounds.slopes, *grounds.triples("pair"))
    for ground in chosen:
        assert isinstance(ground.landscape, LocationBandit)
        assert form(ground) == pytest.approx(-np.diag(ground.landscape.curvatures), abs=1e-9)


def test_in_one_direction_the_best_constant_is_the_minimum_variance_baseline():
    grounds = Landscapes(Suite("smoke"))
    for ground in (grounds.bowl, *grounds.bowls()):
        best = moments_of(ground).optimal_baseline[0]
        assert optimal_policy.best_constant(ground) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_limit_laws_are_ordered_as_said(seed):
    grounds = Landscapes(Suite("quick", seed))
    places = np.geomspace(1e-4, 30, 400)

    def law(ground, b, c):
        landscape = ground.landscape
        more = {} if b is None else {"constant": b}
        noise = covariance_of(landscape, "oracle" if b is None else "constant", 1, **more)
        return WeightedChi2(limit_weights(landscape.curvatures, noise, c)).cdf(places)

    for ground in grounds.ordered(2):
        c = 2 / float(ground.landscape.curvatures[0])
        for b in (0.0, 0.3, 0.9):
            assert (law(ground, None, c) > law(ground, b, c) - 1e-12).all()
    for ground in grounds.uneven():
        c = 0.7 / float(ground.landscape.curvatures[0])
        assert (law(ground, 0.7, c) > law(ground, None, c) - 1e-12).all()
    crossing = Ground("norm only", "made-up", norm_only_problem())
    off = law(crossing, 0.2, 4.0) - law(crossing, None, 4.0)
    assert off.max() > 0.05
    assert off.min() < -0.05


def test_the_predicted_transform_is_that_of_the_law():
    ground = next(Landscapes(Suite("smoke")).uneven())
    runs = optimal_policy.uneven_runs(ground, 50)
    (weights,) = (optimal_policy.weights(ground, runs, optimal_policy.ORACLE, 50),)
    draws = WeightedChi2(weights).rvs(200_000, 0)
    rate = 2 / sum(weights)
    drawn = GapTransform(Estimator("oracle"), 50, rate).of(draws).mean()
    assert optimal_policy._transform(ground, runs, optimal_policy.ORACLE, rate) == pytest.approx(
        drawn, abs=0.004
    )


def test_levels_of_the_figure_lie_on_edges_of_bins():
    assert all(float(level * 2048).is_integer() for level in optimal_policy.LEVELS)


def test_a_problem_of_the_users_own_has_no_checks_and_no_curves():
    suite = Suite("smoke", user=random_problem(0, "plain"))
    assert optimal_policy.claim(suite).checks == ()
    assert list(optimal_policy.curves(suite)) == []
