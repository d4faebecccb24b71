"""The bent bandit against loops, finite differences, mpmath, grids and closed forms."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import scipy.linalg
from scipy.special import expit, logit

from ustat_pg.engines import Estimator, GradientCell, SquaredError
from ustat_pg.predictions import gradient_covariance, gradient_mse
from ustat_pg.problems import (
    BentBandit,
    LocationBandit,
    SoftmaxBandit,
    norm_only_problem,
    ordered_problem,
)
from ustat_pg.validation import InputError, changed


def random_bent(seed, contexts, d=2, arms=4):
    """Unequal prompts, an offset, noisy graded rewards; better arms bend more, some backwards."""
    rng = np.random.default_rng(seed)
    mean = rng.uniform(0.1, 0.9, (contexts, arms))
    spread = rng.uniform(0.05, 0.3, (contexts, arms))
    values = np.stack([mean - spread, mean + 2 * spread], axis=-1)
    noise = rng.uniform(0.9, 1.1, (contexts, arms, d))
    return BentBandit(
        rng.dirichlet(np.full(contexts, 5.0)),
        rng.normal(size=(contexts, arms, d)),
        4 * mean[:, :, None] * noise - 1.5,
        values,
        np.broadcast_to([2 / 3, 1 / 3], values.shape),
        rng.normal(scale=0.3, size=(contexts, arms)),
    )


def located():
    """A location bandit, flat in one direction, as a bent one that does not bend."""
    location = LocationBandit.bump([-1, 0, 1], [-0.7, 0.8, 0.3], flat_dimensions=1)
    bandit = location.at(np.zeros(3))
    features = bandit.policy.features
    return location, BentBandit(
        bandit.context_probs,
        features,
        np.zeros_like(features),
        bandit.reward_values,
        bandit.reward_probs,
        bandit.policy.offset,
    )


def half_flat():
    """One parameter that only an arm's features see, one in no mean reward, one in a lost context.

    The second parameter moves all arms alike, the third those of a context of one mean reward.
    """
    features = np.zeros((2, 3, 3))
    features[0, :, 0] = [0.3, 0.0, -0.2]
    features[:, :, 1] = 0.7
    features[1, :, 2] = [1.0, 2.0, 3.0]
    bends = np.zeros((2, 3, 3))
    bends[0, :, 0] = [2.0, 0.0, 0.0]
    bends[:, :, 1] = 1.3
    bends[1, :, 2] = [0.0, 1.0, 2.0]
    values = np.array([[[1.0, 1.0], [0.0, 0.0], [0.2, 0.2]], [[-1.0, 1.0], [-0.5, 0.5], [0, 0]]])
    return BentBandit([0.6, 0.4], features, bends, values, np.full((2, 3, 2), 0.5))


PROBLEMS = {
    "one-context": random_bent(2, 1),
    "two-contexts": random_bent(3, 2),
    "three-parameters": random_bent(1, 3, d=3),
    "located": located()[1],
    "half-flat": half_flat(),
    "ordered": ordered_problem(3, bend=[1.0, 2.0, 0.5], value=0.3),
    "norm-only": norm_only_problem(),
}
each = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)


def places(problem, seed=0, count=4):
    rng = np.random.default_rng(seed)
    return problem.maximiser + rng.normal(0.0, 0.7, (count, problem.d))


def probabilities(problem, theta, x):
    """π(. | x) from the definition."""
    logits = []
    for k in range(problem.features.shape[1]):
        value = 0.0 if problem.offset is None else problem.offset[x, k]
        for j, t in enumerate(theta):
            value += problem.features[x, k, j] * t - 0.5 * problem.bends[x, k, j] * t * t
        logits.append(value)
    weights = np.exp(np.array(logits) - max(logits))
    return weights / weights.sum()


def returned(problem, theta):
    """J by a loop over contexts, arms and rewards, from the definition."""
    total = 0.0
    for x, chance in enumerate(problem.context_probs):
        for k, weight in enumerate(probabilities(problem, theta, x)):
            total += chance * weight * (problem.rewards[x, k] @ problem.reward_probs[x, k])
    return total


def derivative(function, theta, step):
    """Central differences, fourth order."""
    out = []
    for unit in np.eye(len(theta)):
        h = step * unit
        near, far = function(theta + h) - function(theta - h), function(theta + 2 * h)
        out.append((8 * near - far + function(theta - 2 * h)) / (12 * step))
    return np.stack(out)


def hessian_error(problem, hessian, theta):
    """How far a Hessian is from the differences of the loop's gradient."""
    numeric = derivative(lambda t: derivative(lambda s: returned(problem, s), t, 2e-3), theta, 2e-3)
    return np.abs(hessian - numeric).max()


