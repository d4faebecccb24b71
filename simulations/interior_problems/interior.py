"""Problems with the maximum of the return inside a compact set, and the search for it.

The parameters split into identifiable directions U, which the return depends on, and flat ones N:

    Θ = {θ : ‖Uᵀθ‖ <= radius},     -∇²J(θ*) = U Λ Uᵀ,     Λ > 0.

A trust-region method from several starts finds θ*; a problem is refused if the return is as large
on the boundary, or flat at θ* in a direction that it depends on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from math import factorial
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize

from ustat_pg.execution.memory import slices
from ustat_pg.problems.softmax_bandit import SoftmaxBandit
from ustat_pg.rounding import DERIVED, SUM
from ustat_pg.validation import Array, InputError, finite_array, frozen

_COMMON_STEPS = 20
"""The number of steps that all starts take together, before one search from each resulting place."""

_SEARCH_STARTS = 24
_PROBED_POINTS = 4096
_SINGULAR_SHARE = 1e-8
"""The share of the largest possible curvature below which the Hessian counts as singular."""
_CHUNK_ENTRIES = 1 << 16
"""The most entries of an array for many parameters together, so that it fits in a core's cache."""
_SERIES = tuple(1 / factorial(n) for n in range(18, 1, -1))
"""1/n!, of the series of e^y - 1 - y on |y| <= 1: the next is below 1e-16 of the first."""


def second_order(y: Array) -> Array:
    """e^y - 1 - y to full relative precision where |y| <= 1."""
    total = np.full_like(y, _SERIES[0])
    for coefficient in _SERIES[1:]:
        total *= y
        total += coefficient
    return total * y * y


def excess_return(
    exponents: Array,
    probs: Array,
    weights: Array,
    along: Array,
    bent: Array | float,
    far: Callable[[NDArray[np.intp]], Array],
) -> Array:
    """V(θ) - V(θ*) minus its first order, by context, to nearly full *relative* precision near θ*.

    The sums are those of q(y) = e^y - 1 - y: (Σ w q(y) - bent - along · Σ π q(y))/(1 + Σ π q(y)).

    Arguments:
        exponents: y, the growth of the logits relative to the mean one, (n, X, K).
        probs, weights: π and π a at θ*, (X, K).
        along: the first order of V(θ) - V(θ*), (n, X).
        bent: Σ w (y - its first order), (n, X).
        far: the result at rows of θ where some |y| > 1, as a plain difference, (rows, X).
    """
    # Arms come first, because sums along a short last axis are slow.
    y = np.ascontiguousarray(np.moveaxis(exponents, -1, 0))
    near = np.abs(y).max(axis=0) <= 1.0
    # 0 keeps the series from overflowing at far steps.
    excess = second_order(np.where(near, y, 0.0))
    mass = np.einsum("xk,knx->nx", probs, excess)
    answer = (np.einsum("xk,knx->nx", weights, excess) - bent - along * mass) / (1 + mass)
    rows = np.flatnonzero(~near.all(axis=1))
    if len(rows):
        answer[rows] = np.where(near[rows], answer[rows], far(rows))
    return np.asarray(answer)


def row_space(rows: Array, size: int) -> tuple[Array, Array]:
    """Orthonormal bases of the span of rows (m, d), not all 0, and of the rest, (d, r), (d, d - r)."""
    _, singular, right = np.linalg.svd(rows)
    rank = int((singular > singular[0] * size * SUM).sum())
    return right[:rank].T, right[rank:].T


