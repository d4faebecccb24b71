"""Training runs near an optimum, and what their linear recursion says of the gap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ustat_pg.distributions import WeightedChi2
from ustat_pg.engines import Estimator, Gap, Training
from ustat_pg.engines.runs.schedules import Schedule
from ustat_pg.experiment import Linear, mean_of
from ustat_pg.predictions import (
    covariance_parts,
    epoch_gap,
    finite_covariance,
    finite_weights,
    linear_gap,
    mean_gap,
)

from .landscapes import Landscape, LandscapeEntry
from .optima import GRPO, Noise, ball, covariance_of, moments_of, parts_of


@dataclass(frozen=True)
class NearOptimum:
    """Training runs near an optimum, and what their linear recursion says of the gap.

    Arguments:
        entry: the problem.
        group_size, steps, schedule, batch_size, design: what is asked of the runs, as of a
            :class:`~ustat_pg.engines.Training`.
        start: displacement from the optimum, by eigendirection, the flattest first; the rest is 0.
        radius: radius of the ball on which the runs are projected; none unless given.
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
    def rank(self) -> int:
        """r, the number of identifiable directions."""
        return len(self.landscape.curvatures)

    @property
    def prompts_disagree(self) -> bool:
        """Whether gradients differ between prompts at the optimum: C1 is not 0."""
        between, within, _ = parts_of(self.landscape)
        return bool(np.trace(between) > 1e-9 * np.trace(within))

    @property
    def displacement(self) -> np.ndarray:
        """δ₀ in the eigenbasis, (r,)."""
        return np.array([*self.start, *[0.0] * (self.rank - len(self.start))])

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

    def gap_difference(
        self, worse: Estimator, better: Estimator, scale: float, times: float = 1.0
    ) -> Linear:
        """``times`` the mean scaled gap of one estimator less that of another, on the same draws."""
        high, low = (Gap(estimator, self.steps, scale) for estimator in (worse, better))
        return Linear(self.training, ((high, times), (low, -times)))

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

    def _noise_by(self, formula: Noise) -> np.ndarray:
        return formula(*parts_of(self.landscape), self.group_size) / self.batch_size

    def expected_by(self, formula: Noise, step: int | None = None) -> float:
        """The mean gap of the recursion, were that the covariance of a gradient."""
        rates = self.schedule.rates(self.steps if step is None else step)
        noise = self._noise_by(formula)
        return float(mean_gap(self.landscape.curvatures, noise, rates, self.displacement))

    def weights(self, estimator: Estimator = GRPO) -> tuple[float, ...]:
        """The weights of the gap's law after the last step, by the recursion."""
        return tuple(self._weights_of(self.noise(estimator)).tolist())

    def weights_by(self, formula: Noise) -> np.ndarray:
        """The weights of the gap's law, were that the covariance of a gradient."""
        return self._weights_of(self._noise_by(formula))

    def weights_along(self, basis: np.ndarray) -> np.ndarray:
        """The weights of the gap's law, were these the identifiable directions, (d, r)."""
        landscape, g = self.landscape, self.group_size
        c1, c2, c3 = covariance_parts(moments_of(landscape), basis)
        bends = np.diagonal(-basis.T @ landscape.hessian(landscape.maximiser) @ basis)
        return finite_weights(
            bends, c1 + c2 / g + c3 / (g * (g - 1)), self.schedule.rates(self.steps)
        )

    def _weights_of(self, noise: np.ndarray) -> np.ndarray:
        rates = self.schedule.rates(self.steps)
        return finite_weights(self.landscape.curvatures, noise, rates, self.displacement)

    def law(self, estimator: Estimator = GRPO) -> WeightedChi2:
        """The law of the gap after the last step."""
        return WeightedChi2(self.weights(estimator))