# Return, gradient, Hessian.


@each
def test_the_return_and_its_derivatives_are_those_of_the_loop(problem):
    for theta in places(problem):
        assert problem.objective(theta) == pytest.approx(returned(problem, theta), abs=1e-14)
        numeric = derivative(lambda t: returned(problem, t), theta, 1e-3)
        assert np.allclose(problem.gradient(theta), numeric, rtol=0, atol=1e-9)
        assert hessian_error(problem, problem.hessian(theta), theta) < 1e-7


def test_the_harness_sees_a_planted_error_of_the_hessian():
    """Negative control: no bends in it, their sign wrong, and the linear policy's Hessian."""
    problem = PROBLEMS["two-contexts"]
    theta = places(problem)[0]
    right = problem.hessian(theta)
    policy = problem.at(theta).policy
    linear = SoftmaxBandit(
        policy.tangent, problem.context_probs, problem.rewards, problem.reward_probs
    ).hessian()
    assert hessian_error(problem, right, theta) < 1e-7
    for wrong in (linear, 2 * linear - right, -right):
        assert hessian_error(problem, wrong, theta) > 1e-2


@each
def test_many_parameters_at_once_are_one_after_another(problem):
    theta = places(problem, count=6).reshape(2, 3, problem.d)
    for function, order in ((problem.objective, 0), (problem.gradient, 1), (problem.hessian, 2)):
        found = function(theta)
        assert found.shape == (2, 3) + (problem.d,) * order
        for i in np.ndindex(2, 3):
            assert np.allclose(found[i], function(theta[i]), rtol=0, atol=1e-15)
    assert problem.gap(theta)[1, 2] == pytest.approx(float(problem.gap(theta[1, 2])), abs=1e-15)
    assert np.allclose(problem.project(theta)[1, 2], problem.project(theta[1, 2]), atol=1e-15)


def test_lots_do_not_change_a_value(monkeypatch):
    problem = PROBLEMS["three-parameters"]
    theta = places(problem, count=50)
    whole = [f(theta) for f in (problem.objective, problem.gradient, problem.hessian, problem.gap)]
    monkeypatch.setattr("ustat_pg.problems.interior._CHUNK_ENTRIES", problem.features.size * 7)
    parts = [f(theta) for f in (problem.objective, problem.gradient, problem.hessian, problem.gap)]
    for one, two in zip(whole, parts, strict=True):
        assert np.allclose(one, two, rtol=1e-13, atol=1e-15)


# The tangent.


@each
def test_the_tangent_has_the_probabilities_and_scores_of_the_bent_policy(problem):
    for theta in places(problem):
        bandit = problem.at(theta)
        assert isinstance(bandit, SoftmaxBandit)
        assert np.array_equal(bandit.policy.theta, theta)
        for x in range(problem.contexts):
            probs = probabilities(problem, theta, x)
            assert np.allclose(bandit.policy.probs[x], probs, rtol=1e-13, atol=0)
            numeric = derivative(lambda t, x=x: np.log(probabilities(problem, t, x)), theta, 1e-3)
            assert np.allclose(bandit.policy.scores(x), numeric.T, rtol=0, atol=1e-9)
        assert bandit.objective() == pytest.approx(float(problem.objective(theta)), abs=1e-14)
        assert np.allclose(bandit.gradient(), problem.gradient(theta), rtol=0, atol=1e-14)


