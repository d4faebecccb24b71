"""Claim mse: what its checks are relative to."""

from __future__ import annotations

import numpy as np
import pytest

from simulations.shared.peers import noise, slope
from ustat_pg.engines import Estimator, GradientCell, SquaredError
from ustat_pg.problems import random_problem


def test_the_noise_of_no_baseline_is_its_enumerated_error_and_the_gradient():
    problem = random_problem(3, contexts=1)
    cell = GradientCell(problem, 1)
    found = cell.measure("exact", [SquaredError(Estimator("vanilla"))]).mean[0]
    square = sum(slope(problem, unit) ** 2 for unit in np.eye(problem.d))
    assert noise(cell, Estimator("vanilla")) == pytest.approx(found + square, rel=1e-9)