class InteriorProblem(ABC):
    """A problem with an interior optimum: its return with two derivatives, and the derived properties.

    A subclass defines the return, the directions that it depends on and the compact
    set; this class computes the maximiser, the curvatures there and the nearest maximiser.
    """

    context_probs: Array
    """ρ(x), (X,)."""
    rewards: Array
    """The values a reward can take, (X, K, M)."""
    reward_probs: Array
    """Their probabilities given context and arm, (X, K, M)."""
    second_rewards: Array | None = None
    """The values a reward can take if a second action is 1; the return does not depend on
    its parameter."""
    radius: float
    """The radius of the compact set in the identifiable directions."""

    _remedy: ClassVar[str]
    """Advice that may give a problem an interior optimum."""
    # One rule for all problems would change the last digits of θ*, and so the addresses of all
    # draws of runs at it.
    _draws_anew: ClassVar[bool]
    """Whether random starts and boundary points have their own draws, or reuse the probes.

    In one dimension the boundary is two points, which need no draws.
    """
    _noise: ClassVar[float]
    """A gradient with all entries below this is rounding noise, and takes no further step."""

    @property
    @abstractmethod
    def d(self) -> int:
        """The number of parameters."""

    @abstractmethod
    def at(self, theta: ArrayLike) -> SoftmaxBandit:
        """The softmax bandit at parameters (d,): moments, outcomes, engines."""

    @property
    @abstractmethod
    def _row_space(self) -> tuple[Array, Array]:
        """Orthonormal bases of directions that the return depends on, (d, r), and of others, (d, d - r)."""

    @property
    @abstractmethod
    def _steepest(self) -> float:
        """The largest curvature if nothing cancelled, which is a scale for rounding noise."""

    @property
    @abstractmethod
    def _entries(self) -> int:
        """The entries of the largest array that one θ needs."""

    # At parameters (n, d):

    @abstractmethod
    def _objectives(self, theta: Array) -> Array:
        """J(θ), (n,)."""

    @abstractmethod
    def _gradients(self, theta: Array) -> Array:
        """∇J(θ), (n, d)."""

    @abstractmethod
    def _hessians(self, theta: Array) -> Array:
        """∇²J(θ), (n, d, d)."""

    @abstractmethod
    def _beyond_first_order(self, away: Array) -> Array:
        """V(θ) - V(θ*) - ⟨∇V(θ*), θ - θ*⟩ of every context, for Uᵀ(θ - θ*) (n, r): (n, X)."""

    @property
    def contexts(self) -> int:
        """X, the number of contexts."""
        return len(self.context_probs)

    @cached_property
    def mean_rewards(self) -> Array:
        """r(x, k) = E[z | x, k], (X, K)."""
        return frozen((self.rewards * self.reward_probs).sum(axis=-1))

    @property
    def _seen(self) -> NDArray[np.bool_]:
        """Whether a context contributes to the dependence of the return on θ, (X,)."""
        mean = self.mean_rewards
        spread = np.ptp(mean, axis=1)
        return (self.context_probs > 0) & (spread > DERIVED * (1 + np.abs(mean).max()))

    def objective(self, theta: ArrayLike) -> Array:
        """J(θ) for parameters (..., d): (...)."""
        return self._in_chunks(self._objectives, self._parameters(theta), 0)

    def gradient(self, theta: ArrayLike) -> Array:
        """∇J(θ) for parameters (..., d): (..., d)."""
        return self._in_chunks(self._gradients, self._parameters(theta), 1)

    def hessian(self, theta: ArrayLike) -> Array:
        """∇²J(θ) for parameters (..., d): (..., d, d)."""
        return self._in_chunks(self._hessians, self._parameters(theta), 2)

    def gap(self, theta: ArrayLike) -> Array:
        """J* - J(θ) for parameters (..., d): (...), to nearly full *relative* precision near Θ*.

        The first orders ⟨∇V(θ*), θ - θ*⟩ sum to 0 at the maximiser. A difference of two returns
        would lose every digit at a gap of 1e-16.
        """

        def gaps(points: Array) -> Array:
            return -(self._beyond_first_order(points) @ self.context_probs)

        away = (self._parameters(theta) - self.maximiser) @ self.identifiable
        return self._in_chunks(gaps, away, 0)

    def _in_chunks(self, function: Callable[[Array], Array], points: Array, order: int) -> Array:
        """A function of points (n, m) with values (n, d, ..., d), at points (..., m)."""
        shape = (self.d,) * order
        flat = points.reshape(-1, points.shape[-1])
        out = np.empty((len(flat), *shape))
        for rows in slices(len(flat), _CHUNK_ENTRIES // self._entries):
            out[rows] = function(flat[rows])
        return out.reshape(points.shape[:-1] + shape)

    def _parameters(self, theta: ArrayLike) -> Array:
        vector = finite_array("theta", theta)
        if vector.ndim == 0 or vector.shape[-1] != self.d:
            raise InputError(f"theta has shape {vector.shape}: its last axis must be d = {self.d}")
        return vector

    # The search minimises -J in the identifiable directions: a point is (r,).

    def _value(self, point: Array) -> float:
        return -float(self.objective(self._row_space[0] @ point))

    def _slope(self, point: Array) -> Array:
        basis = self._row_space[0]
        return -basis.T @ self.gradient(basis @ point)

    def _bend(self, point: Array) -> Array:
        basis = self._row_space[0]
        return -basis.T @ self.hessian(basis @ point) @ basis

    def _points(self) -> tuple[Array, Array]:
        """The starts of the search, and unit vectors from which it looks for the boundary's maximum."""
        basis, _ = self._row_space
        rank, rng = basis.shape[1], np.random.default_rng(0)

        def sphere(count: int) -> Array:
            points = rng.normal(size=(count, rank))
            return np.asarray(points / np.linalg.norm(points, axis=1, keepdims=True))

        def ball(units: Array) -> Array:
            return np.asarray(units * self.radius * rng.random((len(units), 1)) ** (1 / rank))

        units = sphere(_PROBED_POINTS)
        probes = ball(units)
        best = probes[np.argsort(-self.objective(probes @ basis.T))[: _SEARCH_STARTS // 3]]
        others = _SEARCH_STARTS - 1 - len(best)
        if self._draws_anew:
            scattered, units = ball(sphere(others)), sphere(_PROBED_POINTS)
        else:
            scattered = probes[:others]
        return np.concatenate([np.zeros((1, rank)), best, scattered]), units

    def _climbed(self, starts: Array) -> Array:
        """The distinct points after some uphill Newton steps, taken from all starts together."""
        basis, points = self._row_space[0], starts
        reach = np.full((len(starts), 1), self.radius / 4)
        for _ in range(_COMMON_STEPS):
            theta = points @ basis.T
            curvature, axes = np.linalg.eigh(basis.T @ self.hessian(theta) @ basis)
            size = np.maximum(np.abs(curvature), 1e-12 * np.abs(curvature).max())
            along = np.einsum("nji,nj->ni", axes, self.gradient(theta) @ basis) / size
            step = np.einsum("nij,nj->ni", axes, along)
            step *= np.minimum(
                1.0, reach / np.maximum(np.linalg.norm(step, axis=1, keepdims=True), 1e-300)
            )
            higher = self.objective((points + step) @ basis.T) >= self.objective(theta)
            points = np.where(higher[:, None], points + step, points)
            reach = np.where(higher[:, None], 2 * reach, reach / 4)
        first = np.unique(np.round(points / (1e-3 * self.radius)), axis=0, return_index=True)[1]
        return np.asarray(points[np.sort(first)])

    def _maxima(self, starts: Array) -> list[tuple[float, Array]]:
        """The local maxima inside that the search finds, with their returns, best first."""
        maxima: list[tuple[float, Array]] = []
        for start in self._climbed(starts):
            point = optimize.minimize(
                self._value,
                start,
                jac=self._slope,
                hess=self._bend,
                method="trust-exact",
                options={"gtol": 1e-9},
            ).x
            for _ in range(3):
                curvature, off = np.linalg.eigvalsh(self._bend(point)), self._slope(point)
                if curvature[0] <= 0 or curvature[0] < _SINGULAR_SHARE * curvature[-1]:
                    break
                # A step of rounding noise would only move a maximiser of exactly 0 away from it.
                if np.abs(off).max() < self._noise:
                    break
                point = point - np.linalg.solve(self._bend(point), off)
            inside = np.linalg.norm(point) < self.radius
            flat_tail = np.linalg.norm(self._slope(point)) > 1e-8
            same = any(np.linalg.norm(point - other) < 1e-6 * self.radius for _, other in maxima)
            if inside and not flat_tail and not same:
                maxima.append((-self._value(point), point))
        return sorted(maxima, key=lambda pair: -round(pair[0], 12))

    def _edge(self, units: Array) -> float:
        """The largest return found on the boundary of the ball."""
        basis, radius = self._row_space[0], self.radius
        if basis.shape[1] == 1 and self._draws_anew:
            return -min(self._value(np.array([sign * radius])) for sign in (-1.0, 1.0))
        heights = self.objective(radius * units @ basis.T)
        if basis.shape[1] == 1:
            return float(heights.max())

        def on_sphere(point: Array) -> tuple[float, Array]:
            norm = np.linalg.norm(point)
            unit = point / norm
            along = self._slope(radius * unit)
            return self._value(radius * unit), radius / norm * (along - (along @ unit) * unit)

        best = units[np.argsort(-heights)[:4]]
        return max(
            float(heights.max()),
            *(-float(optimize.minimize(on_sphere, w, jac=True, method="BFGS").fun) for w in best),
        )

    @cached_property
    def _optimum(self) -> tuple[Array, Array]:
        """θ*, and the curvatures with the rows of Uᵀ, (r, 1 + d)."""
        basis, radius = self._row_space[0], self.radius
        starts, units = self._points()
        maxima, edge = self._maxima(starts), self._edge(units)
        best = maxima[0][0] if maxima else -np.inf
        inner = f"the best inside is {best:.9g}" if maxima else "none was found inside"
        outside = InputError(
            f"the problem has no interior optimum: on the boundary ‖Uᵀθ‖ = {radius:g} the "
            f"return reaches {edge:.9g}, {inner}; enlarge the radius, or let {self._remedy}"
        )
        # If the return is constant, its edge is equally high up to rounding, so the problem is flat.
        rounding = DERIVED * float(np.abs(self.mean_rewards).max())
        if best < edge - rounding:
            raise outside
        point = maxima[0][1]
        curvatures, axes = np.linalg.eigh(self._bend(point))
        # Returns of contexts may cancel and leave rounding noise, so the scale is that of one context.
        scale = max(float(np.abs(curvatures).max()), self._steepest)
        if curvatures[0] <= _SINGULAR_SHARE * scale:
            raise InputError(
                f"the optimum is flat in a direction that the return depends on: the curvatures "
                f"are {curvatures.tolist()}; they must be positive"
            )
        if best <= edge + rounding:
            raise outside
        frame = basis @ axes
        largest = np.abs(frame).round(9).argmax(axis=0)
        frame = frame * np.sign(frame[largest, np.arange(len(curvatures))])
        return frozen(basis @ point), frozen(np.column_stack([curvatures, frame.T]))

    @property
    def maximiser(self) -> Array:
        """θ*, (d,): the maximiser with the least norm, without a flat part."""
        return self._optimum[0]

    @cached_property
    def maximum(self) -> float:
        """J* = J(θ*)."""
        return float(self.objective(self.maximiser))

    @property
    def curvatures(self) -> Array:
        """Λ, (r,), ascending: -∇²J(θ*) = U Λ Uᵀ."""
        return self._optimum[1][:, 0]

    @property
    def identifiable(self) -> Array:
        """U, (d, r): the eigenvectors of -∇²J(θ*) with a positive eigenvalue, orthonormal."""
        return self._optimum[1][:, 1:].T

    @property
    def flat(self) -> Array:
        """N, (d, d - r): orthonormal directions in which the return is constant everywhere."""
        return self._row_space[1]
