"""Softmax policies: offsets, large logits, many parameters at once, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.policies import (
    ARM_FEATURES,
    ARM_THETA,
    LINEAR,
    OFFSET,
    K,
    X,
)
from ustat_pg.policies import ArmLinearSoftmax, TabularSoftmax


def dense(policy):
    return np.stack([policy.scores(x) for x in range(len(policy.probs))])


def test_large_logits_do_not_overflow():
    policy = TabularSoftmax(np.array([[1000.0, 999.0, -1000.0]]))
    assert policy.probs[0] == pytest.approx([1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1)), 0.0])
    assert np.isfinite(policy.scores(0)).all()


def test_no_offset_and_a_zero_offset_are_the_same_policy():
    zero = ArmLinearSoftmax(ARM_FEATURES, ARM_THETA, np.zeros((X, K)))
    assert np.array_equal(zero.logits, LINEAR["linear"].logits)
    assert LINEAR["linear"].offset is None


def test_an_offset_of_each_context_s_own_constant_changes_nothing():
    shifted = ArmLinearSoftmax(ARM_FEATURES, ARM_THETA, np.full((X, K), [[5.0], [-3.0], [0.5]]))
    assert np.allclose(shifted.probs, LINEAR["linear"].probs, rtol=0, atol=1e-15)
    assert np.allclose(dense(shifted), dense(LINEAR["linear"]), rtol=0, atol=1e-14)


def test_an_offset_changes_no_feature_norm():
    """It shifts logits, not scores: however large it is, nothing more cancels in a score."""
    huge = ArmLinearSoftmax(ARM_FEATURES, ARM_THETA, 1e6 * OFFSET)
    assert huge.feature_norm == LINEAR["linear"].feature_norm == LINEAR["offset"].feature_norm


@pytest.mark.parametrize("name", ["linear", "offset", "bent", "bent-plain"])
def test_many_parameters_at_once_are_policies_one_by_one(name):
    policy = LINEAR[name]
    theta = np.random.default_rng(3).normal(size=(6, policy.d))
    logits, features = policy.logits_at(theta), policy.features_at(theta)
    for row, at, tangent in zip(theta, logits, features, strict=True):
        other = policy.with_theta(row)
        assert np.allclose(other.logits, at, rtol=0, atol=1e-13)
        mean = np.einsum("xk,xkd->xd", other.probs, tangent)
        assert np.allclose(other.all_scores, tangent - mean[:, None], rtol=0, atol=1e-13)
