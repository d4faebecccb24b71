"""Constants of a return's landscape, enclosed, and whether the assumptions hold on a region.

For a location bandit the constants are proved by branch and bound in floating point, with an
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
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize

from ..policies import TabularSoftmax
from ..validation import InputError, finite_array, frozen, integer
from .location_bandit import LocationBandit
from .softmax_bandit import SoftmaxBandit

__all__ = [
    "AssumptionCheck",
    "AssumptionReport",
    "Constants",
    "Enclosure",
    "Escape",
    "Neighbourhood",
    "check_assumptions",
    "constants",
    "escape_to_infinity",
]

Array = NDArray[np.float64]

_GRID = 100_000
_GRID_LOT = 1 << 20
_LOT = 4096
_VANISHES = 1e-8
"""A ratio below this share of the least curvature counts as 0."""
_ROUNDING = 1e-14
_POLISHES = 5
_LARGEST_LINEAR = 10_000_000
"""Features (X, K, d) with more entries are not searched for a way to infinity."""


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """The parameters within ``radius`` of ``centre``, in the identifiable directions.

    Arguments:
        centre: (d,); its flat part does not matter.
        radius: positive.

    Raises:
        InputError: a centre that is not finite, or a radius that is not positive.
    """

    centre: Array
    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "centre", frozen(finite_array("centre", self.centre, 1)))
        radius = float(finite_array("radius", self.radius, 0))
        if radius <= 0:
            raise InputError(f"radius is {radius:g}: it must be positive")
        object.__setattr__(self, "radius", radius)


@dataclass(frozen=True)
class Enclosure:
    """A constant between proved bounds.

    Arguments:
        value: the safe end, the one that keeps a theorem true: the upper for L, the lower for μ.
        lower, upper: the constant lies between them.
        where: the parameters (d,) at which the attained end was found.
        boxes: how many boxes were bounded.
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


@dataclass(frozen=True)
class Constants:
    """The constants of Assumptions 3, 4 and 9 on a region, and the quadratic growth behind 7.

    Arguments:
        smoothness: L, the largest ‖∇²J‖.
        pl: μ, the least ‖∇J‖²/(2 (J* - J)).
        weak: μ', the least ⟨∇J, θ* - θ⟩/‖θ - θ*‖²; not the same as μ.
        growth: the least 2 (J* - J)/‖θ - θ*‖²; positive if and only if the maximiser is unique.
        third: T, the bound on the third derivative that the others rest on.
        region: where.
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
        self.noise = _ROUNDING * float(problem.context_probs @ reward)
        self.slope_noise = _ROUNDING * float(problem.context_probs @ (reward * steep))

    def _third(self) -> float:
        """T >= sup ‖∇³J‖ on the cube around the region and on the way from it to the maximiser."""
        problem = self.problem
        places, middle = self.rows @ self.optimum, self.rows @ self.centre
        reach = self.radius * np.abs(self.rows).sum(axis=1)
        low, high = np.minimum(middle - reach, places), np.maximum(middle + reach, places)
        fourths = fourth_derivative_bounds(problem)

        def largest(count: int) -> Array:
            top = np.zeros(problem.contexts)
            lot = max(1, _GRID_LOT // (problem.contexts * len(problem.arms)))
            for start in range(0, count + 1, lot):
                share = np.arange(start, min(start + lot, count + 1))[:, None] / count
                found = np.abs(problem.curve(low + share * (high - low), 3)[3]).max(axis=0)
                top = np.maximum(top, found)
            return top

        # Half a grid step times the next derivative is what the grid can miss: a tenth is enough.
        missed, count = fourths * (high - low) / 2, 1000
        wanted = missed.max() / (0.1 * max(float(largest(count).max()), 1e-300))
        count = int(np.clip(wanted, count, _GRID))
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


@dataclass(frozen=True)
class _Quantity:
    """A function to minimise.

    Arguments:
        value: of points (n, r), (n,).
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
    rank, vanishing = land.rank, _VANISHES * land.curvature

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
        lowest = np.argpartition(bounds, min(_LOT, len(bounds)) - 1)[:_LOT]
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
        if not polished and polishes < _POLISHES and done > budget // 100:
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
    width = float(finite_array("tolerance", tolerance, 0))
    if not 0 < width < 1:
        raise InputError(f"tolerance is {width:g}: it must lie between 0 and 1")
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


