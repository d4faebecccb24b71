"""Claim mse: what its checks are relative to."""

from __future__ import annotations

import numpy as np
import pytest

from simulations import Suite
from simulations.mse import claim
from simulations.shared.peers import noise, peers, scale, slope
from ustat_pg.engines import Estimator, GradientCell, SquaredError
from ustat_pg.problems import random_problem


def test_errors_are_measured_on_the_scale_of_their_own_group_size():
    """An error of 0 is judged beside a tenth of vanilla's at the same G, not at the largest."""
    suite = Suite("quick")
    checks = {check.name: check for check in claim(suite).checks}
    least, floors = suite.group_sizes[0], 0
    for entry in suite.single_prompts:
        cell = GradientCell(entry.problem, least)
        for peer in peers(entry.problem):
            statement = checks[f"{entry.name} G={least}: {peer.name}"].statement
            assert statement.scale == scale(cell, peer.estimator)
            floors += noise(cell, peer.estimator) < statement.scale
    assert floors


def test_the_noise_of_no_baseline_is_its_enumerated_error_and_the_gradient():
    problem = random_problem(3, contexts=1)
    cell = GradientCell(problem, 1)
    found = cell.measure("exact", [SquaredError(Estimator("vanilla"))]).mean[0]
    square = sum(slope(problem, unit) ** 2 for unit in np.eye(problem.d))
    assert noise(cell, Estimator("vanilla")) == pytest.approx(found + square, rel=1e-9)
