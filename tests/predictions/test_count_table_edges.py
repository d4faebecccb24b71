"""Tables by counts where nothing is drawn, nothing varies, or nothing is kept."""

from __future__ import annotations

import numpy as np
import pytest

from ustat_pg.predictions import gradient_mse, mean_gradient, silent_share
from ustat_pg.problems import SoftmaxBandit
from ustat_pg.validation import InputError


def sure(reward):
    """One prompt whose two outputs both have that reward."""
    return SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[reward], [reward]]], [[[1.0], [1.0]]])


def coin():
    """One prompt with two equal arms, the first rewarded: the best table has no error at all."""
    return SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])


@pytest.mark.parametrize(
    ("problem", "size"), [(sure(1.0), 4), (sure(0.0), 4), (coin(), 1), (sure(1.0), 1)]
)
def test_dynamic_sampling_needs_a_group_that_is_not_silent(problem, size):
    with pytest.raises(InputError, match="every group is silent"):
        mean_gradient(problem.moments(), "std", size, dynamic_sampling=True)


def test_a_share_is_at_most_one():
    rates = np.arange(1, 10) / 10
    law = np.stack([rates, 1 - rates], axis=-1)[:, None].repeat(2, axis=1)
    rewards = np.tile([1.0, 0.0], (9, 2, 1))
    problem = SoftmaxBandit.tabular(np.full(9, 1 / 9), np.zeros((9, 2)), rewards, law)
    assert silent_share(problem.moments(), 1) == 1.0


@pytest.mark.parametrize("size", [2, 3, 10, 100, 1100])
def test_rounding_leaves_no_negative_error(size):
    found = gradient_mse(coin().moments(), "best", size)
    assert 0 <= found.mse < 1e-15
    assert found.first_order_term >= 0
