"""Rays on which a softmax bandit's return tends to a supremum that it never reaches."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize

from ..policies import TabularSoftmax
from ..validation import InputError, finite_array, record
from .softmax_bandit import SoftmaxBandit

__all__ = ["Escape", "escape_to_infinity"]

Array = NDArray[np.float64]

_MOST_SEARCHED_ENTRIES = 10_000_000
"""Features (X, K, d) with more entries are not searched for a way to infinity."""


@record()
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
    if loss.size * problem.d > _MOST_SEARCHED_ENTRIES:
        raise InputError(
            f"the features have {loss.size * problem.d} entries: at most {_MOST_SEARCHED_ENTRIES} are "
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
