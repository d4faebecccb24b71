"""Forecasts: held against the tasks that a run really does, by a clock that goes by their size."""

import pytest

from simulations import claim, curves
from simulations.engines import Gap, OneStep
from simulations.engines.one_step import GapAfterStep
from simulations.evidence import (
    Options,
    Point,
    Store,
    forecast,
    mean_of,
    plan_claims,
    run_claims,
    run_points,
    work,
)
from simulations.evidence.blocks import Block
from simulations.evidence.forecast import FEW, SAMPLE, sample
from simulations.evidence.formulas import FormulaDistance, Groups
from simulations.evidence.store import Memory
from simulations.problems import Suite, mse_of
from tests.support.claims import GRPO, SKEWED, claim_of_runs, small_claim, training
from ustat_pg.engines import Estimator, GradientCell, SquaredError
from ustat_pg.policies import PrefixSoftmax
from ustat_pg.problems import modular_sum, random_problem

START, PACE = 1e-3, 1e-7


def by_size(task):
    """The seconds of a task by the test's clock."""
    if task.engine == "exact":
        return PACE * task.weight
    return START + PACE * task.replications * task.cell.outputs


@pytest.fixture
def done(monkeypatch):
    """The tasks that are run, with the clock of the test."""
    tasks = []

    def run(task, real=work.run_task):
        tasks.append(task)
        return real(task)

    monkeypatch.setattr(work, "run_task", run)
    monkeypatch.setattr(work.Work, "taken", lambda _, task: by_size(task))
    return tasks


def gradients():
    """Checks of gradients, and figures of their cells and of others."""
    made, other = small_claim(), GradientCell(SKEWED, 4)
    functionals = [*(check.functional for check in made.checks), mean_of(other, mse_of("grpo"))]
    return made, [Point("f", "s", {"x": i}, None, f, True) for i, f in enumerate(functionals)]


def tokens():
    suite = Suite("smoke", 0, "tokens")
    return claim("best_baseline", suite), curves("best_baseline", suite)


def runs():
    return claim_of_runs(), []


@pytest.mark.parametrize("made", [gradients, runs, tokens])
@pytest.mark.parametrize("engine", ["cpu", "exact"])
def test_what_is_foretold_is_what_the_tasks_of_a_run_take(made, engine, done, tmp_path):
    (checked, points), options = made(), Options("smoke", engine)
    (plan,) = plan_claims([checked], options, [points])
    done.clear()
    run = run_claims([checked], options, Store(tmp_path))
    run_points(points, options, Store(tmp_path))
    exact = sum(by_size(task) for task in done if task.engine == "exact")
    drawn = sum(by_size(task) for task in done if task.engine != "exact")
    assert plan.seconds["enumeration"] == pytest.approx(exact)
    # Replications are estimates, by shorter pilots.
    assert plan.seconds["simulation"] == pytest.approx(drawn, rel=0.2)
    assert plan.seconds["design"] > 0
    for name, replications in run.plans[0].replications.items():
        assert plan.replications[name] == pytest.approx(replications, rel=0.3), name
    assert (drawn > 0) == (engine == "cpu")


@pytest.mark.parametrize("replications", [3, 4, 12, 400])
def test_what_starts_a_block_is_told_from_its_replications(replications, done, monkeypatch):
    """By a part of it, or where it has none of a few more; of two alike nothing starts it."""
    monkeypatch.setattr(forecast.Work, "taken", lambda _, task: START + PACE * task.replications)
    with work.environment(Options("smoke"), None) as pool:
        clock = forecast._Clock(work.Work(Memory(), Options("smoke"), pool))
        pilot = Block(GradientCell(SKEWED, 2), (mse_of("grpo"),), "reference", 0, 0, replications)
        starts = clock.starts([pilot])
    wanted = 0.0 if replications == 3 else START
    assert starts == {(GradientCell, "reference"): pytest.approx(wanted, abs=1e-12)}


def test_a_plan_runs_little_of_what_it_foretells(done):
    suite = Suite("smoke", 0)
    made = claim("limit_law", suite), claim("minibatch", suite)
    plans = plan_claims(made, Options("smoke"), [curves(one.stem, suite) for one in made])
    keys = [repr(task.description) for task in done]
    assert len(set(keys)) == len(keys)
    for engine, part in (("exact", "enumeration"), ("cpu", "simulation")):
        taken = sum(by_size(task) - START for task in done if task.engine == engine)
        assert 0 < taken < sum(plan.seconds[part] for plan in plans) / 10


@pytest.mark.parametrize("number", [1, 2, 5, 6, 23])
@pytest.mark.parametrize("share", [0.015, 1.0])
def test_a_sample_has_the_heaviest_that_is_no_notable_share_and_none_twice(number, share):
    tasks = [
        Block(GradientCell(SKEWED, size), (mse_of("vanilla"),), "exact")
        for size in range(1, number + 1)
    ]
    chosen = list(sample(tasks[::-1], share))
    assert len(set(map(id, chosen))) == len(chosen)
    assert min(number, FEW) <= len(chosen) <= SAMPLE
    most = share * sum(task.weight for task in tasks)
    light = [task for place, task in enumerate(tasks) if place < FEW or task.weight <= most]
    assert chosen[0] is light[-1]
    assert len({task.weight for task in light}) == len(light)


def _gradient(group_size, names=("grpo",)):
    quantities = tuple(SquaredError(Estimator(name)) for name in names)
    return Block(GradientCell(random_problem(0), group_size), quantities, "exact").weight


def _runs(step, group_size=2):
    return Block(training(group_size), (Gap(GRPO, step, 1.0),), "exact").weight


def _formulas(group_size):
    cell = Groups(random_problem(0, contexts=1), group_size)
    quantity = FormulaDistance(Estimator("grpo"), "U-statistic")
    return Block(cell, (quantity,), "exact").weight


def _step(group_size):
    task = modular_sum(2, 1, prompts=[(1,)])
    cell = OneStep(task.at(PrefixSoftmax.zeros(task.space, 1)), group_size, 0.5)
    return Block(cell, (GapAfterStep(Estimator("grpo")),), "exact").weight


def test_more_outcomes_more_quantities_and_more_steps_weigh_more():
    assert _gradient(2) < _gradient(3) < _gradient(3, ("grpo", "vanilla"))
    assert _runs(1) < _runs(2) < _runs(4) < _runs(4, 3)
    assert _formulas(2) < _formulas(3)
    assert _step(2) < _step(8)
