"""Functionals of whole laws: bands that hold, one-sided orders, plans, shares; and added constants."""

from __future__ import annotations

from math import ceil, log, sqrt

import numpy as np
import pytest
from scipy.stats import binomtest, kstest

from simulations.problems.landscapes import triple
from ustat_pg.checks import RivalVerdict, Verdict, decide, equal
from ustat_pg.engines import Constant, Estimator, Gap, GapTransform, MomentSums, Pit, Training
from ustat_pg.engines.runs.cell import BINS
from ustat_pg.experiment import (
    Check,
    Claim,
    LawDistance,
    LawExcess,
    LawShare,
    Linear,
    LogSlope,
    Options,
    Ratio,
    Store,
    mean_of,
    run_claims,
)
from ustat_pg.experiment import functionals as module
from ustat_pg.experiment.functionals import NO_NUMBER
from ustat_pg.validation import InputError

GRPO, ORACLE = Estimator("grpo"), Estimator("oracle")
CELL = Training(triple(), 2, 10, Constant(0.1))
PIT, OTHER = Pit(GRPO, 10, (0.003,)), Pit(ORACLE, 10, (0.003,))
DISTANCE = LawDistance(CELL, PIT)
EXCESS = LawExcess(CELL, PIT, OTHER)
SEEDS = 2000
EDGES = np.linspace(0, 1, BINS + 1)


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
    place = power ** (-1 / (power - 1))
    return abs(place**power - place)


def misses(functional, truth, alpha, draw, seeds=SEEDS):
    """In how many of the seeds the interval does not hold the truth."""
    count = 0
    for seed in range(seeds):
        evidence = functional.evidence(draw(np.random.default_rng([11, seed])), alpha)
        count += not evidence.interval.contains(truth)
    return count


def too_often(count, alpha, seeds=SEEDS):
    return binomtest(count, seeds, alpha, "greater").pvalue < 1e-3


# The distance of two laws.


@pytest.mark.parametrize("power", [1.0, 1.2, 0.5, 3.0])
@pytest.mark.parametrize("n", [1, 20, 200])
def test_the_distances_interval_holds_the_truth(n, power):
    truth = apart(power) if power != 1 else 0.0
    for alpha in (0.05, 0.2):
        count = misses(DISTANCE, truth, alpha, lambda rng: sums_of(bent(power, n, rng)))
        assert not too_often(count, alpha)


@pytest.mark.parametrize("alpha", [0.05, 0.1])
def test_a_band_for_twice_the_rate_is_seen(alpha, monkeypatch):
    def draw(rng):
        return sums_of(rng.random(300))

    assert not too_often(misses(DISTANCE, 0.0, alpha, draw), alpha)
    monkeypatch.setattr(module, "_band", lambda n, alpha: sqrt(log(1 / alpha) / (2 * n)))
    assert too_often(misses(DISTANCE, 0.0, alpha, draw), alpha)


def test_the_interval_is_the_band_and_a_bin():
    rng = np.random.default_rng(0)
    for n in (10, 1000, 50_000):
        sample = bent(2.0, n, rng)
        evidence = DISTANCE.evidence(sums_of(sample), 1e-3)
        band = sqrt(log(2 / 1e-3) / (2 * n))
        exact = kstest(sample, "uniform").statistic
        # What the histogram does not see is less than a bin.
        assert evidence.estimate <= exact + 1e-12
        assert exact <= evidence.estimate + 1 / BINS + 1e-12
        assert evidence.interval.low == pytest.approx(max(evidence.estimate - band, 0))
        assert evidence.interval.high == pytest.approx(min(evidence.estimate + band + 1 / BINS, 1))
        assert evidence.replications == n


def test_a_law_between_the_edges_is_within_a_bin():
    # All in the middle of their bins: uniform on the edges, half a bin off between them.
    sample = (np.arange(4 * BINS) % BINS + 0.5) / BINS
    evidence = DISTANCE.evidence(sums_of(sample), 1e-3)
    assert evidence.estimate == pytest.approx(0.0, abs=1e-12)
    assert evidence.interval.contains(kstest(sample, "uniform").statistic)


