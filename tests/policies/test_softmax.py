"""Three parametrisations of one policy: against each other, and against finite differences."""

from __future__ import annotations

import numpy as np
import pytest

from ustat_pg.policies import ArmLinearSoftmax, BentSoftmax, SharedLinearSoftmax, TabularSoftmax
from ustat_pg.validation import InputError

X, K, M = 3, 4, 2
GENERATOR = np.random.default_rng(11)
TABLE = GENERATOR.normal(size=(X, K))
ARM_FEATURES = GENERATOR.normal(size=(X, K, 5))
ARM_THETA = GENERATOR.normal(size=5)
OFFSET = np.random.default_rng(12).normal(size=(X, K))
BENDS = np.random.default_rng(13).normal(size=(X, K, 5))
CONTEXT_FEATURES = GENERATOR.normal(size=(X, M))
WEIGHTS = GENERATOR.normal(size=(K, M))

POLICIES = {
    "tabular": TabularSoftmax(TABLE),
    "linear": ArmLinearSoftmax(ARM_FEATURES, ARM_THETA),
    "offset": ArmLinearSoftmax(ARM_FEATURES, ARM_THETA, OFFSET),
    "bent": BentSoftmax(ARM_FEATURES, BENDS, ARM_THETA, OFFSET),
    "bent-plain": BentSoftmax(ARM_FEATURES, BENDS, ARM_THETA),
    "shared": SharedLinearSoftmax(CONTEXT_FEATURES, WEIGHTS),
    "one-arm": TabularSoftmax(TABLE[:, :1]),
    "one-context": SharedLinearSoftmax(CONTEXT_FEATURES[:1], WEIGHTS),
    "sharp": TabularSoftmax(TABLE * 30),
}
each = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


def dense(policy):
    return np.stack([policy.scores(x) for x in range(len(policy.probs))])


def log_probs(policy):
    return policy.logits - np.log(np.exp(policy.logits).sum(axis=1, keepdims=True))


@each
def test_probabilities_are_the_softmax_of_the_logits(policy):
    assert np.allclose(policy.probs, np.exp(log_probs(policy)), rtol=1e-12, atol=0)
    assert np.allclose(policy.probs.sum(axis=1), 1.0, rtol=0, atol=1e-14)


def test_large_logits_do_not_overflow():
    policy = TabularSoftmax(np.array([[1000.0, 999.0, -1000.0]]))
    assert policy.probs[0] == pytest.approx([1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1)), 0.0])
    assert np.isfinite(policy.scores(0)).all()


@each
def test_scores_are_the_derivatives_of_the_log_probabilities(policy):
    step = 1e-5
    scores = dense(policy)
    assert scores.shape == (*policy.probs.shape, policy.d)
    for i in range(policy.d):
        shift = step * np.eye(policy.d)[i]
        up = log_probs(policy.with_theta(policy.theta + shift))
        down = log_probs(policy.with_theta(policy.theta - shift))
        assert np.allclose(scores[:, :, i], (up - down) / (2 * step), rtol=0, atol=1e-7)


@each
def test_scores_have_mean_zero(policy):
    mean = np.einsum("xk,xkd->xd", policy.probs, dense(policy))
    assert np.abs(mean).max() < 1e-14


@each
def test_products_agree_with_dense_scores(policy):
    scores = dense(policy)
    generator = np.random.default_rng(2)
    vector = generator.normal(size=policy.d)
    assert np.allclose(policy.inner(vector), scores @ vector, rtol=0, atol=1e-13)
    assert np.allclose(policy.squared_norms, (scores**2).sum(axis=2), rtol=0, atol=1e-13)
    contexts = range(len(scores))
    for x in contexts:
        weights = generator.normal(size=(2, 3, scores.shape[1]))
        combined = policy.combine(x, weights)
        assert combined.shape == (2, 3, policy.d)
        assert np.allclose(combined, weights @ scores[x], rtol=0, atol=1e-13)
        assert np.allclose(policy.combine(x, weights[0, 0]), weights[0, 0] @ scores[x])
        for y in contexts:
            expected = scores[x] @ scores[y].T
            assert np.allclose(policy.gram(x, y), expected, rtol=0, atol=1e-13)


