"""Exact expectations over training runs: held against trees of all paths and against simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.interpolate import make_interp_spline

from ustat_pg import estimators
from ustat_pg.engines import Cell, Estimator, InfeasibleError
from ustat_pg.engines import trajectory_exact as module
from ustat_pg.engines.exact import minibatches
from ustat_pg.engines.trajectory import (
    Ball,
    Box,
    Constant,
    Decay,
    Trajectory,
    get_trajectory_engine,
    starts,
)
from ustat_pg.engines.trajectory_exact import check, expectations
from ustat_pg.problems import LocationBandit, mixture_problem
from ustat_pg.validation import InputError

FUNCTIONS = (lambda gap: gap, lambda gap: np.exp(-30 * gap))


def sure(targets=(0.3,), arms=3, directions=((1.0,),), context_probs=None):
    """Rewards that the arm decides: a bump at the prompt's target."""
    grid, targets = np.linspace(-1.5, 1.5, arms), np.asarray(targets)
    rewards = np.exp(-((grid - targets[:, None]) ** 2) / 1.28)[..., None]
    probs = np.full(len(targets), 1 / len(targets)) if context_probs is None else context_probs
    return LocationBandit(
        probs, directions, grid, 0.8, rewards, np.ones_like(rewards), flat_radius=1e4
    )


LINE = sure()
PAIR = sure((0.3, -0.4), directions=((1.0,), (0.7,)), context_probs=(0.75, 0.25))
PLANE = sure((-0.7, 0.8, 0.3), directions=((1.0, -1.0), (1.0, 0.0), (1.0, 1.0)))
FLAT = sure((0.3,), directions=((0.6, 0.8),))


def ask(landscape, steps, schedule=None, *, group_size=2, start=(0.2, -0.3), **more):
    begin = landscape.maximiser + np.resize(start, landscape.d)
    problem = landscape.at(np.zeros(landscape.d))
    return Trajectory(problem, group_size, steps, schedule or Decay(6, 5), start=begin, **more)


def tree(landscape, trajectory, functions=FUNCTIONS):
    """E f(gap_T) from every path, each minibatch enumerated at the parameters it is drawn at."""
    theta = [starts(trajectory, seed=0, first=0, replications=1)[0]]
    chance = np.ones(1)
    for rate in trajectory.schedule.rates(trajectory.steps):
        following, weight = [], []
        for here, own in zip(theta, chance, strict=True):
            problem = landscape.at(here)
            cell = Cell(problem, trajectory.group_size, trajectory.batch_size)
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
    gaps = landscape.gap(theta)
    return np.array([chance @ function(gaps) for function in functions])


def ball(landscape, radius):
    return Ball(landscape.maximiser, radius, landscape.identifiable)


CASES = {
    "one prompt": (LINE, {"steps": 4}),
    "ball not reached": (LINE, {"steps": 4, "projection": ball(LINE, 6.0)}),
    "ball reached": (LINE, {"steps": 4, "projection": ball(LINE, 0.5)}),
    "start outside": (LINE, {"steps": 3, "projection": Box([0.0], [0.5]), "start": [2.0]}),
    "half open box": (LINE, {"steps": 4, "projection": Box([0.1], [np.inf])}),
    "constant rate": (LINE, {"steps": 4, "schedule": Constant(0.4)}),
    "two prompts": (PAIR, {"steps": 3}),
    "batch of two": (PAIR, {"steps": 2, "batch_size": 2}),
    "oracle": (PAIR, {"steps": 3, "estimator": Estimator("oracle")}),
    "group of one": (PAIR, {"steps": 4, "group_size": 1, "estimator": Estimator("vanilla")}),
    "constant": (PAIR, {"steps": 3, "estimator": Estimator("constant", 0.4)}),
    "group mean": (LINE, {"steps": 4, "estimator": Estimator("group-mean")}),
    "minimum variance": (PAIR, {"steps": 3, "estimator": Estimator("minimum-variance")}),
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
    "plane in a box": (
        PLANE,
        {"steps": 2, "projection": Box([-0.3, -np.inf], [np.inf, 0.3])},
    ),
    "plane in a strip": (
        PLANE,
        {"steps": 2, "projection": Ball(PLANE.maximiser, 0.3, PLANE.identifiable[:, :1])},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_tree_of_all_paths(name):
    landscape, asked = CASES[name]
    trajectory = ask(landscape, **asked)
    truth = tree(landscape, trajectory)
    found = expectations(landscape, trajectory, FUNCTIONS, [trajectory.steps], relative=1e-6)
    assert found.converged
    # The stated error is that of a coarser and of a narrower grid; both may be 0 to rounding.
    assert (np.abs(found.values[:, 0] - truth) <= found.error[:, 0] + 1e-12).all()
    assert (found.error[:, 0] <= 1e-10 + 1e-6 * truth).all()
