"""Functionals of sums that are written down: values, intervals and plans by their formulas."""

from dataclasses import replace
from math import inf, isfinite, isnan, log, nan, sqrt
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest

from simulations.evidence import (
    Check,
    Claim,
    Forecast,
    Known,
    Linear,
    Options,
    Ratio,
    equal,
    mean_of,
    replications_needed,
    run_claims,
)
from simulations.evidence.functionals import (
    Eigenvalue,
    EverySample,
    Extrapolation,
    LogSlope,
)
from simulations.evidence.laws import BINS, LawDistance, LawExcess, LawShare
from simulations.evidence.planning import MOST
from simulations.evidence.planted import COIN
from simulations.evidence.store import Memory
from tests.support.refusals import refuses
from ustat_pg.engines import Estimator, GradientCell, MomentSums, SquaredError
from ustat_pg.predictions import gradient_mse, oracle_ratio
from ustat_pg.problems import random_problem

ONE, TWO = GradientCell(COIN, 1), GradientCell(COIN, 2)
FIRST, SECOND = SquaredError(Estimator("vanilla")), SquaredError(Estimator("constant", 0.5))
ALPHA = 0.01
RNG = np.random.default_rng(8)
VALUES = {
    ONE: np.clip(RNG.normal([0.09, 0.11], 0.01, size=(400, 2)), 0.0, None),
    TWO: np.clip(RNG.normal([0.045, 0.052], 0.01, size=(300, 2)), 0.0, None),
}
SUMS = {cell.name: ((FIRST, SECOND), MomentSums.of(rows)) for cell, rows in VALUES.items()}
BOTH = Linear(ONE, ((FIRST, 2.0), (SECOND, -3.0)), 0.7)
MEAN, HALF = mean_of(ONE, FIRST), mean_of(TWO, FIRST)


def mean(cell, column=0):
    return float(VALUES[cell][:, column].mean())


def test_a_combination_of_two():
    rows = 0.7 + VALUES[ONE] @ [2.0, -3.0]
    assert BOTH.moments(SUMS) == (400, pytest.approx(rows.mean()), pytest.approx(rows.var(ddof=1)))
    proof = BOTH.evidence(SUMS, ALPHA, SUMS)
    assert proof.estimate == BOTH.exact(SUMS) == pytest.approx(rows.mean())
    assert proof.standard_error == pytest.approx(rows.std(ddof=1) / 20)
    assert (proof.replications, proof.alpha) == (400, ALPHA)
    ends = [ONE.ends(quantity) for quantity in (FIRST, SECOND)]
    low, high = 0.7 + 2 * ends[0][0] - 3 * ends[1][1], 0.7 + 2 * ends[0][1] - 3 * ends[1][0]
    assert BOTH.range == pytest.approx((low, high))
    assert Linear(ONE, ((FIRST, 0.0),), 2.0).range == (2.0, 2.0)
    rounding = 2 * ONE.rounding(FIRST) + 3 * ONE.rounding(SECOND)
    assert BOTH.rounding == pytest.approx(rounding)
    # A pilot's variance is taken half as large again, or whatever the reserve is, and never less.
    forecast = BOTH.forecast(SUMS)
    assert forecast.variance > rows.var(ddof=1)
    assert (forecast.low, forecast.high) == BOTH.range
    assert BOTH.needed(SUMS, 0.01, ALPHA, 0.0) == replications_needed(0.01, forecast, ALPHA)
    assert BOTH.cells == (ONE,)
    assert BOTH.quantities == (FIRST, SECOND)
    twice = Linear(ONE, ((FIRST, 1.0), (FIRST, 1.0)))
    assert twice.exact(SUMS) == pytest.approx(2 * mean(ONE))


def test_an_identity_has_an_interval_of_no_width():
    identity = EverySample(ONE, ((FIRST, 1.0),), limit=1e-9)
    proof = identity.evidence(SUMS, ALPHA, SUMS)
    assert proof.interval.low == proof.interval.high == proof.estimate == pytest.approx(mean(ONE))
    assert (proof.replications, identity.rounding) == (400, 1e-9)
    assert identity.needed(SUMS, 1e-3, ALPHA, 0.0) == ONE.block
    assert not identity.errs
    assert MEAN.errs


