"""Functionals of whole laws: bands that hold, one-sided orders, plans, shares; and added constants."""

from __future__ import annotations

from math import log, sqrt

import numpy as np
import pytest
from scipy.stats import binomtest, chi2

from simulations.engines import Constant, Gap, GapTransform, Training
from simulations.engines.runs.cell import BINS
from simulations.evidence import (
    LawDistance,
    LawExcess,
    LawShare,
    Linear,
    LogSlope,
    Pit,
    Ratio,
    Verdict,
    decide,
    equal,
)
from simulations.evidence import functionals as module
from simulations.problems.landscapes import triple
from ustat_pg.engines import Estimator, MomentSums

GRPO, ORACLE = Estimator("grpo"), Estimator("oracle")
CELL = Training(triple(), 2, 10, Constant(0.1))
PIT, OTHER = Pit(GRPO, 10, (0.003,)), Pit(ORACLE, 10, (0.003,))
DISTANCE = LawDistance(CELL, PIT)
EXCESS = LawExcess(CELL, PIT, OTHER)
SHARE = LawShare(CELL, PIT, 0.125)
SEEDS = 2000


def test_a_gap_of_two_equal_weights_is_a_chi_square_of_two_degrees():
    gaps = np.array([0.0, 0.001, 0.02, 0.3])
    for count in (1, 2):
        pit = Pit(GRPO, 10, (0.05,) * count)
        np.testing.assert_allclose(pit.of(gaps, gaps), chi2.cdf(gaps / 0.05, count), atol=1e-9)


def sums_of(*samples, cell=CELL):
    """The sums of a block whose transforms are these."""
    pits = (PIT, OTHER)[: len(samples)]
    counts = {
        pit.label: np.histogram(sample, bins=BINS, range=(0, 1))[0]
        for pit, sample in zip(pits, samples, strict=True)
    }
    sums = MomentSums.of(np.stack(samples, axis=1))
    return {cell.name: (pits, MomentSums(sums.n, sums.mean, sums.products, counts))}


def bent(power, n, rng):
    """Transforms with the cdf uᵖ."""
    return rng.random(n) ** (1 / power)


def apart(power):
    """sup |uᵖ - u|, at u = p^(-1/(p-1))."""
    if power == 1:
        return 0.0
    place = power ** (-1 / (power - 1))
    return abs(place**power - place)


def misses(functional, truth, alpha, draw, seeds=SEEDS):
    """In how many of the seeds the interval does not hold the truth; and whether in too many."""
    count = 0
    for seed in range(seeds):
        evidence = functional.evidence(draw(np.random.default_rng([11, seed])), alpha, {})
        count += not evidence.interval.contains(truth)
    return count, binomtest(count, seeds, alpha, "greater").pvalue < 1e-3


def transforms(n, *powers, paired=False):
    """Draws of laws with these powers, of the same numbers or of others."""

    def draw(rng):
        first = rng.random(n)
        drawn = [first, *(first if paired else rng.random(n) for _ in powers[1:])]
        return sums_of(*(u ** (1 / p) for u, p in zip(drawn, powers, strict=True)))

    return draw


def against(rng):
    """Deviations at u and 1 - u add up: the worst company that two uniform laws can be in."""
    one = rng.random(100)
    return sums_of(one, 1 - one)


# Intervals hold the truth as often as they say.

LAWS = {
    **{
        f"distance of the power {power}, {n} runs": (
            DISTANCE, apart(power), (0.05, 0.2), transforms(n, power)
        )
        for power in (1.0, 1.2, 0.5, 3.0) for n in (1, 20, 200)
    },
    **{
        f"excess of {one} over {two}, {'paired' if paired else 'apart'}": (
            # uᵖ lies under u where p > 1.
            EXCESS, apart(two / one) if two > one else 0.0, (0.05,),
            transforms(150, one, two, paired=paired),
        )
        for one, two in ((1.0, 1.0), (1.0, 2.0), (2.0, 1.0), (0.5, 1.0)) for paired in (True, False)
    },
    "excess of opposites": (EXCESS, 0.0, (0.05,), against),
    "share": (SHARE, 0.125, (0.05,), transforms(60, 1.0)),
}  # fmt: skip


@pytest.mark.parametrize("law", LAWS)
def test_an_interval_holds_the_truth(law):
    functional, truth, levels, draw = LAWS[law]
    for alpha in levels:
        assert not misses(functional, truth, alpha, draw)[1]


