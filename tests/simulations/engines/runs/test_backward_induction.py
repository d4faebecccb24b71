"""Exact expectations over training runs: held against trees of all paths and against simulation."""

import numpy as np
import pytest

from simulations.engines import Ball, Constant, Decay
from simulations.engines.runs import chain
from simulations.engines.runs.exact import expectations, require_enumerable
from simulations.engines.runs.trajectory import Trajectory, starts
from simulations.interior_problems.location_bandit import LocationBandit, mixture_problem
from simulations.shared.runs import ball
from ustat_pg import estimators
from ustat_pg.engines import Estimator, GradientCell, InfeasibleError
from ustat_pg.engines.base import Replications
from ustat_pg.engines.gradients.exact import minibatches

FUNCTIONS = (lambda gap: gap, lambda gap: np.exp(-30 * gap))


def sure(targets=(0.3,), arms=3, directions=((1.0,),), context_probs=None):
    """Rewards that the arm decides: a bump at the prompt's target."""
    grid, targets = np.linspace(-1.5, 1.5, arms), np.asarray(targets)
    rewards = np.exp(-((grid - targets[:, None]) ** 2) / 1.28)[..., None]
    probs = np.full(len(targets), 1 / len(targets)) if context_probs is None else context_probs
    return LocationBandit(probs, directions, grid, 0.8, rewards, np.ones_like(rewards))


LINE = sure()
PAIR = sure((0.3, -0.4), directions=((1.0,), (0.7,)), context_probs=(0.75, 0.25))
PLANE = sure((-0.7, 0.8, 0.3), directions=((1.0, -1.0), (1.0, 0.0), (1.0, 1.0)))
FLAT = sure((0.3,), directions=((0.6, 0.8),))


def ask(landscape, steps, schedule=None, *, group_size=2, start=(0.2, -0.3), **more):
    begin = landscape.maximiser + np.resize(start, landscape.d)
    problem = landscape.at(np.zeros(landscape.d))
    return Trajectory(problem, group_size, steps, schedule or Decay(6, 5), start=begin, **more)


def leaves(landscape, trajectory):
    """θ_T of every path with its probability, each minibatch enumerated at its own parameters."""
    theta = [starts(trajectory, Replications(count=1))[0]]
    chance = np.ones(1)
    for rate in trajectory.schedule.rates(trajectory.steps):
        following, weight = [], []
        for here, own in zip(theta, chance, strict=True):
            problem = landscape.at(here)
            cell = GradientCell(problem, trajectory.group_size, trajectory.batch_size)
            for draws, probability in minibatches(cell, tuples=True):
                advantage = trajectory.estimator.advantages(problem, draws)
                scores = problem.policy.all_scores[draws.contexts[..., None], draws.arms]
                step = estimators.gradient(scores, advantage).mean(axis=-2)
                after = here + rate * step
                if trajectory.projection is not None:
                    after = trajectory.projection.project(after)
                following.append(after)
                weight.append(own * probability)
        theta, chance = np.concatenate(following), np.concatenate(weight)
    assert abs(chance.sum() - 1) < 1e-12
    return theta, chance


def tree(landscape, trajectory, functions=FUNCTIONS):
    """E f(gap_T) from every path."""
    theta, chance = leaves(landscape, trajectory)
    gaps = landscape.gap(theta)
    return np.array([chance @ function(gaps) for function in functions])


RANDOM = LocationBandit.bump([1.0], [0.3], arms=np.linspace(-1.5, 1.5, 3))

