"""Where alarms begin: at what they say, by windows counted out and not drawn."""

from __future__ import annotations

import numpy as np
import pytest

from ustat_pg.noise import Alarms

pytest.importorskip("torch")


def standing(**given):
    alarms = Alarms()
    alarms.generation(**given)
    return alarms.standing()


@pytest.mark.parametrize("size", [2, 3, 5])
def test_survivors_are_told_by_four_standard_errors_of_ranks(size):
    """The poorest output of every group is left out: each group is one and the same deviation of a rank."""
    # Ranks about their mean of a draw without replacement: ((n-1)/2)² over (n² - 1)/12.
    each = (size - 1) / 2 / np.sqrt((size**2 - 1) / 12)
    first = int(np.floor((4 / each) ** 2)) + 1
    for groups in (first - 1, first):
        rewards = np.arange(groups * size) % size + 0.0
        found = standing(
            prompts=np.repeat(np.arange(groups), size), rewards=rewards, kept=rewards > 0
        )
        assert ("survivors" in found) == (groups == first)


@pytest.mark.parametrize(
    ("name", "share", "apart"), [("silent", 0.5, 0.0), ("spikes", 0.05, 0.004)]
)
def test_shares_of_groups_are_told_by_three_binomial_errors(name, share, apart):
    """Groups of 3 of which some have equal rewards, or rewards that differ by 1% of the others."""
    groups = 400
    most = int(np.floor(share * groups + 3 * np.sqrt(share * (1 - share) * groups)))
    for count in (most, most + 1):
        rewards = np.tile([0.0, 1.0, 0.3], (groups, 1))
        rewards[:count] = [0.5, 0.5 + apart, 0.5]
        found = standing(prompts=np.repeat(np.arange(groups), 3), rewards=rewards.ravel())
        assert (name in found) == (count > most)
        assert found <= {name}


@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_tokens_are_told_by_four_standard_errors_and_samplers_by_a_twentieth_of_a_nat(factor):
    outputs = 10_000
    # Surprises of 1 and -1 whose sum is so many times the root of their number.
    logs = np.full((outputs, 1), -1.0)
    up = round((outputs + 4 * factor * np.sqrt(outputs)) / 2)
    entropies = np.where(np.arange(outputs)[:, None] < up, 0.0, 2.0)
    alarms = Alarms()
    alarms.tokens(logs, np.ones_like(logs), entropies)
    told = factor > 1
    assert ("rollouts" in alarms.standing()) == told
    # All outputs equally far: their error is 0, and the mean alone counts.
    ratio = np.sqrt(2 * 0.05 * factor) - 0.05 * factor / 3
    apart = np.expm1(ratio) - ratio
    alarms = Alarms()
    alarms.tokens(logs, np.ones_like(logs), recorded=logs - ratio)
    assert (apart > 0.05) == told
    assert ("rollouts" in alarms.standing()) == told
