"""The estimators of the policy gradient: advantages over rewards, and the gradient they weight.

Every estimator of the paper's meta-algorithm is

    ĝ = (1/G) Σᵢ sᵢ Aᵢ,   Aᵢ = zᵢ - baselineᵢ,

and they differ in the baseline alone. REINFORCE, the constant baseline, the oracle, a critic and
the minimum-variance baseline subtract a function of the prompt; grpo (RLOO) subtracts the mean of
the *other* rewards, the group mean that of all rewards.

Arrays may be of any library of the array API (NumPy, torch, JAX, CuPy): what comes back is of the
kind that went in. Leading axes are batches; the last axis of ``rewards`` is the group.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from math import isfinite
from numbers import Real
from typing import Any

from array_api_compat import array_namespace, device

from .baselines import baseline as record_of
from .validation import InputError

__all__ = [
    "BASELINES",
    "advantages",
    "constant",
    "critic",
    "gradient",
    "group_mean",
    "grpo",
    "minimum_variance",
    "norm_weighted",
    "oracle",
    "vanilla",
]

Array = Any  # any array of the array API


def _namespace(name: str, array: Array) -> Any:
    """The namespace of an array; what is none, or not of finite real numbers, is refused."""
    try:
        xp = array_namespace(array)
    except TypeError:
        raise InputError(
            f"{name} is a {type(array).__name__}: it must be an array (NumPy, torch, ...)"
        ) from None
    if not xp.isdtype(array.dtype, "real floating"):
        raise InputError(f"{name} have type {array.dtype}: they must be floating-point numbers")
    if not bool(xp.all(xp.isfinite(array))):
        raise InputError(f"{name} hold NaN or infinity: all must be finite")
    return xp


def _rewards(rewards: Array, name: str) -> Any:
    """The array's namespace, after refusing what no estimator can use."""
    xp, least = _namespace("rewards", rewards), record_of(name).least_group
    if rewards.ndim < 1 or rewards.shape[-1] < least:
        size = rewards.shape[-1] if rewards.ndim else 0
        raise InputError(
            f"{name} needs a group of at least {least} rewards on the last axis: "
            f"the shape is {tuple(rewards.shape)}, group size {size}"
        )
    return xp


def _prompt_only(rewards: Array, baseline: Array, name: str) -> Array:
    """Subtract b(x): a number, or an array of the rewards' leading shape, in the rewards' type."""
    xp = _rewards(rewards, name)
    if isinstance(baseline, Real):
        if not isfinite(baseline):
            raise InputError(f"the baseline of {name} is {baseline}: it must be finite")
        return rewards - float(baseline)
    _beside(f"the baselines of {name}", baseline, xp)
    if baseline.ndim:
        leading = tuple(rewards.shape[:-1])
        if tuple(baseline.shape) != leading:
            raise InputError(
                f"the baseline of {name} has shape {tuple(baseline.shape)}: "
                f"it must be a number or have the rewards' leading shape {leading}"
            )
        baseline = xp.expand_dims(baseline, axis=-1)
    return rewards - xp.astype(baseline, rewards.dtype)


def _beside(name: str, array: Array, xp: Any) -> None:
    """Refuse what is no array of finite real numbers of the rewards' own library."""
    own = _namespace(name, array)
    if own is not xp:
        raise InputError(
            f"rewards and {name} must be arrays of one library, not of {xp.__name__} "
            f"and {own.__name__}"
        )


def vanilla(rewards: Array) -> Array:
    """REINFORCE: no baseline, Aᵢ = zᵢ (Williams 1992).

    Arguments:
        rewards: (..., G).

    Returns:
        advantages (..., G).

    Raises:
        InputError: not an array of finite floating-point numbers with G >= 1.

    >>> import numpy as np
    >>> vanilla(np.array([1.0, 0.0]))
    array([1., 0.])
    """
    return _rewards(rewards, "vanilla").asarray(rewards, copy=True)


