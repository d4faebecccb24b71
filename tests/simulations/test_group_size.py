"""Claim group_size: its problems, its predictions, and what an experiment without power would miss."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from simulations import Suite
from simulations.group_size import RIVALS, Run, claim, epoch_gap, schedules
from simulations.landscapes import Landscapes, tug
from ustat_pg.engines import Constant
from ustat_pg.experiment import Options, Store, run_claims
from ustat_pg.predictions import (
    covariance_parts,
    gap_group_size,
    mse_constants,
    optimal_group_size,
    paper_group_size,
)
from ustat_pg.problems import SoftmaxBandit, random_problem

GROUNDS = Landscapes(Suite("smoke"))


@pytest.fixture(scope="module")
def ground():
    return next(GROUNDS.tugs("tug"))


def measured(run: Run, engine: str, n: int = 0) -> tuple[float, float]:
    """The mean gap and its standard error."""
    cell, ((quantity, _),) = run.gap.cell, run.gap.weights
    sums = cell.measure(engine, [quantity], seed=5, replications=n)
    return float(sums.mean[0]), float(np.sqrt(sums.covariance[0, 0] / n)) if n else 0.0


@pytest.mark.parametrize(
    ("height", "tilt", "tau"), [(0.6, 0.2, 2.0), (0.5, 1.0, 0.5), (0.6, 0.05, 1.0)]
)
def test_constants_of_the_tug_are_those_its_docstring_says(height, tilt, tau):
    problem = tug(height, tilt, tau)
    outer = np.exp(-1 / (2 * tau**2))
    eps, ratio = outer / (1 + 2 * outer), height / tilt
    known = mse_constants(problem.at(problem.maximiser).moments())
    assert problem.maximiser == pytest.approx(0.0, abs=1e-9)
    assert known.c3 / known.c1 == pytest.approx(2 + (1 - 2 * eps) * ratio**2)
    assert known.c2 / known.c1 == pytest.approx((1 + (1 - 2 * eps) ** 2 * ratio**2) / (2 * eps) - 1)


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


def test_own_error_of_the_prediction_falls_as_it_is_allowed_to(ground):
    decay, constant = schedules(ground)
    off = []
    for schedule, step in ((decay, 60), (decay, 240), (constant, 100)):
        run = Run(ground, 6, 3, schedule, step)
        exact, _ = measured(run, "exact")
        off.append(abs(exact / run.predicted - 1))
        assert off[-1] < run.own_error / run.predicted


@pytest.mark.parametrize("size", [2, 3, 12])
def test_epochs_leave_what_the_formula_says(size):
    crowd = next(GROUNDS.tugs("crowd"))
    run = Run(crowd, 24, size, schedules(crowd)[0], 48, design="epochs")
    drawn, error = measured(run, "cpu", 16_384)
    assert abs(drawn - epoch_gap(run)) < 4 * error + run.own_error
    assert replace(run, design="iid").predicted - drawn > 8 * error


def test_epoch_formula_against_all_orders_of_four_prompts():
    """The linear recursion over an epoch, its prompts in every order."""
    problem = tug(copies=2)
    few = replace(next(GROUNDS.tugs("tug")), landscape=problem)
    run = Run(few, 2, 2, Constant(0.9), 4, design="epochs", start=0.2)
    assert run.batch_size == 1
    (curvature,) = problem.curvatures
    bandit = problem.at(problem.maximiser)
    parts = covariance_parts(bandit.moments(), problem.identifiable)
    gradients = [float(problem.at(problem.maximiser).restrict([x]).gradient()[0]) for x in range(4)]
    assert sum(gradients) == pytest.approx(0, abs=1e-12)
    squares = []
    for order in permutations(gradients):
        away = 0.2
        for gradient in order:
            away += 0.9 * (gradient - curvature * away)
        squares.append(away**2)
    within = 0.0
    for _ in range(4):
        within = (1 - 0.9 * curvature) ** 2 * within + 0.81 * float((parts[1] + parts[2])[0, 0]) / 2
    assert epoch_gap(run) == pytest.approx(0.5 * curvature * (np.mean(squares) + within), rel=1e-12)


def test_the_whole_epoch_in_one_step_leaves_nothing_of_the_prompts():
    crowd = next(GROUNDS.tugs("crowd"))
    run = Run(crowd, 48, 2, Constant(0.1), 10, design="epochs")
    _, single, pair = covariance_parts(run.moments, crowd.landscape.identifiable)
    assert epoch_gap(run) == pytest.approx(run.gap_of((single / 2 + pair / 2) / 24))


def test_two_directions_want_different_groups_and_one_does_not(ground):
    crossing = GROUNDS.crossing.landscape

    def best(landscape, c):
        parts = covariance_parts(
            landscape.at(landscape.maximiser).moments(), landscape.identifiable
        )
        return gap_group_size(parts[0], parts[2], landscape.curvatures, c)

    assert best(crossing, 26.5) < 3.6 < 5 < best(crossing, 200.0)
    one = ground.landscape
    assert best(one, 5.0) == pytest.approx(best(one, 500.0))
    known = mse_constants(one.at(one.maximiser).moments())
    assert best(one, 5.0) == pytest.approx(optimal_group_size(known))


def test_paper_and_exact_optimum_lie_on_two_sides_of_a_feasible_order(ground):
    run = Run(ground, 6, 2, schedules(ground)[0], 100)
    three = replace(run, group_size=3)
    known = mse_constants(run.moments)
    assert paper_group_size(known) < 2.5 < optimal_group_size(known)
    assert run.predicted > three.predicted
    assert run.wrong["sqrt(c3/c1)"] < three.wrong["sqrt(c3/c1)"]


def test_confirmed_by_enumeration_with_every_rival_refuted(tmp_path):
    run = run_claims(
        [claim(Suite("smoke", 3))], Options("smoke", engine="exact", seed=3), Store(tmp_path)
    )
    (result,) = run.claims
    assert result.verdict == "CONFIRMED"
    assert {rival.name: rival.exact for rival in result.rivals} == dict.fromkeys(RIVALS, "REFUTED")


def test_a_users_problem_is_checked_without_training():
    built = claim(Suite("smoke", user=random_problem(1, "plain", contexts=2)))
    assert {check.origin for check in built.checks} == {"user"}
