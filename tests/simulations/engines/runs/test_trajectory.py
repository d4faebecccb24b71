"""Trajectories: what is asked, what is refused, and what one step must do on average.

That the compiled engine takes the reference engine's paths is in ``tests/agreement/test_whole_runs.py``.
"""

import pickle

import numpy as np
import pytest
import scipy.stats

from simulations.engines import Ball, Constant, Decay
from simulations.engines.runs.cpu import shared_directions
from simulations.engines.runs.lanes.softmax import exponential
from simulations.engines.runs.trajectory import Trajectory
from simulations.interior_problems.bent_bandit import BentBandit
from tests.support.bends import with_bends
from tests.support.problems import RUN_ESTIMATORS
from tests.support.refusals import refusals, refuses
from ustat_pg.engines import Estimator
from ustat_pg.predictions import gradient_covariance
from ustat_pg.problems import SoftmaxBandit
from ustat_pg.sampling import rng
from ustat_pg.validation import changed

FAR = 2**40 + 3


def location(contexts=3, arms=9, theta=(0.3, 0.2), values=2):
    """Arms on a grid, logits -(u - m)²/(2 τ²) with τ = .8, success a bump, prompts alike."""
    grid = np.linspace(-2, 2, arms)
    place = np.linspace(-1, 1, contexts) if contexts > 1 else np.array([0.4])
    chance = 0.05 + 0.9 * np.exp(-((grid - place[:, None]) ** 2) / 1.28)
    law = np.stack([chance * 0.75, chance * 0.25, 1 - chance], axis=-1)
    return SoftmaxBandit.linear(
        np.full(contexts, 1 / contexts),
        grid[:, None] / 0.64 * place[:, None, None] ** np.arange(len(theta)),
        list(theta),
        np.tile([1.0, 0.4, 0.0] if values == 3 else [1.0, 0.0], (contexts, arms, 1)),
        law if values == 3 else np.stack([chance, 1 - chance], axis=-1),
        np.tile(-(grid**2) / 1.28, (contexts, 1)),
    )


PROBLEM = location()


def ask(problem=PROBLEM, group_size=3, steps=5, schedule=None, **more):
    return Trajectory(problem, group_size, steps, schedule or Constant(0.5), **more)


# What is asked.


def test_the_address_holds_neither_baseline_nor_schedule_nor_start():
    one = ask()
    others = [
        ask(estimator=Estimator("oracle")),
        ask(schedule=Decay(3.0, 1.0)),
        ask(start=[0.0, 0.0], start_scale=1.0),
        ask(projection=Ball([0, 0], 1)),
        ask(steps=9, snapshots=(2, 9)),
    ]
    assert {other.name for other in others} == {one.name}
    assert one.description == ask().description
    assert all(other.description != one.description for other in others)
    names = {
        one.name,
        ask(group_size=4).name,
        ask(batch_size=3).name,
        ask(design="epochs").name,
        ask(location(theta=(0.3, 0.3))).name,
    }
    assert len(names) == 5
    assert PROBLEM.digest in one.name


def test_a_pickled_trajectory_is_the_same():
    one = ask(
        with_bends(PROBLEM, np.linspace(-1, 1, 54).reshape(3, 9, 2)),
        projection=Ball([0, 0], 1.0, [[1.0], [0.0]]),
        start_scale=[0.5, 0.0],
    )
    again = pickle.loads(pickle.dumps(one))
    assert again.description == one.description
    assert np.array_equal(one.run("cpu", replications=9), again.run("cpu", replications=9))


def test_schedules_by_hand():
    assert Constant(0.25).rates(4).tolist() == [0.25] * 4
    assert Decay(12, 3).rates(3).tolist() == [3.0, 2.4, 2.0]
    assert Decay(1).rates(2).tolist() == [1.0, 0.5]