@each
def test_the_hessian_is_that_of_the_bandit_and_the_tangents_less_the_mean_bend(problem):
    """∇²J = E[a s sᵀ] - diag E[a ψ], the first from the bandit's own enumeration."""
    for theta in places(problem):
        bandit = problem.at(theta)
        bend = np.zeros(problem.d)
        for x, chance in enumerate(problem.context_probs):
            advantage = problem.mean_rewards[x] - bandit.moments().value[x]
            bend += chance * (bandit.policy.probs[x] * advantage) @ problem.bends[x]
        products = [record.advantage for record in bandit.moments().matrices()]
        expected = np.einsum("x,xij->ij", problem.context_probs, products) - np.diag(bend)
        assert np.allclose(bandit.hessian(), expected, rtol=0, atol=1e-13)
        assert np.allclose(problem.hessian(theta), expected, rtol=0, atol=1e-13)


def test_at_other_parameters_the_policy_is_still_the_bent_one_and_not_its_tangent():
    problem = PROBLEMS["two-contexts"]
    here, there = places(problem)[:2]
    moved, direct = problem.at(here).with_theta(there), problem.at(there)
    assert np.array_equal(moved.policy.probs, direct.policy.probs)
    assert moved.digest == direct.digest
    assert problem.at(here).objective(there) == pytest.approx(direct.objective(), rel=1e-13)
    tangent = problem.at(here).policy.tangent.with_theta(there)
    assert np.abs(tangent.probs - direct.policy.probs)[0].max() > 0.01


def test_bends_name_runs_and_not_gradients_at_the_point_of_contact():
    """At 0 bends show in no gradient: the same draws, but others for runs that leave 0."""
    one, two = (ordered_problem(2, bend=bend).at(np.zeros(2)) for bend in (1.0, 2.0))
    assert one.digest == two.digest
    assert one.path_digest != two.path_digest
    assert one.path_digest.startswith(f"{one.digest}/bent")
    linear = SoftmaxBandit(one.policy.tangent, [1.0], one.reward_values, one.reward_probs)
    assert linear.path_digest == linear.digest == one.digest


@pytest.mark.parametrize("name", ["exact", "cpu"])
def test_engines_measure_at_the_tangent_what_is_predicted(name):
    problem = PROBLEMS["two-contexts"]
    bandit = problem.at(places(problem)[2])
    cell = GradientCell(bandit, 3)
    found = cell.measure(name, (SquaredError(Estimator("grpo")),), replications=100_000, seed=1)
    expected = gradient_mse(bandit.moments(), "grpo", 3).mse
    if name == "exact":
        assert found.mean[0] == pytest.approx(expected, rel=1e-12)
    else:
        error = np.sqrt(found.covariance[0, 0] / found.n)
        assert abs(found.mean[0] - expected) < 5 * error < 0.05 * expected


# The maximiser.


@each
def test_the_maximiser_is_the_best_of_a_dense_grid(problem):
    if problem.identifiable.shape[1] > 2:
        rng = np.random.default_rng(0)
        points = rng.uniform(-problem.radius, problem.radius, (40_000, problem.d))
    else:
        axis = np.linspace(-problem.radius, problem.radius, 201)
        mesh = np.stack(np.meshgrid(*[axis] * problem.identifiable.shape[1]), axis=-1)
        points = mesh.reshape(-1, mesh.shape[-1]) @ problem.identifiable.T
    inside = np.linalg.norm(points @ problem.identifiable, axis=1) <= problem.radius
    heights = problem.objective(points[inside])
    assert heights.max() <= problem.maximum + 1e-15
    best = points[inside][heights.argmax()] - problem.maximiser
    away = np.linalg.norm((points[inside] - problem.maximiser) @ problem.identifiable, axis=1)
    assert np.linalg.norm(best @ problem.identifiable) < 3 * away.min() + 0.05


@each
def test_the_boundary_is_below_the_maximum_by_the_margin(problem):
    """Found by a search: a sample of the boundary is no higher, and comes near."""
    rank = problem.identifiable.shape[1]
    units = np.random.default_rng(7).normal(size=(20_000, rank))
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    heights = problem.objective(problem.radius * units @ problem.identifiable.T)
    margin = problem.certificate.boundary_margin
    assert heights.max() <= problem.maximum - margin + 1e-9
    assert heights.max() > problem.maximum - margin - 0.01


