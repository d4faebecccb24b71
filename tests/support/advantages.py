"""Advantage functions in the style of trainers, right and wrong ones."""

import numpy as np
import pytest

from ustat_pg import estimators

BOTH = ("rewards", "squared_norms")


def rloo(z):
    """TRL's RLOO trainer: the mean of the others."""
    size = z.shape[-1]
    return z - (z.sum(axis=-1, keepdims=True) - z) / (size - 1)


def dr_grpo(z):
    return z - z.mean(axis=-1, keepdims=True)


def normalised(z):
    """TRL's GRPO trainer: divided by the group's deviation (ddof 1, as torch's) and an epsilon."""
    return (z - z.mean(axis=-1, keepdims=True)) / (z.std(axis=-1, ddof=1, keepdims=True) + 1e-4)


def normalised_without_epsilon(z):
    return (z - z.mean(axis=-1, keepdims=True)) / z.std(axis=-1, keepdims=True)


def batch_normalised(z):
    return (z - z.mean(axis=-1, keepdims=True)) / (z.std() + 1e-4)


def stale(z):
    """The mean reward of the prompt before; 0 for the first."""
    before = np.concatenate([[0.0], z.mean(axis=-1)[:-1]])
    return z - before[:, None]


def other_prompts(z):
    total = z.mean(axis=-1).sum()
    return z - ((total - z.mean(axis=-1)) / (len(z) - 1))[:, None]


def whole_minibatch(z):
    return z - z.mean()


def maximum_reward(z):
    """RLOO, but the baseline of a group is never below 0.2 (prompt-independent, own reward unused)."""
    return z - np.maximum(z - rloo(z), 0.2)


def neighbour(z):
    return z - np.roll(z, 1, axis=-1)


def norm_weighted(z, norms):
    return estimators.norm_weighted(z, squared_norms=norms)


def own_norm_weighted(z, norms):
    return z - (norms * z).sum(-1, keepdims=True) / norms.sum(-1, keepdims=True)


def signed_wrongly(z):
    return -rloo(z)


def own_reward_in_the_sum(z):
    return z - z.sum(axis=-1, keepdims=True) / (z.shape[-1] - 1)


def others_over_g(z):
    return z - (z.sum(axis=-1, keepdims=True) - z) / z.shape[-1]


def failure(check, *args, **kwargs):
    """The one line that a check fails with."""
    with pytest.raises(AssertionError) as result:
        check(*args, **kwargs)
    assert type(result.value) is AssertionError
    assert result.value.__context__ is None
    message = str(result.value)
    assert "\n" not in message
    return message
