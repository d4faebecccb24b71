"""What is asked of a landscape near its optimum: Θ, covariances of gradients, L, μ and M."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ustat_pg.engines import Ball, Estimator, Gap, Quantity, SquaredProjection, Training
from ustat_pg.engines.gradients.cell import direction
from ustat_pg.engines.runs.schedules import Schedule
from ustat_pg.experiment import Linear, mean_of
from ustat_pg.moments import Moments
from ustat_pg.predictions import (
    bound_curve,
    epoch_gap,
    finite_covariance,
    finite_weights,
    gradient_covariance,
    gradient_mse,
    linear_gap,
    mean_gap,
    weight_form,
)
from ustat_pg.problems import Constants, LocationBandit, Neighbourhood, SoftmaxBandit, constants

from .landscapes import Landscape, LandscapeEntry

__all__ = [
    "Basin",
    "NearOptimum",
    "at_optimum",
    "ball",
    "covariance_of",
    "largest_mse",
    "moments_of",
    "projected",
    "region",
    "weight_terms",
]


GRPO = Estimator("grpo")


def at_optimum(landscape: Landscape) -> SoftmaxBandit:
    """The bandit at the maximiser."""
    return landscape.at(landscape.maximiser)


def moments_of(landscape: Landscape) -> Moments:
    """The moments at the maximiser."""
    return at_optimum(landscape).moments()


def ball(landscape: Landscape, radius: float) -> Ball:
    """Θ: within a radius of the optimum in the identifiable directions."""
    return Ball(landscape.maximiser, radius, landscape.identifiable)


def covariance_of(
    landscape: Landscape, baseline: str, group_size: int, batch_size: int = 1, **more: Any
) -> np.ndarray:
    """Uᵀ Cov(ĝ) U at the optimum (Proposition 3), (r, r)."""
    basis = landscape.identifiable
    whole = gradient_covariance(moments_of(landscape), baseline, group_size, batch_size, **more)
    return np.asarray(basis.T @ whole @ basis)


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
class NearOptimum:
    """Training runs near an optimum, and what their linear recursion says of the gap.

    Arguments:
        entry: the problem.
        group_size, steps, schedule, batch_size, design: of the runs, as of a
            :class:`~ustat_pg.engines.Training`.
        start: from the optimum, by eigendirection, the flattest first; the rest is 0.
        radius: of the ball on which the runs are projected; none unless given.
    """

    entry: LandscapeEntry
    group_size: int
    steps: int
    schedule: Schedule
    batch_size: int = 1
    design: str = "iid"
    start: tuple[float, ...] = ()
    radius: float | None = None

    @property
    def landscape(self) -> Landscape:
        """The problem itself."""
        return self.entry.problem

    @property
    def displacement(self) -> np.ndarray:
        """δ₀ in the eigenbasis, (r,)."""
        missing = len(self.landscape.curvatures) - len(self.start)
        return np.array([*self.start, *[0.0] * missing])

    @property
    def training(self) -> Training:
        """The cell."""
        landscape = self.landscape
        return Training(
            landscape,
            self.group_size,
            self.steps,
            self.schedule,
            self.batch_size,
            self.design,
            start=landscape.maximiser + landscape.identifiable @ self.displacement,
            projection=None if self.radius is None else ball(landscape, self.radius),
        )

    def gap(self, estimator: Estimator = GRPO, step: int | None = None) -> Linear:
        """The mean gap after a step, the last one unless given: what is measured."""
        return mean_of(self.training, Gap(estimator, self.steps if step is None else step))

    def noise(self, estimator: Estimator = GRPO) -> np.ndarray:
        """Uᵀ Cov(ĝ) U at the optimum, (r, r)."""
        return covariance_of(
            self.landscape,
            estimator.baseline,
            self.group_size,
            self.batch_size,
            constant=estimator.constant,
        )

    def spread(self, estimator: Estimator = GRPO) -> np.ndarray:
        """The second moments of the recursion from the optimum after every step, (T + 1, r, r)."""
        rates, steps = self.schedule.rates(self.steps), np.arange(self.steps + 1)
        return finite_covariance(
            self.landscape.curvatures, self.noise(estimator), rates, steps=steps
        )

    def expected(self, estimator: Estimator = GRPO, step: int | None = None) -> float:
        """The mean gap of the recursion after a step."""
        landscape, moments = self.landscape, moments_of(self.landscape)
        rates = self.schedule.rates(self.steps if step is None else step)
        sizes = {"group_size": self.group_size, "batch_size": self.batch_size}
        if self.design == "epochs":
            (curvature,), (away,) = landscape.curvatures, self.displacement
            return epoch_gap(
                moments, landscape.identifiable, curvature, rates, displacement=away, **sizes
            )
        mean = linear_gap(
            moments,
            landscape.identifiable,
            landscape.curvatures,
            rates,
            baseline=estimator.baseline,
            constant=estimator.constant,
            displacement=self.displacement,
            **sizes,
        )
        return float(mean)

    def expected_with(self, noise: np.ndarray, step: int | None = None) -> float:
        """The mean gap of the recursion, were that the covariance of a gradient, (r, r)."""
        rates = self.schedule.rates(self.steps if step is None else step)
        return float(mean_gap(self.landscape.curvatures, noise, rates, self.displacement))

    def weights(self, estimator: Estimator = GRPO) -> tuple[float, ...]:
        """The weights of the gap's law after the last step, by the recursion."""
        return tuple(self.weights_with(self.noise(estimator)).tolist())

    def weights_with(self, noise: np.ndarray) -> np.ndarray:
        """The weights of the gap's law, were that the covariance of a gradient, (r, r)."""
        rates = self.schedule.rates(self.steps)
        return finite_weights(self.landscape.curvatures, noise, rates, self.displacement)


