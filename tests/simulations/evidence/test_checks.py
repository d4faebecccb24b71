"""Intervals, planning and the decider."""

from dataclasses import replace
from math import inf, log, nan, sqrt

import numpy as np
import pytest
from scipy.stats import t

from simulations.evidence import (
    Evidence,
    Forecast,
    Interval,
    NearlyNormal,
    Statement,
    allotted_alpha,
    at_most,
    attained,
    decide,
    equal,
    positive,
    replications_needed,
)
from simulations.evidence.planning import MOST


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


def test_nothing_drawn_says_nothing_and_a_sure_value_everything():
    assert Forecast(0.0, 0.0, 0.0, 1.0).interval(0, 0.0, 0.0, 0.05) == Interval(-inf, inf)
    assert Forecast(2.0, 0.0, 2.0, 2.0).half_width(10, 0.05) == 0.0
    assert Forecast(2.0, 1.0, 0.0, inf).half_width(10, 0.05) == inf


@pytest.mark.parametrize("kind", [Forecast, NearlyNormal])
@pytest.mark.parametrize(("mean", "variance"), [(nan, 1.0), (inf, 1.0), (0.5, nan), (0.5, inf)])
def test_a_sample_that_is_no_number_bounds_nothing(kind, mean, variance):
    assert kind(0.5, 0.25, 0.0, 1.0).interval(9, mean, variance, 0.05) == Interval(-inf, inf)


def test_no_number_of_replications_narrows_what_has_no_range():
    assert replications_needed(0.1, Forecast(0.0, 1.0, 0.0, inf), 1e-6) == MOST


@pytest.mark.parametrize("margin", [nan, 0.0, -1.0])
def test_no_number_of_replications_gives_no_width(margin):
    assert replications_needed(margin, Forecast(0.5, 0.25, 0.0, 1.0), 1e-6) == MOST


def test_a_pilot_that_is_no_number_plans_as_much_as_can_be():
    assert replications_needed(0.1, Forecast(nan, nan, 0.0, 1.0), 1e-6) == MOST


@pytest.mark.parametrize("margin", np.geomspace(0.08, 0.6, 15))
def test_few_replications_are_the_fewest(margin):
    forecast = Forecast(0.5, 0.05, 0.0, 1.0)
    needed = replications_needed(margin, forecast, 1e-3)
    assert 2 < needed < 1000
    assert forecast.half_width(needed, 1e-3) <= margin < forecast.half_width(needed - 1, 1e-3)


# The decider.


