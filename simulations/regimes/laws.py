"""Laws of the gap by other formulas: chi-squares in pairs, mixtures of them, epochs over every order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import chi2

from ustat_pg.distributions import WeightedChi2
from ustat_pg.engines import Estimator
from ustat_pg.predictions import (
    MixtureLaw,
    conditional_transform,
    epoch_gap,
    gap_transform,
    sup_distance,
)
from ustat_pg.problems import SoftmaxBandit

from ..evidence import Check
from . import Asked, Drawn, Known, rounding
from .gradients import Law, problem

Array = NDArray[np.float64]

DENSE = 40
"""Points of an array that is dense enough to be interpolated."""


CROSSINGS = 2_000
"""Places between which densities are looked at for where they cross."""


@dataclass(frozen=True)
class Pairs:
    """The law of Σ w χ²₂: sums of exponentials, in closed form where no two weights are alike."""

    weights: Array

    @property
    def rates(self) -> Array:
        return np.asarray(1 / (2 * self.weights))

    @property
    def _shares(self) -> Array:
        apart = self.rates[None] - self.rates[:, None] + np.eye(len(self.rates))
        return np.asarray(
            np.prod(np.where(np.eye(len(self.rates)), 1.0, self.rates[None] / apart), axis=1)
        )

    def sf(self, x: Array) -> Known:
        """P(Q > x), of the shape of x."""
        return self._sum(self._shares, x)

    def pdf(self, x: Array) -> Known:
        return self._sum(self._shares * self.rates, x)

    def transform(self, rate: float) -> Known:
        """E exp(-rate Q)."""
        terms = self._shares * self.rates / (rate + self.rates)
        return terms.sum(), rounding(*terms)

    def _sum(self, shares: Array, x: Array) -> Known:
        terms = np.exp(-np.asarray(x)[..., None] * self.rates) * shares
        return terms.sum(axis=-1), rounding(np.abs(terms).sum(axis=-1))


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
        (above, error), (density, error_pdf) = other.sf(points), other.pdf(points)
        yield drawn.check(f"{what}: log sf", law.logsf(points), np.log(above), error / above)
        yield drawn.check(
            f"{what}: log pdf", law.logpdf(points), np.log(density), error_pdf / density
        )
        yield drawn.check(f"{what}: sf", law.sf(points), above, error)
        yield drawn.check(f"{what}: pdf", law.pdf(points), density, error_pdf)
        # A quantile is what has its level: where the law is flat, its place is not sharp.
        error += rounding(points * density)
        yield drawn.check(f"{what}: isf", other.sf(law.isf(above))[0], above, error)
        if what != "far":
            below = 1 - above
            yield drawn.check(f"{what}: cdf", law.cdf(points), below, error)
            yield drawn.check(f"{what}: log cdf", law.logcdf(points), np.log(below), error / below)
            yield drawn.check(f"{what}: ppf", 1 - other.sf(law.ppf(below))[0], below, error)
    moments = law.mean(), law.var()
    known_moments = np.array([mean, 4 * (weights**2).sum()])
    yield drawn.check("mean and variance", moments, known_moments, rounding(known_moments))
    count, size = int(drawn.rng.integers(1, 60)), float(weights[0])
    alike, known = WeightedChi2(np.full(count, size)), chi2(count, scale=size)
    points = known.ppf(np.linspace(0.001, 0.999, DENSE))
    for name in ("cdf", "sf", "pdf"):
        values = getattr(known, name)(points)
        # The exponent is a difference of numbers of the size of x/2w.
        error = values * rounding(1.0, points / size)
        yield drawn.check(f"{count} alike: {name}", getattr(alike, name)(points), values, error)
        yield drawn.check(
            f"{count} alike: log{name}",
            getattr(alike, f"log{name}")(points),
            getattr(known, f"log{name}")(points),
            error / values,
        )


def mixtures(drawn: Drawn) -> Iterator[Check]:
    """Mixtures of laws; laws of runs that end in different places; distances of laws."""
    parts = [_weights(drawn, 2) for _ in range(3)]
    parts = [weights * 10 ** drawn.rng.uniform(-0.5, 0.5) / weights.sum() for weights in parts]
    probs = drawn.rng.dirichlet([1.0] * 3)
    laws = [WeightedChi2(np.repeat(weights, 2)) for weights in parts]
    mixed, others = MixtureLaw(laws, probs), [Pairs(weights) for weights in parts]
    points = np.linspace(0.3, 12.0, DENSE)

    def mean(values: list[Known]) -> Known:
        value, error = np.tensordot(probs, np.array(values), 1)
        return value, error

    def sf(places: Array) -> Known:
        return mean([weights.sf(places) for weights in others])

    above, error = sf(points)
    # What is left of 1 has its rounding.
    below, rounded = 1 - above, error + rounding(1.0)
    yield drawn.check("mixture: cdf", mixed.cdf(points), below, rounded)
    yield drawn.check("mixture: sf", mixed.sf(points), above, error)
    density = mean([weights.pdf(points) for weights in others])
    yield drawn.check("mixture: pdf", mixed.pdf(points), *density)
    # Where the law is flat, the place of a quantile is not sharp: it has the level.
    yield drawn.check("mixture: ppf", 1 - sf(mixed.ppf(below))[0], below, rounded)
    means = np.array([2 * weights.sum() for weights in parts])
    squares = np.array([4 * (weights**2).sum() for weights in parts]) + means**2
    centre, square = probs @ means, probs @ squares
    yield drawn.check("mixture: mean", mixed.mean(), centre, rounding(centre))
    yield drawn.check(
        "mixture: variance", mixed.var(), square - centre**2, rounding(square, centre**2)
    )
    rows, places = np.repeat(np.stack(parts), 2, axis=1), np.array([0.5, 3.0, 8.0])
    tails, errors = np.transpose([weights.sf(x) for weights, x in zip(others, places, strict=True)])
    yield drawn.check(
        "runs' own laws", conditional_transform(places, rows), 1 - tails, rounding(1.0) + errors
    )
    apart, error = _distance(others[0], others[1])
    for tolerance in (1e-5, 1e-8):
        distance = sup_distance(laws[0], laws[1], tolerance=tolerance)
        yield drawn.check(f"distance of laws to {tolerance:g}", distance, apart, tolerance + error)
    rate = float(drawn.rng.uniform(0.1, 5))
    yield drawn.check(
        "Laplace transform",
        gap_transform(np.repeat(parts[0], 2), rate),
        *others[0].transform(rate),
    )


def _distance(one: Pairs, other: Pairs) -> Known:
    """sup |F - H|, at one of the places where the densities cross."""

    def steeper(x: float) -> float:
        return float(one.pdf(np.array(x))[0] - other.pdf(np.array(x))[0])

    grid = np.geomspace(1e-6, 1e3, CROSSINGS)
    signs = np.sign(one.pdf(grid)[0] - other.pdf(grid)[0])
    # A sum of four exponentials has three roots at most, and here 0 is one of them.
    crossings = [brentq(steeper, grid[i], grid[i + 1]) for i in np.flatnonzero(np.diff(signs))]
    (first, error), (second, more) = one.sf(np.array(crossings)), other.sf(np.array(crossings))
    return np.abs(first - second).max(), (error + more).max()


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
        direction = np.abs(frame[:, 0])
        along = (law.means - law.mean[0]) @ frame[:, 0]
        apart = law.sizes @ direction
        # A minibatch of all prompts has the variance within prompts alone.
        within, error = law.covariance(4, "fixed")
        noise = float((frame.T @ within @ frame)[0, 0]) * 4 / batch
        total = (start * np.prod(1 - bend * rates)) ** 2 + noise * kept @ kept
        off = rounding(total) + 4 / batch * direction @ error @ direction * (kept @ kept)
        per = 4 // batch
        for first in range(0, len(kept), per):
            part = kept[first : first + per]
            sums = [
                part @ along[list(order)].reshape(per, batch).mean(axis=1)[: len(part)]
                for order in permutations(range(4))
            ]
            total += float(np.mean(np.square(sums)))
            off += rounding((part.sum() * apart.max()) ** 2)
        gap = epoch_gap(
            bandit.moments(), frame, bend, rates, group_size=group, batch_size=batch,
            displacement=start,
        )  # fmt: skip
        yield drawn.check(
            f"G={group} B={batch}: gap of epochs", gap, bend / 2 * total, bend / 2 * off
        )


ASKED: Asked = {
    "limit_law": (chi_squares, mixtures),
    "group_size": (epochs,),
}
