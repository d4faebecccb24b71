"""Exact means and errors of gradient estimates of any estimator, by enumeration of every outcome.

They replace closed forms where none exists, on problems with few enough outcomes:

    E ĝ = Σ_x Σ_k w(x, k) s(x, k),    w(x, k) = E (1/BG) Σ_b Σᵢ A_{b,i} 1{prompt b is x, output i is k}.

A named estimator reads one group only, and prompts that are drawn independently are enumerated one at
a time. A function may read the whole minibatch and the order of a group, so all of it is enumerated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..display.shown import Shown
from ..problems import SoftmaxBandit
from ..problems.minibatch import expected_reward
from ..rounding import DERIVED, SQUARE
from .base import Array, Estimator, Replications
from .gradients.cell import GradientCell, SquaredError
from .gradients.exact import measure, minibatches, prompts_of


@dataclass(frozen=True, eq=False)
class EnumeratedMse(Shown):
    """The MSE E‖ĝ - g‖² of a minibatch gradient and its parts, by enumeration of every outcome.

    The terms are those of :class:`~ustat_pg.predictions.MsePrediction`, which uses closed forms.

    Arguments:
        mse: prompt_term + first_order_term + second_order_term + squared_bias.
        squared_bias: ‖E ĝ - g‖².
        mean: E ĝ, (d,).
        noise_to_signal: tr Cov ĝ / ‖E ĝ‖²; None if the mean gradient is 0.
        cosine: the cosine of the angle between E ĝ and g; None if either is 0.
        prompt_term: the part from the choice of prompts. This and the next terms are None for a function.
        first_order_term: the part from single outputs: G tr Cov E[ĝ | x, one output] / B.
        second_order_term: the part from several outputs together.
        mean_factor: ⟨E ĝ, g⟩/‖g‖² at each prompt, (X,): an estimator may also change the direction.
    """

    mse: float
    squared_bias: float
    mean: Array
    noise_to_signal: float | None
    cosine: float | None
    prompt_term: float | None = None
    first_order_term: float | None = None
    second_order_term: float | None = None
    mean_factor: Array | None = None


def enumerate_mse(
    problem: SoftmaxBandit,
    estimator: str | Estimator,
    group_size: int,
    batch_size: int = 1,
    design: str = "iid",
) -> EnumeratedMse:
    """The exact MSE of a minibatch gradient of any estimator, by enumeration.

    Arguments:
        problem: the training problem.
        estimator: a name that engines know, or an :class:`~ustat_pg.engines.Estimator` with your own
            function, a constant or a critic.
        group_size: G >= 1, or G >= 2 if the estimator leaves an output out.
        batch_size: B >= 1.
        design: one of :data:`~ustat_pg.sampling.designs.DESIGNS`.

    Raises:
        InputError: an argument is not as described.
        InfeasibleError: there are too many outcomes.

    >>> from ustat_pg.problems import random_problem
    >>> found = enumerate_mse(random_problem(0), "norm-weighted", 3)
    >>> found.squared_bias, found.mse > found.prompt_term > 0
    (0.0, True)
    """
    asked = _asked(estimator, group_size)
    ordered = asked.function is not None
    # One prompt is enough if prompts are independent: the mean of B has 1/B of its variance.
    together = 1 if design == "iid" and not ordered else batch_size
    cell = GradientCell(problem, group_size, together, design)
    GradientCell(problem, group_size, batch_size, design)
    error = float(measure(cell, [SquaredError(asked)], Replications(), tuples=ordered).mean[0])
    parts: dict[str, Any] = {}
    if ordered:
        mean = enumerate_mean(problem, asked, group_size, batch_size, design)
    else:
        means, single, factors = _of_prompts(GradientCell(problem, group_size), asked)
        choices = [
            (chance, means[list(chosen)].mean(axis=0)) for chosen, chance in prompts_of(cell)
        ]
        mean = np.sum([chance * gradient for chance, gradient in choices], axis=0)
    target = problem.gradient()
    square, length = float(mean @ mean), float(target @ target)
    norms = (problem.policy.probs * problem.policy.squared_norms).sum(axis=1)
    largest = max(map(abs, problem.reward_range)) ** 2 * float(problem.context_probs @ norms)
    least = SQUARE * max(square, largest)
    bias = float(np.sum((mean - target) ** 2))
    bias = bias if bias > least else 0.0
    variance = (error - bias) * together / batch_size
    if not ordered:
        spread = sum(chance * float(np.sum((m - mean) ** 2)) for chance, m in choices)
        prompt = spread * together / batch_size if spread > least else 0.0
        first = single / batch_size
        second = variance - prompt - first
        parts = {
            "prompt_term": prompt,
            "first_order_term": first,
            # A value below this share of the total is a rounding error of 0.
            "second_order_term": second if second > DERIVED * error else 0.0,
            "mean_factor": factors,
        }
    return EnumeratedMse(
        mse=variance + bias,
        squared_bias=bias,
        mean=mean,
        noise_to_signal=variance / square if square > least else None,
        cosine=float(mean @ target) / (square * length) ** 0.5
        if min(square, length) > least
        else None,
        **parts,
    )


def enumerate_mean(
    problem: SoftmaxBandit,
    estimator: str | Estimator,
    group_size: int,
    batch_size: int = 1,
    design: str = "iid",
) -> Array:
    """E ĝ, the gradient that an estimator follows on average, by enumeration: (d,).

    Arguments and errors as for :func:`enumerate_mse`.

    >>> coin = SoftmaxBandit.bernoulli([0.5, 0.5], [1, 0])
    >>> enumerate_mean(coin, "group-mean", 4) / coin.gradient()
    array([0.75, 0.75])
    """
    weights = enumerate_weights(problem, estimator, group_size, batch_size, design)
    return np.sum([problem.policy.combine(x, row) for x, row in enumerate(weights)], axis=0)


def enumerate_weights(
    problem: SoftmaxBandit,
    estimator: str | Estimator,
    group_size: int,
    batch_size: int = 1,
    design: str = "iid",
) -> Array:
    """The w(x, k) with E ĝ = Σ_x Σ_k w(x, k) s(x, k), by enumeration: (X, K).

    Arguments and errors as for :func:`enumerate_mse`.

    >>> coin = SoftmaxBandit.bernoulli([0.75, 0.25], [1, 0])
    >>> enumerate_weights(coin, "grpo", 2)
    array([[ 0.1875, -0.1875]])
    """
    asked = _asked(estimator, group_size)
    ordered = asked.function is not None
    cell = GradientCell(problem, group_size, batch_size, design)
    if not ordered:
        # The mean of a minibatch equals the mean of one prompt's group under every design of prompts.
        cell = GradientCell(problem, group_size)
    weights = np.zeros(problem.contexts * problem.arms)
    for draws, chance in minibatches(cell, tuples=ordered, memory=asked.memory):
        shares = chance[:, None, None] * asked.advantages(problem, draws)
        where = draws.contexts[..., None] * problem.arms + draws.arms
        weights += np.bincount(where.ravel(), shares.ravel(), minlength=len(weights))
    weights /= cell.batch_size * group_size
    return weights.reshape(problem.contexts, problem.arms)


def _asked(estimator: str | Estimator, group_size: int) -> Estimator:
    asked = estimator if isinstance(estimator, Estimator) else Estimator(estimator)
    asked.require_group(group_size)
    return asked


def _of_prompts(cell: GradientCell, estimator: Estimator) -> tuple[Array, float, Array]:
    """E[ĝ | x] of one prompt's group, (X, d); G E tr Cov E[ĝ | x, one output]; ⟨E ĝ, g⟩/‖g‖², (X,)."""
    problem, size = cell.problem, cell.group_size
    policy, probs = problem.policy, problem.context_probs
    means, factors, first = np.zeros((len(probs), problem.d)), np.ones(len(probs)), 0.0
    one_known = _given_one_output(cell, estimator)
    value = expected_reward(problem.outcomes.probs, problem.outcomes.rewards)
    largest = max(map(abs, problem.reward_range)) ** 2
    for x in map(int, np.flatnonzero(probs > 0)):
        chances, given = one_known[x]
        means[x] = policy.combine(x, given.sum(axis=0) / probs[x])
        likely = chances > 0
        off = policy.combine(x, given[likely] / chances[likely, None]) - means[x]
        first += size * float(chances[likely] @ (off**2).sum(axis=1))
        pull = policy.probs[x] * (problem.mean_rewards[x] - value[x])
        gradient = policy.combine(x, pull)
        length = float(gradient @ gradient)
        if length > SQUARE * largest * float(policy.probs[x] @ policy.squared_norms[x]):
            factors[x] = means[x] @ gradient / length
    return means, first, factors


