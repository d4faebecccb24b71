"""How many samples see a difference, by simulation and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from ustat_pg.testing import samples_needed, seeds_needed, smallest_difference
from ustat_pg.validation import InputError


def test_the_power_is_that_of_the_test():
    count, rng = samples_needed(1.0, 1.5), np.random.default_rng(0)
    pairs = rng.normal(size=(2, 4000, count)) * 1.5
    seen = scipy.stats.ttest_ind(pairs[0] + 1.0, pairs[1], axis=1).pvalue < 0.05
    # Three standard errors of 4,000 draws.
    assert abs(seen.mean() - 0.8) < 0.02 + 0.5 / count
    assert samples_needed(1.0, 1.5, power=0.99) > samples_needed(1.0, 1.5, alpha=0.01) > count


@pytest.mark.parametrize("difference", [0.3, 1.0, 2.0])
def test_the_two_questions_are_inverse(difference):
    count = samples_needed(difference, 1.5)
    assert smallest_difference(count, 1.5) <= difference < smallest_difference(count - 1, 1.5)


def test_a_great_difference_takes_two_samples():
    assert samples_needed(100.0, 1.0) == 2


def test_seeds_by_the_pooled_deviation():
    first, second = [1.0, 3.0], [10.0, 12.0, 14.0]
    assert seeds_needed(first, second, 2.0) == samples_needed(2.0, (10 / 3) ** 0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: samples_needed(0.0, 1.0), "difference is 0.0: it must be positive"),
        (lambda: samples_needed(1.0, -1.0), "deviation is -1.0: it must be positive"),
        (lambda: samples_needed(1.0, 1.0, alpha=1.0), "alpha is 1.0: it must lie between 0 and 1"),
        (lambda: samples_needed(1.0, 1.0, power=0.0), "power is 0.0: it must lie between 0 and 1"),
        (
            lambda: smallest_difference(1, 1.0),
            "samples is 1: it must be a whole number of at least 2",
        ),
        (lambda: seeds_needed([1.0], [1.0, 2.0]), "first holds 1 run"),
        (lambda: seeds_needed([1.0, 1.0], [2.0, 2.0]), "do not vary"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
