"""Problems with an interior optimum against loops, differences and mpmath."""

import re

import mpmath
import numpy as np
import pytest
from scipy.special import expit

from simulations.interior_problems.bent_bandit import BentBandit, norm_only_problem, ordered_problem
from simulations.interior_problems.location_bandit import LocationBandit, mixture_problem
from tests.support.landscapes import bump, hills, other_bump, tangent
from tests.support.refusals import refusals, refuses
from ustat_pg.problems import SoftmaxBandit
from ustat_pg.validation import InputError, changed


def random_location(seed, contexts, flat=0, second=False):
    """Graded rewards with a bump in the middle, unequal contexts, uneven arms, any rank."""
    rng = np.random.default_rng(seed)
    rank = 1 + seed % min(contexts, 3)
    arms = np.sort(rng.uniform(-2.5, 2.5, 8) + np.arange(8) * 1e-3)
    basis = np.linalg.qr(rng.normal(size=(rank + flat, rank + flat)))[0][:rank]
    directions = np.column_stack([np.ones(contexts), rng.normal(size=(contexts, rank - 1))]) @ basis
    targets = rng.uniform(-0.5, 0.5, (contexts, 1))
    mean = (
        0.2 + 0.6 * np.exp(-((arms - targets) ** 2) / 2) + rng.uniform(-0.02, 0.02, (contexts, 8))
    )
    spread = rng.uniform(0.05, 0.2, (contexts, 8))
    values = np.stack([mean - spread, mean, mean + 2 * spread], axis=-1)
    law = np.broadcast_to([0.4, 0.4, 0.2], values.shape)
    extra = {}
    if second:
        extra = {
            "second_rewards": np.stack([mean - 0.5, mean + 0.5], axis=-1),
            "second_probs": np.full((contexts, 8, 2), 0.5),
        }
    chance = rng.dirichlet(np.full(contexts, 5.0))
    return LocationBandit(chance, directions, arms, 0.7, values, law, radius=5.0, **extra)


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


def located(location):
    """A location bandit as a bent one that does not bend."""
    bandit = location.at(np.zeros(location.d))
    features = bandit.policy.features
    return BentBandit(
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


LOCATION = {
    "A": bump(),
    "B": other_bump(),
    "two-contexts": random_location(3, 2, flat=1),
    "three-contexts": random_location(5, 3, flat=2),
    "second-action": random_location(1, 3, flat=1, second=True),
    "mixture": mixture_problem(),
    "flat": bump(flat_dimensions=2),
}
BENT = {
    "bent": random_bent(3, 2),
    "three-parameters": random_bent(1, 3, d=3),
    "located": located(bump(flat_dimensions=1)),
    "half-flat": half_flat(),
    "ordered": ordered_problem(3, bend=[1.0, 2.0, 0.5], value=0.3),
    "norm-only": norm_only_problem(),
}
PROBLEMS = LOCATION | BENT
each = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)


def places(problem, seed=0, count=4):
    rng = np.random.default_rng(seed)
    return problem.maximiser + rng.normal(0.0, 0.7, (count, problem.d))


def logits(problem, theta, x):
    """The logits of the arms from their definition, in numbers of the kind that θ has."""
    if isinstance(problem, LocationBandit):
        moved = theta if problem.second_rewards is None else theta[:-1]
        m = sum(v * t for v, t in zip(problem.directions[x].tolist(), moved, strict=True))
        return [-((arm - m) ** 2) / (2 * problem.tau**2) for arm in problem.arms.tolist()]
    values = []
    for k in range(problem.features.shape[1]):
        value = 0.0 if problem.offset is None else float(problem.offset[x, k])
        for j, t in enumerate(theta):
            value += (
                float(problem.features[x, k, j]) * t - float(problem.bends[x, k, j]) * t * t / 2
            )
        values.append(value)
    return values


def probabilities(problem, theta, x):
    """π(. | x) over the arms, from the definition."""
    levels = np.array(logits(problem, theta, x))
    weights = np.exp(levels - levels.max())
    return weights / weights.sum()


