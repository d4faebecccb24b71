"""The gradient of a framework's loss in the first step, token by token, computed from the catalogue's fields.

``tests.conformance`` compares it with each framework's own loss.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..estimators import kl_coefficients, kl_values, token_weights
from ..validation import InputError
from .meaning import Meaning, Penalty

Array = NDArray[np.floating]

_PLACES = {"": "loss", "×": "token-ratio", "+": "loss"}
"""Where a form of the KL enters, by its last sign."""


def token_coefficients(
    meaning: Meaning,
    advantages: Array,
    log_ratios: Array,
    mask: Array,
    *,
    micro_batches: int = 1,
) -> Array:
    """The coefficient of every token's score ∇ log π in the ascent direction of a framework's loss.

    It applies to the first step after sampling: the weight of the token times the output's advantage, times a
        cap below 1 if there is one, plus the KL terms in the loss. It assumes that all rollouts are trained,
        that there is no entropy term, and that the sampling engine agrees with the trained policy.

    Arguments:
        meaning: meaning of the framework's options.
        advantages: advantage of each output, (B, G).
        log_ratios: log π_ref - log π_θ of each token, (B, G, T).
        mask: 1 where an output has a token, (B, G, T).
        micro_batches: number of equal, consecutive parts into which the B groups are split.

    >>> import numpy as np
    >>> from ustat_pg.catalogue import resolve
    >>> mask = np.array([[[1.0, 1.0], [1.0, 0.0]]])
    >>> token_coefficients(resolve("trl loss_type=grpo"), np.array([[1.0, -1.0]]), 0 * mask, mask)
    array([[[ 0.25,  0.25],
            [-0.5 , -0.  ]]])
    """
    weights = _weights(meaning, meaning.aggregation.name, mask, micro_batches)
    # A loss other than the default may add up tokens in its own way, but only for the advantages' part.
    usual = meaning.framework.adds_up(meaning.values, "aggregation")
    cap = meaning.cap[1] if meaning.cap else 1.0
    result = weights * (cap * advantages)[..., None]
    for penalty in meaning.in_place("loss"):
        others = _weights(meaning, penalty.option.adds_up or usual, mask, micro_batches)
        added = penalty.coefficient * others * _slopes(penalty, log_ratios)
        result = result + np.where(mask > 0, added, 0)
    return result


def token_rewards(meaning: Meaning, log_ratios: Array) -> Array:
    """The amount that KL terms in the reward add to the reward at every token, (B, G, T).

    >>> import numpy as np
    >>> from ustat_pg.catalogue import resolve
    >>> meaning = resolve("verl adv_estimator=rloo use_kl_in_reward=true kl_ctrl.kl_coef=.5")
    >>> token_rewards(meaning, np.array([[[0.1, -0.2]]]))
    array([[[ 0.05, -0.1 ]]])
    """
    result = np.zeros_like(log_ratios)
    for penalty in meaning.in_place("reward"):
        form = penalty.form.rstrip("+")
        value = abs(log_ratios) if form == "abs" else kl_values(log_ratios, form)
        result = result - penalty.coefficient * value
    return result


def _weights(meaning: Meaning, name: str, mask: Array, micro_batches: int) -> Array:
    parts = mask.reshape(micro_batches, -1, *mask.shape[1:])
    if name == "micro-token-mean":
        return token_weights(parts, "token-mean").reshape(mask.shape) / micro_batches
    if name.startswith("added-"):
        return token_weights(parts, name.removeprefix("added-")).reshape(mask.shape)
    if name == "micro-sequence-mean":
        share = parts.sum((1, 2, 3), keepdims=True) / mask.sum()
        return (token_weights(parts, "sequence-mean") * share).reshape(mask.shape)
    if name.endswith("constant"):
        if meaning.constant is None:
            raise InputError("the constant of the loss is not known: write it")
        if name != "constant":
            return token_weights(mask, "token-sum") * meaning.constant
        name = f"constant:{1 / meaning.constant}"
    return token_weights(mask, name)


def _slopes(penalty: Penalty, log_ratios: Array) -> Array:
    form = penalty.form.rstrip("×+")
    sign = penalty.form[len(form) :]
    if sign == "+":
        form = "k2"
    if form == "abs" and not sign:
        return np.sign(log_ratios)
    return kl_coefficients(log_ratios, form, _PLACES[sign])
