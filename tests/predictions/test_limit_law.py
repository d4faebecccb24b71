"""Theorem 8's law: against the Lyapunov equation and the plain recursion, at edges, and what is refused."""

import numpy as np
import pytest

from tests.support.moments import record
from tests.support.refusals import refusals, refuses
from ustat_pg.predictions import (
    finite_covariance,
    finite_law,
    finite_weights,
    limit_law,
    limit_weights,
    matrix_correlation,
    mean_gap,
    stationary_covariance,
    weight_derivatives,
)

seeds = pytest.mark.parametrize("seed", range(12))


def made(seed, size=None):
    """Curvatures, a covariance and a c that is large enough."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 6)) if size is None else size
    bends = rng.uniform(0.1, 2.0, size)
    root = rng.normal(size=(size, size))
    return bends, root @ root.T, float(rng.uniform(1.2, 8) / (2 * bends.min())), rng


def plain(bends, noise, rates, start=None):
    """The recursion, matrix by matrix."""
    gamma = np.zeros_like(noise) if start is None else np.outer(start, start)
    for eta in rates:
        step = np.eye(len(bends)) - eta * np.diag(bends)
        gamma = step @ gamma @ step + eta**2 * noise
    return gamma


@seeds
def test_the_stationary_covariance_solves_the_lyapunov_equation(seed):
    bends, noise, c, _ = made(seed)
    gamma = stationary_covariance(bends, noise, c)
    drift = c * np.diag(bends) - np.eye(len(bends)) / 2
    residual = drift @ gamma + gamma @ drift - c**2 * noise
    assert np.abs(residual).max() <= 1e-13 * np.abs(c**2 * noise).max()
    assert np.linalg.eigvalsh(gamma)[0] >= -1e-12 * np.abs(gamma).max()


def test_a_direction_without_noise_has_no_term():
    noise = np.diag([0.0, 0.4])
    assert limit_weights([0.5, 1.0], noise, 4.0)[0] == 0.0
    assert limit_law([0.5, 1.0], noise, 4.0).weights.shape == (1,)
    # Equal curvatures keep the rank of the noise; rounding must not make a weight of its own.
    flat = limit_weights([1.0] * 3, np.full((3, 3), 0.1), 2.0)
    assert flat.tolist() == [0.0, 0.0, pytest.approx(0.3 * 4 / 6)]


@pytest.mark.parametrize("lot", [1, 7, 1 << 20])
@seeds
def test_recursion_matches_the_matrices(seed, lot, monkeypatch):
    bends, noise, c, rng = made(seed)
    monkeypatch.setitem(finite_covariance.__globals__, "_ENTRIES", lot * len(bends) ** 2)
    start = rng.normal(size=len(bends))
    # The first rate sends one direction to 0 at once.
    rates = np.append(1 / bends[0], c / (np.arange(1, 40) + 3))
    for displacement in (None, start):
        np.testing.assert_allclose(
            finite_covariance(bends, noise, rates, displacement),
            plain(bends, noise, rates, displacement),
            rtol=1e-11,
            atol=1e-13,
        )


def test_several_steps_equal_several_calls():
    bends, noise, c, rng = made(5, size=3)
    start, rates = rng.normal(size=3), c / (np.arange(1, 51) + 20)
    steps = [0, 1, 1, 17, 50]
    result = finite_covariance(bends, noise, rates, start, steps)
    np.testing.assert_array_equal(result[0], np.outer(start, start))
    for row, time in zip(result[1:], steps[1:], strict=True):
        np.testing.assert_allclose(
            row, finite_covariance(bends, noise, rates[:time], start), rtol=1e-11
        )
    gaps = mean_gap(bends, noise, rates, start, steps)
    np.testing.assert_allclose(gaps, np.einsum("tjj,j->t", result, bends) / 2, rtol=1e-13)
    assert mean_gap(bends, noise, rates, start) == pytest.approx(gaps[-1], rel=1e-13)


def test_equal_weights_part_along_the_change():
    change = np.array([[0.0, 1.0], [1.0, 0.0]])
    result = weight_derivatives([1.0, 1.0], np.eye(2), change, 1.0)
    np.testing.assert_allclose(result, [-0.5, 0.5], rtol=1e-14)
    moved = limit_weights([1.0, 1.0], np.eye(2) + 0.01 * change, 1.0)
    np.testing.assert_allclose((moved - 0.5) / 0.01, result, rtol=1e-10)


GOOD = ([0.5, 1.0], [[0.4, 0.1], [0.1, 0.3]])


@pytest.mark.parametrize(
    ("curvatures", "covariance", "message"),
    [
        ([0.5, 0.0], GOOD[1], r"curvatures\[1\] is 0"),
        ([-0.5, 1.0], GOOD[1], r"curvatures\[0\] is -0.5"),
        ([0.5], GOOD[1], r"covariance has shape \(2, 2\)"),
        (GOOD[0], [[0.4, 0.1], [0.2, 0.3]], "differs from its transpose by 0.1"),
        (GOOD[0], [[0.4, 0.5], [0.5, 0.3]], "has the eigenvalue -0.15"),
    ],
)
def test_invalid_landscapes_and_covariances_are_refused(curvatures, covariance, message):
    for call in (
        lambda: limit_weights(curvatures, covariance, 4.0),
        lambda: limit_law(curvatures, covariance, 4.0),
        lambda: finite_weights(curvatures, covariance, [0.1]),
        lambda: finite_law(curvatures, covariance, [0.1]),
        lambda: mean_gap(curvatures, covariance, [0.1]),
        lambda: weight_derivatives(curvatures, covariance, np.eye(2), 4.0),
    ):
        refuses(message, call)


def test_rounding_is_not_refused():
    noise = np.outer([0.3, 0.7], [0.3, 0.7])
    noise[:, 1] += [1e-16, -1e-16]
    assert limit_weights(GOOD[0], noise, 4.0)[0] > 0


test_bad_input_is_refused = refusals(
    (lambda: limit_weights(*GOOD, 1.0), "c above 1;"),
    (lambda: weight_derivatives(*GOOD, np.eye(2), 0.3), "c is 0.3"),
    (lambda: weight_derivatives(*GOOD, [[0, 1.0], [0, 0]], 4.0), "change differs"),
    (lambda: limit_law(GOOD[0], np.zeros((2, 2)), 4.0), "all weights are 0"),
    (lambda: finite_law(GOOD[0], np.zeros((2, 2)), [0.1]), "all weights are 0"),
    (lambda: finite_covariance(*GOOD, [0.1, -0.1]), r"rates\[1\] is -0.1"),
    (lambda: finite_covariance(*GOOD, [0.1], [1.0]), "displacement has 1 entries"),
    (lambda: finite_covariance(*GOOD, [0.1], steps=[2]), "whole numbers from 0 to 1"),
    (lambda: finite_covariance(*GOOD, [0.1], steps=[1, 0]), "must be ascending"),
    (lambda: finite_covariance(*GOOD, np.full(2000, 3.0)), "it is stable below 2/λ_max = 2"),
    (lambda: matrix_correlation(record(), np.eye(2)), "have only traces"),
)
