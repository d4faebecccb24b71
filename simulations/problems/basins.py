"""Balls around an optimum, and what Lemma 6 asks of them: L, μ and M."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from ustat_pg.engines.runs.schedules import Schedule
from ustat_pg.predictions import bound_curve, gradient_mse
from ustat_pg.problems import Constants, LocationBandit, Neighbourhood, constants

from .landscapes import LandscapeEntry
from .runs import NearOptimum


@lru_cache(maxsize=256)
def region(landscape: LocationBandit, radius: float, tolerance: float = 0.001) -> Constants:
    """L, μ and μ' within a radius of the optimum."""
    return constants(landscape, Neighbourhood(landscape.maximiser, radius), tolerance=tolerance)


@lru_cache(maxsize=256)
def largest_mse(
    landscape: LocationBandit, radius: float, baseline: str, group_size: int, batch_size: int
) -> float:
    """M: the largest MSE of a gradient on a grid of the ball, 0.1% added for what lies between."""
    basis = landscape.identifiable
    steps = np.linspace(-1, 1, 21 if basis.shape[1] == 1 else 9)
    points = np.stack(np.meshgrid(*[steps] * basis.shape[1]), axis=-1).reshape(-1, basis.shape[1])
    length = np.linalg.norm(points, axis=1, keepdims=True)
    points = radius * points / np.maximum(length, 1)
    return 1.001 * max(
        gradient_mse(
            landscape.at(landscape.maximiser + basis @ point).moments(),
            baseline,
            group_size,
            batch_size,
        ).mse
        for point in points
    )


@dataclass(frozen=True)
class Basin:
    """A ball around an optimum, the constants on it, and the point where runs start.

    Arguments:
        entry: the problem.
        radius: radius of the ball.
        distance: distance of the start from the optimum, along the flattest direction.
        tolerance: error of L and μ on the ball, relative.
    """

    entry: LandscapeEntry
    radius: float
    distance: float
    tolerance: float = 0.001

    @property
    def point(self) -> np.ndarray:
        """θ₀."""
        landscape = self.entry.problem
        return np.asarray(landscape.maximiser + self.distance * landscape.identifiable[:, 0])

    @property
    def gap(self) -> float:
        """The gap at θ₀."""
        return float(self.entry.problem.gap(self.point))

    @property
    def curvature(self) -> float:
        """The least curvature at the optimum."""
        return float(self.entry.problem.curvatures[0])

    @property
    def _constants(self) -> Constants:
        return region(self.entry.problem, self.radius, self.tolerance)

    @property
    def pl(self) -> float:
        """μ on the ball."""
        return self._constants.pl.value

    @property
    def smoothness(self) -> float:
        """L on the ball."""
        return self._constants.smoothness.value

    def mse(self, baseline: str, group_size: int, batch_size: int = 1) -> float:
        """M on the ball."""
        return largest_mse(self.entry.problem, self.radius, baseline, group_size, batch_size)

    def bounds(self, rates: ArrayLike, mse: float) -> np.ndarray:
        """Lemma 6's bounds on the gap at every step, (T + 1,)."""
        return bound_curve(self.gap, rates, pl=self.pl, smoothness=self.smoothness, mse=mse)

    def runs(
        self, group_size: int, steps: int, schedule: Schedule, batch_size: int = 1
    ) -> NearOptimum:
        """Runs from θ₀ on the ball."""
        start = (self.distance,)
        return NearOptimum(
            self.entry, group_size, steps, schedule, batch_size, start=start, radius=self.radius
        )
