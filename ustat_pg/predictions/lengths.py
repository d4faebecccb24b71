"""Objectives of the ways to add up tokens of outputs with unequal lengths (length_weights).

Let |y| be the number of tokens of an output. A weight per output w(|y|), such as 1/|y| (sequence-mean), gives

    E[ĝ | x] = E[w s z] - V E[w s] = ∇E[w z] - V ∇E[w],

since E[w s z] = ∇E[w z]. Without a baseline this is the gradient of E[w z]; with a baseline it is in general
not a gradient, because its Jacobian J has J - Jᵀ = ∇V ∇E[w]ᵀ - ∇E[w] ∇Vᵀ. One divisor for a whole minibatch
(token-mean) is random. With 1/n = ∫₀¹ tⁿ⁻¹ dt and φₓ(t) = E[t^|y| | x] its mean is also exact,

    E ĝ = B ∫₀¹ t⁻¹ E_X[ G (E[s z t^|y|] φ^(G-1) - E[s t^|y|] E[z t^|y|] φ^(G-2)) ] (E_X φ^G)^(B-1) dt,

the integral of a polynomial, taken to rounding. As BG grows it tends to g/E|y|, at the rate 1/(BG) at
one prompt and 1/B.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.fft import dct

from ..moments.record import LengthMoments
from ..registry import ESTIMATORS
from ..validation import Array, integer, one_of
from .closed_forms import length_mean

_NODE_STEP = 32
"""Numbers of nodes are multiples of this number, so that few quadratures are computed."""

_RESOLVED = 6
"""The number of nodes, in units of the root of a power, that integrates the power of t up to rounding. Near t
= 1, where the power falls fast, the nodes are dense.
"""


@lru_cache(64)
def _fejer(nodes: int) -> tuple[Array, Array]:
    """The logarithms of nodes in (0, 1) and their weights, by Fejér's first rule.

    A node is the squared cosine of an angle, so its logarithm is precise near both ends.
    """
    half = (np.arange(nodes) + 0.5) * np.pi / (2 * nodes)
    logs = np.where(half < np.pi / 4, np.log1p(-(np.sin(half) ** 2)), 2 * np.log(np.cos(half)))
    moments = np.zeros(nodes)
    moments[::2] = 1 / (1 - np.arange(0.0, nodes, 2) ** 2)
    return logs, dct(moments, type=3) / nodes


_PER_OUTPUT: dict[str, Callable[[Array], Array]] = {
    "sequence-sum": np.ones_like,
    "sequence-mean": np.reciprocal,
}

_CLOSED = tuple(
    name
    for name, record in ESTIMATORS.items()
    if record.closed_form and set(record.needs) <= {"value"}
)


def aggregated_mean(
    moments: LengthMoments, how: str, estimator: str, group_size: int, batch_size: int = 1
) -> Array:
    """The mean E ĝ of a minibatch with a loss that adds up tokens in one of the trainers' ways, (d,).

    It is exact at every G and B, for any reward, if prompts are drawn independently.

    Arguments:
        moments: moments of score and reward by length; a problem's ``length_moments()``.
        how: sequence-sum, sequence-mean, prompt-mean or token-mean, as
            :func:`ustat_pg.estimators.token_weights` has them; constant:L is sequence-sum over L.
        estimator: vanilla, grpo, group-mean or oracle.
        group_size: G; grpo needs 2.
        batch_size: B.

    >>> from ustat_pg.policies import OutputSpace, PrefixSoftmax
    >>> from ustat_pg.problems import TokenProblem
    >>> task = TokenProblem(OutputSpace(1, 2, end=True), [()], lambda x, y: float(len(y) == 2))
    >>> moments = task.at(PrefixSoftmax.zeros(task.space, 1)).length_moments()
    >>> aggregated_mean(moments, "sequence-sum", "grpo", 4)
    array([ 0.125, -0.125,  0.125, -0.125])
    >>> aggregated_mean(moments, "sequence-mean", "grpo", 4)
    array([ 0.09375, -0.09375,  0.0625 , -0.0625 ])
    >>> aggregated_mean(moments, "token-mean", "grpo", 2).round(4)
    array([ 0.0833, -0.0833,  0.0729, -0.0729])
    """
    one_of("aggregation", how, (*_PER_OUTPUT, "prompt-mean", "token-mean"))
    record = ESTIMATORS[one_of("estimator", estimator, _CLOSED)]
    group = integer("group size", group_size, 1 if record.of_prompt else 2)
    batch = integer("batch size", batch_size)
    factor = (group - 1) / group if record.whole_group else 1.0
    value = moments.rewards.sum(axis=1)
    if how in _PER_OUTPUT:
        weights = _PER_OUTPUT[how](moments.lengths)
        least = value if record.of_pairs or record.needs else np.zeros_like(value)
        known = weights @ moments.products, least[:, None], weights @ moments.scores
        return np.asarray(factor * moments.context_probs @ length_mean(*known))
    if how == "prompt-mean":
        batch = 1
    degree = int(batch * group * moments.lengths[-1])
    enough = min(degree, int(_RESOLVED * degree**0.5))
    logs, shares = _fejer(_NODE_STEP * (enough // _NODE_STEP + 1))
    # (n, L); the tables (n, X) and (n, X, d) follow from it.
    powers = np.exp(np.outer(logs, moments.lengths))
    chance, reward = powers @ moments.probs.T, powers @ moments.rewards.T
    if record.of_pairs:
        beside = reward * chance ** (group - 2)
    else:
        beside = value * chance ** (group - 1) if record.needs else 0.0 * reward
    whole = (chance**group @ moments.context_probs) ** (batch - 1)
    times = shares / np.exp(logs) * batch * group * whole
    # The sum over nodes comes first, so that no table has both nodes and d.
    first = (times[:, None] * chance ** (group - 1)).T @ powers * moments.context_probs[:, None]
    second = (times[:, None] * beside).T @ powers * moments.context_probs[:, None]
    mean = np.einsum("xl,xld->d", first, moments.products)
    return np.asarray(factor * (mean - np.einsum("xl,xld->d", second, moments.scores)))


def token_mean_bias(moments: LengthMoments, group_size: int, batch_size: int = 1) -> Array:
    """The leading term of E ĝ - g/E|y| under token-mean, with grpo or the oracle, (d,).

    With N the sum over outputs and D the tokens, both over BG, and ℓ = E D, the delta method says

        E[N/D] - g/ℓ = -Cov(N, D)/ℓ² + g Var(D)/ℓ³ + O(1/B²),
        B Cov(N, D) = Cov_X(g(X), ℓ(X)) + E Cov(s a, |y| | X)/G,
        B Var(D)    = Var ℓ(X) + E Var(|y| | X)/G.

    Arguments:
        moments: moments of score and reward by length.
        group_size, batch_size: G and B.
    """
    group, batch = integer("group size", group_size), integer("batch size", batch_size)
    rho, lengths, value = moments.context_probs, moments.lengths, moments.rewards.sum(axis=1)
    centred = moments.products - value[:, None, None] * moments.scores
    gradients, mean_length = centred.sum(axis=1), moments.probs @ lengths
    gradient, mean = rho @ gradients, float(rho @ mean_length)
    inside = np.einsum("l,xld->xd", lengths, centred) - mean_length[:, None] * gradients
    squares = moments.probs @ lengths**2 - mean_length**2
    covariance = rho @ (mean_length[:, None] * gradients) - mean * gradient + rho @ inside / group
    variance = float(rho @ mean_length**2 - mean**2 + rho @ squares / group)
    return np.asarray((variance * gradient / mean - covariance) / mean**2 / batch)


def length_curl(moments: LengthMoments, how: str) -> Array:
    """J - Jᵀ, with J the Jacobian of the mean field θ ↦ E ĝ(θ) of grpo, (d, d); it is 0 if the field is a
    gradient.

    sequence-mean: E_X[∇V ∇Lᵀ - ∇L ∇Vᵀ], L(x) = E[1/|y| | x]. token-mean, in the limit of a large
    batch: (∇ℓ gᵀ - g ∇ℓᵀ)/ℓ², ℓ = E|y|. sequence-sum: 0.

    Arguments:
        moments: moments of score and reward by length.
        how: sequence-sum, sequence-mean or token-mean.
    """
    one_of("aggregation", how, (*_PER_OUTPUT, "token-mean"))
    rho, gradients = moments.context_probs, moments.products.sum(axis=1)
    if how in _PER_OUTPUT:
        slopes = _PER_OUTPUT[how](moments.lengths) @ moments.scores
        outer = np.einsum("x,xi,xj->ij", rho, gradients, slopes)
        return outer - outer.T
    length = float(rho @ moments.probs @ moments.lengths)
    slope = rho @ (moments.lengths @ moments.scores)
    outer = np.outer(slope, rho @ gradients) / length**2
    return outer - outer.T
