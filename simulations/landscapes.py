"""The problems that whole training runs are checked on: each has an interior optimum.

Made up: a return that is exactly quadratic near its optimum, where Lemma 6 is attained; prompts that
disagree, where the group size matters; one and two identifiable directions with and without flat
ones for the limit law. Generated: the same kinds with numbers drawn from the seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ustat_pg.engines import Ball
from ustat_pg.predictions import gradient_covariance, gradient_mse
from ustat_pg.problems import BentBandit, Constants, LocationBandit, Neighbourhood, constants

from .problems import Suite

__all__ = [
    "Ground",
    "Landscapes",
    "ball",
    "certain",
    "covariance_of",
    "largest_mse",
    "region",
]

Landscape = LocationBandit | BentBandit


@dataclass(frozen=True)
class Ground:
    """A problem with an interior optimum, its name and where it comes from: made-up or generated."""

    name: str
    group: str
    landscape: Landscape


def certain(
    directions: Any, arms: Any, tau: float, rewards: Any, *, radius: float = 1.0
) -> LocationBandit:
    """Equally likely prompts with directions (X, d), whose arms have sure rewards (X, K) or (K,)."""
    ways = np.atleast_2d(np.asarray(directions, dtype=float))
    contexts = len(ways)
    values = np.broadcast_to(rewards, (contexts, len(arms)))[..., None]
    uniform = np.full(contexts, 1 / contexts)
    return LocationBandit(uniform, ways, arms, tau, values, np.ones_like(values), radius)


def ball(landscape: Landscape, radius: float) -> Ball:
    """Θ: within a radius of the optimum in the identifiable directions."""
    return Ball(landscape.maximiser, radius, landscape.identifiable)


def covariance_of(
    landscape: Landscape, baseline: str, group_size: int, batch_size: int = 1, **more: Any
) -> np.ndarray:
    """Uᵀ Cov(ĝ) U at the optimum (Proposition 3), (r, r)."""
    moments = landscape.at(landscape.maximiser).moments()
    basis = landscape.identifiable
    whole = gradient_covariance(moments, baseline, group_size, batch_size, **more)
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


def bowl(target: float = 0.0, tau: float = 0.4) -> LocationBandit:
    """Sure rewards that are quadratic in the arm, so that the return is quadratic near its optimum."""
    arms = np.linspace(-2, 2, 9)
    return certain([[1.0]], arms, tau, 1 - (arms - target) ** 2 / (2 + abs(target)) ** 2)


def disagreement(tilt: float = 0.2, far: float = 1.2) -> LocationBandit:
    """Two prompts that pull apart: on one the reward grows with the arm by ``tilt``, on the other it
    falls, and both reward the arm in the middle. Steps are steep in θ: c₃/c₁ is about 5 at .2.
    """
    arms = np.array([-far, -1.0, 0.0, 1.0, far])
    middle = 0.3 + 0.5 * (arms == 0)
    rewards = np.stack([middle + tilt * arms, middle - tilt * arms])
    return certain([[4.0], [4.0]], arms, 2.0, rewards, radius=0.5)


class Landscapes:
    """The problems, by what they are for."""

    def __init__(self, suite: Suite) -> None:
        self.suite = suite

    @cached_property
    def bowl(self) -> Ground:
        """One prompt, a quadratic return."""
        return Ground("bowl", "made-up", bowl())

    def bowls(self) -> Iterator[Ground]:
        """Generated ones."""
        for number in range(self.suite.generated):
            rng = np.random.default_rng([self.suite.seed, number, 11])
            problem = bowl(float(rng.uniform(-0.1, 0.1)), float(rng.uniform(0.38, 0.42)))
            yield Ground(f"bowl#{self.suite.seed}.{number}", "generated", problem)

    @cached_property
    def slopes(self) -> Ground:
        """THEORY section 9, setting A: three prompts, two directions, noisy rewards."""
        problem = LocationBandit.bump([-1.0, 0.0, 1.0], [-0.7, 0.8, 0.3])
        return Ground("slopes", "made-up", problem)

    @cached_property
    def disagreement(self) -> Ground:
        """Two prompts that pull apart: where the group size matters."""
        return Ground("disagreement", "made-up", disagreement())

    def disagreements(self) -> Iterator[Ground]:
        """Generated ones."""
        for number in range(self.suite.generated):
            rng = np.random.default_rng([self.suite.seed, number, 12])
            problem = disagreement(float(rng.uniform(0.17, 0.21)), float(rng.uniform(1.1, 1.3)))
            yield Ground(f"disagreement#{self.suite.seed}.{number}", "generated", problem)
