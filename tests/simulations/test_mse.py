"""Claim mse: what its checks are relative to."""

from __future__ import annotations

from simulations import Suite
from simulations.mse import PEERS, claim
from ustat_pg.predictions import gradient_mse


def test_peers_are_measured_on_the_scale_of_their_own_group_size():
    """An error of 0 is judged beside a tenth of vanilla's at the same G, not at the largest."""
    suite = Suite("quick")
    checks = {check.name: check for check in claim(suite).checks}
    least = suite.group_sizes[0]
    floors = 0
    for entry in suite.single_prompts:
        moments = entry.problem.moments()
        vanilla = gradient_mse(moments, "vanilla", least).mse
        for baseline in PEERS:
            value = gradient_mse(moments, baseline, least).mse
            statement = checks[f"{entry.name} G={least}: {baseline}"].statement
            assert statement.scale == max(value, vanilla / 10)
            floors += value < vanilla / 10
    assert floors
