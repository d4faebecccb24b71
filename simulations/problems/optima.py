"""Gradients at the optimum of a landscape, and their covariance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ustat_pg.engines import Ball, Estimator
from ustat_pg.moments import Moments
from ustat_pg.predictions import covariance_parts, gradient_covariance
from ustat_pg.problems import SoftmaxBandit

from .landscapes import Landscape

GRPO, ORACLE, VANILLA = Estimator("grpo"), Estimator("oracle"), Estimator("vanilla")

Noise = Callable[[Any, Any, Any, int], Any]
"""The covariance of a gradient from C1, C2, C3 and G, at B = 1."""


def constant(value: float) -> Estimator:
    """The baseline that is this number."""
    return Estimator("constant", float(value))


def critic(values: np.ndarray) -> Estimator:
    """The baseline with a number for each prompt."""
    return Estimator("critic", values=tuple(values.tolist()))


def at_optimum(landscape: Landscape) -> SoftmaxBandit:
    """The bandit at the maximiser."""
    return landscape.at(landscape.maximiser)


def moments_of(landscape: Landscape, away: Any = 0.0) -> Moments:
    """The moments at the maximiser, or ``away`` from it."""
    return landscape.at(landscape.maximiser + away).moments()


def parts_of(landscape: Landscape, away: Any = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """C1, C2 and C3 of the covariance of a gradient in the identifiable directions, (r, r) each."""
    return covariance_parts(moments_of(landscape, away), landscape.identifiable)


def ball(landscape: Landscape, radius: float) -> Ball:
    """Θ: within a radius of the optimum in the identifiable directions."""
    return Ball(landscape.maximiser, radius, landscape.identifiable)


def whole_covariance(
    moments: Moments, estimator: Estimator, group_size: int, batch_size: int = 1
) -> np.ndarray:
    """Cov(ĝ) (Proposition 3), (d, d)."""
    return gradient_covariance(
        *(moments, estimator.baseline, group_size, batch_size),
        constant=estimator.constant,
        critic=estimator.values,
    )


def covariance_of(
    landscape: Landscape,
    baseline: str | Estimator,
    group_size: int,
    batch_size: int = 1,
    *,
    constant: float | None = None,
    away: Any = 0.0,
) -> np.ndarray:
    """Uᵀ Cov(ĝ) U at the optimum or ``away`` from it, (r, r)."""
    estimator = Estimator(baseline, constant) if isinstance(baseline, str) else baseline
    whole = whole_covariance(moments_of(landscape, away), estimator, group_size, batch_size)
    return np.asarray(landscape.identifiable.T @ whole @ landscape.identifiable)
