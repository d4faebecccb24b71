"""What the catalogue says about noise holds: each number, and each condition by what breaks without it."""

import numpy as np
import pytest

from ustat_pg.catalogue import catalogue
from ustat_pg.engines import Estimator, GradientCell, SquaredError
from ustat_pg.moments.record import Moments
from ustat_pg.predictions import best_table, count_table, gradient_mse
from ustat_pg.problems import SoftmaxBandit

FAMILIES = catalogue().families
SIZES = (2, 3, 4, 6, 8, 12, 16)
RATES = np.concatenate([np.geomspace(1e-4, 0.1, 25), np.linspace(0.15, 0.5, 8)])
SKEWED = SoftmaxBandit.bernoulli([0.8, 0.1, 0.05, 0.05], [1, 0, 0, 0])
"""Wrong outputs have the long scores."""


def prompt(rate):
    """Scores of norm 1, a gradient that is small beside the noise."""
    variance, one = np.array([rate * (1 - rate)]), np.ones(1)
    small = 1e-6 * variance
    return Moments(
        one, np.array([rate]), variance, one, 0 * one, variance, small, float(small[0]), (0.0, 1.0)
    )


def over_rloo(name, size, rate):
    """The noise over that of RLOO, of a prompt with scores of equal norms and a small gradient."""
    own, rloo = (gradient_mse(prompt(rate), each, size).noise_to_signal for each in (name, "grpo"))
    return own / rloo


def extremes(name, sizes, rates=RATES):
    found = [over_rloo(name, size, rate) for size in sizes for rate in rates]
    return min(found), max(found)


@pytest.mark.parametrize(("name", "most"), [("std", 1.1), ("std-ddof1", 1.1), ("maxrl", 1.4)])
def test_a_range_of_noise_is_kept_at_every_pass_rate(name, most):
    assert f"with scores of equal norms, 1 to {most} times that of RLOO" in FAMILIES[name].noise
    low, high = extremes(name, (*SIZES, 64, 128))
    assert low > 1 - 1e-9
    assert most - 0.1 < high < most


def test_the_noise_of_the_others_deviation_has_the_sizes_that_are_said():
    words = FAMILIES["others-std"].noise
    assert "up to 1.9 times RLOO's in groups of 16" in words
    assert "up to 3.6 times at G = 128" in words
    assert 1.85 < extremes("others-std", SIZES)[1] < 1.9
    assert extremes("others-std", (128,))[1] == pytest.approx(3.6, abs=0.05)
    low, high = extremes("others-std", SIZES, (0.3, 0.4, 0.5))
    assert 0.9 < low < high < 1.05


def test_the_noise_of_the_two_baselines_of_pass_at_k_is_as_said():
    assert "1.7 times as large at pass rate .5, and 8 times at .9" in FAMILIES["gain-at-k"].noise
    for rate, times in ((0.5, 1.7), (0.9, 8)):
        both = [over_rloo(f"{name}:2", 8, rate) for name in ("gain-at-k", "pass-at-k")]
        assert both[0] / both[1] == pytest.approx(times, rel=0.02)
    assert 0.8 < over_rloo("gain-at-k:2", 8, 0.01) / over_rloo("pass-at-k:2", 8, 0.01) < 1
    assert "It nears that of RLOO if the pass rate is small" in FAMILIES["pass-at-k"].noise
    assert over_rloo("pass-at-k:2", 64, 0.01) == pytest.approx(1, abs=1e-3)


def test_no_baseline_is_worse_on_easy_prompts_only_with_equal_norms():
    words = FAMILIES["vanilla"].noise
    assert words.startswith("With scores of equal norms and a small gradient")
    for size in SIZES:
        assert over_rloo("vanilla", size, 0.9 / size) < 1 < over_rloo("vanilla", size, 1.1 / size)
    assert "far below RLOO's on easy prompts too" in words
    vanilla, rloo = (gradient_mse(SKEWED, name, 8).mse for name in ("vanilla", "grpo"))
    assert vanilla < rloo / 10


def test_the_best_table_is_the_best_table_and_no_more():
    """On two prompts of one pass rate: right outputs have the long scores, then wrong ones."""
    assert "smallest that an unbiased table can have" in FAMILIES["best"].noise
    laws, rewards = [[0.5, *[0.1] * 5]] * 2, [[1, 0, 0, 0, 0, 0], [0, 1, 1, 1, 1, 1]]
    two = SoftmaxBandit.bernoulli(laws, rewards)
    asked = [SquaredError(Estimator("norm-weighted"))]
    (weighted,) = GradientCell(two, 6).measure("exact", asked).mean
    assert weighted < 0.97 * gradient_mse(two, "best", 6).mse


def test_a_silent_group_has_the_advantages_that_are_said():
    assert "need not be small" in FAMILIES["best"].silent
    assert 1 - best_table(SKEWED.moments(), 4).baseline[3] > 0.8
    assert "b/(G-1 + a + b) after successes, and -a/(G-1 + a + b)" in FAMILIES["bayes"].silent
    table = count_table("bayes:2,3", 4)
    assert table.successes[4] == pytest.approx(3 / 8)
    assert table.failures[0] == pytest.approx(-2 / 8)
