"""Splits of a budget: training runs with few prompts and large groups, or many prompts and small groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import log

import numpy as np

from ustat_pg.engines import Estimator

from ..engines import Decay
from ..engines.runs.schedules import Schedule
from ..evidence import Check, Linear, LogSlope, positive
from ..problems.landscapes import LandscapeEntry
from .basins import Scan
from .runs import GRPO, NearOptimum

START = 0.1
"""The distance from the optimum at which runs begin."""

REACH = 4.0
"""The number of standard deviations of the largest noise by which Θ extends beyond the start. The
projection acts once in 10⁴ runs, and the range of a gap is small."""

SCANNED = 1.0
"""The radius of the ball on which curvature and noise are tabulated."""


scan_of = lru_cache(maxsize=64)(Scan.of)


@dataclass(frozen=True)
class Split:
    """A split of a budget: training runs with B prompts a step and G outputs each.

    Arguments:
        budget: K = BG.
        step: T, at which the gap is measured.
        design: iid or epochs.
        steps: the runs' length; by default T.
        start: distance from the optimum.
        reach: a number that replaces REACH.
    """

    entry: LandscapeEntry
    budget: int
    group_size: int
    schedule: Schedule
    step: int
    estimator: Estimator = GRPO
    design: str = "iid"
    steps: int = 0
    start: float = START
    reach: float = REACH

    @cached_property
    def runs(self) -> NearOptimum:
        """The training runs, on a ball whose edge they rarely reach."""
        runs = NearOptimum(
            self.entry, self.group_size, self.steps or self.step, self.schedule,
            self.budget // self.group_size, self.design, (self.start,),
        )  # fmt: skip
        deviation = float(np.sqrt(runs.spread(self.estimator).max()))
        return replace(runs, radius=round(self.start + self.reach * deviation, 2))

    @property
    def gap(self) -> Linear:
        """The measured mean gap after T steps."""
        return self.runs.gap(self.estimator, self.step)

    @property
    def predicted(self) -> float:
        return self.runs.expected(self.estimator, self.step)

    @property
    def error(self) -> float:
        """The error of the prediction: the variation of curvature and noise within a standard deviation plus
        the start.
        """
        scan = scan_of(self.entry.problem, SCANNED)
        deviation = float(np.sqrt(self.runs.spread(self.estimator).max()))
        return scan.variation(max(self.start, deviation)) * self.predicted

    def exceeds(self, best: Split, what: str, rivals: Sequence[str] = ()) -> Check:
        """A check that the gap is larger than another split's: the logarithm of the ratio is positive."""
        low, high = best.predicted, self.predicted
        gain = log(high / low)
        functional = LogSlope((0.0, 1.0), (best.gap, self.gap), (low, high))
        statement = positive(gain, rivals, scale=gain)
        return best.entry.check(f"{self.label}: {what}", functional, statement)

    @property
    def rate(self) -> str:
        return "decay" if isinstance(self.schedule, Decay) else "constant"

    @property
    def label(self) -> str:
        epochs = ", epochs" if self.design == "epochs" else ""
        return f"K={self.budget} G={self.group_size}: {self.rate}, step {self.step}{epochs}"