@each
def test_the_certificate_says_what_holds(problem):
    certificate = problem.certificate
    assert np.linalg.norm(problem.gradient(problem.maximiser)) < 1e-14
    assert certificate.gradient_norm < 1e-14
    assert certificate.smallest_curvature == problem.curvatures[0] > 0
    assert certificate.boundary_margin > 0
    length = np.linalg.norm(problem.identifiable.T @ problem.maximiser)
    assert certificate.distance_to_boundary == pytest.approx(problem.radius - length)
    for place, height in certificate.other_maxima:
        assert height < problem.maximum
        assert problem.objective(place) == pytest.approx(height, abs=1e-14)


@each
def test_the_frame_is_that_of_the_hessian(problem):
    u, n = problem.identifiable, problem.flat
    both = np.concatenate([u, n], axis=1)
    assert np.allclose(both.T @ both, np.eye(problem.d), rtol=0, atol=1e-13)
    hessian = problem.hessian(problem.maximiser)
    assert np.allclose(hessian, -(u * problem.curvatures) @ u.T, rtol=0, atol=1e-14)
    assert (np.diff(problem.curvatures) >= 0).all()
    assert np.abs(n.T @ problem.maximiser).max(initial=0.0) < 1e-14


def test_bends_of_zero_are_the_location_bandit():
    location, bent = located()
    assert np.allclose(bent.maximiser, location.maximiser, rtol=0, atol=1e-12)
    assert np.allclose(bent.curvatures, location.curvatures, rtol=1e-10)
    assert np.allclose(bent.identifiable, location.identifiable, rtol=0, atol=1e-9)
    for theta in places(location):
        assert bent.gap(theta) == pytest.approx(location.gap(theta), rel=1e-9)
        assert np.allclose(bent.hessian(theta), location.hessian(theta), rtol=0, atol=1e-13)
        assert np.allclose(bent.project(theta), location.project(theta), rtol=0, atol=1e-11)


def test_flat_directions_are_those_that_no_seen_difference_of_logits_depends_on():
    problem = PROBLEMS["half-flat"]
    assert problem.identifiable.shape == (3, 1)
    assert np.abs(problem.identifiable[:, 0]) == pytest.approx([1.0, 0.0, 0.0], abs=1e-14)
    theta = np.array([0.3, -1.0, 2.0])
    moved = theta + problem.flat @ [5.0, -3.0]
    assert problem.objective(moved) == pytest.approx(float(problem.objective(theta)), abs=1e-15)
    assert problem.gap(moved) == pytest.approx(float(problem.gap(theta)), rel=1e-13)
    far = problem.maximiser + problem.flat @ [300.0, 400.0]
    assert np.linalg.norm(problem.flat.T @ problem.project(far)) == pytest.approx(100.0)
    near = problem.maximiser + problem.flat @ [3.0, 4.0]
    assert np.allclose(problem.project(near), near, rtol=0, atol=1e-14)
    # The same with features as they are and a bend along the flat ones: two directions more.
    bends = problem.bends.copy()
    bends[0, 0] = [2.0, 3.3, 2.0]
    assert changed(problem, bends=bends).identifiable.shape == (3, 3)


# The gap.


