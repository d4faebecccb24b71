"""Weights of tokens in a loss, for the ways in which trainers add up tokens of outputs of unequal length.

With on-policy outputs and an advantage A for each, every loss here has the gradient Σ w A ∇ log π(token) over
the tokens of a minibatch, and they differ only in w (length_weights).
"""

from __future__ import annotations

from math import prod

from ..validation import InputError, one_of, positive
from .arrays import Array, floating

_PROMPTS, _GROUP = -3, -2

_WAYS: dict[str, tuple[tuple[int, ...] | None, tuple[int, ...]]] = {
    "sequence-sum": (None, (_PROMPTS, _GROUP)),
    "constant": (None, (_PROMPTS, _GROUP)),
    "sequence-mean": ((), (_PROMPTS, _GROUP)),
    "prompt-mean": ((_GROUP,), (_PROMPTS,)),
    "token-mean": ((_PROMPTS, _GROUP), ()),
    "token-sum": (None, ()),
}
"""The axes over which tokens are counted for an output's divisor (None if there is no divisor), and the axes
of the mean.
"""

AGGREGATIONS = tuple(_WAYS)
"""The ways by the catalogue's names.

sequence-sum: verl's seq-mean-token-sum. constant: TRL's dr_grpo, verl's seq-mean-token-sum-norm.
sequence-mean: TRL's grpo, verl's seq-mean-token-mean. prompt-mean: SkyRL's prompt_mean. token-mean:
TRL's dapo, and its bnpo on each micro-batch; verl's token-mean. token-sum: verl's token-sum.
"""


def token_weights(mask: Array, how: str) -> Array:
    """The weight of every token in a minibatch's loss, for B prompts with G outputs y with |y| tokens.

    ==================  =======================
    how                 weight
    ==================  =======================
    sequence-sum        1/(BG)
    constant:L          1/(BG L)
    sequence-mean       1/(BG |y|)
    prompt-mean         1/(B Σ |y|), its group
    token-mean          1/(Σ |y|), all outputs
    token-sum           1
    ==================  =======================

    Arguments:
        mask: 1 where an output has a token and 0 past its end, floating-point, (..., B, G, T);
            (G, T) is one prompt. Further leading axes are separate minibatches.
        how: one of :data:`AGGREGATIONS`; the number of constant follows after a colon.

    Returns:
        weights with the mask's shape, 0 past the end; all are 0 if there are no tokens to divide by.

    >>> import numpy as np
    >>> mask = np.array([[1.0, 1.0], [1.0, 0.0]])
    >>> token_weights(mask, "sequence-mean")
    array([[0.25, 0.25], [0.5 , 0.  ]])
    >>> token_weights(mask, "token-mean").round(4)
    array([[0.3333, 0.3333], [0.3333, 0.    ]])
    >>> token_weights(mask, "constant:2")
    array([[0.25, 0.25], [0.25, 0.  ]])
    """
    if not isinstance(how, str):
        one_of("aggregation", how, AGGREGATIONS)
    name, colon, number = how.partition(":")
    one_of("aggregation", name, AGGREGATIONS)
    if bool(colon) != (name == "constant"):
        raise InputError(
            f"aggregation {how!r}: constant needs a length after a colon, for example "
            f"constant:512, and the others do not have one"
        )
    xp, mask = floating("mask", mask)
    if mask.ndim < 2 or 0 in mask.shape:
        raise InputError(
            f"mask has shape {tuple(mask.shape)}: its last two axes must be outputs and tokens"
        )
    if not bool(xp.all((mask == 0) | (mask == 1))):
        raise InputError("mask must contain zeros and ones")
    layer = mask if mask.ndim > 2 else mask[None, ...]
    counted, means = _WAYS[name]
    divisor = xp.ones_like(layer) * prod(layer.shape[axis] for axis in means)
    if counted is not None:
        divisor = divisor * xp.sum(layer, axis=(*counted, -1), keepdims=True)
    if colon:
        divisor = divisor * _length(how, number)
    weights = layer / xp.where(divisor > 0, divisor, xp.ones_like(divisor))
    return weights if mask.ndim > 2 else weights[0, ...]


def _length(how: str, number: str) -> float:
    try:
        return positive("length", float(number))
    except ValueError:
        raise InputError(f"aggregation {how!r}: its length must be a positive number") from None
