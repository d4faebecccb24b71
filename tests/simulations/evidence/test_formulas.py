"""Formulas for one group against estimators: those that are one, and those that are not."""

import numpy as np
import pytest

from simulations.evidence import formulas
from simulations.evidence.formulas import FORMULAS, FormulaDistance, Groups
from simulations.problems import mse_of
from tests.support.refusals import refuses
from ustat_pg.engines import Estimator, InfeasibleError
from ustat_pg.engines.gradients import exact, reference
from ustat_pg.problems import SoftmaxBandit, random_problem
from ustat_pg.ustatistics import covariance_ustatistic

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


def group_cell(contexts=1, size=3, **changed):
    return Groups(random_problem(2, "two-arms", contexts=contexts), size, **changed)


def test_groups_are_compared_in_units_of_the_largest_score_and_reward():
    cell = group_cell()
    scores, rewards, probs = cell.law
    assert cell.scale == np.linalg.norm(scores, axis=1).max() * np.abs(rewards).max()
    assert probs.sum() == pytest.approx(1.0)
    one, other = (FormulaDistance(Estimator("group-mean"), name) for name in list(FORMULAS)[1:3])
    assert one.label == "distance[group-mean,U-statistic in O(G d)]"
    # The group mean is (G-1)/G of the U-statistic: it is off by a G-th of it.
    drawn = reference.draw(cell, seed=0, first=0, replications=50)
    part = covariance_ustatistic(*cell.groups(drawn)) / 3 / cell.scale
    found = cell.measure("reference", [one, other], replications=50).mean
    assert found == pytest.approx([(part**2).sum(axis=1).mean(), 0.0], abs=1e-15)
    silent = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[0.0], [0.0]]], np.ones((1, 2, 1)))
    assert Groups(silent, 2).scale == 1.0


def test_few_groups_are_drawn_and_fewer_of_large_problems(monkeypatch):
    cell = group_cell()
    assert (cell.block, cell.pilot(8192), cell.name.endswith("/groups")) == (40, 1, True)
    values = int(cell.problem.outcomes.counts.max()) ** 2 * cell.problem.d
    quantity = FormulaDistance(Estimator("grpo"), "U-statistic")
    for room, block in ((39 * values, 39), (5 * values, 5), (values, 5), (41 * values, 40)):
        monkeypatch.setattr(formulas, "KERNEL_VALUES", room)
        assert cell.block == block
    assert cell.ends(quantity) == (0.0, np.inf)
    assert cell.rounding(quantity) == 0.0
    number = exact.size(cell)
    for room, groups, feasible in (
        (20 * number * values, number, True),
        (20 * number * values - 1, number, False),
        (20 * number * values, number - 1, False),
    ):
        monkeypatch.setattr(formulas, "KERNEL_VALUES", room)
        monkeypatch.setattr(formulas, "ENUMERATED_GROUPS", groups)
        if feasible:
            cell.require_exact([quantity])
            continue
        with pytest.raises(InfeasibleError, match=rf"10\^{np.log10(number):.1f} groups"):
            cell.require_exact([quantity])
    assert cell.effort([quantity] * 3) == 9.0 * number


def test_what_no_group_can_be_compared_with_is_refused():
    refuses("is not a distance from a formula", group_cell().require_quantity, mse_of("grpo"))
    alone = FormulaDistance(Estimator("oracle"), "g + first")
    refuses("group size is 1: formulas need pairs", group_cell(size=1).require_quantity, alone)
    group_cell(size=2).require_quantity(alone)
    assert (formulas.ENUMERATED_GROUPS, formulas.KERNEL_VALUES) == (300, 200_000_000)