def test_a_wrong_law_is_refuted_and_its_rival_is_not():
    far = apart(2.0)
    statement = equal(0.0, {"square": far}, scale=1.0, relative_margin=0.015, digits=0.02)
    rng = np.random.default_rng(1)
    true = decide(statement, DISTANCE.evidence(sums_of(rng.random(40_000)), 1e-4))
    assert true.verdict == Verdict.CONFIRMED
    assert true.rivals["square"] == RivalVerdict.REFUTED
    false = decide(statement, DISTANCE.evidence(sums_of(bent(2.0, 40_000, rng)), 1e-4))
    assert false.verdict == Verdict.REFUTED
    assert false.rivals["square"] == RivalVerdict.SURVIVED
    few = decide(statement, DISTANCE.evidence(sums_of(rng.random(100)), 1e-4))
    assert few.verdict == Verdict.INCONCLUSIVE


@pytest.mark.parametrize("alpha", [1e-3, 1e-6])
@pytest.mark.parametrize("margin", [0.1, 0.015])
def test_a_distances_plan_is_the_least_that_serves(margin, alpha):
    n = DISTANCE.needed({}, margin, alpha, 0.0)
    rng = np.random.default_rng(2)
    # Far enough from 0 and 1 that neither end is cut off.
    sample = np.full(n, 0.5) + 0.1 * rng.random(n)
    half = DISTANCE.evidence(sums_of(sample), alpha).interval.half_width
    assert half <= margin
    assert half > 0.95 * margin
    reach = margin - 1 / BINS
    assert sqrt(log(2 / alpha) / (2 * n)) <= reach < sqrt(log(2 / alpha) / (2 * (n - 1)))


@pytest.mark.parametrize("functional", [DISTANCE, EXCESS])
@pytest.mark.parametrize("margin", [1 / BINS, 1e-5, 0.0])
def test_no_number_of_runs_resolves_a_bin(functional, margin):
    assert functional.needed({}, margin, 1e-3, 0.0) == NO_NUMBER


# The order of two laws.


@pytest.mark.parametrize(("first", "second"), [(1.0, 1.0), (1.0, 2.0), (2.0, 1.0), (0.5, 1.0)])
@pytest.mark.parametrize("paired", [True, False])
def test_the_excesss_interval_holds_the_truth(first, second, paired):
    truth = apart(max(second, first) / min(second, first)) if first != second else 0.0
    if first > second:
        truth = 0.0  # uᵖ lies under u

    def draw(rng):
        one = rng.random(150)
        two = one if paired else rng.random(150)
        return sums_of(one ** (1 / first), two ** (1 / second))

    assert not too_often(misses(EXCESS, truth, 0.05, draw), 0.05)


def test_an_excess_is_one_sided():
    rng = np.random.default_rng(3)
    small, large = rng.random(20_000), bent(2.0, 20_000, rng)
    statement = equal(0.0, {"reversed": 0.25}, scale=1.0, relative_margin=0.1, digits=0.01)
    # The larger gap first: its cdf lies below everywhere.
    ordered = decide(statement, EXCESS.evidence(sums_of(large, small), 1e-4))
    assert ordered.verdict == Verdict.CONFIRMED
    reverse = EXCESS.evidence(sums_of(small, large), 1e-4)
    assert reverse.estimate == pytest.approx(0.25, abs=0.02)
    assert decide(statement, reverse).verdict == Verdict.REFUTED


def test_half_the_excesss_band_is_seen(monkeypatch):
    def draw(rng):
        # Deviations at u and 1 - u add up: the worst company that two uniform laws can be in.
        one = rng.random(100)
        return sums_of(one, 1 - one)

    assert not too_often(misses(EXCESS, 0.0, 0.05, draw), 0.05)
    band = module._band
    monkeypatch.setattr(module, "_band", lambda n, alpha: band(n, alpha) / 2)
    assert too_often(misses(EXCESS, 0.0, 0.05, draw), 0.05)


@pytest.mark.parametrize("margin", [0.2, 0.05])
def test_an_excesss_plan_reaches_the_margin(margin):
    n = EXCESS.needed({}, margin, 1e-4, 0.0)
    rng = np.random.default_rng(4)
    sums = sums_of(rng.random(n), bent(3.0, n, rng))
    half = EXCESS.evidence(sums, 1e-4).interval.half_width
    assert 0.95 * margin < half <= margin


def test_two_laws_on_two_sets_of_edges_are_refused():
    with pytest.raises(InputError, match="edges of one"):
        LawExcess(CELL, PIT, Pit(ORACLE, 10, (0.004,)))


# Shares.


