"""Curves: the points of figures are measured as checks are, and say what is missing."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from simulations import STEMS, Suite, curves
from simulations.evidence import (
    Evidence,
    Interval,
    Linear,
    Options,
    Point,
    Ratio,
    Store,
    load_curves,
    mean_of,
    run_points,
)
from simulations.evidence.curves import _interval, tidy
from simulations.evidence.options import LARGEST_BLOCK, SIZES
from simulations.evidence.results import CURVE_COLUMNS, CURVES_FILE
from simulations.problems import mse_of
from tests.support.refusals import refuses
from ustat_pg.engines import GradientCell
from ustat_pg.predictions import gradient_mse


@pytest.fixture(scope="module")
def problem():
    return Suite().skewed.problem


def points(problem, enumerate=True):
    value = gradient_mse(problem.moments(), "grpo", 3).mse
    functional = mean_of(GradientCell(problem, 3), mse_of("grpo"))
    return [
        Point("f", "grpo", {"group_size": 3}, value, functional, enumerate),
        Point("f", "grpo", {"group_size": 4}, gradient_mse(problem.moments(), "grpo", 4).mse),
        Point("f", "unpredicted", {"group_size": 3}, None, functional),
    ]


def test_a_point_is_what_the_engine_measures(problem, tmp_path):
    frame = run_points(points(problem), Options("smoke"), Store(tmp_path))
    many = int(SIZES["smoke"].point_blocks * LARGEST_BLOCK)
    drawn = GradientCell(problem, 3).measure("cpu", (mse_of("grpo"),), replications=many)
    row = frame.iloc[0]
    assert row.estimate == drawn.mean[0]
    assert row.replications == many
    assert row.low < row.prediction < row.high
    assert row.exact == pytest.approx(row.prediction, rel=1e-12)
    # A wrong curve would be seen in the figure: its gap is far outside the interval.
    assert not row.low < row.prediction * 1.05 < row.high


def test_where_draws_are_dear_a_point_has_all_that_verdicts_drew(problem, tmp_path, monkeypatch):
    name, few = GradientCell(problem, 3).name, int(SIZES["smoke"].point_blocks * LARGEST_BLOCK)
    drawn = {name: 3 * few, "a cell of no point": few}
    for looks, wanted in ((1, few), (4, 3 * few)):
        monkeypatch.setattr(GradientCell, "looks", looks)
        frame = run_points(points(problem), Options("smoke"), Store(tmp_path), drawn=drawn)
        assert frame.replications.iloc[0] == wanted


def test_what_is_not_there_is_missing_and_not_zero(problem, tmp_path):
    frame = run_points(points(problem, False), Options("smoke"), Store(tmp_path))
    assert frame.estimate.isna().tolist() == [False, True, False]
    assert frame.exact.isna().all()
    assert frame.prediction.isna().tolist() == [False, False, True]
    exact_only = run_points(points(problem), Options("smoke", "exact"), Store(tmp_path))
    assert exact_only.estimate.isna().all()
    assert exact_only.exact.notna().tolist() == [True, False, False]


def test_curves_are_read_back_as_they_were(problem, tmp_path):
    frame = run_points(points(problem), Options("smoke"), Store(tmp_path / "blocks"))
    (tmp_path / CURVES_FILE).write_text(frame.to_csv(index=False))
    pd.testing.assert_frame_equal(load_curves(tmp_path), frame, check_dtype=False)


def test_a_run_without_curves_is_read_back_and_joined(problem, tmp_path):
    none = run_points([], Options("smoke"), Store(tmp_path / "blocks"))
    (tmp_path / CURVES_FILE).write_text(none.to_csv(index=False))
    read = load_curves(tmp_path)
    assert read.empty
    assert set(read) >= CURVE_COLUMNS
    some = run_points(points(problem, False), Options("smoke", "exact"), Store(tmp_path / "blocks"))
    for joined in (tidy([read, some]), tidy([some, none])):
        pd.testing.assert_frame_equal(joined, some)


@pytest.mark.parametrize("stem", STEMS)
def test_every_result_has_points_that_are_distinct(stem):
    built = curves(stem, Suite("smoke"))
    assert built
    keys = [(p.figure, p.series, *sorted(p.at.items())) for p in built]
    assert len(set(keys)) == len(keys)
    assert any(p.functional is not None for p in built)


def test_the_map_has_the_correlation_that_it_says():
    for point in curves("optimality", Suite("smoke")):
        if point.figure != "map" or point.series != "oracle":
            continue
        problem = point.functional.cells[0].problem
        probs, chance = problem.policy.probs[0], problem.mean_rewards[0]
        norms = problem.policy.squared_norms[0]
        covariance = probs @ (norms * chance) - (probs @ norms) * (probs @ chance)
        spread = probs @ norms**2 - (probs @ norms) ** 2
        value = probs @ chance
        correlation = covariance / np.sqrt(spread * value * (1 - value))
        assert value == pytest.approx(0.5)
        assert correlation == pytest.approx(point.at["correlation"], abs=1e-12)


@pytest.mark.parametrize("prediction", [float("nan"), float("inf")])
def test_a_point_has_something_to_show(prediction):
    refuses("f: a point needs a prediction or a functional", Point, "f", "s", {})
    refuses("f: prediction .* is not finite", Point, "f", "s", {}, prediction)
    assert not Point("f", "s", {}, 1.0).enumerate


def test_a_value_that_is_no_number_is_missing_from_a_figure(problem, tmp_path):
    """One whose enumeration or draws give none is no 0."""
    cell = GradientCell(problem, 3)
    none = Ratio(mean_of(cell, mse_of("grpo")), Linear(cell, ((mse_of("grpo"), 0.0),)))
    frame = run_points([Point("f", "s", {}, 1.0, none, True)], Options("smoke"), Store(tmp_path))
    row = frame.iloc[0]
    assert np.isnan([row.exact, row.estimate]).all()
    assert (row.low, row.high) == (-np.inf, np.inf)


def test_the_columns_of_a_curve_are_its_places_then_what_was_measured(problem, tmp_path):
    frame = run_points(points(problem), Options("smoke", "exact"), Store(tmp_path))
    measured = ["prediction", "exact", "estimate", "standard_error", "low", "high", "replications"]
    assert list(frame.columns) == ["figure", "series", "group_size", *measured]
    assert tidy([frame, frame]).index.tolist() == list(range(6))


# Intervals.


def evidence_of(values):
    """Evidence of a mean; its own interval is not a figure's."""
    error = float(np.std(values, ddof=1) / np.sqrt(len(values)))
    return Evidence(float(np.mean(values)), Interval(-np.inf, np.inf), error, len(values), 0.05)


@pytest.mark.parametrize("n", [2, 8, 32, 5_000])
def test_a_point_has_students_interval(n):
    values = np.random.default_rng(n).normal(size=n)
    result = _interval(evidence_of(values))
    known = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (result.low, result.high) == pytest.approx((known.low, known.high), rel=1e-10)
    # A normal one would be too short: by far at two runs, and seen at 32.
    if n <= 32:
        assert result.half_width > 1.02 * 1.96 * values.std(ddof=1) / np.sqrt(n)


@pytest.mark.parametrize(
    "evidence",
    [
        Evidence(0.5, Interval(0.0, 1.0), 0.0, 1, 0.05),
        Evidence(float("nan"), Interval(-np.inf, np.inf), np.inf, 50, 0.05),
    ],
    ids=["one run", "no number"],
)
def test_one_run_and_no_number_have_no_interval_made_up(evidence):
    assert _interval(evidence) == Interval(-np.inf, np.inf)
