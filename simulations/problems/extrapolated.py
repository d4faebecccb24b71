"""The limit of (T + t₀) E δδᵀ, extrapolated from training runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ustat_pg.engines import Decay, Estimator
from ustat_pg.experiment import Extrapolation, Linear

from .optima import GRPO
from .runs import NearOptimum

RADIUS = 20.0
"""Radius of Θ where second moments are measured, in standard deviations: runs do not reach its edge."""

EXTRAPOLATED = {
    2: ((1, -1.0), (2, 2.0)),
    3: ((1, 1 / 3), (2, -2.0), (4, 8 / 3)),
}
"""By how much runs are stretched, and their shares: an error of a/n, and of a/n + b/n², is taken off."""


@dataclass(frozen=True)
class Limit:
    """Γ, entry by entry, from runs.

    (t + t₀) E δ_j δ_k tends to Γ_jk up to a multiple of (t + t₀)^-(cλ_j + cλ_k - 1), which two steps of
    the same runs take off, and an error of order 1/T, which runs that are stretched do.

    Arguments:
        runs: the shortest runs, under c/(t + t₀).
        first: the first of the two steps; the other is the last.
        stages: number of lengths of runs.
    """

    runs: NearOptimum
    first: int
    stages: int

    @cached_property
    def stretched(self) -> list[tuple[NearOptimum, int]]:
        """The runs of every length, and how many times longer they are."""
        return [
            (self.runs.stretched(times).within(RADIUS), times)
            for times, _ in EXTRAPOLATED[self.stages]
        ]

    @property
    def left_out(self) -> float:
        """What remains: the product of what each of the runs leaves out, relative."""
        return self.left_out_of(GRPO)

    def left_out_of(self, estimator: Estimator) -> float:
        """The same of an estimator's runs."""
        return float(np.prod([each.left_out_of(estimator) for each, _ in self.stretched]))

    def entry(
        self, j: int, k: int, times: float = 1.0, estimator: Estimator = GRPO
    ) -> Extrapolation:
        """``times`` Γ_jk of an estimator's runs."""
        schedule, curvatures = self.runs.schedule, self.runs.landscape.curvatures
        assert isinstance(schedule, Decay)
        exponent = schedule.c * float(curvatures[j] + curvatures[k]) - 1
        points = []
        for each, stretch in self.stretched:
            ends = (self.first * stretch, each.steps)
            at = [step + stretch * schedule.t0 for step in ends]
            grown = [(one / at[0]) ** exponent for one in at]
            weights = (-grown[0] * at[0], grown[1] * at[1])
            shares = [times * weight / (grown[1] - grown[0]) for weight in weights]
            products = [each.product(k, j, step, estimator) for step in ends]
            points.append(Linear(each.training, tuple(zip(products, shares, strict=True))))
        return Extrapolation(tuple(points), tuple(share for _, share in EXTRAPOLATED[self.stages]))

    def form(self, estimator: Estimator = GRPO) -> tuple[Extrapolation, ...]:
        """½ Λ^½ Γ Λ^½, its lower triangle row by row."""
        root = np.sqrt(self.runs.landscape.curvatures)
        return tuple(
            self.entry(j, k, 0.5 * float(root[j] * root[k]), estimator)
            for j in range(self.runs.rank)
            for k in range(j + 1)
        )