test_bad_input_is_refused = refusals(
    (lambda: Constant(0.0), "eta is 0.0: it must be positive"),
    (lambda: Decay(1.0, -1.0), "t0 is -1.0: it must be above -1"),
    (lambda: Decay(1e308, -1 + 2**-53), "the first rate overflows"),
    (lambda: Ball([0.0, np.nan], 1.0), "centre"),
    (lambda: Ball([0.0, 0.0], 1.0, [[1.0], [1.0]]), "orthonormal"),
    (lambda: ask(group_size=1), "grpo needs a group of at least 2"),
    (lambda: ask(group_size=1, estimator=Estimator("norm-weighted")), "at least 2"),
    (lambda: ask(steps=2**20 + 1), "at most 1048576"),
    (lambda: ask(batch_size=2**10 + 1), "at most 1024"),
    (lambda: ask(design="fixed"), "design 'fixed' is unknown"),
    (lambda: ask(design="epochs", batch_size=2), "divide the number of contexts, 3"),
    (lambda: ask(estimator=Estimator("own", function=lambda z, _: z)), "cannot take own"),
    (lambda: ask(start=[0.0]), "start and projection need as many"),
    (lambda: ask(projection=Ball([0.0], 1.0)), "start and projection need as many"),
    (lambda: ask().run("exact"), "'exact' is unknown: choose one of reference"),
)


def test_epochs_need_prompts_that_are_equally_likely():
    uneven = changed(PROBLEM, context_probs=[0.5, 0.25, 0.25])
    refuses("uniform", ask, uneven, design="epochs")


# What one step does on average.


def within(sample, expected, alpha=1e-6):
    """Whether a mean (n, ...) is the expected one, two-sided, each entry at ``alpha``."""
    error = sample.std(axis=0, ddof=1) / np.sqrt(len(sample))
    return np.abs(sample.mean(axis=0) - expected) <= scipy.stats.norm.isf(alpha / 2) * error


@pytest.mark.parametrize("estimator", RUN_ESTIMATORS, ids=lambda e: e.label)
def test_one_step_has_the_mean_and_the_covariance_of_the_estimator(estimator):
    """The covariance where it has a closed form; intervals at 1e-6 each."""
    trajectory = ask(steps=1, estimator=estimator, batch_size=2)
    group = trajectory.group_size
    rate = trajectory.schedule.rates(1)[0]
    step = trajectory.run("cpu", seed=5, replications=200_000)[:, 0] - trajectory.start
    factor = (group - 1) / group if estimator.name == "group-mean" else 1.0
    mean = rate * factor * PROBLEM.gradient()
    assert within(step, mean).all()
    if not estimator.record.closed_form:
        return
    # About the true mean: E[(θ₁ - E θ₁)(θ₁ - E θ₁)ᵀ] needs no correction.
    products = (step - mean)[:, :, None] * (step - mean)[:, None, :]
    known = {"constant": estimator.constant} if estimator.name == "constant" else {}
    form = "grpo" if estimator.name == "group-mean" else estimator.name
    sizes = group, trajectory.batch_size
    predicted = gradient_covariance(PROBLEM.moments(), form, *sizes, **known)
    assert within(products, (rate * factor) ** 2 * predicted).all()


# Logits that bend.


def bent(contexts=2, seed=2):
    """Unequal prompts, an offset, noisy rewards; better arms bend more, so the optimum is inside."""
    generator = np.random.default_rng(seed)
    mean = generator.uniform(0.1, 0.9, (contexts, 4))
    return BentBandit(
        generator.dirichlet(np.full(contexts, 5.0)),
        generator.normal(size=(contexts, 4, 2)),
        4 * mean[:, :, None] * generator.uniform(0.9, 1.1, (contexts, 4, 2)),
        np.tile([1.0, 0.0], (contexts, 4, 1)),
        np.stack([mean, 1 - mean], axis=-1),
        generator.normal(scale=0.3, size=(contexts, 4)),
    )


BENT = bent()
PLACE = np.array([0.7, -0.6])