@pytest.mark.parametrize(
    ("functional", "draw", "alpha", "wrong"),
    [
        *(
            (DISTANCE, transforms(300, 1.0), alpha, lambda n, a: sqrt(log(1 / a) / (2 * n)))
            for alpha in (0.05, 0.1)
        ),
        (EXCESS, against, 0.05, lambda n, a: sqrt(log(2 / a) / (2 * n)) / 2),
    ],
    ids=["twice the rate, 0.05", "twice the rate, 0.1", "half the band"],
)
def test_a_band_that_is_too_short_is_seen(functional, draw, alpha, wrong, monkeypatch):
    assert not misses(functional, 0.0, alpha, draw)[1]
    monkeypatch.setattr(module, "_band", wrong)
    assert misses(functional, 0.0, alpha, draw)[1]


@pytest.mark.parametrize(
    ("functional", "margin", "alpha", "value", "powers", "least"),
    [
        *((EXCESS, margin, 1e-4, 0.0, (1.0, 3.0), 0.95) for margin in (0.2, 0.05)),
        (LawShare(CELL, PIT, 0.25), 0.02, 1e-4, 0.25, (1.0,), 0.8),
    ],
    ids=["excess, 0.2", "excess, 0.05", "share"],
)
def test_a_plan_reaches_the_margin(functional, margin, alpha, value, powers, least):
    n = functional.needed({}, margin, alpha, value)
    sums = transforms(n, *powers)(np.random.default_rng(4))
    half = functional.evidence(sums, alpha, sums).interval.half_width
    assert least * margin < half <= margin


# The distance of two laws.


@pytest.mark.parametrize("alpha", [1e-3, 1e-6])
@pytest.mark.parametrize("margin", [0.1, 0.015])
def test_a_distances_plan_is_the_least_that_serves(margin, alpha):
    n = DISTANCE.needed({}, margin, alpha, 0.0)
    rng = np.random.default_rng(2)
    # Far enough from 0 and 1 that neither end is cut off.
    sample = np.full(n, 0.5) + 0.1 * rng.random(n)
    half = DISTANCE.evidence(sums_of(sample), alpha, {}).interval.half_width
    assert half <= margin
    assert half > 0.95 * margin
    reach = margin - 1 / BINS
    assert sqrt(log(2 / alpha) / (2 * n)) <= reach < sqrt(log(2 / alpha) / (2 * (n - 1)))


# The order of two laws.


def test_an_excess_is_one_sided():
    rng = np.random.default_rng(3)
    small, large = rng.random(20_000), bent(2.0, 20_000, rng)
    statement = equal(0.0, {"reversed": 0.25}, scale=1.0, relative_margin=0.1, digits=0.01)
    # The larger gap first: its cdf lies below everywhere.
    ordered = decide(statement, EXCESS.evidence(sums_of(large, small), 1e-4, {}))
    assert ordered.verdict == Verdict.CONFIRMED
    reverse = EXCESS.evidence(sums_of(small, large), 1e-4, {})
    assert reverse.estimate == pytest.approx(0.25, abs=0.02)
    assert decide(statement, reverse).verdict == Verdict.REFUTED


# Combinations with a constant.

PANEL = (Gap(GRPO, 10), GapTransform(GRPO, 10, 30.0))


def measured(shift=0.0):
    """Sums of two quantities, the means moved."""
    values = np.random.default_rng(8).random((5000, 2)) * [0.01, 1.0]
    sums = MomentSums.of(values)
    return {CELL.name: (PANEL, MomentSums(sums.n, sums.mean + shift, sums.products))}


def linear(number, constant=0.0, weight=1.0):
    return Linear(CELL, ((PANEL[number], weight),), constant)


@pytest.mark.parametrize(
    "make",
    [
        lambda a: Ratio(linear(0, a), linear(1, a)),
        lambda a: LogSlope((0.0, 1.0), (linear(0, a), linear(1, a)), (1.0, 1.5)),
    ],
    ids=["ratio", "slope"],
)
def test_a_constant_is_a_quantity_that_is_always_the_same(make):
    with_it = make(0.75).evidence(measured(), 1e-3, measured())
    moved = make(0.0).evidence(measured(0.75), 1e-3, measured(0.75))
    assert with_it.estimate == pytest.approx(moved.estimate, rel=1e-12)
    assert with_it.standard_error == pytest.approx(moved.standard_error, rel=1e-9)
    assert make(0.75).exact(measured()) == pytest.approx(with_it.estimate)


def test_an_excess_within_one_bin_is_inside_the_interval():
    rng = np.random.default_rng(0)
    # Both laws lie in the first bin of the third, which sets the edges; their excess is ¼ there.
    sums = sums_of(rng.random(100_000) / BINS, np.sqrt(rng.random(100_000)) / BINS)
    assert EXCESS.evidence(sums, 1e-3, {}).interval.contains(0.25)