def test_what_nothing_draws_is_a_number_on_no_cell():
    known = Known(0.3)
    assert (known.cells, known.quantities, known.exact({})) == ((), (), 0.3)
    proof = known.evidence({}, ALPHA, {})
    assert (proof.interval.low, proof.interval.high, proof.replications) == (0.3, 0.3, 0)
    assert not known.errs


@pytest.mark.parametrize(
    ("truth", "wrong", "verdict"),
    [(0.3, 0.4, "CONFIRMED"), (0.31, 0.4, "REFUTED"), (0.3, 0.3 + 1e-11, "INCONCLUSIVE")],
)
def test_a_claim_of_known_numbers_is_decided_without_a_draw(truth, wrong, verdict):
    check = Check("known", "made-up", Known(0.3), equal(truth, {"other": wrong}))
    run = run_claims([Claim("mse", ("other",), (check,))], Options("smoke"), Memory())
    assert run.claims[0].verdict == verdict
    assert run.plans[0].replications == {}


def test_a_ratio_is_that_of_means_and_its_interval_what_its_excess_allows():
    ratio = Ratio(Linear(ONE, ((FIRST, 1.0),)), Linear(ONE, ((SECOND, 2.0),), 0.05), 0.27)
    bottom = 2 * mean(ONE, 1) + 0.05
    assert ratio.exact(SUMS) == pytest.approx(mean(ONE) / bottom)
    proof = ratio.evidence(SUMS, ALPHA, SUMS)
    assert proof.estimate == ratio.exact(SUMS)
    for end, side in ((proof.interval.low, "low"), (proof.interval.high, "high")):
        excess = Linear(ONE, ((FIRST, 1.0), (SECOND, -2 * end)), -0.05 * end)
        interval = excess.evidence(SUMS, ALPHA, SUMS).interval
        # At the lower end the excess is just above 0, at the upper just below.
        assert (interval.low if side == "low" else interval.high) == pytest.approx(0, abs=1e-12)
    rows = VALUES[ONE]
    off = rows[:, 0] - proof.estimate * (2 * rows[:, 1] + 0.05)
    assert proof.standard_error == pytest.approx(off.std(ddof=1) / 20 / bottom)
    rounding = ONE.rounding(FIRST) + 20 * ONE.rounding(SECOND)
    assert ratio.rounding == pytest.approx(1e-14 + rounding / 0.27, rel=1e-9)
    # In another unit it is so many times as large, and so are its ends.
    for unit in (1e-5, 1e5):
        scaled = replace(ratio, numerator=Linear(ONE, ((FIRST, unit),))).evidence(SUMS, ALPHA, SUMS)
        ends = [unit * proof.interval.low, unit * proof.interval.high]
        assert [scaled.interval.low, scaled.interval.high] == pytest.approx(ends, rel=1e-8)
    none = Ratio(MEAN, Linear(ONE, ((SECOND, 0.0),)))
    assert isnan(none.exact(SUMS))
    below = Ratio(MEAN, Linear(ONE, ((SECOND, -1.0),))).evidence(SUMS, ALPHA, SUMS)
    assert (below.interval.low, below.interval.high) == (-inf, inf)
    assert isnan(below.estimate)
    refuses("must come from the same cell", Ratio, MEAN, HALF)


NORMALS = SimpleNamespace(name="normals", bounded=False, ends=lambda quantity: (-inf, inf))


def bivariate(top, bottom, correlation, n=400, spread=(0.3, 0.2)):
    """Sums of n pairs with these means, standard deviations and correlation."""
    one, other = spread
    covariance = [[one**2, correlation * one * other], [correlation * one * other, other**2]]
    sums = MomentSums(n, np.array([top, bottom]), (n - 1) * np.array(covariance))
    return {"normals": (("top", "bottom"), sums)}


RATIO = Ratio(mean_of(NORMALS, "top"), mean_of(NORMALS, "bottom"))


