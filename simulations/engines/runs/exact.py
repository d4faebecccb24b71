"""Exact expectations over whole training runs: Kolmogorov's backward equation without sampling.

The gap depends on θ only through y = Uᵀ(θ - θ*), with U the identifiable directions, and y is a Markov
chain: at y the minibatch's outcome k has probability p_k(y) and estimate ĝ_k(y). So with
u_t(y) = f(gap(y)),

    u_{s-1}(y) = Σ_k p_k(y) u_s(P(y + ηₛ Uᵀĝ_k(y))),   s = t, …, 1,     E f(gap_t) = u_0(y_0).

Every outcome is enumerated, and the estimates come from the public estimators at each y, without moments,
limits or linearisation. The only approximation is the interpolation of u_s between grid points, by
quintic splines (not-a-knot) in ξ, y = a sinh ξ, so that points are dense at the optimum, where
functions of the gap vary fastest. Outside the grid, u_s has its value at the edge. A coarser
grid and a narrower grid measure both errors.

If runs reach a projection, u_s has kinks. The error then falls slowly and unevenly, and
its estimate gives only the order of magnitude.

A function f may vary on a scale far below a step: u_s is then a sum of narrow bumps, one for each
way to come near the optimum, until the noise of more steps smooths it. This effect, more than f itself,
requires a fine grid.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from math import log

import numpy as np

from ustat_pg.validation import Array

from ...interior_problems.interior import InteriorProblem
from .chain import REACH, Chain, Grid
from .trajectory import Trajectory

_SPACING, _RATIO = 0.25, 1.5
_WIDENINGS = 12
_HOPELESS = 3.0
"""The factor over the allowed error of the finest grid above which finer grids are not tried."""
_USUAL_POINTS, _MULTIPLICATIONS = 40, 30
_A_MOVE, _A_TABLE, _A_STEP, _A_CHAIN = 40, 2_000, 50_000, 2_000_000
"""The multiplications that take as long as a displacement, its place in the tables, a step's splines, and the
outcomes of a chain."""


@dataclass(frozen=True, eq=False)
class Expectations:
    """E f(gap_t), and its possible error from the grid.

    Arguments:
        values: (F + C + H, S), with C coordinates and H functions of deviations.
        error: the change of the values when the grid's spacing grows by half, plus the change when its
            reach shrinks by a third, in the same shape. Both are errors of the poorer grids; those
            of the values are smaller. If the projection makes kinks, the last two changes count,
            times 3.
        converged: whether the error is within the allowed one; if not, a finer or wider grid
            would be too large.
    """

    values: Array
    error: Array
    converged: bool


def require_enumerable(landscape: InteriorProblem, trajectory: Trajectory) -> int:
    """The number of different outcomes of a step; :class:`InfeasibleError` if :func:`expectations` raises it.

    More than 2 identifiable directions, too many outcomes, the design epochs, random starts, a second
    action, and steps or a projection that leave the identifiable directions are infeasible.
    """
    return Chain(landscape, trajectory).outcomes


def effort(outcomes: int, directions: int, functions: int, steps: Collection[int]) -> float:
    """The rough time of :func:`expectations`, in the unit for gradients, on a grid of usual size,
    because all grids use the same outcomes.
    """
    made = _A_CHAIN + _A_STEP * max(steps)
    if max(steps) > 1:
        interpolated = sum(steps) * (_A_MOVE + functions * 6**directions)
        made += _USUAL_POINTS**directions * outcomes * (_A_TABLE + interpolated)
    return made / _MULTIPLICATIONS


def expectations(
    landscape: InteriorProblem,
    trajectory: Trajectory,
    functions: Sequence[Callable[[Array], Array]],
    steps: Sequence[int],
    *,
    coordinates: Sequence[int] = (),
    of_deviations: Sequence[Callable[[Array], Array]] = (),
    relative: float = 1e-5,
    absolute: float = 1e-10,
) -> Expectations:
    """E f(gap_t) of training runs, for functions f of the gap and steps t, exact except for the grid.

    Also E θₜⱼ for requested coordinates j, and E h(Uᵀ(θₜ - θ*)) for functions h of deviations.

    The grid is refined, and widened if no projection bounds it, until the error is at most
    ``absolute + relative |value|``, or until a larger grid would be infeasible.

    Arguments:
        landscape: the return with its optimum, which gives J* - J(θ), θ* and U.
        trajectory: runs on ``landscape.at(θ)`` for some θ, from one start, with prompts drawn
            independently; its snapshots are not used.
        functions: each maps gaps (n,) to values (n,).
        steps: t, 0 to ``trajectory.steps``, in any order.
        coordinates: indices j of parameters; their rows come next.
        of_deviations: each maps Uᵀ(θ - θ*) (n, r) to values (n,); their rows come last.
        relative, absolute: the allowed error.

    Raises:
        InfeasibleError: see :func:`require_enumerable`; also if the first grid is too large.

    >>> import numpy as np
    >>> from simulations.engines import Constant
    >>> from simulations.engines.runs.trajectory import Trajectory
    >>> from simulations.interior_problems import LocationBandit
    >>> problem = LocationBandit([1.0], [[1.0]], np.linspace(-1.5, 1.5, 5), 0.8,
    ...     [[[0.1], [0.4], [0.9], [1.0], [0.3]]], np.ones((1, 5, 1)))
    >>> runs = Trajectory(problem.at([0.0]), 2, 100, Constant(0.1), start=[-0.5])
    >>> found = expectations(problem, runs, [lambda gap: gap], [0, 10, 100])
    >>> found.values.round(5), bool((found.error < 1e-6).all())
    (array([[0.18573, 0.09889, 0.00452]]), True)
    """
    chain = Chain(landscape, trajectory)

    def excess(error: Array, values: Array) -> Array:
        return np.asarray(error / (absolute + relative * np.abs(values)))

    def applied(y: Array) -> Array:
        return chain.applied(y, functions, coordinates, of_deviations)

    @cache
    def backward(grid: Grid) -> Array:
        # A projection cuts grids of every reach to the same one.
        return chain.backward(grid, applied, steps)

    def run(reach: float, spacing: float) -> tuple[Grid, Array]:
        grid = chain.grid(reach, scale, spacing)
        return grid, backward(grid)

    if max(steps) <= 1:
        # The outcomes of one minibatch are listed, so no grid is needed.
        values = np.stack([chain.after(step, applied) for step in steps], axis=1)
        return Expectations(values, np.zeros_like(values), True)
    scale = chain.scale(functions)
    reach, spacing, widenings = REACH, _SPACING, 0
    earlier: Array | None = None
    _, narrow = run(reach / _RATIO, spacing)
    _, coarse = run(reach, spacing)
    while True:
        grid, fine = run(reach, spacing / _RATIO)
        cut, change = np.abs(coarse - narrow), np.abs(fine - coarse)
        # Kinks make the error jump between grids, so one small change may be chance.
        rough = chain.projects(grid)
        order, safety = (1, 3.0) if rough else (6, 1.0)
        before = 0.0 if earlier is None else earlier / _RATIO**order
        blur = safety * np.maximum(change, before)
        error = blur + cut
        left = excess(error, fine)
        converged = bool(left.max() <= 1) and not (rough and earlier is None)
        hopeless = False
        if rough and earlier is not None:
            # Assume that the error falls as in the last refinement; with kinks no faster than the spacing.
            pace = np.minimum(change / np.maximum(earlier, 1e-300), 1 / _RATIO)
            least = left * pace ** (log(chain.finer(grid)) / log(_RATIO))
            hopeless = bool((least[left > 1] > _HOPELESS).all())
        wider = widenings < _WIDENINGS and excess(cut, fine).max() > excess(blur, fine).max()
        if wider:
            reach, widenings = reach * _RATIO, widenings + 1
        else:
            spacing, earlier = spacing / _RATIO, change
        following = chain.grid(reach, scale, spacing / _RATIO)
        if converged or (hopeless and not wider) or chain.too_large(following) is not None:
            return Expectations(fine, error, converged)
        if wider:
            narrow, (_, coarse) = coarse, run(reach, spacing)
        else:
            coarse, (_, narrow) = fine, run(reach / _RATIO, spacing)
