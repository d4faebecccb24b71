"""The estimators of the policy gradient: advantages over rewards, and the gradient they weight.

Every estimator of the paper's meta-algorithm is

    ĝ = (1/G) Σᵢ sᵢ Aᵢ,

and they differ only in the advantage: a reward minus a baseline (:mod:`~ustat_pg.estimators.linear`), or
    another form in use (:mod:`~ustat_pg.estimators.shaped`). Two estimators learn their baseline during
    training (:class:`RunningTable`, :class:`PromptMemory`). Penalties by the distance to a reference policy
    have their own coefficients (:mod:`~ustat_pg.estimators.penalties`). :func:`token_weights` shows how a
    loss adds up tokens of outputs of unequal length.

Arrays may belong to any library of the array API (NumPy, torch, JAX, CuPy), and results have the kind of the
input. Integers and booleans become floating-point numbers, and lists become NumPy arrays. Leading axes are
batches; the last axis of ``rewards`` is the group.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature

from .. import registry
from ..validation import InputError
from . import linear, shaped
from .aggregation import AGGREGATIONS, token_weights
from .arrays import Array, floating
from .episodes import TURN_SCHEMES, turns
from .linear import *  # noqa: F403
from .penalties import KL_KINDS, KL_PLACES, kl_coefficients, kl_values
from .prompt_memory import PromptMemory
from .ratios import RATIOS, clipped_weights, importance_weights
from .running import RunningTable
from .sequential import balanced, sequential, two_stage
from .shaped import *  # noqa: F403

__all__ = [
    "AGGREGATIONS",
    "FUNCTIONS",
    "KL_KINDS",
    "KL_PLACES",
    "RATIOS",
    "TURN_SCHEMES",
    "PromptMemory",
    "RunningTable",
    "advantages",
    "balanced",
    "clipped_weights",
    "gradient",
    "importance_weights",
    "kl_coefficients",
    "kl_values",
    "sequential",
    "token_weights",
    "turns",
    "two_stage",
]
__all__ += linear.__all__
__all__ += shaped.__all__

_NAMED = vars(linear) | vars(shaped)

FUNCTIONS: dict[str, Callable[..., Array]] = {
    name: _NAMED[record.function] for name, record in registry.ESTIMATORS.items()
}
"""Advantage functions by name."""


def advantages(estimator: str, rewards: Array, **known: Array) -> Array:
    """The advantages of an estimator given by name; ``known`` has the other arguments of its function.

    Arguments:
        estimator: a name in :data:`FUNCTIONS` or an alias; numbers follow after a colon.
        rewards: (..., G).
        known: keyword arguments of that function, e.g. ``value=`` for the oracle.

    >>> import numpy as np
    >>> advantages("rloo", np.array([1.0, 0.0]))
    array([ 1., -1.])
    >>> advantages("bayes:1,1", np.array([1.0, 0.0, 0.0]))
    array([ 0.75, -0.5 , -0.5 ])
    """
    record, numbers = registry.parse(estimator)
    function = FUNCTIONS[record.name]
    try:
        signature(function).bind(rewards, **known, **numbers)
    except TypeError as error:
        raise InputError(f"{estimator}: {error}") from None
    return function(rewards, **known, **numbers)


def gradient(scores: Array, advantages: Array) -> Array:
    """The gradient estimate of each group, ĝ = (1/G) Σᵢ sᵢ Aᵢ.

    Arguments:
        scores: s = ∇ log π, (..., G, d).
        advantages: (..., G).

    Returns:
        (..., d): one estimate per group; the estimate of a minibatch is the mean over prompts.

    >>> import numpy as np
    >>> gradient(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([1.0, -1.0]))
    array([ 0.5, -0.5])
    """
    xp, scores = floating("scores", scores)
    other, advantages = floating("advantages", advantages, scores)
    if other is not xp:
        raise InputError("scores and advantages must be arrays of the same library")
    if tuple(scores.shape[:-1]) != tuple(advantages.shape) or 0 in tuple(advantages.shape[-1:]):
        raise InputError(
            f"scores have shape {tuple(scores.shape)} and advantages {tuple(advantages.shape)}: "
            "they must be (..., G, d) and (..., G) with G >= 1"
        )
    return xp.mean(scores * xp.expand_dims(advantages, axis=-1), axis=-2)
