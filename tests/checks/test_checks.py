"""Intervals, planning and the decider."""

from __future__ import annotations

from dataclasses import replace
from math import inf, log, sqrt

import numpy as np
import pytest

from ustat_pg.checks import (
    Evidence,
    Interval,
    RivalVerdict,
    Statement,
    Verdict,
    allotted_alpha,
    at_most,
    decide,
    empirical_bernstein,
    equal,
    positive,
    replications_needed,
)
from ustat_pg.checks.intervals import half_width
from ustat_pg.paper import RESULTS
from ustat_pg.validation import InputError


def seen(estimate: float, half: float) -> Evidence:
    return Evidence(estimate, Interval(estimate - half, estimate + half), half / 5, 1000, 1e-5)


class TestInterval:
    def test_half_width_is_maurer_and_pontils(self):
        n, variance, width, alpha = 500, 0.3, 2.0, 0.02
        expected = sqrt(2 * variance * log(4 / alpha) / n) + 7 * width * log(4 / alpha) / (
            3 * (n - 1)
        )
        assert half_width(n, variance, width, alpha) == pytest.approx(expected, rel=1e-15)

    def test_covers_a_skewed_bounded_variable_at_every_n(self):
        rng, alpha, misses = np.random.default_rng(0), 0.05, 0
        for _ in range(2000):
            n = int(rng.integers(2, 200))
            sample = (rng.random(n) < 0.03).astype(float)
            interval = empirical_bernstein(n, sample.mean(), sample.var(ddof=1), 1.0, alpha)
            misses += not interval.contains(0.03)
        assert misses <= 2000 * alpha

    def test_one_value_says_nothing_and_a_sure_one_everything(self):
        assert half_width(1, 0.0, 1.0, 0.05) == inf
        assert half_width(10, 0.0, 0.0, 0.05) == 0.0

    @pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1])
    def test_alpha_outside_is_refused(self, alpha):
        with pytest.raises(InputError, match="alpha"):
            empirical_bernstein(10, 0.0, 1.0, 1.0, alpha)

    def test_negative_variance_is_refused(self):
        with pytest.raises(InputError, match="negative"):
            empirical_bernstein(10, 0.0, -1.0, 1.0, 0.1)


class TestPlanning:
    def test_the_rates_add_up_to_the_familys(self):
        assert sum(allotted_alpha(stem, 7) * 7 for stem in RESULTS) == pytest.approx(1e-3)

    def test_unknown_stem(self):
        with pytest.raises(InputError, match="unknown"):
            allotted_alpha("nothing", 1)

    @pytest.mark.parametrize("margin", [1e-1, 1e-3])
    @pytest.mark.parametrize("variance", [0.0, 1e-4, 2.0])
    @pytest.mark.parametrize("width", [0.0, 1.0, 50.0])
    def test_is_the_least_that_serves(self, margin, variance, width):
        n = replications_needed(margin, variance, width, 1e-6)
        assert half_width(n, 1.25 * variance, width, 1e-6) <= margin
        if n > 2:
            less = min(n - 1, int(n * (1 - 1e-4)) - 2)
            assert half_width(max(less, 2), 1.25 * variance, width, 1e-6) > margin or less < 2

    def test_margin_must_be_positive(self):
        with pytest.raises(InputError, match="margin"):
            replications_needed(0.0, 1.0, 1.0, 0.1)


