"""Cells and quantities are kept by name: what differs in anything has another."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from simulations.engines import (
    NormalisedCell,
    OneStep,
    ScreenedCell,
    SizedCell,
    SurvivorCell,
    TokenMeanCell,
)
from simulations.engines.practical import PracticalCell
from ustat_pg.engines import (
    Distance,
    Estimator,
    GradientCell,
    PlanCell,
    Projection,
    SquaredError,
    SquaredProjection,
)
from ustat_pg.problems import SoftmaxBandit

SURE = np.ones((2, 3, 1))


def bandit(logit=0.3, reward=1.0, chance=0.5):
    rewards = [[[0.0], [reward], [0.0]], [[0.0], [0.0], [1.0]]]
    logits = [[logit, 0.0, -0.2], [0.1, 0.5, 0.0]]
    return SoftmaxBandit.tabular([chance, 1 - chance], logits, rewards, SURE)


PROBLEM = bandit()
OTHERS = [bandit(logit=0.3 + 1e-12), bandit(reward=1 + 1e-12), bandit(chance=0.5 + 1e-12)]
SIZES = {"group_size": 4, "batch_size": 3}
PRACTICAL = {
    "learning_rate": 0.25,
    "minibatch": 3,
    "estimator": Estimator("std-ddof1"),
    "beta": 1e-12,
    "weights": (1.0, 1.0),
    "reference": PROBLEM.policy,
}
CASES = {
    "gradient": (GradientCell(PROBLEM, 3, 2), SIZES | {"design": "without-replacement"}),
    "plan": (PlanCell.of(PROBLEM, "2+1 if mixed"), {"plan": "2+1 if silent"}),
    "sizes": (SizedCell(PROBLEM, 3, sizes=(2, 3)), {"sizes": (3, 2), "pooled": True}),
    "token means": (
        TokenMeanCell(PROBLEM, 3, 2, lengths=(1, 2, 4)),
        {"lengths": (1, 4, 2), "how": "prompt-mean", "scale": 1 + 1e-12, "less_plain": True},
    ),
    "survivors": (
        SurvivorCell(PROBLEM, 3, survives=(True, True, False)),
        {"survives": (True, False, True), "lone": True},
    ),
    "weights over their mean": (
        NormalisedCell(PROBLEM, 3, 2, weights=(1.0, 2.0)),
        {"weights": (2.0, 1.0)},
    ),
    "screened": (
        ScreenedCell(PROBLEM, 4, screened=2, kept=(0, 1)),
        {"screened": 3, "kept": (1, 2)},
    ),
    "one step": (OneStep(PROBLEM, 3, 0.5), SIZES | {"rate": 0.5 + 1e-12}),
    "practical": (PracticalCell(PROBLEM, 3, 0.5), SIZES | PRACTICAL),
}


@pytest.mark.parametrize("case", CASES)
def test_a_cell_that_differs_in_one_thing_is_another(case):
    cell, changes = CASES[case]
    changed = [replace(cell, **{name: value}) for name, value in changes.items()]
    changed += [replace(cell, problem=problem) for problem in OTHERS]
    if case == "practical":
        changed += [
            replace(cell, minibatch=1, drift=np.arange(6) * step) for step in (1.0, 1.0 + 1e-12)
        ]
    for one, other in combinations([cell, *changed], 2):
        assert one.name != other.name
        assert one != other
    again = replace(cell)
    assert again == cell
    assert hash(again) == hash(cell)
    assert len({cell, again, *changed}) == 1 + len(changed)
    assert cell != cell.name


def test_cells_of_two_kinds_are_two():
    cells = [cell for cell, _ in CASES.values()]
    assert len({cell.name for cell in cells}) == len(cells)
    assert not any(one == other for one, other in combinations(cells, 2))


def test_estimators_and_quantities_that_differ_have_other_labels():
    estimators = [
        Estimator("grpo"),
        Estimator("constant", constant=0.3),
        Estimator("constant", constant=0.3 + 1e-12),
        Estimator("critic", values=(0.3, 0.0)),
        Estimator("critic", values=(0.3 + 1e-12, 0.0)),
        Estimator("shrinkage:0.25,0.5"),
        Estimator("shrinkage:0.5,0.25"),
        Estimator("bayes:1,1"),
    ]
    quantities = [SquaredError(each) for each in estimators]
    quantities += [Distance(one, other) for one, other in combinations(estimators[:4], 2)]
    quantities += [
        kind(e, j)
        for kind in (Projection, SquaredProjection)
        for e in estimators[:2]
        for j in (0, 1)
    ]
    for each in (estimators, quantities):
        assert len({one.label for one in each}) == len(each)
        assert len({*each}) == len(each)
    assert Estimator("constant", constant=0.3) == estimators[1]
