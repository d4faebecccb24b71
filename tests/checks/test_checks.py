"""Intervals, planning and the decider."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf, log, nan, sqrt

import numpy as np
import pytest

from tests.support.refusals import refuses
from ustat_pg.checks import (
    Evidence,
    Interval,
    Statement,
    allotted_alpha,
    at_most,
    attained,
    decide,
    empirical_bernstein,
    equal,
    positive,
    replications_needed,
)
from ustat_pg.checks.intervals import half_width
from ustat_pg.paper import RESULTS


def seen(estimate: float, half: float) -> Evidence:
    return Evidence(estimate, Interval(estimate - half, estimate + half), half / 5, 1000, 1e-5)


CLAIM = equal(1.0, {"near": 1.1, "far": 3.0})
PRINTED = equal(10.327, digits=0.0005, relative_margin=0.05)
ROUNDED = replace(equal(0.0, scale=0.0), floor=1e-14)
ORDER = positive(0.5, ["no gain"], scale=1.0)
BOUND = at_most(1.0, 0.6, {"half": 0.5})
BETWEEN = attained(2.0, 1.96, {"tighter": 1.5, "looser": 4.0}, ratio=1.05)
"""A bound that is attained: between it and it over the ratio, on both sides."""

# Intervals and planning.


def test_half_width_is_maurer_and_pontils():
    n, variance, width, alpha = 500, 0.3, 2.0, 0.02
    often = log(4 / alpha)
    expected = sqrt(2 * variance * often / n) + 7 * width * often / (3 * (n - 1))
    assert half_width(n, variance, width, alpha) == pytest.approx(expected, rel=1e-15)


def test_an_interval_covers_a_skewed_bounded_variable_at_every_n():
    rng, alpha, misses = np.random.default_rng(0), 0.05, 0
    for _ in range(2000):
        n = int(rng.integers(2, 200))
        sample = (rng.random(n) < 0.03).astype(float)
        interval = empirical_bernstein(n, sample.mean(), sample.var(ddof=1), 1.0, alpha)
        misses += not interval.contains(0.03)
    assert misses <= 2000 * alpha


def test_one_value_says_nothing_and_a_sure_one_everything():
    assert half_width(1, 0.0, 1.0, 0.05) == inf
    assert half_width(10, 0.0, 0.0, 0.05) == 0.0


def test_the_rates_add_up_to_the_familys():
    assert sum(allotted_alpha(stem, 7) * 7 for stem in RESULTS) == pytest.approx(1e-3)


@pytest.mark.parametrize("margin", [1e-1, 1e-3])
@pytest.mark.parametrize("variance", [0.0, 1e-4, 2.0])
@pytest.mark.parametrize("width", [0.0, 1.0, 50.0])
def test_a_plan_is_the_least_that_serves(margin, variance, width):
    n = replications_needed(margin, variance, width, 1e-6)
    assert half_width(n, 1.25 * variance, width, 1e-6) <= margin
    if n > 2:
        less = min(n - 1, int(n * (1 - 1e-4)) - 2)
        assert half_width(max(less, 2), 1.25 * variance, width, 1e-6) > margin or less < 2


@pytest.mark.parametrize(
    ("said", "call", "arguments"),
    [
        *(("alpha", empirical_bernstein, (10, 0.0, 1.0, 1.0, a)) for a in (0.0, 1.0, -0.1)),
        ("negative", empirical_bernstein, (10, 0.0, -1.0, 1.0, 0.1)),
        ("unknown", allotted_alpha, ("nothing", 1)),
        ("margin", replications_needed, (0.0, 1.0, 1.0, 0.1)),
        ("positive prediction", partial(positive, scale=1.0), (0.0, ["no gain"])),
        ("finite", Statement, (nan, Interval(0, 1))),
        ("finite", attained, (2.0, nan)),
        ("must be positive", partial(attained, ratio=1.05), (-1.0, 1.0)),
        ("must be positive", partial(attained, ratio=0.9), (2.0, 1.0)),
    ],
)
def test_what_makes_no_statement_and_no_plan_is_refused(said, call, arguments):
    refuses(said, call, *arguments)


# The decider.


@pytest.mark.parametrize(
    ("claim", "evidence", "required", "verdict"),
    [
        (CLAIM, seen(1.01, 0.04), None, "CONFIRMED"),
        (CLAIM, seen(1.01, 0.2), None, "INCONCLUSIVE"),
        # Half the gap to the nearest rival is the widest that confirms; only of those required.
        (CLAIM, seen(1.0, 0.0499), None, "CONFIRMED"),
        (CLAIM, seen(1.0, 0.0501), None, "INCONCLUSIVE"),
        (CLAIM, seen(1.0, 0.09), ["far"], "CONFIRMED"),
        # A prediction outside, however wide.
        (CLAIM, seen(1.5, 0.4), None, "REFUTED"),
        # Without rivals a useless interval does not confirm, and no number confirms nothing.
        (equal(1.0), seen(1.0, 0.5), None, "INCONCLUSIVE"),
        (CLAIM, Evidence(nan, Interval(-inf, inf), inf, 10, 0.1), None, "INCONCLUSIVE"),
        # Rounding of the quantity itself refutes nothing.
        (ROUNDED, seen(3e-15, 1e-17), None, "CONFIRMED"),
        (ROUNDED, seen(3e-13, 1e-17), None, "REFUTED"),
        (ORDER, seen(0.4, 0.3), None, "CONFIRMED"),
        (ORDER, seen(0.2, 0.3), None, "INCONCLUSIVE"),
        (ORDER, seen(-0.4, 0.3), None, "REFUTED"),
        (BOUND, seen(0.6, 0.04), None, "CONFIRMED"),
        (BOUND, seen(0.6, 0.5), (), "INCONCLUSIVE"),
        (BOUND, seen(1.6, 0.5), (), "REFUTED"),
        # Simulation refutes where its interval misses the region.
        (BETWEEN, seen(1.95, 0.02), None, "CONFIRMED"),
        *((BETWEEN, seen(value, 0.02), None, "REFUTED") for value in (2.2, 1.7)),
        *((BETWEEN, seen(value, 0.4), None, "INCONCLUSIVE") for value in (2.2, 1.7)),
    ],
)
def test_an_interval_decides(claim, evidence, required, verdict):
    assert decide(claim, evidence, required).verdict == verdict


@pytest.mark.parametrize(
    ("claim", "verdict", "values"),
    [
        # Exact evidence sees a difference of a millionth.
        (CLAIM, "CONFIRMED", (1.0 + 1e-12,)),
        (CLAIM, "REFUTED", (1.0 + 1e-6,)),
        # Printed figures allow half a unit of their last digit.
        (PRINTED, "CONFIRMED", (10.3274,)),
        (PRINTED, "REFUTED", (10.3276,)),
        # A bound that is attained is met up to both ends.
        (BETWEEN, "CONFIRMED", (2.0, 1.95, 2.0 / 1.05)),
        (BETWEEN, "REFUTED", (2 * (1 + 1e-6), 2.3, 2 / 1.05 * (1 - 1e-6), 1.5, 1.2, 0.0, -1.0)),
        # A larger ratio says less.
        (attained(2.0, 1.96, ratio=1.5), "CONFIRMED", (1.5,)),
    ],
)
def test_an_enumerated_value_decides(claim, verdict, values):
    for value in values:
        assert decide(claim, Evidence.enumerated(value, claim), ()).verdict == verdict, value


@pytest.mark.parametrize(
    ("claim", "evidence", "rivals"),
    [
        (CLAIM, seen(1.01, 0.04), {"near": "REFUTED", "far": "REFUTED"}),
        (CLAIM, seen(1.01, 0.2), {"near": "SURVIVED", "far": "REFUTED"}),
        (ORDER, seen(0.4, 0.3), {"no gain": "REFUTED"}),
        (BOUND, seen(0.6, 0.04), {"half": "REFUTED"}),
        # Of a tighter false bound the value is above, of a looser one it is far below.
        (BETWEEN, seen(1.96, 0.02), {"tighter": "REFUTED", "looser": "REFUTED"}),
        (BETWEEN, seen(1.95, 0.02), {"tighter": "REFUTED", "looser": "REFUTED"}),
        (BETWEEN, seen(1.45, 0.02), {"tighter": "SURVIVED", "looser": "REFUTED"}),
        (BETWEEN, seen(3.9, 0.02), {"tighter": "REFUTED", "looser": "SURVIVED"}),
        (BETWEEN, seen(1.52, 0.01), {"tighter": "REFUTED", "looser": "REFUTED"}),
    ],
)
def test_a_rival_is_refuted_where_the_interval_leaves_what_it_allows(claim, evidence, rivals):
    assert decide(claim, evidence).rivals == rivals


@pytest.mark.parametrize(
    ("claim", "evidence"),
    [
        (equal(1.0, {"same": 1.0 + 1e-12}), seen(1.0, 0.05)),
        (attained(2.0, 1.96, {"same": 2.01}, ratio=1.05), seen(1.96, 0.01)),
    ],
)
def test_a_rival_that_allows_the_prediction_is_not_distinguishable_and_does_not_hinder(
    claim, evidence
):
    decision = decide(claim, evidence)
    assert decision.rivals["same"] == "NOT DISTINGUISHABLE"
    assert decision.verdict == "CONFIRMED"


def test_the_interval_asked_for_is_half_the_region_or_half_the_way_to_a_rival():
    wide = attained(2.0, 1.96, {"far": 4.0}, ratio=1.05)
    half = 2.0 * (1 - 1 / 1.05) / 2
    assert wide.margin_for(["far"]) == pytest.approx(half)
    assert decide(wide, seen(1.95, 0.999 * half)).verdict == "CONFIRMED"
    assert decide(wide, seen(1.95, 1.001 * half)).verdict == "INCONCLUSIVE"
    near = attained(2.0, 1.96, {"near": 1.9}, ratio=1.05)
    assert near.margin_for(["near"]) == pytest.approx(0.03)
    assert near.gap("near") == pytest.approx(0.06)
    # Bounds within the ratio of each other say the same of many values.
    assert not attained(2.0, 1.96, {"near": 1.92}, ratio=1.05).distinguishable("near")
