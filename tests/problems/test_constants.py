"""L, μ and μ' against another grid, against closed forms, and against each other."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.landscapes import bump, hills, other_bump
from ustat_pg.problems import (
    LocationBandit,
    constants,
    mixture_problem,
    ordered_problem,
)
from ustat_pg.validation import changed

A, B, FLAT, MIXTURE = bump(), other_bump(), bump(flat_dimensions=2), mixture_problem()
TWO_HILLS = hills((0.8, 1.0), (0.6, -1.0), radius=1.5)
NAMES = ("smoothness", "pl", "weak")


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
    found = constants(problem, radius)
    for name, value in brute(problem, away).items():
        sign = 1 if name == "smoothness" else -1
        better = sign * (getattr(found, name) - value)
        assert -1e-6 * problem.curvatures[0] < better < 1e-3 * problem.curvatures[0], name


@pytest.mark.parametrize("problem", [A, B, FLAT, MIXTURE], ids=["A", "B", "flat", "mixture"])
@pytest.mark.parametrize("radius", [0.1, 0.5])
def test_lemma_16_and_the_order_of_the_constants(problem, radius):
    """The curvatures at the maximiser lie in [μ, L], and μ' gives μ only with μ'²/L."""
    found = constants(problem, radius)
    assert max(found.pl, found.weak) <= problem.curvatures[0]
    assert problem.curvatures[-1] <= found.smoothness
    assert found.weak**2 / found.smoothness <= found.pl
    if radius == 0.5:
        assert found.weak > found.pl


def test_flat_dimensions_and_the_unit_of_parameters_change_constants_as_they_should():
    """Parameters three times as strong make second derivatives nine times as large."""
    plain, flat = constants(A, 0.6), constants(FLAT, 0.6)
    strong = constants(changed(A, directions=3 * A.directions, radius=1.0), 0.2)
    for name in NAMES:
        assert getattr(flat, name) == pytest.approx(getattr(plain, name), rel=1e-6)
        assert getattr(strong, name) == pytest.approx(9 * getattr(plain, name), rel=1e-6)


def test_three_directions():
    """Bends along three directions, whose curvatures at the maximiser are L and μ near it."""
    rng = np.random.default_rng(1)
    problem = LocationBandit.bump(rng.normal(size=(6, 2)), rng.uniform(-0.5, 0.5, 6), radius=4)
    units = rng.normal(size=(20_000, 3))
    units /= np.linalg.norm(units, axis=1)[:, None]
    found = constants(problem, 0.2)
    seen = brute(problem, 0.2 * rng.random((20_000, 1)) ** (1 / 3) * units)
    for name in NAMES:
        assert getattr(found, name) == pytest.approx(seen[name], rel=0.03)
    bent = ordered_problem(3, bend=[1.0, 2.0, 0.5])
    near = constants(bent, 1e-4)
    assert (near.pl, near.smoothness) == pytest.approx((0.125, 0.5), rel=1e-4)


def test_a_second_hill_leaves_no_mu():
    """Both ratios are 0 or less between two hills; near the higher one they are positive."""
    wide, near = constants(TWO_HILLS, 2.2), constants(TWO_HILLS, 0.4)
    assert wide.pl < 1e-6
    assert wide.weak < 0
    assert min(near.pl, near.weak) > 0