@pytest.mark.parametrize(
    ("claim", "evidence", "required", "verdict"),
    [
        (CLAIM, seen(1.01, 0.04), None, "CONFIRMED"),
        (CLAIM, seen(1.01, 0.2), None, "INCONCLUSIVE"),
        # Half the gap to the nearest rival is the widest that confirms; only of those required.
        (CLAIM, seen(1.0, 0.0499), None, "CONFIRMED"),
        (CLAIM, seen(1.0, 0.0601), None, "INCONCLUSIVE"),
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
    "claim",
    [
        # An order, predicted the other way round, or not at all.
        positive(-0.5, ["no gain"], scale=1.0),
        positive(0.0, ["no gain"], scale=1.0),
        positive(0.9e-9, ["no gain"], scale=1.0),
        positive(nan, ["no gain"], scale=1.0),
        # A bound below what it bounds, or of the wrong sign, or attained by nothing near it.
        at_most(1.0, 1.1, {"half": 0.5}),
        at_most(inf, 1.0),
        attained(2.0, 1.8, ratio=1.05),
        attained(2.0, 2.1, ratio=1.05),
        attained(-2.0, 1.96, {"tighter": -1.5}, ratio=1.05),
        attained(2.0, nan),
        attained(inf, 1.0),
        # No number.
        equal(nan, {"half": 0.5}),
        equal(inf, scale=1.0),
        equal(0.5, scale=nan),
    ],
)
@pytest.mark.parametrize("value", [-0.5, 0.0, 0.5, 1.0, 1.05, 1.96])
def test_a_prediction_at_odds_with_its_own_statement_is_refuted_whatever_is_found(claim, value):
    assert not claim.coherent
    assert decide(claim, Evidence.enumerated(value, claim), ()).verdict == "REFUTED"
    assert decide(claim, seen(value, 0.01)).verdict == "REFUTED"


NO_NUMBER = (nan, inf, -inf)


@pytest.mark.parametrize("claim", [CLAIM, PRINTED, ROUNDED, ORDER, BOUND, BETWEEN])
@pytest.mark.parametrize("value", NO_NUMBER)
def test_a_value_that_is_no_number_leaves_every_statement_and_rival_open(claim, value):
    unlimited = replace(claim, margin=inf)
    for evidence in (
        Evidence.enumerated(value, claim),
        Evidence.between(value, 0.9, 1.1, 0.01, 1000, 1e-5),
        Evidence.unknown(1000, 1e-5),
    ):
        assert evidence.interval == Interval(-inf, inf)
        assert evidence.smallest_discrepancy == inf
        for asked in (claim, unlimited):
            decision = decide(asked, evidence, ())
            assert decision.verdict == "INCONCLUSIVE"
            assert set(decision.rivals.values()) <= {"SURVIVED"}
    with pytest.raises(ValueError, match=f"an estimate of {value} in"):
        Evidence(value, Interval(0.9, 1.1))


def test_an_end_that_is_no_number_bounds_nothing():
    assert Evidence.between(1.0, nan, 1.1).interval == Interval(-inf, 1.1)
    assert Evidence.between(1.0, 0.9, nan).interval == Interval(0.9, inf)
    assert Evidence.between(1.0, 0.9, 1.1, 0.2, 5, alpha=0.1) == Evidence(
        1.0, Interval(0.9, 1.1), 0.2, 5, 0.1
    )
    with pytest.raises(ValueError, match="interval from"):
        Evidence.between(1.0, 2.0, 1.0)


@pytest.mark.parametrize("claim", [equal(1.0), PRINTED, ORDER, BOUND, BETWEEN])
def test_nothing_is_decided_where_all_may_be_rounding(claim):
    """A quantity that is divided by a length of 0 may be off by anything."""
    lost = replace(claim, floor=inf)
    for value in (claim.prediction, 3 * claim.prediction):
        assert decide(lost, Evidence.enumerated(value, lost), ()).verdict == "INCONCLUSIVE"
        assert decide(lost, seen(value, 1e-3), ()).verdict == "INCONCLUSIVE"


@pytest.mark.parametrize(
    "made",
    [
        lambda rivals: equal(1.0, rivals),
        lambda rivals: at_most(1.0, 0.6, rivals),
        lambda rivals: attained(1.0, 0.99, rivals),
    ],
)
@pytest.mark.parametrize("value", [nan, inf])
def test_a_rival_that_is_no_number_is_never_refuted(made, value):
    claim = made({"none": value})
    for evidence in (Evidence.enumerated(claim.prediction, claim), seen(claim.prediction, 1e-3)):
        assert decide(claim, evidence).rivals.get("none") in (None, "NOT DISTINGUISHABLE")


def test_what_rounding_makes_of_nothing_is_not_positive():
    for value, verdict in ((0.0, "REFUTED"), (0.5e-9, "REFUTED"), (1.1e-9, "CONFIRMED")):
        assert decide(ORDER, Evidence.enumerated(value, ORDER), ()).verdict == verdict


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
        # The value is above a tighter false bound, and far below a looser one.
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
    assert decide(wide, seen(1.95, 1.199 * half)).verdict == "CONFIRMED"
    assert decide(wide, seen(1.95, 1.201 * half)).verdict == "INCONCLUSIVE"
    near = equal(2.0, {"near": 1.6}, digits=0.1)
    assert near.margin_for(["near"]) == pytest.approx(0.15)
    assert near.gap("near") == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("claim", "margin"),
    [
        (equal(2.0), 0.2),
        (equal(-2.0), 0.2),
        (equal(2.0, scale=5.0, relative_margin=0.02), 0.1),
        (equal(2.0, relative_margin=0.001, digits=0.01), 0.01),
        (positive(0.5, ["no gain"], scale=1.0), 0.25),
        (at_most(1.0, 0.6), 0.2),
        (at_most(1.0, 1.2), 0.0),
        (attained(-2.0, 1.96, ratio=1.25), 2.0 * (1 - 1 / 1.25) / 2),
        (attained(2.0, 1.96, ratio=1.25, relative_margin=0.3), 0.6),
    ],
)
def test_half_widths_are_asked_for_in_the_units_of_a_statement(claim, margin):
    assert claim.margin == pytest.approx(margin)
    assert claim.margin_for(()) == claim.margin