def _given_one_output(cell: GradientCell, estimator: Estimator) -> list[tuple[Array, Array]]:
    """The weight of each score given one known output of the group, for each context.

    Returns:
        P(x, o), (O,), and E[Σᵢ Aᵢ 1{arm i = k}/G; x, o], (O, K), for the outputs o of context x: arms,
        each with its reward. The known output may be at any place in the group.
    """
    problem, size, arms = cell.problem, cell.group_size, cell.problem.arms
    values = np.unique(problem.outcomes.rewards)

    def keys(arms: Any, rewards: Array) -> Any:
        return arms * len(values) + np.searchsorted(values, rewards)

    known = [
        np.unique(keys(problem.outcomes.arms[x, :count], problem.outcomes.rewards[x, :count]))
        for x, count in enumerate(problem.outcomes.counts)
    ]
    result = [(np.zeros(len(outputs)), np.zeros((len(outputs), arms))) for outputs in known]
    for draws, chance in minibatches(cell, memory=estimator.memory):
        x, own = draws.contexts[0, 0], draws.arms[:, 0]
        chances, given = result[x]
        outputs = np.searchsorted(known[x], keys(own, draws.rewards[:, 0]))
        pairs = outputs[:, :, None] * arms + own[:, None]
        weights = chance[:, None] * estimator.advantages(problem, draws)[:, 0] / size**2
        weights = np.broadcast_to(weights[:, None], pairs.shape)
        given += np.bincount(pairs.ravel(), weights.ravel(), given.size).reshape(given.shape)
        shares = np.repeat(chance / size, size)
        chances += np.bincount(outputs.ravel(), shares, len(chances))
    return result