@pytest.mark.parametrize("correlation", [-0.9, -0.3, 0.0, 0.9, 0.99])
@pytest.mark.parametrize("top", [2.0, 0.0, -0.5])
@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_a_ratio_has_fiellers_interval_at_every_correlation(correlation, top, scale):
    """The roots of (N - r D)^2 = k (Vnn - 2 r Vnd + r^2 Vdd), by many digits."""
    sums = bivariate(top * scale, 1.0, correlation, spread=(0.3 * scale, 0.2))
    found = RATIO.evidence(sums, ALPHA, sums).interval
    with mpmath.workdps(40):
        k = 2 * mpmath.log(2 / mpmath.mpf(ALPHA)) / 400 * mpmath.mpf(399) / 400
        top, one, other = mpmath.mpf(top * scale), mpmath.mpf(0.3 * scale), mpmath.mpf(0.2)
        a, b, c = 1 - k * other**2, top - k * correlation * one * other, top**2 - k * one**2
        root = mpmath.sqrt(b**2 - a * c)
        known = [float((b - root) / a), float((b + root) / a)]
    assert [found.low, found.high] == pytest.approx(known, rel=1e-9, abs=1e-12 * scale)


@pytest.mark.parametrize("bottom", [1e-3, 0.0, -1e-3, -1.0])
@pytest.mark.parametrize("correlation", [-0.9, 0.0, 0.9])
def test_a_ratio_whose_denominator_may_be_0_is_not_known(bottom, correlation):
    sums = bivariate(2.0, bottom, correlation)
    proof = RATIO.evidence(sums, ALPHA, sums)
    assert isnan(proof.estimate)
    assert (proof.interval.low, proof.interval.high) == (-inf, inf)
    assert (proof.standard_error, proof.replications, proof.alpha) == (inf, 400, ALPHA)
    assert bottom > 0 or RATIO.needed(sums, 0.1, ALPHA, 2.0) == MOST


def test_a_ratio_whose_denominator_is_just_known_is_bounded():
    """At k times its own standard error from 0."""
    reach = 0.2 * sqrt(2 * log(2 / ALPHA) / 400 * 399 / 400)
    for times, known in ((0.999, False), (1.001, True)):
        sums = bivariate(2.0, times * reach, 0.9)
        assert isfinite(RATIO.evidence(sums, ALPHA, sums).interval.low) == known


LOST = {
    cell.name: (
        (FIRST, SECOND),
        MomentSums(block.n, block.mean * [nan, 1.0], block.products * [[nan, nan], [nan, 1.0]]),
    )
    for cell, block in ((cell, SUMS[cell.name][1]) for cell in VALUES)
}
"""The same sums where the first quantity is no number."""


@pytest.mark.parametrize(
    "functional",
    [
        Known(nan),
        Known(inf),
        MEAN,
        BOTH,
        EverySample(ONE, ((FIRST, 1.0),), limit=1e-9),
        Ratio(MEAN, mean_of(ONE, SECOND)),
        Ratio(mean_of(ONE, SECOND), MEAN),
        LogSlope((0.0, 1.0), (mean_of(ONE, SECOND), HALF), (0.1, 0.1)),
        Extrapolation((mean_of(ONE, SECOND), HALF), (2.0, -1.0)),
        Eigenvalue(((MEAN, mean_of(ONE, SECOND), HALF),), (1.0,), 1),
    ],
    ids=lambda functional: type(functional).__name__,
)
def test_what_reads_a_mean_that_is_no_number_is_none_and_ends(functional):
    assert not isfinite(functional.exact(LOST))
    proof = functional.evidence(LOST, ALPHA, SUMS)
    assert isnan(proof.estimate)
    assert (proof.interval.low, proof.interval.high) == (-inf, inf)
    # A pilot that is no number plans what can be planned.
    assert functional.evidence(SUMS, ALPHA, LOST).interval.low == -inf or isinstance(
        functional, Known | EverySample
    )
    assert functional.needed(LOST, 0.1, ALPHA, 0.1) in (0, MOST, getattr(ONE, "block", 0))


