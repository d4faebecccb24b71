"""Claims on training runs of networks: their paths, predictions and points, before anything is drawn."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from math import isfinite, log

import numpy as np
import pytest

import simulations.network_runs as module
from simulations import Suite, claim
from simulations.network_runs import (
    GROUP_SIZE_RIVALS,
    LARGEST,
    LONG,
    PATH,
    PATH_RIVALS,
    PL,
    SAME,
    SHRUNK,
    STAGES,
    SUM,
    SWEEPS,
    Study,
    group_size_points,
    group_sizes,
    large,
    map_points,
    path_points,
    paths,
    stages,
    studies,
)
from simulations.networks import initial, tasks
from ustat_pg.engines import Estimator, Gap
from ustat_pg.engines.networks import NetworkTraining, train
from ustat_pg.experiment import Claim, Linear
from ustat_pg.experiment.blocks import Block, run_task, sums_of
from ustat_pg.experiment.probes import Probe

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch not installed")
GRPO, GROUP_MEAN = Estimator("grpo"), Estimator("group-mean")


@lru_cache
def suite_of(seed=0):
    return Suite("smoke", seed, on="tokens")


@lru_cache
def study_of(seed=0):
    """The made-up one."""
    return next(studies(suite_of(seed)))


@lru_cache
def checks_of(seed=0):
    return tuple(paths(suite_of(seed)))


@pytest.fixture
def short(monkeypatch):
    """Short paths: those of transformers take seconds."""
    monkeypatch.setattr(module, "PATH", 6)
    monkeypatch.setattr(module, "LONG", 8)


# Studies.


def objective(problem, policy, theta):
    """J by the outputs' probabilities."""
    probs = policy.with_theta(theta).probs
    return float(problem.probs @ (probs * problem.rewards).sum(axis=1))


def slope(problem, policy, theta, step=1e-5):
    """∇J by central differences."""
    found = np.empty(len(theta))
    for j, unit in enumerate(np.eye(len(theta))):
        ends = [objective(problem, policy, theta + sign * step * unit) for sign in (1, -1)]
        found[j] = (ends[0] - ends[1]) / (2 * step)
    return found


def test_the_rate_gains_half_of_the_gap_at_the_first_pace():
    study = study_of()
    gradient = slope(study.problem, study.policy, study.policy.theta)
    gap = 1.0 - objective(study.problem, study.policy, study.policy.theta)
    assert study.problem.optimum == 1.0
    assert study.rate * PATH * gradient @ gradient == pytest.approx(gap / 2, rel=0.05)
    # Two digits: equal on machines whose last bits differ.
    assert study.rate == float(f"{study.rate:.2g}")


def test_exact_ascent_is_gradient_ascent_on_the_return():
    study, theta = study_of(), study_of().policy.theta
    found = study.ascent(2.0, 3)
    assert len(found) == 4
    for bandit in found:
        assert bandit.objective() == pytest.approx(
            objective(study.problem, study.policy, theta), abs=1e-8
        )
        theta = theta + 2.0 * slope(study.problem, study.policy, theta)


def test_gaps_and_pl_along_the_path():
    study = study_of()
    assert len(study.path) == len(study.gaps) == len(study.pl) == LONG + 1
    assert (np.diff(study.gaps) < 0).all(), "exact ascent in small steps never loses"
    for step in (0, 7, LONG):
        bandit = study.path[step]
        gradient = bandit.gradient()
        assert study.gaps[step] == pytest.approx(1.0 - bandit.objective())
        assert study.pl[step] == pytest.approx(gradient @ gradient / (2 * study.gaps[step]))
    assert study.pl[study.peak] == study.pl.max()


def test_the_gap_under_pl_shrinks_by_its_constant_step_by_step():
    study = study_of()
    gap = study.gaps[study.peak]
    for _ in range(study.peak, LONG):
        gap -= study.rate * 2 * study.pl[study.peak] * gap
    assert study.under_pl(LONG) == pytest.approx(gap)
    assert study.under_pl(study.peak) == study.gaps[study.peak]
    # There the network is slower: which is what the check is about.
    assert study.gaps[LONG] > study.under_pl(LONG)