@pytest.mark.parametrize(
    ("claim", "low", "high", "scale"),
    [
        (equal(2.0), 2.0 - 2e-9, 2.0 + 2e-9, 2.0),
        (equal(2.0, scale=5.0), 2.0 - 5e-9, 2.0 + 5e-9, 5.0),
        (equal(2.0, digits=0.25), 1.75, 2.25, 2.0),
        (positive(0.5, [], scale=3.0), 6e-9, inf, 3.0),
        (at_most(-1.0, -1.5), -inf, -1.0 + 1e-9, 1.0),
        (attained(2.0, 1.96, ratio=1.25), 1.6, 2.0 + 2e-9, 2.0),
        (attained(-2.0, -2.0, ratio=1.25), -2.0, -2.0 + 2e-9, 2.0),
    ],
)
def test_a_statement_allows_what_it_says_and_rounding(claim, low, high, scale):
    ends = [claim.region.low, claim.region.high]
    assert ends == pytest.approx([low, high], rel=1e-13)
    assert (claim.scale, claim.tolerance) == (scale, pytest.approx(1e-9 * scale))
    assert replace(claim, floor=0.5).tolerance == 0.5


def test_a_statement_of_nothing_more_has_the_unit_1_and_asks_for_no_width():
    bare = Statement(1.5, INSIDE)
    assert (bare.scale, bare.margin, bare.floor, bare.rivals) == (1.0, inf, 0.0, {})


def test_rivals_say_where_they_would_have_it():
    near = {"near": 1.5}
    assert equal(1.0, near, digits=0.25).rivals == {"near": Interval(1.25, 1.75)}
    assert positive(1.0, near, scale=1.0).rivals == {"near": Interval(-inf, 0.0)}
    assert at_most(2.0, 1.0, near).rivals == {"near": Interval(-inf, 1.5)}
    assert attained(2.0, 1.9, near, ratio=1.5).rivals == {"near": Interval(1.0, 1.5 + 1.5e-9)}


@pytest.mark.parametrize(
    ("half", "error", "rounding", "seen"),
    [(0.2, 0.1, 0.0, 0.2 + 0.1 * 3.0902323), (0.2, 0.0, 0.3, 0.3), (0.0, 0.0, 0.0, 0.0)],
)
def test_what_evidence_sees_is_its_half_width_and_what_an_estimate_may_miss(
    half, error, rounding, seen
):
    evidence = Evidence(1.0, Interval(1 - half, 1 + half), error, 10, 0.1, rounding)
    assert evidence.smallest_discrepancy == pytest.approx(seen)


INSIDE = Interval(1.0, 2.0)


def test_intervals_touch_at_their_ends():
    assert [INSIDE.contains(value) for value in (0.9, 1.0, 2.0, 2.1)] == [False, True, True, False]
    assert [INSIDE.distance(value) for value in (0.5, 1.0, 1.5, 2.0, 3.0)] == [0.5, 0, 0, 0, 1.0]
    others = (Interval(0.0, 1.0), Interval(2.0, 3.0), Interval(0.0, 0.9), Interval(2.1, 3.0))
    assert [INSIDE.meets(other) for other in others] == [True, True, False, False]
    wider = (Interval(1.0, 2.0), Interval(0.0, 3.0), Interval(1.1, 2.0), Interval(1.0, 1.9))
    assert [INSIDE.inside(other) for other in wider] == [True, True, False, False]
    assert INSIDE.widened(0.5) == Interval(0.5, 2.5)
    assert INSIDE.half_width == 0.5


def psi(u):
    return -log(1 - u) - u


@pytest.mark.parametrize(
    ("expected", "seen", "n"),
    [((0.3, 0.04), (0.35, 0.05), 500), ((0.0, 0.04), (0.1, 0.01), 500), ((0.3, 0.0), (0.3, 0.01), 50),
     ((0.5, 1e-3), (0.5, 2e-3), 3), ((0.02, 0.01), (0.02, 0.01), 100_000)],
)  # fmt: skip
def test_an_interval_is_that_of_its_formula(expected, seen, n):
    """In the docstring's words, w the room to an end of [0, 1], and u the best for what was expected."""
    (centre, variance), (mean, spread), alpha = expected, seen, 0.01
    square = spread * (n - 1) / n + (mean - centre) ** 2

    def reach(w):
        w, strength = max(w, 1e-3), log(2 / alpha)
        best = sqrt(2 * strength / (n * variance)) * w if variance else inf
        u = min(best / (1 + best), 0.9) if best < inf else 0.9
        return w * (strength / u + psi(u) / u * n * square / w**2) / n

    found = Forecast(centre, variance, 0.0, 1.0).interval(n, mean, spread, alpha)
    known = max(mean - reach(centre), 0.0), min(mean + reach(1 - centre), 1.0)
    assert (found.low, found.high) == pytest.approx(known, rel=1e-9, abs=1e-12)


