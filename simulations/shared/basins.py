"""Balls around an optimum, and the constants of Lemma 6 on them: L, μ and M."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import inf

import numpy as np
from numpy.typing import ArrayLike

from ustat_pg.predictions import bound_curve, gradient_mse
from ustat_pg.problems import SoftmaxBandit

from ..engines import Ball, Constant, Training
from ..engines.runs.schedules import Schedule
from ..evidence import Check, Extrapolation, Linear, equal
from ..interior_problems.constants import Constants, constants
from ..interior_problems.location_bandit import LocationBandit
from ..problems.landscapes import Landscape, LandscapeEntry
from .runs import NearOptimum

region = lru_cache(maxsize=256)(constants)
"""L, μ and μ' within a radius of the optimum."""


Values = Callable[[np.ndarray], ArrayLike]
"""Values (n,) at points (n, r)."""

FINER = 5
"""The number of times that a grid is refined around its best point."""


def largest(values_at: Values, radius: float, rank: int, points: int = 11) -> tuple[float, float]:
    """The largest value on a ball, and the possible excess of a value between the points.

    A grid of ``points`` points per side is refined several times around its best point. The
    error is at most the difference of the values on the last grid, if these have one peak there.
    """
    steps = np.linspace(-1, 1, points)
    grid = np.stack(np.meshgrid(*[steps] * rank), axis=-1).reshape(-1, rank)
    where, width, most, missed = np.zeros(rank), radius, -inf, inf
    for _ in range(1 + FINER):
        around = where + width * grid
        length = np.linalg.norm(around, axis=1, keepdims=True)
        around = around * np.minimum(1, radius / np.maximum(length, radius))
        values = np.asarray(values_at(around))
        place = int(values.argmax())
        if values[place] >= most:
            most, where = float(values[place]), around[place]
        missed = most - float(values.min())
        width *= float(steps[1] - steps[0])
    return most, missed