def exact_gap(problem, theta):
    """J(θ*) - J(θ) - ⟨∇J(θ*), θ* - θ⟩ in 60 digits; the gradient at θ* is rounding noise."""
    with mpmath.workdps(60):

        def value(point):
            total = mpmath.mpf(0)
            for x, chance in enumerate(problem.context_probs):
                weights = []
                for k in range(problem.features.shape[1]):
                    level = mpmath.mpf(0 if problem.offset is None else problem.offset[x, k])
                    for j in range(problem.d):
                        t = point[j]
                        level += mpmath.mpf(problem.features[x, k, j]) * t
                        level -= mpmath.mpf(problem.bends[x, k, j]) * t * t / 2
                    weights.append(mpmath.exp(level))
                mean = sum(
                    w * mpmath.mpf(r) for w, r in zip(weights, problem.mean_rewards[x], strict=True)
                )
                total += mpmath.mpf(chance) * mean / sum(weights)
            return total

        best = [mpmath.mpf(t) for t in problem.maximiser]
        here = [mpmath.mpf(t) for t in theta]
        h = mpmath.mpf(10) ** -20
        slope = mpmath.mpf(0)
        for j in range(problem.d):
            up = [b + h * (i == j) for i, b in enumerate(best)]
            down = [b - h * (i == j) for i, b in enumerate(best)]
            slope += (value(up) - value(down)) / (2 * h) * (here[j] - best[j])
        return float(value(best) - value(here) + slope)


@each
@pytest.mark.parametrize("distance", [1.0, 1e-2, 1e-4, 1e-6, 1e-8])
def test_the_gap_keeps_its_digits_near_the_maximiser(problem, distance):
    rng = np.random.default_rng(1)
    for _ in range(3):
        unit = rng.normal(size=problem.identifiable.shape[1])
        theta = problem.maximiser + distance * problem.identifiable @ (unit / np.linalg.norm(unit))
        # Rounding of θ itself, of size 1e-16 beside a distance of 1e-8, moves the gap by its share.
        rounding = 4e-16 * (1 + np.abs(problem.maximiser).max()) / distance
        found = float(problem.gap(theta))
        assert found == pytest.approx(exact_gap(problem, theta), rel=1e-12 + rounding)
        assert found > 0


@each
def test_far_off_the_gap_is_the_plain_difference(problem):
    theta = places(problem, seed=3, count=200) * 3
    plain = problem.maximum - problem.objective(theta)
    assert np.allclose(problem.gap(theta), plain, rtol=0, atol=1e-13)
    assert problem.gap(problem.maximiser) == 0.0
    assert problem.gap(problem.maximiser + problem.flat.sum(axis=1)) < 1e-28


# The two problems of Corollary 10.


@pytest.mark.parametrize("value", [0.5, 0.2, 0.9])
@pytest.mark.parametrize("bend", [1.0, [0.5, 2.0, 1.0]])
def test_the_ordered_problem_has_its_closed_form(bend, value):
    problem = ordered_problem(3, bend=bend, value=value)
    beta = np.broadcast_to(bend, 3)
    theta = np.random.default_rng(0).normal(scale=3.0, size=(500, 3))
    expected = expit(logit(value) - theta**2 @ beta / 2)
    assert np.allclose(problem.objective(theta), expected, rtol=1e-12, atol=1e-15)
    assert np.array_equal(problem.maximiser, np.zeros(3))
    assert problem.maximum == pytest.approx(value, rel=1e-14)
    assert problem.curvatures == pytest.approx(np.sort(value * (1 - value) * beta), rel=1e-12)
    record = next(problem.at(np.zeros(3)).moments().matrices())
    # The matrix form of Assumption 2, and a Fisher information of I/d.
    assert np.abs(record.advantage).max() < 1e-16
    assert np.allclose(record.fisher, np.eye(3) / 3, rtol=0, atol=1e-15)
    for b in (0.0, value, 1.0):
        spread = value * (1 - value) + (value - b) ** 2
        found = gradient_covariance(problem.at(np.zeros(3)).moments(), "constant", 1, constant=b)
        assert np.allclose(found, spread / 3 * np.eye(3), rtol=0, atol=1e-15)


def test_the_ordered_problem_is_uniform_and_its_arms_are_as_described():
    problem = ordered_problem()
    assert np.allclose(problem.at([0.0, 0.0]).policy.probs, 1 / 8, rtol=0, atol=1e-16)
    arms = [tuple(row) for row in np.concatenate([problem.features, problem.bends], axis=2)[0]]
    assert len(set(arms)) == 8
    assert ordered_problem(1).features.shape == (1, 4, 1)


