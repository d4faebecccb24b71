"""What all evidence shares, asked of itself: problems, policies and engines at the edges of what they take;
and the practical gradient output by output, under every ratio, clipping and penalty.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement, product
from math import factorial, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ustat_pg.engines import Estimator, GradientCell, SquaredError
from ustat_pg.estimators import grpo, maxrl, standardised
from ustat_pg.experiment import Check
from ustat_pg.moments import TokenOutcomes
from ustat_pg.policies import PrefixSoftmax, TabulatedPolicy
from ustat_pg.predictions import (
    gradient_mse,
    leading_ratio_bias,
    practical_mse,
    ratio_bias_matrix,
    weighted_mse,
)
from ustat_pg.problems import SoftmaxBandit, WeightedBandit, modular_sum, token_outcomes

from . import Asked, Drawn
from .gradients import LARGEST_BATCH, LARGEST_GROUP, Law, problem

Array = NDArray[np.float64]

STEP = 1e-4
"""The step of central differences, whose error is of the order of its square."""

RATIOS = ("none", "token", "prefix", "sequence", "gspo")

ADVANTAGES = {"grpo": grpo, "std": standardised, "maxrl": maxrl}


def edges(drawn: Drawn) -> Iterator[Check]:
    """Prompts all but equally likely, scores of which the first is 0, baselines all but alike."""
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
        yield drawn.check(
            f"first score 0: error of {name}",
            gradient_mse(still.moments(), name, 3, 2).mse,
            cell.measure("exact", [SquaredError(Estimator(name))]).mean[0],
        )
    constants = 0.5 + 10 ** rng.uniform(-9, -2) * np.arange(4)
    labels = {Estimator("constant", float(each)).label for each in constants}
    yield drawn.check("constants all but alike have labels of their own", len(labels), 4)
    scores = rng.normal(size=(2, 3, 40))
    scores -= scores.mean(axis=1, keepdims=True)
    flat = scores.reshape(6, 40)
    logs = np.log(np.full((2, 3), 1 / 3))
    gram = flat @ flat.T
    kept = TabulatedPolicy.from_gram(logs, gram).all_scores.reshape(6, -1)
    yield drawn.check("scores of a Gram matrix", kept @ kept.T, gram)
    short = TabulatedPolicy(logs, scores).reduced().all_scores.reshape(6, -1)
    yield drawn.check("reduced scores", short @ short.T, gram)


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
    yield drawn.check("old policy", away.old.sum(axis=-1), sums)
    yield drawn.check("reference unless given", alone.reference.sum(axis=-1), sums)
    yield drawn.check("new policy unless given", start.new.sum(axis=-1), sums)


def _weights(ratios: Array, inside: Array, name: str) -> list[float]:
    """The weight of each token of an output, from its tokens' ratios."""
    tokens = [float(each) for each, there in zip(ratios, inside, strict=True) if there]
    whole = prod(tokens)
    return {
        "none": [1.0] * len(tokens),
        "token": tokens,
        "prefix": [prod(tokens[: t + 1]) for t in range(len(tokens))],
        "sequence": [whole] * len(tokens),
        "gspo": [whole ** (1 / len(tokens))] * len(tokens),
    }[name]


def _estimates(
    of: TokenOutcomes, name: str, group_size: int, *, ratio: str = "none",
    sides: tuple[float, float] | None = None, beta: float = 0.0, kl_ratio: str = "none",
) -> tuple[Array, Array]:  # fmt: skip
    """The chance of every group of the one prompt, and its estimate, token by token."""
    probs, rewards = np.exp(of.old[0].sum(axis=-1)), of.rewards[0]
    low, high = sides or (np.inf, np.inf)
    rising, falling, pulled = np.zeros((3, len(probs), of.scores.shape[-1]))
    for k in range(len(probs)):
        ratios = np.exp(of.new[0, k] - of.old[0, k])
        held = _weights(ratios, of.inside[k], kl_ratio)
        for t, weight in enumerate(_weights(ratios, of.inside[k], ratio)):
            score = of.scores[0, k, t]
            rising[k] += (weight if weight <= 1 + high else 0.0) * score
            falling[k] += (weight if weight >= 1 - low else 0.0) * score
            back = np.exp(of.reference[0, k, t] - of.new[0, k, t]) - 1
            pulled[k] += beta * held[t] * back * score
    groups = np.array(list(combinations_with_replacement(range(len(probs)), group_size)))
    ways = [
        factorial(group_size) / prod(factorial(int(n)) for n in np.bincount(group))
        for group in groups
    ]
    chances = np.array(ways) * np.prod(probs[groups], axis=1)
    advantages = ADVANTAGES[name](rewards[groups])[..., None]
    chosen = np.where(advantages > 0, rising[groups], falling[groups])
    return chances, (advantages * chosen + pulled[groups]).mean(axis=1)


