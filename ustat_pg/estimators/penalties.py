"""Estimators of the Kullback-Leibler (KL) divergence to a reference policy, and their part of the gradient
(Proposition 13, arcsine).

Trainers use three functions of the log-ratio l = log π_ref - log π_θ of a token drawn from π_θ. Their means
are divergences: KL(π_θ ‖ π_ref) for k1 and k3, and approximately this for k2 if the policies are close. Their
*gradients* depend on the function and on the place:

- in the loss, trainers differentiate the function through the log-probability of the drawn token,
  and the law of the token is fixed;
- in the loss times an importance ratio with its gradient, that law changes too;
- in the reward, the sum over the output's tokens is subtracted, and weights scores as rewards do.

:func:`ustat_pg.predictions.kl_gradient` gives the mean gradient of each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..validation import InputError, one_of
from .arrays import Array, floating

_FUNCTIONS: dict[str, tuple[Callable[[Any, Array], Array], Callable[[Any, Array], Array]]] = {
    "k1": (lambda xp, x: -x, lambda xp, x: -xp.ones_like(x)),
    "k2": (lambda xp, x: x**2 / 2, lambda xp, x: xp.asarray(x, copy=True)),
    "k3": (lambda xp, x: xp.expm1(x) - x, lambda xp, x: xp.expm1(x)),
}
"""The functions k(l) and their derivatives k'(l)."""


def _whole(xp: Any, values: Array) -> Array:
    return xp.broadcast_to(xp.sum(values, axis=-1, keepdims=True), values.shape)


def _to_go(xp: Any, values: Array) -> Array:
    return xp.flip(xp.cumulative_sum(xp.flip(values, axis=-1), axis=-1), axis=-1)


# With l = log π_ref - log π_θ the gradient of -k(l) is k'(l) s.
_PLACES: dict[str, Callable[[Any, str, Array], Array]] = {
    "loss": lambda xp, kind, x: _FUNCTIONS[kind][1](xp, x),
    "reward": lambda xp, kind, x: -_whole(xp, _FUNCTIONS[kind][0](xp, x)),
    "reward-to-go": lambda xp, kind, x: -_to_go(xp, _FUNCTIONS[kind][0](xp, x)),
    "token-ratio": lambda xp, kind, x: _FUNCTIONS[kind][1](xp, x) - _FUNCTIONS[kind][0](xp, x),
}
_PLACES["prefix-ratio"] = lambda xp, kind, x: (
    _PLACES["loss"](xp, kind, x) + _PLACES["reward-to-go"](xp, kind, x)
)
_PLACES["sequence-ratio"] = lambda xp, kind, x: (
    _PLACES["loss"](xp, kind, x) + _PLACES["reward"](xp, kind, x)
)

KL_KINDS = tuple(_FUNCTIONS)
"""k1, k2 and k3 of Schulman (2020); verl calls them kl, mse and low_var_kl."""

KL_PLACES = tuple(_PLACES)
"""loss: TRL's GRPOTrainer, verl's use_kl_loss. reward: the whole output's penalty on each of its tokens,
as TRL's RLOOTrainer and verl's use_kl_in_reward with grpo or rloo. reward-to-go: on each token the
penalties from that token on, as OpenRLHF and verl's reinforce_plus_plus; the mean is the same.
token-ratio: in the loss, times the token's ratio π_θ/π_old with its gradient, as TRL's
use_bias_correction_kl, verl's k3+ and OpenRLHF's unbiased_gradient; prefix-ratio and sequence-ratio: times
the product of the ratios up to the token, or of all. Before the first step the ratio is 1, but its gradient
is not 0.
"""


def _log_ratio(log_ratio: Array, kind: str) -> tuple[Any, Array]:
    one_of("KL estimator", kind, KL_KINDS)
    xp, log_ratio = floating("log-ratios", log_ratio)
    if log_ratio.ndim < 1 or log_ratio.shape[-1] < 1:
        raise InputError(
            f"log-ratios have shape {tuple(log_ratio.shape)}: the last axis must be the tokens "
            f"of an output, at least one"
        )
    return xp, log_ratio


def kl_values(log_ratio: Array, kind: str = "k3") -> Array:
    """The value of a KL estimator at each token.

    k1 = -l,  k2 = l²/2,  k3 = exp(l) - 1 - l,  l = log π_ref - log π_θ

    Arguments:
        log_ratio: l of each token of an output that was drawn from π_θ, (..., T); 0 past its end.
        kind: k1, k2 or k3.

    >>> import numpy as np
    >>> kl_values(np.log(np.array([0.5, 2.0])), "k3").round(4)
    array([0.1931, 0.3069])
    """
    xp, log_ratio = _log_ratio(log_ratio, kind)
    return _FUNCTIONS[kind][0](xp, log_ratio)


def kl_coefficients(log_ratio: Array, kind: str = "k3", place: str = "loss") -> Array:
    """The coefficients cₜ of token scores sₜ that a KL penalty adds to an ascent direction.

    The penalty adds β Σₜ cₜ sₜ, sₜ = ∇ log π_θ(yₜ | y_{<t}), with

        loss          cₜ = k'(lₜ): -1 for k1, lₜ for k2, exp(lₜ) - 1 for k3
        reward        cₜ = -Σ_u k(l_u) over all tokens
        reward-to-go  cₜ = -Σ_{u >= t} k(l_u)
        token-ratio   cₜ = k'(lₜ) - k(lₜ), prefix-ratio that of loss and reward-to-go, sequence-ratio that
                      of loss and reward, each at ratio 1

    The mean of k1 in the loss is 0, since E sₜ = 0.

    Arguments:
        log_ratio: l = log π_ref - log π_θ of each token of an output that was drawn from π_θ,
            (..., T); 0 past its end, where scores are 0 too.
        kind: k1, k2 or k3.
        place: one of :data:`KL_PLACES`.

    >>> import numpy as np
    >>> log_ratio = np.log(np.array([0.5, 2.0]))
    >>> kl_coefficients(log_ratio, "k3")
    array([-0.5,  1. ])
    >>> kl_coefficients(log_ratio, "k1", "reward-to-go").round(4)
    array([-0.    ,  0.6931])
    """
    one_of("place of the penalty", place, KL_PLACES)
    xp, log_ratio = _log_ratio(log_ratio, kind)
    return _PLACES[place](xp, kind, log_ratio)