@dataclass(frozen=True, eq=False)
class Escape:
    """A ray on which the return tends to its supremum, and never reaches it.

    Arguments:
        direction: w, (d,).
        steps: t, (n,).
        gaps: sup J - J(θ + t w), (n,): positive.
        ratios: ‖∇J‖²/(2 gap), (n,).
        ceilings: S² gap/2 with S the largest distance of two scores, (n,): no ratio is above.
    """

    direction: Array
    steps: Array
    gaps: Array
    ratios: Array
    ceilings: Array


def escape_to_infinity(
    problem: SoftmaxBandit, steps: ArrayLike = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
) -> Escape | None:
    """The ray on which a softmax bandit shows that PL fails, or None where there is none.

    On the ray every best arm gains on every other arm of its context, so J tends to
    Σ_x ρ(x) max_k r(x, k), which no finite parameters reach. With ℓ = max_j r(x, j) - r(x, k) >= 0,
    ∇J = -E[s ℓ] and J* - J = E ℓ, so that

        ‖∇J‖ <= S (J* - J)   and   ‖∇J‖²/(2 (J* - J)) <= S² (J* - J)/2 -> 0.

    Tabular logits always have such a ray, unless the return is constant; for features a linear
    program looks for one.

    Arguments:
        problem: the bandit; the ray starts at its own parameters.
        steps: t, increasing; a best arm gains t in logit over the others of its context, or more.

    Raises:
        InputError: steps that do not increase from above 0, or features too many to search.

    >>> bandit = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    >>> escape_to_infinity(bandit, [1.0, 10.0]).ratios
    array([1.437...e-01, 4.539...e-05])
    """
    if not isinstance(problem, SoftmaxBandit):
        raise InputError(f"a ray is looked for in a SoftmaxBandit, not a {type(problem).__name__}")
    times = finite_array("steps", steps, 1)
    if times[0] <= 0 or (np.diff(times) <= 0).any():
        raise InputError(f"steps are {times.tolist()}: they must increase from above 0")
    loss = problem.mean_rewards.max(axis=1, keepdims=True) - problem.mean_rewards
    loss = loss * (problem.context_probs > 0)[:, None]
    if not loss.any():
        return None
    direction = _separating(problem, loss)
    if direction is None:
        return None
    diameter = float(problem.policy.diameters(np.ones_like(loss, bool)).max())
    gaps, ratios = np.empty(len(times)), np.empty(len(times))
    for i, t in enumerate(times):
        policy = problem.policy.with_theta(problem.policy.theta + t * direction)
        mean = (policy.probs * loss).sum(axis=1)
        gradient = policy.mean_combination(
            policy.probs * (mean[:, None] - loss), problem.context_probs
        )
        gaps[i] = problem.context_probs @ mean
        ratios[i] = gradient @ gradient / (2 * gaps[i]) if gaps[i] > 0 else 0.0
    return Escape(direction, times, gaps, ratios, diameter**2 * gaps / 2)


def _separating(problem: SoftmaxBandit, loss: Array) -> Array | None:
    """w with ⟨φ(x, best) - φ(x, k), w⟩ >= 1 for every arm k that loses, or None."""
    policy = problem.policy
    if isinstance(policy, TabularSoftmax):
        return np.where(loss == 0, loss.any(axis=1, keepdims=True), 0.0).ravel()
    if loss.size * problem.d > _LARGEST_LINEAR:
        raise InputError(
            f"the features have {loss.size * problem.d} entries: at most {_LARGEST_LINEAR} are "
            "searched for a ray"
        )
    origin = policy.with_theta(np.zeros(problem.d)).logits
    features = np.stack(
        [policy.with_theta(unit).logits - origin for unit in np.eye(problem.d)], axis=-1
    )
    rows = [features[x, loss[x].argmin()] - features[x, k] for x, k in np.argwhere(loss > 0)]
    found = optimize.linprog(
        np.zeros(problem.d), A_ub=-np.array(rows), b_ub=-np.ones(len(rows)), bounds=(None, None)
    )
    return np.asarray(found.x) if found.status == 0 else None


