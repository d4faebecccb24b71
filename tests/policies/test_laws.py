"""Laws of every policy: probabilities, scores, and products against dense scores."""

import pickle

import numpy as np
import pytest

from tests.support.policies import FORMS, LINEAR, dense, policy_of
from ustat_pg.execution import memory as limits
from ustat_pg.policies import ArmLinearSoftmax, TabularSoftmax, TabulatedPolicy

MOVING = [name for name in FORMS if not name.startswith("tables")]


@pytest.fixture(params=list(FORMS))
def name(request):
    return request.param


@pytest.fixture
def policy(name):
    return policy_of(name)


def logs_of(policy):
    return policy.logits - np.log(np.exp(policy.logits).sum(axis=1, keepdims=True))


def scores_of(policy):
    return np.stack([policy.scores(x) for x in range(len(policy.probs))])


def test_probabilities_and_scores_are_those_found_in_another_way(name, policy):
    logs, scores = dense(name)
    rounding = FORMS[name].rounding / 10
    assert np.allclose(policy.probs, np.exp(logs), rtol=1e-12, atol=0)
    assert np.allclose(logs_of(policy), logs, rtol=0, atol=10 * rounding)
    assert np.allclose(policy.probs.sum(axis=1), 1.0, rtol=0, atol=1e-14)
    assert policy.d == len(policy.theta) == policy.scores(0).shape[1]
    assert np.allclose(scores_of(policy), scores, rtol=0, atol=rounding)
    mean = np.einsum("xk,xkd->xd", policy.probs, scores_of(policy))
    assert np.abs(mean).max() < rounding


@pytest.mark.parametrize("name", [name for name in FORMS if FORMS[name].slope])
def test_scores_are_the_derivatives_of_the_log_probabilities(name, policy):
    step, scores = 1e-5, scores_of(policy)
    for i in range(0, policy.d, FORMS[name].stride):
        shift = step * np.eye(policy.d)[i]
        up, down = (logs_of(policy.with_theta(policy.theta + s)) for s in (shift, -shift))
        slopes = (up - down) / (2 * step)
        assert np.allclose(scores[:, :, i], slopes, rtol=0, atol=FORMS[name].slope)


def test_products_agree_with_dense_scores(name, policy):
    scores, rounding = dense(name)[1], FORMS[name].rounding
    contexts, count = policy.probs.shape
    generator = np.random.default_rng(2)
    vector = generator.normal(size=policy.d)
    assert np.allclose(policy.inner(vector), scores @ vector, rtol=0, atol=rounding)
    norms = (scores**2).sum(axis=2)
    assert np.allclose(policy.squared_norms, norms, rtol=rounding - 1e-13, atol=rounding)
    for x in range(contexts):
        for leading in ((), (2,), (2, 3)):
            weights = generator.normal(size=(*leading, count))
            combined = policy.combine(x, weights)
            assert combined.shape == (*leading, policy.d)
            assert np.allclose(combined, weights @ scores[x], rtol=0, atol=rounding)
        for y in range(contexts):
            expected = scores[x] @ scores[y].T
            assert np.allclose(policy.gram(x, y), expected, rtol=0, atol=rounding)
    weights, chance = (
        generator.normal(size=(contexts, count)),
        generator.dirichlet([1.0] * contexts),
    )
    sums = np.einsum("xk,xkd->xd", weights, scores)
    mean = policy.mean_combination(weights, chance)
    assert np.allclose(mean, chance @ sums, rtol=0, atol=rounding)
    squares = (sums**2).sum(axis=1)
    result = policy.squared_combinations(weights)
    assert np.allclose(result, squares, rtol=max(rounding, 1e-12), atol=rounding)
    every = np.ones((contexts, count), bool)
    for possible in (every, every & (np.arange(count) % 2 == 0), every & (np.arange(count) != 1)):
        expected = [
            max(np.linalg.norm(s - t) for s in rows[kept] for t in rows[kept])
            for rows, kept in zip(scores, possible, strict=True)
        ]
        assert np.allclose(
            policy.diameters(possible), expected, rtol=1e-7, atol=1e5 * rounding + 1e-7
        )


