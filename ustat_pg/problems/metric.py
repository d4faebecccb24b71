"""Problems seen in the metric of an optimizer's step."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..rounding import GIVEN
from ..validation import Array, InputError, finite_array
from .softmax_bandit import SoftmaxBandit
from .weighted import WeightedBandit


def in_metric(problem: SoftmaxBandit, metric: ArrayLike) -> SoftmaxBandit:
    """The bandit in coordinates in which the inner product ⟨u, v⟩ = uᵀ P v is the plain one.

    The parameters are P^(-1/2) θ, so scores are P^(1/2) s, and every formula of errors, constants and group
    sizes holds in the metric P. A step P ĝ, like that of Adam with P = diag(1/(√v + ε)), has its noise in it
    (Theorem 7, group_size).

    Arguments:
        problem: the bandit, at its parameters. Its gradients change, and its curvature is not kept.
        metric: P, the diagonal (d,) with entries >= 0, or a symmetric matrix without negative eigenvalues,
            (d, d).

    Raises:
        InputError: the metric has another shape, is not symmetric or has a negative eigenvalue; or the
            problem has weighted scores.

    >>> from ustat_pg.predictions import mse_constants, optimal_group_size
    >>> from ustat_pg.problems import named_problem
    >>> features = named_problem("features").problem
    >>> steps = features, in_metric(features, [100, 1, 1, 1, 1])
    >>> [round(optimal_group_size(mse_constants(step)), 3) for step in steps]
    [2.771, 4.738]
    """
    if isinstance(problem, WeightedBandit):
        raise InputError("the problem has weighted scores: give the problem before it was weighted")
    root, policy = _root(finite_array("metric", metric), problem.d), problem.policy
    scores = np.stack([policy.scores(x) for x in range(problem.contexts)])
    return SoftmaxBandit.linear(
        problem.context_probs,
        scores * root if root.ndim == 1 else scores @ root,
        np.zeros(problem.d),
        problem.reward_values,
        problem.reward_probs,
        policy.logits,
    )


def _root(metric: Array, d: int) -> Array:
    """P^(1/2), of the form of P."""
    if metric.shape not in ((d,), (d, d)):
        raise InputError(
            f"metric has shape {metric.shape}: it must be {(d,)}, a diagonal, or {(d, d)}"
        )
    largest = float(np.abs(metric).max())
    if metric.ndim == 1:
        least, root = float(metric.min()), np.sqrt(np.maximum(metric, 0.0))
    else:
        off = float(np.abs(metric - metric.T).max())
        if off > GIVEN * largest:
            raise InputError(
                f"metric differs from its transpose by {off:.3g}: it must be symmetric"
            )
        values, axes = np.linalg.eigh(metric)
        least, root = float(values[0]), axes * np.sqrt(np.maximum(values, 0.0)) @ axes.T
    if least < -GIVEN * largest:
        raise InputError(f"metric has the eigenvalue {least:.3g}: none may be negative")
    return np.asarray(root)
