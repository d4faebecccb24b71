"""L, μ and μ' against another grid, and where there is no μ."""

import numpy as np
import pytest

from simulations.interior_problems.constants import constants
from simulations.interior_problems.location_bandit import mixture_problem
from tests.support.landscapes import bump, hills, other_bump

A, B, FLAT, MIXTURE = bump(), other_bump(), bump(flat_dimensions=2), mixture_problem()
TWO_HILLS = hills((0.8, 1.0), (0.6, -1.0), radius=1.5)


def brute(problem, away):
    """The three constants at displacements (n, r), from the derivatives of J alone."""
    frame = problem.identifiable
    theta = problem.maximiser + away @ frame.T
    gradient = problem.gradient(theta) @ frame
    hessian = frame.T @ problem.hessian(theta) @ frame
    return {
        "smoothness": np.abs(np.linalg.eigvalsh(hessian)).max(),
        "pl": ((gradient**2).sum(axis=1) / (2 * problem.gap(theta))).min(),
        "weak": (-(gradient * away).sum(axis=1) / (away**2).sum(axis=1)).min(),
    }


@pytest.mark.parametrize(
    ("problem", "radius"),
    [(A, 0.4), (A, 1.0), (B, 0.3), (FLAT, 0.5), (MIXTURE, 1.0), (TWO_HILLS, 0.4), (TWO_HILLS, 1.9)],
)
def test_constants_against_a_denser_grid(problem, radius):
    """A polar grid, or a linear one: no point of it is worse, and one comes near."""
    if len(problem.curvatures) == 1:
        away = radius * np.linspace(-1, 1, 20_000)[:, None]
    else:
        angle, share = np.meshgrid(np.linspace(0, 2 * np.pi, 361), np.linspace(0.002, 1, 200))
        away = np.stack([np.cos(angle), np.sin(angle)], axis=-1) * (radius * share)[..., None]
        away = away.reshape(-1, 2)
    result = constants(problem, radius)
    for name, value in brute(problem, away).items():
        sign = 1 if name == "smoothness" else -1
        better = sign * (getattr(result, name) - value)
        assert -1e-6 * problem.curvatures[0] < better < 1e-3 * problem.curvatures[0], name


def test_a_second_hill_leaves_no_mu():
    """Both ratios are 0 or less between two hills; near the higher one they are positive."""
    wide, near = constants(TWO_HILLS, 2.2), constants(TWO_HILLS, 0.4)
    assert wide.pl < 1e-6
    assert wide.weak < 0
    assert min(near.pl, near.weak) > 0
