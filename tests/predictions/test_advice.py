"""The record of an advice: its table, its picture, its sentence."""

from dataclasses import replace
from html import escape

import numpy as np
import pytest

from simulations.interior_problems.location_bandit import LocationBandit
from tests.support.refusals import refuses
from ustat_pg import gradient_covariance, gradient_mse, group_size_advice
from ustat_pg.advice import advise
from ustat_pg.explanations import explain
from ustat_pg.predictions import (
    AdaptiveAdvice,
    MseConstants,
    count_table,
    grpo_beats_vanilla,
    mse_constants,
    oracle_ratio,
)
from ustat_pg.problems import digit_addition, random_problem

PROBLEM = random_problem(3, "binary")


def test_a_problem_stands_for_its_moments():
    moments = PROBLEM.moments()
    assert gradient_mse(PROBLEM, "std", 4).mse == gradient_mse(moments, "std", 4).mse
    assert "np." not in repr(gradient_mse(PROBLEM, "std", 4))
    for function, words in (
        (gradient_covariance, ("grpo", 4)),
        (oracle_ratio, (4,)),
        (grpo_beats_vanilla, (4,)),
    ):
        np.testing.assert_array_equal(function(PROBLEM, *words), function(moments, *words))
    assert mse_constants(PROBLEM) == mse_constants(moments)
    assert mse_constants(moments=PROBLEM) == mse_constants(moments)
    np.testing.assert_array_equal(
        count_table("best", 4, PROBLEM).successes, count_table("best", 4, moments).successes
    )
    assert explain("std", group_size=4, moments=PROBLEM).mse == (
        explain("std", group_size=4, moments=moments).mse
    )


@pytest.mark.parametrize("what", [None, 3, LocationBandit, digit_addition(4, 1), type(PROBLEM)])
def test_problems_without_moments_are_refused(what):
    for ask in (lambda: gradient_mse(what, "grpo", 4), lambda: group_size_advice(what, 64)):
        refuses("they must be Moments, or a problem that has them", ask)
    refuses(
        "skewed: its name must end in .json or .npz, or begin with ustat:",
        gradient_mse,
        "skewed",
        "grpo",
        4,
    )


@pytest.mark.parametrize(
    ("ratio", "bound", "interval", "said"),
    [
        # Between .75 and .93 of the outputs: 7% to 25% are saved.
        (0.84, 0.6, (0.75, 0.93), "saves 16% of the outputs (95%: 7% to 25%) that a fixed group"),
        (0.84, 0.6, None, "saves 16% of the outputs that a fixed group of 5 needs"),
        (0.84, 0.6, (0.75, 0.93), "sizes by known pass rates would save 40%."),
        (0.97, 0.97, (0.951, 0.99), "within 5% of sizes by known pass rates: adaptive groups"),
        (0.97, 0.97, (0.949, 0.99), "two_stage saves 3% of the outputs (95%: 1% to 5%)"),
        (0.97, 0.949, (0.951, 0.99), "within 5% of the best two-stage plan, '3+2 if mixed'"),
        (0.97, 0.949, (0.951, 0.99), "by known pass rates would save 5%."),
        (
            0.84,
            0.6,
            (0.7, 1.01),
            "fixed group of 5: the best plan, '3+2 if mixed', needs 0.84 times its",
        ),
        (0.84, 0.6, (0.7, 1.01), "outputs (95%: 0.7 to 1)."),
        (0.84, 0.6, (0.7, np.inf), "outputs (95%: 0.7 and more)."),
        (0.84, 0.6, (0.7, 1.0), "(95%: 0% to 30%)"),
        (0.84, 1.2, None, "sizes by known pass rates would save 0%."),
    ],
)
def test_a_plans_sentence_has_its_numbers(ratio, bound, interval, said):
    advice = AdaptiveAdvice(5, "3+2 if mixed", 4.4, ratio, bound, interval)
    assert said in str(advice).replace("\n", " ")
    rows = str(advice).splitlines()
    assert [row.split()[-1] for row in rows[1:4]] == ["1.000", f"{ratio:.3f}", f"{bound:.3f}"]
    assert "3+2 if mixed (4.4 outputs)" in rows[2]


def test_the_frame_has_the_rows_of_the_table():
    advice = group_size_advice(MseConstants(0.01, 0.5, 1.0), 24)
    frame = advice.to_frame()
    assert list(frame.columns) == [
        "group_size", "batch_size", "mse", "ratio_to_best", "frac_reward_zero_std",
    ]  # fmt: skip
    assert frame["group_size"].tolist() == [row.group_size for row in advice.table]
    assert frame["mse"].tolist() == [row.mse for row in advice.table]
    assert frame["frac_reward_zero_std"].isna().all()
    assert frame.dtypes["frac_reward_zero_std"] == np.float64


def test_a_notebook_shows_the_sentence_and_the_best():
    advice = group_size_advice(PROBLEM, 64)
    assert advice._repr_html_() == f"<pre>{escape(str(advice))}</pre>"
    assert "best" in str(advice)
    assert "Use " in str(advice)
    # A long table shows the first row of each octave, and the best.
    long = group_size_advice(MseConstants(0.01, 0.5, 1.0), 2**7 * 3**3 * 5 * 7)
    assert len(long.table) > 24
    assert len(long.shown) < 24
    assert any(long.remark(row) == "best" for row in long.shown)
    assert len(replace(long, table=long.table[:24]).shown) == 24
    assert len(replace(long, table=long.table[:25]).shown) < 24


def test_the_picture_shows_the_table():
    advice = group_size_advice(PROBLEM, 64)
    axes = advice.plot()
    lines = [line.get_xydata() for line in axes.lines]
    np.testing.assert_allclose(
        lines[0], [(row.group_size, row.ratio_to_best) for row in advice.table]
    )
    assert lines[1].tolist() == [[advice.group_size, 1.0]]
    assert advice.plot(axes) is axes


def test_table_and_sentence_use_the_same_least_error():
    """The best real G where none that fits is near it; the best of the table otherwise."""
    far = advise("ustat:uneven", 64).sizes
    assert far.far
    rows = [line.split() for line in str(far).splitlines()[2:4]]
    assert [float(row[3]) for row in rows] == [
        pytest.approx(far.ratio_to_real * row.ratio_to_best, abs=5e-4) for row in far.table[:2]
    ]
    assert f"{float(rows[0][3]):.3g} times the least error" in str(far)
    assert [far.remark(row) for row in far.table[:2]] == ["best that fits", ""]
    near = advise("ustat:uneven", 63).sizes
    assert not near.far
    assert [near.remark(row) for row in near.table if row.group_size == near.group_size] == ["best"]
    assert min(float(line.split()[3]) for line in str(near).splitlines()[2:5]) == 1
