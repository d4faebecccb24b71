"""Runs whose baseline is a table learned from their own earlier steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.support.refusals import refuses
from ustat_pg.engines import Constant, Estimator, LearnedTable, NetworkTraining
from ustat_pg.engines.networks import learned
from ustat_pg.estimators import RunningTable
from ustat_pg.policies import OutputSpace, PrefixSoftmax
from ustat_pg.problems import TokenProblem, modular_sum

STEPS, RUNS = 4, 3
ASKED = {"seed": 2, "first": 5, "replications": RUNS}


def training(**changed):
    problem = modular_sum(3, 2, end=True)
    policy = PrefixSoftmax.random(problem.space, problem.contexts, seed=1)
    asked = {"group_size": 3, "steps": STEPS, "schedule": Constant(1.0), "batch_size": 2}
    return NetworkTraining(problem, policy, **asked | changed)


@pytest.mark.parametrize("by_norms", [False, True])
def test_each_step_is_weighed_by_what_the_run_saw_before_it(by_norms, monkeypatch):
    """So that no table holds the group that it weighs: the step's estimate is unbiased given the past."""
    seen = []

    class Spied(RunningTable):
        def advantages(self, rewards, squared_norms=None):
            found = super().advantages(rewards, squared_norms)
            seen.append((self, rewards.copy(), squared_norms, found))
            return found

    monkeypatch.setattr(learned, "RunningTable", Spied)
    estimator = LearnedTable("bayes:2,1", by_norms=by_norms, keep=0.9)
    training().train(estimator, [STEPS], **ASKED)
    tables = list(dict.fromkeys(table for table, *_ in seen))
    assert len(tables) == RUNS
    for table in tables:
        own = [step[1:] for step in seen if step[0] is table]
        again = RunningTable(3, prior=(2.0, 1.0), keep=0.9)
        assert len(own) == STEPS
        for rewards, norms, found in own:
            assert rewards.shape == (2, 3)
            assert (norms is not None) == by_norms
            others = (rewards.sum(axis=-1, keepdims=True) - rewards).astype(int)
            np.testing.assert_allclose(found, rewards - again.table[others], rtol=0, atol=1e-14)
            again.update(rewards, norms)
    assert len({table.table.tobytes() for table in tables}) == RUNS


def test_the_first_step_is_bayes_and_later_ones_are_not():
    bayes, own = (
        training().train(each, [1, 2], **ASKED) for each in (Estimator("bayes:1,1"), LearnedTable())
    )
    np.testing.assert_allclose(own[:, 0], bayes[:, 0], rtol=0, atol=1e-15)
    assert np.abs(own[:, 1] - bayes[:, 1]).max() > 1e-3


def test_runs_do_not_know_of_one_another_or_of_earlier_calls():
    estimator = LearnedTable()
    whole = training().train(estimator, [STEPS], **ASKED)
    alone = [
        training(chunk=1).train(estimator, [STEPS], seed=2, first=5 + number, replications=1)
        for number in range(RUNS)
    ]
    np.testing.assert_allclose(whole, np.concatenate(alone), rtol=0, atol=1e-12)


def test_names_differ_and_other_rewards_are_refused():
    each = [
        LearnedTable(),
        LearnedTable(by_norms=True),
        LearnedTable(keep=0.5),
        LearnedTable("bayes:1,2"),
    ]
    assert len({estimator.label for estimator in [*each, Estimator("bayes:1,1")]}) == 5
    assert len({*each, Estimator("bayes:1,1"), replace(each[0])}) == 5
    graded = TokenProblem(OutputSpace(3, 2), [(0,), (1,)], lambda x, y: sum(y) / 4)
    policy = PrefixSoftmax.random(graded.space, graded.contexts, seed=1)
    runs = NetworkTraining(graded, policy, 3, STEPS, Constant(1.0), 2)
    refuses("rewards that are 0 or 1", runs.train, LearnedTable(), [STEPS], **ASKED)
