"""Assertions on means of draws: both error rates hold, and detected gaps and replications fit together."""

import math

import numpy as np
import pytest

from tests.support.refusals import refuses
from ustat_pg.testing import assert_mean, mean_detects, mean_needs
from ustat_pg.testing.sampled import KINDS

UNIT = {"low": 0.0, "high": 1.0}


def fails(draws, wanted, **options):
    try:
        assert_mean(draws, wanted, **(UNIT | options))
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rate", [0.5, 0.02])
def test_a_gap_that_is_detected_is_seldom_missed(kind, rate):
    """By as many replications as are said to be needed for it; and the truth is seldom refused."""
    asked = UNIT | {"kind": kind, "false_alarm": 0.05}
    known = asked | {"miss": 0.05, "variance": rate * (1 - rate)}
    gap = 0.08
    count = mean_needs(gap, **known)
    assert mean_detects(count, **known) <= gap < mean_detects(count - 1, **known)
    draws = (np.random.default_rng(0).random((300, count)) < rate).astype(float)
    seen = {
        off: sum(fails(row, rate - off, **asked) for row in draws) for off in (0.0, gap, gap / 4)
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
        assert not fails(draws, 0.5 + side * 0.999 * reach, **options)
        assert fails(draws, 0.5 + side * 1.001 * reach, **options)
    # One side has all of the rate to itself, and the other side none.
    assert fails(draws, 0.5 - 0.999 * reach, **options, kind="at most")
    assert not fails(draws, 5.0, **options, kind="at most")


def test_all_three_refuse_alike():
    draws = np.array([0.0, 1.0, 1.0])
    refuses("low is 1 and high 1", mean_detects, 5, low=1, high=1)
    refuses("low is 1 and high 0", mean_needs, 0.1, low=1, high=0)
    refuses("low is 2 and high 0", assert_mean, draws, 0.5, low=2, high=0)
    refuses("values hold 1: the range is 0 to 0.5", assert_mean, draws, 0.5, low=0, high=0.5)
    refuses("number of values is 1", assert_mean, draws[:1], 0.5, **UNIT)
    refuses(
        "error rate is 0.0: it must be positive", assert_mean, draws, 0.5, **UNIT, false_alarm=0
    )
    refuses("error rate is 0.7", mean_needs, 0.1, **UNIT, miss=0.7)
    refuses("gap is 0", mean_needs, 0, **UNIT)
    refuses("variance is 0.3.*at most 0.25", mean_detects, 5, **UNIT, variance=0.3)
    for call, given in ((assert_mean, (draws, 0.5)), (mean_detects, (5,)), (mean_needs, (0.1,))):
        refuses("kind 'less' is unknown", call, *given, **UNIT, kind="less")