@each
def test_sums_over_all_contexts_agree_with_dense_scores(policy):
    scores = dense(policy)
    contexts, arms = policy.probs.shape
    generator = np.random.default_rng(3)
    weights, chance = generator.normal(size=(contexts, arms)), generator.dirichlet([1.0] * contexts)
    sums = np.einsum("xk,xkd->xd", weights, scores)
    assert np.allclose(policy.mean_combination(weights, chance), chance @ sums, rtol=0, atol=1e-13)
    found = policy.squared_combinations(weights)
    assert np.allclose(found, (sums**2).sum(axis=1), rtol=1e-12, atol=1e-13)
    for possible in (
        np.ones((contexts, arms), bool),
        np.arange(arms) % 2 == np.zeros((contexts, 1)),
    ):
        expected = [
            max(np.linalg.norm(s - t) for s in own[here] for t in own[here])
            for own, here in zip(scores, possible, strict=True)
        ]
        assert np.allclose(policy.diameters(possible), expected, rtol=1e-7, atol=1e-7)


def test_the_three_forms_agree_where_they_coincide():
    """Logits as parameters: one-hot features of the context, or of context and arm."""
    tabular = TabularSoftmax(TABLE)
    onehot = np.eye(X * K).reshape(X, K, X * K)
    linear = ArmLinearSoftmax(onehot, TABLE.ravel())
    # Shared form: θ is W row by row, so its parameters are the table's transposed.
    shared = SharedLinearSoftmax(np.eye(X), TABLE.T)
    order = np.arange(X * K).reshape(X, K).T.ravel()
    vector = np.random.default_rng(3).normal(size=X * K)
    for other, place in ((linear, np.arange(X * K)), (shared, order)):
        assert np.array_equal(other.theta, tabular.theta[place])
        assert np.allclose(other.probs, tabular.probs, rtol=0, atol=1e-15)
        assert np.allclose(dense(other), dense(tabular)[..., place], rtol=0, atol=1e-15)
        assert np.allclose(other.inner(vector[place]), tabular.inner(vector), rtol=0, atol=1e-14)
        assert np.allclose(other.squared_norms, tabular.squared_norms, rtol=0, atol=1e-14)
        for x in range(X):
            for y in range(X):
                assert np.allclose(other.gram(x, y), tabular.gram(x, y), rtol=0, atol=1e-14)


def test_the_shared_form_is_linear_in_product_features():
    shared = POLICIES["shared"]
    features = np.einsum("xm,kl->xklm", CONTEXT_FEATURES, np.eye(K)).reshape(X, K, K * M)
    linear = ArmLinearSoftmax(features, WEIGHTS.ravel())
    assert np.allclose(linear.logits, shared.logits)
    assert np.allclose(dense(linear), dense(shared), rtol=0, atol=1e-14)


def test_an_offset_is_one_more_feature_whose_parameter_stays_at_one():
    policy, plain = POLICIES["offset"], POLICIES["linear"]
    wide = ArmLinearSoftmax(
        np.concatenate([ARM_FEATURES, OFFSET[:, :, None]], axis=2), np.append(ARM_THETA, 1.0)
    )
    assert np.allclose(policy.logits - plain.logits, OFFSET, rtol=0, atol=1e-14)
    assert np.allclose(policy.probs, wide.probs, rtol=0, atol=1e-15)
    assert np.allclose(dense(policy), dense(wide)[..., :-1], rtol=0, atol=1e-14)
    other = ARM_THETA - 0.3
    assert np.allclose(policy.with_theta(other).probs, wide.with_theta(np.append(other, 1.0)).probs)
    assert np.abs(policy.probs - plain.probs).max() > 0.05


def test_no_offset_and_a_zero_offset_are_the_same_policy():
    zero = ArmLinearSoftmax(ARM_FEATURES, ARM_THETA, np.zeros((X, K)))
    assert np.array_equal(zero.logits, POLICIES["linear"].logits)
    assert POLICIES["linear"].offset is None


def test_an_offset_of_each_context_s_own_constant_changes_nothing():
    shifted = ArmLinearSoftmax(ARM_FEATURES, ARM_THETA, np.full((X, K), [[5.0], [-3.0], [0.5]]))
    assert np.allclose(shifted.probs, POLICIES["linear"].probs, rtol=0, atol=1e-15)
    assert np.allclose(dense(shifted), dense(POLICIES["linear"]), rtol=0, atol=1e-14)


@each
def test_the_feature_norm_bounds_what_a_score_is_a_difference_of(policy):
    """A score is φ(x, k) less a mean of φ(x, ·): neither is longer."""
    longest = np.sqrt(policy.squared_norms.max())
    assert longest <= 2 * policy.feature_norm
    assert policy.feature_norm > 0
    if isinstance(policy, ArmLinearSoftmax):
        expected = max(np.linalg.norm(row) for row in policy.features.reshape(-1, policy.d))
        assert policy.feature_norm == pytest.approx(expected, rel=1e-15)