def returned(problem, theta):
    """J by a loop over contexts, arms, second actions and rewards, from the definition."""
    split = problem.second_rewards is not None
    share = expit(theta[-1]) if split else 0.0
    total = 0.0
    for x, chance in enumerate(problem.context_probs):
        for k, weight in enumerate(probabilities(problem, theta, x)):
            first = problem.rewards[x, k] @ problem.reward_probs[x, k]
            second = problem.second_rewards[x, k] @ problem.second_probs[x, k] if split else 0.0
            total += chance * weight * ((1 - share) * first + share * second)
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
    loose = 5 if isinstance(problem, BentBandit) else 1
    for theta in places(problem):
        assert problem.objective(theta) == pytest.approx(returned(problem, theta), abs=1e-14)
        numeric = derivative(lambda t: returned(problem, t), theta, 1e-3)
        assert np.allclose(problem.gradient(theta), numeric, rtol=0, atol=loose * 1e-10)
        assert hessian_error(problem, problem.hessian(theta), theta) < loose * 2e-8


@each
def test_many_parameters_at_once_are_each_on_their_own(problem, monkeypatch):
    theta = places(problem, count=6).reshape(2, 3, problem.d)
    functions = (problem.objective, problem.gradient, problem.hessian, problem.gap)
    whole = [function(theta) for function in functions]
    chunks = (1, 4 * problem.mean_rewards.size * problem.d)
    for entries in chunks:
        monkeypatch.setattr("simulations.interior_problems.interior._CHUNK_ENTRIES", entries)
        for function, expected in zip(functions, whole, strict=True):
            assert np.allclose(function(theta), expected, rtol=1e-13, atol=1e-15)
    for function, expected, order in zip(functions, whole, (0, 1, 2, 0), strict=True):
        assert expected.shape == (2, 3) + (problem.d,) * order
        for i in np.ndindex(2, 3):
            assert np.allclose(function(theta[i]), expected[i], rtol=1e-13, atol=1e-15)


# The softmax bandit at a parameter.


@each
def test_the_softmax_bandit_there_is_the_same_problem(problem):
    """Scores with mean zero, and J, its gradient and Hessian on a path with no shared code."""
    for theta in places(problem):
        bandit = problem.at(theta)
        assert isinstance(bandit, SoftmaxBandit)
        assert np.array_equal(bandit.policy.theta, theta)
        assert bandit.d == problem.d == len(theta)
        for x in range(problem.contexts):
            if problem.second_rewards is None:
                expected = probabilities(problem, theta, x)
                assert np.allclose(bandit.policy.probs[x], expected, rtol=1e-13, atol=0)
            mean = bandit.policy.probs[x] @ bandit.policy.scores(x)
            assert np.abs(mean).max() < 1e-14
        assert bandit.objective() == pytest.approx(float(problem.objective(theta)), abs=1e-14)
        assert np.allclose(bandit.gradient(), problem.gradient(theta), rtol=0, atol=1e-14)
        assert np.allclose(bandit.hessian(), problem.hessian(theta), rtol=0, atol=1e-13)


def test_at_other_parameters_the_policy_is_still_the_bent_one_and_not_its_tangent():
    problem = PROBLEMS["bent"]
    here, there = places(problem)[:2]
    moved, direct = problem.at(here).with_theta(there), problem.at(there)
    assert np.array_equal(moved.policy.probs, direct.policy.probs)
    assert moved.digest == direct.digest
    assert problem.at(here).objective(there) == pytest.approx(direct.objective(), rel=1e-13)
    linear = tangent(problem.at(here).policy).with_theta(there)
    assert np.abs(linear.probs - direct.policy.probs)[0].max() > 0.01


def test_bends_name_runs_and_not_gradients_at_the_point_of_contact():
    """At 0 bends show in no gradient: the same draws, but others for runs that leave 0."""
    one, two = (ordered_problem(2, bend=bend).at(np.zeros(2)) for bend in (1.0, 2.0))
    assert one.digest == two.digest
    assert one.path_digest != two.path_digest
    assert one.path_digest.startswith(f"{one.digest}/bent")
    linear = SoftmaxBandit(tangent(one.policy), [1.0], one.reward_values, one.reward_probs)
    assert linear.path_digest == linear.digest == one.digest


# The maximiser.


@each
def test_the_hessian_at_the_maximiser_has_the_form_of_assumption_7(problem):
    u, n, lam = problem.identifiable, problem.flat, problem.curvatures
    assert u.shape == (problem.d, len(lam))
    assert n.shape == (problem.d, problem.d - len(lam))
    frame = np.column_stack([u, n])
    assert np.allclose(frame.T @ frame, np.eye(problem.d), rtol=0, atol=1e-13)
    assert (np.diff(lam) >= 0).all()
    assert lam[0] > 0
    hessian = problem.hessian(problem.maximiser)
    assert np.allclose(-hessian, (u * lam) @ u.T, rtol=0, atol=1e-13)
    assert np.linalg.norm(problem.gradient(problem.maximiser)) < 1e-14
    assert np.abs(n.T @ problem.maximiser).max(initial=0.0) < 1e-14


