"""Balls around an optimum, and what Lemma 6 asks of them: L, μ and M."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike

from ustat_pg.engines import Ball, Constant, Training
from ustat_pg.engines.runs.schedules import Schedule
from ustat_pg.predictions import bound_curve, gradient_mse
from ustat_pg.problems import Constants, LocationBandit, SoftmaxBandit, constants

from ..problems.landscapes import Landscape, LandscapeEntry
from .runs import NearOptimum


@lru_cache(maxsize=256)
def region(landscape: LocationBandit, radius: float) -> Constants:
    """L, μ and μ' within a radius of the optimum."""
    return constants(landscape, radius)


@lru_cache(maxsize=256)
def largest_mse(
    landscape: LocationBandit, radius: float, baseline: str, group_size: int, batch_size: int
) -> float:
    """M: the largest MSE of a gradient on a grid of the ball, made finer twice about the noisiest
    point, and 0.1% for what lies between.
    """
    basis = landscape.identifiable
    steps = np.linspace(-1, 1, 11 if basis.shape[1] == 1 else 7)
    grid = np.stack(np.meshgrid(*[steps] * basis.shape[1]), axis=-1).reshape(-1, basis.shape[1])

    def largest_at(points: np.ndarray) -> tuple[float, np.ndarray]:
        length = np.linalg.norm(points, axis=1, keepdims=True)
        points = points * np.minimum(1, radius / np.maximum(length, 1e-300))
        errors = [
            gradient_mse(
                landscape.at(landscape.maximiser + basis @ point).moments(),
                baseline,
                group_size,
                batch_size,
            ).mse
            for point in points
        ]
        return max(errors), points[int(np.argmax(errors))]

    width = radius
    most, where = largest_at(width * grid)
    for _ in range(2):
        width *= float(steps[1] - steps[0])
        finer, where = largest_at(where + width * grid)
        most = max(most, finer)
    return 1.001 * most


