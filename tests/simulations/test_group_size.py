"""Claim group_size: its problems, its predictions, and what an experiment without power would miss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulations import Suite
from simulations.group_size import schedules
from simulations.shared.splits import Split
from ustat_pg.predictions import (
    covariance_parts,
    gap_group_size,
    mse_constants,
    optimal_group_size,
)
from ustat_pg.problems import SoftmaxBandit, random_problem

LANDSCAPES = Suite("smoke").landscapes


@pytest.fixture(scope="module")
def entry():
    return LANDSCAPES["tug"][0]


def measured(split: Split, engine: str, n: int = 0) -> tuple[float, float]:
    """The mean gap and its standard error."""
    cell, ((quantity, _),) = split.gap.cell, split.gap.weights
    sums = cell.measure(engine, [quantity], seed=5, replications=n)
    return float(sums.mean[0]), float(np.sqrt(sums.covariance[0, 0] / n)) if n else 0.0


@pytest.mark.parametrize("kind", ["plain", "negative-rewards", "linear", "uniform-contexts"])
def test_c3_is_at_least_twice_c1(kind):
    for seed in range(20):
        known = mse_constants(random_problem(seed, kind, contexts=4).moments())
        assert known.c3 >= 2 * known.c1 * (1 - 1e-12)
        assert known.mse(3, 1 / 3) <= known.mse(2, 1 / 2) * (1 + 1e-12)


def test_two_is_as_good_as_three_where_the_proof_is_tight():
    """Two prompts, two equal arms each, opposite sure rewards, one score for both prompts."""
    rewards = np.array([[1.0, 0.0], [0.0, 1.0]])[:, :, None]
    features = np.broadcast_to([[[1.0], [-1.0]]], (2, 2, 1))
    problem = SoftmaxBandit.linear([0.5, 0.5], features, [0.0], rewards, np.ones((2, 2, 1)))
    known = mse_constants(problem.moments())
    assert (known.c1, known.c2, known.c3) == pytest.approx((0.25, 0.0, 0.5))
    assert known.mse(2, 1 / 2) == pytest.approx(known.mse(3, 1 / 3)) == pytest.approx(1.0)


def test_own_error_of_the_prediction_falls_as_it_is_allowed_to(entry):
    decay, constant = schedules(entry)
    off = []
    for schedule, step in ((decay, 60), (decay, 240), (constant, 100)):
        split = Split(entry, 6, 3, schedule, step)
        exact, _ = measured(split, "exact")
        off.append(abs(exact / split.predicted - 1))
        assert off[-1] < split.error / split.predicted


@pytest.mark.parametrize("size", [2, 3, 12])
def test_epochs_leave_what_the_formula_says(size):
    crowd = LANDSCAPES["crowd"][0]
    split = Split(crowd, 24, size, schedules(crowd)[0], 48, design="epochs")
    drawn, error = measured(split, "cpu", 16_384)
    assert abs(drawn - split.predicted) < 4 * error + split.error
    assert replace(split, design="iid").predicted - drawn > 8 * error


def test_two_directions_want_different_groups_and_one_does_not(entry):
    crossing = LANDSCAPES["crossing"][0].problem

    def best(landscape, c):
        parts = covariance_parts(
            landscape.at(landscape.maximiser).moments(), landscape.identifiable
        )
        return gap_group_size(parts[0], parts[2], landscape.curvatures, c)

    assert best(crossing, 26.5) < 3.6 < 5 < best(crossing, 200.0)
    one = entry.problem
    assert best(one, 5.0) == pytest.approx(best(one, 500.0))
    known = mse_constants(one.at(one.maximiser).moments())
    assert best(one, 5.0) == pytest.approx(optimal_group_size(known))
