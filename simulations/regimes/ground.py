"""The ground that all evidence shares: problems, policies and engines at the edges of what they take;
and the practical gradient output by output, at later minibatches and with weighted scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement
from math import factorial, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ustat_pg.engines import Estimator, GradientCell, SquaredError
from ustat_pg.estimators import grpo, maxrl, standardised
from ustat_pg.moments import TokenOutcomes
from ustat_pg.policies import PrefixSoftmax, TabulatedPolicy
from ustat_pg.predictions import (
    gradient_mse,
    leading_ratio_bias,
    ratio_bias_matrix,
    weighted_mse,
)
from ustat_pg.problems import SoftmaxBandit, WeightedBandit, modular_sum, token_outcomes

from ..evidence import Check
from . import Asked, Drawn, rounding
from .gradients import LARGEST_BATCH, LARGEST_GROUP, Law, problem

Array = NDArray[np.float64]

ADVANTAGES = {"grpo": grpo, "std": standardised, "maxrl": maxrl}


def edges(drawn: Drawn) -> Iterator[Check]:
    """Prompts all but equally likely, scores whose first is 0, baselines all but alike."""
    rng = drawn.rng
    off = np.array([0.0, 1.0, -1.0]) * 10 ** rng.uniform(-6, -1.5)
    uneven = SoftmaxBandit.tabular(
        (1 + off) / 3, np.zeros((3, 2)), rng.normal(size=(3, 2, 1)), np.ones((3, 2, 1))
    )
    yield drawn.check("prompts not quite equally likely are told", float(uneven.uniform), 0.0)
    # The first arm lies in the middle of the others, so that its score is 0.
    features = rng.normal(size=(2, 3, 4))
    features[:, 0], features[:, 2] = 0.0, -features[:, 1]
    still = SoftmaxBandit.linear(
        [0.3, 0.7],
        features,
        np.zeros(4),
        rng.normal(size=(2, 3, 1)),
        np.ones((2, 3, 1)),
        np.log([[0.5, 0.25, 0.25]] * 2),
    )
    cell = GradientCell(still, 3, 2)
    for name in ("grpo", "oracle"):
        quantity = SquaredError(Estimator(name))
        yield drawn.check(
            f"first score 0: error of {name}",
            gradient_mse(still.moments(), name, 3, 2).mse,
            cell.measure("exact", [quantity]).mean[0],
            cell.rounding(quantity),
        )
    constants = 0.5 + 10 ** rng.uniform(-9, -2) * np.arange(4)
    labels = {Estimator("constant", float(constant)).label for constant in constants}
    yield drawn.check("constants all but alike have labels of their own", len(labels), 4)
    scores = rng.normal(size=(2, 3, 40))
    scores -= scores.mean(axis=1, keepdims=True)
    flat = scores.reshape(6, 40)
    logs = np.log(np.full((2, 3), 1 / 3))
    gram = flat @ flat.T
    short = TabulatedPolicy(logs, scores).reduced().all_scores.reshape(6, -1)
    lengths = np.sqrt(np.diag(gram))
    yield drawn.check("reduced scores", short @ short.T, gram, rounding(np.outer(lengths, lengths)))


def _outputs(drawn: Drawn) -> tuple[SoftmaxBandit, TokenOutcomes, TokenOutcomes]:
    """Outputs of unequal length: where a batch begins, and at some distance from there."""
    task = modular_sum(2, 2, end=True, prompts=[(1,)])
    seed = int(drawn.rng.integers(2**31))
    bandit = task.at(PrefixSoftmax.random(task.space, 1, seed=seed))
    theta = bandit.policy.theta
    other = bandit.policy.with_theta(theta + 0.3 * drawn.rng.normal(size=bandit.d))
    moved = theta + 0.4 * drawn.rng.normal(size=bandit.d)
    return bandit, token_outcomes(bandit, None, other), token_outcomes(bandit, moved, other)


def outcomes(drawn: Drawn) -> Iterator[Check]:
    """Tokens' log-probabilities under the policies that draw, are trained and are referred to."""
    bandit, start, away = _outputs(drawn)
    alone = token_outcomes(bandit, bandit.policy.theta + drawn.rng.normal(size=bandit.d))
    sums = np.log(bandit.policy.probs)
    error = rounding(1.0, sums)
    yield drawn.check("old policy", away.old.sum(axis=-1), sums, error)
    yield drawn.check("reference unless given", alone.reference.sum(axis=-1), sums, error)
    yield drawn.check("new policy unless given", start.new.sum(axis=-1), sums, error)


