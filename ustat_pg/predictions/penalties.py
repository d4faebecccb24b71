"""The objectives of KL penalties, if they have one (Proposition 13, arcsine).

Three functions k(l) of a token's log-ratio l = log π_ref - log π_θ estimate the divergence
KL(π_θ ‖ π_ref): k1 = -l, k2 = l²/2, k3 = exp(l) - 1 - l. Their part of the gradient depends on their place
(:func:`ustat_pg.estimators.kl_coefficients`).

*One token.* Each is an ascent on minus an f-divergence, Σ r f(p/r) with p = π_θ and r = π_ref:

    in the loss      k1: 0        k2: KL(p ‖ r)               k3: KL(r ‖ p)
    in the reward    k1: KL(p ‖ r)    k2: ½ E_p l² - KL(p ‖ r)    k3: KL(p ‖ r) - KL(r ‖ p)

so k3 in the loss has the gradient of the *forward* divergence. k2 and k3 in the reward have no curvature at p
= r: they do not pull back a policy that has changed a little, and k3 falls without bound as an output of the
reference disappears.

*Several tokens.* In the loss every prefix has the divergence of its own choice, weighted by its probability,
and no gradient of that weight:

    -Σ_n P(n) ∇ D(p_n, r_n),    P(n) held

This is not the gradient of any function unless p = r or there is only one choice. Multiplied by the token's
ratio π_θ/π_old with its gradient, k1 and k3 have the gradient of the *reverse* divergence of each choice with
fixed prefixes, which is again not the gradient of any function. Multiplied by the sequence's ratio, or by the
product of ratios up to the token, the penalty has the gradient of the divergence KL(π_θ ‖ π_ref) of whole
outputs (result arcsine; Tang and Munos 2025, Liu et al. 2025). In the reward the sum over both
places is a gradient whatever the kind: loss + reward = -∇ E Σ_t k(l_t). So k1 in the reward has that of
the divergence KL(π_θ ‖ π_ref) of whole outputs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from ..rounding import GIVEN
from ..validation import Array, InputError, one_of, probabilities


def _reverse(p: Array, r: Array) -> Array:
    """The divergence KL(p ‖ r) of choices on the last axis."""
    return np.asarray((p * np.log(p / r)).sum(axis=-1))


def _forward(p: Array, r: Array) -> Array:
    return _reverse(r, p)


def _half_square(p: Array, r: Array) -> Array:
    return np.asarray((p * np.log(p / r) ** 2).sum(axis=-1) / 2)


_OF_ONE_TOKEN: dict[tuple[str, str], Callable[[Array, Array], Array]] = {
    ("k1", "loss"): lambda p, r: 0 * _reverse(p, r),
    ("k2", "loss"): _reverse,
    ("k3", "loss"): _forward,
    ("k1", "reward"): _reverse,
    ("k2", "reward"): lambda p, r: _half_square(p, r) - _reverse(p, r),
    ("k3", "reward"): lambda p, r: _reverse(p, r) - _forward(p, r),
}
"""The functions that one token's penalty descends."""

_SLOPES: dict[str, Callable[[Array, Array], Array]] = {
    "k1": lambda p, r: np.zeros_like(p),
    "k2": lambda p, r: p * np.log(p / r),
    "k3": lambda p, r: p - r,
}
"""p ∂D/∂p for one token's loss, up to a constant times p that does not affect logits."""

_MEANS: dict[str, Callable[[Array, Array], Array]] = {
    "k1": _reverse,
    "k2": _half_square,
    "k3": _reverse,
}
"""The mean E k(l) of one choice."""

_MEAN_SLOPES: dict[str, Callable[[Array, Array], Array]] = {
    "k1": lambda p, r: p * np.log(p / r),
    "k2": lambda p, r: p * (np.log(p / r) ** 2 / 2 + np.log(p / r)),
    "k3": lambda p, r: p * np.log(p / r),
}
"""p ∂/∂p of these means, up to a constant times p."""


def _laws(probs: ArrayLike, reference: ArrayLike, ndim: int) -> tuple[Array, Array]:
    p, r = probabilities("probs", probs, ndim), probabilities("reference", reference, ndim)
    if p.shape != r.shape:
        raise InputError(f"probs have shape {p.shape} and reference {r.shape}: they must be equal")
    if not ((p > 0) & (r > 0)).all():
        raise InputError("a choice has probability 0, so its log-ratio is not finite")
    return p, r


_PLACES = ("loss", "reward", "token-ratio", "prefix-ratio", "sequence-ratio")


