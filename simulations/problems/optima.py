"""Gradients at the optimum of a landscape: their covariance, and the limit weights that it makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ustat_pg.engines import Ball, Estimator, GradientCell, Quantity, SquaredProjection
from ustat_pg.engines.gradients.cell import direction
from ustat_pg.experiment import Linear
from ustat_pg.moments import Moments
from ustat_pg.predictions import covariance_parts, gradient_covariance, weight_form
from ustat_pg.problems import SoftmaxBandit

from .landscapes import Landscape

__all__ = [
    "GRPO",
    "ORACLE",
    "Noise",
    "at_optimum",
    "ball",
    "covariance_of",
    "moments_of",
    "parts_of",
    "projected",
    "weight_difference",
    "weight_terms",
]

GRPO, ORACLE = Estimator("grpo"), Estimator("oracle")

Noise = Callable[[Any, Any, Any, int], Any]
"""The covariance of a gradient from C1, C2, C3 and G, at B = 1."""


def at_optimum(landscape: Landscape) -> SoftmaxBandit:
    """The bandit at the maximiser."""
    return landscape.at(landscape.maximiser)


def moments_of(landscape: Landscape) -> Moments:
    """The moments at the maximiser."""
    return at_optimum(landscape).moments()


def parts_of(landscape: Landscape, away: Any = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """C1, C2 and C3 of the covariance of a gradient in the identifiable directions, (r, r) each, at
    the optimum or ``away`` from it.
    """
    moments = landscape.at(landscape.maximiser + away).moments()
    return covariance_parts(moments, landscape.identifiable)


def ball(landscape: Landscape, radius: float) -> Ball:
    """Θ: within a radius of the optimum in the identifiable directions."""
    return Ball(landscape.maximiser, radius, landscape.identifiable)


def covariance_of(
    landscape: Landscape, baseline: str, group_size: int, batch_size: int = 1, **more: Any
) -> np.ndarray:
    """Uᵀ Cov(ĝ) U at the optimum (Proposition 3), (r, r)."""
    basis = landscape.identifiable
    whole = gradient_covariance(moments_of(landscape), baseline, group_size, batch_size, **more)
    return np.asarray(basis.T @ whole @ basis)


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


def weight_terms(
    landscape: Landscape, estimator: Estimator, axis: Any, c: float, away: Any = 0.0
) -> list[tuple[Quantity, float]]:
    """The limit weight whose eigenvector is ``axis``, as a combination of squared projections of one
    gradient at the optimum, or ``away`` from it.
    """
    form = weight_form(landscape.curvatures, landscape.identifiable, axis, c)
    return projected(landscape.at(landscape.maximiser + away), estimator, form)


def weight_difference(
    landscape: Landscape,
    worse: Estimator,
    better: Estimator,
    axis: Any,
    c: float,
    *,
    group_size: int,
    batch_size: int = 1,
    away: Any = 0.0,
    times: float = 1.0,
) -> Linear:
    """``times`` the limit weight of one estimator less that of another, from the same gradients."""
    terms = [
        (quantity, sign * times * share)
        for estimator, sign in ((worse, 1.0), (better, -1.0))
        for quantity, share in weight_terms(landscape, estimator, axis, c, away)
    ]
    cell = GradientCell(landscape.at(landscape.maximiser + away), group_size, batch_size)
    return Linear(cell, tuple(terms))
