"""An offset of all rewards changes no error of grpo, of the oracle, or of b*: neither in the
predictions nor in any engine, however large it is.
"""

import numpy as np
import pytest

from ustat_pg.engines import Estimator, GradientCell, SquaredError
from ustat_pg.predictions import gradient_covariance, gradient_mse, oracle_ratio
from ustat_pg.problems import SoftmaxBandit, random_problem

NAMES = ("grpo", "oracle", "minimum-variance", "group-mean")
QUANTITIES = tuple(SquaredError(Estimator(name)) for name in NAMES)


def shifted(offset: float, kind: str) -> SoftmaxBandit:
    """A problem with rewards on a grid, so that the offset is added without rounding."""
    problem = random_problem(3, kind)
    values = np.round(problem.reward_values * 64) / 64 + offset
    return SoftmaxBandit(problem.policy, problem.context_probs, values, problem.reward_probs)


@pytest.mark.parametrize("offset", [1e2, 1e4, 1e6, 1e8])
@pytest.mark.parametrize("kind", ["plain", "linear", "shared-linear"])
def test_predictions_do_not_see_an_offset(offset, kind):
    near, far = shifted(0.0, kind).moments(), shifted(offset, kind).moments()
    # The offset itself rounds V(x) by one part in 10^16.
    tolerance = 1e-13 + 1e-15 * offset
    for name in NAMES:
        expected = gradient_mse(near, name, 3, 2).mse
        assert gradient_mse(far, name, 3, 2).mse == pytest.approx(expected, rel=tolerance)
        matrix = gradient_covariance(near, name, 3, 2)
        assert gradient_covariance(far, name, 3, 2) == pytest.approx(
            matrix, rel=0, abs=tolerance * np.abs(matrix).max()
        )
    assert oracle_ratio(far, 3) == pytest.approx(oracle_ratio(near, 3), rel=tolerance)


@pytest.mark.parametrize("offset", [1e4, 1e8])
@pytest.mark.parametrize("kind", ["plain", "linear", "shared-linear"])
@pytest.mark.parametrize("engine", ["exact", "cpu", "reference"])
def test_engines_do_not_see_an_offset(offset, kind, engine):
    # One prompt: another offset is another cell, and so other draws, which only exact has not.
    exact = GradientCell(shifted(0.0, kind), 3).measure("exact", QUANTITIES).mean
    result = GradientCell(shifted(offset, kind), 3).measure(engine, QUANTITIES, replications=20_000)
    if engine == "exact":
        assert result.mean == pytest.approx(exact, rel=1e-13 + 1e-15 * offset)
    else:
        errors = np.sqrt(np.diag(result.covariance) / result.n)
        assert (np.abs(result.mean - exact) < 5 * errors).all()
        assert (result.mean > 0).all()
