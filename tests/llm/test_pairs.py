"""Estimates from pairs of micro-batches are those of a problem whose moments are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ustat_pg.estimators import grpo
from ustat_pg.llm.monitor import estimate_noise, step_sums
from ustat_pg.predictions import critical_budget, mse_constants, optimal_group_size
from ustat_pg.problems import SoftmaxBandit

PROMPTS = 4
FEATURES = np.array(
    [
        [[1.0, 0.2], [0.0, 0.7], [-1.0, 0.1]],
        [[0.8, 0.0], [0.3, 0.3], [-1.0, 1.0]],
        [[0.4, 1.0], [0.0, 0.0], [-0.2, 0.3]],
    ]
)
REWARDS = np.array([[[1.0], [0.2], [0.0]], [[0.9], [0.3], [0.1]], [[1.0], [0.0], [0.5]]])
PROBLEM = SoftmaxBandit.linear(
    [0.5, 0.3, 0.2], FEATURES, [0.3, -0.2], REWARDS, np.ones_like(REWARDS)
)


def steps(size, per_batch, *, shuffled=True, count=4000):
    """Sums of steps of PROMPTS groups, dealt to micro-batches."""
    rng = np.random.default_rng(0)
    scores = np.array([PROBLEM.policy.scores(x) for x in range(3)])
    cumulative = PROBLEM.policy.probs.cumsum(1)
    groups = np.repeat(np.arange(PROMPTS), size)
    found = []
    for _ in range(count):
        x = rng.choice(3, PROMPTS, p=PROBLEM.context_probs)
        arms = (rng.random((PROMPTS, size, 1)) > cumulative[x][:, None, :-1]).sum(-1)
        advantages = grpo(REWARDS[x[:, None], arms, 0])
        terms = (advantages[..., None] * scores[x[:, None], arms]).reshape(-1, 2)
        order = rng.permutation(len(terms)) if shuffled else np.arange(len(terms))
        h = terms[order].reshape(-1, per_batch, 2).sum(1)
        found.append(step_sums(h @ h.T, groups[order].reshape(-1, per_batch)))
    return np.array(found)


@pytest.mark.parametrize(("size", "per_batch"), [(2, 1), (2, 2), (3, 4), (8, 4)])
def test_estimates_are_those_of_enumeration(size, per_batch):
    moments = PROBLEM.moments()
    known, signal = mse_constants(moments), float(moments.mean_gradient_sq)
    phi = moments.context_probs @ (moments.reward_variance * moments.fisher_trace)
    tau = moments.context_probs @ moments.norm_squared_advantage
    found = estimate_noise(steps(size, per_batch), size, phi_over_tau=phi / tau, blocks=40)
    truth = {"c1": known.c1, "c2": known.c2, "c3": known.c3, "gradient_sq": signal}
    truth |= {"g_star": optimal_group_size(known), "k_crit": critical_budget(known, signal)}
    for name, value in truth.items():
        estimate, error = getattr(found, name), getattr(found, f"{name}_se")
        assert abs(estimate - value) < 4 * error, name
        low, high = getattr(found, f"{name}_interval")
        assert low < estimate < high
    # A factor 1 + 1/(G-1)² on E‖g(X)‖² would be seen at G = 2, and a lost pair of a prompt's own terms.
    assert found.gradient_sq_se < signal / 10
    assert found.c3_se < known.c3 / 10


def test_intervals_of_windows_cover_enumeration():
    """As often as they say: 120 windows of 50 steps, whose estimates are skewed."""
    moments = PROBLEM.moments()
    known, signal = mse_constants(moments), float(moments.mean_gradient_sq)
    phi = moments.context_probs @ (moments.reward_variance * moments.fisher_trace)
    ratio = phi / (moments.context_probs @ moments.norm_squared_advantage)
    truth = {"c1": known.c1, "c2": known.c2, "c3": known.c3, "gradient_sq": signal}
    truth |= {"g_star": optimal_group_size(known), "k_crit": critical_budget(known, signal)}
    windows = steps(4, 2, count=6000).reshape(120, 50, -1)
    missed = dict.fromkeys(truth, 0)
    for each in windows:
        found = estimate_noise(each, 4, phi_over_tau=ratio)
        for name, value in truth.items():
            low, high = getattr(found, f"{name}_interval")
            missed[name] += not low <= value <= high
    # 6 of 120 are meant: more than 17 has a chance of 3e-5, none at all one of 2e-3.
    assert all(0 < count <= 17 for count in missed.values()), missed


def test_without_shuffling_what_two_pairs_of_places_say():
    """Each group is two micro-batches of its own, so that n_same is 0 or m²."""
    found = estimate_noise(steps(8, 4, shuffled=False), 8, blocks=40)
    assert found.gradient_sq == pytest.approx(
        float(PROBLEM.moments().mean_gradient_sq), abs=4 * found.gradient_sq_se
    )


def test_groups_that_are_whole_micro_batches_leave_c1_unknown():
    """No pair of micro-batches has a prompt in common."""
    found = estimate_noise(steps(4, 4, shuffled=False, count=40), 4, blocks=4)
    assert math.isnan(found.c1)
    assert math.isnan(found.g_star)
    assert found.g_star_interval == (1.0, math.inf)
    assert found.metrics() == {
        "g_star_low": 1.0, "k_crit_low": 0.0, "steps": 40.0,
        "phi_over_tau": 1.0, "phi_over_tau_se": 0.0, "phi_over_tau_low": 1.0, "phi_over_tau_high": 1.0,
    }  # fmt: skip


def test_a_gradient_that_is_not_told_from_0_has_no_end():
    """Few steps: K_crit and G* may be anything above a bound, and what is infinite is not logged."""
    found = estimate_noise(steps(2, 2, count=10), 2, blocks=5)
    assert found.k_crit_interval[1] == math.inf
    assert found.k_crit_interval[0] > 0
    assert "k_crit_high" not in found.metrics()
