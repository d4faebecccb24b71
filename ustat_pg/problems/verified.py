"""Problems with rewards from a verifier that makes errors."""

from __future__ import annotations

import numpy as np

from ..validation import InputError, changed, number
from .softmax_bandit import SoftmaxBandit


def verified(
    problem: SoftmaxBandit, true_positive_rate: float, false_positive_rate: float
) -> SoftmaxBandit:
    """The bandit with 0/1 rewards from a verifier that makes errors.

    Arguments:
        problem: bandit with a verifier without errors; rewards 0 and 1.
        true_positive_rate: a, the share of right answers that are accepted.
        false_positive_rate: c, the share of wrong answers that are accepted.

    >>> coin = SoftmaxBandit.bernoulli([0.5, 0.5], [1, 0])
    >>> verified(coin, 0.9, 0.1).gradient() / coin.gradient()
    array([0.8, 0.8])
    """
    right = number("true_positive_rate", true_positive_rate, minimum=0.0, maximum=1.0)
    wrong = number("false_positive_rate", false_positive_rate, minimum=0.0, maximum=1.0)
    if not problem.binary:
        low, high = problem.reward_range
        raise InputError(f"the rewards lie in [{low:g}, {high:g}]: a verifier gives 0 or 1")
    chance = wrong + (right - wrong) * problem.mean_rewards
    law = np.stack([chance, 1 - chance], axis=-1)
    values = np.broadcast_to([1.0, 0.0], law.shape)
    return changed(problem, reward_values=values, reward_probs=law)