def test_runs_spend_the_budget():
    study = study_of()
    for size in (2, 4, 8):
        runs = study.runs(size, 32, 5, 0.1, 16)
        assert runs.group_size * runs.batch_size == 32
        assert (runs.block, runs.chunk, runs.steps) == (16, 16, 5)
        assert runs.schedule.rates(5).tolist() == [0.1] * 5
    assert study.runs(2, 32, 5, 0.1, 256).chunk == 64


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_the_device_of_the_suite_reaches_the_runs(device):
    suite = Suite("smoke", on="tokens", device=device)
    for check in group_sizes(suite):
        assert {cell.device for cell in check.functional.cells} == {device}
    assert large(suite).device == device


@pytest.mark.parametrize("seed", range(4))
def test_studies_are_a_function_of_the_seed(seed):
    first, again, other = (
        [(s.name, s.policy.theta.tolist(), s.rate) for s in studies(Suite("smoke", n, on="tokens"))]
        for n in (seed, seed, seed + 1)
    )
    assert first == again
    assert first[0] == other[0], "the made-up one is always the same"
    assert first[1] != other[1]
    for study in studies(Suite("smoke", seed, on="tokens")):
        gap = 1.0 - objective(study.problem, study.policy, study.policy.theta)
        assert 0.75 < gap < 0.95


# Checks on the path.


def test_the_mean_gap_is_predicted_by_exact_ascent():
    study = study_of()
    grpo, group_mean, pl = [check for check in checks_of() if check.group == "made-up"]

    def at(pace):
        return study.problem.gap(study.ascent(pace * study.rate, PATH)[-1])

    assert grpo.functional.quantities == (Gap(GRPO, PATH),)
    assert grpo.statement.prediction == pytest.approx(at(1.0))
    assert grpo.statement.prediction == study.gaps[PATH]
    # Groups of two: without the own reward left out the step is half, as a sum it is twice.
    values = {
        name: (region.low + region.high) / 2 for name, region in grpo.statement.rivals.items()
    }
    assert values.keys() == {SHRUNK, SUM}
    assert values[SHRUNK] == pytest.approx(at(0.5))
    assert values[SUM] == pytest.approx(at(2.0))
    assert group_mean.functional.quantities == (Gap(GROUP_MEAN, PATH),)
    assert group_mean.statement.prediction == pytest.approx(at(0.5))
    assert set(group_mean.statement.rivals) == {SUM}
    assert group_mean.functional.cells == grpo.functional.cells
    (cell,) = grpo.functional.cells
    assert (cell.group_size, cell.batch_size, cell.steps) == (2, 16, PATH)
    assert cell.schedule.rates(1)[0] == study.rate
    # Less the gap that a PL constant would leave, what is left is more than nothing.
    assert set(pl.statement.rivals) == {PL}
    assert pl.functional.constant == -study.under_pl(LONG)
    assert pl.functional.weights == ((Gap(GRPO, LONG), 1.0),)
    assert pl.statement.prediction == pytest.approx(study.gaps[LONG] - study.under_pl(LONG))


@pytest.mark.parametrize("seed", range(4))
def test_every_rival_of_runs_is_told_apart_on_made_up_and_on_generated_problems(seed):
    suite = suite_of(seed)
    for checks, rivals in (
        (checks_of(seed), PATH_RIVALS),
        (tuple(group_sizes(suite)), GROUP_SIZE_RIVALS),
    ):
        # A claim refuses names that occur twice and rivals that are not listed.
        Claim("suboptimality", rivals, checks, rivals)
        for rival in rivals:
            heard = {
                check.group
                for check in checks
                if rival in check.statement.rivals and check.statement.distinguishable(rival)
            }
            if rival != PL:
                assert heard == {"made-up", "generated"}, rival