def test_another_quantity_that_is_no_number_disturbs_nothing():
    for sound in (mean_of(ONE, SECOND), Ratio(mean_of(ONE, SECOND), Linear(ONE, ((SECOND, 2.0),)))):
        assert sound.exact(LOST) == sound.exact(SUMS)
        assert sound.evidence(LOST, ALPHA, LOST) == sound.evidence(SUMS, ALPHA, SUMS)


def test_a_slope_is_that_of_least_squares_and_its_ends_those_of_the_corners():
    x = (0.0, 1.0, 3.0)
    points = (MEAN, HALF, mean_of(ONE, SECOND))
    slope = LogSlope(x, points, (0.09, 0.045, 0.11))
    values = [mean(ONE), mean(TWO), mean(ONE, 1)]
    assert slope.exact(SUMS) == pytest.approx(np.polyfit(x, np.log(values), 1)[0])
    proof = slope.evidence(SUMS, ALPHA, SUMS)
    parts = [point.evidence(SUMS, ALPHA / 3, SUMS) for point in points]
    weights = [np.polyfit(x, np.eye(3)[i], 1)[0] for i in range(3)]
    ends = np.array(
        [
            sorted(w * log(end) for end in (part.interval.low, part.interval.high))
            for w, part in zip(weights, parts, strict=True)
        ]
    )
    assert proof.interval.low == pytest.approx(ends[:, 0].sum())
    assert proof.interval.high == pytest.approx(ends[:, 1].sum())
    error = sqrt(
        sum(
            (w * part.standard_error / part.estimate) ** 2
            for w, part in zip(weights, parts, strict=True)
        )
    )
    assert proof.standard_error == pytest.approx(error)
    assert proof.replications == 1100
    assert slope.cells == (ONE, TWO)
    assert slope.quantities == (FIRST, FIRST, SECOND)
    rounding = sum(
        abs(w) * point.rounding / value
        for w, point, value in zip(weights, points, slope.predicted, strict=True)
    )
    assert slope.rounding == pytest.approx(1e-14 + rounding, rel=1e-9)
    # Each point gets so much of the margin that the whole moves by no more.
    share = 0.3 / sum(map(abs, weights))
    relative = 0.95 * (1 - np.exp(-share))
    assert slope.needed(SUMS, 0.3, ALPHA, 0.0) == max(
        point.needed(SUMS, relative * value, ALPHA / 3, value)
        for point, value in zip(points, slope.predicted, strict=True)
    )
    negative = LogSlope((0.0, 1.0), (MEAN, Linear(ONE, ((FIRST, -1.0),))), (1.0, 1.0))
    assert isnan(negative.exact(SUMS))
    assert negative.evidence(SUMS, ALPHA, SUMS).interval.high == inf


def test_an_extrapolation_adds_ends_up():
    found = Extrapolation((HALF, MEAN), (2.0, -1.0))
    assert found.exact(SUMS) == pytest.approx(2 * mean(TWO) - mean(ONE))
    proof = found.evidence(SUMS, ALPHA, SUMS)
    half, whole = (point.evidence(SUMS, ALPHA / 2, SUMS) for point in (HALF, MEAN))
    assert proof.estimate == pytest.approx(found.exact(SUMS))
    assert proof.interval.low == pytest.approx(2 * half.interval.low - whole.interval.high)
    assert proof.interval.high == pytest.approx(2 * half.interval.high - whole.interval.low)
    assert proof.standard_error == pytest.approx(
        sqrt(4 * half.standard_error**2 + whole.standard_error**2)
    )
    assert proof.replications == 700
    assert found.rounding == pytest.approx(2 * HALF.rounding + MEAN.rounding)
    assert found.needed(SUMS, 0.03, ALPHA, 0.0) == max(
        point.needed(SUMS, 0.01, ALPHA / 2, 0.0) for point in (HALF, MEAN)
    )


