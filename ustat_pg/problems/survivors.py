"""Moments for outputs that may be lost before the estimate: stale, slow, truncated, rejected, unscorable
(survivors).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..moments.record import SurvivorMoments
from ..policies import WeightedScores
from ..validation import InputError, shares
from .softmax_bandit import SoftmaxBandit


def survivor_moments(problem: SoftmaxBandit, survival: ArrayLike) -> SurvivorMoments:
    """Moments of the surviving outputs, each with its own survival probability h, by enumeration.

    Survivors follow the law π h/E h. Their scores have the mean ∇ log E h with fixed h; moments of score and
    reward are centred at the means of survivors.

    Arguments:
        problem: the bandit, at its parameters.
        survival: h(x, k), (X, K), or h(x, k, r) for each value of the reward, (X, K, R); in [0, 1].

    Raises:
        InputError: probabilities have another shape or are outside [0, 1], or no output of a prompt survives.

    >>> coin = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    >>> lost = survivor_moments(coin, [[1.0, 0.5]])
    >>> lost.kept, lost.moments.value.round(4)
    (array([0.75]), array([0.6667]))
    """
    chances = shares("survival", survival)
    if chances.ndim == 2:
        chances = chances[..., None]
    shape = problem.reward_probs.shape
    if chances.shape not in (shape, (*shape[:2], 1)):
        raise InputError(
            f"survival has shape {np.shape(survival)}: it must be {shape[:2]}, a chance for each prompt "
            f"and output, or {shape}, one for each reward too"
        )
    joint = problem.policy.probs[..., None] * problem.reward_probs * chances
    kept = joint.sum(axis=(1, 2))
    if (kept <= 0).any():
        raise InputError(f"no output of prompt {int((kept <= 0).argmax())} survives")
    law = joint / kept[:, None, None]
    # Of an output that never survives what rounds to nothing, so that it has a logarithm and a law.
    outputs = np.maximum(law.sum(axis=2), np.finfo(float).tiny)
    given = np.where(
        law.sum(axis=2, keepdims=True) > 0, law / outputs[..., None], problem.reward_probs
    )
    raw = np.stack([problem.policy.scores(x) for x in range(problem.contexts)])
    policy = WeightedScores(np.log(outputs), raw - outputs[:, None] @ raw)
    left = SoftmaxBandit(policy, problem.context_probs, problem.reward_values, given)
    lone_means = np.einsum("xkr,xkd->xd", law * problem.reward_values, raw)
    squares = (law * problem.reward_values**2).sum(axis=2)
    lone_squares = (squares * problem.policy.squared_norms).sum(axis=1)
    return SurvivorMoments(left.moments(), kept, lone_means, lone_squares, problem.gradient())
