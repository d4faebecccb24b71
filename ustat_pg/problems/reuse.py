"""Moments for steps on outputs that are used again (reuse)."""

from __future__ import annotations

import numpy as np

from ..moments.record import ReuseMoments
from ..validation import Array, one_of
from .softmax_bandit import SoftmaxBandit
from .tokens import token_outcomes

RATIOS = ("sequence", "token")
"""The ratio of whole outputs, and that of tokens; they differ if outputs have several tokens."""


def reuse_moments(problem: SoftmaxBandit, ratio: str = "sequence") -> ReuseMoments:
    """Moments of score, its derivative and reward, by enumeration over outputs and rewards (reuse).

    Arguments:
        problem: the problem, at the parameters at which the outputs are drawn.
        ratio: the ratio that weights outputs after the first step: ``sequence`` or ``token``.

    Raises:
        InputError: the second derivatives of the policy are not known: it is a network or a table.

    >>> coin = SoftmaxBandit.bernoulli([0.8, 0.2], [1, 0])
    >>> reuse_moments(coin).square.round(4)
    array([[-0.0998,  0.0998]])
    """
    one_of("ratio", ratio, RATIOS)
    tokens = token_outcomes(problem).scores if ratio == "token" else None
    gradient = problem.gradient()
    rows = []
    for x in range(problem.contexts):
        scores, law = problem.policy.scores(x), problem.policy.probs[x]
        values, chances = problem.reward_values[x], problem.reward_probs[x]
        deviations = values - law @ (values * chances).sum(axis=1)
        first, second = (law * (chances * deviations**k).sum(axis=1) for k in (1, 2))
        whole = scores[:, None]
        parts = whole if tokens is None else tokens[x]

        def turned(vectors: Array, parts: Array = parts, x: int = x) -> Array:
            """M v of each output and its own vector, (K, d)."""
            vectors = np.broadcast_to(vectors, (len(parts), problem.d))
            along = np.einsum("ktd,kd->kt", parts, vectors)
            outer = np.einsum("ktd,kt->kd", parts, along)
            return outer + problem.policy.score_derivative(x, vectors)

        of_scores = turned(scores)
        moments = second @ of_scores, law @ of_scores, first @ turned(first @ scores)
        rows.append((*moments, first @ turned(gradient), first @ turned(gradient, whole)))
    square, score, product, across, curved = (np.array(each) for each in zip(*rows, strict=True))
    rho = problem.context_probs
    return ReuseMoments(
        problem.moments(),
        *(square, score, product),
        between=rho @ (product - across),
        ratio_slope=rho @ (across - curved),
    )
