"""The Markov chain of a training run in the identifiable directions, with every outcome of its steps.

The gap depends on θ only through y = Uᵀ(θ - θ*), with U the identifiable directions, and y is a Markov
chain: at y the minibatch's outcome k has probability p_k(y) and estimate ĝ_k(y), from the public
estimators. One step back in time is

    u_{s-1}(y) = Σ_k p_k(y) u_s(P(y + ηₛ Uᵀĝ_k(y))),

on the points of a :class:`Grid`; between them u_s is interpolated by quintic splines (not-a-knot).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import asinh, ceil, floor, log10
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from ustat_pg.engines.base import Draws, InfeasibleError, Integers, Replications
from ustat_pg.engines.gradients.cell import GradientCell
from ustat_pg.engines.gradients.exact import minibatches, size
from ustat_pg.estimators import gradient
from ustat_pg.execution.memory import slices
from ustat_pg.policies import ArmLinearSoftmax
from ustat_pg.problems import SoftmaxBandit
from ustat_pg.rounding import GIVEN
from ustat_pg.validation import Array, changed

from ...interior_problems.interior import InteriorProblem
from .regions import Ball
from .splines import back_on_line, back_on_plane, coefficients
from .trajectory import Trajectory, starts

ENTRIES_LIMIT = 2e8
"""The most outputs in all outcomes (choices of arms) at all grid points; they give the probabilities."""

STEPS_LIMIT = 1e7
"""The most distinct displacements at all grid points; these are stored."""

WORK_LIMIT = 1e9
"""The most multiplications for all interpolations of one function over all steps, which take seconds."""

REACH = 13.5
"""The number of standard deviations of the accumulated noise by which the grid extends beyond the start."""

FEWEST_NODES = 16
"""The fewest points of an axis; the conditions at a spline's two ends need 8."""

_CHUNK_BYTES = 32_000_000
_PROBES = 5
_NARROWEST = 1e-6
"""The least scale of the grid at the optimum, as a share of the domain's half-width."""
_DIGITS = 250
"""Outcomes are enumerated at the uniform policy; their probabilities must not underflow there."""


@dataclass(frozen=True)
class Grid:
    """The points a sinh(iΔ), i = first to last, on each of r axes."""

    scale: tuple[float, ...]
    spacing: float
    first: tuple[int, ...]
    last: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(b - a + 1 for a, b in zip(self.first, self.last, strict=True))

    @property
    def points(self) -> int:
        return int(np.prod(self.shape))

    @property
    def y(self) -> Array:
        """All points, (M, r); the last axis varies fastest."""
        axes = [
            a * np.sinh(self.spacing * np.arange(first, last + 1))
            for a, first, last in zip(self.scale, self.first, self.last, strict=True)
        ]
        return np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=-1)