def test_eigenvalues_move_by_no_more_than_the_matrix():
    entries = (MEAN, mean_of(ONE, SECOND), HALF)
    twice = Eigenvalue((entries, entries[::-1]), (1.0, -2.0), 1)
    a, b, c = mean(ONE), mean(ONE, 1), mean(TWO)
    first, second = (np.linalg.eigvalsh([[x, b], [b, y]])[1] for x, y in ((a, c), (c, a)))
    assert twice.exact(SUMS) == pytest.approx(first - 2 * second)
    proof = twice.evidence(SUMS, ALPHA, SUMS)
    parts = [entry.evidence(SUMS, ALPHA / 6, SUMS) for entry in entries]
    middle = [(part.interval.low + part.interval.high) / 2 for part in parts]
    x, y, z = (part.interval.half_width for part in parts)
    half = 3 * sqrt(x**2 + 2 * y**2 + z**2)
    centre = -np.linalg.eigvalsh([[middle[0], middle[1]], [middle[1], middle[2]]])[1]
    assert proof.interval.low == pytest.approx(min(centre - half, proof.estimate))
    assert proof.interval.high == pytest.approx(max(centre + half, proof.estimate))
    x, y, z = (part.standard_error for part in parts)
    assert proof.standard_error == pytest.approx(3 * sqrt(x**2 + 2 * y**2 + z**2))
    assert twice.needed(SUMS, 0.06, ALPHA, 0.0) == max(
        entry.needed(SUMS, 0.06 / 6, ALPHA / 6, 0.0) for entry in entries
    )
    least = Eigenvalue((entries,), (1.0,), 0)
    assert least.exact(SUMS) == pytest.approx(np.linalg.eigvalsh([[a, b], [b, c]])[0])


# Plans, of draws.

PROBLEM = random_problem(5, "one-context")
PANEL = tuple(SquaredError(Estimator(name)) for name in ("grpo", "oracle"))
CELLS = [GradientCell(PROBLEM, size) for size in (2, 4)]
ERRORS = [mean_of(cell, PANEL[0]) for cell in CELLS]
TRUE = [gradient_mse(PROBLEM, "grpo", cell.group_size).mse for cell in CELLS]


@pytest.mark.parametrize(
    ("functional", "prediction", "margin"),
    [
        (ERRORS[0], TRUE[0], 0.02),
        (Ratio(ERRORS[0], mean_of(CELLS[0], PANEL[1])), oracle_ratio(PROBLEM, 2), 0.2),
        (LogSlope((log(2), log(4)), tuple(ERRORS), tuple(TRUE)), -1.5, 0.2),
    ],
    ids=["mean", "ratio", "slope"],
)
def test_planned_replications_reach_the_margin(functional, prediction, margin):
    def drawn(n, seed):
        return {
            cell.name: (PANEL, cell.measure("cpu", PANEL, seed=seed, replications=n))
            for cell in CELLS
        }

    pilots = drawn(8192, 1)
    n = functional.needed(pilots, margin, 1e-5, prediction)
    half = functional.evidence(drawn(n, 2), 1e-5, pilots).interval.half_width
    assert margin / 2 < half <= margin


# Laws, of histograms.

CELL, PIT, OTHER = (SimpleNamespace(name=name, label=name) for name in ("runs", "pit", "other"))


def histogram(*counts):
    """Runs in bins, by the share of the bins that lie before each part."""
    bins = np.zeros(BINS, dtype=int)
    for place, count in counts:
        bins[int(place * BINS)] += count
    return bins


def law(first, second=None):
    counts = {"pit": first, "other": second}
    return {"runs": ((), SimpleNamespace(n=int(first.sum()), counts=counts))}


def band(n, alpha):
    return sqrt(log(2 / alpha) / (2 * n))