def test_flat_directions_are_those_that_no_seen_difference_of_logits_depends_on():
    problem = PROBLEMS["half-flat"]
    assert problem.identifiable.shape == (3, 1)
    assert np.abs(problem.identifiable[:, 0]) == pytest.approx([1.0, 0.0, 0.0], abs=1e-14)
    theta = np.array([0.3, -1.0, 2.0])
    moved = theta + problem.flat @ [5.0, -3.0]
    assert problem.gap(moved) == pytest.approx(float(problem.gap(theta)), rel=1e-13)
    # The same with features as they are and a bend along the flat ones: two directions more.
    bends = problem.bends.copy()
    bends[0, 0] = [2.0, 3.3, 2.0]
    assert changed(problem, bends=bends).identifiable.shape == (3, 3)


def test_a_hill_inside_below_the_boundary_is_no_interior_optimum():
    bumps = (0.9, 1.5), (0.3, -0.5)
    assert hills(*bumps, radius=0.6).maximiser[0] == pytest.approx(-0.5, abs=0.1)
    refuses(r"no interior optimum.*the best inside is 0\.2", hills, *bumps, radius=1.3)


@pytest.mark.parametrize("level", [0.0, -2.0])
def test_the_largest_return_on_the_boundary_is_that_of_all_angles(level):
    """Three hills beyond it, of unequal height: the largest is found from any level of the rewards."""
    angles, arms = np.array([0.3, 2.2, 4.6]), np.linspace(-2, 2, 9)
    peaks = level + np.tile(np.exp(-((arms - 1.3) ** 2)), (3, 1))[..., None]
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=-1)

    def made(radius, shift=0.0):
        rewards = peaks - shift * (arms**2)[:, None]
        return LocationBandit(
            [0.4, 0.35, 0.25], directions, arms, 0.4, rewards, 0 * peaks + 1, radius
        )

    with pytest.raises(InputError, match="no interior optimum") as refused:
        made(1.0)
    (said,) = re.findall(r"the return reaches (-?[\d.]+)", str(refused.value))
    bandit = SoftmaxBandit(
        made(9.0, 1.0).at(np.zeros(2)).policy, [0.4, 0.35, 0.25], peaks, 0 * peaks + 1
    )
    circle = np.linspace(0, 2 * np.pi, 4_001)
    heights = [bandit.objective([np.cos(angle), np.sin(angle)]) for angle in circle]
    top = int(np.argmax(heights))
    a, b, c = heights[top - 1 : top + 2]
    assert float(said) == pytest.approx(b + (a - c) ** 2 / (8 * (2 * b - a - c)), rel=6e-9)


# The gap.


def exact_gap(problem, theta):
    """J(θ*) - J(θ) - ⟨∇J(θ*), θ* - θ⟩ in 60 digits; the gradient at θ* is rounding noise."""
    with mpmath.workdps(60):

        def value(point):
            total = mpmath.mpf(0)
            for x, chance in enumerate(problem.context_probs.tolist()):
                weights = [mpmath.exp(level) for level in logits(problem, point, x)]
                rewards = problem.mean_rewards[x].tolist()
                total += chance * mpmath.fdot(zip(weights, rewards, strict=True)) / sum(weights)
            return total

        best = [mpmath.mpf(t) for t in problem.maximiser]
        place = [mpmath.mpf(t) for t in theta]
        h = mpmath.mpf(10) ** -20
        slope = mpmath.mpf(0)
        for j in range(problem.d):
            up = [b + h * (i == j) for i, b in enumerate(best)]
            down = [b - h * (i == j) for i, b in enumerate(best)]
            slope += (value(up) - value(down)) / (2 * h) * (place[j] - best[j])
        return float(value(best) - value(place) + slope)


