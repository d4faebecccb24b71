"""The problems that whole training runs are checked on: each has an interior optimum.

Made up: a return that is exactly quadratic near its optimum, where Lemma 6 is attained; prompts that
disagree, where the group size matters; one and two identifiable directions with and without flat
ones for the limit law. Generated: the same kinds with numbers drawn from
the seed, in narrow ranges, since rates, steps and radii are made for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from sklearn.datasets import load_diabetes

from ustat_pg.engines import Ball, Estimator, Quantity, SquaredProjection
from ustat_pg.engines.gradients.cell import direction
from ustat_pg.predictions import gradient_covariance, gradient_mse
from ustat_pg.problems import (
    BentBandit,
    Constants,
    LocationBandit,
    Neighbourhood,
    SoftmaxBandit,
    constants,
    mixture_problem,
    ordered_problem,
)

from .problems import Suite

__all__ = [
    "Ground",
    "Landscapes",
    "ball",
    "certain",
    "covariance_of",
    "form_of_weight",
    "largest_mse",
    "projected",
    "region",
]

Landscape = LocationBandit | BentBandit


@dataclass(frozen=True)
class Ground:
    """A problem with an interior optimum, its name and where it comes from: made-up, generated, real."""

    name: str
    origin: str
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


def tilted(angle: float = 1.1, tilt: float = 0.2) -> LocationBandit:
    """The same prompts with two parameters that act through one sum, in a direction that no axis has:
    the other direction is flat.
    """
    way = 4.0 * np.array([np.cos(angle), np.sin(angle)])
    one = disagreement(tilt)
    rewards = one.mean_rewards
    return certain([way, way], one.arms, 2.0, rewards, radius=0.5)


def plane(ratio: float = 0.3, angle: float = 0.4) -> LocationBandit:
    """Two directions, each with a prompt of its own, of very different noise: unequal weights."""
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    arms = np.array([-1.0, 0.0, 1.0])
    rewards = np.array([[0.1, 0.9, 0.2], [0.2, 0.9, 0.1]])
    return certain(turn * [[3.0], [3.0 * ratio]], arms, 1.2, rewards, radius=1.0)


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


def form_of_weight(landscape: Landscape, axis: Any, c: float) -> np.ndarray:
    """M with tr(M Cov(ĝ)) = uᵀ ½Λ^{1/2}ΓΛ^{1/2} u, (d, d): the limit weight whose eigenvector is u."""
    curvatures, unit = landscape.curvatures, np.asarray(axis)
    root = np.sqrt(curvatures) * unit
    inner = 0.5 * c**2 * np.outer(root, root)
    inner /= c * (curvatures[:, None] + curvatures) - 1
    return np.asarray(landscape.identifiable @ inner @ landscape.identifiable.T)


def triple(tilt: float = 0.0, lift: float = 0.3, *, flat: bool = False) -> LocationBandit:
    """Three arms with sure rewards, the middle one best. Tilted, two prompts disagree about the others.

    With ``flat`` two parameters act through one sum.
    """
    way = np.array([[0.6, 0.8]]) if flat else np.array([[1.0]])
    if not tilt:
        return certain(way, [-1.0, 0.0, 1.0], 1.0, [lift, 1.0, 0.0])
    rewards = np.array([[lift - tilt, 1.0, lift + tilt], [lift + tilt, 1.0, lift - tilt]])
    return certain(np.repeat(way, 2, axis=0), [-1.0, 0.0, 1.0], 1.0, rewards)


def uneven(first: float = 1.4, second: float = 3.0) -> BentBandit:
    """The scores of :func:`~ustat_pg.problems.norm_only_problem` with bends that make one direction
    flatter: E[‖s‖² a] = 0 as there, but Λ = diag((first - 1)/4, (second + 1)/4).

    Errors in the flatter direction are forgotten slowly and make up most of the gap.
    """
    units = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    earns = np.array([1.0, 1.0, 0.0, 0.0])
    bends = earns[:, None] * [first, second]
    law = np.ones((1, 4, 1))
    return BentBandit(np.ones(1), units[None], bends[None], earns[None, :, None], law)


def tug(
    height: float = 0.6, tilt: float = 0.2, tau: float = 2.0, copies: int = 1
) -> LocationBandit:
    """Two kinds of prompts that pull apart on three arms: the middle one earns ``height`` on both, the
    outer ones ``tilt`` more or less, the other way round on the other kind.

    With ε the probability of an outer arm, c₃/c₁ = 2 + (1 - 2ε)(height/tilt)² and
    c₂/c₁ = (1 + (1 - 2ε)²(height/tilt)²)/(2ε) - 1: rare outer arms make c₂ large alone.
    """
    arms = np.array([-1.0, 0.0, 1.0])
    middle = height * (arms == 0)
    rewards = np.stack([middle + tilt * arms, middle - tilt * arms] * copies)
    return certain([[tau**2]] * (2 * copies), arms, tau, rewards)


def crossing() -> LocationBandit:
    """Two directions: a flat one in which prompts pull apart, a steep one of noise alone."""
    arms = np.array([-1.0, 0.0, 1.0])
    middle = 1.0 * (arms == 0)
    rewards = np.stack([0.3 * middle + 0.3 * arms, 0.3 * middle - 0.3 * arms, 2 * middle])
    return certain([[2.8, 0.0], [2.8, 0.0], [0.0, 4.0]], arms, 2.0, rewards)


class Landscapes:
    """The problems, by what they are for."""

    def __init__(self, suite: Suite) -> None:
        self.suite = suite
        # Whole runs cost more than gradients: half as many problems of each kind.
        self.generated = max(suite.generated // 2, 1)

    @cached_property
    def bowl(self) -> Ground:
        """One prompt, a quadratic return."""
        return Ground("bowl", "made-up", bowl())

    def bowls(self) -> Iterator[Ground]:
        """Generated ones."""
        for number in range(self.generated):
            rng = np.random.default_rng([self.suite.seed, number, 11])
            problem = bowl(float(rng.uniform(-0.1, 0.1)), float(rng.uniform(0.38, 0.42)))
            yield Ground(f"bowl#{self.suite.seed}.{number}", "generated", problem)

    @cached_property
    def slopes(self) -> Ground:
        """Three prompts, two directions, noisy rewards."""
        problem = LocationBandit.bump([-1.0, 0.0, 1.0], [-0.7, 0.8, 0.3])
        return Ground("slopes", "made-up", problem)

    @cached_property
    def diabetes(self) -> Ground:
        """Real data: every 20th of 442 patients as a prompt, with the body mass index as its feature
        and the progression of the disease as the arm to hit.
        """
        data = load_diabetes(scaled=False)
        index = data.data[::20, data.feature_names.index("bmi")]
        found = data.target[::20]
        targets = 3 * (found - found.min()) / np.ptp(found) - 1.5
        problem = LocationBandit.bump((index - index.mean()) / index.std(), targets)
        return Ground("diabetes", "real", problem)

    @cached_property
    def steep(self) -> Ground:
        """Three prompts, two directions of more unequal curvatures, noisy rewards."""
        problem = LocationBandit.bump([-0.5, 0.2, 1.4], [-0.7, 0.8, 0.6])
        return Ground("steep", "made-up", problem)

    @cached_property
    def disagreement(self) -> Ground:
        """Two prompts that pull apart: where the group size matters."""
        return Ground("disagreement", "made-up", disagreement())

    def disagreements(self) -> Iterator[Ground]:
        """Generated ones."""
        for number in range(self.generated):
            rng = np.random.default_rng([self.suite.seed, number, 12])
            problem = disagreement(float(rng.uniform(0.17, 0.21)), float(rng.uniform(1.1, 1.3)))
            yield Ground(f"disagreement#{self.suite.seed}.{number}", "generated", problem)

    @cached_property
    def tilted(self) -> Ground:
        """More parameters than the return sees: one direction is flat."""
        return Ground("tilted", "made-up", tilted())

    def tilteds(self) -> Iterator[Ground]:
        """Generated ones."""
        for number in range(self.generated):
            rng = np.random.default_rng([self.suite.seed, number, 13])
            problem = tilted(float(rng.uniform(0.9, 1.2)), float(rng.uniform(0.17, 0.21)))
            yield Ground(f"tilted#{self.suite.seed}.{number}", "generated", problem)

    @cached_property
    def plane(self) -> Ground:
        """Two directions of very different noise."""
        return Ground("plane", "made-up", plane())

    def planes(self) -> Iterator[Ground]:
        """Generated ones."""
        for number in range(self.generated):
            rng = np.random.default_rng([self.suite.seed, number, 14])
            problem = plane(float(rng.uniform(0.28, 0.34)), float(rng.uniform(0.0, 1.5)))
            yield Ground(f"plane#{self.suite.seed}.{number}", "generated", problem)

    def triples(self, kind: str) -> Iterator[Ground]:
        """Three arms: one prompt, a "pair" that disagrees, or one prompt with a "flat" direction.

        First the made-up one, then those generated.
        """
        number_of = {"one": 21, "pair": 22, "flat": 23}[kind]
        tilt, flat = 0.25 * (kind == "pair"), kind == "flat"
        name = {"one": "triple", "pair": "quarrel", "flat": "flat triple"}[kind]
        yield Ground(name, "made-up", triple(tilt, flat=flat))
        for number in range(self.generated):
            rng = np.random.default_rng([self.suite.seed, number, number_of])
            tilt = float(rng.uniform(0.2, 0.3)) * (kind == "pair")
            problem = triple(tilt, float(rng.uniform(0.25, 0.45)), flat=flat)
            yield Ground(f"{name}#{self.suite.seed}.{number}", "generated", problem)

    def mixtures(self) -> Iterator[Ground]:
        """Noise that depends on a parameter which is never identified: made-up, then generated."""
        yield Ground("mixture", "made-up", mixture_problem())
        for number in range(self.generated):
            rng = np.random.default_rng([self.suite.seed, number, 24])
            problem = mixture_problem(
                target=float(rng.uniform(-0.5, 0.5)), noise=float(rng.uniform(0.5, 0.7))
            )
            yield Ground(f"mixture#{self.suite.seed}.{number}", "generated", problem)

    def ordered(self, dimensions: int = 1) -> Iterator[Ground]:
        """E[s sᵀ a] = 0 at the optimum: made-up, then generated."""
        name = "ordered" if dimensions == 1 else f"ordered, d = {dimensions}"
        yield Ground(name, "made-up", ordered_problem(dimensions))
        for number in range(self.generated):
            rng = np.random.default_rng([self.suite.seed, number, 25, dimensions])
            bend = rng.uniform(0.8, 1.2, dimensions)
            problem = ordered_problem(dimensions, bend=bend, value=float(rng.uniform(0.45, 0.55)))
            yield Ground(f"{name}#{self.suite.seed}.{number}", "generated", problem)

    def uneven(self) -> Iterator[Ground]:
        """E[‖s‖² a] = 0 but not E[s sᵀ a], and unequal curvatures: made-up, then generated."""
        yield Ground("uneven", "made-up", uneven())
        for number in range(self.generated):
            rng = np.random.default_rng([self.suite.seed, number, 26])
            problem = uneven(float(rng.uniform(1.35, 1.45)), float(rng.uniform(2.5, 3.5)))
            yield Ground(f"uneven#{self.suite.seed}.{number}", "generated", problem)

    def tugs(self, kind: str) -> Iterator[Ground]:
        """Prompts that pull apart: a "tug" for which G* is about 3, an "accord" for which it is
        larger, "rare" outer arms, or a "crowd" of 24 prompts. First the made-up one, then those
        generated.
        """
        number_of = {"tug": 31, "accord": 32, "rare": 33, "crowd": 34}[kind]
        height, tilt, tau = {"accord": (0.6, 0.05, 2.0), "rare": (0.5, 1.0, 0.5)}.get(
            kind, (0.6, 0.2, 2.0)
        )
        copies = 12 if kind == "crowd" else 1
        yield Ground(kind, "made-up", tug(height, tilt, tau, copies))
        for number in range(self.generated):
            rng = np.random.default_rng([self.suite.seed, number, number_of])
            problem = tug(
                height * float(rng.uniform(0.95, 1.05)), tilt, tau * float(rng.uniform(0.97, 1.03)),
                copies,
            )  # fmt: skip
            yield Ground(f"{kind}#{self.suite.seed}.{number}", "generated", problem)

    @cached_property
    def crossing(self) -> Ground:
        """Two directions that want different group sizes."""
        return Ground("crossing", "made-up", crossing())