def _require(kind: str, place: str) -> None:
    one_of("KL estimator", kind, tuple(_MEANS))
    one_of("place of the penalty", place, _PLACES)


def kl_penalty(
    probs: ArrayLike, reference: ArrayLike, kind: str = "k3", place: str = "loss"
) -> float:
    """The function of the policy that a KL penalty descends, if an output is one token.

    Whole outputs count as one token if the estimator uses their log-ratio, as k1 in the reward does.

    Arguments:
        probs: π_θ of every choice, (A,), positive.
        reference: π_ref, (A,), positive.
        kind: k1, k2 or k3.
        place: loss or reward; or token-ratio, prefix-ratio or sequence-ratio, for the loss times that ratio.

    >>> p, r = [0.5, 0.5], [0.9, 0.1]
    >>> [round(kl_penalty(p, r, kind), 4) for kind in ("k1", "k2", "k3")]
    [0.0, 0.5108, 0.3681]
    >>> [round(kl_penalty(p, r, kind, "reward"), 4) for kind in ("k1", "k2", "k3")]
    [0.5108, 0.2231, 0.1428]
    >>> round(kl_penalty(p, r, "k3", "token-ratio"), 4)
    0.5108
    """
    _require(kind, place)
    # With the ratio's gradient the law changes too, so the whole mean is differentiated.
    descends = _OF_ONE_TOKEN.get((kind, place), _MEANS[kind])
    return float(descends(*_laws(probs, reference, 1)))


def kl_gradient(
    probs: ArrayLike,
    reference: ArrayLike,
    kind: str = "k3",
    place: str = "loss",
    *,
    prefixes: ArrayLike | None = None,
    tokens: ArrayLike | None = None,
) -> Array:
    """The part of a KL penalty in the mean gradient, with respect to the logits of every prefix, (N, A).

    It is the ascent direction at β = 1. Multiply it by the logits' derivatives to get the part in the
    parameters.

    Arguments:
        probs: π_θ(c | n), the choices' probabilities at every prefix, (N, A), positive.
        reference: π_ref(c | n), (N, A), positive.
        kind: k1, k2 or k3.
        place: loss or reward (with or without rewards to go, which have the same mean); or token-ratio,
            prefix-ratio or sequence-ratio, for the loss times that ratio.
        prefixes: the number of the prefix before each token of every output, (K, T), -1 past its end
            (default: one prefix).
        tokens: the choice at each, (K, T), -1 past the end (default: each choice once).

    >>> kl_gradient([[0.5, 0.5]], [[0.9, 0.1]])              # minus ∇ KL(π_ref ‖ π_θ)
    array([[ 0.4, -0.4]])
    >>> kl_gradient([[0.5, 0.5]], [[0.9, 0.1]], "k1")
    array([[0., 0.]])
    """
    _require(kind, place)
    p, r = _laws(probs, reference, 2)
    if prefixes is None or tokens is None:
        if prefixes is not None or tokens is not None or len(p) > 1:
            raise InputError("if there are several prefixes, give both prefixes and tokens")
        tokens = np.arange(p.shape[1])[:, None]
        prefixes = np.zeros_like(tokens)
    nodes, chosen = (np.asarray(places, dtype=np.int64) for places in (prefixes, tokens))
    inside = nodes >= 0
    laws = np.where(inside, p[nodes, chosen], 1.0).prod(axis=1)
    if abs(laws.sum() - 1) > GIVEN:
        raise InputError(
            f"the outputs' probabilities sum to {laws.sum():g}: every output must occur once"
        )

    def through(weights: Array) -> Array:
        """The sum over outputs of weights (K,) at the entries of their tokens, (N, A)."""
        out = np.zeros(p.shape)
        np.add.at(out, (nodes[inside], chosen[inside]), np.repeat(weights, inside.sum(axis=1)))
        return out

    def centred(slopes: Array) -> Array:
        """The chain rule: convert p * dF/dp to dF/dlogits."""
        return slopes - p * slopes.sum(axis=1, keepdims=True)

    passed = through(laws).sum(axis=1, keepdims=True)
    held = 0.0 - passed * centred(_SLOPES[kind](p, r))
    if place == "loss":
        return held
    prefixes_held = 0.0 - passed * centred(_MEAN_SLOPES[kind](p, r))
    if place == "token-ratio":
        return prefixes_held
    # ∇ Σ_n P(n) D_n = Σ_n P(n) ∇D_n + E[(Σ_t D) ∇ log π].
    along = np.where(inside, _MEANS[kind](p, r)[nodes], 0.0).sum(axis=1)
    whole = prefixes_held - centred(through(laws * along))
    return whole - held if place == "reward" else whole