@pytest.mark.parametrize("level", [0.01, 0.5, 0.99])
def test_a_share_is_that_of_the_runs_below(level):
    rng = np.random.default_rng(5)
    sample = bent(2.0, 30_000, rng)
    share = LawShare(CELL, PIT, level)
    evidence = share.evidence(sums_of(sample), 1e-4)
    edge = round(level * BINS) / BINS
    assert evidence.estimate == (sample < edge).mean()
    assert evidence.interval.contains(edge**2)
    assert evidence.standard_error == pytest.approx(
        sqrt(evidence.estimate * (1 - evidence.estimate) / 30_000), rel=1e-3
    )


def test_a_shares_interval_holds_the_truth():
    share = LawShare(CELL, PIT, 0.125)
    count = misses(share, 0.125, 0.05, lambda rng: sums_of(rng.random(60)))
    assert not too_often(count, 0.05)
    assert misses(share, 0.4, 0.05, lambda rng: sums_of(rng.random(600)), 50) == 50


def test_a_shares_plan_reaches_the_margin():
    share = LawShare(CELL, PIT, 0.25)
    n = share.needed({}, 0.02, 1e-4, 0.25)
    half = share.evidence(sums_of(np.random.default_rng(6).random(n)), 1e-4).interval.half_width
    assert 0.8 * 0.02 < half <= 0.02


# Slopes of distances.


def power_cells():
    """Distances .2, .1, .05 and .025 at steps 10, 20, 40 and 80."""
    rng = np.random.default_rng(7)
    cells, sums, distances = [], {}, (0.2, 0.1, 0.05, 0.025)
    for steps, wanted in zip((10, 20, 40, 80), distances, strict=True):
        cell = Training(triple(), 2, steps, Constant(0.1))
        # The cdf u + 4 w u (1 - u) is farthest from u in the middle, by w.
        chances = np.diff(EDGES + 4 * wanted * EDGES * (1 - EDGES))
        counts = rng.multinomial(4_000_000, chances)
        block = MomentSums(int(counts.sum()), np.zeros(1), np.zeros((1, 1)), {PIT.label: counts})
        cells.append(cell)
        sums[cell.name] = ((PIT,), block)
    return cells, sums, distances


def test_the_slope_of_distances_that_halve():
    cells, sums, distances = power_cells()
    points = tuple(LawDistance(cell, PIT) for cell in cells)
    slope = LogSlope(tuple(log(cell.steps) for cell in cells), points, distances)
    evidence = slope.evidence(sums, 1e-3)
    assert evidence.estimate == pytest.approx(-1.0, abs=0.02)
    assert evidence.interval.contains(-1.0)
    decision = decide(equal(-1.0, {"half": -0.5}, scale=1.0), evidence)
    assert decision.rivals["half"] == RivalVerdict.REFUTED
    assert not evidence.interval.contains(-0.8)
    for part, truth in zip(points, distances, strict=True):
        assert part.evidence(sums, 1e-3).interval.contains(truth)


def test_a_slopes_plan_serves_its_nearest_distance():
    cells, sums, distances = power_cells()
    points = tuple(LawDistance(cell, PIT) for cell in cells)
    slope = LogSlope(tuple(log(cell.steps) for cell in cells), points, distances)
    needed = slope.needed(sums, 0.3, 1e-3, -1.0)
    assert needed == max(
        point.needed(sums, margin, 1e-3 / 4, value)
        for point, value in zip(points, distances, strict=True)
        for margin in [0.95 * (1 - np.exp(-0.3 / np.abs(slope._weights).sum())) * value]
    )
    assert needed < NO_NUMBER


@pytest.mark.parametrize(
    "functional",
    [DISTANCE, EXCESS, LawShare(CELL, PIT, 0.5), LogSlope((0.0, 1.0), (DISTANCE,) * 2, (0.1, 0.1))],
    ids=["distance", "excess", "share", "slope"],
)
def test_a_law_has_no_exact_value(functional):
    with pytest.raises(NotImplementedError, match="compared by simulation"):
        functional.exact(sums_of(np.zeros(3), np.zeros(3)))


# Combinations with a constant.

PANEL = (Gap(GRPO, 10), GapTransform(GRPO, 10, 30.0))


def measured(shift=0.0):
    """Sums of two quantities, the means moved."""
    values = np.random.default_rng(8).random((5000, 2)) * [0.01, 1.0]
    sums = MomentSums.of(values)
    return {CELL.name: (PANEL, MomentSums(sums.n, sums.mean + shift, sums.products))}


def linear(number, constant=0.0, weight=1.0):
    return Linear(CELL, ((PANEL[number], weight),), constant)


