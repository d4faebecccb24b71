"""Functionals: estimates, intervals and plans from a block's sums."""

from __future__ import annotations

from math import log

import numpy as np
import pytest

from simulations.evidence import LogSlope, Options, Ratio, Verdict, decide, equal, mean_of
from simulations.evidence.measurements import Measurements
from ustat_pg.engines import Distance, Estimator, GradientCell, MomentSums, SquaredError
from ustat_pg.predictions import gradient_mse, oracle_ratio
from ustat_pg.problems import random_problem

PROBLEM = random_problem(5, "one-context")
GRPO, ORACLE = Estimator("grpo"), Estimator("oracle")
PANEL = (SquaredError(GRPO), SquaredError(ORACLE), Distance(GRPO, ORACLE))


CELLS = {size: GradientCell(PROBLEM, size) for size in (2, 3, 4, 8)}
TRUE = {size: gradient_mse(PROBLEM.moments(), "grpo", size).mse for size in CELLS}


def simulated(*sizes: int, n: int = 40_000, seed: int = 0):
    """What the panel's quantities are found to be at these group sizes."""
    return {
        cell.name: (PANEL, cell.measure("cpu", PANEL, seed=seed, replications=n))
        for cell in map(CELLS.get, sizes)
    }


def grpo_at(size):
    return mean_of(CELLS[size], PANEL[0])


def ratio_at(size):
    return Ratio(grpo_at(size), mean_of(CELLS[size], PANEL[1]))


def found_at(means, *sizes):
    """Sums of ten replications that were all the same."""
    return {
        CELLS[size].name: (PANEL, MomentSums(10, np.array(means), np.zeros((3, 3))))
        for size in sizes
    }


@pytest.mark.parametrize(
    ("functional", "prediction", "means"),
    [
        (ratio_at(4), 1.0, [1.0, 0.0, 0.0]),
        (LogSlope((0.0, 1.0), (grpo_at(2), grpo_at(8)), (1.0, 1.0)), -1.0, [-1.0, 1.0, 1.0]),
    ],
    ids=["a ratio over nothing", "a slope through a negative value"],
)
def test_what_has_no_number_confirms_nothing(functional, prediction, means):
    sums = found_at(means, 2, 4, 8)
    evidence = functional.evidence(sums, 0.1, sums)
    assert decide(equal(prediction), evidence).verdict == Verdict.INCONCLUSIVE


def test_a_slopes_interval_holds_the_truth_and_narrows():
    slope = LogSlope((log(2), log(8)), (grpo_at(2), grpo_at(8)), (TRUE[2], TRUE[8]))
    pilots = simulated(2, 8, n=8192, seed=1)
    result = [
        slope.evidence(simulated(2, 8, n=n), 1e-4, pilots).interval for n in (20_000, 400_000)
    ]
    assert all(interval.contains(log(TRUE[8] / TRUE[2]) / log(4)) for interval in result)
    assert result[1].half_width < result[0].half_width / 3


@pytest.mark.parametrize(
    ("functional", "prediction", "margin"),
    [
        (grpo_at(2), TRUE[2], 0.02),
        (ratio_at(2), oracle_ratio(PROBLEM.moments(), 2), 0.2),
        (LogSlope((log(2), log(4)), (grpo_at(2), grpo_at(4)), (TRUE[2], TRUE[4])), -1.5, 0.2),
    ],
    ids=["mean", "ratio", "slope"],
)
def test_planned_replications_reach_the_margin(functional, prediction, margin):
    pilots = simulated(2, 4, n=8192, seed=1)
    n = functional.needed(pilots, margin, 1e-5, prediction)
    half = functional.evidence(simulated(2, 4, n=n, seed=2), 1e-5, pilots).interval.half_width
    assert margin / 2 < half <= margin


@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_a_verdict_reads_each_replication_once_and_none_of_a_pilot(engine):
    measured = Measurements([grpo_at(2)], Options("smoke", engine))
    name, asked = CELLS[2].name, 10**6
    blocks = measured.blocks({name: asked})[name]
    ends = [(block.first, block.first + block.replications) for block in blocks]
    assert [first for first, _ in ends] == [0, *(end for _, end in ends[:-1])]
    assert ends[-1][1] == asked
    # No budget comes near.
    assert measured.pilot_tasks[name].first >= 2**62
