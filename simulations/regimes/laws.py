"""Laws of the gap by other formulas: chi-squares in pairs and by quadrature, recursions step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_continuous_lyapunov
from scipy.special import erf
from scipy.stats import chi2

from ustat_pg.distributions import WeightedChi2
from ustat_pg.engines import Estimator
from ustat_pg.experiment import Check
from ustat_pg.predictions import (
    MixtureLaw,
    bound_curve,
    conditional_transform,
    constant_bound,
    constant_floor,
    epoch_gap,
    finite_covariance,
    finite_law,
    finite_weights,
    gap_transform,
    limit_law,
    limit_weights,
    linear_gap,
    mean_gap,
    stationary_covariance,
    sup_distance,
    weight_derivatives,
    weight_form,
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
        """The density."""
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


def two_terms(drawn: Drawn) -> Iterator[Check]:
    """Two single terms, whose sum is an integral."""
    one, other = 10 ** drawn.rng.uniform(-2, 0, size=2)
    law = WeightedChi2([one, other])
    places, shares = np.polynomial.legendre.leggauss(NODES)
    angles, shares = np.pi / 4 * (places + 1), np.pi / 4 * shares
    points = (one + other) * np.linspace(0.05, 6.0, DENSE)
    # P(w₁ Z₁² <= x - w₂ Z₂²) over Z₂ = √(x/w₂) sin t, on which all is smooth.
    deviates = np.sqrt(points / other)[:, None] * np.sin(angles)
    inside = erf(np.sqrt(points[:, None] / one / 2) * np.cos(angles))
    density = np.sqrt(2 / np.pi) * np.exp(-(deviates**2) / 2)
    speed = np.sqrt(points / other)[:, None] * np.cos(angles)
    below = (density * inside * speed) @ shares
    yield drawn.check("two terms, dense: cdf", law.cdf(points), below)
    yield drawn.check("two terms: cdf", [law.cdf(float(x)) for x in points[::9]], below[::9])


def mixtures(drawn: Drawn) -> Iterator[Check]:
    """Mixtures of laws; laws of runs that end in different places; distances of laws."""
    parts = [_weights(drawn, 2) for _ in range(3)]
    parts = [each * 10 ** drawn.rng.uniform(-0.5, 0.5) / each.sum() for each in parts]
    probs = drawn.rng.dirichlet([1.0] * 3)
    laws = [WeightedChi2(np.repeat(each, 2)) for each in parts]
    mixed, others = MixtureLaw(laws, probs), [Pairs(each) for each in parts]
    points = np.linspace(0.3, 12.0, DENSE)
    above = probs @ np.stack([each.sf(points) for each in others])
    yield drawn.check("mixture: cdf", mixed.cdf(points), 1 - above)
    yield drawn.check("mixture: sf", mixed.sf(points), above)
    density = probs @ np.stack([each.pdf(points) for each in others])
    yield drawn.check("mixture: pdf", mixed.pdf(points), density)
    yield drawn.check("mixture: ppf", mixed.ppf(1 - above), points, 1e-8)
    means = np.array([2 * each.sum() for each in parts])
    squares = np.array([4 * (each**2).sum() for each in parts]) + means**2
    yield drawn.check("mixture: mean", mixed.mean(), probs @ means)
    yield drawn.check("mixture: variance", mixed.var(), probs @ squares - (probs @ means) ** 2)
    rows, places = np.repeat(np.stack(parts), 2, axis=1), np.array([0.5, 3.0, 8.0])
    own = [1 - each.sf(points[:1] * 0 + x)[0] for each, x in zip(others, places, strict=True)]
    yield drawn.check("runs' own laws", conditional_transform(places, rows), own)
    grid = np.linspace(0.0, 60.0, 400_001)
    apart = np.abs(others[0].sf(grid) - others[1].sf(grid)).max()
    for tolerance in (1e-5, 1e-8):
        found = sup_distance(laws[0], laws[1], tolerance=tolerance)
        yield drawn.check(f"distance of laws to {tolerance:g}", found, apart, 1e-5 / apart)
    rate = float(drawn.rng.uniform(0.1, 5))
    places, shares = np.polynomial.legendre.leggauss(NODES)
    ends = 60.0 * means.max() / 2
    where = ends * (places + 1)
    integral = ends * shares @ (np.exp(-rate * where) * others[0].pdf(where))
    yield drawn.check(
        "Laplace transform", gap_transform(np.repeat(parts[0], 2), rate), integral, 1e-6
    )


def _matrices(drawn: Drawn, r: int) -> tuple[Array, Array, Array]:
    """Curvatures far apart, a covariance with rank less than full, and a change of any sign."""
    bends = np.sort(10 ** drawn.rng.uniform(-1.5, 0.5, size=r))
    root, change = drawn.rng.normal(size=(r, r - 1)), drawn.rng.normal(size=(r, r))
    return bends, root @ root.T + 1e-3 * np.eye(r), change + change.T


def _recursion(
    bends: Array, noise: Array, rates: Array, start: Array | None, steps: list[int]
) -> list[Array]:
    """Γ after some numbers of steps, one step after the other."""
    gamma = np.zeros_like(noise) if start is None else np.outer(start, start)
    found = {0: gamma}
    for step, rate in enumerate(rates, 1):
        shrink = np.eye(len(bends)) - rate * np.diag(bends)
        gamma = shrink @ gamma @ shrink + rate**2 * noise
        found[step] = gamma
    return [found[step] for step in steps]


def recursions(drawn: Drawn) -> Iterator[Check]:
    """Second moments of whole runs, with a start away from the optimum and rates that overshoot."""
    bends, noise, change = _matrices(drawn, 4)
    start, total = drawn.rng.normal(size=4), drawn.size(300, 2_000)
    steps = sorted({0, 1, total // 3, total})
    for what, rates in {
        "decaying": (1.9 / bends[-1]) / (1 + 0.05 * np.arange(total)),
        "constant": np.full(total, 0.3 / bends[-1]),
    }.items():
        for begin in (None, start):
            where = f"{what}, T={total}{'' if begin is None else ', away'}"
            whole = _recursion(bends, noise, rates, begin, steps)
            options = {"displacement": begin, "steps": steps}
            yield drawn.check(
                f"{where}: second moments", finite_covariance(bends, noise, rates, **options), whole
            )
            gaps = [np.diag(each) @ bends / 2 for each in whole]
            yield drawn.check(f"{where}: gaps", mean_gap(bends, noise, rates, **options), gaps)
            weights = np.linalg.eigvals(np.diag(bends) @ whole[-1] / 2).real
            found = finite_weights(bends, noise, rates, begin)
            yield drawn.check(f"{where}: weights", found, np.sort(weights), 1e-8)
            law = finite_law(bends, noise, rates, begin)
            yield drawn.check(f"{where}: mean of the law", law.mean(), gaps[-1])
    for share in (1.01, 40.0):
        c = share / (2 * bends.min())
        drift = c * np.diag(bends) - np.eye(4) / 2
        gamma = solve_continuous_lyapunov(drift, c**2 * noise)
        where = f"2 c λ = {share:g}"
        yield drawn.check(f"{where}: Γ", stationary_covariance(bends, noise, c), gamma, 1e-8)
        weights, axes = np.linalg.eig(np.diag(bends) @ gamma / 2)
        order = np.argsort(weights.real)
        yield drawn.check(
            f"{where}: limit weights", limit_weights(bends, noise, c), weights.real[order], 1e-8
        )
        yield drawn.check(
            f"{where}: mean of the limit", limit_law(bends, noise, c).mean(), weights.real.sum()
        )
        size = 1e-5 * np.linalg.norm(noise) / np.linalg.norm(change)
        moved = [limit_weights(bends, noise + sign * size * change, c) for sign in (1, -1)]
        yield drawn.check(
            f"{where}: derivatives of weights",
            weight_derivatives(bends, noise, change, c),
            (moved[0] - moved[1]) / (2 * size),
            1e-4,
        )
        # The eigenvector of the symmetric matrix, by that of the other.
        root = np.sqrt(bends)
        axis = axes.real[:, order[-1]] / root
        axis /= np.linalg.norm(axis)
        frame = np.linalg.qr(drawn.rng.normal(size=(6, 4)))[0]
        matrix = weight_form(bends, frame, axis, c)
        yield drawn.check(
            f"{where}: weight as a form",
            np.trace(matrix @ (frame @ noise @ frame.T)),
            weights.real[order[-1]],
            1e-8,
        )


def linear(drawn: Drawn) -> Iterator[Check]:
    """Gaps of linearised runs of all baselines, with noise by counts."""
    bandit = problem(drawn, 3)
    moments = bandit.moments()
    frame = np.linalg.qr(drawn.rng.normal(size=(bandit.d, 2)))[0]
    bends, start = np.sort(drawn.rng.uniform(0.1, 2.0, size=2)), drawn.rng.normal(size=2)
    rates, steps = 0.8 / bends[-1] / np.sqrt(np.arange(1, 61)), [5, 60]
    number = float(drawn.rng.normal())
    for name in ("grpo", "vanilla", "oracle", "constant", "minimum-variance"):
        group, batch = drawn.size(2, 64), drawn.size(1, 10_000)
        constant = number if name == "constant" else None
        noise = Law.of(bandit, Estimator(name, constant), group).covariance(batch, "iid")
        whole = _recursion(bends, frame.T @ noise @ frame, rates, start, steps)
        found = linear_gap(
            moments, frame, bends, rates, baseline=name, constant=constant, group_size=group,
            batch_size=batch, displacement=start, steps=steps,
        )  # fmt: skip
        yield drawn.check(
            f"G={group} B={batch}: gap of {name}",
            found,
            [np.diag(each) @ bends / 2 for each in whole],
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
        found = epoch_gap(
            bandit.moments(), frame, bend, rates, group_size=group, batch_size=batch,
            displacement=start,
        )  # fmt: skip
        yield drawn.check(f"G={group} B={batch}: gap of epochs", found, bend / 2 * total)


def bounds(drawn: Drawn) -> Iterator[Check]:
    """Lemma 6's recursion step by step: rates beyond 2/L, an error of each step, many steps."""
    rng = drawn.rng
    low = 10 ** rng.uniform(-2, 0)
    high, gap = low * rng.uniform(1, 5), float(rng.uniform(0, 3))
    rates, errors = rng.uniform(0.1, 3.0, size=12) / high, rng.uniform(0, 2, size=12)

    def factor(rate: float) -> float:
        one, other = 1 - low * rate * (2 - high * rate), (1 - high * rate) ** 2
        # The larger of the two is what each proof allows on its side of 2/L.
        return max(one, other) if rate * high > 2 else one

    curve = [gap]
    for rate, error in zip(rates.tolist(), errors.tolist(), strict=True):
        curve.append(factor(rate) * curve[-1] + high * rate**2 * error / 2)
    given: dict[str, Any] = {"pl": low, "smoothness": high}
    yield drawn.check("an error of each step", bound_curve(gap, rates, mse=errors, **given), curve)
    eta, error = float(rng.uniform(0.05, 1.95)) / high, float(rng.uniform(0, 2))
    settled = _settled(lambda b: factor(eta) * b + high * eta**2 * error / 2)
    yield drawn.check("the floor", constant_floor(eta, mse=error, **given), settled, 1e-8)
    steps = np.array([0, 1, 7, 40])
    plain = bound_curve(gap, np.full(40, eta), mse=error, **given)[steps]
    yield drawn.check(
        "a constant rate",
        constant_bound(steps, gap, eta, mse=error, **given),
        plain + factor(eta) ** steps * settled,
        1e-8,
    )


def _settled(step: Callable[[float], float]) -> float:
    """The fixed point of an affine map."""
    first = step(0.0)
    return first / (1 - (step(1.0) - first))


ASKED: Asked = {
    "limit_law": (chi_squares, two_terms, mixtures, recursions),
    "group_size": (linear, epochs),
    "suboptimality": (bounds,),
}