def test_a_constant_moves_the_mean_and_nothing_else():
    one = linear(0, 2.5, -3.0).evidence(measured(), 1e-3)
    plain = linear(0, 0.0, -3.0).evidence(measured(), 1e-3)
    assert one.estimate == pytest.approx(plain.estimate + 2.5, rel=1e-14)
    assert one.interval.low == pytest.approx(plain.interval.low + 2.5)
    assert one.interval.high == pytest.approx(plain.interval.high + 2.5)
    assert one.standard_error == plain.standard_error
    assert linear(0, 2.5, -3.0).needed(measured(), 0.01, 1e-3, 0.0) == linear(0, 0.0, -3.0).needed(
        measured(), 0.01, 1e-3, 0.0
    )
    exact = {CELL.name: (PANEL, MomentSums.exact(np.array([0.1, 0.5])))}
    assert linear(0, 2.5, -3.0).exact(exact) == pytest.approx(2.2)


@pytest.mark.parametrize(
    "make",
    [
        lambda a: Ratio(linear(0, a), linear(1, a)),
        lambda a: LogSlope((0.0, 1.0), (linear(0, a), linear(1, a)), (1.0, 1.5)),
    ],
    ids=["ratio", "slope"],
)
def test_a_constant_is_a_quantity_that_is_always_the_same(make):
    with_it = make(0.75).evidence(measured(), 1e-3)
    moved = make(0.0).evidence(measured(0.75), 1e-3)
    assert with_it.estimate == pytest.approx(moved.estimate, rel=1e-12)
    assert with_it.interval.low == pytest.approx(moved.interval.low, rel=1e-9)
    assert with_it.interval.high == pytest.approx(moved.interval.high, rel=1e-9)
    assert with_it.standard_error == pytest.approx(moved.standard_error, rel=1e-9)
    assert make(0.75).exact(measured()) == pytest.approx(with_it.estimate)


def test_a_mean_of_gaps_is_as_wide_as_gaps_can_be():
    assert mean_of(CELL, PANEL[0]).width == pytest.approx(CELL.largest_gap)
    assert linear(1, 0.0, -4.0).width == 4.0
    n = linear(1).needed(measured(), 0.02, 1e-3, 0.5)
    assert n == ceil(n)
    assert 2 < n < 100_000


def test_an_excess_within_one_bin_is_inside_the_interval():
    cell = Training(triple(), 2, 10, Constant(0.1))
    pits = tuple(Pit(Estimator(name), 10, (0.003,)) for name in ("grpo", "oracle"))
    rng = np.random.default_rng(0)
    # Both laws lie in the first bin of the third, which sets the edges; their excess is ¼ there.
    draws = np.stack([rng.random(100_000), np.sqrt(rng.random(100_000))], axis=1) / BINS
    counts = {
        pit.label: np.histogram(column, bins=BINS, range=(0, 1))[0]
        for pit, column in zip(pits, draws.T, strict=True)
    }
    block = MomentSums.of(draws)
    sums = {cell.name: (pits, MomentSums(block.n, block.mean, block.products, counts))}
    assert LawExcess(cell, *pits).evidence(sums, 1e-3).interval.contains(0.25)


def test_a_slope_goes_through_runs_of_unequal_length(tmp_path):
    grpo, ground = Estimator("grpo"), triple()
    cells = [
        Training(ground, 2, steps, Constant(0.1), start=ground.maximiser + 0.3) for steps in (5, 10)
    ]
    points = tuple(mean_of(cell, Gap(grpo, cell.steps)) for cell in cells)
    check = Check(
        "slope",
        "made-up",
        LogSlope((0.0, 1.0), points, (0.01, 0.01)),
        equal(0.0, scale=1.0, digits=1.0, relative_margin=1.0),
    )
    claim = Claim("limit_law", (), (check,))
    run = run_claims([claim], Options("smoke"), Store(tmp_path))
    assert run.claims[0].verdict == Verdict.CONFIRMED


@pytest.mark.parametrize(
    "make",
    [lambda x: Gap(Estimator("grpo"), 1, x), lambda x: GapTransform(Estimator("grpo"), 1, x)],
)
@pytest.mark.parametrize("value", [-1.0, 0.0, float("nan"), float("inf")])
def test_a_scale_or_rate_that_is_not_positive_is_refused(make, value):
    with pytest.raises(InputError, match=r"(scale|rate) .*must be (positive|finite)"):
        make(value)


def test_a_rival_within_the_predictions_own_error_cannot_be_told_apart():
    statement = equal(1.0, {"near": 1.01, "far": 1.2}, digits=0.05)
    assert not statement.distinguishable("near")
    assert statement.distinguishable("far")
