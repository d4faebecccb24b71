"""The exact engine: every outcome of a minibatch with its probability, without closed forms.

A group's outcomes are enumerated as tuples (each order separately) or as counts (how often each
outcome of one rollout occurs, with the multinomial probability). Counts are far fewer and give the
same result for every estimator that ignores the order of a group. The prompts of a
minibatch are counted in the same way. Minibatches are enumerated
jointly, without sums of variances or independence, so the result does not depend on the
theory that it tests.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from math import comb, factorial, log10, perm, prod
from typing import Any

import numpy as np

from ...execution.memory import slices
from ...rounding import GIVEN
from ..base import Array, Draws, InfeasibleError, Integers, MomentSums, Replications
from .cell import (
    Distance,
    GradientCell,
    GradientQuantity,
    Mixed,
    Projection,
    SquaredError,
    SquaredProjection,
    direction,
    estimators_of,
    memory_of,
    mixed,
)

LIMIT = 1_000_000
"""The most outcomes of a minibatch, over all contexts, that are enumerated."""

PROMPTS_LIMIT = 4_000
"""The most choices of prompts; each choice takes a separate loop."""

WORK_LIMIT = 2e9
"""The most multiplications in the quadratic forms, for each estimator."""

_CHUNK_BYTES = 16_000_000

_PAIRS = 16
"""The number of products of pairs that takes as long as one advantage."""

_A_CHOICE, _A_CELL = 64, 16_000
"""The number of advantages that takes as long as one loop for a choice of prompts, or a cell's tables."""


def size(cell: GradientCell, *, tuples: bool = False, memory: int = 0) -> int:
    """The number of outcomes of a minibatch, summed over the choices of prompts, each order separately.

    Arguments:
        memory: the earlier rewards of each prompt.
    """

    def ways(count: int, outputs: int) -> int:
        return count**outputs if tuples else comb(count + outputs - 1, outputs)

    counts = zip(cell.problem.outcomes.counts, cell.before.outcomes.counts, strict=True)
    groups = [ways(int(now), cell.group_size) * ways(int(before), memory) for now, before in counts]
    if cell.design == "iid":
        return sum(groups) ** cell.batch_size
    if cell.design == "fixed":
        return prod(groups)
    # Ordered choices of distinct prompts: B! times the elementary symmetric polynomial.
    polynomial = [1] + [0] * cell.batch_size
    for group in groups:
        for order in range(cell.batch_size, 0, -1):
            polynomial[order] += group * polynomial[order - 1]
    return polynomial[cell.batch_size] * factorial(cell.batch_size)


def _choices(cell: GradientCell) -> int:
    """The number of choices of prompts."""
    contexts, batch = cell.problem.contexts, cell.batch_size
    return {"iid": contexts**batch, "fixed": 1}.get(cell.design, perm(contexts, batch))


def effort(cell: GradientCell, quantities: int, *, tuples: bool = False, memory: int = 0) -> float:
    """The rough cost of some quantities, in advantages; other work is converted to the same unit."""
    outputs = cell.batch_size * cell.group_size
    outcomes = size(cell, tuples=tuples, memory=memory) * outputs * (1 + outputs / _PAIRS)
    return float((outcomes + _A_CHOICE * _choices(cell)) * quantities + _A_CELL)


def require(cell: GradientCell, *, tuples: bool = False, memory: int = 0) -> None:
    """Raise :class:`InfeasibleError` if there are too many outcomes; the message gives the number."""
    number, choices = size(cell, tuples=tuples, memory=memory), _choices(cell)
    contexts, batch = cell.problem.contexts, cell.batch_size
    work = number * (batch * cell.group_size) ** 2
    if number > LIMIT or choices > PROMPTS_LIMIT or work > WORK_LIMIT:
        # A very long whole number does not fit in a float, but its logarithm does.
        raise InfeasibleError(
            f"enumeration needs 10^{log10(number):.1f} outcomes over 10^{log10(choices):.1f} "
            f"choices of prompts (B = {batch}, G = {cell.group_size}, {contexts} contexts); "
            f"at most {LIMIT:.0e}, {PROMPTS_LIMIT:.0e} and {WORK_LIMIT:.0e} products are feasible: "
            "take a smaller group or batch, or a problem with fewer outcomes"
        )