CASES = {
    "random rewards": (RANDOM, {"steps": 3}),
    "one prompt": (LINE, {"steps": 4}),
    "ball reached": (LINE, {"steps": 4, "projection": ball(LINE, 0.5)}),
    "ball reached off the optimum": (
        LINE,
        {"steps": 3, "projection": Ball(LINE.maximiser - 0.2, 0.3, LINE.identifiable)},
    ),
    "start outside": (LINE, {"steps": 3, "projection": Ball([0.25], 0.25), "start": [2.0]}),
    "constant rate": (LINE, {"steps": 4, "schedule": Constant(0.4)}),
    "two prompts": (PAIR, {"steps": 3}),
    "batch of two": (PAIR, {"steps": 2, "batch_size": 2}),
    "oracle": (PAIR, {"steps": 3, "estimator": Estimator("oracle")}),
    "group of one": (PAIR, {"steps": 4, "group_size": 1, "estimator": Estimator("vanilla")}),
    "group mean": (LINE, {"steps": 4, "estimator": Estimator("group-mean")}),
    "norm weighted": (
        LINE,
        {"steps": 2, "group_size": 3, "estimator": Estimator("norm-weighted")},
    ),
    "flat direction": (FLAT, {"steps": 4}),
    "flat, whole ball": (
        FLAT,
        {
            "steps": 3,
            "projection": Ball(FLAT.maximiser, 0.4),
            "start": FLAT.identifiable[:, 0] * 0.3,
        },
    ),
    "plane": (PLANE, {"steps": 2}),
    "plane in a ball": (PLANE, {"steps": 2, "projection": Ball(PLANE.maximiser, 0.5)}),
    "plane in a strip": (
        PLANE,
        {"steps": 2, "projection": Ball(PLANE.maximiser, 0.3, PLANE.identifiable[:, :1])},
    ),
}


REACHED = {
    name for name in CASES if name.startswith(("ball r", "start o", "half", "flat,", "plane in"))
}
"""Runs come to the edge of the projection's set, which makes kinks."""


@pytest.mark.parametrize("name", CASES)
def test_a_tree_of_all_paths(name):
    landscape, asked = CASES[name]
    trajectory = ask(landscape, **asked)
    truth = tree(landscape, trajectory)
    relative = 1e-3 if name in REACHED else 1e-6
    result = expectations(landscape, trajectory, FUNCTIONS, [trajectory.steps], relative=relative)
    assert result.converged
    assert (np.abs(result.values[:, 0] - truth) <= result.error[:, 0] + 1e-12).all()
    assert (result.error[:, 0] <= 1e-10 + relative * truth).all()


@pytest.mark.parametrize("name", ["two prompts", "flat direction", "ball reached", "plane"])
def test_the_mean_of_parameters_is_that_of_all_paths(name):
    landscape, asked = CASES[name]
    trajectory = ask(landscape, **asked)
    theta, chance = leaves(landscape, trajectory)
    every = range(landscape.d)
    relative = 1e-3 if name in REACHED else 1e-6
    result = expectations(
        landscape,
        trajectory,
        FUNCTIONS[:1],
        [0, trajectory.steps],
        coordinates=every,
        relative=relative,
    )
    begin = starts(trajectory, Replications(count=1))[0]
    assert np.allclose(result.values[1:, 0], begin, rtol=0, atol=1e-15)
    assert (np.abs(result.values[1:, 1] - chance @ theta) <= result.error[1:, 1] + 1e-12).all()
    assert np.abs(chance @ theta - begin).max() > 100 * result.error[1:, 1].max()


@pytest.mark.parametrize("radius", [None, 0.25])
def test_a_landscape_in_a_mirror_has_the_same_values(radius):
    """Left is right there, so that both ends of the grid are as far away as they have to be."""
    values = []
    for side in (1.0, -1.0):
        landscape = sure((0.3 * side,))
        reach = None if radius is None else Ball([0.25 * side], radius)
        runs = ask(landscape, 2, start=(0.2 * side,), projection=reach)
        values.append(expectations(landscape, runs, FUNCTIONS, [1, 2]).values)
    assert values[0] == pytest.approx(values[1], rel=1e-8)


def test_the_error_falls_as_it_must_and_covers_what_finer_grids_change():
    functions = (lambda gap: gap, lambda gap: np.exp(-1e4 * gap))
    trajectory = ask(sure(arms=5), 200, Decay(12, 100))
    steps = [20, 200]
    every = [
        expectations(sure(arms=5), trajectory, functions, steps, relative=10.0**-digits)
        for digits in (2, 4, 6, 9)
    ]
    best = every[-1]
    assert best.converged
    for one in every[:-1]:
        assert (np.abs(one.values - best.values) <= one.error + best.error).all()
    assert (best.error <= 1e-10 + 1e-9 * best.values).all()


