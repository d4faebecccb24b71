"""Probability integral transforms of a gap's law, by which runs are held against a predicted one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit
from scipy.stats import chi2

from ustat_pg.distributions import WeightedChi2
from ustat_pg.engines.base import Array

from ..engines import Binned


@dataclass(frozen=True)
class Pit(Binned):
    """F(J* - J(θₜ)), F the cdf of Σ wₖ χ²₁: uniform if that is the gap's law.

    Arguments:
        estimator, step: estimator of the runs, and the step.
        weights: weights of the gap itself, not of T times the gap; all above 0.
    """

    kind = "pit"
    weights: tuple[float, ...]

    def of(self, gap: Array, theta: Array) -> Array:
        """The quantity of gaps (R,)."""
        if len(self.weights) == 1:
            return np.asarray(chi2.cdf(gap / self.weights[0], 1))
        return np.asarray(WeightedChi2(self.weights).cdf(gap))


@dataclass(frozen=True)
class ConditionalPit(Binned):
    """F(J* - J(θₜ)) with the law's own weight at each run's endpoint (Assumption 8): one chi-square
    with the weight low + (high - low) · sigmoid(θₜⱼ).

    Arguments:
        estimator, step: estimator of the runs, and the step.
        coordinate: j.
        low, high: the weight where the sigmoid is 0 and 1, above 0.
    """

    kind = "conditional-pit"
    coordinate: int
    low: float
    high: float

    def of(self, gap: Array, theta: Array) -> Array:
        """The quantity of gaps (R,) at parameters (R, d)."""
        weight = self.low + (self.high - self.low) * expit(theta[:, self.coordinate])
        return np.asarray(chi2.cdf(gap / weight, 1))