def test_restriction_and_copies(policy):
    contexts = np.arange(len(policy.probs))[::-1][:2]
    part = policy.restrict(contexts)
    assert type(part) is type(policy)
    assert np.allclose(part.probs, policy.probs[contexts], rtol=1e-12, atol=0)
    assert np.allclose(part.squared_norms, policy.squared_norms[contexts], rtol=1e-12, atol=1e-15)
    again = pickle.loads(pickle.dumps(policy))
    assert np.array_equal(again.theta, policy.theta)
    assert np.allclose(again.scores(0), policy.scores(0), rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", MOVING)
def test_other_parameters_leave_the_policy_alone(policy):
    before = policy.theta.copy()
    assert np.allclose(policy.with_theta(policy.theta).probs, policy.probs, rtol=1e-12, atol=0)
    other = policy.with_theta(2 * policy.theta + 0.1)
    assert type(other) is type(policy)
    assert np.array_equal(other.theta, 2 * before + 0.1)
    assert np.allclose(other.probs, np.exp(logs_of(other)))
    assert np.array_equal(policy.theta, before)
    with pytest.raises(ValueError):
        policy.with_theta(np.ones(policy.d + 1))


@pytest.mark.parametrize("name", LINEAR)
def test_the_feature_norm_bounds_both_terms_of_a_score(policy):
    """A score is φ(x, k) less a mean of φ(x, ·): neither is longer."""
    longest = np.sqrt(policy.squared_norms.max())
    assert longest <= 2 * policy.feature_norm
    assert policy.feature_norm > 0
    if isinstance(policy, ArmLinearSoftmax):
        features = policy.arrays()["features"]
        expected = max(np.linalg.norm(row) for row in features.reshape(-1, policy.d))
        assert policy.feature_norm == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    "name", [name for name in FORMS if name.startswith("prefix-") or name in LINEAR]
)
def test_the_derivative_of_a_score_is_a_difference_of_scores(policy):
    step, (contexts, arms) = 1e-5, policy.logits.shape
    directions = np.random.default_rng(6).normal(size=(contexts, arms, policy.d))
    for x in range(contexts):
        found = policy.score_derivative(x, directions[x])
        for k, along in enumerate(directions[x]):
            up, down = (
                policy.with_theta(policy.theta + sign * step * along).scores(x)[k]
                for sign in (1, -1)
            )
            assert np.allclose(found[k], (up - down) / (2 * step), rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", LINEAR)
def test_curvature_matches_the_logits(policy):
    """Σ ρ w ∇² logit by second differences of the logits; zero but for bends."""
    contexts, arms = policy.logits.shape
    rng = np.random.default_rng(5)
    weights, chances = rng.normal(size=(contexts, arms)), rng.dirichlet(np.ones(contexts))
    total = weights * chances[:, None]

    def summed(theta):
        return (policy.with_theta(theta).logits * total).sum()

    units = 0.1 * np.eye(policy.d)[:6]
    numeric = [
        summed(policy.theta + h) - 2 * summed(policy.theta) + summed(policy.theta - h)
        for h in units
    ]
    result = policy.curvature(weights, chances)
    assert np.allclose(result[:6], np.array(numeric) / 0.01, rtol=0, atol=1e-9)
    assert (np.abs(result).max() > 0.1) == (policy.bends is not None)


def test_large_logits_do_not_overflow():
    policy = TabularSoftmax(np.array([[1000.0, 999.0, -1000.0]]))
    assert policy.probs[0] == pytest.approx([1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1)), 0.0])
    assert np.isfinite(policy.scores(0)).all()


@pytest.mark.parametrize("name", FORMS)
def test_logits_at_many_parameters_match_each(policy, monkeypatch):
    if isinstance(policy, TabulatedPolicy) and policy.source is None:
        pytest.skip("tables hold at their own parameters alone")
    theta = policy.theta + 0.1 * np.random.default_rng(3).normal(size=(5, policy.d))
    wanted = np.stack([policy.with_theta(row).logits for row in theta])
    for allowed in (limits.MEMORY, 1):
        monkeypatch.setattr(limits, "MEMORY", allowed)
        assert np.allclose(policy.logits_at(theta), wanted, rtol=0, atol=1e-13)


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
