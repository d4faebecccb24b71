"""What claims rest on beside their checks: theorems on their constants, and their problems."""

import numpy as np
import pytest

from simulations import Suite, claim, curves, processes
from simulations.engines import Decay, Training
from simulations.evidence import Options, Store, options, run_points
from simulations.evidence.options import SIZES, Size
from simulations.figures.limit_law import STARTS, STEPS
from simulations.shared.runs import covariance_of, moments_of
from simulations.shared.weights import constants, scale
from ustat_pg.engines import Estimator
from ustat_pg.predictions import (
    limit_weights,
    matrix_correlation,
    mse_constants,
)
from ustat_pg.problems import SoftmaxBandit, random_problem


@pytest.fixture(scope="module")
def landscapes():
    return Suite("smoke").landscapes


# Theorem 7.


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


# Theorem 8.


def paths(frame):
    """Where each run is, (run, steps, 2)."""
    runs = frame[frame["series"] == "run"]
    table = runs.pivot(index=["run", "step"], columns="axis", values="estimate")
    return table[["x", "y"]].to_numpy().reshape(len(STARTS), len(STEPS), 2)


def test_a_path_is_one_run_of_the_engine(tmp_path):
    # The laws take many runs.
    points = [p for p in curves("limit_law", Suite("smoke")) if p.series in ("run", "return")]
    frame = run_points(points, Options("quick"), Store(tmp_path))
    landscape = Suite("smoke").landscapes["calm mixture"][0].problem
    for number, (start, path) in enumerate(zip(STARTS, paths(frame), strict=True)):
        runs = Training(landscape, 2, STEPS[-1], Decay(20.0, 60.0), start=start)
        trajectory = runs.trajectory(Estimator("grpo"), STEPS)
        drawn = trajectory.run("cpu", seed=number, replications=1)[0]
        assert np.array_equal(path, drawn)
    assert (frame[frame["series"] == "run"]["replications"] == 1).all()


# Corollary 9.


def test_in_two_directions_the_constants_are_limits(landscapes):
    entry = landscapes["slopes"][0]
    curvatures, c = entry.problem.curvatures, scale(entry)
    tends_to = constants(entry)
    off = []
    for size in (2, 512, 2048):
        grpo, oracle = (
            limit_weights(curvatures, covariance_of(entry.problem, name, size), c)
            for name in ("grpo", "oracle")
        )
        off.append(np.abs(size * (size - 1) * (grpo - oracle) / tends_to - 1).max())
    assert off[0] < 0.01
    # The remainder is of one order more, 1/G of the difference.
    assert off[1] == pytest.approx(4 * off[2], rel=0.2)


# Corollary 10.


SEEDS = (0, 1, 5)


def form(entry):
    """E[Uᵀ s sᵀ U a] averaged over prompts."""
    landscape = entry.problem
    result = matrix_correlation(moments_of(entry.problem), landscape.identifiable)
    return np.einsum("x,xij->ij", landscape.context_probs, result)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_problem_has_the_form_that_it_is_there_for(seed):
    landscapes = Suite("quick", seed).landscapes
    for entry in (*landscapes["ordered"], *landscapes["ordered, d = 2"]):
        assert np.abs(form(entry)).max() < 1e-12
    for entry in landscapes["ordered prompts"]:
        moments = moments_of(entry.problem)
        assert np.abs(matrix_correlation(moments, entry.problem.identifiable)).max() < 1e-12
        assert np.ptp(moments.value) > 0.2
        one, other = (record.fisher for record in moments.matrices())
        assert np.abs(one @ other - other @ one).max() > 0.1
    for entry in (*landscapes["uneven"], *landscapes["norm only"]):
        result = form(entry)
        assert abs(np.trace(result)) < 1e-12
        assert np.abs(result).max() > 0.2


def test_figures_are_handed_what_verdicts_drew(tmp_path, monkeypatch):
    """Of dear cells they then show it: ``test_curves``."""
    handed, true = [], processes.run_points

    def kept(points, options, store, cluster, drawn):
        handed.append(drawn)
        return true([], options, store)

    monkeypatch.setattr(processes, "run_points", kept)
    monkeypatch.setitem(SIZES, "smoke", Size(2048, 0.125))
    monkeypatch.setattr(options, "LARGEST_BLOCK", 1024)
    suite = Suite("smoke")
    done = processes.settle(["oracle"], suite, Options("smoke", workers=1), tmp_path)
    (drawn,), (result,) = handed, done.run.claims
    asked = {check.name: check.functional.cells for check in claim("oracle", suite).checks}
    for check in result.checks:
        number = sum(drawn[name] for name in {cell.name for cell in asked[check.name]})
        assert check.findings["simulation"].replications == number
    assert min(drawn.values()) > 0
