"""Blocks of training runs: plain data in and out, and their descriptions."""

from __future__ import annotations

import json

import numpy as np

from simulations.engines import Constant, Gap, Training
from simulations.evidence import Pit
from simulations.evidence.blocks import Block, record_of, run_task, sums_of
from simulations.problems.landscapes import triple
from simulations.shared.runs import ball
from ustat_pg.engines import Estimator

LANDSCAPE = triple()
CELL = Training(LANDSCAPE, 2, 12, Constant(0.3), projection=ball(LANDSCAPE, 0.5))
GRPO = Estimator("grpo")
QUANTITIES = (Gap(GRPO, 12), Pit(GRPO, 12, (0.01,)), Pit(Estimator("oracle"), 6, (0.01,)))


def block(first=0, replications=200, seed=3, **more):
    return Block(CELL, QUANTITIES, "cpu", seed, first, replications, **more)


def test_a_result_is_plain_data_and_comes_back_whole():
    task = block()
    direct = CELL.measure("cpu", QUANTITIES, seed=3, replications=200)
    stored = json.loads(json.dumps(record_of(run_task(task))))
    result = sums_of(stored)
    assert result.n == direct.n
    assert np.array_equal(result.mean, direct.mean)
    assert np.array_equal(result.products, direct.products)
    assert list(result.counts) == [QUANTITIES[1].label, QUANTITIES[2].label]
    for label, count in direct.counts.items():
        assert np.array_equal(result.counts[label], count)
        assert result.counts[label].dtype.kind == "i"


def test_everything_that_matters_is_in_the_description():
    other = Training(LANDSCAPE, 2, 12, Constant(0.31), projection=ball(LANDSCAPE, 0.5))
    tasks = [
        block(),
        block(first=200),
        block(replications=100),
        block(seed=4),
        Block(CELL, QUANTITIES[:2], "cpu", 3, 0, 200),
        Block(CELL, (*QUANTITIES[:2], Pit(GRPO, 12, (0.011,))), "cpu", 3, 0, 200),
        Block(CELL, QUANTITIES, "reference", 3, 0, 200),
        Block(other, QUANTITIES, "cpu", 3, 0, 200),
    ]
    assert len({json.dumps(task.description, sort_keys=True) for task in tasks}) == len(tasks)