def grpo(rewards: Array) -> Array:
    """Leave-one-out mean: Aᵢ = zᵢ - (1/(G-1)) Σ_{j≠i} zⱼ (the paper's (4); RLOO).

    Lemma 1 (ustatistic): with these advantages the gradient is a U-statistic of order 2. They sum
    to zero, and the estimator is unbiased.

    Arguments:
        rewards: (..., G) with G >= 2.

    Returns:
        advantages (..., G).

    Raises:
        InputError: G < 2, or not an array of finite floating-point numbers.

    >>> import numpy as np
    >>> grpo(np.array([1.0, 0.0, 0.0]))
    array([ 1. , -0.5, -0.5])
    """
    xp = _rewards(rewards, "grpo")
    size = rewards.shape[-1]
    others = (xp.sum(rewards, axis=-1, keepdims=True) - rewards) / (size - 1)
    return rewards - others


def group_mean(rewards: Array) -> Array:
    """Full group mean: Aᵢ = zᵢ - (1/G) Σⱼ zⱼ, which is (G-1)/G times grpo (Dr. GRPO).

    Biased by that factor: a rescaled learning rate.

    Arguments:
        rewards: (..., G).

    Returns:
        advantages (..., G); all zero at G = 1.

    Raises:
        InputError: not an array of finite floating-point numbers with G >= 1.

    >>> import numpy as np
    >>> group_mean(np.array([1.0, 0.0]))
    array([ 0.5, -0.5])
    """
    xp = _rewards(rewards, "group-mean")
    return rewards - xp.mean(rewards, axis=-1, keepdims=True)


def oracle(rewards: Array, *, value: Array) -> Array:
    """The true value function as baseline: Aᵢ = zᵢ - V(x).

    Arguments:
        rewards: (..., G).
        value: V(x), a number or (...).

    Returns:
        advantages (..., G).

    Raises:
        InputError: as for :func:`vanilla`, or a value of another shape or not finite.

    >>> import numpy as np
    >>> oracle(np.array([1.0, 0.0]), value=0.25)
    array([ 0.75, -0.25])
    """
    return _prompt_only(rewards, value, "oracle")


def constant(rewards: Array, *, constant: Array) -> Array:
    """One number for every prompt: Aᵢ = zᵢ - b.

    Arguments:
        rewards: (..., G).
        constant: b, a number.

    Returns:
        advantages (..., G).

    Raises:
        InputError: as for :func:`vanilla`, or a constant that is not finite.

    >>> import numpy as np
    >>> constant(np.array([1.0, 0.0]), constant=0.5)
    array([ 0.5, -0.5])
    """
    if not isinstance(constant, Real) and getattr(constant, "ndim", None) != 0:
        raise InputError("the constant must be one number for all prompts")
    return _prompt_only(rewards, constant, "constant")


def minimum_variance(rewards: Array, *, optimal_baseline: Array) -> Array:
    """The best baseline that depends on the prompt only: b*(x) = E[‖s‖² z|x] / E[‖s‖²|x]
    (Greensmith, Bartlett and Baxter 2004).

    Arguments:
        rewards: (..., G).
        optimal_baseline: b*(x), a number or (...).

    Returns:
        advantages (..., G).

    Raises:
        InputError: as for :func:`oracle`.

    >>> import numpy as np
    >>> minimum_variance(np.array([1.0, 0.0]), optimal_baseline=0.128)
    array([ 0.872, -0.128])
    """
    return _prompt_only(rewards, optimal_baseline, "minimum-variance")


def critic(rewards: Array, *, predicted_value: Array) -> Array:
    """A learned value V_φ(x) as baseline: Aᵢ = zᵢ - V_φ(x) (A2C).

    Arguments:
        rewards: (..., G).
        predicted_value: V_φ(x), a number or (...).

    Returns:
        advantages (..., G).

    Raises:
        InputError: as for :func:`oracle`.

    >>> import numpy as np
    >>> critic(np.array([1.0, 0.0]), predicted_value=np.array(0.3))
    array([ 0.7, -0.3])
    """
    return _prompt_only(rewards, predicted_value, "critic")


