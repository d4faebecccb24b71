"""Importance ratios and clipping: the weights of token scores if an older policy drew the outputs.

Trainers draw a batch of outputs and take several steps on it, so all steps except the first use outputs of an
older policy. With lₜ = log π_θ - log π_old of token t they weight its score by

    none      1
    token     exp(lₜ)                          PPO, GRPO
    prefix    exp(l₁ + ... + lₜ)
    sequence  exp(l₁ + ... + l_T)              unbiased; TRL's RLOOTrainer
    gspo      exp((l₁ + ... + l_T)/T)          GSPO: the geometric mean

and clip the weight by the sign of the advantage. :func:`ustat_pg.predictions.practical_mse` gives the effect
on bias and noise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..validation import InputError, number, one_of
from .arrays import Array, floating

_EXPONENTS: dict[str, Callable[[Any, Array, Array], Array]] = {
    "none": lambda xp, logs, lengths: xp.zeros_like(logs),
    "token": lambda xp, logs, lengths: logs,
    "prefix": lambda xp, logs, lengths: xp.cumulative_sum(logs, axis=-1),
    "sequence": lambda xp, logs, lengths: xp.sum(logs, axis=-1, keepdims=True),
    "gspo": lambda xp, logs, lengths: xp.sum(logs, axis=-1, keepdims=True) / lengths,
}

RATIOS = tuple(_EXPONENTS)
"""Names of ratios."""


def importance_weights(
    log_ratio: Array, mask: Array | None = None, *, ratio: str = "token"
) -> Array:
    """The weight of each token's score, from the ratio of the current policy to the policy that drew the
    token.

    Arguments:
        log_ratio: lₜ = log π_θ - log π_old of each token, (..., T); entries past an output's end are ignored.
        mask: 1 for a token of the output and 0 past its end, (..., T) (default: all are tokens).
        ratio: none, token, prefix, sequence or gspo.

    Returns:
        (..., T), 0 past an output's end.

    >>> import numpy as np
    >>> logs = np.log(np.array([2.0, 0.5, 2.0]))
    >>> importance_weights(logs, ratio="prefix"), importance_weights(logs, ratio="sequence")
    (array([2., 1., 2.]), array([2., 2., 2.]))
    >>> importance_weights(logs, np.array([1.0, 1.0, 0.0]), ratio="gspo")
    array([1., 1., 0.])
    """
    one_of("ratio", ratio, RATIOS)
    xp, log_ratio = floating("log-ratios", log_ratio)
    if log_ratio.ndim < 1 or log_ratio.shape[-1] < 1:
        raise InputError(
            f"log-ratios have shape {tuple(log_ratio.shape)}: the last axis must be tokens"
        )
    if mask is None:
        mask = xp.ones_like(log_ratio)
    else:
        other, mask = floating("mask", mask, log_ratio)
        if other is not xp or tuple(mask.shape) != tuple(log_ratio.shape):
            raise InputError(
                f"mask has shape {tuple(mask.shape)}: it must be an array like the log-ratios, "
                f"{tuple(log_ratio.shape)}"
            )
    inside = mask > 0
    logs = xp.where(inside, log_ratio, xp.zeros_like(log_ratio))
    lengths = xp.sum(xp.astype(inside, log_ratio.dtype), axis=-1, keepdims=True)
    # An output without tokens has weight 0.
    exponents = _EXPONENTS[ratio](xp, logs, xp.where(lengths > 0, lengths, xp.ones_like(lengths)))
    return xp.where(inside, xp.exp(exponents), xp.zeros_like(logs))


def clipped_weights(
    weights: Array, advantages: Array, *, low: float = 0.2, high: float | None = None
) -> Array:
    """Weights after PPO's clipping: 0 if min(ρA, clip(ρ, 1-ε_low, 1+ε_high) A) does not depend on ρ.

    The gradient of that minimum is ρ A s, but 0 if ρ > 1 + ε_high and A > 0, or ρ < 1 - ε_low and A < 0: then
    the step does not go further.

    Arguments:
        weights: ρ of each token, from :func:`importance_weights`, (..., T).
        advantages: A of each output, (...).
        low, high: ε_low and ε_high (default: equal).

    >>> import numpy as np
    >>> weights = np.array([[0.5, 1.5], [0.5, 1.5]])
    >>> clipped_weights(weights, np.array([1.0, -1.0]))
    array([[0.5, 0. ],
           [0. , 1.5]])
    """
    low = number("low", low, minimum=0.0)
    high = low if high is None else number("high", high, minimum=0.0)
    xp, weights = floating("weights", weights)
    other, advantages = floating("advantages", advantages, weights)
    if other is not xp or tuple(advantages.shape) != tuple(weights.shape[:-1]):
        raise InputError(
            f"weights have shape {tuple(weights.shape)} and advantages {tuple(advantages.shape)}: "
            "they must be (..., T) and (...)"
        )
    sign = xp.expand_dims(advantages, axis=-1)
    far = ((weights > 1 + high) & (sign > 0)) | ((weights < 1 - low) & (sign < 0))
    return xp.where(far, xp.zeros_like(weights), weights)