def practical(drawn: Drawn) -> Iterator[Check]:
    """The mean and the error under every ratio, with unequal clipping, penalties of every ratio."""
    _, _, away = _outputs(drawn)
    for ratio, kl_ratio in product(RATIOS, RATIOS[1:4]):
        name = str(drawn.rng.choice(list(ADVANTAGES)))
        group, batch = int(drawn.rng.integers(2, 6)), drawn.size(2, 10_000)
        sides = (float(drawn.rng.uniform(0.05, 0.2)), float(drawn.rng.uniform(0.2, 0.5)))
        given: dict[str, Any] = {"beta": float(drawn.rng.uniform(0.1, 1)), "kl_ratio": kl_ratio}
        for clip in (None, sides):
            chances, estimates = _estimates(away, name, group, ratio=ratio, sides=clip, **given)
            chances, truth = _estimates(
                away, name, group, ratio="sequence", beta=given["beta"], kl_ratio="sequence"
            )
            mean, target = chances @ estimates, chances @ truth
            variance = float(chances @ ((estimates - mean) ** 2).sum(axis=1)) / batch
            found = practical_mse(away, name, group, batch, ratio=ratio, clip=clip, **given)
            where = f"G={group} B={batch} {name}, {ratio} and {kl_ratio}, clip {clip is not None}"
            yield drawn.check(f"{where}: mean", found.mean, mean)
            yield drawn.check(f"{where}: variance", found.variance, variance)
            error = variance + float((mean - target) @ (mean - target))
            yield drawn.check(f"{where}: error", found.mse, error)


def slopes(drawn: Drawn) -> Iterator[Check]:
    """The derivative of the ratio's and the penalty's bias, by differences of means."""
    bandit = _outputs(drawn)[0]
    theta = bandit.policy.theta
    shift = drawn.rng.normal(size=len(theta))
    other = bandit.policy.with_theta(theta + 0.3 * shift)
    start = token_outcomes(bandit, None, other)
    for ratio, kl_ratio in (("token", "none"), ("prefix", "token"), ("gspo", "prefix")):
        name, beta = str(drawn.rng.choice(list(ADVANTAGES))), float(drawn.rng.uniform(0.1, 1))

        def bias(
            at: Array, name: str = name, beta: float = beta, ratio: str = ratio, kl: str = kl_ratio
        ) -> Array:
            """What a rule's mean misses of that of the whole sequence's ratio."""
            away = token_outcomes(bandit, at, other)
            own = practical_mse(away, name, 4, ratio=ratio, beta=beta, kl_ratio=kl).mean
            return (
                own
                - practical_mse(
                    away, name, 4, ratio="sequence", beta=beta, kl_ratio="sequence"
                ).mean
            )

        columns = [
            (bias(theta + STEP * unit) - bias(theta - STEP * unit)) / (2 * STEP)
            for unit in np.eye(len(theta))
        ]
        yield drawn.check(
            f"{name}, {ratio} and {kl_ratio}: derivative of the bias",
            ratio_bias_matrix(start, name, 4, ratio=ratio, beta=beta, kl_ratio=kl_ratio),
            np.stack(columns, axis=1),
            1e-5,
        )


def weighted(drawn: Drawn) -> Iterator[Check]:
    """Errors of weighted scores in large groups and batches."""
    plain = problem(drawn, 3, binary=True)
    heavy = WeightedBandit.of(plain, drawn.rng.uniform(0.1, 3, size=(3, 2)))
    for name in ("grpo", "std", "maxrl"):
        group, batch = drawn.size(2, LARGEST_GROUP), drawn.size(2, LARGEST_BATCH)
        law = Law.of(heavy, Estimator(name), group)
        found = weighted_mse(heavy.weighted_moments(), name, group, batch)
        where = f"G={group} B={batch} {name}, weighted"
        yield drawn.check(f"{where}: mean", found.mean, law.mean)
        yield drawn.check(f"{where}: error", found.mse, law.error(batch, "iid"))


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
        chances, estimates = _estimates(start, name, group, beta=given["beta"])
        steps, moved = minibatch - 1, estimates @ matrix.T
        mean = chances @ moved
        variance = float(chances @ ((moved - mean) ** 2).sum(axis=1)) / batch
        yield drawn.check(
            f"G={group} B={batch} {name}, minibatch {minibatch}, {given['ratio']}: squared bias",
            leading_ratio_bias(
                start, name, group, batch, learning_rate=rate, minibatch=minibatch, **given
            ),
            rate**2 * (steps * variance + steps**2 * float(mean @ mean)),
        )


ASKED: Asked = {
    "mse": (edges,),
    "practical_mse": (outcomes, practical, slopes, weighted, leading),
}
