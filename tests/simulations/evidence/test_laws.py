"""Intervals of whole laws hold as often as they say; by their formulas in ``test_functionals.py``."""

from math import log, sqrt

import numpy as np
import pytest
from scipy.stats import binomtest, chi2

from simulations.engines import Constant, Training
from simulations.engines.runs.cell import BINS
from simulations.evidence import (
    ConditionalPit,
    LawDistance,
    LawExcess,
    LawShare,
    Pit,
)
from simulations.evidence import laws as module
from simulations.problems.landscapes import triple
from ustat_pg.engines import Estimator, MomentSums

GRPO, ORACLE = Estimator("grpo"), Estimator("oracle")
CELL = Training(triple(), 2, 10, Constant(0.1))
PIT, OTHER = Pit(GRPO, 10, (0.003,)), Pit(ORACLE, 10, (0.003,))
DISTANCE = LawDistance(CELL, PIT)
EXCESS = LawExcess(CELL, PIT, OTHER)
SHARE = LawShare(CELL, PIT, 0.125)
SEEDS = 1000


def test_a_gap_of_two_equal_weights_is_a_chi_square_of_two_degrees():
    gaps = np.array([0.0, 0.001, 0.02, 0.3])
    for count in (1, 2):
        pit = Pit(GRPO, 10, (0.05,) * count)
        np.testing.assert_allclose(pit.of(gaps, gaps), chi2.cdf(gaps / 0.05, count), atol=1e-9)


def test_a_conditional_transform_has_the_weight_of_where_a_run_ends():
    """Between low and high, as the sigmoid of one of its parameters."""
    gaps, theta = np.array([0.01, 0.02, 0.3]), np.array([[9.0, 0.0], [9.0, -40.0], [9.0, 40.0]])
    pit = ConditionalPit(GRPO, 10, 1, 0.02, 0.1)
    weights = np.array([0.06, 0.02, 0.1])
    np.testing.assert_allclose(pit.of(gaps, theta), chi2.cdf(gaps / weights, 1), rtol=1e-12)


def sums_of(*samples, cell=CELL):
    """The sums of a block whose transforms are these."""
    pits = (PIT, OTHER)[: len(samples)]
    counts = {
        pit.label: np.histogram(sample, bins=BINS, range=(0, 1))[0]
        for pit, sample in zip(pits, samples, strict=True)
    }
    sums = MomentSums.of(np.stack(samples, axis=1))
    return {cell.name: (pits, MomentSums(sums.n, sums.mean, sums.products, counts))}


def apart(power):
    """sup |uᵖ - u|, at u = p^(-1/(p-1))."""
    if power == 1:
        return 0.0
    place = power ** (-1 / (power - 1))
    return abs(place**power - place)


def misses(functional, truth, alpha, draw):
    """Whether the interval does not hold the truth in more of the seeds than its rate allows."""
    count = 0
    for seed in range(SEEDS):
        evidence = functional.evidence(draw(np.random.default_rng([11, seed])), alpha, {})
        count += not evidence.interval.contains(truth)
    return binomtest(count, SEEDS, alpha, "greater").pvalue < 1e-3


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


LAWS = {
    **{
        f"distance of the power {power}, {n} runs": (
            DISTANCE, apart(power), (0.05, 0.2), transforms(n, power)
        )
        for power, n in ((1.0, 1), (1.0, 20), (1.0, 200), (0.5, 20), (3.0, 200))
    },
    **{
        f"excess of {one} over {two}, {'paired' if paired else 'apart'}": (
            # uᵖ lies under u where p > 1.
            EXCESS, apart(two / one) if two > one else 0.0, (0.05,),
            transforms(150, one, two, paired=paired),
        )
        for one, two, paired in ((1.0, 1.0, False), (1.0, 2.0, True), (1.0, 2.0, False), (2.0, 1.0, True))
    },
    "excess of opposites": (EXCESS, 0.0, (0.05,), against),
    "share": (SHARE, 0.125, (0.05,), transforms(60, 1.0)),
}  # fmt: skip


@pytest.mark.parametrize("law", LAWS)
def test_an_interval_holds_the_truth(law):
    functional, truth, levels, draw = LAWS[law]
    for alpha in levels:
        assert not misses(functional, truth, alpha, draw)


@pytest.mark.parametrize(
    ("functional", "draw", "wrong"),
    [
        (DISTANCE, transforms(300, 1.0), lambda n, a: sqrt(log(1 / a) / (2 * n))),
        (EXCESS, against, lambda n, a: sqrt(log(2 / a) / (2 * n)) / 2),
    ],
    ids=["twice the rate", "half the band"],
)
def test_a_band_that_is_too_short_is_seen(functional, draw, wrong, monkeypatch):
    monkeypatch.setattr(module, "_band", wrong)
    assert misses(functional, 0.0, 0.05, draw)


def test_an_excess_within_one_bin_is_inside_the_interval():
    rng = np.random.default_rng(0)
    # Both laws lie in the first bin of the third, which sets the edges; their excess is ¼ there.
    sums = sums_of(rng.random(100_000) / BINS, np.sqrt(rng.random(100_000)) / BINS)
    assert EXCESS.evidence(sums, 1e-3, {}).interval.contains(0.25)