def by_hand(problem, theta, steps, rate, seed, replication, name):
    """grpo with G = 3, B = 1 from the definition: the tangent of every θ, one draw at a time."""
    key = rng.cell_key(seed, name)
    chosen = rng.words(key, replication, rng.CONTEXT_SLOT, steps)
    for t in range(1, steps + 1):
        x = int(np.searchsorted(rng.thresholds(problem.context_probs), chosen[t - 1], "right"))
        logits = problem.features[x] @ theta - problem.bends[x] @ theta**2 / 2 + problem.offset[x]
        probs = np.exp(logits) / np.exp(logits).sum()
        tangent = problem.features[x] - problem.bends[x] * theta
        scores = tangent - probs @ tangent
        words = rng.words(key, replication, rng.step_slots(t, 0), 6).astype(float) / 2**32
        arms = np.searchsorted(probs.cumsum(), words[::2], "right")
        rewards = (words[1::2] < problem.reward_probs[x, arms, 0]).astype(float)
        advantage = rewards - (rewards.sum() - rewards) / 2
        theta = theta + rate * advantage @ scores[arms] / 3
    return theta


@pytest.mark.parametrize("tangent", [[0.0, 0.0], [0.7, -0.6], [-1.0, 2.0]])
def test_bent_paths_are_those_by_hand_wherever_the_tangent_is_taken(tangent):
    """The tangent's place is in the problem's digest: another place, other draws, the same law."""
    problem = BENT.at(tangent)
    trajectory = ask(problem, 3, 25, Constant(0.4), start=PLACE)
    result = trajectory.run("reference", seed=2, first=FAR, replications=40)[:, 0]
    expected = [
        by_hand(BENT, PLACE, 25, 0.4, 2, FAR + replication, trajectory.name)
        for replication in range(40)
    ]
    assert np.abs(result - expected).max() < 1e-9
    # Negative control: the policy without its bends.
    straight = changed(problem.policy, bends=None)
    flat = SoftmaxBandit(straight, BENT.context_probs, BENT.rewards, BENT.reward_probs)
    frozen_in = ask(flat, 3, 25, Constant(0.4), start=PLACE)
    rigid = frozen_in.run("reference", seed=2, first=FAR, replications=40)[:, 0]
    assert np.abs(rigid - expected).max() > 0.05


# Prompts, starts, projections.


def telling(law):
    """Features e_x tell which prompt moved the parameters.

    A group of one without a baseline always moves them up: the score 1 - π or -π times ±1.
    """
    contexts = len(law)
    features = np.zeros((contexts, 2, contexts))
    features[np.arange(contexts), 0, np.arange(contexts)] = 1.0
    rewards = np.tile([[1.0], [-1.0]], (contexts, 1, 1))
    return SoftmaxBandit.linear(law, features, np.zeros(contexts), rewards, np.ones_like(rewards))


@pytest.mark.parametrize("batch", [1, 2, 3, 6])
def test_an_epoch_uses_each_prompt_once(batch):
    contexts, epochs = 6, 5
    per_epoch = contexts // batch
    steps = epochs * per_epoch
    trajectory = ask(
        telling(np.full(contexts, 1 / contexts)), 1, steps, Constant(0.01),
        estimator=Estimator("vanilla"), batch_size=batch, design="epochs",
        snapshots=tuple(range(steps + 1)),
    )  # fmt: skip
    theta = trajectory.run("reference", seed=1, replications=400)
    used = np.diff(theta, axis=1) > 0
    assert (used.sum(axis=2) == batch).all()
    for epoch in range(epochs):
        inside = used[:, epoch * per_epoch : (epoch + 1) * per_epoch]
        assert (inside.sum(axis=1) == 1).all()
    if batch == 1:
        order = used.argmax(axis=2).reshape(400, epochs, contexts)
        # The order is new in each epoch, and each prompt is first equally often.
        assert (order[:, 0] != order[:, 1]).any(axis=1).mean() > 0.99
        first = np.bincount(order[:, :, 0].ravel(), minlength=contexts)
        assert scipy.stats.chisquare(first).pvalue > 1e-4
        last = np.bincount(order[:, :, -1].ravel(), minlength=contexts)
        assert scipy.stats.chisquare(last).pvalue > 1e-4


