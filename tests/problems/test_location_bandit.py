"""The location bandit against loops, finite differences, dense grids and the figures of the theory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ustat_pg.engines import Estimator, GradientCell, SquaredError
from ustat_pg.predictions import gradient_covariance, gradient_mse
from ustat_pg.problems import KINDS, SoftmaxBandit, random_problem
from ustat_pg.problems.location_bandit import LocationBandit, mixture_problem
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


PROBLEMS = {
    "A": LocationBandit.bump([-1, 0, 1], [-0.7, 0.8, 0.3]),
    "B": LocationBandit.bump([-0.5, 0.2, 1.4], [-0.7, 0.8, 0.6]),
    "one-context": random_location(0, 1),
    "two-contexts": random_location(3, 2, flat=1),
    "three-contexts": random_location(5, 3, flat=2),
    "four-contexts": random_location(7, 4),
    "second-action": random_location(1, 3, flat=1, second=True),
    "mixture": mixture_problem(),
    "flat": LocationBandit.bump([-1, 0, 1], [-0.7, 0.8, 0.3], flat_dimensions=2),
    "map": LocationBandit.bump(
        [-1, 0, 1], [-0.7, 0.8, 0.3], mixing=[[1.0, 2.0, 0.0], [0.5, 0.0, -1.0]]
    ),
}
each = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)


def places(problem, seed=0, count=4):
    rng = np.random.default_rng(seed)
    return problem.maximiser + rng.normal(0.0, 0.7, (count, problem.d))


def returned(problem, theta):
    """J by a loop over contexts, arms, second actions and rewards, from the definition."""
    total, split = 0.0, problem.second_rewards is not None
    move = theta[:-1] if split else theta
    chance = 1 / (1 + np.exp(-theta[-1])) if split else 0.0
    for x, probability in enumerate(problem.context_probs):
        m = problem.directions[x] @ move
        weights = np.exp(-((problem.arms - m) ** 2) / (2 * problem.tau**2))
        weights /= weights.sum()
        for k, weight in enumerate(weights):
            first = problem.rewards[x, k] @ problem.reward_probs[x, k]
            second = problem.second_rewards[x, k] @ problem.second_probs[x, k] if split else 0.0
            total += probability * weight * ((1 - chance) * first + chance * second)
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


@each
def test_the_return_and_its_derivatives_are_those_of_the_loop(problem):
    for theta in places(problem):
        assert problem.objective(theta) == pytest.approx(returned(problem, theta), abs=1e-14)
        numeric = derivative(lambda t: returned(problem, t), theta, 1e-3)
        assert np.allclose(problem.gradient(theta), numeric, rtol=0, atol=1e-10)
        assert hessian_error(problem, problem.hessian(theta), theta) < 2e-8


def test_the_harness_sees_a_planted_error_of_the_hessian():
    """Negative control: a wrong sign, and the Hessian without its centring."""
    problem = PROBLEMS["A"]
    theta = places(problem)[0]
    right = problem.hessian(theta)
    assert hessian_error(problem, right, theta) < 2e-8
    assert hessian_error(problem, -right, theta) > 1e-2
    bandit = problem.at(theta)
    raw = sum(
        probability * (record.advantage + value * record.fisher)
        for probability, value, record in zip(
            bandit.context_probs, bandit.moments().value, bandit.moments().matrices(), strict=True
        )
    )
    assert hessian_error(problem, raw, theta) > 1e-2


@each
def test_the_softmax_bandit_there_is_the_same_problem(problem):
    """Scores with mean zero, and J, its gradient and Hessian on a path with no shared code."""
    for theta in places(problem):
        bandit = problem.at(theta)
        assert isinstance(bandit, SoftmaxBandit)
        assert bandit.d == problem.d == len(theta)
        for x in range(problem.contexts):
            mean = bandit.policy.probs[x] @ bandit.policy.scores(x)
            assert np.abs(mean).max() < 1e-14
        assert bandit.objective() == pytest.approx(float(problem.objective(theta)), abs=1e-14)
        assert np.allclose(bandit.gradient(), problem.gradient(theta), rtol=0, atol=1e-14)
        assert np.allclose(bandit.hessian(), problem.hessian(theta), rtol=0, atol=1e-13)


@each
def test_the_softmax_hessian_is_the_difference_of_its_gradient(problem):
    theta = places(problem)[1]
    bandit = problem.at(theta)
    numeric = derivative(lambda t: bandit.with_theta(t).gradient(), theta, 1e-3)
    assert np.allclose(bandit.hessian(), numeric, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_the_hessian_of_every_softmax_bandit_is_the_difference_of_its_gradient(kind):
    bandit = random_problem(4, kind)
    theta = bandit.policy.theta
    numeric = derivative(lambda t: bandit.with_theta(t).gradient(), theta, 1e-3)
    assert np.allclose(bandit.hessian(), numeric, rtol=0, atol=1e-9)


def test_an_offset_belongs_to_the_problem_and_none_leaves_its_name_alone():
    bandit = random_problem(4, "linear")
    arrays = bandit.arrays()
    assert "offset" not in arrays
    assert SoftmaxBandit.linear(**arrays).digest == bandit.digest
    offset = np.random.default_rng(0).normal(size=(bandit.contexts, bandit.arms))
    shifted = SoftmaxBandit.linear(**arrays, offset=offset)
    assert np.array_equal(shifted.arrays()["offset"], offset)
    assert shifted.digest != bandit.digest
    assert SoftmaxBandit.linear(**shifted.arrays()).digest == shifted.digest
    assert np.array_equal(shifted.with_theta(arrays["theta"] + 1).policy.offset, offset)
    assert np.array_equal(shifted.restrict([1]).policy.offset, offset[[1]])
    with pytest.raises(InputError, match="offset has shape"):
        SoftmaxBandit.linear(**arrays, offset=offset[:1])


def test_engines_enumerate_a_location_bandit_as_it_is():
    """Its exact mean squared error, from outcomes alone, is that of the closed form."""
    for problem in (PROBLEMS["A"], PROBLEMS["mixture"], PROBLEMS["second-action"]):
        bandit = problem.at(problem.maximiser + 0.1)
        found = GradientCell(bandit, group_size=2).measure(
            "exact", [SquaredError(Estimator("grpo"))]
        )
        expected = gradient_mse(bandit.moments(), "grpo", group_size=2).mse
        assert found.mean[0] == pytest.approx(expected, rel=1e-12)


@each
def test_many_parameters_at_once_are_each_on_their_own(problem, monkeypatch):
    theta = places(problem, count=6).reshape(2, 3, problem.d)
    functions = (problem.objective, problem.gradient, problem.hessian, problem.gap, problem.project)
    whole = [function(theta) for function in functions]
    monkeypatch.setattr("ustat_pg.problems.interior._CHUNK_ENTRIES", 1)
    for function, expected in zip(functions, whole, strict=True):
        assert np.allclose(function(theta), expected, rtol=1e-13, atol=1e-15)
        for i, j in itertools.product(range(2), range(3)):
            assert np.allclose(function(theta[i, j]), expected[i, j], rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(
    ("name", "maximiser", "curvatures"),
    [
        ("A", [0.1194, 0.5686], [0.237, 0.322]),
        ("B", None, [0.165, 0.358]),
        ("mixture", [0.386, 0.0], [0.243]),
        ("flat", None, [0.237, 0.322]),
    ],
)
def test_the_figures_of_the_theory(name, maximiser, curvatures):
    problem = PROBLEMS[name]
    assert np.allclose(problem.curvatures, curvatures, rtol=0, atol=5e-4)
    if maximiser is not None:
        digits = 5e-5 if name == "A" else 5e-4
        assert np.allclose(problem.maximiser, maximiser, rtol=0, atol=digits)


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


@each
def test_flat_directions_change_nothing_anywhere(problem):
    rng = np.random.default_rng(4)
    for theta in places(problem):
        shift = problem.flat @ rng.normal(0.0, 5.0, problem.flat.shape[1])
        assert problem.objective(theta + shift) == pytest.approx(
            float(problem.objective(theta)), abs=1e-14
        )
        assert np.allclose(problem.hessian(theta + shift), problem.hessian(theta), atol=1e-13)


@pytest.mark.parametrize("name", ["A", "B", "map", "mixture", "one-context"])
def test_the_maximum_against_a_dense_grid(name):
    problem = PROBLEMS[name]
    rank = len(problem.curvatures)
    axes = np.meshgrid(*[np.linspace(-problem.radius, problem.radius, 401)] * rank)
    points = np.stack([axis.ravel() for axis in axes], axis=-1)
    points = points[np.linalg.norm(points, axis=1) <= problem.radius]
    values = problem.objective(points @ problem.identifiable.T)
    best = points[values.argmax()]
    step = 2 * problem.radius / 400
    assert values.max() <= problem.maximum
    short = problem.curvatures[-1] * rank * step**2
    assert values.max() >= problem.maximum - short
    where = problem.maximiser @ problem.identifiable
    assert np.linalg.norm(best - where) <= step * np.sqrt(
        rank * problem.curvatures[-1] / problem.curvatures[0]
    )


@pytest.mark.parametrize("edge", [0.6, 1.3])
def test_the_projection_is_the_nearest_maximiser(edge):
    """Against a search over the set of maximisers, with a flat set of dimension 2 cut off."""
    problem = changed(PROBLEMS["flat"], flat_radius=edge)
    axes = np.meshgrid(*[np.linspace(-edge, edge, 401)] * 2)
    along = np.stack([axis.ravel() for axis in axes], axis=-1)
    along = along[np.linalg.norm(along, axis=1) <= edge]
    candidates = problem.maximiser + along @ problem.flat.T
    assert np.allclose(problem.gap(candidates), 0.0, rtol=0, atol=1e-28)
    rng = np.random.default_rng(6)
    cut = 0
    for theta in rng.normal(0.0, 1.0, (20, problem.d)):
        found = problem.project(theta)
        best = np.linalg.norm(candidates - theta, axis=1).min()
        distance = np.linalg.norm(found - theta)
        assert distance <= best + 1e-14
        assert distance >= best - 0.007
        assert problem.gap(found) < 1e-28
        assert np.linalg.norm(problem.flat.T @ found) <= edge + 1e-14
        cut += np.linalg.norm(problem.flat.T @ theta) > edge
        assert np.allclose(problem.project(found), found, rtol=0, atol=1e-15)
    assert 0 < cut < 20


@each
def test_the_gap_keeps_its_digits_near_the_optimum(problem):
    """Ten times nearer is a hundred times less, down to gaps that J itself cannot show."""
    for column, curvature in zip(problem.identifiable.T, problem.curvatures, strict=True):
        for step in (1e-4, 1e-6, 1e-8):
            quadratic = curvature * step**2 / 2
            found = problem.gap(problem.maximiser + step * column)
            # The maximiser itself is rounded, and θ* + step as well: a share of 1e-16/step each.
            assert found == pytest.approx(quadratic, rel=10 * step + 2e-15 / step)
    assert problem.gap(problem.maximiser) == pytest.approx(0, abs=1e-14)
    naive = problem.maximum - problem.objective(
        problem.maximiser + 1e-9 * problem.identifiable[:, 0]
    )
    assert abs(naive / (problem.curvatures[0] * 0.5e-18) - 1) > 0.5


@each
def test_the_gap_is_the_difference_of_returns(problem):
    theta = problem.maximiser + np.random.default_rng(3).normal(
        size=(200, problem.d)
    ) * np.geomspace(1e-3, 3, 200).reshape(-1, 1)
    found = problem.gap(theta)
    assert np.allclose(found, problem.maximum - problem.objective(theta), rtol=0, atol=4e-15)
    exact = [problem.maximum - returned(problem, t) for t in theta[::20]]
    assert np.allclose(found[::20], exact, rtol=0, atol=4e-15)


@each
def test_the_certificate_says_what_was_found(problem):
    found = problem.certificate
    assert found.gradient_norm < 1e-14
    assert found.smallest_curvature == pytest.approx(problem.curvatures[0], rel=1e-12)
    away = np.linalg.norm(problem.identifiable.T @ problem.maximiser)
    assert found.distance_to_boundary == pytest.approx(problem.radius - away)
    rng = np.random.default_rng(8)
    edge = rng.normal(size=(2000, len(problem.curvatures)))
    edge *= problem.radius / np.linalg.norm(edge, axis=1, keepdims=True)
    least = problem.gap(edge @ problem.identifiable.T).min()
    assert 0 < found.boundary_margin <= least + 1e-12
    if len(problem.curvatures) < 3:
        assert found.boundary_margin == pytest.approx(least, rel=0.02)


def test_a_second_hill_is_reported():
    arms = np.linspace(-2, 2, 9)
    success = 0.8 * np.exp(-((arms - 1.1) ** 2) / 0.2) + 0.6 * np.exp(-((arms + 1.1) ** 2) / 0.2)
    chance = np.stack([success, 1 - success], axis=-1)[None]
    problem = LocationBandit(
        [1.0], [[1.0]], arms, 0.35, np.broadcast_to([1.0, 0.0], chance.shape), chance, radius=1.9
    )
    grid = np.linspace(-1.9, 1.9, 4001)
    values = problem.objective(grid[:, None])
    hills = grid[1:-1][(values[1:-1] > values[:-2]) & (values[1:-1] > values[2:])]
    others = problem.certificate.other_maxima
    found = sorted([float(problem.maximiser[0]), *(float(where[0]) for where, _ in others)])
    assert len(hills) >= 2
    assert np.allclose(found, hills, rtol=0, atol=1e-3)
    for where, height in others:
        assert height == pytest.approx(float(problem.objective(where)), abs=1e-14)
        assert height < problem.maximum


def test_a_hill_inside_below_the_boundary_is_no_interior_optimum():
    arms = np.linspace(-2, 2, 9)
    success = 0.9 * np.exp(-((arms - 1.5) ** 2) / 0.2) + 0.3 * np.exp(-((arms + 0.5) ** 2) / 0.2)
    chance = np.stack([success, 1 - success], axis=-1)[None]
    rewards = np.broadcast_to([1.0, 0.0], chance.shape)
    arguments = ([1.0], [[1.0]], arms, 0.35, rewards, chance)
    inside = LocationBandit(*arguments, radius=0.6)
    assert inside.maximiser[0] == pytest.approx(-0.5, abs=0.1)
    with pytest.raises(InputError, match=r"no interior optimum.*the best inside is 0\.2"):
        LocationBandit(*arguments, radius=1.3)


def test_the_noise_at_the_optimum_depends_on_the_parameter_that_is_never_identified():
    """Assumption 8: J is the same along θ₂, the covariance of the gradient is not."""
    problem = PROBLEMS["mixture"]
    traces = []
    for logit in (-3.0, 0.0, 3.0):
        theta = np.array([problem.maximiser[0], logit])
        assert problem.gap(theta) < 1e-30
        bandit = problem.at(theta)
        covariance = gradient_covariance(bandit.moments(), "oracle", group_size=4)
        share = 1 / (1 + np.exp(-logit))
        # By hand: Cov(s₁ a) = E s₁² (r - V)² + noise² share E s₁², over four.
        probs = np.exp(-((problem.arms - problem.maximiser[0]) ** 2) / (2 * problem.tau**2))
        probs /= probs.sum()
        score = (problem.arms - probs @ problem.arms) / problem.tau**2
        off = problem.mean_rewards[0] - probs @ problem.mean_rewards[0]
        by_hand = probs @ (score**2 * (off**2 + 0.36 * share)) / 4
        assert covariance[0, 0] == pytest.approx(by_hand, rel=1e-12)
        traces.append(covariance[0, 0])
    assert traces[2] > 3 * traces[0]


def test_gradient_noise_has_no_part_in_flat_directions_of_the_map():
    problem = PROBLEMS["flat"]
    moments = problem.at(problem.maximiser).moments()
    covariance = gradient_covariance(moments, "grpo", group_size=4, batch_size=2)
    assert np.abs(covariance @ problem.flat).max() < 1e-15
    assert np.linalg.eigvalsh(problem.identifiable.T @ covariance @ problem.identifiable)[0] > 1e-3


def test_flat_dimensions_keep_the_curvatures_and_are_on_no_axis():
    plain, flat = PROBLEMS["A"], PROBLEMS["flat"]
    assert np.allclose(flat.curvatures, plain.curvatures, rtol=1e-10)
    assert flat.maximum == pytest.approx(plain.maximum, abs=1e-15)
    assert flat.d == plain.d + 2
    assert (np.abs(flat.flat).max(axis=0) < 0.99).all()


def test_contexts_without_weight_or_information_make_no_direction_identifiable():
    success = 0.05 + 0.9 * np.exp(-((np.linspace(-2, 2, 9) - 0.3) ** 2) / 1.28)
    chance = np.stack([np.stack([success, 1 - success], -1)] * 3)
    chance[2] = 0.5
    values = np.broadcast_to([1.0, 0.0], chance.shape)
    problem = LocationBandit(
        [0.6, 0.0, 0.4], np.eye(3), np.linspace(-2, 2, 9), 0.8, values, chance, radius=1.5
    )
    assert np.allclose(np.abs(problem.identifiable.T), [[1, 0, 0]], rtol=0, atol=1e-15)
    assert np.allclose(problem.hessian(problem.maximiser)[1:, :], 0.0, rtol=0, atol=1e-15)


def test_the_same_arguments_give_the_same_maximiser():
    again = LocationBandit.bump([-1, 0, 1], [-0.7, 0.8, 0.3])
    assert np.array_equal(again.maximiser, PROBLEMS["A"].maximiser)
    assert again.certificate == PROBLEMS["A"].certificate


GOOD = {
    "context_probs": [0.5, 0.5],
    "directions": [[1.0, 0.0], [1.0, 1.0]],
    "arms": [-1.0, 0.0, 1.0],
    "tau": 0.6,
    "rewards": np.broadcast_to([1.0, 0.0], (2, 3, 2)),
    "reward_probs": [[[0.2, 0.8], [0.8, 0.2], [0.3, 0.7]]] * 2,
    "radius": 1.0,
}


def test_the_pattern_of_refusals_is_itself_accepted():
    assert LocationBandit(**GOOD).d == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context_probs": [0.5, 0.6]}, "context_probs sums to"),
        ({"directions": [[1.0, 0.0]]}, "directions has 1 rows"),
        ({"directions": [[1.0, np.nan], [1.0, 1.0]]}, "directions holds nan"),
        ({"directions": np.zeros((2, 2))}, "does not depend on theta"),
        ({"arms": [0.0, 0.0, 1.0]}, "must be different"),
        ({"arms": [0.0, 1.0]}, "rewards has shape"),
        ({"tau": 0.0}, "tau is 0.0: it must be positive"),
        ({"tau": np.inf}, "tau holds inf"),
        ({"radius": -1.0}, "radius is -1"),
        ({"flat_radius": 0.0}, "flat_radius is 0"),
        ({"reward_probs": np.ones((2, 3, 2))}, "reward_probs sums to"),
        ({"rewards": np.ones((2, 3, 1))}, "they must be equal"),
        ({"second_rewards": np.ones((2, 3, 2))}, "both or none"),
        (
            {"second_rewards": np.ones((2, 3, 1)), "second_probs": np.ones((2, 3, 1))},
            "changes the mean reward of context 0, arm 0 by 0.8",
        ),
        ({"rewards": np.ones((2, 3, 2))}, "does not depend on theta"),
        ({"reward_probs": [[[0.1, 0.9], [0.5, 0.5], [0.9, 0.1]]] * 2}, "no interior optimum"),
        (
            {"radius": 0.01, "reward_probs": [[[0.1, 0.9], [0.8, 0.2], [0.7, 0.3]]] * 2},
            "no interior",
        ),
    ],
)
def test_bad_input_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        LocationBandit(**(GOOD | change))


def test_an_optimum_that_is_flat_in_a_direction_it_depends_on_is_refused():
    """Two contexts of the same direction whose rewards cancel: J is constant, though no v_x is."""
    chance = np.array([[[0.2, 0.8], [0.8, 0.2], [0.3, 0.7]], [[0.8, 0.2], [0.2, 0.8], [0.7, 0.3]]])
    with pytest.raises(InputError, match="flat in a direction"):
        LocationBandit(**(GOOD | {"directions": np.ones((2, 1)), "reward_probs": chance}))


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"features": [0.0, 1.0, 2.0]}, "targets has 2 entries and features 3"),
        ({"features": np.zeros((2, 1, 1))}, "1 or 2 dimensions"),
        ({"height": 0.96}, "must not be negative"),
        ({"width": 0.0}, "width is 0"),
        ({"flat_dimensions": -1}, "flat_dimensions is -1"),
        ({"flat_dimensions": 1, "mixing": np.ones((2, 3))}, "one, not both"),
        ({"mixing": np.ones((3, 3))}, "mixing has 3 rows"),
        ({"targets": [3.0, 3.0]}, "no interior optimum"),
    ],
)
def test_bumps_that_are_refused(keywords, message):
    arguments = {"features": [0.0, 1.0], "targets": [0.0, 0.0]} | keywords
    with pytest.raises(InputError, match=message):
        LocationBandit.bump(**arguments)


@pytest.mark.parametrize("theta", [1.0, [1.0], [1.0, 2.0, 3.0], [[np.nan, 0.0]]])
def test_parameters_of_another_shape_are_refused(theta):
    problem = PROBLEMS["A"]
    for function in (problem.objective, problem.gradient, problem.hessian, problem.gap):
        with pytest.raises(InputError, match="theta"):
            function(theta)
    for function in (problem.project, problem.at):
        with pytest.raises(InputError, match="theta"):
            function(theta)
