"""The mean gap of runs from moments, against pairs; orders of epochs are in ``simulations/regimes``."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from ustat_pg.predictions import (
    epoch_gap,
    gap_transform,
    gradient_covariance,
    limit_weights,
    linear_gap,
    mean_gap,
    one_step_gap,
    weight_form,
)
from ustat_pg.problems import LocationBandit
from ustat_pg.validation import InputError

HILLS = LocationBandit.bump([-1.0, 0.0, 1.0], [-0.7, 0.8, 0.3])
RATES = 2.0 / (40 + np.arange(1, 31))


def four_prompts():
    """Two prompts that pull apart, each of them twice, on three arms with sure rewards."""
    arms = np.array([-1.0, 0.0, 1.0])
    middle = 0.6 * (arms == 0)
    rewards = np.stack([middle + 0.2 * arms, middle - 0.2 * arms] * 2)[..., None]
    return LocationBandit(
        np.full(4, 0.25), [[4.0]] * 4, arms, 2.0, rewards, np.ones_like(rewards), 1.0
    )


@pytest.fixture(scope="module")
def four():
    return four_prompts()


def known(landscape):
    return landscape.at(landscape.maximiser).moments(), landscape.identifiable


@pytest.mark.parametrize("baseline", ["grpo", "oracle", "vanilla"])
def test_the_linear_gap_is_that_of_the_projected_covariance(baseline):
    moments, basis = known(HILLS)
    start = np.array([0.1, -0.2])
    noise = basis.T @ gradient_covariance(moments, baseline, 4, 3) @ basis
    found = linear_gap(
        moments, basis, HILLS.curvatures, RATES,
        baseline=baseline, group_size=4, batch_size=3, displacement=start, steps=[0, 7, 30],
    )  # fmt: skip
    assert found == pytest.approx(mean_gap(HILLS.curvatures, noise, RATES, start, [0, 7, 30]))
    assert found[0] == pytest.approx(0.5 * float(HILLS.curvatures @ start**2))


def test_a_constant_baseline_is_passed_on():
    moments, basis = known(HILLS)
    gaps = [
        float(linear_gap(moments, basis, HILLS.curvatures, RATES, group_size=1, **words))
        for words in (
            {"baseline": "constant", "constant": 0.0},
            {"baseline": "vanilla"},
            {"baseline": "constant", "constant": 0.5},
        )
    ]
    assert gaps[0] == pytest.approx(gaps[1])
    assert gaps[0] > 1.1 * gaps[2]


def test_half_an_epoch_is_a_draw_without_replacement(four):
    moments, basis = known(four)
    found = epoch_gap(moments, basis, four.curvatures[0], [0.3], group_size=3, batch_size=2)
    noise = gradient_covariance(moments, "grpo", 3, 2, "without-replacement")
    assert found == pytest.approx(float(mean_gap(four.curvatures, noise, [0.3])), rel=1e-12)


def test_one_step_against_all_ordered_pairs():
    rng = np.random.default_rng(3)
    shares = rng.dirichlet(np.ones(2))
    prompts = [
        (share, rng.dirichlet(np.ones(4)), rng.normal(size=(4, 3)), rng.normal(size=4))
        for share in shares
    ]

    def gap(estimate):
        return float(np.exp(-estimate[0]) + (estimate**2).sum())

    total = 0.0
    for share, probs, scores, rewards in prompts:
        for i, j in product(range(4), repeat=2):
            # Leave-one-out as trainers write it.
            estimate = (
                scores[i] * (rewards[i] - rewards[j]) + scores[j] * (rewards[j] - rewards[i])
            ) / 2
            total += share * probs[i] * probs[j] * gap(estimate)
    assert one_step_gap(prompts, gap) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("c", [12.0, 30.0])
def test_the_form_of_a_weight_gives_the_weight(c):
    moments, basis = known(HILLS)
    curvatures, whole = HILLS.curvatures, gradient_covariance(moments, "grpo", 2)
    noise = basis.T @ whole @ basis
    root = np.sqrt(curvatures)
    gamma = c**2 * noise / (c * (curvatures[:, None] + curvatures) - 1)
    weights, axes = np.linalg.eigh(0.5 * root[:, None] * gamma * root)
    for weight, axis in zip(weights, axes.T, strict=True):
        form = weight_form(curvatures, basis, axis, c)
        assert np.sum(form * whole) == pytest.approx(weight, rel=1e-12)
    assert weights == pytest.approx(limit_weights(curvatures, noise, c), rel=1e-12)


def test_the_transform_is_the_mean_of_the_exponential():
    weights, rate = [0.2, 1.5], 0.7
    draws = np.random.default_rng(0).normal(size=(400_000, 2)) ** 2 @ weights
    assert gap_transform(weights, rate) == pytest.approx(np.exp(-rate * draws).mean(), abs=0.002)
    assert gap_transform(weights, 0.0) == 1.0


def test_bad_input_is_refused(four):
    moments, basis = known(four)
    line = four.curvatures[0]
    for call, message in (
        (lambda: epoch_gap(moments, basis, line, RATES, group_size=2, batch_size=3), "must divide"),
        (lambda: epoch_gap(moments, basis, line, RATES, group_size=1, batch_size=1), "at least 2"),
        (lambda: weight_form([1.0], np.eye(1), [1.0], 0.4), "above 1/2"),
        (lambda: gap_transform([0.5, -0.1], 1.0), "none may be negative"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            call()
