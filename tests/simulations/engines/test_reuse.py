"""Batches that are used again: blocks that merge, refusals, rates and clipping; slopes are a claim's."""

import numpy as np
import pytest

from simulations.engines import GapAfterStep, ReusedBatch, Rule, StepBias, StepSlope, SumNoise
from tests.support.refusals import refuses
from ustat_pg.engines import Estimator, InfeasibleError
from ustat_pg.problems import SoftmaxBandit, random_problem

COIN = SoftmaxBandit.bernoulli([0.8, 0.2], [1, 0])
CELL = ReusedBatch(COIN, 3)


def exact(*quantities, cell=CELL):
    return cell.measure("exact", quantities).mean


def test_parts_of_a_block_are_the_block():
    quantities = [StepSlope(2), SumNoise(2, None), StepBias(3, rate=0.5)]
    cell = ReusedBatch(random_problem(0), 2, 2)
    whole = cell.measure("reference", quantities, replications=100)
    parts = [
        cell.measure("reference", quantities, first=first, replications=count)
        for first, count in ((0, 30), (30, 70))
    ]
    assert parts[0].merge(parts[1]).mean == pytest.approx(whole.mean, rel=1e-12)


def test_a_first_step_has_no_bias_at_any_rate():
    first = exact(StepBias(1, rate=2.0), StepBias(1, rate=-1.0), StepSlope(1))
    assert np.abs(first).max() < 1e-14


def test_the_slope_is_that_of_small_rates_of_both_signs():
    """The bias is b η + c η² + O(η³): half the difference is b η + O(η³)."""
    up, down, slope = exact(StepBias(2, rate=1e-3), StepBias(2, rate=-1e-3), StepSlope(2))
    assert (up - down) / 2e-3 == pytest.approx(slope, rel=1e-5)
    assert up / 1e-3 != pytest.approx(slope, rel=1e-5)


def test_clipping_acts_at_long_steps_alone():
    near, far = 0.01, 4.0
    plain, clipped = (
        exact(*(StepBias(2, None, Rule("sequence", clip), rate) for rate in (near, far)))
        for clip in (None, 0.2)
    )
    assert clipped[0] == pytest.approx(plain[0], rel=1e-10)
    assert abs(clipped[1] - plain[1]) > 1e-3


def test_what_is_no_batch_is_refused():
    refuses("minibatches", ReusedBatch, COIN, 2, minibatches=0)
    refuses("not a quantity of a ReusedBatch", exact, GapAfterStep(Estimator("grpo")))
    refuses("2", ReusedBatch, COIN, 1)
    with pytest.raises(InfeasibleError, match="take a smaller group or batch"):
        exact(StepSlope(2), cell=ReusedBatch(random_problem(0), 16, 2))
