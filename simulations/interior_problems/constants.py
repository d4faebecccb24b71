"""The constants of a return around its maximiser, on a grid.

    L = max ‖∇²J‖,   μ = min ‖∇J‖²/(2 (J* - J)),   μ' = min ⟨∇J, θ* - θ⟩/‖θ - θ*‖²

Both ratios are 0/0 at the maximiser and tend to the least curvature there. The grid is refined
once around the worst point of each, so the error between its points is small, but this is no proof.
"""

from __future__ import annotations

import numpy as np

from ustat_pg.validation import Array, InputError, integer, positive, record

from .interior import InteriorProblem

_NEAR = 1e-6
"""The share of the radius within which the limit replaces both ratios."""


@record(eq=True)
class Constants:
    """The constants of Assumptions 3, 4 and 9 on a ball around the maximiser.

    Arguments:
        smoothness: L, the largest ‖∇²J‖.
        pl: μ, the least ‖∇J‖²/(2 (J* - J)).
        weak: μ', the least ⟨∇J, θ* - θ⟩/‖θ - θ*‖²; not the same as μ.
        radius: the radius of the ball, in the identifiable directions.
        step: the distance of neighbours on the grid.
    """

    smoothness: float
    pl: float
    weak: float
    radius: float
    step: float


def constants(problem: InteriorProblem, radius: float, *, points: int = 10_000) -> Constants:
    """L, μ and μ' on the ball of a radius around the maximiser, on a grid.

    Arguments:
        problem: the problem, with an interior optimum.
        radius: radius of the ball, in the identifiable directions.
        points: the approximate number of grid points; corners outside the ball are moved to its edge.

    Raises:
        InputError: the problem is of another kind, or a return on the grid exceeds that of the maximiser.

    >>> from simulations.interior_problems import LocationBandit
    >>> ball = constants(LocationBandit.bump([-1.0, 0.0, 1.0], [-0.7, 0.8, 0.3]), 0.5)
    >>> [round(value, 3) for value in (ball.smoothness, ball.pl, ball.weak, ball.step)]
    [0.355, 0.111, 0.139, 0.01]
    """
    if not isinstance(problem, InteriorProblem):
        raise InputError(
            f"constants are those of a problem with an interior optimum, not of a "
            f"{type(problem).__name__}"
        )
    radius = positive("radius", radius)
    frame, least = problem.identifiable, float(problem.curvatures[0])
    rank = len(problem.curvatures)
    half = max(1, round(integer("points", points) ** (1 / rank) / 2))
    axis = np.linspace(-1, 1, 2 * half + 1)
    grid = np.stack(np.meshgrid(*[axis] * rank, indexing="ij"), axis=-1).reshape(-1, rank)

    def smoothness(away: Array) -> Array:
        hessian = frame.T @ problem.hessian(problem.maximiser + away @ frame.T) @ frame
        return np.asarray(np.abs(np.linalg.eigvalsh(hessian)).max(axis=-1))

    def ratios(away: Array) -> tuple[Array, Array]:
        theta = problem.maximiser + away @ frame.T
        gradient, gap = problem.gradient(theta) @ frame, problem.gap(theta)
        square = (away**2).sum(axis=1)
        near = square < (_NEAR * radius) ** 2
        pl = (gradient**2).sum(axis=1) / np.where(near, 1.0, 2 * gap)
        weak = -(gradient * away).sum(axis=1) / np.where(near, 1.0, square)
        return np.where(near, least, pl), np.where(near, least, weak)

    def inside(away: Array) -> Array:
        length = np.linalg.norm(away, axis=1, keepdims=True)
        return away * np.minimum(1, radius / np.maximum(length, radius))

    coarse = inside(radius * grid)

    def finer(worst: int) -> Array:
        return inside(coarse[worst] + radius / half * grid)

    pl, weak = ratios(coarse)
    if pl.min() < 0:
        raise InputError(f"within {radius:g} of the maximiser a return is larger than there")
    return Constants(
        smoothness=float(smoothness(finer(int(smoothness(coarse).argmax()))).max()),
        pl=float(ratios(finer(int(pl.argmin())))[0].min()),
        weak=float(ratios(finer(int(weak.argmin())))[1].min()),
        radius=radius,
        step=radius / half,
    )