def norm_weighted(rewards: Array, *, squared_norms: Array) -> Array:
    """Leave-one-out mean weighted by squared score norms:
    Aᵢ = zᵢ - Σ_{j≠i} ‖sⱼ‖² zⱼ / Σ_{j≠i} ‖sⱼ‖².

    The practical form of the minimum-variance baseline (Corollary 5, optimality): unbiased, since
    it does not use output i. Where all other scores are zero its baseline is defined as 0.

    Arguments:
        rewards: (..., G) with G >= 2.
        squared_norms: ‖sᵢ‖², (..., G).

    Returns:
        advantages (..., G).

    Raises:
        InputError: as for :func:`grpo`, or squared norms of another shape, negative or not finite.

    >>> import numpy as np
    >>> norm_weighted(np.array([1.0, 0.0, 0.0]), squared_norms=np.array([1.0, 1.0, 3.0]))
    array([ 1.  , -0.25, -0.5 ])
    """
    xp = _rewards(rewards, "norm-weighted")
    _beside("squared_norms", squared_norms, xp)
    if tuple(squared_norms.shape) != tuple(rewards.shape):
        raise InputError(
            f"squared_norms has shape {tuple(squared_norms.shape)}: "
            f"it must have the rewards' shape {tuple(rewards.shape)}"
        )
    if not bool(xp.all(squared_norms >= 0)):
        raise InputError("squared_norms must not be negative")
    # In the wider of the two types: norms may exceed the range of the rewards' own.
    wide = xp.result_type(rewards.dtype, squared_norms.dtype)
    norms = xp.astype(squared_norms, wide)
    # Sums over the others are added up, not taken as total minus own: where the own norm
    # dwarfs the others the difference would be rounding noise, and 0/0 would go unseen.
    apart = 1 - xp.eye(rewards.shape[-1], dtype=wide, device=device(rewards))
    weight = xp.sum(xp.expand_dims(norms, axis=-2) * apart, axis=-1)
    weighted = xp.sum(xp.expand_dims(norms * xp.astype(rewards, wide), axis=-2) * apart, axis=-1)
    empty = weight == 0
    one, zero = xp.ones_like(weight), xp.zeros_like(weight)
    baseline = xp.where(empty, zero, weighted / xp.where(empty, one, weight))
    return rewards - xp.astype(baseline, rewards.dtype)


BASELINES: dict[str, Callable[..., Array]] = {
    "vanilla": vanilla,
    "grpo": grpo,
    "group-mean": group_mean,
    "oracle": oracle,
    "constant": constant,
    "minimum-variance": minimum_variance,
    "norm-weighted": norm_weighted,
    "critic": critic,
}
"""Advantage functions by name."""


def advantages(name: str, rewards: Array, **known: Array) -> Array:
    """Advantages of the baseline called ``name``; ``known`` is what that baseline takes.

    Arguments:
        name: one of :data:`BASELINES`, or an alias.
        rewards: (..., G).
        known: the keyword argument of that baseline's own function, e.g. ``value=`` for the oracle.

    Raises:
        InputError: unknown name, or what the baseline needs was not given.

    >>> import numpy as np
    >>> advantages("rloo", np.array([1.0, 0.0]))
    array([ 1., -1.])
    """
    function = BASELINES[record_of(name).name]
    try:
        signature(function).bind(rewards, **known)
    except TypeError as error:
        raise InputError(f"{name}: {error}") from None
    return function(rewards, **known)


def gradient(scores: Array, advantages: Array) -> Array:
    """The gradient estimate of each group, ĝ = (1/G) Σᵢ sᵢ Aᵢ.

    Arguments:
        scores: s = ∇ log π, (..., G, d).
        advantages: (..., G).

    Returns:
        (..., d): one estimate per group; a minibatch's is their mean over prompts.

    Raises:
        InputError: shapes that do not match.

    >>> import numpy as np
    >>> gradient(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([1.0, -1.0]))
    array([ 0.5, -0.5])
    """
    xp = _namespace("scores", scores)
    if _namespace("advantages", advantages) is not xp:
        raise InputError("scores and advantages must be arrays of one library")
    if tuple(scores.shape[:-1]) != tuple(advantages.shape) or 0 in tuple(advantages.shape[-1:]):
        raise InputError(
            f"scores have shape {tuple(scores.shape)} and advantages {tuple(advantages.shape)}: "
            "they must be (..., G, d) and (..., G) with G >= 1"
        )
    return xp.mean(scores * xp.expand_dims(advantages, axis=-1), axis=-2)