@dataclass(frozen=True)
class AssumptionCheck:
    """One assumption on one problem.

    Arguments:
        number: the paper's.
        statement: what it asks for.
        holds: None where this accuracy does not decide.
        evidence: the number that decides.
        explanation: that number in words.
        where: the worst parameters found, (d,), or None.
    """

    number: int
    statement: str
    holds: bool | None
    evidence: float
    explanation: str
    where: tuple[float, ...] | None = None


@dataclass(frozen=True)
class AssumptionReport:
    """What :func:`check_assumptions` found; printed, one line per assumption."""

    checks: tuple[AssumptionCheck, ...]
    region: str

    def __getitem__(self, number: int) -> AssumptionCheck:
        for check in self.checks:
            if check.number == number:
                return check
        raise KeyError(number)

    @property
    def holds(self) -> bool:
        """Whether every assumption was shown to hold."""
        return all(check.holds for check in self.checks)

    def __str__(self) -> str:
        words = {True: "holds", False: "FAILS", None: "not decided"}
        lines = [f"on {self.region}:"]
        for check in self.checks:
            lines.append(
                f"  Assumption {check.number} ({check.statement}) {words[check.holds]}: "
                f"{check.explanation}"
            )
        return "\n".join(lines)


_STATEMENTS = {
    3: "smooth return, bounded score",
    4: "Polyak-Lojasiewicz",
    7: "maximisers convex, Hessian of constant rank",
    9: "weak strong concavity",
}


def _check(
    number: int, holds: bool | None, evidence: float, text: str, where: object = None
) -> AssumptionCheck:
    point = None if where is None else tuple(np.asarray(where, dtype=np.float64).tolist())
    return AssumptionCheck(number, _STATEMENTS[number], holds, float(evidence), text, point)


def _above(found: Enclosure, claimed: float) -> bool | None:
    """Whether a constant is at least what is claimed for it; None where the enclosure is too wide."""
    if found.lower >= claimed:
        return True
    return False if found.upper < claimed else None


