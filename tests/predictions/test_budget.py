"""Budgets and robust group sizes; those found by search are in ``simulations/regimes/sizes.py``."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.support.refusals import refuses
from ustat_pg.predictions import (
    MseConstants,
    critical_budget,
    group_size_advice,
    near_budget,
    robust_group_size,
)

RNG = np.random.default_rng(5)
DRAWN = [MseConstants(*values) for values in RNG.lognormal(0, 2, (12, 3))]


def test_certain_constants_have_the_advice_and_a_c1_that_may_be_0_larger_groups():
    known = MseConstants(0.1, 0.5, 1.0)
    table = group_size_advice(known, 64).table
    designs = [row.group_size for row in table], [row.batch_size for row in table]
    best, worst = robust_group_size(known, (0.1, 0.1), (1.0, 1.0), *designs)
    assert best == group_size_advice(known, 64).g_best
    assert worst.tolist() == pytest.approx([row.ratio_to_best for row in table])
    wide, _ = robust_group_size(known, (-0.3, 0.1), (1.0, 1.0), *designs)
    assert wide > best
    nothing = MseConstants(0.0, 0.0, 0.0)
    assert robust_group_size(nothing, (0, 0), (0, 0), *designs)[1].tolist() == [1.0] * len(table)


def test_at_the_critical_budget_the_least_error_is_the_squared_gradient():
    for constants in DRAWN:
        budget = critical_budget(constants, 0.37)
        assert constants.least_mse(budget) == pytest.approx(0.37)
        best = 1 + math.sqrt(constants.c3 / constants.c1)
        assert constants.mse(best, budget / best) == pytest.approx(0.37)


def test_refusals():
    known = DRAWN[0]
    refuses("gradient_sq is -1", critical_budget, known, -1.0)
    refuses("budget is 1", near_budget, known, 1)
    refuses("c1 is", robust_group_size, known, (2.0, 1.0), (0.0, 1.0), [2], [1])
    refuses("c3 is", robust_group_size, known, (0.0, 1.0), (1.0,), [2], [1])
    refuses("leave-one-out needs", robust_group_size, known, (0.0, 1.0), (0.0, 1.0), [1], [1])
