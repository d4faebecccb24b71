"""Budgets and robust group sizes, against plain enumeration."""

from __future__ import annotations

import math
from itertools import product

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
EDGES = [MseConstants(0.0, 1.0, 1.0), MseConstants(1, 0, 0), MseConstants(1, 0, 2)]


def divisors(budget):
    return np.array([size for size in range(2, budget + 1) if budget % size == 0])


@pytest.mark.parametrize("constants", DRAWN)
def test_the_robust_group_size_is_the_argmin_of_the_worst_case(constants):
    """Against a grid of constants, of which no point is worse than the corners say."""
    sizes = divisors(96)
    first, third = (np.array([0.2, 1.9]) * value for value in (constants.c1, constants.c3))
    for second in (None, np.array([0.4, 1.5]) * constants.c2):
        worst = np.zeros(len(sizes))
        known = (constants.c2,) if second is None else np.linspace(*second, 9)
        for c1, c2, c3 in product(np.linspace(*first, 9), known, np.linspace(*third, 9)):
            noise = c1 * sizes + c2 + c3 / (sizes - 1)
            worst = np.maximum(worst, noise / noise.min())
        best, found = robust_group_size(constants, first, third, sizes, 96 / sizes, c2=second)
        np.testing.assert_allclose(found, worst, rtol=1e-12)
        assert best == sizes[worst.argmin()]


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


@pytest.mark.parametrize("constants", [*DRAWN, *EDGES])
@pytest.mark.parametrize("budget", [2, 97, 120, 1031])
def test_the_nearest_budget_with_a_good_group_size(constants, budget):
    def noise(size):
        return constants.c1 * size + constants.c2 + constants.c3 / (size - 1)

    real = min(noise(size) for size in np.geomspace(2, budget, 40_001))
    good = [size for size in range(2, budget + 1) if noise(size) <= 1.05 * real]
    found, size = near_budget(constants, budget)
    assert found % size == 0
    assert noise(size) <= 1.05 * real * (1 + 1e-6)
    distance = min(abs(budget - max(round(budget / g), 1) * g) for g in good)
    assert abs(found - budget) <= distance


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
