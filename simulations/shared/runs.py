"""Training runs near an optimum: gradients there, the linear recursion, and limits of stretched runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import sqrt
from typing import Any

import numpy as np

from ustat_pg.distributions import WeightedChi2, sup_distance
from ustat_pg.engines import Estimator
from ustat_pg.moments.record import Moments
from ustat_pg.predictions import (
    covariance_parts,
    epoch_gap,
    finite_law,
    finite_weights,
    gradient_covariance,
    linear_gap,
    mean_gap,
)
from ustat_pg.problems import SoftmaxBandit

from ..engines import Ball, Constant, Cosine, Decay, Gap, GapTransform, Product, Training
from ..engines.runs.schedules import Schedule
from ..evidence import Extrapolation, Linear, mean_of
from ..problems.landscapes import Landscape, LandscapeEntry

GRPO, ORACLE, VANILLA = Estimator("grpo"), Estimator("oracle"), Estimator("vanilla")

Noise = Callable[[Any, Any, Any, int], Any]
"""The covariance of a gradient from C1, C2, C3 and G, at B = 1."""


def constant(value: float) -> Estimator:
    return Estimator("constant", float(value))


def critic(values: np.ndarray) -> Estimator:
    return Estimator("critic", values=tuple(values.tolist()))


def at_optimum(landscape: Landscape) -> SoftmaxBandit:
    return landscape.at(landscape.maximiser)


def moments_of(landscape: Landscape, away: Any = 0.0) -> Moments:
    return landscape.at(landscape.maximiser + away).moments()


def parts_of(landscape: Landscape, away: Any = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """C1, C2 and C3 of the covariance of a gradient in the identifiable directions, (r, r) each."""
    return covariance_parts(moments_of(landscape, away), landscape.identifiable)


def ball(landscape: Landscape, radius: float) -> Ball:
    """Θ: the points within a radius of the optimum in the identifiable directions."""
    return Ball(landscape.maximiser, radius, landscape.identifiable)


def whole_covariance(
    moments: Moments, estimator: Estimator, group_size: int, batch_size: int = 1
) -> np.ndarray:
    """Cov(ĝ) (Proposition 3), (d, d)."""
    return gradient_covariance(
        *(moments, estimator.name, group_size, batch_size),
        constant=estimator.constant,
        critic=estimator.values,
    )


def covariance_of(
    landscape: Landscape,
    estimator: str | Estimator,
    group_size: int,
    batch_size: int = 1,
    *,
    constant: float | None = None,
    away: Any = 0.0,
) -> np.ndarray:
    """Uᵀ Cov(ĝ) U at the optimum or ``away`` from it, (r, r)."""
    named = Estimator(estimator, constant) if isinstance(estimator, str) else estimator
    whole = whole_covariance(moments_of(landscape, away), named, group_size, batch_size)
    return np.asarray(landscape.identifiable.T @ whole @ landscape.identifiable)


def rates_of(schedule: Schedule, steps: int) -> np.ndarray:
    """η₁ to η_T as the paper defines them, (T,): predictions use these, and not the engines' own."""
    match schedule:
        case Constant(eta=eta):
            return np.array([eta] * steps)
        case Decay(c=c, t0=offset):
            return np.array([c / (t + offset) for t in range(1, steps + 1)])