@pytest.mark.parametrize("seed", range(4))
def test_a_pl_constant_is_told_apart_on_made_up_and_on_generated_problems(seed):
    # A rival that one ground leaves out leaves its claim INCONCLUSIVE.
    heard = {
        check.group
        for check in checks_of(seed)
        if PL in check.statement.rivals and check.statement.distinguishable(PL)
    }
    assert heard == {"made-up", "generated"}


@needs_torch
def test_transformers_have_the_same_checks(short):
    suite = Suite("smoke", on="transformer")
    checks = tuple(paths(suite))
    Claim("suboptimality", PATH_RIVALS, checks, PATH_RIVALS)
    for rival in (SUM, SHRUNK):
        for group in ("made-up", "generated"):
            assert any(
                check.group == group and check.statement.distinguishable(rival)
                for check in checks
                if rival in check.statement.rivals
            )
    for check in checks:
        (cell,) = check.functional.cells
        assert isinstance(cell, NetworkTraining)
        assert cell.d > 500


def test_what_no_enumeration_reaches_is_left_to_simulation():
    if find_spec("torch") is not None:
        built = claim("suboptimality", suite_of())
        assert built.rivals == built.by_simulation == PATH_RIVALS
        sizes = claim("group_size", suite_of())
        assert sizes.by_simulation == GROUP_SIZE_RIVALS
        assert set(sizes.rivals) > set(GROUP_SIZE_RIVALS)
    assert len({*PATH_RIVALS, *GROUP_SIZE_RIVALS}) == 5


# Group sizes.


def test_one_prompt_a_step_is_compared_with_the_recommended_size():
    checks = tuple(group_sizes(suite_of()))
    assert {check.group for check in checks} == {"made-up", "generated"}
    for check in checks:
        best, worst = check.functional.points
        sizes = [(cell.group_size, cell.batch_size) for cell in check.functional.cells]
        assert sizes == [(4, 4), (16, 1)]
        (first, _), (second, _) = best.weights[0], worst.weights[0]
        assert first == second == Gap(GRPO, 10)
        rates = [cell.schedule.rates(1)[0] for cell in check.functional.cells]
        assert rates[0] == rates[1]
        # log(gap at 16 / gap at 4): positive if the small group is the better one.
        sums = {
            cell.name: ((Gap(GRPO, 10),), _mean(value))
            for cell, value in zip(check.functional.cells, (0.4, 0.5), strict=True)
        }
        assert check.functional.exact(sums) == pytest.approx(log(0.5 / 0.4))
        assert set(check.statement.rivals) == {LARGEST, SAME}


def _mean(value):
    from ustat_pg.engines import MomentSums

    return MomentSums.exact(np.array([value]))


# Points of figures.


@pytest.mark.parametrize("points", [path_points, map_points, group_size_points])
def test_points_are_distinct_and_ask_for_steps_that_are_taken(points):
    built = tuple(points(suite_of()))
    keys = [(p.figure, p.series, *sorted(p.at.items())) for p in built]
    assert len(set(keys)) == len(keys)
    assert {p.figure.partition("_")[0] for p in built} == {"tokens"}
    for point in built:
        assert point.prediction is None or isfinite(point.prediction)
        if point.functional is None:
            continue
        (cell,) = point.functional.cells
        cell.check_quantities(point.functional.quantities)
        for quantity in point.functional.quantities:
            assert quantity.step == point.at["step"]
            if isinstance(quantity, Probe) and quantity.baseline:
                assert point.at["group_size"] == quantity.group_size


def test_trained_points_show_the_return():
    study, sweep = large(suite_of()), SWEEPS["tokens"]
    trained = [p for p in group_size_points(suite_of()) if p.at["panel"] == "trained"]
    asked = {(p.at["budget"], p.at["step"], p.at["group_size"]) for p in trained}
    assert asked == {
        (budget, step, size)
        for budget in sweep.budgets
        for step in sweep.steps
        for size in sweep.sizes
    }
    for point in trained:
        assert isinstance(point.functional, Linear)
        (cell,) = point.functional.cells
        assert cell.group_size * cell.batch_size == point.at["budget"]
        ((quantity, weight),) = point.functional.weights
        assert (quantity.estimator, weight, point.functional.constant) == (
            GRPO, -1.0, study.problem.optimum
        )  # fmt: skip