@dataclass(frozen=True)
class Basin:
    """A ball around an optimum, the constants on it, and the point where runs start, at a distance from
    the optimum along the flattest direction.
    """

    entry: LandscapeEntry
    radius: float
    distance: float

    @property
    def gap(self) -> float:
        """The gap at the start, by sums over prompts and arms."""
        landscape = self.entry.problem
        point = landscape.maximiser + self.distance * landscape.identifiable[:, 0]
        start, top = returns(landscape, np.stack([point, landscape.maximiser]))
        return float(top - start)

    @property
    def curvature(self) -> float:
        return float(self.entry.problem.curvatures[0])

    @property
    def _constants(self) -> Constants:
        return region(self.entry.problem, self.radius)

    @property
    def pl(self) -> float:
        return self._constants.pl

    @property
    def smoothness(self) -> float:
        return self._constants.smoothness

    @property
    def known(self) -> dict[str, float]:
        return {"pl": self.pl, "smoothness": self.smoothness}

    @property
    def weak(self) -> float:
        """μ' on the ball."""
        return self._constants.weak

    def mse(self, baseline: str, group_size: int, batch_size: int = 1) -> float:
        return largest_mse(self.entry.problem, self.radius, baseline, group_size, batch_size)

    def bounds(self, rates: ArrayLike, mse: float) -> np.ndarray:
        """Lemma 6's bounds on the gap at every step, (T + 1,)."""
        return bound_curve(self.gap, rates, mse=mse, **self.known)

    def both(
        self, rates: ArrayLike, reach: float, most: float, least: float | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The recursion from below, with what constants are within a reach of the optimum and the least
        M, and from above, (T + 1,) each.
        """
        low = recursion(
            self.gap, rates, mse=most if least is None else least, **self.other_ends(reach)
        )
        return low, recursion(self.gap, rates, mse=most, **self.known)

    def other_ends(self, reach: float) -> dict[str, float]:
        """The largest PL ratio and the least curvature within a reach of the optimum, in place of μ and
        L: with these the recursion is a bound from below.
        """
        scan = self.scan
        near = np.abs(scan.away) <= reach
        return {"pl": float(scan.ratios[near].max()), "smoothness": float(scan.bend[near].min())}

    def least_mse(self, reach: float, baseline: str, group_size: int) -> float:
        """The least MSE of a gradient within a reach of the optimum, on a grid."""
        problems = map(self.scan.at, np.linspace(-reach, reach, 9))
        return min(
            gradient_mse(problem.moments(), baseline, group_size).mse for problem in problems
        )

    def runs(
        self, group_size: int, steps: int, schedule: Schedule, batch_size: int = 1
    ) -> NearOptimum:
        start = (self.distance,)
        return NearOptimum(
            self.entry, group_size, steps, schedule, batch_size, start=start, radius=self.radius
        )

    @cached_property
    def scan(self) -> Scan:
        """The return along the ball's diameter."""
        return Scan.of(self.entry.problem, self.radius)


def recursion(gap: float, rates: ArrayLike, pl: float, smoothness: float, mse: float) -> np.ndarray:
    """Lemma 6's recursion step by step, with the factor (1 - Lη)² beyond 2/L, (T + 1,)."""
    gaps = [gap]
    for rate in np.asarray(rates).tolist():
        slope = pl if smoothness * rate <= 2 else smoothness
        kept = gaps[-1] - 2 * slope * rate * (1 - smoothness * rate / 2) * gaps[-1]
        gaps.append(kept + smoothness * rate * rate * mse / 2)
    return np.array(gaps)


def returns(landscape: Landscape, theta: np.ndarray) -> np.ndarray:
    """J at parameters (n, d), summed over prompts and arms: what gaps are held against, (n,)."""
    assert isinstance(landscape, LocationBandit)
    places = theta @ landscape.directions.T
    logits = -((landscape.arms - places[..., None]) ** 2) / (2 * landscape.tau**2)
    likely = np.exp(logits - logits.max(axis=-1, keepdims=True))
    likely /= likely.sum(axis=-1, keepdims=True)
    earned = (landscape.rewards * landscape.reward_probs).sum(axis=-1)
    return np.asarray((likely * earned).sum(axis=-1) @ landscape.context_probs)


@dataclass(frozen=True)
class Scan:
    """A return with one identifiable direction, on a dense grid of a ball: the gap J* - J at
    displacements (n,) from the optimum, with its first and second derivative.

    These are differences of sums over prompts and arms, and owe nothing to formulas.
    """

    landscape: Landscape
    away: np.ndarray
    gap: np.ndarray
    slope: np.ndarray
    bend: np.ndarray

    @classmethod
    def of(cls, landscape: Landscape, radius: float, points: int = 1001) -> Scan:
        """The scan of the ball about the maximiser."""
        away = np.linspace(-radius, radius, points)
        width = radius / 300
        theta = landscape.maximiser + landscape.identifiable[:, 0] * away[:, None]
        move = width * landscape.identifiable[:, 0]
        top = float(returns(landscape, landscape.maximiser[None])[0])
        two, one, here, up, over = (
            top - returns(landscape, theta + k * move) for k in range(-2, 3)
        )
        slope = (8 * (up - one) - (over - two)) / (12 * width)
        bend = (16 * (up + one) - (over + two) - 30 * here) / (12 * width**2)
        return cls(landscape, away, here, slope, bend)

    @property
    def curvature(self) -> float:
        return float(self.bend[len(self.away) // 2])

    @property
    def ratios(self) -> np.ndarray:
        """‖∇J‖²/(2 gap), (n,); its limit where the gap is small."""
        near = np.abs(self.away) < 0.02 * self.away[-1]
        return np.asarray(
            np.where(near, self.curvature, self.slope**2 / (2 * np.where(near, 1.0, self.gap)))
        )

    @property
    def pulls(self) -> np.ndarray:
        """⟨∇J, θ* - θ⟩/‖θ - θ*‖², (n,); its limit near the optimum."""
        near = np.abs(self.away) < 0.02 * self.away[-1]
        return np.asarray(
            np.where(near, self.curvature, self.slope / np.where(near, 1.0, self.away))
        )

    @cached_property
    def noise(self) -> np.ndarray:
        """E‖ĝ - ∇J‖² of grpo at G = 2 and B = 1, summed over prompts and pairs of arms, (n,)."""
        landscape = self.landscape
        assert isinstance(landscape, LocationBandit)
        ways = landscape.directions @ landscape.identifiable[:, 0]
        places = self.away[:, None] * ways + landscape.directions @ landscape.maximiser
        logits = -((landscape.arms - places[..., None]) ** 2) / (2 * landscape.tau**2)
        likely = np.exp(logits)
        likely /= likely.sum(axis=-1, keepdims=True)
        values, law = landscape.rewards, landscape.reward_probs
        # E (z₁ - z₂)² of two arms, their rewards drawn apart.
        means, squares = (values * law).sum(axis=-1), (values**2 * law).sum(axis=-1)
        apart = (
            squares[:, :, None] + squares[:, None, :] - 2 * means[:, :, None] * means[:, None, :]
        )
        between = np.subtract.outer(landscape.arms, landscape.arms) ** 2 / landscape.tau**4
        total = np.einsum("nxj,nxk,xjk,jk->nx", likely, likely, apart, between)
        return np.asarray(total @ (landscape.context_probs * ways**2) / 4 - self.slope**2)

    def spread(self, reach: float, centre: float = 0.0) -> float:
        """By what share the curvature differs at most within a reach of a place from that there."""
        near = self.bend[np.abs(self.away - centre) <= reach]
        there = np.interp(centre, self.away, self.bend)
        return float(np.abs(near / there - 1).max())

    def variation(self, reach: float) -> float:
        """By what share curvature and noise differ at most, together, within a reach of the optimum."""
        near = np.abs(self.away) <= reach
        noise = self.noise / self.noise[len(self.away) // 2]
        return self.spread(reach) + float(np.abs(noise[near] - 1).max())

    def place(self, where: float) -> np.ndarray:
        return np.asarray(self.landscape.maximiser + where * self.landscape.identifiable[:, 0])

    def at(self, where: float) -> SoftmaxBandit:
        return self.landscape.at(self.place(where))

    def longest(self, rate: float) -> float:
        """How far a step can lead at most: no score is longer; no reward, and no difference of two, is
        larger.
        """
        landscape = self.landscape
        assert isinstance(landscape, LocationBandit)
        score = (
            float(np.abs(landscape.directions).max() * np.ptp(landscape.arms)) / landscape.tau**2
        )
        rewards = landscape.rewards
        return rate * score * max(float(np.ptp(rewards)), float(np.abs(rewards).max()))

    def step(self, where: float, rate: float, group_size: int, batch_size: int = 1) -> Training:
        """Runs of a single step from there, on a ball that no step reaches the edge of: so a gap and a
        parameter have a range as small as the step.
        """
        landscape, start = self.landscape, self.place(where)
        ball = Ball(start, self.longest(rate), landscape.identifiable)
        return Training(
            landscape, group_size, 1, Constant(rate), batch_size, start=start, projection=ball
        )