def test_starts_are_normal_and_a_scale_of_zero_keeps_a_coordinate():
    trajectory = ask(start=[1.0, -2.0], start_scale=[0.0, 3.0], snapshots=(0,))
    theta = trajectory.run("reference", seed=3, first=FAR, replications=20_000)[:, 0]
    assert (theta[:, 0] == 1.0).all()
    assert scipy.stats.kstest(theta[:, 1], scipy.stats.norm(-2, 3).cdf).pvalue > 1e-4
    word = rng.words(rng.cell_key(3, trajectory.name), FAR + 7, rng.step_slots(0, 0), 2)[1]
    assert theta[7, 1] == pytest.approx(scipy.stats.norm.ppf((word + 0.5) / 2**32, -2, 3))


BASIS = np.array([[0.6], [0.8]])
SETS = [
    (Ball([0.2, 0.1], 0.3), lambda theta: np.linalg.norm(theta - [0.2, 0.1], axis=-1) / 0.3),
    (Ball([0.2, 0.1], 0.3, BASIS), lambda theta: np.abs((theta - [0.2, 0.1]) @ BASIS[:, 0]) / 0.3),
]


@pytest.mark.parametrize(("theta_set", "gauge"), SETS, ids=["ball", "within a span"])
def test_projection_keeps_every_theta_inside(theta_set, gauge):
    kept = tuple(range(21))
    more = {"schedule": Constant(1.0), "steps": 20, "snapshots": kept, "start_scale": 1.0}
    theta = ask(projection=theta_set, **more).run("reference", replications=300)
    assert gauge(theta).max() <= 1 + 1e-12
    assert (gauge(theta) > 1 - 1e-9).any(axis=1).mean() > 0.5
    free = ask(**more).run("reference", replications=300)
    assert (gauge(free) > 1.5).any()
    # The start inside is left as it is; outside it is the nearest point.
    inside = gauge(free[:, 0]) < 1
    assert 0 < inside.sum() < 300
    assert np.array_equal(theta[inside, 0], free[inside, 0])


def test_a_projected_point_is_the_nearest():
    generator = np.random.default_rng(1)
    for theta_set, gauge in SETS:
        points = generator.normal(size=(50, 2))
        nearest = theta_set.project(points)
        assert np.allclose(theta_set.project(nearest), nearest, rtol=0, atol=1e-15)
        others = points[:, None] + generator.normal(scale=0.7, size=(50, 4000, 2))
        gap = np.linalg.norm(others - points[:, None], axis=-1)
        gap[gauge(others) > 1] = np.inf
        assert (np.linalg.norm(nearest - points, axis=1) <= gap.min(axis=1) + 1e-12).all()
    # Along the span only: the other coordinate is free.
    moved = SETS[1][0].project(np.array([5.0, 5.0])) - np.array([5.0, 5.0])
    assert moved @ np.array([0.8, -0.6]) == pytest.approx(0, abs=1e-14)


# The compiled body's parts.


def test_directions_are_shared_where_every_arm_is_along_them():
    generator, places = np.random.default_rng(5), np.array([0.0, 0.3, -1.0, 2.0])
    first, way = generator.normal(size=(2, 2, 1, 3))
    features = first + places[:, None] * way
    found = np.multiply.outer(*shared_directions(features)).swapaxes(0, 1)
    np.testing.assert_allclose(found, features - features[:, :1], atol=1e-12)
    features[1, 2, 0] += 1e-3
    assert shared_directions(features) is None


def test_the_exponential_is_numpys_to_two_units_in_the_last_place():
    x = -np.concatenate(
        [
            np.linspace(0, 1, 2001),
            np.geomspace(1e-300, 708, 4001),
            np.random.default_rng(0).uniform(0, 708, 4000),
            np.arange(1, 1000) * np.log(2) / 2,
        ]
    )
    result = np.array([exponential(value) for value in x])
    expected = np.exp(x)
    assert (np.abs(result - expected) <= 2 * np.spacing(expected)).all()
    assert exponential(0.0) == exponential(-0.0) == 1.0
    assert exponential(-708.5) == exponential(-1e300) == 0.0
    assert exponential(-np.inf) == 0.0