@dataclass(frozen=True)
class NearOptimum:
    """Training runs near an optimum, and the gap that their linear recursion predicts.

    Arguments:
        entry: the problem.
        group_size, steps, schedule, batch_size, design: settings of the runs, as for a
            :class:`~simulations.engines.Training`.
        start: displacement from the optimum, by eigendirection, the flattest first; other entries are 0.
        radius: radius of the ball on which the runs are projected; no ball by default.
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
        return self.entry.problem

    @property
    def decay(self) -> Decay:
        """The rates c/(t + t₀) of runs that converge to a limit law."""
        assert isinstance(self.schedule, Decay)
        return self.schedule

    @property
    def time(self) -> float:
        """T + t₀ for such runs."""
        return self.steps + self.decay.t0

    @property
    def rank(self) -> int:
        """r, the number of identifiable directions."""
        return len(self.landscape.curvatures)

    @property
    def displacement(self) -> np.ndarray:
        """δ₀ in the eigenbasis, (r,)."""
        return np.array([*self.start, *[0.0] * (self.rank - len(self.start))])

    @property
    def training(self) -> Training:
        landscape = self.landscape
        return Training(
            *(landscape, self.group_size, self.steps, self.schedule, self.batch_size, self.design),
            start=landscape.maximiser + landscape.identifiable @ self.displacement,
            projection=None if self.radius is None else ball(landscape, self.radius),
        )

    def rates(self, steps: int | None = None) -> np.ndarray:
        return rates_of(self.schedule, self.steps if steps is None else steps)

    def within(self, deviations: float) -> NearOptimum:
        """The runs on a ball of some standard deviations of the recursion."""
        most = max(self.displacement @ self.displacement, np.linalg.eigvalsh(self.spread()).max())
        return replace(self, radius=deviations * sqrt(float(most)))

    def stretched(self, times: int) -> NearOptimum:
        """Runs with ``times`` the steps, at rates divided by ``times``. The start is nearer, so that the
        recursion is at the same relative distance; the recursion's error is then divided by ``times`` too.
        """
        slower = Decay(self.decay.c, times * self.decay.t0)
        start = tuple(away / sqrt(times) for away in self.start)
        return replace(self, steps=times * self.steps, schedule=slower, start=start)

    @cached_property
    def left_out(self) -> float:
        """The share under grpo, which several checks use."""
        return self.left_out_of(GRPO)

    def left_out_of(self, estimator: Estimator) -> float:
        """The share of δ's second moments that the recursion omits, to first order in the rates.

        It is the change of curvature and noise, averaged over points √r standard deviations from
        the optimum along the axes of the recursion's spread. A change of the curvature counts as much
        as the recursion's second moments change with it. Odd parts cancel, except for their effect on the
        mean: they count squared and twice (5/4 times if a cubic term bends the potential of a law
        at rest). If the mean is not 0, they count directly, by its share of the spread, and once more
        for the cubic term of the return.
        """
        landscape, basis = self.landscape, self.landscape.identifiable
        spread = self.spread(estimator)[-1]
        sizes, axes = np.linalg.eigh(spread)
        steps = axes * np.sqrt(self.rank * sizes)

        def bend_at(away: np.ndarray) -> np.ndarray:
            return np.asarray(-basis.T @ landscape.hessian(landscape.maximiser + away) @ basis)

        # The shape is (2, r, r, r): side, axis, matrix.
        bends, noises = (
            np.array([[of(sign * basis @ step) for step in steps.T] for sign in (1, -1)])
            for of in (bend_at, partial(self.noise, estimator))
        )
        curvature, noise = np.diag(landscape.curvatures), self.noise(estimator)
        odd, uneven = (
            max(_relative(part, at_rest) for part in (parts[0] - parts[1]) / 2)
            for parts, at_rest in ((bends, curvature), (noises, noise))
        )
        even = _relative(bends.mean(axis=(0, 1)) - curvature, curvature)
        change = _relative(noises.mean(axis=(0, 1)) - noise, noise)
        # A complex step gives a derivative without a difference.
        step = 1e-30
        bent = self._spread(estimator, (1 + 1j * step) * landscape.curvatures)[-1]
        moves = _relative(bent.imag / step, spread)
        mean = self.displacement * np.prod(1 - np.outer(self.rates(), landscape.curvatures), axis=0)
        away = sqrt(_relative(np.outer(mean, mean), spread))
        # For a mean m and deviations σ, m³ + 3mσ² is at most 3m (m² + σ²).
        at_once = away * ((1.5 * moves + 1) * odd + uneven)
        return moves * even + change + 2 * odd**2 + at_once

    def off_of(self, estimator: Estimator = GRPO) -> float:
        """The largest distance of the gap's law from the recursion's, as a probability. All weights are
        larger, or smaller, by the omitted share, and a gap grows with each weight.
        """
        root, share = np.sqrt(self.landscape.curvatures), self.left_out_of(estimator)
        weights = np.linalg.eigvalsh(0.5 * root[:, None] * self.spread(estimator)[-1] * root)
        law = WeightedChi2(weights)
        larger, smaller = (
            sup_distance(WeightedChi2(by * weights), law) for by in (1 + share, 1 / (1 + share))
        )
        return max(larger, smaller)

    def transform(self, rate: float, estimator: Estimator = GRPO) -> Linear:
        return mean_of(self.training, GapTransform(estimator, self.steps, rate))

    def cosine(self, frequency: np.ndarray) -> Linear:
        return mean_of(self.training, Cosine(GRPO, self.steps, tuple(map(float, frequency))))

    def product(
        self, j: int, k: int, step: int | None = None, estimator: Estimator = GRPO
    ) -> Product:
        """δⱼ δₖ after a step, by default the last."""
        return Product(estimator, self.steps if step is None else step, j, k)

    def gap(self, estimator: Estimator = GRPO, step: int | None = None) -> Linear:
        """The measured mean gap after a step, by default the last."""
        return mean_of(self.training, Gap(estimator, self.steps if step is None else step))

    def gap_difference(
        self, worse: Estimator, better: Estimator, scale: float, times: float = 1.0
    ) -> Linear:
        """``times`` the mean scaled gap of one estimator minus that of another, on the same draws."""
        high, low = (Gap(estimator, self.steps, scale) for estimator in (worse, better))
        return Linear(self.training, ((high, times), (low, -times)))

    def noise(self, estimator: Estimator = GRPO, away: Any = 0.0) -> np.ndarray:
        """Uᵀ Cov(ĝ) U at the optimum or ``away`` from it, (r, r)."""
        return covariance_of(self.landscape, estimator, self.group_size, self.batch_size, away=away)

    def spread(self, estimator: Estimator = GRPO) -> np.ndarray:
        """The second moments of the recursion after every step, (T + 1, r, r), computed here: scales and
        own errors must not use those of the predictions.
        """
        return self._spread(estimator, self.landscape.curvatures)

    def _spread(self, estimator: Estimator, curvatures: np.ndarray) -> np.ndarray:
        noise, moments = self.noise(estimator), [np.outer(self.displacement, self.displacement)]
        for rate in self.rates().tolist():
            kept = 1 - rate * curvatures
            moments.append(kept[:, None] * moments[-1] * kept + rate**2 * noise)
        return np.array(moments)

    def size(self, estimator: Estimator) -> float:
        """The size of the mean gap after the last step, ½ tr(Λ Γ)."""
        return 0.5 * float(self.landscape.curvatures @ np.diagonal(self.spread(estimator)[-1]))

    def expected(self, estimator: Estimator = GRPO, step: int | None = None) -> float:
        landscape, rates = self.landscape, self.rates(step)
        there = moments_of(landscape), landscape.identifiable
        sizes = {"group_size": self.group_size, "batch_size": self.batch_size}
        if self.design == "epochs":
            (curvature,), (away,) = landscape.curvatures, self.displacement
            return epoch_gap(*there, curvature, rates, displacement=away, **sizes)
        mean = linear_gap(
            *(*there, landscape.curvatures, rates),
            estimator=estimator.name,
            constant=estimator.constant,
            displacement=self.displacement,
            **sizes,
        )
        return float(mean)

    def noise_by(self, formula: Noise) -> np.ndarray:
        """The covariance of a gradient by a formula, (r, r)."""
        return formula(*parts_of(self.landscape), self.group_size) / self.batch_size

    def expected_by(self, formula: Noise, step: int | None = None) -> float:
        """The mean gap of the recursion, if that were the covariance of a gradient."""
        noise, rates = self.noise_by(formula), self.rates(step)
        return float(mean_gap(self.landscape.curvatures, noise, rates, self.displacement))

    def weights(self, estimator: Estimator = GRPO) -> tuple[float, ...]:
        """The weights of the gap's law after the last step, by the recursion."""
        return tuple(self._weights_of(self.noise(estimator)).tolist())

    def weights_by(self, formula: Noise) -> np.ndarray:
        """The weights of the gap's law, if that were the covariance of a gradient."""
        return self._weights_of(self.noise_by(formula))

    def weights_along(self, basis: np.ndarray) -> np.ndarray:
        """The weights of the gap's law, if these were the identifiable directions, (d, r)."""
        landscape, g = self.landscape, self.group_size
        c1, c2, c3 = covariance_parts(moments_of(landscape), basis)
        bends = np.diagonal(-basis.T @ landscape.hessian(landscape.maximiser) @ basis)
        return finite_weights(bends, c1 + c2 / g + c3 / (g * (g - 1)), self.rates())

    def _weights_of(self, noise: np.ndarray) -> np.ndarray:
        return finite_weights(self.landscape.curvatures, noise, self.rates(), self.displacement)

    def law(self, estimator: Estimator = GRPO) -> WeightedChi2:
        noise = self.noise(estimator)
        return finite_law(self.landscape.curvatures, noise, self.rates(), self.displacement)


