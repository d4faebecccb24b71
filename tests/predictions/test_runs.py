"""The forms of weights, and what is refused; orders of epochs are in ``test_closed_forms.py``."""

import numpy as np
import pytest

from simulations.interior_problems.location_bandit import LocationBandit
from tests.support.refusals import refusals
from ustat_pg.predictions import (
    epoch_gap,
    gap_transform,
    gradient_covariance,
    limit_weights,
    linear_gap,
    weight_form,
)

HILLS = LocationBandit.bump([-1.0, 0.0, 1.0], [-0.7, 0.8, 0.3])
MOMENTS, BASIS = HILLS.at(HILLS.maximiser).moments(), HILLS.identifiable
RATES = 2.0 / (40 + np.arange(1, 31))


def test_a_constant_baseline_is_passed_on():
    gaps = [
        float(linear_gap(MOMENTS, BASIS, HILLS.curvatures, RATES, group_size=1, **words))
        for words in (
            {"estimator": "constant", "constant": 0.0},
            {"estimator": "vanilla"},
            {"estimator": "constant", "constant": 0.5},
        )
    ]
    assert gaps[0] == pytest.approx(gaps[1])
    assert gaps[0] > 1.1 * gaps[2]


@pytest.mark.parametrize("c", [12.0, 30.0])
def test_the_form_of_a_weight_gives_the_weight(c):
    curvatures, whole = HILLS.curvatures, gradient_covariance(MOMENTS, "grpo", 2)
    noise = BASIS.T @ whole @ BASIS
    root = np.sqrt(curvatures)
    gamma = c**2 * noise / (c * (curvatures[:, None] + curvatures) - 1)
    weights, axes = np.linalg.eigh(0.5 * root[:, None] * gamma * root)
    for weight, axis in zip(weights, axes.T, strict=True):
        form = weight_form(curvatures, BASIS, axis, c)
        assert np.sum(form * whole) == pytest.approx(weight, rel=1e-12)
    assert weights == pytest.approx(limit_weights(curvatures, noise, c), rel=1e-12)


def test_the_transform_by_hand():
    assert gap_transform([0.2, 1.5], 0.7) == pytest.approx((1.28 * 3.1) ** -0.5, rel=1e-14)
    assert gap_transform([0.2, 1.5], 0.0) == 1.0


def epochs(group_size, batch_size):
    line = HILLS.curvatures[0]
    return epoch_gap(MOMENTS, BASIS, line, RATES, group_size=group_size, batch_size=batch_size)


test_bad_input_is_refused = refusals(
    (lambda: epochs(2, 2), "must divide"),
    (lambda: epochs(1, 1), "at least 2"),
    (lambda: weight_form([1.0], np.eye(1), [1.0], 0.4), "above 1/2"),
    (lambda: gap_transform([0.5, -0.1], 1.0), "none may be negative"),
)
