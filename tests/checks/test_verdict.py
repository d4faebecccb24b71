"""Bounds that are attained: between the bound and the bound over a ratio, on both sides."""

from __future__ import annotations

import pytest

from ustat_pg.checks import Evidence, Interval, RivalVerdict, Verdict, attained, decide
from ustat_pg.validation import InputError

CLAIM = attained(2.0, 1.96, {"tighter": 1.5, "looser": 4.0}, ratio=1.05)


def seen(estimate: float, half: float) -> Evidence:
    return Evidence(estimate, Interval(estimate - half, estimate + half), half / 5, 1000, 1e-5)


def test_below_the_bound_and_near_it_is_confirmed():
    decision = decide(CLAIM, seen(1.95, 0.02))
    assert decision.verdict == Verdict.CONFIRMED
    assert set(decision.rivals.values()) == {RivalVerdict.REFUTED}


@pytest.mark.parametrize("value", [2.0, 1.95, 2.0 / 1.05])
def test_exact_values_up_to_both_ends_are_confirmed(value):
    found = Evidence.enumerated(value, CLAIM)
    assert decide(CLAIM, found, ()).verdict == Verdict.CONFIRMED


@pytest.mark.parametrize("value", [2.0 * (1 + 1e-6), 2.3, 2.0 / 1.05 * (1 - 1e-6), 1.2, 0.0, -1.0])
def test_above_the_bound_or_far_below_it_is_refuted(value):
    found = Evidence.enumerated(value, CLAIM)
    assert decide(CLAIM, found, ()).verdict == Verdict.REFUTED


@pytest.mark.parametrize("value", [2.2, 1.7])
def test_simulation_refutes_where_its_interval_misses_the_region(value):
    assert decide(CLAIM, seen(value, 0.02)).verdict == Verdict.REFUTED
    assert decide(CLAIM, seen(value, 0.4)).verdict == Verdict.INCONCLUSIVE


def test_a_rival_is_refuted_from_either_side_and_survives_between():
    # Of a tighter false bound the value is above, of a looser one it is far below.
    assert decide(CLAIM, seen(1.96, 0.02)).rivals["tighter"] == RivalVerdict.REFUTED
    assert decide(CLAIM, seen(1.96, 0.02)).rivals["looser"] == RivalVerdict.REFUTED
    assert decide(CLAIM, seen(1.45, 0.02)).rivals["tighter"] == RivalVerdict.SURVIVED
    assert decide(CLAIM, seen(3.9, 0.02)).rivals["looser"] == RivalVerdict.SURVIVED
    assert decide(CLAIM, seen(1.52, 0.01)).rivals["tighter"] == RivalVerdict.REFUTED


def test_a_rival_that_allows_the_prediction_is_not_distinguishable():
    claim = attained(2.0, 1.96, {"much the same": 2.01}, ratio=1.05)
    found = decide(claim, seen(1.96, 0.01))
    assert found.rivals["much the same"] == RivalVerdict.NOT_DISTINGUISHABLE
    assert found.verdict == Verdict.CONFIRMED


def test_the_interval_asked_for_is_half_the_region_or_half_the_way_to_a_rival():
    wide = attained(2.0, 1.96, {"far": 4.0}, ratio=1.05)
    half = 2.0 * (1 - 1 / 1.05) / 2
    assert wide.margin_for(["far"]) == pytest.approx(half)
    assert decide(wide, seen(1.95, 0.999 * half)).verdict == Verdict.CONFIRMED
    assert decide(wide, seen(1.95, 1.001 * half)).verdict == Verdict.INCONCLUSIVE
    near = attained(2.0, 1.96, {"near": 1.9}, ratio=1.05)
    assert near.margin_for(["near"]) == pytest.approx(0.03)
    assert near.gap("near") == pytest.approx(0.06)
    # Bounds within the ratio of each other say the same of many values.
    assert not attained(2.0, 1.96, {"near": 1.92}, ratio=1.05).distinguishable("near")


def test_a_larger_ratio_says_less():
    value = Evidence.enumerated(1.5, CLAIM)
    assert decide(CLAIM, value, ()).verdict == Verdict.REFUTED
    assert decide(attained(2.0, 1.96, ratio=1.5), value, ()).verdict == Verdict.CONFIRMED


def test_what_is_no_bound_is_refused():
    with pytest.raises(InputError, match="finite"):
        attained(2.0, float("nan"))
    for bound, ratio in ((-1.0, 1.05), (2.0, 0.9)):
        with pytest.raises(InputError, match="must be positive"):
            attained(bound, 1.0, ratio=ratio)
