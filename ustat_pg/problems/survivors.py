"""Moments for outputs that may be lost before the estimate: stale, slow, truncated, rejected, unscorable
(survivors).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..moments.record import Moments, SurvivorMoments
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
    rows: dict[str, list[float]] = {}
    gradients, raw = [], []
    for x, rewards in enumerate(problem.reward_values):
        scores, outputs = problem.policy.scores(x), law[x].sum(axis=1)
        centred = scores - outputs @ scores
        value = float((law[x] * rewards).sum())
        deviations = rewards - value
        norms = (centred**2).sum(axis=1)
        first, second = ((law[x] * deviations**power).sum(axis=1) for power in (1, 2))
        gradients.append(first @ centred)
        raw.append((law[x] * rewards).sum(axis=1) @ scores)
        row = {
            "value": value,
            "reward_variance": second.sum(),
            "fisher_trace": outputs @ norms,
            "norm_advantage": first @ norms,
            "norm_squared_advantage": second @ norms,
            "gradient_sq": gradients[-1] @ gradients[-1],
            "lone_squares": (law[x] * rewards**2).sum(axis=1) @ (scores**2).sum(axis=1),
        }
        for name, number in row.items():
            rows.setdefault(name, []).append(float(number))
    table, probs = np.array(gradients), problem.context_probs
    lone_squares = np.array(rows.pop("lone_squares"))
    mean = probs @ table
    moments = Moments(
        context_probs=probs,
        **{name: np.array(column) for name, column in rows.items()},  # type: ignore[arg-type]
        mean_gradient_sq=float(mean @ mean),
        reward_range=problem.reward_range,
        weighted_gradient=lambda weights: (probs * weights) @ table,
    )
    return SurvivorMoments(moments, kept, np.array(raw), lone_squares, problem.gradient())
