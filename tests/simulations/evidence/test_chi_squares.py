"""Sums of squares of normal deviates by quadrature and by draws, against closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from simulations.evidence import Below, ChiSquares, TransformOf
from ustat_pg.distributions import WeightedChi2


@pytest.mark.parametrize("weights", [(1.0,), (1.0, 0.5), (2.0, 0.3, 0.1)])
@pytest.mark.parametrize("at", [0.2, 1.0, 5.0])
def test_the_cdf_and_the_transform_are_those_of_the_law(weights, at):
    """The transform of Σ w z² is Π (1 + 2 t w)^-½."""
    asked = Below(weights, at), TransformOf(weights, at)
    wanted = [WeightedChi2(weights).cdf(at), np.prod((1 + 2 * at * np.array(weights)) ** -0.5)]
    assert ChiSquares().measure("exact", asked).mean == pytest.approx(wanted, rel=1e-10)
    drawn = ChiSquares().measure("reference", asked, replications=4_000)
    errors = np.sqrt(drawn.covariance.diagonal() / drawn.n)
    assert (np.abs(drawn.mean - wanted) < 5 * errors).all()
    # Each replication has its own draws, in whatever block.
    parts = [
        ChiSquares().measure("reference", asked, first=first, replications=count)
        for first, count in ((0, 1_000), (1_000, 3_000))
    ]
    assert parts[0].merge(parts[1]).mean == pytest.approx(drawn.mean, rel=1e-12)