@each
def test_the_gap_keeps_its_digits_near_the_maximiser(problem):
    """A difference of returns has none left there."""
    rng = np.random.default_rng(1)
    for distance in (1.0, 1e-2, 1e-4, 1e-6, 1e-8):
        unit = rng.normal(size=problem.identifiable.shape[1])
        theta = problem.maximiser + distance * problem.identifiable @ (unit / np.linalg.norm(unit))
        # Rounding of θ itself, of size 1e-16 beside a distance of 1e-8, moves the gap by its share.
        rounding = 4e-16 * (1 + np.abs(problem.maximiser).max()) / distance
        gap = float(problem.gap(theta))
        assert gap == pytest.approx(exact_gap(problem, theta), rel=1e-12 + rounding)
        assert gap > 0
    naive = problem.maximum - problem.objective(
        problem.maximiser + 1e-9 * problem.identifiable[:, 0]
    )
    assert abs(naive / (problem.curvatures[0] * 0.5e-18) - 1) > 0.5


# What is refused.

GOOD = {
    LocationBandit: {
        "context_probs": [0.5, 0.5],
        "directions": [[1.0, 0.0], [1.0, 1.0]],
        "arms": [-1.0, 0.0, 1.0],
        "tau": 0.6,
        "rewards": np.broadcast_to([1.0, 0.0], (2, 3, 2)),
        "reward_probs": [[[0.2, 0.8], [0.8, 0.2], [0.3, 0.7]]] * 2,
        "radius": 1.0,
    },
    BentBandit: {
        "context_probs": [1.0],
        "features": [[[0.5], [0.0]]],
        "bends": [[[1.0], [0.0]]],
        "rewards": [[[1.0], [0.0]]],
        "reward_probs": [[[1.0], [1.0]]],
    },
}
OPPOSED = [[[0.2, 0.8], [0.8, 0.2], [0.3, 0.7]], [[0.8, 0.2], [0.2, 0.8], [0.7, 0.3]]]
"""Two contexts whose rewards cancel: J is constant in a common direction, though no V(x) is."""
QUARTIC = {
    "features": [[[1.0], [-1.0], [0.0], [0.0]]],
    "bends": [[[1.0], [1.0], [0.0], [0.0]]],
    "rewards": [[[1.0], [1.0], [0.0], [0.0]]],
    "reward_probs": np.ones((1, 4, 1)),
}
"""Log odds log cosh θ - θ²/2 = -θ⁴/12 + ...: a strict maximum without curvature."""
EDGE = [[[0.1, 0.9], [0.5, 0.5], [0.9, 0.1]]] * 2
NEAR_EDGE = [[[0.1, 0.9], [0.8, 0.2], [0.7, 0.3]]] * 2


test_refused = refusals(
    (LocationBandit, {"rewards": np.ones((2, 3, 2))}, "does not depend on theta"),
    (LocationBandit, {"arms": [0.0, 1.0, 1.0]}, "arms are .*: they must be different"),
    (
        LocationBandit,
        {"second_rewards": np.ones((2, 3, 1)), "second_probs": np.ones((2, 3, 1))},
        "the second action changes a mean reward",
    ),
    (LocationBandit, {"reward_probs": EDGE}, "no interior optimum"),
    (LocationBandit, {"radius": 0.01, "reward_probs": NEAR_EDGE}, "no interior"),
    (
        LocationBandit,
        {"directions": np.ones((2, 1)), "reward_probs": OPPOSED},
        "flat in a direction",
    ),
    (BentBandit, {"bends": [[[1.0]]]}, r"bends has shape \(1, 1, 1\): .*features, \(1, 2, 1\)"),
    (BentBandit, {"rewards": [[[1.0], [1.0]]]}, "the return does not depend on theta"),
    (
        BentBandit,
        {"features": [[[1.0], [1.0]]], "bends": [[[2.0], [2.0]]]},
        "does not depend on theta",
    ),
    # No bend: the optimum is at infinity. A bend of the other sign: a minimum. At 5: outside.
    (BentBandit, {"bends": [[[0.0], [0.0]]]}, "no interior optimum"),
    (BentBandit, {"bends": [[[-1.0], [0.0]]]}, "no interior optimum"),
    (BentBandit, QUARTIC, "the optimum is flat in a direction"),
    of=lambda make, change: make(**GOOD[make] | change),
)


@pytest.mark.parametrize("problem", [PROBLEMS["A"], PROBLEMS["bent"]], ids=["location", "bent"])
@pytest.mark.parametrize("theta", [1.0, [1.0], [1.0, 2.0, 3.0], [[np.nan, 0.0]]])
def test_parameters_of_another_shape_are_refused(problem, theta):
    functions = (problem.objective, problem.gradient, problem.hessian, problem.gap)
    for function in (*functions, problem.at):
        refuses("theta", function, theta)
    refuses("theta has shape", problem.at, [[0.0, 0.0]])
