"""Functionals: estimates, intervals and plans from a block's sums."""

from __future__ import annotations

from math import log

import numpy as np
import pytest

from ustat_pg.checks import Verdict, decide, equal
from ustat_pg.checks.intervals import half_width
from ustat_pg.engines import Distance, Estimator, GradientCell, MomentSums, SquaredError
from ustat_pg.experiment import Check, Claim, Linear, LogSlope, Ratio, mean_of
from ustat_pg.predictions import gradient_mse, oracle_ratio
from ustat_pg.problems import random_problem
from ustat_pg.validation import InputError

PROBLEM = random_problem(5, "one-context")
GRPO, ORACLE = Estimator("grpo"), Estimator("oracle")
PANEL = (SquaredError(GRPO), SquaredError(ORACLE), Distance(GRPO, ORACLE))


def simulated(cell: GradientCell, n: int = 40_000, seed: int = 0):
    return {cell.name: (PANEL, cell.measure("cpu", PANEL, seed=seed, replications=n))}


def test_a_mean_is_the_blocks_mean_with_its_standard_error():
    cell = GradientCell(PROBLEM, 3)
    sums = simulated(cell)
    evidence = mean_of(cell, PANEL[0]).evidence(sums, 1e-3)
    block = sums[cell.name][1]
    assert evidence.estimate == block.mean[0]
    assert evidence.standard_error == pytest.approx(np.sqrt(block.covariance[0, 0] / block.n))
    assert evidence.interval.contains(gradient_mse(PROBLEM.moments(), "grpo", 3).mse)


def test_a_difference_uses_the_paired_draws():
    cell = GradientCell(PROBLEM, 3)
    sums = simulated(cell)
    block = sums[cell.name][1]
    evidence = Linear(cell, ((PANEL[0], 1.0), (PANEL[1], -1.0))).evidence(sums, 1e-3)
    paired = block.covariance[0, 0] + block.covariance[1, 1] - 2 * block.covariance[0, 1]
    assert evidence.standard_error == pytest.approx(np.sqrt(paired / block.n))


def test_a_ratios_interval_ends_where_its_excess_is_rejected():
    cell = GradientCell(PROBLEM, 4)
    sums = simulated(cell)
    ratio = Ratio(mean_of(cell, PANEL[0]), mean_of(cell, PANEL[1]))
    evidence = ratio.evidence(sums, 1e-4)
    n, block = sums[cell.name][1].n, sums[cell.name][1]
    for end in (evidence.interval.low, evidence.interval.high):
        weights = np.array([1.0, -end, 0.0])
        width = ratio.numerator.width + end * ratio.denominator.width
        limit = half_width(n, float(weights @ block.covariance @ weights), width, 1e-4)
        assert abs(weights @ block.mean) == pytest.approx(limit, rel=1e-6)
    assert evidence.interval.contains(oracle_ratio(PROBLEM.moments(), 4))


def test_a_ratio_over_nothing_confirms_nothing():
    cell = GradientCell(PROBLEM, 4)
    sums = {cell.name: (PANEL, MomentSums(10, np.array([1.0, 0.0, 0.0]), np.zeros((3, 3))))}
    evidence = Ratio(mean_of(cell, PANEL[0]), mean_of(cell, PANEL[1])).evidence(sums, 0.1)
    assert decide(equal(1.0), evidence).verdict == Verdict.INCONCLUSIVE


def test_ratio_sides_must_share_a_cell():
    with pytest.raises(InputError, match="same cell"):
        Ratio(
            mean_of(GradientCell(PROBLEM, 2), PANEL[0]), mean_of(GradientCell(PROBLEM, 3), PANEL[1])
        )


def test_the_slope_of_a_power_law_is_its_exponent():
    cells = [GradientCell(PROBLEM, g) for g in (2, 4, 8)]
    sums = {
        cell.name: (PANEL, MomentSums.exact(np.array([cell.group_size**-1.5, 1.0, 1.0])))
        for cell in cells
    }
    slope = LogSlope(
        tuple(log(cell.group_size) for cell in cells),
        tuple(mean_of(cell, PANEL[0]) for cell in cells),
        tuple(cell.group_size**-1.5 for cell in cells),
    )
    assert slope.exact(sums) == pytest.approx(-1.5)


def test_a_slopes_interval_holds_the_truth_and_narrows():
    cells = [GradientCell(PROBLEM, g) for g in (2, 8)]
    truth = [gradient_mse(PROBLEM.moments(), "grpo", g).mse for g in (2, 8)]
    exact = log(truth[1] / truth[0]) / log(4)
    points = tuple(mean_of(cell, PANEL[0]) for cell in cells)
    slope = LogSlope((log(2), log(8)), points, tuple(truth))
    widths = []
    for n in (20_000, 400_000):
        evidence = slope.evidence(simulated(cells[0], n) | simulated(cells[1], n), 1e-4)
        assert evidence.interval.contains(exact)
        widths.append(evidence.interval.half_width)
    assert widths[1] < widths[0] / 3


def test_a_slope_through_a_negative_value_confirms_nothing():
    cells = [GradientCell(PROBLEM, g) for g in (2, 8)]
    sums = {
        cell.name: (PANEL, MomentSums(10, np.array([-1.0, 1.0, 1.0]), np.zeros((3, 3))))
        for cell in cells
    }
    points = tuple(mean_of(cell, PANEL[0]) for cell in cells)
    slope = LogSlope((0.0, 1.0), points, (1.0, 1.0))
    assert decide(equal(-1.0), slope.evidence(sums, 0.1)).verdict == Verdict.INCONCLUSIVE


@pytest.mark.parametrize("kind", ["mean", "ratio", "slope"])
def test_planned_replications_reach_the_margin(kind):
    cells = [GradientCell(PROBLEM, g) for g in (2, 4)]
    pilot = simulated(cells[0], 8192, seed=1) | simulated(cells[1], 8192, seed=1)
    ratio = Ratio(mean_of(cells[0], PANEL[0]), mean_of(cells[0], PANEL[1]))
    functional, prediction, margin = {
        "mean": (mean_of(cells[0], PANEL[0]), gradient_mse(PROBLEM.moments(), "grpo", 2).mse, 0.02),
        "ratio": (ratio, oracle_ratio(PROBLEM.moments(), 2), 0.2),
        "slope": (
            LogSlope(
                (log(2), log(4)),
                tuple(mean_of(cell, PANEL[0]) for cell in cells),
                tuple(gradient_mse(PROBLEM.moments(), "grpo", g).mse for g in (2, 4)),
            ),
            -1.5,
            0.2,
        ),
    }[kind]
    n = functional.needed(pilot, margin, 1e-5, prediction)
    sums = simulated(cells[0], n, seed=2) | simulated(cells[1], n, seed=2)
    half = functional.evidence(sums, 1e-5).interval.half_width
    assert margin / 2 < half <= margin


def test_two_checks_of_one_name_are_refused():
    check = Check("a", "made-up", mean_of(GradientCell(PROBLEM, 2), PANEL[0]), equal(1.0))
    with pytest.raises(InputError, match="same name"):
        Claim("mse", (), (check, check))


def test_a_rival_that_the_claim_does_not_list_is_refused():
    check = Check(
        "a", "made-up", mean_of(GradientCell(PROBLEM, 2), PANEL[0]), equal(1.0, {"x": 2.0})
    )
    with pytest.raises(InputError, match="not listed"):
        Claim("mse", (), (check,))
