"""The reference engine of trajectories: readable plain NumPy over replications."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ustat_pg.engines.base import Integers, Replications
from ustat_pg.estimators import gradient
from ustat_pg.execution.memory import slices
from ustat_pg.problems.minibatch import expected_reward, optimal_baseline
from ustat_pg.sampling import rng
from ustat_pg.validation import Array

from .trajectory import Trajectory, starts

_CHUNK_BYTES = 16_000_000


def _sum(array: Array) -> Array:
    """The sum over the last axis from left to right, so that it is the same number on every machine."""
    return array.cumsum(axis=-1)[..., -1]


def run(trajectory: Trajectory, block: Replications) -> Array:
    """θ at the snapshots, (R, S, d); each step draws minibatches for all replications together."""
    problem = trajectory.problem
    row = 8 * trajectory.batch_size * max(trajectory.group_size, problem.arms) * problem.d
    parts = []
    for some in slices(block.count, _CHUNK_BYTES // row):
        first, count = block.first + some.start, some.stop - some.start
        parts.append(_run(trajectory, replace(block, first=first, count=count)))
    return np.concatenate(parts)


def _run(trajectory: Trajectory, block: Replications) -> Array:
    key = rng.cell_key(block.seed, trajectory.name)
    numbers = block.first + np.arange(block.count)
    theta = starts(trajectory, block)
    kept = {0: theta}
    memory = _first_memory(trajectory, key, numbers, theta)
    rates, prompts = trajectory.schedule.rates(trajectory.steps), _prompts(trajectory, key, numbers)
    for t, (rate, contexts) in enumerate(zip(rates, prompts, strict=True), start=1):
        estimate, rewards = _estimate(trajectory, key, numbers, t, contexts, theta, memory)
        theta = theta + rate * estimate
        _remember(memory, contexts, rewards)
        if trajectory.projection is not None:
            theta = trajectory.projection.project(theta)
        kept[t] = theta
        if t - 1 not in (trajectory.snapshots or ()):
            del kept[t - 1]
    return np.stack([kept[t] for t in trajectory.snapshots or ()], axis=1)


def _prompts(trajectory: Trajectory, key: Integers, numbers: Integers) -> Iterator[Integers]:
    """The contexts of each step, (R, B), in order of the steps."""
    batch, total = trajectory.batch_size, trajectory.problem.contexts
    ends = rng.thresholds(trajectory.problem.context_probs)
    order = np.empty((len(numbers), total), np.int64)
    for first in range(0, trajectory.steps * batch, batch):
        words = rng.words(key, numbers, rng.CONTEXT_SLOT, batch, first)
        if trajectory.design == "iid":
            yield np.searchsorted(ends, words, side="right").astype(np.int64)
            continue
        # B divides X: a step lies within one epoch.
        place = first % total
        if place == 0:
            order[:] = np.arange(total)
        rng.shuffle(order, words, place)
        yield order[:, place : place + batch]


def _estimate(
    trajectory: Trajectory,
    key: Integers,
    numbers: Integers,
    t: int,
    contexts: Integers,
    theta: Array,
    memory: Array,
) -> tuple[Array, Array]:
    """ĝ, (R, d), at the current parameters (R, d) from the minibatch of step t, and the rewards (R, B, G)."""
    problem = trajectory.problem
    slots = rng.step_slots(t, np.arange(trajectory.batch_size))
    words = rng.words(key, numbers[:, None], slots, 2 * trajectory.group_size)
    features, probs, arms, rewards = _drawn(trajectory, words, contexts, theta)
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
            earlier=lambda: np.take_along_axis(memory, contexts[..., None], axis=1),
        )
    )
    return np.asarray(gradient(drawn, weighed).mean(axis=1)), rewards


def _first_memory(trajectory: Trajectory, key: Integers, numbers: Integers, theta: Array) -> Array:
    """The rewards of each prompt that the first policy leaves in the memory, (R, X, n)."""
    kept, prompts = trajectory.estimator.memory, np.arange(trajectory.problem.contexts)
    # Slot 0 of step 0 is the start's.
    words = rng.words(key, numbers[:, None], rng.step_slots(0, 1 + prompts), 2 * kept)
    if not kept:
        return words.astype(np.float64)
    contexts = np.broadcast_to(prompts, (len(numbers), len(prompts)))
    return _drawn(trajectory, words, contexts, theta)[-1]


def _remember(memory: Array, contexts: Integers, rewards: Array) -> None:
    """Append a minibatch's rewards to the memory of their prompts, which forgets as many."""
    runs, kept = np.arange(len(memory)), memory.shape[-1]
    for place in range(contexts.shape[1] if kept else 0):
        here = runs, contexts[:, place]
        memory[here] = np.concatenate([memory[here], rewards[:, place]], axis=1)[:, -kept:]


def _drawn(
    trajectory: Trajectory, words: Integers, contexts: Integers, theta: Array
) -> tuple[Array, Array, Integers, Array]:
    """The features (R, B, K, d) and the policy (R, B, K) at parameters (R, d), and the arms and rewards that
    words (R, B, 2G) choose from it, (R, B, G).
    """
    problem = trajectory.problem
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
    return features, weights / total, arms, rewards