def test_a_mean_beyond_its_range_by_rounding_is_in_its_interval():
    for mean, end in ((-1e-17, 0.0), (1.0 + 1e-15, 1.0)):
        found = Forecast(end, 1e-4, 0.0, 1.0).interval(10, mean, 0.0, 0.1)
        assert found.contains(mean)
        assert (found.low == mean) == (end == 0.0)
        assert (found.high == mean) == (end == 1.0)


def test_what_is_nearly_normal_reaches_as_far_as_its_deviations_say():
    found = NearlyNormal(5.0, 2.0, -inf, inf)
    interval = found.interval(100, 5.5, 4.0, 0.1)
    reach = sqrt(2 * (4.0 * 99 / 100 + 0.25) * log(20) / 100)
    assert (interval.low, interval.high) == pytest.approx((5.5 - reach, 5.5 + reach))
    assert found.half_width(100, 0.1) == pytest.approx(sqrt(2 * 2.0 * log(20) / 100))


@pytest.mark.parametrize("count", [4, 8, 20])
def test_of_few_draws_it_reaches_as_far_as_students_law(count):
    """Where the mean is the one that was expected."""
    sample = np.random.default_rng(count).normal(5.0, 2.0, count)
    mean, variance = float(sample.mean()), float(sample.var(ddof=1))
    found = NearlyNormal(mean, 4.0, -inf, inf).interval(count, mean, variance, 1e-4)
    error = sqrt(variance / count)
    assert (found.low, found.high) == pytest.approx(t.interval(1 - 1e-4, count - 1, mean, error))
    assert NearlyNormal(0.0, 1.0, -inf, inf).half_width(1, 1e-4) == inf


@pytest.mark.parametrize(("checks", "results"), [(1, 1), (7, 3)])
def test_the_familys_rate_is_shared_equally(checks, results):
    assert allotted_alpha(checks, results) == pytest.approx(1e-3 / checks / results)


def test_replications_are_found_to_a_thousandth():
    for margin in (0.3, 0.02, 1e-3):
        forecast = Forecast(0.5, 0.05, 0.0, 1.0)
        needed = replications_needed(margin, forecast, 1e-5)
        assert forecast.half_width(needed, 1e-5) <= margin
        fewer = needed - max(1, needed // 1000) - 1
        assert forecast.half_width(fewer, 1e-5) > margin
    # What two give is not asked of more.
    half = Forecast(0.5, 0.05, 0.0, 1.0).half_width(2, 0.5)
    assert replications_needed(half, Forecast(0.5, 0.05, 0.0, 1.0), 0.5) == 2
    assert replications_needed(half * 0.999, Forecast(0.5, 0.05, 0.0, 1.0), 0.5) == 3


def test_only_what_has_two_sides_is_asked_less_sharply():
    assert CLAIM.coarser(1.5).margin == pytest.approx(1.5 * CLAIM.margin)
    assert CLAIM.coarser(9.0).margin_for(["near"]) == CLAIM.margin_for(["near"])
    assert ORDER.coarser(1.5) is ORDER


@pytest.mark.parametrize(
    ("near", "told"),
    [
        # What lies three times as far as the prediction may be off, on either side.
        (equal(2.0, {"near": 1.69}, digits=0.1), True),
        (equal(2.0, {"near": 1.71}, digits=0.1), False),
        (equal(2.0, {"near": 2.31}, digits=0.1), True),
        (equal(2.0, {"near": 2.29}, digits=0.1), False),
        # Bounds within the ratio of each other say the same of many values.
        (attained(2.0, 1.96, {"near": 1.86}, ratio=1.05), True),
        (attained(2.0, 1.96, {"near": 1.87}, ratio=1.05), False),
    ],
)
def test_a_rival_within_three_times_the_predictions_own_error_is_not_told_apart(near, told):
    assert near.distinguishable("near") == told
