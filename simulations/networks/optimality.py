"""Corollary 5 on networks: prompt by prompt as on any problem; and how far Assumption 2 fails along
training, which is measured and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ustat_pg.engines import Estimator, Gap
from ustat_pg.experiment import Linear, Point, mean_of
from ustat_pg.experiment.probes import Probe

from ..problems import Suite
from ..stand_ins.optimality import STEM, claim
from .learners import GRIDS, GRPO, large

__all__ = ["STEM", "claim", "curves"]

MAP_BASELINES = ("vanilla", "grpo", "minimum-variance", "norm-weighted")
TRAINED = ("vanilla", "grpo", "oracle", "minimum-variance", "norm-weighted")


def curves(suite: Suite) -> Iterator[Point]:
    """How far Assumption 2 fails along training: correlation, and errors over the oracle's, at the
    parameters that grpo comes to; and the return when each baseline trains, on the same draws.
    """
    if not suite.trains:
        return
    learner, grid, figure = large(suite), GRIDS[suite.on], f"{suite.on}_map"
    steps = grid.steps[-1]
    training, trained = (learner.runs(4, 64, steps, grid.rate, block) for block in (8, 32))
    for step in sorted({0, *(int(n) for n in np.geomspace(steps / 60, steps, 9))}):
        at = {"problem": learner.name, "step": step}
        for baseline in TRAINED:
            gap = Gap(Estimator(baseline), step)
            value = Linear(trained, ((gap, -1.0),), learner.problem.optimum)
            yield Point(figure, baseline, {"panel": "return", **at}, None, value)
        probe = mean_of(training, Probe(GRPO, step, "correlation"))
        yield Point(figure, "grpo", {"panel": "correlation", **at}, None, probe)
        for baseline in MAP_BASELINES:
            group_size = 4 if baseline == "norm-weighted" else 8
            probe = mean_of(training, Probe(GRPO, step, "relative-mse", baseline, group_size))
            place = {"panel": "error", **at, "group_size": group_size}
            yield Point(figure, baseline, place, None, probe)
