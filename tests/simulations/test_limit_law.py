"""Theorem 8: the paths that its figure draws are measured as all other points are."""

from __future__ import annotations

import numpy as np
import pytest

from simulations import Suite, curves
from simulations.limit_law import STARTS, STEPS
from ustat_pg.engines import Decay, Estimator, Training
from ustat_pg.experiment import Options, Store, run_points


def paths(frame):
    """Where each run is, (run, steps, 2)."""
    runs = frame[frame["series"] == "run"]
    table = runs.pivot(index=["run", "step"], columns="axis", values="estimate")
    return table[["x", "y"]].to_numpy().reshape(len(STARTS), len(STEPS), 2)


@pytest.mark.parametrize("size", ["smoke", "quick"])
def test_a_path_is_one_run_of_the_engine_at_every_size(size, tmp_path):
    # The laws take many runs.
    points = [p for p in curves("limit_law", Suite("smoke")) if p.series in ("run", "return")]
    frame = run_points(points, Options(size), Store(tmp_path))
    landscape = Suite("smoke").landscapes["calm mixture"][0].problem
    for number, (start, path) in enumerate(zip(STARTS, paths(frame), strict=True)):
        runs = Training(landscape, 2, STEPS[-1], Decay(20.0, 60.0), start=start)
        trajectory = runs.trajectory(Estimator("grpo"), STEPS)
        drawn = trajectory.run("cpu", seed=number, replications=1)[0]
        assert np.array_equal(path, drawn)
    assert (frame[frame["series"] == "run"]["replications"] == 1).all()