def test_an_offset_changes_no_feature_norm():
    """It shifts logits, not scores: however large it is, nothing more cancels in a score."""
    huge = ArmLinearSoftmax(ARM_FEATURES, ARM_THETA, 1e6 * OFFSET)
    assert huge.feature_norm == POLICIES["linear"].feature_norm == POLICIES["offset"].feature_norm


@each
def test_restriction_keeps_the_contexts_in_the_order_asked_for(policy):
    contexts = np.arange(len(policy.probs))[::-1][:2]
    part = policy.restrict(contexts)
    assert type(part) is type(policy)
    assert np.array_equal(part.probs, policy.probs[contexts])
    assert np.allclose(part.squared_norms, policy.squared_norms[contexts], rtol=0, atol=1e-15)


@each
def test_other_parameters_leave_the_policy_alone(policy):
    before = policy.theta.copy()
    assert np.array_equal(policy.with_theta(policy.theta).probs, policy.probs)
    other = policy.with_theta(2 * policy.theta + 0.1)
    assert type(other) is type(policy)
    assert np.array_equal(other.theta, 2 * before + 0.1)
    assert np.allclose(other.probs, np.exp(log_probs(other)))
    assert np.array_equal(policy.theta, before)


@each
def test_the_number_of_parameters(policy):
    assert policy.d == len(policy.theta) == policy.scores(0).shape[1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TabularSoftmax([1.0, 2.0]), "logits has shape"),
        (lambda: TabularSoftmax([[1.0, np.nan]]), "logits holds nan"),
        (lambda: TabularSoftmax([[1.0], [1.0, 2.0]]), "logits is ragged"),
        (lambda: ArmLinearSoftmax(np.ones((2, 3)), np.ones(3)), "features has shape"),
        (lambda: ArmLinearSoftmax(np.ones((2, 3, 4)), np.ones(3)), "4 entries per arm and theta 3"),
        (lambda: ArmLinearSoftmax(np.ones((2, 3, 4)), [1, 1, 1, np.inf]), "theta holds inf"),
        (
            lambda: ArmLinearSoftmax(np.ones((2, 3, 4)), np.ones(4), np.ones((3, 2))),
            "offset has sh",
        ),
        (lambda: ArmLinearSoftmax(np.ones((2, 3, 4)), np.ones(4), np.ones(3)), "offset has shape"),
        (
            lambda: ArmLinearSoftmax(np.ones((1, 2, 4)), np.ones(4), [[0.0, -np.inf]]),
            "offset holds -inf",
        ),
        (
            lambda: BentSoftmax(np.ones((1, 2, 4)), np.ones((1, 2, 3)), np.ones(4)),
            r"bends has shape \(1, 2, 3\): it must be that of the features, \(1, 2, 4\)",
        ),
        (
            lambda: BentSoftmax(np.ones((1, 2, 1)), [[[np.nan], [0]]], np.ones(1)),
            r"bends holds nan at \[0, 0, 0\]",
        ),
        (lambda: SharedLinearSoftmax(np.ones((2, 3)), np.ones((4, 2))), "3 columns and weights 2"),
        (lambda: SharedLinearSoftmax(np.ones((2, 3)), np.ones(3)), "weights has shape"),
    ],
)
def test_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


@each
def test_parameters_of_another_length_are_refused(policy):
    with pytest.raises(ValueError):
        policy.with_theta(np.ones(policy.d + 1))


@pytest.mark.parametrize("name", ["linear", "offset", "bent", "bent-plain"])
def test_many_parameters_at_once_are_policies_one_by_one(name):
    policy = POLICIES[name]
    theta = np.random.default_rng(3).normal(size=(6, policy.d))
    logits, features = policy.logits_at(theta), policy.features_at(theta)
    for row, at, tangent in zip(theta, logits, features, strict=True):
        other = policy.with_theta(row)
        assert np.allclose(other.logits, at, rtol=0, atol=1e-13)
        mean = np.einsum("xk,xkd->xd", other.probs, tangent)
        assert np.allclose(other.all_scores, tangent - mean[:, None], rtol=0, atol=1e-13)


@each
def test_the_curvature_is_that_of_the_logits(policy):
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
    found = policy.curvature(weights, chances)
    assert np.allclose(found[:6], np.array(numeric) / 0.01, rtol=0, atol=1e-9)
    assert (np.abs(found).max() > 0.1) == isinstance(policy, BentSoftmax)