@dataclass(frozen=True)
class Basin:
    """A ball around an optimum, the constants on it, and the point where runs start.

    Arguments:
        entry: the problem.
        radius: of the ball.
        distance: of the start from the optimum, along the flattest direction.
        tolerance: of L and μ on the ball, relative.
    """

    entry: LandscapeEntry
    radius: float
    distance: float
    tolerance: float = 0.001

    @property
    def landscape(self) -> Landscape:
        """The problem itself."""
        return self.entry.problem

    @property
    def point(self) -> np.ndarray:
        """θ₀."""
        landscape = self.landscape
        return np.asarray(landscape.maximiser + self.distance * landscape.identifiable[:, 0])

    @property
    def gap(self) -> float:
        """The gap at θ₀."""
        return float(self.landscape.gap(self.point))

    @property
    def curvature(self) -> float:
        """The least curvature at the optimum."""
        return float(self.landscape.curvatures[0])

    @property
    def pl(self) -> float:
        """μ on the ball."""
        return region(self.landscape, self.radius, self.tolerance).pl.value

    @property
    def smoothness(self) -> float:
        """L on the ball."""
        return region(self.landscape, self.radius, self.tolerance).smoothness.value

    def mse(self, baseline: str, group_size: int, batch_size: int = 1) -> float:
        """M on the ball."""
        return largest_mse(self.landscape, self.radius, baseline, group_size, batch_size)

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


def projected(
    problem: SoftmaxBandit, estimator: Estimator, matrix: Any
) -> list[tuple[Quantity, float]]:
    """tr(matrix · Cov(ĝ)) as a combination of squared projections along fixed directions.

    More directions than entries, and the least weights that do it: no seed draws a bad frame.
    """
    d = problem.d
    entries = np.triu_indices(d)
    count = 1 if d == 1 else 2 * d * (d + 1)
    frame = np.stack([direction(problem, number) for number in range(count)])
    rows = (frame[:, :, None] * frame[:, None, :])[:, *entries]
    weights = np.linalg.lstsq(rows.T, np.asarray(matrix)[entries], rcond=None)[0]
    return [
        (SquaredProjection(estimator, number), float(weight))
        for number, weight in enumerate(weights)
    ]


def weight_terms(
    landscape: Landscape, estimator: Estimator, axis: Any, c: float, away: Any = 0.0
) -> list[tuple[Quantity, float]]:
    """The limit weight whose eigenvector is ``axis``, as a combination of squared projections of one
    gradient at the optimum, or ``away`` from it.
    """
    form = weight_form(landscape.curvatures, landscape.identifiable, axis, c)
    return projected(landscape.at(landscape.maximiser + away), estimator, form)