class TestDecider:
    claim = equal(1.0, {"near": 1.1, "far": 3.0})

    def test_truth_with_a_narrow_interval_is_confirmed(self):
        decision = decide(self.claim, seen(1.01, 0.04))
        assert decision.verdict == Verdict.CONFIRMED
        assert set(decision.rivals.values()) == {RivalVerdict.REFUTED}

    def test_too_wide_for_the_nearest_rival_is_inconclusive(self):
        decision = decide(self.claim, seen(1.01, 0.2))
        assert decision.verdict == Verdict.INCONCLUSIVE
        assert decision.rivals["near"] == RivalVerdict.SURVIVED
        assert decision.rivals["far"] == RivalVerdict.REFUTED

    def test_half_the_gap_is_the_widest_that_confirms(self):
        assert decide(self.claim, seen(1.0, 0.0499)).verdict == Verdict.CONFIRMED
        assert decide(self.claim, seen(1.0, 0.0501)).verdict == Verdict.INCONCLUSIVE

    def test_only_required_rivals_set_the_width(self):
        assert decide(self.claim, seen(1.0, 0.09), ["far"]).verdict == Verdict.CONFIRMED

    def test_a_prediction_outside_is_refuted_however_wide(self):
        assert decide(self.claim, seen(1.5, 0.4)).verdict == Verdict.REFUTED

    def test_a_rival_that_coincides_is_not_distinguishable_and_does_not_hinder(self):
        claim = equal(1.0, {"same": 1.0 + 1e-12})
        decision = decide(claim, seen(1.0, 0.05))
        assert decision.rivals["same"] == RivalVerdict.NOT_DISTINGUISHABLE
        assert decision.verdict == Verdict.CONFIRMED

    def test_without_rivals_a_useless_interval_does_not_confirm(self):
        assert decide(equal(1.0), seen(1.0, 0.5)).verdict == Verdict.INCONCLUSIVE

    def test_nan_confirms_nothing(self):
        lost = Evidence(float("nan"), Interval(-inf, inf), inf, 10, 0.1)
        assert decide(self.claim, lost).verdict == Verdict.INCONCLUSIVE

    def test_exact_evidence_sees_a_difference_of_a_millionth(self):
        good = Evidence.enumerated(1.0 + 1e-12, self.claim)
        bad = Evidence.enumerated(1.0 + 1e-6, self.claim)
        assert decide(self.claim, good, ()).verdict == Verdict.CONFIRMED
        assert decide(self.claim, bad, ()).verdict == Verdict.REFUTED

    def test_rounding_of_the_quantity_itself_refutes_nothing(self):
        claim = replace(equal(0.0, scale=0.0), floor=1e-14)
        assert decide(claim, seen(3e-15, 1e-17)).verdict == Verdict.CONFIRMED
        assert decide(claim, seen(3e-13, 1e-17)).verdict == Verdict.REFUTED

    def test_order(self):
        claim = positive(0.5, ["no gain"], scale=1.0)
        assert decide(claim, seen(0.4, 0.3)).verdict == Verdict.CONFIRMED
        assert decide(claim, seen(0.2, 0.3)).verdict == Verdict.INCONCLUSIVE
        assert decide(claim, seen(-0.4, 0.3)).verdict == Verdict.REFUTED
        assert decide(claim, seen(0.4, 0.3)).rivals["no gain"] == RivalVerdict.REFUTED

    def test_an_order_needs_a_gain(self):
        with pytest.raises(InputError, match="positive prediction"):
            positive(0.0, ["no gain"], scale=1.0)

    def test_bound_and_a_tighter_false_one(self):
        claim = at_most(1.0, 0.6, {"half": 0.5})
        assert decide(claim, seen(0.6, 0.04)).verdict == Verdict.CONFIRMED
        assert decide(claim, seen(0.6, 0.04)).rivals["half"] == RivalVerdict.REFUTED
        assert decide(claim, seen(0.6, 0.5), ()).verdict == Verdict.INCONCLUSIVE
        assert decide(claim, seen(1.6, 0.5), ()).verdict == Verdict.REFUTED

    def test_predictions_must_be_finite(self):
        with pytest.raises(InputError, match="finite"):
            Statement(float("nan"), Interval(0, 1))

    def test_printed_figures_allow_half_a_unit_of_their_last_digit(self):
        claim = equal(10.327, digits=0.0005, relative_margin=0.05)
        assert decide(claim, Evidence.enumerated(10.3274, claim)).verdict == Verdict.CONFIRMED
        assert decide(claim, Evidence.enumerated(10.3276, claim)).verdict == Verdict.REFUTED
