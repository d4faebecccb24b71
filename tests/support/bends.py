"""Problems whose logits bend, made of problems whose logits are linear."""

import numpy as np

from ustat_pg.policies import ArmLinearSoftmax
from ustat_pg.problems import SoftmaxBandit


def bends_of(which, seed=0):
    """Bends of both signs, some zero."""
    shape = which.policy.features.shape
    bends = np.random.default_rng([seed, *shape]).normal(scale=0.5, size=shape)
    return np.where(np.abs(bends) < 0.1, 0.0, bends)


def with_bends(which, bends=None):
    """The problem with bends in its policy, those of :func:`bends_of` unless given."""
    policy = which.policy
    bends = bends_of(which) if bends is None else bends
    bent = ArmLinearSoftmax(policy.features, policy.theta, policy.offset, bends)
    return SoftmaxBandit(bent, which.context_probs, which.reward_values, which.reward_probs)