def test_steps_in_any_order_and_the_start():
    trajectory = ask(LINE, 4)
    result = expectations(LINE, trajectory, FUNCTIONS, [4, 0, 2, 0], relative=1e-6)
    gap = LINE.gap(np.asarray(trajectory.start))
    assert np.allclose(result.values[:, 1], [gap, np.exp(-30 * gap)], rtol=1e-14)
    assert (result.values[:, 1] == result.values[:, 3]).all()
    two = tree(LINE, ask(LINE, 2))
    assert (np.abs(result.values[:, 2] - two) <= result.error[:, 2] + 1e-12).all()


def test_what_does_not_converge_says_so(monkeypatch):
    monkeypatch.setattr(chain, "WORK_LIMIT", 8e3)
    result = expectations(LINE, ask(LINE, 4), FUNCTIONS, [4], relative=1e-9)
    assert not result.converged
    assert result.error.max() > 1e-9
    truth = tree(LINE, ask(LINE, 4))
    assert (np.abs(result.values[:, 0] - truth) <= result.error[:, 0]).all()


# What is refused.


def side_step():
    """The second prompt's mean reward is the same for all arms, its reward is a coin."""
    rewards = np.zeros((2, 3, 2))
    rewards[0] = np.array([0.1, 1.0, 0.4])[:, None]
    rewards[1] = [0.0, 1.0]
    return LocationBandit(
        [0.5, 0.5], np.eye(2), [-1.0, 0.0, 1.0], 0.8, rewards, np.full((2, 3, 2), 0.5)
    )


SIDE = side_step()
SPACE = sure((-0.5, 0.1, 0.4), directions=np.eye(3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: (SPACE, ask(SPACE, 2)), "on 3 directions"),
        (lambda: (PLANE, ask(PLANE, 2, design="epochs")), "design is epochs"),
        (lambda: (LINE, ask(LINE, 2, start_scale=0.1)), "start must be one point"),
        (lambda: (SIDE, ask(SIDE, 2)), "steps leave the identifiable directions"),
        (lambda: (LINE, ask(LINE, 2, group_size=2000)), "10\\^6.3 outcomes of 2000 outputs"),
        (lambda: (PLANE, ask(PLANE, 2, batch_size=500)), "10\\^627.6 outcomes of 1000 outputs"),
        (
            lambda: (FLAT, ask(FLAT, 2, projection=Ball([1.0, 0.0], 0.2))),
            "projection moves theta out",
        ),
    ],
)
def test_what_is_infeasible_is_refused(make, message):
    landscape, trajectory = make()
    with pytest.raises(InfeasibleError, match=message):
        require_enumerable(landscape, trajectory)
    with pytest.raises(InfeasibleError, match=message):
        expectations(landscape, trajectory, FUNCTIONS, [1])


def test_a_second_action_is_refused():
    landscape = mixture_problem()
    trajectory = Trajectory(landscape.at([0.0, 0.0]), 2, 3, Constant(0.1))
    with pytest.raises(InfeasibleError, match="second action"):
        require_enumerable(landscape, trajectory)


def test_probabilities_that_would_underflow_are_refused(monkeypatch):
    monkeypatch.setattr(chain, "_DIGITS", 5)
    require_enumerable(LINE, ask(LINE, 2, group_size=10))
    with pytest.raises(InfeasibleError, match="11 outputs has outcomes of probability below 1e-5"):
        require_enumerable(LINE, ask(LINE, 2, group_size=11))


def test_too_much_work_is_refused(monkeypatch):
    monkeypatch.setattr(chain, "WORK_LIMIT", 100.0)
    with pytest.raises(InfeasibleError, match=r"points needs .* multiplications \(limit 1e\+02\)"):
        expectations(LINE, ask(LINE, 2), FUNCTIONS, [2])
