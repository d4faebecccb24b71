"""The gap after one step: blocks that merge, names, refusals; its value is a claim of ``tests/power``."""

import pytest

from simulations.engines import Gap, GapAfterStep, OneStep
from tests.support.refusals import refuses
from ustat_pg.engines import Estimator, InfeasibleError
from ustat_pg.policies import PrefixSoftmax
from ustat_pg.problems import digit_addition, modular_sum, random_problem

TASK = modular_sum(2, 2, end=True)
POLICY = PrefixSoftmax.random(TASK.space, TASK.contexts, seed=1)
PROBLEM = TASK.at(POLICY)
GRPO = GapAfterStep(Estimator("grpo"))


def test_parts_of_a_block_are_the_block():
    cell, both = OneStep(PROBLEM, 2, 2.0, 3), [GRPO, GapAfterStep(Estimator("group-mean"))]
    whole = cell.measure("reference", both, replications=100)
    parts = [
        cell.measure("reference", both, first=first, replications=count)
        for first, count in ((0, 30), (30, 70))
    ]
    assert parts[0].merge(parts[1]).mean == pytest.approx(whole.mean, rel=1e-12)


def test_what_is_no_step_is_refused():
    cell = OneStep(PROBLEM, 2, 2.0)
    refuses("these are random", OneStep, random_problem(0), 2, 1.0)
    refuses("not a quantity of a OneStep", cell.measure, "exact", [Gap(Estimator("grpo"), 1)])
    refuses("2", OneStep(PROBLEM, 1, 1.0).measure, "exact", [GRPO])
    own = GapAfterStep(Estimator("own", function=lambda rewards, draws: rewards))
    refuses("one step cannot take own", cell.measure, "exact", [own])
    task = digit_addition(4, 1)
    large = task.at(PrefixSoftmax.random(task.space, task.contexts, seed=1))
    with pytest.raises(InfeasibleError, match="enumeration needs"):
        OneStep(large, 64, 1.0).measure("exact", [GRPO])
