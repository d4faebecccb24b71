"""Constants of a return's landscape, each between proved bounds.

The constants of a location bandit are proved by branch and bound in floating point, with an
allowance for rounding instead of interval arithmetic. A box of parameters with centre c and
circumradius ρ is bounded by Taylor's theorem, with a bound T on the third derivative,

    ‖∇J(θ)‖ >= ‖∇J(c)‖ - ‖∇²J(c)‖ρ - Tρ²/2,      ‖∇²J(θ)‖ <= ‖∇²J(c)‖ + Tρ,     ...

and boxes are halved until the bounds meet. Near the maximiser, where every ratio is 0/0, the bounds
come from the curvatures instead: with δ = θ - θ* and y = T‖δ‖/λ_min,

    ‖∇J‖²/(2 gap) >= λ_min (1 - y/2)²/(1 + y/3),     ⟨∇J, -δ⟩/‖δ‖² >= λ_min (1 - y/2).

T takes the suprema of |v_x'''| over an interval: the largest on a grid, plus half a grid step times
a Cauchy bound on v_x''''. (On complex m with |Im m| <= 2τ²α/W, α < π/2, W the spread of the
arms, v_x is analytic and |v_x - const| <= R/cos α, R half the spread of the mean rewards.)
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from ..memory import slices
from ..validation import InputError, field, finite_array, integer, number, positive, record
from .location_bandit import LocationBandit

__all__ = ["Constants", "Enclosure", "Neighbourhood", "constants"]

Array = NDArray[np.float64]

VANISHING_SHARE = 1e-8
"""A ratio below this share of the least curvature counts as 0."""
_MOST_GRID_STEPS = 100_000
_GRID_CHUNK_ENTRIES = 1 << 20
_BOXES_AT_ONCE = 4096
_ROUNDING_SHARE = 1e-14
_MOST_POLISHES = 5


@record()
class Neighbourhood:
    """The parameters within ``radius`` of ``centre``, in the identifiable directions.

    Arguments:
        centre: (d,); its flat part does not matter.
        radius: number above 0.

    Raises:
        InputError: a centre that is not finite, or a radius that is not positive.
    """

    centre: Array = field(finite_array, ndim=1)
    radius: float = field(positive)


@record(eq=True)
class Enclosure:
    """A constant between proved bounds.

    Arguments:
        value: the safe end, the one that keeps a theorem true: the upper for L, the lower for μ.
        lower, upper: the constant lies between them.
        where: the parameters (d,) at which the attained end was found.
        boxes: number of boxes that were bounded.
        method: how, in words.
    """

    value: float
    lower: float
    upper: float
    where: tuple[float, ...]
    boxes: int
    method: str

    @property
    def error(self) -> float:
        """How far ``value`` can be off."""
        return self.upper - self.lower

    def __float__(self) -> float:
        return self.value


@record(eq=True)
class Constants:
    """The constants of Assumptions 3, 4 and 9 on a region, and the quadratic growth behind 7.

    Arguments:
        smoothness: L, the largest ‖∇²J‖.
        pl: μ, the least ‖∇J‖²/(2 (J* - J)).
        weak: μ', the least ⟨∇J, θ* - θ⟩/‖θ - θ*‖²; not the same as μ.
        growth: the least 2 (J* - J)/‖θ - θ*‖²; positive if and only if the maximiser is unique.
        third: T, the bound on the third derivative that the others rest on.
        region: region on which they hold.
    """

    smoothness: Enclosure
    pl: Enclosure
    weak: Enclosure
    growth: Enclosure
    third: float
    region: Neighbourhood


def _region(problem: LocationBandit, region: Neighbourhood | float | None) -> Neighbourhood:
    if region is None:
        return Neighbourhood(np.zeros(problem.d), problem.radius)
    ball = region if isinstance(region, Neighbourhood) else Neighbourhood(problem.maximiser, region)
    if len(ball.centre) != problem.d:
        raise InputError(
            f"the region's centre has {len(ball.centre)} entries: the problem has d = {problem.d}"
        )
    return ball


def fourth_derivative_bounds(problem: LocationBandit) -> Array:
    """A bound on |v_x''''| that holds at every place, (X,): Cauchy's, at the best angle α."""
    angles = np.linspace(0.1, 1.5, 1401)
    radii = 2 * problem.tau**2 * angles / np.ptp(problem.arms)
    fourth = float((24 / (np.cos(angles) * radii**4)).min())
    return np.asarray(fourth * np.ptp(problem.mean_rewards, axis=1) / 2)


class _Landscape:
    """Return, gradient and Hessian in the identifiable coordinates c = Uᵀθ, many points at once."""

    def __init__(self, problem: LocationBandit, region: Neighbourhood) -> None:
        self.problem = problem
        self.frame = problem.identifiable
        self.rank = self.frame.shape[1]
        self.rows = problem.paths @ self.frame
        self.centre, self.radius = region.centre @ self.frame, region.radius
        self.optimum = problem.maximiser @ self.frame
        self.curvature = float(problem.curvatures[0])
        self.third = self._third()
        # Rounding of returns and of gradients, generously: bounds give it away.
        reward = np.ptp(problem.mean_rewards, axis=1) + np.abs(problem.mean_rewards).max(axis=1)
        steep = np.linalg.norm(self.rows, axis=1) * np.ptp(problem.arms) / problem.tau**2
        self.noise = _ROUNDING_SHARE * float(problem.context_probs @ reward)
        self.slope_noise = _ROUNDING_SHARE * float(problem.context_probs @ (reward * steep))

    def _third(self) -> float:
        """T >= sup ‖∇³J‖ on the cube around the region and on the way from it to the maximiser."""
        problem = self.problem
        places, middle = self.rows @ self.optimum, self.rows @ self.centre
        reach = self.radius * np.abs(self.rows).sum(axis=1)
        low, high = np.minimum(middle - reach, places), np.maximum(middle + reach, places)
        fourths = fourth_derivative_bounds(problem)

        def largest(count: int) -> Array:
            top = np.zeros(problem.contexts)
            for some in slices(count + 1, _GRID_CHUNK_ENTRIES // problem.mean_rewards.size):
                share = np.arange(some.start, some.stop)[:, None] / count
                found = np.abs(problem.curve(low + share * (high - low), 3)[3]).max(axis=0)
                top = np.maximum(top, found)
            return top

        # Half a grid step times the next derivative is what the grid can miss: a tenth is enough.
        missed, count = fourths * (high - low) / 2, 1000
        wanted = missed.max() / (0.1 * max(float(largest(count).max()), 1e-300))
        count = int(np.clip(wanted, count, _MOST_GRID_STEPS))
        top = largest(count) + missed / count
        # |⟨A, e⟩|³ <= ‖A‖ ⟨A, e⟩² for a unit vector e, so the largest eigenvalue bounds the sum.
        weights = problem.context_probs * top * np.linalg.norm(self.rows, axis=1)
        return float(np.linalg.eigvalsh((self.rows.T * weights) @ self.rows)[-1])

    def theta(self, points: Array) -> Array:
        return points @ self.frame.T

    def gap(self, points: Array) -> Array:
        return self.problem.gap(self.theta(points))

    def gradient(self, points: Array) -> Array:
        return self.problem.gradient(self.theta(points)) @ self.frame

    def norm(self, points: Array) -> Array:
        """‖∇²J‖, (n,)."""
        hessian = self.frame.T @ self.problem.hessian(self.theta(points)) @ self.frame
        return np.abs(np.linalg.eigvalsh(hessian)).max(axis=-1)


@record(eq=True)
class _Quantity:
    """A function to minimise.

    Arguments:
        value: value at points (n, r), (n,).
        bound: a lower bound on the balls about points (n, r) with radii (n,), (n,).
        limit: its infimum at the maximiser, where it is a limit; None where there is none.
    """

    value: Callable[[Array], Array]
    bound: Callable[[Array, Array], Array]
    limit: float | None


def _minimise(
    land: _Landscape, quantity: _Quantity, tolerance: float, budget: int
) -> tuple[float, float, Array, int]:
    """Lower and upper bound on the least value in the ball, where the upper is attained, boxes."""
    rank, vanishing = land.rank, VANISHING_SHARE * land.curvature

    def inside(points: Array) -> NDArray[np.bool_]:
        away = np.linalg.norm(points - land.centre, axis=-1)
        return np.asarray(away <= land.radius * (1 + 1e-12))

    best, where = math.inf, land.centre
    if quantity.limit is not None and inside(land.optimum):
        best, where = quantity.limit, land.optimum
    centres, halves = land.centre[None, :], np.full((1, rank), land.radius)
    bounds = np.array([-math.inf])
    done, settled = 0, math.inf
    polished, polishes = False, 0
    while len(centres) and done < budget:
        target = best - tolerance * abs(best) if math.isfinite(best) else math.inf
        # A box whose bound reaches the target is settled: it can hide no value below its bound.
        keep = bounds < target
        settled = min(settled, float(bounds[~keep].min(initial=math.inf)))
        centres, halves, bounds = centres[keep], halves[keep], bounds[keep]
        # A value of 0 that is attained decides; no bound could meet it within a share of itself.
        if not len(centres) or abs(best) <= vanishing:
            break
        lowest = np.argpartition(bounds, min(_BOXES_AT_ONCE, len(bounds)) - 1)[:_BOXES_AT_ONCE]
        rest = np.ones(len(bounds), bool)
        rest[lowest] = False
        parents, sizes, inherited = centres[lowest], halves[lowest], bounds[lowest]
        axis, index = sizes.argmax(axis=1), np.arange(len(sizes))
        shrunk = sizes.copy()
        shrunk[index, axis] /= 2
        move = np.zeros_like(parents)
        move[index, axis] = shrunk[index, axis]
        children = np.concatenate([parents - move, parents + move])
        sizes, inherited = np.tile(shrunk, (2, 1)), np.tile(inherited, 2)
        outside = np.maximum(np.abs(children - land.centre) - sizes, 0.0)
        meets = np.linalg.norm(outside, axis=1) <= land.radius * (1 + 1e-12)
        children, sizes, inherited = children[meets], sizes[meets], inherited[meets]
        done += len(children)
        lower = np.maximum(quantity.bound(children, np.linalg.norm(sizes, axis=1)), inherited)
        here = inside(children)
        if here.any():
            values = quantity.value(children[here])
            first = int(values.argmin())
            if values[first] < best:
                best, where = float(values[first]), children[here][first]
                polished = False
        if not polished and polishes < _MOST_POLISHES and done > budget // 100:
            best, where = _polish(land, quantity, best, where)
            polished, polishes = True, polishes + 1
        centres = np.concatenate([centres[rest], children])
        halves = np.concatenate([halves[rest], sizes])
        bounds = np.concatenate([bounds[rest], lower])
    settled = min(settled, float(bounds.min(initial=math.inf)))
    return min(settled, best), best, where, done


def _polish(
    land: _Landscape, quantity: _Quantity, best: float, where: Array
) -> tuple[float, Array]:
    """A lower value near the best so far, if a local search inside the ball finds one."""

    def clipped(point: Array) -> Array:
        away = point - land.centre
        return land.centre + away * min(1.0, land.radius / max(float(np.linalg.norm(away)), 1e-300))

    if np.linalg.norm(where - land.optimum) < 1e-6 * land.radius:
        return best, where

    def value(point: Array) -> float:
        return float(quantity.value(clipped(point)[None, :])[0])

    found = optimize.minimize(
        value,
        where,
        method="Nelder-Mead",
        options={"xatol": 1e-10, "fatol": 1e-16, "maxiter": 400 * land.rank},
    )
    return (float(found.fun), clipped(found.x)) if found.fun < best else (best, where)


def _ratio(top: Array, bottom: Array, limit: float) -> Array:
    """top/bottom, and the limit where both are 0."""
    return np.where(bottom > 0, top / np.where(bottom > 0, bottom, 1.0), limit)


def _quantities(land: _Landscape) -> dict[str, _Quantity]:
    least, third = land.curvature, land.third

    def distance(points: Array) -> Array:
        return np.linalg.norm(points - land.optimum, axis=1)

    def slow(points: Array, radii: Array) -> tuple[Array, Array, Array]:
        """Lower bound on ‖∇J‖, upper on the gap, lower on the gap, on balls about the points."""
        slope, norm, gap = (
            np.linalg.norm(land.gradient(points), axis=1),
            land.norm(points),
            land.gap(points),
        )
        change = slope * radii + norm * radii**2 / 2 + third * radii**3 / 6 + land.noise
        steepest = norm * radii + third * radii**2 / 2 + land.slope_noise
        flattest = np.maximum(slope - steepest, 0.0)
        return flattest, gap + change, gap - change

    def pl(points: Array) -> Array:
        square = (land.gradient(points) ** 2).sum(axis=1)
        return _ratio(square, 2 * land.gap(points), least)

    def pl_bound(points: Array, radii: Array) -> Array:
        flattest, gap, _ = slow(points, radii)
        y = third * (distance(points) + radii) / least
        near = least * np.maximum(1 - y / 2, 0.0) ** 2 / (1 + y / 3)
        return np.maximum(near, _ratio(flattest**2, 2 * np.maximum(gap, 0.0), 0.0))

    def weak(points: Array) -> Array:
        away = points - land.optimum
        return _ratio(-(land.gradient(points) * away).sum(axis=1), distance(points) ** 2, least)

    def weak_bound(points: Array, radii: Array) -> Array:
        away, gradient, norm = points - land.optimum, land.gradient(points), land.norm(points)
        far = distance(points)
        steep = norm * radii + third * radii**2 / 2 + land.slope_noise
        # ⟨∇J(θ), θ* - θ⟩ by its parts: the gradient changes by `steep`, the distance by the radius.
        product = (
            -(gradient * away).sum(axis=1)
            - steep * (far + radii)
            - np.linalg.norm(gradient, axis=1) * radii
        )
        shortest = np.maximum(far - radii, 0.0) ** 2
        longest = (far + radii) ** 2
        quotient = np.where(
            product >= 0,
            product / longest,
            np.where(shortest > 0, product / np.where(shortest > 0, shortest, 1.0), -math.inf),
        )
        return np.maximum(least - third * (far + radii) / 2, quotient)

    def growth(points: Array) -> Array:
        return _ratio(2 * land.gap(points), distance(points) ** 2, least)

    def growth_bound(points: Array, radii: Array) -> Array:
        _, _, gap = slow(points, radii)
        far = distance(points)
        shortest = np.maximum(far - radii, 0.0) ** 2
        quotient = np.where(
            gap >= 0,
            2 * gap / (far + radii) ** 2,
            np.where(shortest > 0, 2 * gap / np.where(shortest > 0, shortest, 1.0), -math.inf),
        )
        return np.maximum(least - third * (far + radii) / 3, quotient)

    return {
        "smoothness": _Quantity(
            lambda points: -land.norm(points),
            lambda points, radii: -(land.norm(points) + third * radii),
            None,
        ),
        "pl": _Quantity(pl, pl_bound, least),
        "weak": _Quantity(weak, weak_bound, least),
        "growth": _Quantity(growth, growth_bound, least),
    }


def constants(
    problem: LocationBandit,
    region: Neighbourhood | float | None = None,
    *,
    tolerance: float = 0.01,
    budget: int = 200_000,
) -> Constants:
    """L, μ and μ' on a region, each between proved bounds.

    Arguments:
        problem: the location bandit.
        region: a :class:`Neighbourhood`; a number for the ball of that radius about the maximiser; None for
            the problem's compact set.
        tolerance: the relative width at which an enclosure is narrow enough.
        budget: boxes for each constant. When they are spent the enclosure is wider, but true.

    Raises:
        InputError: another kind of problem, a region of another dimension, a tolerance or a budget
            that is not positive.

    >>> found = constants(LocationBandit.bump([-1.0, 0.0, 1.0], [-0.7, 0.8, 0.3]), 0.5)
    >>> [round(float(c), 2) for c in (found.smoothness, found.pl, found.weak)]
    [0.36, 0.11, 0.14]
    """
    if not isinstance(problem, LocationBandit):
        raise InputError(
            f"constants are enclosed for a LocationBandit only, not a {type(problem).__name__}"
        )
    width = number("tolerance", tolerance, above=0, below=1)
    boxes = integer("budget", budget)
    ball = _region(problem, region)
    land = _Landscape(problem, ball)
    found = {}
    for name, quantity in _quantities(land).items():
        low, high, where, used = _minimise(land, quantity, width, boxes)
        if name == "smoothness":
            low, high = -high, -low
        found[name] = Enclosure(
            value=high if name == "smoothness" else low,
            lower=low,
            upper=high,
            where=tuple(land.theta(where).tolist()),
            boxes=used,
            method=f"branch and bound, third derivative at most {land.third:.3g}; "
            + (
                "attained below, proved above"
                if name == "smoothness"
                else "proved below, attained above"
            ),
        )
    return Constants(**found, third=land.third, region=ball)