def test_predicted_curves_are_those_of_the_three_constants():
    study, sweep = large(suite_of()), SWEEPS["tokens"]
    path = study.ascent(sweep.rate, sweep.steps[-1])
    known = stages(study, sweep.rate, sweep.steps[-1])
    assert tuple(known) == STAGES
    built = list(group_size_points(suite_of()))
    for name, bandit in zip(STAGES, (path[0], path[len(path) // 2], path[-1]), strict=True):
        # c₁ G + c₂ + c₃/(G-1), by hand: between prompts, of the first order, of pairs.
        gradients = np.array(
            [
                (bandit.policy.probs[x] * bandit.mean_rewards[x]) @ bandit.policy.scores(x)
                for x in range(bandit.contexts)
            ]
        )
        mean = bandit.context_probs @ gradients
        c1 = bandit.context_probs @ ((gradients - mean) ** 2).sum(axis=1)
        c2 = c3 = 0.0
        for x, rho in enumerate(bandit.context_probs):
            probs, norms = bandit.policy.probs[x], bandit.policy.squared_norms[x]
            off = bandit.mean_rewards[x] - probs @ bandit.mean_rewards[x]
            square = gradients[x] @ gradients[x]
            c2 += rho * (probs @ (norms * off**2) - square)
            c3 += rho * ((probs @ off**2) * (probs @ norms) + square)
        sizes = np.array([p.at["group_size"] for p in built if p.series == name])
        drawn = np.array([p.prediction for p in built if p.series == name])
        curve = c1 * sizes + c2 + c3 / (sizes - 1)
        least = 2 * np.sqrt(c1 * c3) + c1 + c2
        assert drawn == pytest.approx(curve / least, rel=1e-8)
        assert drawn.min() >= 1 - 1e-12


def test_the_path_of_a_figure_has_its_predictions():
    study = study_of()
    for point in path_points(suite_of()):
        step = point.at["step"]
        if point.series == "gap":
            assert point.prediction == study.gaps[step]
        elif point.series == "pl":
            assert point.prediction == study.pl[step]
            (probe,) = point.functional.quantities
            assert probe == Probe(GRPO, step, "pl")
        else:
            assert point.series == "PL"
            assert step >= study.peak
            assert point.prediction == study.under_pl(step)


@needs_torch
def test_probes_of_whole_runs_are_those_of_the_policies_they_come_to():
    problem = tasks()["addition"]
    policy = initial("tokens", problem, 5)
    training = Study("small", "made-up", problem, policy, 0.5).runs(4, 8, 3, 0.5, 4)
    probes = (
        Gap(GRPO, 3),
        Probe(GRPO, 3, "return"),
        Probe(GRPO, 1, "pl"),
        Probe(GRPO, 3, "relative-mse", "grpo", 4),
    )
    sums = sums_of(run_task(Block(training, probes, "autograd", 3, 10, 4)))
    theta = train(training, GRPO, (1, 3), seed=3, first=10, replications=4)
    values = np.array(
        [
            [
                problem.gap(problem.bandit(policy.with_theta(run[1]))),
                *(
                    probe.of(problem.bandit(policy.with_theta(run[0 if probe.step == 1 else 1])))
                    for probe in probes[1:]
                ),
            ]
            for run in theta
        ]
    )
    assert sums.mean == pytest.approx(values.mean(axis=0), rel=1e-10)
    # Return and gap add up to the optimum in every run.
    assert sums.mean[0] + sums.mean[1] == pytest.approx(problem.optimum)
    assert sums.covariance[0, 1] == pytest.approx(-sums.covariance[0, 0], rel=1e-9)
