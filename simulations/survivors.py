"""Beyond the paper: outputs that are lost before the estimate. Leave-one-out over the survivors climbs the
survivors' mean reward, times the chance that two survive, and its error is known exactly.

The checks use problems of several prompts with survival by output, by reward or by length. They cover the
mean along a direction, if a lone survivor adds nothing and if it adds its raw reward; the MSE; and the number
of survivors. An output that may be lost is written as two outputs with the same score.

Falsified by an enumerated mean that differs by more than rounding, or a simulated one whose interval
misses.

Cost: some 10⁵ groups, by the reference engine.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ustat_pg.engines import GroupSize, SquaredError
from ustat_pg.policies import TabulatedPolicy
from ustat_pg.predictions import survivor_mse
from ustat_pg.problems import SoftmaxBandit, survivor_moments
from ustat_pg.validation import Array

from .engines import SurvivorCell
from .evidence import Check, equal, mean_of
from .problems import BanditEntry, Suite
from .problems.lengths import worded
from .shared.peers import telling
from .shared.runs import GRPO

UNCHANGED = "the gradient of J itself"
OVER_ALL = "the baseline is over all outputs"
NO_PAIR = "no chance that two survive"
BLIND = "survival by reward taken as blind to it"
DROPPED = "a lone survivor's reward taken as dropped"
NONE_LOST = "the error of full groups"
RIVALS = (UNCHANGED, OVER_ALL, NO_PAIR, BLIND, DROPPED, NONE_LOST)

G = 3
"""The group size; it is small, so that groups with one survivor or no survivor matter."""


SURVIVAL_SEED = 5
"""The seed of the outputs' survival probabilities; any seed would work, but it is fixed so that draws stay
the same.
"""


def checks(suite: Suite) -> Iterator[Check]:
    """Checks of survival by output and by reward on bandits, and by length on outputs of several tokens."""
    for entry in suite.few_outcomes:
        problem, rng = entry.problem, np.random.default_rng([SURVIVAL_SEED, entry.problem.contexts])
        by_output = rng.uniform(0.2, 1.0, size=(problem.contexts, problem.arms, 1))
        by_reward = np.where(problem.reward_values > 0.5, 0.9, 0.35)
        yield from _of(entry, "by output", np.broadcast_to(by_output, by_reward.shape))
        yield from _of(entry, "by reward", by_reward)
    for text in worded(suite):
        late = np.array(text.lengths) > np.median(text.lengths)
        chances = np.broadcast_to(
            np.where(late, 0.3, 0.95)[:, None], text.problem.reward_probs.shape
        )
        yield from _of(text, "by length", chances)


def doubled(problem: SoftmaxBandit, survival: Array) -> tuple[SoftmaxBandit, tuple[bool, ...]]:
    """The problem with an output for each arm, reward and survival, and the outputs that survive."""
    joint = problem.policy.probs[..., None] * problem.reward_probs
    contexts, arms, rewards = joint.shape
    probs = np.concatenate([joint * survival, joint * (1 - survival)], axis=1)
    scores = np.stack([problem.policy.scores(x) for x in range(contexts)])
    values = np.concatenate([problem.reward_values] * 2, axis=1).reshape(contexts, -1, 1)
    policy = TabulatedPolicy(
        np.log(np.maximum(probs, 1e-300)).reshape(contexts, -1),
        np.repeat(np.concatenate([scores, scores], axis=1), rewards, axis=1),
    )
    fates = (True,) * (arms * rewards) + (False,) * (arms * rewards)
    return SoftmaxBandit(policy, problem.context_probs, values, np.ones_like(values)), fates


def over_all(problem: SoftmaxBandit, survival: Array) -> Array:
    """The vector E h s (z - V): the sum is over survivors, but the baseline is over all outputs."""
    joint = problem.policy.probs[..., None] * problem.reward_probs
    values = (joint * problem.reward_values).sum(axis=(1, 2), keepdims=True)
    weights = (joint * survival * (problem.reward_values - values)).sum(axis=2)
    means = [weights[x] @ problem.policy.scores(x) for x in range(problem.contexts)]
    return np.asarray(problem.context_probs @ np.array(means))


def _of(entry: BanditEntry, how: str, survival: Array) -> Iterator[Check]:
    twice, fates = doubled(entry.problem, survival)
    moments = survivor_moments(entry.problem, survival)
    target = moments.target
    prediction, lone = (survivor_mse(moments, G, lone=what) for what in ("zero", "reward"))
    wrong = {
        UNCHANGED: target,
        OVER_ALL: over_all(entry.problem, survival),
        NO_PAIR: moments.moments.weighted_gradient(np.ones(len(moments.kept))),
    }
    if how == "by reward":
        wrong[BLIND] = float(entry.problem.context_probs @ prediction.weight) * target
    direction = telling(twice, (vector - prediction.mean for vector in wrong.values()))
    cell = SurvivorCell(twice, G, survives=fates)
    raw = SurvivorCell(twice, G, survives=fates, lone=True)
    size = float(prediction.second_moment.max()) ** 0.5
    full = survivor_mse(survivor_moments(entry.problem, np.ones_like(survival)), G).mse
    sides = (
        ("over survivors", cell, prediction, wrong, {NONE_LOST: full}),
        ("with lone rewards", raw, lone, {DROPPED: prediction.mean}, dict[str, float]()),
    )
    for what, drawn, of, rivals, _ in sides:
        yield direction.check(
            entry, f"{how}: mean {what}", drawn, GRPO, of.mean, rivals, scale=size
        )
    for what, drawn, of, _, errors in sides:
        statement = equal(of.mse, errors, scale=of.mse)
        yield entry.check(f"{how}: error {what}", mean_of(drawn, SquaredError(GRPO)), statement)
    left = float(entry.problem.context_probs @ prediction.survivors)
    yield entry.check(f"{how}: survivors", mean_of(cell, GroupSize()), equal(left, scale=left))