@lru_cache(maxsize=256)
def largest_mse(
    landscape: LocationBandit, radius: float, estimator: str, group_size: int, batch_size: int
) -> tuple[float, float]:
    """M, the largest MSE of a gradient on a ball, and the excess of this bound over the value found,
    which is the possible error between the points of its grid.
    """
    basis = landscape.identifiable

    def errors_at(points: np.ndarray) -> list[float]:
        problems = (landscape.at(landscape.maximiser + basis @ point) for point in points)
        sizes = estimator, group_size, batch_size
        return [gradient_mse(problem.moments(), *sizes).mse for problem in problems]

    rank = basis.shape[1]
    found, missed = largest(errors_at, radius, rank, 11 if rank == 1 else 7)
    return found + missed, missed


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

    def mse(self, estimator: str, group_size: int, batch_size: int = 1) -> float:
        """M on the ball."""
        return self.mse_with_error(estimator, group_size, batch_size)[0]

    def mse_with_error(
        self, estimator: str, group_size: int, batch_size: int = 1
    ) -> tuple[float, float]:
        """M on the ball, and how much less it may be."""
        return largest_mse(self.entry.problem, self.radius, estimator, group_size, batch_size)

    def bounds(self, rates: ArrayLike, mse: float) -> np.ndarray:
        """The bounds of Lemma 6 on the gap at every step, (T + 1,)."""
        return bound_curve(self.gap, rates, mse=mse, **self.known)

    def both(
        self, rates: ArrayLike, reach: float, most: float, least: float | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The lower recursion, with the largest PL ratio and the least curvature within a reach of the
        optimum instead of μ and L, and the least M; and the upper recursion, (T + 1,) each.
        """
        (_, pl), (bend, _) = (
            self.scan.between(v, reach) for v in (self.scan.ratios, self.scan.bend)
        )
        low = recursion(self.gap, rates, pl, bend, most if least is None else least)
        return low, recursion(self.gap, rates, mse=most, **self.known)

    def least_mse(self, reach: float, estimator: str, group_size: int) -> float:
        """The least MSE of a gradient within a reach of the optimum, minus the possible error from
        a grid.
        """
        at = self.scan.at

        def less(points: np.ndarray) -> list[float]:
            moments = (at(float(where)).moments() for where in points[:, 0])
            return [-gradient_mse(each, estimator, group_size).mse for each in moments]

        return -sum(largest(less, reach, 1))

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
    """J at parameters (n, d), real or complex, summed over prompts and arms, (n,). Gaps are compared
    with it.
    """
    assert isinstance(landscape, LocationBandit)
    places = theta @ landscape.directions.T
    logits = -((landscape.arms - places[..., None]) ** 2) / (2 * landscape.tau**2)
    likely = np.exp(logits - logits.real.max(axis=-1, keepdims=True))
    likely /= likely.sum(axis=-1, keepdims=True)
    earned = (landscape.rewards * landscape.reward_probs).sum(axis=-1)
    return np.asarray((likely * earned).sum(axis=-1) @ landscape.context_probs)


RING, TURN = 16, 0.1
"""Points of a ring in the complex plane, and the spread of the logits' imaginary parts there. It is far
below π, so that a sum of exponentials is never 0.
"""


@dataclass(frozen=True)
class Least:
    """A least value on a grid: its place, and the possible error of the least value between the points."""

    place: int
    value: float
    error: float


@dataclass(frozen=True)
class Scan:
    """A return with one identifiable direction, on a dense grid of a ball: the gap J* - J at
    displacements (n,) from the optimum, with its first and second derivative.

    These are sums over prompts and arms, without formulas: a derivative is Cauchy's integral of
    the return on a ring. Its error is the change from using half of the ring's points, plus rounding.

    Arguments:
        ratios: ‖∇J‖²/(2 gap), (n,).
        pulls: ⟨∇J, θ* - θ⟩/‖θ - θ*‖², (n,).
        error: the resulting errors of bends, ratios and pulls.
    """

    landscape: LocationBandit
    away: np.ndarray
    gap: np.ndarray
    slope: np.ndarray
    bend: np.ndarray
    ratios: np.ndarray
    pulls: np.ndarray
    error: float

    @classmethod
    def of(cls, landscape: Landscape, radius: float, points: int = 1001) -> Scan:
        """The scan of the ball about the maximiser, on an odd number of points."""
        assert isinstance(landscape, LocationBandit)
        away, way = np.linspace(-radius, radius, points), landscape.identifiable[:, 0]
        steepest = float(np.abs(landscape.directions @ way).max() * np.ptp(landscape.arms))
        ring = TURN * landscape.tau**2 / steepest
        places = away[:, None] + ring * np.exp(2j * np.pi * np.arange(RING) / RING)
        top = returns(landscape, landscape.maximiser[None])[0]
        theta = landscape.maximiser + places.reshape(-1, 1) * way
        lost = top - returns(landscape, theta).reshape(places.shape)
        # Taylor terms on the ring around every point, then from half of the ring's points.
        terms, coarse = (
            np.fft.fft(some, axis=1, norm="forward").real for some in (lost, lost[:, ::2])
        )
        gap, slope, bend = terms[:, 0], terms[:, 1] / ring, 2 * terms[:, 2] / ring**2
        # Near the optimum, rounding nearly hides the gap and the slope, but not their series there.
        near, orders = np.abs(away) < ring, np.arange(2, RING)
        powers = (away[near, None] / ring) ** (orders - 2)
        series = terms[points // 2, 2:] / ring**2
        pulls, half = np.ones(points), np.ones(points)
        pulls[near], half[near] = powers @ (orders * series), powers @ series
        far = ~near
        pulls[far], half[far] = slope[far] / away[far], gap[far] / away[far] ** 2
        rounding = RING * np.finfo(float).eps * float(np.abs(landscape.rewards).max())
        off = (float(np.abs(terms[:, 1:3] - coarse[:, 1:3]).max()) + rounding) / ring**2
        # The error of a pull is at most this divided by the ring's radius, plus half the error of a bend.
        ratios = pulls**2 / (2 * half)
        error = off * float(2 + np.abs(pulls / half).max() + (ratios / half).max())
        return cls(landscape, away, gap, slope, bend, ratios, pulls, error)

    @property
    def curvature(self) -> float:
        return float(self.bend[len(self.away) // 2])

    def least(self, values: np.ndarray) -> Least:
        """The least of values (n,) on the ball: between neighbours a parabola falls by no more than an
        eighth of its second difference.
        """
        place = int(values.argmin())
        inside = min(max(place, 1), len(values) - 2)
        return Least(place, float(values[place]), self._between_points(values[inside - 1 :][:3]))

    def between(self, values: np.ndarray, reach: float) -> tuple[float, float]:
        """The bounds of the values (n,) within a reach of the optimum, also between points of the grid."""
        near = values[np.abs(self.away) <= reach + self._step]
        error = self._between_points(near)
        return float(near.min()) - error, float(near.max()) + error

    def _between_points(self, values: np.ndarray) -> float:
        """The amount by which a value between neighbours may exceed both."""
        return float(np.abs(np.diff(values, n=2)).max()) + self.error

    @property
    def _step(self) -> float:
        return float(self.away[1] - self.away[0])

    @cached_property
    def noise(self) -> np.ndarray:
        """E‖ĝ - ∇J‖² of grpo at G = 2 and B = 1, summed over prompts and pairs of arms, (n,)."""
        landscape = self.landscape
        ways = landscape.directions @ landscape.identifiable[:, 0]
        places = self.away[:, None] * ways + landscape.directions @ landscape.maximiser
        likely = np.exp(-((landscape.arms - places[..., None]) ** 2) / (2 * landscape.tau**2))
        likely /= likely.sum(axis=-1, keepdims=True)
        values, law = landscape.rewards, landscape.reward_probs
        # E (z₁ - z₂)² of two arms with independent rewards.
        means, squares = (values * law).sum(axis=-1), (values**2 * law).sum(axis=-1)
        apart = (
            squares[:, :, None] + squares[:, None, :] - 2 * means[:, :, None] * means[:, None, :]
        )
        between = np.subtract.outer(landscape.arms, landscape.arms) ** 2 / landscape.tau**4
        total = np.einsum("nxj,nxk,xjk,jk->nx", likely, likely, apart, between)
        return np.asarray(total @ (landscape.context_probs * ways**2) / 4 - self.slope**2)

    def spread(self, reach: float, centre: float = 0.0) -> float:
        """The largest relative change of the curvature within a reach of a place."""
        near = self.bend[np.abs(self.away - centre) <= reach + self._step]
        there = np.interp(centre, self.away, self.bend)
        return float(np.abs(near / there - 1).max())

    def variation(self, reach: float) -> float:
        """The largest total relative change of curvature and noise within a reach of the optimum."""
        near = np.abs(self.away) <= reach + self._step
        noise = self.noise / self.noise[len(self.away) // 2]
        return self.spread(reach) + float(np.abs(noise[near] - 1).max())

    def place(self, where: float) -> np.ndarray:
        return np.asarray(self.landscape.maximiser + where * self.landscape.identifiable[:, 0])

    def at(self, where: float) -> SoftmaxBandit:
        return self.landscape.at(self.place(where))

    def longest(self, rate: float) -> float:
        """The largest length of a step: no score is longer, and no reward or difference of two rewards is
        larger.
        """
        landscape = self.landscape
        steepest = float(np.abs(landscape.directions).max() * np.ptp(landscape.arms))
        score, rewards = steepest / landscape.tau**2, landscape.rewards
        return rate * score * max(float(np.ptp(rewards)), float(np.abs(rewards).max()))

    def step(self, where: float, rate: float, group_size: int, batch_size: int = 1) -> Training:
        """Runs of a single step from a point, on a ball whose edge no step reaches. So a gap and a
        parameter have a range that is as small as the step.
        """
        landscape, start = self.landscape, self.place(where)
        ball = Ball(start, self.longest(rate), landscape.identifiable)
        return Training(
            landscape, group_size, 1, Constant(rate), batch_size, start=start, projection=ball
        )


def curvatures(entry: LandscapeEntry) -> Iterator[Check]:
    """The curvature of the return at the optimum, from the gaps at h and h/2 on both sides, with its error
    from the gaps at 2h; and the gap far away.
    """
    landscape = entry.problem
    policy = landscape.at(landscape.maximiser).policy
    scores = np.stack([policy.scores(x) for x in range(landscape.contexts)])
    scores = scores @ landscape.identifiable

    def gap(away: np.ndarray) -> Linear:
        return NearOptimum(entry, 2, 1, Constant(1.0), start=tuple(away.tolist())).gap(step=0)

    for place, curvature in enumerate(landscape.curvatures.tolist()):
        h = 0.2 / float(np.abs(scores[..., place]).max())
        ways = np.multiply.outer((1.0, -1.0, 0.5, -0.5), np.eye(len(landscape.curvatures))[place])

        # λ h² + a h⁴ + … at h and at h/2, on both sides.
        def shares(h: float) -> np.ndarray:
            return np.array((-1.0, -1.0, 16.0, 16.0)) / (3 * h**2)

        def bend(h: float, ways: np.ndarray = ways) -> float:
            places = landscape.maximiser + h * ways @ landscape.identifiable.T
            top = returns(landscape, landscape.maximiser[None])
            return float(shares(h) @ (top - returns(landscape, places)))

        points = tuple(gap(way) for way in h * ways)
        # The remaining error falls like h⁴, so it is a sixteenth of the coarser one; the two differ by it.
        statement = equal(curvature, digits=abs(bend(2 * h) - bend(h)))
        bends = Extrapolation(points, tuple(shares(h).tolist()))
        yield entry.check(f": curvature {place + 1}", bends, statement)
    away = np.full(len(landscape.curvatures), 6 / float(np.abs(scores).max()))
    start = landscape.maximiser + landscape.identifiable @ away
    gap_there = landscape.maximum - float(landscape.objective(start))
    yield entry.check(": gap far away", gap(away), equal(gap_there))
