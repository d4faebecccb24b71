"""Laws of the gap by other formulas: chi-squares in pairs, mixtures of them, epochs over every order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from ustat_pg.distributions import WeightedChi2
from ustat_pg.engines import Estimator
from ustat_pg.experiment import Check
from ustat_pg.predictions import (
    MixtureLaw,
    conditional_transform,
    epoch_gap,
    gap_transform,
    sup_distance,
)
from ustat_pg.problems import SoftmaxBandit

from . import Asked, Drawn
from .gradients import Law, problem

Array = NDArray[np.float64]

DENSE = 40
"""Points of an array that is dense enough to be interpolated."""

NODES = 400
"""Points of a quadrature of smooth functions."""


@dataclass(frozen=True)
class Pairs:
    """The law of Σ w χ²₂: sums of exponentials, in closed form where no two weights are alike."""

    weights: Array

    @property
    def _shares(self) -> Array:
        rates = 1 / (2 * self.weights)
        apart = rates[None] - rates[:, None] + np.eye(len(rates))
        return np.asarray(np.prod(np.where(np.eye(len(rates)), 1.0, rates[None] / apart), axis=1))

    def sf(self, x: Array) -> Array:
        """P(Q > x)."""
        return np.exp(-x[:, None] / (2 * self.weights)) @ self._shares

    def pdf(self, x: Array) -> Array:
        rates = 1 / (2 * self.weights)
        return np.exp(-x[:, None] * rates) @ (self._shares * rates)


def _weights(drawn: Drawn, count: int) -> Array:
    """Weights far enough apart for the sums of exponentials to keep their digits."""
    steps = drawn.rng.uniform(0.7, 2.0, size=count)
    return np.asarray(10 ** drawn.rng.uniform(-3, 3) * np.exp(-np.cumsum(steps)))


def chi_squares(drawn: Drawn) -> Iterator[Check]:
    """Laws of pairs, at single points, in dense arrays and in the far tail; quantiles, mean and variance."""
    weights = _weights(drawn, int(drawn.rng.integers(1, 5)))
    law, other = WeightedChi2(np.repeat(weights, 2)), Pairs(weights)
    mean = 2 * weights.sum()
    for what, points in {
        "dense": mean * np.linspace(0.3, 4.0, DENSE),
        "sparse": mean * np.linspace(0.3, 4.0, 5),
        "far": weights[0] * np.linspace(40.0, 400.0, DENSE),
    }.items():
        above, density = other.sf(points), other.pdf(points)
        yield drawn.check(f"{what}: log sf", law.logsf(points), np.log(above))
        yield drawn.check(f"{what}: log pdf", law.logpdf(points), np.log(density))
        yield drawn.check(f"{what}: sf", law.sf(points), above)
        yield drawn.check(f"{what}: pdf", law.pdf(points), density)
        yield drawn.check(f"{what}: isf", law.isf(above), points, 1e-8)
        if what != "far":
            yield drawn.check(f"{what}: cdf", law.cdf(points), 1 - above)
            yield drawn.check(f"{what}: log cdf", law.logcdf(points), np.log1p(-above))
            yield drawn.check(f"{what}: ppf", law.ppf(1 - above), points, 1e-8)
    moments = law.mean(), law.var()
    yield drawn.check("mean and variance", moments, (mean, 4 * (weights**2).sum()))
    count, size = int(drawn.rng.integers(1, 60)), float(weights[0])
    alike, known = WeightedChi2(np.full(count, size)), chi2(count, scale=size)
    points = known.ppf(np.linspace(0.001, 0.999, DENSE))
    for name in ("cdf", "sf", "pdf", "logcdf", "logsf", "logpdf"):
        yield drawn.check(
            f"{count} alike: {name}", getattr(alike, name)(points), getattr(known, name)(points)
        )


def mixtures(drawn: Drawn) -> Iterator[Check]:
    """Mixtures of laws; laws of runs that end in different places; distances of laws."""
    parts = [_weights(drawn, 2) for _ in range(3)]
    parts = [weights * 10 ** drawn.rng.uniform(-0.5, 0.5) / weights.sum() for weights in parts]
    probs = drawn.rng.dirichlet([1.0] * 3)
    laws = [WeightedChi2(np.repeat(weights, 2)) for weights in parts]
    mixed, others = MixtureLaw(laws, probs), [Pairs(weights) for weights in parts]
    points = np.linspace(0.3, 12.0, DENSE)
    above = probs @ np.stack([weights.sf(points) for weights in others])
    yield drawn.check("mixture: cdf", mixed.cdf(points), 1 - above)
    yield drawn.check("mixture: sf", mixed.sf(points), above)
    density = probs @ np.stack([weights.pdf(points) for weights in others])
    yield drawn.check("mixture: pdf", mixed.pdf(points), density)
    yield drawn.check("mixture: ppf", mixed.ppf(1 - above), points, 1e-8)
    means = np.array([2 * weights.sum() for weights in parts])
    squares = np.array([4 * (weights**2).sum() for weights in parts]) + means**2
    yield drawn.check("mixture: mean", mixed.mean(), probs @ means)
    yield drawn.check("mixture: variance", mixed.var(), probs @ squares - (probs @ means) ** 2)
    rows, places = np.repeat(np.stack(parts), 2, axis=1), np.array([0.5, 3.0, 8.0])
    heights = [
        1 - weights.sf(points[:1] * 0 + x)[0] for weights, x in zip(others, places, strict=True)
    ]
    yield drawn.check("runs' own laws", conditional_transform(places, rows), heights)
    grid = np.linspace(0.0, 60.0, 400_001)
    apart = np.abs(others[0].sf(grid) - others[1].sf(grid)).max()
    for tolerance in (1e-5, 1e-8):
        distance = sup_distance(laws[0], laws[1], tolerance=tolerance)
        yield drawn.check(f"distance of laws to {tolerance:g}", distance, apart, 1e-5 / apart)
    rate = float(drawn.rng.uniform(0.1, 5))
    places, shares = np.polynomial.legendre.leggauss(NODES)
    ends = 60.0 * means.max() / 2
    where = ends * (places + 1)
    integral = ends * shares @ (np.exp(-rate * where) * others[0].pdf(where))
    yield drawn.check(
        "Laplace transform", gap_transform(np.repeat(parts[0], 2), rate), integral, 1e-6
    )


def epochs(drawn: Drawn) -> Iterator[Check]:
    """Reshuffled epochs over every order of the prompts, the last one cut off."""
    bandit: SoftmaxBandit = problem(drawn, 4, uniform=True)
    frame = np.linalg.qr(drawn.rng.normal(size=(bandit.d, 1)))[0]
    bend, start = float(drawn.rng.uniform(0.2, 1.5)), float(drawn.rng.normal())
    rates = 0.7 / bend / np.arange(1, 10)
    kept = np.array([rate * np.prod(1 - bend * rates[t + 1 :]) for t, rate in enumerate(rates)])
    for batch in (1, 2, 4):
        group = drawn.size(2, 64)
        law = Law.of(bandit, Estimator("grpo"), group)
        along = (law.means - law.mean) @ frame[:, 0]
        # A minibatch of all prompts has the variance within prompts alone.
        noise = float((frame.T @ law.covariance(4, "fixed") @ frame)[0, 0]) * 4 / batch
        total = (start * np.prod(1 - bend * rates)) ** 2 + noise * kept @ kept
        per = 4 // batch
        for first in range(0, len(kept), per):
            part = kept[first : first + per]
            sums = [
                part @ along[list(order)].reshape(per, batch).mean(axis=1)[: len(part)]
                for order in permutations(range(4))
            ]
            total += float(np.mean(np.square(sums)))
        gap = epoch_gap(
            bandit.moments(), frame, bend, rates, group_size=group, batch_size=batch,
            displacement=start,
        )  # fmt: skip
        yield drawn.check(f"G={group} B={batch}: gap of epochs", gap, bend / 2 * total)


ASKED: Asked = {
    "limit_law": (chi_squares, mixtures),
    "group_size": (epochs,),
}
