"""The weights of the limit law, measured from gradients at the optimum, and the excess of
the weights of grpo over the oracle's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import solve_continuous_lyapunov

from ustat_pg.engines import Estimator, GradientCell, Quantity, SquaredProjection
from ustat_pg.engines.gradients.cell import direction
from ustat_pg.predictions import stationary_covariance, weight_derivatives, weight_form
from ustat_pg.problems import SoftmaxBandit

from ..evidence import Linear
from ..problems.landscapes import Landscape, LandscapeEntry
from .runs import GRPO, ORACLE, covariance_of, moments_of, whole_covariance


def projected(
    problem: SoftmaxBandit, estimator: Estimator, matrix: Any
) -> list[tuple[Quantity, float]]:
    """tr(matrix · Cov(ĝ)) as a combination of squared projections along fixed directions.

    There are more directions than entries, with the least weights, so no seed gives a bad frame.
    """
    d = problem.d
    entries = np.triu_indices(d)
    count = 1 if d == 1 else 2 * d * (d + 1)
    frame = np.stack([direction(problem, number) for number in range(count)])
    rows = (frame[:, :, None] * frame[:, None, :])[:, *entries]
    weights = np.linalg.lstsq(rows.T, np.asarray(matrix)[entries], rcond=None)[0].tolist()
    return [(SquaredProjection(estimator, n), weight) for n, weight in enumerate(weights)]


def weight_terms(
    landscape: Landscape, estimator: Estimator, axis: Any, c: float, away: Any = 0.0
) -> list[tuple[Quantity, float]]:
    """The limit weight whose eigenvector is ``axis``, as a combination of squared projections of one
    gradient at the optimum, or ``away`` from it.
    """
    form = solved(landscape, np.outer(axis, axis), c)
    return projected(landscape.at(landscape.maximiser + away), estimator, form)


def solved(landscape: Landscape, matrix: Any, c: float) -> np.ndarray:
    """M (d, d) with tr(M Cov(ĝ)) = tr(matrix · ½ Λ^½ Γ Λ^½): SciPy solves the Lyapunov equation
    (cΛ - ½I) Γ + Γ (cΛ - ½I) = c² Σ, whose solution predictions write down.
    """
    root, basis = np.sqrt(landscape.curvatures), landscape.identifiable
    right = 0.5 * c**2 * root[:, None] * np.asarray(matrix) * root
    drift = np.diag(c * landscape.curvatures - 0.5)
    return np.asarray(basis @ solve_continuous_lyapunov(drift, right) @ basis.T)


@dataclass(frozen=True)
class Difference:
    """The limit weight of one estimator minus that of another, to first order in the noise, from gradients
    at the optimum, or ``away`` from it.

    Arguments:
        axis: eigenvector of the weight.
        c: the number in the rates c/t.
    """

    landscape: Landscape
    worse: Estimator
    better: Estimator
    axis: Any
    c: float
    group_size: int
    batch_size: int = 1
    away: Any = 0.0

    @property
    def predicted(self) -> float:
        """The difference from the closed forms of the weight and of the covariances."""
        landscape, moments = self.landscape, moments_of(self.landscape, self.away)
        high, low = (
            whole_covariance(moments, estimator, self.group_size, self.batch_size)
            for estimator in (self.worse, self.better)
        )
        form = weight_form(landscape.curvatures, landscape.identifiable, self.axis, self.c)
        return float(np.trace(form @ (high - low)))

    def measured(self, times: float = 1.0) -> Linear:
        """``times`` the difference, both from the same gradients."""
        where = self.axis, self.c, self.away
        terms = [
            (quantity, sign * times * share)
            for estimator, sign in ((self.worse, 1.0), (self.better, -1.0))
            for quantity, share in weight_terms(self.landscape, estimator, *where)
        ]
        problem = self.landscape.at(self.landscape.maximiser + self.away)
        return Linear(GradientCell(problem, self.group_size, self.batch_size), tuple(terms))


def scale(entry: LandscapeEntry) -> float:
    """c of the rates, such that c λ = 2 in the flattest direction."""
    return 2 / float(entry.problem.curvatures[0])


def _large_group(entry: LandscapeEntry) -> np.ndarray:
    """The oracle's covariance as G grows or, if all prompts agree, G times it."""
    landscape = entry.problem
    group_size = 1 if len(landscape.context_probs) == 1 else 10**9
    return covariance_of(landscape, "oracle", group_size)


def constants(entry: LandscapeEntry) -> np.ndarray:
    """C for every weight, (r,): the limit of B G(G-1) times the difference."""
    landscape = entry.problem
    change = 2 * (covariance_of(landscape, "grpo", 2) - covariance_of(landscape, "oracle", 2))
    # The oracle's covariance of a large group: its eigenvectors are those of the limit.
    return weight_derivatives(landscape.curvatures, _large_group(entry), change, scale(entry))


def axes(entry: LandscapeEntry) -> np.ndarray:
    """Eigenvectors of the limit weights, as columns, ascending, (r, r)."""
    curvatures = entry.problem.curvatures
    gamma = stationary_covariance(curvatures, _large_group(entry), scale(entry))
    root = np.sqrt(curvatures)
    return np.asarray(np.linalg.eigh(root[:, None] * gamma * root)[1])


def difference(
    entry: LandscapeEntry, group_size: int, batch_size: int = 1, weight: int = 0, away: Any = 0.0
) -> Difference:
    """The difference of a weight of grpo and of the oracle."""
    axis, c = axes(entry)[:, weight], scale(entry)
    return Difference(entry.problem, GRPO, ORACLE, axis, c, group_size, batch_size, away)
