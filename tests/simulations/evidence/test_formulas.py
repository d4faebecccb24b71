"""Formulas for one group against estimators: those that are one, and those that are not."""

from __future__ import annotations

import pytest

from simulations.evidence.formulas import FORMULAS, FormulaDistance, Groups
from ustat_pg.engines import Estimator
from ustat_pg.problems import random_problem

SAME = {
    ("grpo", "U-statistic"),
    ("grpo", "U-statistic in O(G d)"),
    ("grpo", "g + first + second"),
    ("grpo", "U-statistic + E[h2 | one output]"),
    ("group-mean", "(G-1)/G U-statistic"),
    ("oracle", "g + first"),
    ("oracle", "mean of 2 h1 - g"),
}
NAMES = ("grpo", "group-mean", "oracle")


@pytest.mark.parametrize("engine", ["exact", "reference"])
@pytest.mark.parametrize("formula", FORMULAS)
def test_a_formula_is_one_estimator_in_every_group_and_no_other(formula, engine):
    cell = Groups(random_problem(2, "two-arms", contexts=1), 3)
    asked = [FormulaDistance(Estimator(name), formula) for name in NAMES]
    found = cell.measure(engine, asked, replications=20).mean
    for name, distance in zip(NAMES, found, strict=True):
        assert distance < 1e-28 if (name, formula) in SAME else distance > 1e-5, name


def test_a_group_of_one_has_the_projection_alone():
    cell = Groups(random_problem(2, "two-arms", contexts=1), 1)
    asked = [FormulaDistance(Estimator("oracle"), "mean of 2 h1 - g")]
    assert cell.measure("exact", asked).mean[0] < 1e-28