def check_assumptions(
    problem: LocationBandit | SoftmaxBandit,
    region: Neighbourhood | float | None = None,
    *,
    smoothness: float | None = None,
    pl: float | None = None,
    weak: float | None = None,
    tolerance: float = 0.01,
    budget: int = 200_000,
) -> AssumptionReport:
    """Whether Assumptions 3, 4, 7 and 9 hold for a problem on a region, with the numbers.

    For a location bandit the answers are proofs but for rounding; what the budget does not decide is
    said to be undecided. For a softmax bandit over all parameters see :func:`escape_to_infinity`.

    Arguments:
        problem: a location bandit, or a softmax bandit on all of its parameters.
        region: as for :func:`constants`; for a softmax bandit it must be None.
        smoothness, pl, weak: constants to be checked: an L at least ``smoothness.lower`` and so
            on. Without them any positive constant will do.
        tolerance, budget: as for :func:`constants`.

    Raises:
        InputError: as for :func:`constants`; a claimed constant that is not positive; a region or a
            claimed constant with a softmax bandit.

    >>> problem = LocationBandit.bump([-1.0, 0.0, 1.0], [-0.7, 0.8, 0.3])
    >>> check_assumptions(problem, 0.5).holds
    True
    >>> bandit = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    >>> [(c.number, c.holds) for c in check_assumptions(bandit).checks]
    [(3, True), (4, False), (7, False), (9, False)]
    """
    claimed = {"smoothness": smoothness, "pl": pl, "weak": weak}
    for name, value in claimed.items():
        if value is not None and not float(finite_array(name, value, 0)) > 0:
            raise InputError(f"{name} is {value}: a constant must be positive")
    if isinstance(problem, SoftmaxBandit):
        if region is not None or any(value is not None for value in claimed.values()):
            raise InputError(
                "a softmax bandit is checked on all of its parameters: no region, no constants"
            )
        return _softmax_report(problem)
    found = constants(problem, region, tolerance=tolerance, budget=budget)
    spread = np.ptp(problem.arms) / problem.tau**2
    score = float(np.linalg.norm(problem.directions, axis=1).max() * spread)
    if problem.second_rewards is not None:
        score = math.hypot(score, 1.0)
    smooth = found.smoothness
    enough: bool | None = True
    if smoothness is not None and smoothness < smooth.upper:
        enough = False if smoothness < smooth.lower else None
    checks = [
        _check(
            3,
            enough,
            smooth.upper,
            f"L in [{smooth.lower:.4g}, {smooth.upper:.4g}]"
            + ("" if smoothness is None else f", {smoothness:g} claimed")
            + f"; ‖score‖ <= {score:.4g}",
            smooth.where,
        )
    ]
    vanishing = _VANISHES * float(problem.curvatures[0])
    for number, enclosure, letter, claim in (
        (4, found.pl, "μ", pl),
        (7, found.growth, "growth", None),
        (9, found.weak, "μ'", weak),
    ):
        if claim is not None:
            holds = _above(enclosure, claim)
        elif enclosure.lower > 0:
            holds = True
        else:
            holds = False if enclosure.upper <= vanishing else None
        text = f"{letter} in [{enclosure.lower:.4g}, {enclosure.upper:.4g}]"
        text += "" if claim is None else f", {claim:g} claimed"
        if number == 7:
            rank = problem.identifiable.shape[1]
            text = (
                f"2 gap/distance² >= {enclosure.lower:.4g}: "
                + ("one maximiser" if holds else "perhaps more than one maximiser")
                + f" up to {problem.d - rank} flat directions, rank {rank}, "
                f"least curvature {problem.curvatures[0]:.4g}"
            )
        checks.append(_check(number, holds, enclosure.value, text, enclosure.where))
    ball = found.region
    where = f"the ball of radius {ball.radius:g} about {np.round(ball.centre, 4).tolist()}"
    return AssumptionReport(tuple(checks), where)


def _softmax_report(problem: SoftmaxBandit) -> AssumptionReport:
    policy = problem.policy
    mean = problem.mean_rewards[problem.context_probs > 0]
    diameter = float(policy.diameters(np.ones(problem.mean_rewards.shape, bool)).max())
    smooth = float(np.ptp(mean, axis=1).max()) * diameter**2
    checks = [
        _check(3, True, smooth, f"L <= {smooth:.4g}, ‖score‖ <= {diameter:.4g} everywhere"),
    ]
    region = "all parameters"
    if not np.ptp(mean, axis=1).any():
        text = "the return is constant: every parameter is a maximiser"
        return AssumptionReport((*checks, *(_check(n, True, 0.0, text) for n in (4, 7, 9))), region)
    ray = escape_to_infinity(problem)
    if ray is None:
        text = "no ray separates the best arms: the optimum may be interior, nothing is proved"
        return AssumptionReport(
            (*checks, *(_check(n, None, math.nan, text) for n in (4, 7, 9))), region
        )
    far = policy.theta + ray.steps[-1] * ray.direction
    ratios = ", ".join(
        f"{ratio:.2g} at t = {t:g}" for t, ratio in zip(ray.steps, ray.ratios, strict=True)
    )
    unattained = (
        f"the supremum is not attained: the gap is {ray.gaps[0]:.2g} at t = {ray.steps[0]:g}, "
        f"{ray.gaps[-1]:.2g} at t = {ray.steps[-1]:g}, and 0 at no parameters"
    )
    checks += [
        _check(
            4,
            False,
            ray.ratios[-1],
            f"‖∇J‖²/(2 gap) tends to 0 at infinity: {ratios}; it is at most "
            f"{diameter**2 / 2:.3g} gap; {unattained}",
            far,
        ),
        _check(7, False, ray.gaps[-1], f"there is no maximiser: {unattained}", far),
        _check(9, False, ray.gaps[-1], f"there is no maximiser to point to: {unattained}", far),
    ]
    return AssumptionReport(tuple(checks), region)
