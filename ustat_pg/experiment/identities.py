"""Formulas that an estimator is compared with group by group (Lemma 1, ustatistic), right and wrong.

Each takes scores (n, G, d), rewards (n, G) and the law of one rollout, and gives (n, d).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engines import Draws, Estimator, GradientCell
from ..engines.gradients import exact, reference
from ..estimators import gradient
from ..ustatistics import (
    covariance_kernel,
    covariance_ustatistic,
    hoeffding,
    ustatistic,
)
from ..validation import InputError

__all__ = ["FORMULAS", "discrepancies"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Law:
    """The law of one rollout at one prompt: scores (M, d), rewards (M,), probabilities (M,)."""

    scores: Array
    rewards: Array
    probs: Array


def _each(function: Callable[[Array, Array], Any]) -> Callable[[Array, Array, Law], Array]:
    """A formula for one group, applied to every group."""

    def apply(scores: Array, rewards: Array, law: Law) -> Array:
        return np.stack([function(s, z) for s, z in zip(scores, rewards, strict=True)])

    return apply


def _kernel(
    h: Callable[[Array, Array, Array, Array], Array],
) -> Callable[[Array, Array, Law], Array]:
    """The U-statistic of a kernel h(s₁, z₁, s₂, z₂), rewards with an axis for d."""

    def kernel(first: tuple[Array, Array], second: tuple[Array, Array]) -> Array:
        return h(first[0], first[1][:, None], second[0], second[1][:, None])

    return _each(lambda s, z: ustatistic(kernel, (s, z)))


def _v_statistic(scores: Array, rewards: Array, law: Law) -> Array:
    """All pairs of outputs, each with itself too."""
    pairs = (scores[:, :, None] - scores[:, None]) * (rewards[:, :, None] - rewards[:, None])[
        ..., None
    ]
    return np.asarray(0.5 * pairs.mean(axis=(1, 2)))


def _normalised(scores: Array, rewards: Array, law: Law) -> Array:
    """The U-statistic over the group's standard deviation; 0 where that is 0."""
    spread = rewards.std(axis=1, keepdims=True)
    value = covariance_ustatistic(scores, rewards)
    return np.where(spread > 0, value / np.where(spread > 0, spread, 1.0), 0.0)


def _parts(scores: Array, rewards: Array, law: Law, *, second: bool) -> Array:
    """g + first part, with or without the second part."""
    values = []
    for s, z in zip(scores, rewards, strict=True):
        parts = hoeffding(covariance_kernel, (s, z), (law.scores, law.rewards), law.probs)
        values.append(parts.mean + parts.first + (parts.second if second else 0.0))
    return np.stack(values)


FORMULAS: dict[str, Callable[[Array, Array, Law], Array]] = {
    "U-statistic": _each(lambda s, z: ustatistic(covariance_kernel, (s, z))),
    "U-statistic in O(G d)": lambda s, z, law: covariance_ustatistic(s, z),
    "g + first + second": lambda s, z, law: _parts(s, z, law, second=True),
    "g + first": lambda s, z, law: _parts(s, z, law, second=False),
    "V-statistic": _v_statistic,
    "kernel without 1/2": _kernel(lambda s, z, t, y: (s - t) * (z - y)),
    "kernel s1 z1": _kernel(lambda s, z, t, y: (s * z + t * y) / 2),
    "kernel (s1 - s2)(z1 + z2)/2": lambda s, z, law: _sum_kernel(s, z),
    "std-normalised": _normalised,
}
"""By name. The kernel with z1 + z2 is not symmetric: it depends on the order of the group, so that
every order must be enumerated."""


def _sum_kernel(scores: Array, rewards: Array) -> Array:
    size = scores.shape[1]
    i, j = np.triu_indices(size, 1)
    pairs = (scores[:, i] - scores[:, j]) * (rewards[:, i] + rewards[:, j])[..., None]
    return np.asarray(pairs.mean(axis=1) / 2)


def discrepancies(
    cell: GradientCell,
    estimator: str,
    formulas: tuple[str, ...],
    *,
    seed: int = 0,
    replications: int = 0,
) -> tuple[int, dict[str, float]]:
    """The largest discrepancy of each formula from the estimator, relative to the scores' and
    rewards' size: over every group that can occur, in every order, or over drawn ones if
    ``replications`` is given.

    Returns:
        how many groups were compared, and the discrepancies by name.
    """
    problem = cell.problem
    if problem.contexts != 1 or cell.batch_size != 1:
        raise InputError("an identity is checked at one prompt, batch size 1")
    outcomes = problem.outcomes
    scores = problem.policy.scores(0)
    law = Law(scores[outcomes.arms[0]], outcomes.rewards[0], outcomes.probs[0])
    scale = float(np.linalg.norm(law.scores, axis=1).max() * np.abs(law.rewards).max()) or 1.0
    worst, count = dict.fromkeys(formulas, 0.0), 0
    chunks = (
        [reference.draw(cell, seed=seed, first=0, replications=replications)]
        if replications
        else [draws for draws, _ in exact.minibatches(cell, tuples=True)]
    )
    for draws in chunks:
        groups, rewards = scores[draws.arms[:, 0]], draws.rewards[:, 0]
        own = gradient(groups, _advantages(estimator, cell, draws))
        count += len(rewards)
        for name in formulas:
            error = np.linalg.norm(FORMULAS[name](groups, rewards, law) - own, axis=1)
            worst[name] = max(worst[name], float(error.max()) / scale)
    return count, worst


def _advantages(estimator: str, cell: GradientCell, draws: Draws) -> Array:
    return Estimator(estimator).advantages(cell.problem, draws)[:, 0]