def _relative(change: np.ndarray, matrix: np.ndarray) -> float:
    """The size of a change, relative to a positive matrix, in its worst direction."""
    return float(np.abs(np.linalg.eigvals(np.linalg.solve(matrix, change))).max())


RADIUS = 20.0
"""The radius of Θ for second moments, in standard deviations; runs do not reach its edge."""

EXTRAPOLATED = {2: ((1, -1.0), (2, 2.0)), 3: ((1, 1 / 3), (2, -2.0), (4, 8 / 3))}
"""The factors that stretch runs, with weights that remove an error of a/n, or of a/n + b/n²."""


@dataclass(frozen=True)
class Limit:
    """The entries of Γ, from runs.

    (t + t₀) E δ_j δ_k is Γ_jk plus a multiple of (t + t₀)^-(cλ_j + cλ_k - 1), which two steps of
    the same runs remove, plus an error of order 1/T, which stretched runs remove.

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
        """The runs of every length, each with its factor of length."""
        lengths = [times for times, _ in EXTRAPOLATED[self.stages]]
        return [(self.runs.stretched(times).within(RADIUS), times) for times in lengths]

    def left_out_of(self, estimator: Estimator) -> float:
        """The relative error that remains: the product of the errors at each length."""
        return float(np.prod([runs.left_out_of(estimator) for runs, _ in self.stretched]))

    def entry(
        self, j: int, k: int, times: float = 1.0, estimator: Estimator = GRPO
    ) -> Extrapolation:
        schedule, curvatures = self.runs.decay, self.runs.landscape.curvatures
        exponent = schedule.c * float(curvatures[j] + curvatures[k]) - 1
        points = []
        for runs, stretch in self.stretched:
            ends = (self.first * stretch, runs.steps)
            at = [step + stretch * schedule.t0 for step in ends]
            grown = [(one / at[0]) ** exponent for one in at]
            weights = (-grown[0] * at[0], grown[1] * at[1])
            shares = [times * weight / (grown[1] - grown[0]) for weight in weights]
            products = [runs.product(k, j, step, estimator) for step in ends]
            points.append(Linear(runs.training, tuple(zip(products, shares, strict=True))))
        return Extrapolation(tuple(points), tuple(share for _, share in EXTRAPOLATED[self.stages]))

    def form(self, estimator: Estimator = GRPO) -> tuple[Extrapolation, ...]:
        """The lower triangle of ½ Λ^½ Γ Λ^½, row by row."""
        root = np.sqrt(self.runs.landscape.curvatures)
        return tuple(
            self.entry(j, k, 0.5 * float(root[j] * root[k]), estimator)
            for j in range(self.runs.rank)
            for k in range(j + 1)
        )