class Chain:
    """The Markov chain y with every outcome of its steps."""

    def __init__(self, landscape: InteriorProblem, trajectory: Trajectory) -> None:
        self.landscape, self.trajectory = landscape, trajectory
        self.basis = np.asarray(landscape.identifiable)
        self._require_enumerable()
        start = starts(trajectory, Replications(count=1))[0]
        self.start = (start - landscape.maximiser) @ self.basis
        self.origin = start - self.basis @ self.start
        self.projection = _projection(trajectory.projection, self.origin, self.basis)
        self._enumerate()

    @property
    def r(self) -> int:
        return self.basis.shape[1]

    @cached_property
    def curvatures(self) -> Array:
        """An approximate Λ, from the gap itself, (r,); only the grid's extent and density depend on it."""
        near = 1e-4 * self.basis.T
        return np.asarray(2e8 * self.landscape.gap(self.landscape.maximiser + near))

    def _require_enumerable(self) -> None:
        trajectory = self.trajectory
        if self.r > 2:
            raise InfeasibleError(
                f"the return depends on {self.r} directions: grids are feasible in 1 or 2"
            )
        if trajectory.design != "iid":
            raise InfeasibleError(
                f"the design is {trajectory.design}: without independent prompts (iid) the state "
                "would be more than theta"
            )
        if np.any(trajectory.start_scale):
            raise InfeasibleError(
                f"start_scale is {np.asarray(trajectory.start_scale).tolist()}: the start must be "
                "one point (0)"
            )
        if self.landscape.second_rewards is not None:
            raise InfeasibleError(
                "the second action's parameter moves, which the return does not depend on: the "
                "state would be more than the identifiable directions"
            )

    def bandit(self, theta: Array) -> SoftmaxBandit:
        """One bandit that contains the contexts at all parameters (m, d), in the order of the parameters."""
        problem, moving = self.trajectory.problem, self.trajectory.policy
        _, arms, d = moving.features.shape
        features = moving.features_at(theta).reshape(-1, arms, d)
        offset = moving.logits_at(theta).reshape(-1, arms)
        policy = ArmLinearSoftmax(features, np.zeros(d), offset)

        def tiled(array: Array) -> Array:
            return np.tile(array, (len(theta),) + (1,) * (array.ndim - 1))

        return SoftmaxBandit(
            policy,
            tiled(problem.context_probs) / len(theta),
            tiled(problem.reward_values),
            tiled(problem.reward_probs),
        )

    def _enumerate(self) -> None:
        """Every outcome once, at the uniform policy, and the groups of outcomes that move y equally."""
        trajectory, problem = self.trajectory, self.trajectory.problem
        policy = ArmLinearSoftmax(trajectory.policy.features, np.zeros(problem.d))
        cell = GradientCell(
            changed(problem, policy=policy), trajectory.group_size, trajectory.batch_size
        )
        self._refuse(size(cell))
        parts = list(minibatches(cell))
        chance = np.concatenate([probability for _, probability in parts])
        kept = chance > 0
        self.contexts: Integers = np.concatenate([draws.contexts for draws, _ in parts])[kept]
        self.arms: Integers = np.concatenate([draws.arms for draws, _ in parts])[kept]
        self.rewards: Array = np.concatenate([draws.rewards for draws, _ in parts])[kept]
        rng = np.random.default_rng(1)
        reach = 1 + np.abs(self.start)
        probes = np.concatenate(
            [self.start[None], np.zeros((1, self.r)), rng.normal(size=(_PROBES, self.r)) * reach]
        )
        everyone = np.arange(len(self.arms))
        off, moved = 0.0, []
        cost = 8 * self.arms[0].size * (problem.d + 4) * len(probes)
        for some in slices(len(everyone), _CHUNK_BYTES // cost):
            step = self.estimates(probes, everyone[some])
            along = step @ self.basis
            off = max(off, float(np.abs(step - along @ self.basis.T).max()))
            moved.append(along)
        displacement = np.concatenate(moved, axis=1)
        largest = float(np.abs(displacement).max())
        if off > GIVEN * max(largest, 1e-300):
            raise InfeasibleError(
                f"steps leave the identifiable directions by {off:.3g}: a prompt whose mean reward "
                "is the same for all arms moves theta where the return does not change"
            )
        self.largest = np.abs(displacement).max(axis=(0, 1))
        # The functions are analytic in y: equal at random points, equal everywhere. The 0.0 turns -0 to 0.
        rounded = np.round(displacement[2:] / max(largest, 1e-300), 11) + 0.0
        table = np.moveaxis(rounded, 1, 0).reshape(len(everyone), -1)
        _, first, label = np.unique(table, axis=0, return_index=True, return_inverse=True)
        self.distinct: Integers = first
        # A probability depends on the arms in the draw, not on their order or rewards.
        flat = self.contexts[..., None] * problem.arms + self.arms
        flat = np.sort(flat.reshape(len(everyone), -1), axis=1)
        self.patterns, pattern = np.unique(flat, axis=0, return_inverse=True)
        # π(k) is 1 / K at the uniform policy: the rest is the part that theta does not change.
        share = chance[kept] * float(problem.arms) ** flat.shape[1]
        self.weights = csr_array(
            (share, (label.ravel(), pattern.ravel())), shape=(len(first), len(self.patterns))
        )
        square = displacement[:, first] ** 2
        chances = self.probabilities(probes)[..., None]
        self.noise: Array = (chances * square).sum(axis=1).max(axis=0)

    @property
    def outcomes(self) -> int:
        """The number of outcomes with different effects."""
        return len(self.distinct)

    def _refuse(self, number: int) -> None:
        outputs = self.trajectory.group_size * self.trajectory.batch_size
        if number * outputs * FEWEST_NODES**self.r > ENTRIES_LIMIT:
            # A very long whole number does not fit in a float, but its logarithm does.
            raise InfeasibleError(
                f"10^{log10(number):.1f} outcomes of {outputs} outputs at {FEWEST_NODES**self.r} grid "
                f"points, the fewest, are more than {ENTRIES_LIMIT:.0e} entries: take a smaller "
                "group or batch"
            )
        if outputs * log10(self.trajectory.problem.arms) > _DIGITS:
            raise InfeasibleError(
                f"a minibatch of {outputs} outputs has outcomes of probability below "
                f"1e-{_DIGITS} at the uniform policy: take a smaller group or batch"
            )

    def _loads(self, grid: Grid) -> tuple[tuple[float, str, float], ...]:
        """The costs of a grid, each with its description and its limit."""
        points = grid.points
        work = points * self.outcomes * self.trajectory.steps * 6**self.r
        return (
            (points * self.patterns.size, "outputs in all outcomes", ENTRIES_LIMIT),
            (points * self.outcomes, "distinct displacements", STEPS_LIMIT),
            (work, "multiplications", WORK_LIMIT),
        )

    def too_large(self, grid: Grid) -> str | None:
        """The reason that this grid is not feasible, or None."""
        reasons = (
            f"a grid of {grid.points} points needs {number:.3g} {what} (limit {limit:.0e})"
            for number, what, limit in self._loads(grid)
            if number > limit
        )
        return next(reasons, None)

    def finer(self, grid: Grid) -> float:
        """The factor by which the spacing of the finest feasible grid is smaller."""
        times = min(limit / number for number, _, limit in self._loads(grid))
        return float(times ** (1 / self.r))

    def theta(self, y: Array) -> Array:
        """Parameters at y (..., r): (..., d)."""
        return np.asarray(self.origin + y @ self.basis.T)

    def estimates(self, y: Array, rows: Integers) -> Array:
        """ĝ of some outcomes (n,) at y (m, r): (m, n, d)."""
        bandit = self.bandit(self.theta(y))
        place = np.arange(len(y))[:, None, None] * self.trajectory.problem.contexts
        contexts = place + self.contexts[rows]
        arms = np.broadcast_to(self.arms[rows], (len(y), *self.arms[rows].shape))
        rewards = np.broadcast_to(self.rewards[rows], arms.shape)
        policy = bandit.policy
        assert isinstance(policy, ArmLinearSoftmax)
        at = (contexts[..., None], arms)
        draws = Draws(contexts, arms, rewards, policy.squared_norms[at])
        advantage = self.trajectory.estimator.advantages(bandit, draws)
        return np.asarray(gradient(policy.all_scores[at], advantage).mean(axis=-2))

    def probabilities(self, y: Array) -> Array:
        """Probabilities of the distinct outcomes at y (m, r): (m, n)."""
        policy = self.bandit(self.theta(y)).policy.probs.reshape(len(y), -1)
        return np.asarray((self.weights @ policy[:, self.patterns].prod(axis=-1).T).T)

    def _tables(self, y: Array) -> tuple[Array, Array]:
        """Displacements Uᵀĝ (m, n, r) and probabilities (m, n) of the distinct outcomes."""
        move = np.empty((len(y), self.outcomes, self.r))
        chance = np.empty((len(y), self.outcomes))
        wide = self.trajectory.problem.d + 4
        row = 8 * max(self.patterns.size * 2, self.arms[self.distinct].size * wide)
        for some in slices(len(y), _CHUNK_BYTES // row):
            move[some] = self.estimates(y[some], self.distinct) @ self.basis
            chance[some] = self.probabilities(y[some])
        off = np.abs(chance.sum(axis=1) - 1).max()
        if not off < GIVEN:
            raise ArithmeticError(f"the outcomes' probabilities sum to 1 only within {off}")
        return move, chance

    @cached_property
    def deviations(self) -> Array:
        """The largest accumulated noise, (r,), from v ← (1 - ηλ)² v + η² E(Uᵀĝ)²."""
        spread, most = np.zeros(self.r), np.zeros(self.r)
        rates = self.trajectory.schedule.rates(self.trajectory.steps)
        for rate in rates:
            spread = (1 - rate * self.curvatures) ** 2 * spread + rate**2 * self.noise
            most = np.maximum(most, spread)
        # Too large rates make the recursion diverge, but steps are bounded.
        return np.asarray(np.minimum(np.sqrt(most), rates.sum() * self.largest))

    def half_widths(self, reach: float) -> Array:
        """The largest |y| on the grid, (r,)."""
        return np.asarray(np.abs(self.start) + reach * np.maximum(self.deviations, 1e-6))

    def scale(self, functions: Sequence[Callable[[Array], Array]]) -> Array:
        """a of y = a sinh ξ, (r,): the noise, or the point where the fastest function has changed by half."""
        half = self.half_widths(REACH)
        ends = self.theta(np.concatenate([np.diag(half), -np.diag(half)]))
        largest = float(self._gap(ends).max())
        gaps = np.concatenate([[0.0], largest * np.geomspace(1e-14, 1, 600)])
        nearest = largest
        for function in functions:
            values = function(gaps)
            off = np.abs(values - values[0])
            if off.max() > 0:
                nearest = min(nearest, float(gaps[np.argmax(off >= off.max() / 2)]))
        near = np.sqrt(2 * nearest / self.curvatures)
        return np.asarray(np.clip(np.minimum(near, self.deviations), _NARROWEST * half, half / 2))

    def _gap(self, theta: Array) -> Array:
        # Points of the grid outside Θ may lie above the optimum; no run reaches them.
        return np.maximum(self.landscape.gap(theta), 0.0)

    def grid(self, reach: float, scale: Array, spacing: float) -> Grid:
        """The points within that reach and the projection's bounds."""
        half = self.half_widths(reach)
        low, high = self.projection.bounds(self.r)
        # The start lies in the bounds, so the cut grid contains it.
        low, high = np.maximum(low, -half), np.minimum(high, half)
        first, last = [], []
        for a, b, c in zip(low, high, scale, strict=True):
            one, two = floor(asinh(a / c) / spacing), ceil(asinh(b / c) / spacing)
            short = max(0, FEWEST_NODES - (two - one + 1))
            first.append(one - short // 2)
            last.append(two + short - short // 2)
        return Grid(tuple(scale.tolist()), spacing, tuple(first), tuple(last))

    def projects(self, grid: Grid) -> bool:
        """Whether the projection moves points of the grid, and u may have kinks."""
        given, theta = self.trajectory.projection, self.theta(grid.y)
        return given is not None and bool(np.abs(given.project(theta) - theta).max() > GIVEN)

    def applied(
        self,
        y: Array,
        functions: Sequence[Callable[[Array], Array]],
        coordinates: Sequence[int],
        of_deviations: Sequence[Callable[[Array], Array]],
    ) -> Array:
        """The values of all requested functions at points y (m, r): (F + C + H, m)."""
        theta = self.theta(y)
        gaps = self._gap(theta)
        applied = [function(gaps) for function in functions]
        others = [function(y) for function in of_deviations]
        return np.stack([*applied, *theta.T[list(coordinates)], *others])

    def after(self, step: int, applied: Callable[[Array], Array]) -> Array:
        """The expectation of :meth:`applied` after zero or one step, (F + C + H,)."""
        if not step:
            return applied(self.start[None])[:, 0]
        (move,), (chance,) = self._tables(self.start[None])
        y, given = self.start + self.trajectory.schedule.rates(1) * move, self.trajectory.projection
        if given is not None:
            y = (given.project(self.theta(y)) - self.origin) @ self.basis
        return np.asarray(applied(y) @ chance)

    def backward(
        self, grid: Grid, applied: Callable[[Array], Array], steps: Sequence[int]
    ) -> Array:
        """E f(gap_t), E θₜⱼ and E h(Uᵀ(θₜ - θ*)) of :meth:`applied`, (F + C + H, S)."""
        reason = self.too_large(grid)
        if reason is not None:
            raise InfeasibleError(f"{reason}: take a smaller group, batch or number of steps")
        # The start is one additional point; no spline reads its values.
        y = np.concatenate([grid.y, self.start[None]])
        move, chance = self._tables(y)
        final = applied(y)
        later = sorted(set(steps), reverse=True)
        count = len(final)
        u = np.empty((count * len(later), len(y)))
        active = 0
        rates = self.trajectory.schedule.rates(self.trajectory.steps)
        body = (back_on_line, back_on_plane)[self.r - 1]
        axes = (
            np.array(grid.scale),
            grid.spacing,
            np.array(grid.first, dtype=np.float64),
            np.array(grid.shape),
        )
        for t in range(later[0], -1, -1):
            if t in later:
                u[active : active + count] = final
                active += count
            if t:
                values = u[:active, :-1].reshape(active, *grid.shape)
                curves, rate = coefficients(values), rates[t - 1]
                body(curves, axes, y, move, chance, rate, self.projection, u[:active])
        at_start = u[:, -1].reshape(len(later), count)
        return at_start[[later.index(t) for t in steps]].T


class _Projection(NamedTuple):
    """The projection P in y: it clips z = R y + shift to a ball around 0; R, (q, r), has orthonormal rows."""

    frame: Array
    shift: Array
    radius: float

    def bounds(self, r: int) -> tuple[Array, Array]:
        """The bounds of the remaining points, (r,) each; infinite unless every direction is clipped."""
        if len(self.frame) < r:
            return np.full(r, -np.inf), np.full(r, np.inf)
        centre = -self.shift @ self.frame
        return centre - self.radius, centre + self.radius


def _projection(given: Ball | None, origin: Array, basis: Array) -> _Projection:
    """The projection acting on y, where θ = origin + U y."""
    if given is None:
        return _Projection(np.zeros((0, basis.shape[1])), np.zeros(0), 0.0)
    axes = np.eye(given.d) if given.basis is None else given.basis
    off = origin - given.centre
    if given.basis is None and np.abs(off - basis @ (off @ basis)).max() <= GIVEN:
        axes = basis
    if np.abs(axes - basis @ (basis.T @ axes)).max() > GIVEN:
        raise InfeasibleError(
            "the projection moves theta out of the identifiable directions: take a Ball with basis "
            "landscape.identifiable"
        )
    return _Projection(axes.T @ basis, axes.T @ off, float(given.radius))
