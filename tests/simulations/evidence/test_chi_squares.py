"""Sums of squares of normal deviates by quadrature and by draws, against closed forms."""

import numpy as np
import pytest

from simulations.evidence import Below, ChiSquares, TransformOf, chi_squares
from tests.support.refusals import refuses
from ustat_pg.distributions import WeightedChi2
from ustat_pg.engines import Estimator, SquaredError


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
    # Never outside what is said to be its range, however it is rounded.
    cell = ChiSquares()
    assert {cell.ends(quantity) for quantity in asked} == {(0.0, 1.0)}
    assert {cell.rounding(quantity) for quantity in asked} == {1e-12}
    # Each replication has its own draws, in whatever block.
    parts = [
        ChiSquares().measure("reference", asked, first=first, replications=count)
        for first, count in ((0, 1_000), (1_000, 3_000))
    ]
    assert parts[0].merge(parts[1]).mean == pytest.approx(drawn.mean, rel=1e-12)


def test_draws_are_squares_of_normal_deviates():
    """The least and the greatest word have a deviate too."""
    squares = np.array([[1.0, 4.0, 9.0]])
    assert Below((2.0, 0.5), 4.0).of(squares) == Below((2.0,), 2.0).of(squares) == [1.0]
    assert Below((2.0, 0.5), 3.999).of(squares) == [0.0]
    assert TransformOf((2.0, 0.5), 0.25).of(squares) == pytest.approx(np.exp(-1.0))
    one, other = Below((1.0, 0.5), 2.0), TransformOf((1.0, 0.5), 2.0)
    assert (one.label, other.label) == ("Below[[1.0, 0.5],2.0]", "TransformOf[[1.0, 0.5],2.0]")
    cell = ChiSquares(3)
    assert (cell.name, cell.outputs, cell.block) == ("chi-squares/3", 1, 65_536)
    for words, deviate in ((0, -6.3379), (2**32 - 1, 6.3379)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chi_squares.rng, "words", lambda *_, words=words: np.full((1, 3), words))
            drawn = cell.measure("reference", [TransformOf((1.0,), 0.01)], replications=1)
        assert -np.log(drawn.mean[0]) / 0.01 == pytest.approx(deviate**2, rel=1e-3)


def test_what_is_no_sum_of_squares_is_refused():
    quantity = SquaredError(Estimator("grpo"))
    refuses("is not a quantity of a ChiSquares", ChiSquares().require_exact, [quantity])