def test_a_distance_of_laws():
    sums = law(histogram((0.25, 300), (0.5, 700)))
    proof = LawDistance(CELL, PIT).evidence(sums, ALPHA, sums)
    # Beyond the middle all runs lie below, and half should: at the edge of that bin.
    assert proof.estimate == pytest.approx(0.5 - 1 / BINS)
    assert proof.interval.low == pytest.approx(proof.estimate - band(1000, ALPHA))
    assert proof.interval.high == pytest.approx(proof.estimate + band(1000, ALPHA) + 1 / BINS)
    assert proof.standard_error == pytest.approx(0.5 / sqrt(1000))
    n = LawDistance(CELL, PIT).needed(sums, 0.1, ALPHA, 0.0)
    assert band(n, ALPHA) <= 0.1 - 1 / BINS < band(n - 1, ALPHA)
    assert LawDistance(CELL, PIT).needed(sums, 1 / BINS, ALPHA, 0.0) > 10**12
    even = law(np.full(BINS, 2))
    proof = LawDistance(CELL, PIT).evidence(even, ALPHA, even)
    assert (proof.estimate, proof.interval.low) == (pytest.approx(0.0, abs=1e-12), 0.0)


def test_an_excess_of_laws():
    sums = law(histogram((0.25, 600), (0.75, 400)), histogram((0.5, 1000)))
    proof = LawExcess(CELL, PIT, OTHER).evidence(sums, ALPHA, sums)
    assert proof.estimate == pytest.approx(0.6)
    assert proof.interval.low == pytest.approx(0.6 - 2 * band(1000, ALPHA / 2))
    assert proof.interval.high == pytest.approx(0.6 + 2 * band(1000, ALPHA / 2))
    assert proof.standard_error == pytest.approx(sqrt(0.5 / 1000))
    turned = law(histogram((0.5, 1000)), histogram((0.25, 1000)))
    assert LawExcess(CELL, PIT, OTHER).evidence(turned, ALPHA, turned).estimate == 0.0
    n = LawExcess(CELL, PIT, OTHER).needed(sums, 0.1, ALPHA, 0.0)
    assert 2 * band(n, ALPHA / 2) <= 0.1 - 2 / BINS < 2 * band(n - 1, ALPHA / 2)


def test_laws_have_no_exact_value_and_say_what_they_read():
    """The rounding is the cdf's own."""
    runs = law(np.full(BINS, 1), np.full(BINS, 1))
    for functional, read in (
        (LawDistance(CELL, PIT), (PIT,)),
        (LawExcess(CELL, PIT, OTHER), (PIT, OTHER)),
        (LawShare(CELL, PIT, 0.5), (PIT,)),
    ):
        assert (functional.cells, functional.quantities) == ((CELL,), read)
        assert functional.rounding == 1e-9
        with pytest.raises(NotImplementedError):
            functional.exact(runs)
        for margin in (0.0, -1.0, nan):
            # Between the edges of a bin nothing is known.
            assert functional.needed(runs, margin, ALPHA, 0.5) == MOST


@pytest.mark.parametrize(("count", "n"), [((0.0, 1), 1), ((0.999, 1), 1), ((0.0, 4), 4)])
def test_laws_of_few_runs_reach_no_farther_than_a_law_can(count, n):
    sums = law(histogram(count), histogram((0.5, n)))
    for functional in (
        LawDistance(CELL, PIT),
        LawExcess(CELL, PIT, OTHER),
        LawShare(CELL, PIT, 0.5),
    ):
        proof = functional.evidence(sums, ALPHA, sums)
        assert 0.0 <= proof.interval.low <= proof.estimate <= proof.interval.high <= 1.0
        assert (proof.replications, proof.alpha) == (n, ALPHA)


def test_a_share_below_a_quantile():
    sums = law(histogram((0.1, 250), (0.3, 150), (0.7, 600)))
    share = LawShare(CELL, PIT, 0.5)
    proof = share.evidence(sums, ALPHA, sums)
    assert proof.estimate == pytest.approx(0.4)
    assert proof.standard_error == pytest.approx(sqrt(0.4 * 0.6 / 999))
    forecast = Forecast(0.5, 0.25, 0.0, 1.0)
    interval = forecast.interval(1000, 0.4, 0.24 * 1000 / 999, ALPHA)
    assert (proof.interval.low, proof.interval.high) == (interval.low, interval.high)
    forecast = Forecast(0.3, 0.21, 0.0, 1.0)
    assert share.needed(sums, 0.02, ALPHA, 0.3) == replications_needed(0.02, forecast, ALPHA)