def minibatches(
    cell: GradientCell, *, tuples: bool = False, memory: int = 0
) -> Iterator[tuple[Draws, Array]]:
    """Every outcome of a minibatch, in chunks of :class:`Draws` with their probabilities (n,).

    Arguments:
        tuples: keep each order of outputs and prompts separate; otherwise one order represents all, with
            their total probability.
        memory: the earlier rewards of each prompt.
    """
    require(cell, tuples=tuples, memory=memory)
    problem = cell.problem
    groups = [_group_and_memory(cell, x, tuples, memory) for x in range(problem.contexts)]
    row = 8 * max((cell.batch_size * cell.group_size) ** 2, 8)
    for contexts, chance in prompts_of(cell, ordered=tuples):
        sizes = tuple(len(groups[x][1]) for x in contexts)
        total = int(np.prod(sizes))
        for some in slices(total, max(64, _CHUNK_BYTES // row)):
            index = np.unravel_index(np.arange(some.start, some.stop), sizes)
            members = [groups[x][0][i] for x, i in zip(contexts, index, strict=True)]
            outcomes, earlier = np.split(np.stack(members, axis=1), [cell.group_size], axis=2)
            probability = np.full(len(outcomes), chance)
            for x, i in zip(contexts, index, strict=True):
                probability = probability * groups[x][1][i]
            where = np.array(contexts)[None, :, None]
            arms = problem.outcomes.arms[where, outcomes]
            yield (
                Draws(
                    np.broadcast_to(where[..., 0], outcomes.shape[:2]),
                    arms,
                    problem.outcomes.rewards[where, outcomes],
                    problem.policy.squared_norms[where, arms],
                    problem.outcomes.rewards[where, earlier] if memory else None,
                ),
                probability,
            )


def _group_and_memory(
    cell: GradientCell, x: int, tuples: bool, memory: int
) -> tuple[Integers, Array]:
    """Every outcome of a prompt's group and memory together, (n, G + memory), with its probability, (n,)."""
    chances = (problem.outcomes for problem in (cell.problem, cell.before))
    own, before = (
        groups_of(outcomes.probs[x, : outcomes.counts[x]], number, tuples)
        for outcomes, number in zip(chances, (cell.group_size, memory), strict=True)
    )
    i, j = np.indices((len(own[1]), len(before[1]))).reshape(2, -1)
    return np.concatenate([own[0][i], before[0][j]], axis=1), own[1][i] * before[1][j]


def prompts_of(
    cell: GradientCell, *, ordered: bool = False
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every choice of prompts with its probability; one order represents all, unless they are ordered."""
    everyone, probs = range(cell.problem.contexts), cell.problem.context_probs
    batch = cell.batch_size
    choices: Iterable[tuple[int, ...]]
    if cell.design == "fixed":
        yield tuple(everyone), 1.0
    elif cell.design == "iid":
        choices = itertools.combinations_with_replacement(everyone, batch)
        if ordered:
            choices = itertools.product(everyone, repeat=batch)
        for chosen in choices:
            repeats = prod(factorial(chosen.count(x)) for x in set(chosen))
            orders = 1 if ordered else factorial(batch) // repeats
            yield chosen, orders * float(np.prod(probs[list(chosen)]))
    else:
        choices = itertools.combinations(everyone, batch)
        if ordered:
            choices = itertools.permutations(everyone, batch)
        alike = (perm if ordered else comb)(len(everyone), batch)
        for chosen in choices:
            yield chosen, 1 / alike


def groups_of(probs: Array, group_size: int, tuples: bool) -> tuple[Integers, Array]:
    """Every outcome of one group, (n, G), with its probability, (n,)."""
    atoms = range(len(probs))
    if tuples:
        chosen = np.array(list(itertools.product(atoms, repeat=group_size)), dtype=np.int64)
        return chosen, np.prod(probs[chosen], axis=1)
    chosen = np.array(
        list(itertools.combinations_with_replacement(atoms, group_size)), dtype=np.int64
    )
    # G! / Π mⱼ!, where Π mⱼ! is the product of each member's place in its run of equals.
    place = np.ones(len(chosen))
    repeats = np.ones(len(chosen))
    for i in range(1, group_size):
        place = np.where(chosen[:, i] == chosen[:, i - 1], place + 1, 1.0)
        repeats *= place
    return chosen, factorial(group_size) / repeats * np.prod(probs[chosen], axis=1)


def measure(
    cell: GradientCell,
    quantities: Sequence[GradientQuantity],
    block: Replications,
    *,
    tuples: bool = False,
) -> MomentSums:
    """The exact means of the quantities; the block is not used.

    Arguments:
        tuples: enumerate every order of a group; an estimator that depends on the order needs this.
    """
    problem = cell.problem
    labels = estimators_of(quantities)
    parts: dict[int, list[int]] = {}
    for place, quantity in enumerate(quantities):
        parts.setdefault(memory_of([quantity]), []).append(place)
    if len(parts) > 1:
        means = np.empty(len(quantities))
        for places in parts.values():
            some = [quantities[place] for place in places]
            means[places] = measure(cell, some, block, tuples=tuples).mean
        return MomentSums.exact(means)
    # Counts have no order, so the first few of a longer memory need tuples.
    tuples = tuples or len({e.memory for e in labels if e.memory}) > 1
    along = {
        q.number: problem.policy.inner(direction(problem, q.number))
        for q in quantities
        if isinstance(q, (Projection, SquaredProjection))
    }
    target = problem.gradient()
    linear = problem.policy.inner(target)
    gram = cache(problem.policy.gram)
    total, weight = np.zeros(len(quantities)), 0.0
    for draws, probability in minibatches(cell, tuples=tuples, memory=memory_of(quantities)):
        contexts = draws.contexts[0]
        # Aᵢ / (B G), so that an estimate is a plain sum over outputs, (n, B, G).
        share = {
            e: e.advantages(problem, draws) / (cell.batch_size * cell.group_size) for e in labels
        }
        products = [
            # A pair of prompts represents both of its orders.
            (b, c, (1 + (b < c)) * gram(x, y)[draws.arms[:, b, :, None], draws.arms[:, c, None]])
            for b, x in enumerate(contexts)
            for c, y in enumerate(contexts)
            if b <= c and gram(x, y).any()
        ]

        def square(shares: Array, products: Any = products) -> Array:
            return sum(
                (np.einsum("ni,nij,nj->n", shares[:, b], p, shares[:, c]) for b, c, p in products),
                np.zeros(len(shares)),
            )

        def apply(table: Array, shares: Array, draws: Draws = draws) -> Array:
            return np.asarray(
                (shares * table[draws.contexts[..., None], draws.arms]).sum(axis=(1, 2))
            )

        for column, quantity in enumerate(quantities):
            if isinstance(quantity, Mixed):
                value = mixed(draws)
            elif isinstance(quantity, Distance):
                value = square(share[quantity.first] - share[quantity.second])
            elif isinstance(quantity, SquaredError):
                shares = share[quantity.estimator]
                value = square(shares) - 2 * apply(linear, shares) + target @ target
            else:
                shares = share[quantity.estimator]
                unit = direction(problem, quantity.number)
                value = apply(along[quantity.number], shares) - target @ unit
                if not isinstance(quantity, Projection):
                    value = value**2
            total[column] += probability @ value
        weight += float(probability.sum())
    if not abs(weight - 1) < GIVEN:
        raise ArithmeticError(f"the outcomes' probabilities sum to {weight}, not 1")
    return MomentSums.exact(total)