def test_the_norm_only_problem_has_its_closed_form():
    problem = norm_only_problem()
    theta = np.random.default_rng(0).normal(scale=2.0, size=(500, 2))
    odds = np.log(np.cosh(theta[:, 0])) - np.log(np.cosh(theta[:, 1]))
    expected = expit(odds - theta**2 @ [1.5, 0.5])
    assert np.allclose(problem.objective(theta), expected, rtol=1e-12, atol=1e-15)
    assert (problem.objective(theta) < 0.5).all()
    assert np.array_equal(problem.maximiser, np.zeros(2))
    assert np.allclose(problem.hessian(problem.maximiser), -np.eye(2) / 2, rtol=0, atol=1e-15)
    moments = problem.at(problem.maximiser).moments()
    record = next(moments.matrices())
    assert np.allclose(record.advantage, np.diag([0.25, -0.25]), rtol=0, atol=1e-16)
    # The norm form of Assumption 2 holds: V is the minimum-variance baseline.
    assert np.abs(moments.norm_advantage).max() < 1e-16
    assert gradient_mse(moments, "oracle", 4).mse == pytest.approx(
        gradient_mse(moments, "minimum-variance", 4).mse, rel=1e-14
    )


def weights(problem, baseline, group, c=8.0, **known):
    """Weights of the limit law of the scaled gap: eigenvalues of ½ Λ^½ Γ Λ^½, ascending (Theorem 8).

    Γ solves (cΛ - ½I) Γ + Γ (cΛ - ½I) = c² Σ.
    """
    moments = problem.at(problem.maximiser).moments()
    u, root = problem.identifiable, np.diag(np.sqrt(problem.curvatures))
    noise = u.T @ gradient_covariance(moments, baseline, group, **known) @ u
    drift = c * np.diag(problem.curvatures) - np.eye(len(root)) / 2
    gamma = scipy.linalg.solve_continuous_lyapunov(drift, c**2 * noise)
    return np.linalg.eigvalsh(root @ gamma @ root / 2)


BASELINES = np.linspace(-1, 2, 31)


@pytest.mark.parametrize("value", [0.5, 0.3])
def test_on_the_ordered_problem_no_baseline_has_a_smaller_weight_than_the_oracle(value):
    """Corollary 10, matrix form; a wrong sign anywhere would order some pair the other way."""
    problem = ordered_problem(2, bend=[1.0, 2.0], value=value)
    oracle = weights(problem, "oracle", 4)
    assert weights(problem, "constant", 4, constant=value) == pytest.approx(oracle, rel=1e-12)
    for b in BASELINES[np.abs(BASELINES - value) > 1e-9]:
        assert (weights(problem, "constant", 4, constant=b) > oracle).all()
    expected = oracle * (1 + value**2 / (value * (1 - value)))
    assert weights(problem, "vanilla", 4) == pytest.approx(expected, rel=1e-12)
    assert (weights(problem, "grpo", 4) > oracle).all()


def test_on_the_norm_only_problem_another_baseline_has_the_smaller_least_weight():
    """The counter-example: eigenvalues of G Cov .125 twice at b = V, .08 and .18 at b = .4."""
    problem = norm_only_problem()
    moments = problem.at(problem.maximiser).moments()
    for b, expected in ((0.5, (0.125, 0.125)), (0.4, (0.08, 0.18))):
        for group in (1, 4):
            covariance = gradient_covariance(moments, "constant", group, constant=b)
            assert np.linalg.eigvalsh(group * covariance) == pytest.approx(expected, rel=1e-12)
    oracle, other = weights(problem, "oracle", 4), weights(problem, "constant", 4, constant=0.4)
    assert other[0] < 0.7 * oracle[0]
    assert other[1] > 1.3 * oracle[1]
    assert other.sum() > oracle.sum()


