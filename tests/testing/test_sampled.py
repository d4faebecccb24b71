"""Assertions on means of draws: both error rates hold, and detected gaps and replications fit together."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.support.refusals import refuses
from ustat_pg import testing

KINDS = {
    name: tuple(
        getattr(testing, text.format(name)) for text in ("assert_{}", "{}_detects", "{}_needs")
    )
    for name in ("mean_equal", "mean_at_most")
}
UNIT = {"low": 0.0, "high": 1.0}


def fails(assertion, draws, wanted, **options):
    try:
        assertion(draws, wanted, **(UNIT | options))
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rate", [0.5, 0.02])
def test_a_gap_that_is_detected_is_seldom_missed(kind, rate):
    """By as many replications as are said to be needed for it; and the truth is seldom refused."""
    assertion, detects, needs = KINDS[kind]
    rates = {"false_alarm": 0.05, "miss": 0.05}
    gap, variance = 0.08, rate * (1 - rate)
    count = needs(gap, **UNIT, **rates, variance=variance)
    assert detects(count, **UNIT, **rates, variance=variance) <= gap
    assert detects(count - 1, **UNIT, **rates, variance=variance) > gap
    rng = np.random.default_rng(0)
    draws = (rng.random((300, count)) < rate).astype(float)
    seen = {
        off: sum(fails(assertion, row, rate - off, false_alarm=0.05) for row in draws)
        for off in (0.0, gap, gap / 4)
    }
    # 15 of 300 are allowed; beyond 29 has a chance of 5e-4.
    assert seen[0.0] <= 29
    assert seen[gap] >= 271
    # A gap a quarter as large is not: the plan is no larger than it must be by far.
    assert seen[gap / 4] < 150


def test_the_reach_is_that_of_maurer_and_pontil():
    draws = np.tile([0.0, 0.0, 0.0, 2.0], 250)
    strength = math.log(2 / (1e-3 / 2))
    reach = math.sqrt(2 * draws.var(ddof=1) * strength / 1000) + 7 * 2 * strength / (3 * 999)
    options = {"low": 0, "high": 2, "false_alarm": 1e-3}
    for side in (1, -1):
        assert not fails(testing.assert_mean_equal, draws, 0.5 + side * 0.999 * reach, **options)
        assert fails(testing.assert_mean_equal, draws, 0.5 + side * 1.001 * reach, **options)
    # One side has all of the rate to itself, and the other side none.
    assert fails(testing.assert_mean_at_most, draws, 0.5 - 0.999 * reach, **options)
    assert not fails(testing.assert_mean_at_most, draws, 5.0, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_all_three_of_a_kind_refuse_alike(kind):
    assertion, detects, needs = KINDS[kind]
    draws = np.array([0.0, 1.0, 1.0])
    refuses("low is 1 and high 1", detects, 5, low=1, high=1)
    refuses("low is 1 and high 0", needs, 0.1, low=1, high=0)
    refuses("low is 2 and high 0", assertion, draws, 0.5, low=2, high=0)
    refuses("values hold 1: the range is 0 to 0.5", assertion, draws, 0.5, low=0, high=0.5)
    refuses("number of values is 1", assertion, draws[:1], 0.5, **UNIT)
    refuses("error rate is 0.0: it must be positive", assertion, draws, 0.5, **UNIT, false_alarm=0)
    refuses("error rate is 0.7", needs, 0.1, **UNIT, miss=0.7)
    refuses("gap is 0", needs, 0, **UNIT)
    refuses("variance is 0.3.*at most 0.25", detects, 5, **UNIT, variance=0.3)
