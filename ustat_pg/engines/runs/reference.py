"""The reference engine of trajectories: plain NumPy over replications, written to be read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ... import rng
from ...estimators import gradient
from ...memory import slices
from ..base import Array, Integers, Replications, expected_reward, optimal_baseline
from .trajectory import Trajectory, starts

_CHUNK_BYTES = 16_000_000


def _sum(array: Array) -> Array:
    """The sum over the last axis from left to right, so that it is one number on every machine."""
    return array.cumsum(axis=-1)[..., -1]


def run(trajectory: Trajectory, block: Replications) -> Array:
    """θ at the snapshots: a minibatch for all replications, the estimators, a step; (R, S, d)."""
    problem = trajectory.problem
    row = 8 * trajectory.batch_size * max(trajectory.group_size, problem.arms) * problem.d
    parts = [
        _run(
            trajectory, replace(block, first=block.first + some.start, count=some.stop - some.start)
        )
        for some in slices(block.count, _CHUNK_BYTES // row)
    ]
    return np.concatenate(parts)


def _run(trajectory: Trajectory, block: Replications) -> Array:
    key = rng.cell_key(block.seed, trajectory.name)
    numbers = block.first + np.arange(block.count)
    theta = starts(trajectory, block)
    prompts = _Prompts(trajectory, key, numbers)
    kept = {0: theta}
    for t, rate in enumerate(trajectory.schedule.rates(trajectory.steps), start=1):
        theta = theta + rate * _estimate(trajectory, key, numbers, t, prompts.of_step(t), theta)
        if trajectory.projection is not None:
            theta = trajectory.projection.project(theta)
        kept[t] = theta
        if t - 1 not in (trajectory.snapshots or ()):
            del kept[t - 1]
    return np.stack([kept[t] for t in trajectory.snapshots or ()], axis=1)


class _Prompts:
    """The contexts of each step, in order of the steps."""

    def __init__(self, trajectory: Trajectory, key: Integers, numbers: Integers) -> None:
        self.trajectory, self.key, self.numbers = trajectory, key, numbers
        self.ends = rng.thresholds(trajectory.problem.context_probs)
        self.order = np.empty((len(numbers), trajectory.problem.contexts), np.int64)

    def of_step(self, t: int) -> Integers:
        """(R, B)."""
        batch, total = self.trajectory.batch_size, self.trajectory.problem.contexts
        first = (t - 1) * batch
        words = rng.words(self.key, self.numbers, rng.CONTEXT_SLOT, batch, first)
        if self.trajectory.design == "iid":
            return np.searchsorted(self.ends, words, side="right").astype(np.int64)
        # B divides X: a step lies within one epoch.
        place = first % total
        if place == 0:
            self.order[:] = np.arange(total)
        rng.shuffle(self.order, words, place)
        return self.order[:, place : place + batch]


def _estimate(
    trajectory: Trajectory,
    key: Integers,
    numbers: Integers,
    t: int,
    contexts: Integers,
    theta: Array,
) -> Array:
    """ĝ at the current parameters (R, d) from the minibatch of step t, (R, d)."""
    problem, group = trajectory.problem, trajectory.group_size
    slots = rng.step_slots(t, np.arange(trajectory.batch_size))
    words = rng.words(key, numbers[:, None], slots, 2 * group)
    features = trajectory.policy.features[contexts]
    logits = trajectory.offset[contexts]
    for j in range(problem.d):
        logits = logits + features[..., j] * theta[:, None, None, j]
    if trajectory.policy.bends is not None:
        bends, here = trajectory.policy.bends[contexts], theta[:, None, None, :]
        logits = logits - _sum(bends * here**2) / 2
        features = features - bends * here
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    ends = weights.cumsum(axis=-1)
    total = ends[..., -1:]
    level = words[..., 0::2] * 2.0**-32 * total
    arms = (level[..., :, None] >= ends[..., None, :]).sum(axis=-1)
    law = rng.thresholds(problem.reward_probs)[contexts[:, :, None], arms]
    place = (words[..., 1::2, None] >= law).sum(axis=-1)
    rewards = problem.reward_values[contexts[:, :, None], arms, place]
    probs = weights / total
    mean = np.stack([_sum(probs * features[..., j]) for j in range(problem.d)], axis=-1)
    scores = features - mean[:, :, None, :]
    drawn = np.take_along_axis(scores, arms[..., None], axis=2)
    norms, mean_rewards = _sum(scores**2), problem.mean_rewards[contexts]
    weighed = np.asarray(
        trajectory.estimator.weigh(
            rewards,
            value=lambda: expected_reward(probs, mean_rewards, _sum),
            optimal_baseline=lambda: optimal_baseline(probs, mean_rewards, norms, _sum),
            squared_norms=lambda: np.take_along_axis(norms, arms, axis=2),
        )
    )
    return np.asarray(gradient(drawn, weighed).mean(axis=1))