def _estimates(
    of: TokenOutcomes, name: str, group_size: int, beta: float
) -> tuple[Array, Array, Array]:
    """The chance of every group of the one prompt, its estimate, token by token, and its terms' sizes."""
    probs, rewards = np.exp(of.old[0].sum(axis=-1)), of.rewards[0]
    pulls = beta * (np.exp(of.reference[0] - of.new[0]) - 1) * of.inside
    scores, pulled = of.scores[0].sum(axis=1), np.einsum("kt,ktd->kd", pulls, of.scores[0])
    groups = np.array(list(combinations_with_replacement(range(len(probs)), group_size)))
    ways = [
        factorial(group_size) / prod(factorial(int(n)) for n in np.bincount(group))
        for group in groups
    ]
    chances = np.array(ways) * np.prod(probs[groups], axis=1)
    advantages = ADVANTAGES[name](rewards[groups])[..., None]
    sizes = (np.abs(advantages) + np.abs(rewards[groups])[..., None]) * np.abs(scores[groups])
    # A ratio of probabilities less 1 has the rounding of 1.
    pulls = beta * (np.exp(of.reference[0] - of.new[0]) + 1) * of.inside
    pulled_sizes = np.einsum("kt,ktd->kd", pulls, np.abs(of.scores[0]))
    estimates = (advantages * scores[groups] + pulled[groups]).mean(axis=1)
    return chances, estimates, (sizes + pulled_sizes[groups]).mean(axis=1)


def weighted(drawn: Drawn) -> Iterator[Check]:
    """Errors of weighted scores in large groups and batches."""
    plain = problem(drawn, 3, binary=True)
    heavy = WeightedBandit.of(plain, drawn.rng.uniform(0.1, 3, size=(3, 2)))
    for name in ("grpo", "std", "maxrl"):
        group, batch = drawn.size(2, LARGEST_GROUP), drawn.size(2, LARGEST_BATCH)
        law = Law.of(heavy, Estimator(name), group)
        prediction = weighted_mse(heavy.weighted_moments(), name, group, batch)
        where = f"G={group} B={batch} {name}, weighted"
        yield drawn.check(f"{where}: mean", prediction.mean, *law.mean)
        yield drawn.check(f"{where}: error", prediction.mse, *law.error(batch, "iid"))


def leading(drawn: Drawn) -> Iterator[Check]:
    """The leading bias at later minibatches of a batch, by the estimates of all groups."""
    _, start, _ = _outputs(drawn)
    for minibatch in (2, 3, drawn.size(4, 64)):
        name, rate = str(drawn.rng.choice(list(ADVANTAGES))), float(drawn.rng.uniform(1e-3, 1))
        group, batch = int(drawn.rng.integers(2, 6)), drawn.size(1, 1_000)
        given: dict[str, Any] = {
            "ratio": str(drawn.rng.choice(["token", "prefix", "gspo"])),
            "beta": float(drawn.rng.uniform(0.1, 1)),
            "kl_ratio": str(drawn.rng.choice(["none", "token", "sequence"])),
        }
        matrix = ratio_bias_matrix(start, name, group, **given)
        chances, estimates, sizes = _estimates(start, name, group, given["beta"])
        steps, moved = minibatch - 1, estimates @ matrix.T
        mean = chances @ moved
        variance = float(chances @ ((moved - mean) ** 2).sum(axis=1)) / batch
        square = float(chances @ ((sizes @ np.abs(matrix).T) ** 2).sum(axis=1))
        yield drawn.check(
            f"G={group} B={batch} {name}, minibatch {minibatch}, {given['ratio']}: squared bias",
            leading_ratio_bias(
                start, name, group, batch, learning_rate=rate, minibatch=minibatch, **given
            ),
            rate**2 * (steps * variance + steps**2 * float(mean @ mean)),
            rounding(rate**2 * (steps / batch + steps**2) * square),
        )


ASKED: Asked = {
    "mse": (edges,),
    "practical_mse": (outcomes, weighted, leading),
}
