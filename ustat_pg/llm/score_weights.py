"""What the scores of a prompt's rollouts are weighted by, in the sums that a pool keeps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["leave_one_out", "length_weights", "moment_weights"]

Array = NDArray[np.float64]


def leave_one_out(rewards: Array) -> Array:
    """z_i less the mean of the others of its row, (..., N)."""
    count = rewards.shape[-1]
    # From the mean, so that equal rewards leave exactly nothing however large they are.
    centred = rewards - rewards.mean(axis=-1, keepdims=True)
    flat = (rewards == rewards[..., :1]).all(axis=-1, keepdims=True)
    return np.where(flat, 0.0, centred * (count / (count - 1)))


def moment_weights(rewards: Array) -> Array:
    """1, z̃ and z̃² of each rollout, z̃ = z less the mean of its row: the weights of ``sums``, (..., 3, N).

    >>> moment_weights(np.array([1.0, 0.0, 0.0, 0.0]))[1].tolist()
    [0.75, -0.25, -0.25, -0.25]
    """
    count = rewards.shape[-1]
    centred = leave_one_out(rewards) * ((count - 1) / count)
    return np.stack([np.ones_like(centred), centred, centred**2], axis=-2)


def length_weights(weights: Array, lengths: Array) -> Array:
    """1/|y| and z̃/|y| of each rollout, the weights of ``length_sums``, (..., 2, N).

    Arguments:
        weights: those of :func:`moment_weights`, (..., 3, N).
        lengths: |y|, (..., N).
    """
    return weights[..., :2, :] / lengths[..., None, :]