def test_a_location_bandit_cannot_have_either_form_of_assumption_2():
    """Logits linear in θ: E[s sᵀ a] averages to the Hessian, its trace to -tr Λ."""
    location = LocationBandit.bump([-1, 0, 1], [-0.7, 0.8, 0.3])
    bandit = location.at(location.maximiser)
    found = sum(
        chance * record.advantage
        for chance, record in zip(bandit.context_probs, bandit.moments().matrices(), strict=True)
    )
    frame = location.identifiable
    assert np.allclose(frame.T @ found @ frame, -np.diag(location.curvatures), rtol=0, atol=1e-13)
    norm = bandit.context_probs @ bandit.moments().norm_advantage
    assert norm == pytest.approx(-location.curvatures.sum(), rel=1e-10)


# What is refused.

ONE = {
    "context_probs": [1.0],
    "features": [[[0.5], [0.0]]],
    "bends": [[[1.0], [0.0]]],
    "rewards": [[[1.0], [0.0]]],
    "reward_probs": [[[1.0], [1.0]]],
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bends": [[[1.0]]]}, r"bends has shape \(1, 1, 1\): .* features, \(1, 2, 1\)"),
        ({"bends": [[[1.0], [np.nan]]]}, "bends holds nan"),
        ({"features": [[0.5, 0.0]]}, "features has shape"),
        ({"context_probs": [0.5, 0.5]}, "context_probs has 2 entries"),
        ({"context_probs": [0.5]}, "context_probs sums to 0.5"),
        ({"rewards": [[[1.0]]]}, "must be contexts and arms"),
        ({"rewards": [[[1.0, 0.0], [0.0, 0.0]]]}, "they must be equal"),
        ({"reward_probs": [[[1.0], [0.9]]]}, "reward_probs sums to 0.9"),
        ({"offset": [[0.0]]}, "offset has shape"),
        ({"radius": 0.0}, "radius is 0"),
        ({"flat_radius": -1.0}, "flat_radius is -1"),
        ({"rewards": [[[1.0], [1.0]]]}, "the return does not depend on theta"),
        ({"features": [[[1.0], [1.0]]], "bends": [[[2.0], [2.0]]]}, "does not depend on theta"),
        # No bend: the optimum is at infinity. A bend of the other sign: a minimum.
        ({"bends": [[[0.0], [0.0]]]}, "no interior optimum"),
        ({"bends": [[[-1.0], [0.0]]]}, "no interior optimum"),
        # The optimum, at 5, is outside.
        ({"bends": [[[0.1], [0.0]]]}, "no interior optimum"),
    ],
)
def test_refused(change, message):
    with pytest.raises(InputError, match=message):
        BentBandit(**(ONE | change))


def test_the_optimum_is_found_once_the_radius_holds_it():
    assert BentBandit(**(ONE | {"bends": [[[0.1], [0.0]]]}), radius=6.0).maximiser == pytest.approx(
        5.0
    )


def test_a_flat_optimum_is_refused():
    """Log odds log cosh θ - θ²/2 = -θ⁴/12 + ...: a strict maximum without curvature."""
    features = [[[1.0], [-1.0], [0.0], [0.0]]]
    bends = [[[1.0], [1.0], [0.0], [0.0]]]
    with pytest.raises(InputError, match="the optimum is flat in a direction"):
        BentBandit([1.0], features, bends, [[[1.0], [1.0], [0.0], [0.0]]], np.ones((1, 4, 1)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ordered_problem(0), "dimensions is 0"),
        (lambda: ordered_problem(2, bend=0.0), r"a number or \(2,\), positive"),
        (lambda: ordered_problem(2, bend=[1.0] * 3), r"a number or \(2,\), positive"),
        (lambda: ordered_problem(value=0.0), "value is 0.0: it must lie between 0 and 1"),
        (lambda: ordered_problem(value=1.0), "value is 1"),
        (lambda: ordered_problem(value=np.nan), "value holds nan|value is nan"),
        (lambda: norm_only_problem(radius=-1.0), "radius is -1"),
        (lambda: ordered_problem().at([0.0]), "its last axis must be d = 2"),
        (lambda: ordered_problem().at([[0.0, 0.0]]), "theta has shape"),
        (lambda: ordered_problem().gap([0.0, np.nan]), "theta holds nan"),
        (lambda: ordered_problem().objective(0.0), "its last axis must be d = 2"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
