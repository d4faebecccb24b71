"""Tables as a policy: moments in any coordinates, parameters of the source, and refusals."""

import numpy as np
import pytest
from scipy.stats import special_ortho_group

from tests.support.refusals import refusals, refuses
from ustat_pg.policies import ArmLinearSoftmax, TabulatedPolicy
from ustat_pg.problems import SoftmaxBandit, random_problem

X, K, D = 3, 4, 17
GENERATOR = np.random.default_rng(5)
LINEAR = ArmLinearSoftmax(GENERATOR.normal(size=(X, K, D)), GENERATOR.normal(size=D))
LOGS = np.log(LINEAR.probs)
SCORES = np.stack([LINEAR.scores(x) for x in range(X)])

FORMS = {
    "tables": TabulatedPolicy(LOGS, SCORES, LINEAR.theta, LINEAR),
    "reduced": TabulatedPolicy(LOGS, SCORES).reduced(),
}
each = pytest.mark.parametrize("policy", FORMS.values(), ids=FORMS)


@each
def test_moments_match_the_policy_in_any_coordinates(policy):
    like = random_problem(0, "plain", contexts=X)
    values = np.random.default_rng(2).normal(size=(X, K, 2))
    law = np.full((X, K, 2), 0.5)
    expected = SoftmaxBandit(LINEAR, like.context_probs, values, law).moments()
    result = SoftmaxBandit(policy, like.context_probs, values, law).moments()
    for name in ("value", "fisher_trace", "norm_advantage", "gradient_sq", "optimal_baseline"):
        assert np.allclose(getattr(result, name), getattr(expected, name), rtol=1e-11), name
    assert result.mean_gradient_sq == pytest.approx(expected.mean_gradient_sq, rel=1e-11)


def test_other_parameters_are_the_source_s():
    policy = FORMS["tables"]
    other = policy.with_theta(LINEAR.theta + 0.1)
    assert np.array_equal(other.probs, LINEAR.with_theta(LINEAR.theta + 0.1).probs)
    refuses(
        "is valid only at its own parameters", FORMS["reduced"].with_theta, FORMS["reduced"].theta
    )


def test_coordinates_are_as_many_as_directions():
    assert FORMS["reduced"].d == X * K
    assert TabulatedPolicy(LOGS, SCORES[..., :5] * 0).reduced().d == 5


def test_coordinates_are_those_of_the_inner_products_alone():
    """Whatever the rank, and whatever rounding makes of it: fixed directions mean the same in them."""
    scores = SCORES - np.einsum("xk,xkd->xd", np.exp(LOGS), SCORES)[:, None]
    turned = scores @ special_ortho_group.rvs(scores.shape[2], random_state=4)
    shaken = scores * (1 + 1e-13 * np.random.default_rng(5).normal(size=scores.shape))
    first = TabulatedPolicy(LOGS, scores).reduced().all_scores
    for other in (turned, shaken):
        assert np.abs(TabulatedPolicy(LOGS, other).reduced().all_scores - first).max() < 1e-12


def test_a_mean_that_is_rounding_is_taken_off():
    policy = TabulatedPolicy(LOGS, SCORES + 1e-12)
    assert np.abs(np.einsum("xk,xkd->xd", policy.probs, policy.all_scores)).max() < 1e-15


def test_scores_of_zero_are_a_policy():
    one = TabulatedPolicy([[0.0]], [[[1e-17]]])
    assert one.squared_norms.tolist() == [[0.0]]
    assert one.feature_norm == 1.0


test_refused = refusals(
    (lambda: TabulatedPolicy(LOGS, SCORES[:, :3]), "first two must be contexts and outputs"),
    (lambda: TabulatedPolicy(LOGS + 0.01, SCORES), r"context 0 sum to 1\.01"),
    (lambda: TabulatedPolicy(LOGS, SCORES[:, ::-1]), r"E\[s \| x\] must be 0"),
    (lambda: TabulatedPolicy(LOGS, SCORES, np.ones(3)), "theta has 3 entries and scores 17"),
)
