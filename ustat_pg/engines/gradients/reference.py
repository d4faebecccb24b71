"""The reference engine: readable plain NumPy. It is slow, and it is the standard for the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...estimators import gradient
from ...execution.memory import slices
from ...sampling import rng
from ..base import Array, Draws, Integers, MomentSums, Replications
from .cell import (
    GradientCell,
    GradientQuantity,
    columns,
    direction,
    estimators_of,
    memory_of,
    mixed,
)

_CHUNK_BYTES = 64_000_000


def draw(cell: GradientCell, *, seed: int, first: int, replications: int) -> Draws:
    """The outcomes of replications ``first`` onwards."""
    contexts, chosen = _outcomes(cell, seed, first, replications)
    return _draws(cell, contexts, chosen)


def different(
    cell: GradientCell, *, seed: int, first: int, replications: int, memory: int = 0
) -> tuple[Draws, Integers]:
    """The distinct outcomes among replications ``first`` onwards, and each replication's index in them,
    (R,). Small groups of few outcomes repeat, so the advantages of each are computed once.

    Arguments:
        memory: the earlier rewards of each prompt.
    """
    contexts, chosen = _outcomes(cell, seed, first, replications, memory)
    most, atoms = cell.problem.contexts, cell.problem.outcomes.arms.shape[1]
    if most**cell.batch_size * atoms ** chosen[0].size >= 2**63:
        return _draws(cell, contexts, chosen), np.arange(replications)
    code = np.zeros(replications, dtype=np.int64)
    for row in contexts.T:
        code = most * code + row
    for row in chosen.reshape(replications, -1).T:
        code = atoms * code + row
    _, kept, place = np.unique(code, return_index=True, return_inverse=True)
    return _draws(cell, contexts[kept], chosen[kept]), place


def _outcomes(
    cell: GradientCell, seed: int, first: int, replications: int, memory: int = 0
) -> tuple[Integers, Integers]:
    """Prompts (R, B), and the numbers of their outcomes (R, B, G + memory), the earlier ones last."""
    key = rng.cell_key(seed, cell.name)
    numbers = first + np.arange(replications)
    contexts = _contexts(cell, key, numbers)
    ends = rng.thresholds(cell.problem.outcomes.probs)
    slots = np.arange(cell.batch_size)
    words = rng.words(key, numbers[:, None], slots, cell.group_size + memory)
    own, rest = np.split(words[..., None], [cell.group_size], axis=2)
    chosen = (own >= ends[contexts][:, :, None, :]).sum(axis=-1)
    if not memory:
        return contexts, chosen
    ends = rng.thresholds(cell.before.outcomes.probs)
    before = (rest >= ends[contexts][:, :, None, :]).sum(axis=-1)
    return contexts, np.concatenate([chosen, before], axis=2)


def _draws(cell: GradientCell, contexts: Integers, chosen: Integers) -> Draws:
    outcomes, rows = cell.problem.outcomes, contexts[:, :, None]
    chosen, earlier = np.split(chosen, [cell.group_size], axis=2)
    arms = outcomes.arms[rows, chosen]
    norms = cell.problem.policy.squared_norms[rows, arms]
    before = outcomes.rewards[rows, earlier] if earlier.size else None
    return Draws(contexts, arms, outcomes.rewards[rows, chosen], norms, before)


def _contexts(cell: GradientCell, key: Integers, numbers: Integers) -> Integers:
    total, batch = cell.problem.contexts, cell.batch_size
    if cell.design == "fixed":
        return np.broadcast_to(np.arange(total), (len(numbers), total)).astype(np.int64)
    words = rng.words(key, numbers, rng.CONTEXT_SLOT, batch)
    if cell.design == "iid":
        ends = rng.thresholds(cell.problem.context_probs)
        return np.searchsorted(ends, words, side="right").astype(np.int64)
    order = np.tile(np.arange(total, dtype=np.int64), (len(numbers), 1))
    rng.shuffle(order, words)
    return order[:, :batch]


def measure(
    cell: GradientCell, quantities: Sequence[GradientQuantity], block: Replications
) -> MomentSums:
    """The sums of a block."""
    problem = cell.problem
    row = 8 * cell.batch_size * cell.group_size * max(problem.d, problem.outcomes.arms.shape[1])
    values = []
    for some in slices(block.count, _CHUNK_BYTES // row):
        first, count = block.first + some.start, some.stop - some.start
        draws, place = different(
            cell,
            seed=block.seed,
            first=first,
            replications=count,
            memory=memory_of(quantities),
        )
        values.append(values_of(cell, quantities, draws)[place])
    return MomentSums.of(np.concatenate(values))


def values_of(cell: GradientCell, quantities: Sequence[GradientQuantity], draws: Draws) -> Array:
    """The values of the quantities in each replication, (R, Q)."""
    problem = cell.problem
    contexts, place = np.unique(draws.contexts, return_inverse=True)
    scores = np.stack([problem.policy.scores(x) for x in contexts])
    drawn = scores[place.reshape(draws.contexts.shape)[:, :, None], draws.arms]
    estimates = {
        estimator: gradient(drawn, estimator.advantages(problem, draws)).mean(axis=1)
        for estimator in estimators_of(quantities)
    }
    values = columns(
        quantities,
        estimates,
        problem.gradient(),
        mixed(draws),
        lambda number: direction(problem, number),
    )
    return np.stack(list(values), axis=-1)
