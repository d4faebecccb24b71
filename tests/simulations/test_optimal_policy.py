"""Corollary 10: the design, and what is said of problems with and without the assumption."""

from __future__ import annotations

import numpy as np
import pytest

from simulations.problems import Suite
from simulations.shared.runs import covariance_of, moments_of
from ustat_pg.distributions import WeightedChi2
from ustat_pg.predictions import limit_weights, matrix_correlation
from ustat_pg.problems import LocationBandit

SEEDS = (0, 1, 5)


def form(entry):
    """E[Uᵀ s sᵀ U a] averaged over prompts."""
    landscape = entry.problem
    found = matrix_correlation(moments_of(entry.problem), landscape.identifiable)
    return np.einsum("x,xij->ij", landscape.context_probs, found)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_problem_has_the_form_that_it_is_there_for(seed):
    landscapes = Suite("quick", seed).landscapes
    for entry in (*landscapes["ordered"], *landscapes["ordered, d = 2"]):
        assert np.abs(form(entry)).max() < 1e-12
    for entry in landscapes["ordered prompts"]:
        moments = moments_of(entry.problem)
        assert np.abs(matrix_correlation(moments, entry.problem.identifiable)).max() < 1e-12
        assert np.ptp(moments.value) > 0.2
        one, other = (record.fisher for record in moments.matrices())
        assert np.abs(one @ other - other @ one).max() > 0.1
    for entry in (*landscapes["uneven"], *landscapes["norm only"]):
        found = form(entry)
        assert abs(np.trace(found)) < 1e-12
        assert np.abs(found).max() > 0.2


@pytest.mark.parametrize("seed", SEEDS)
def test_with_linear_logits_the_form_is_minus_the_curvature(seed):
    landscapes = Suite("quick", seed).landscapes
    chosen = (*landscapes["bowl"], landscapes["slopes"][0], *landscapes["quarrel"])
    for entry in chosen:
        assert isinstance(entry.problem, LocationBandit)
        assert form(entry) == pytest.approx(-np.diag(entry.problem.curvatures), abs=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_limit_laws_are_ordered_as_said(seed):
    landscapes = Suite("quick", seed).landscapes
    places = np.geomspace(1e-4, 30, 400)

    def law(entry, b, c):
        landscape = entry.problem
        more = {} if b is None else {"constant": b}
        noise = covariance_of(landscape, "oracle" if b is None else "constant", 1, **more)
        return WeightedChi2(limit_weights(landscape.curvatures, noise, c)).cdf(places)

    for entry in landscapes["ordered, d = 2"]:
        c = 2 / float(entry.problem.curvatures[0])
        for b in (0.0, 0.3, 0.9):
            assert (law(entry, None, c) > law(entry, b, c) - 1e-12).all()
    for entry in landscapes["uneven"]:
        c = 0.7 / float(entry.problem.curvatures[0])
        assert (law(entry, 0.7, c) > law(entry, None, c) - 1e-12).all()
    (crossing,) = landscapes["norm only"]
    off = law(crossing, 0.2, 4.0) - law(crossing, None, 4.0)
    assert off.max() > 0.05
    assert off.min() < -0.05
