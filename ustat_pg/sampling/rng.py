"""Addressed randomness: Philox 4x32-10, a draw as a function of where it is used.

The address of a draw is (seed, cell, replication, slot, index). Seed and cell make the 64-bit key;
replication, slot (a prompt of the minibatch) and index (an output of its group) make the counter.
So a result does not depend on the division of work, and two programs that use the same
address get the same integer.

Signed 64-bit numbers store the 32-bit words, and :func:`philox` uses only operators: it
is the same function for whole numbers, NumPy arrays, torch tensors and compiled code.
Reference: Salmon, Moraes, Dror and Shaw (2011), *Parallel random numbers: as easy as 1, 2, 3*.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

MULTIPLIER_0 = 0xD2511F53
MULTIPLIER_1 = 0xCD9E8D57
WEYL_0 = 0x9E3779B9
WEYL_1 = 0xBB67AE85
ROUNDS = 10
MASK = 0xFFFFFFFF

CONTEXT_SLOT = 0xFFFFFFFF
"""The slot with the words that choose the prompts; lower slots belong to the prompts."""

MOST_STEPS, MOST_PROMPTS = 2**20, 2**10
"""The longest trajectory and its largest minibatch for which :func:`step_slots` has slots."""


def philox(c0, c1, c2, c3, k0, k1):
    """Philox 4x32-10: the four random words of a counter of four words under a key of two.

    A product of two words may wrap to a negative number; its halves are taken from its bits.

    >>> [f"{word:08x}" for word in philox(0, 0, 0, 0, 0, 0)]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    for _ in range(ROUNDS):
        product_0, product_1 = MULTIPLIER_0 * c0, MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (
            ((product_1 >> 32) & MASK) ^ c1 ^ k0,
            product_1 & MASK,
            ((product_0 >> 32) & MASK) ^ c3 ^ k1,
            product_0 & MASK,
        )
        k0, k1 = (k0 + WEYL_0) & MASK, (k1 + WEYL_1) & MASK
    return c0, c1, c2, c3


def cell_key(seed: int, cell: str) -> NDArray[np.int64]:
    """The key of a cell, (2,): 64 bits of BLAKE2b over the seed and the cell's name.

    >>> cell_key(0, "a").tolist() == cell_key(0, "a").tolist() != cell_key(1, "a").tolist()
    True
    """
    digest = hashlib.blake2b(f"{seed}\x00{cell}".encode(), digest_size=8).digest()
    return np.frombuffer(digest, dtype="<u4").astype(np.int64)


def words(
    key: ArrayLike, replications: ArrayLike, slots: ArrayLike, count: int, first: int = 0
) -> NDArray[np.int64]:
    """Words ``first`` to ``first + count`` at each (replication, slot).

    Word i is word i mod 4 of block i div 4.

    Arguments:
        key: (2,), see :func:`cell_key`.
        replications, slots: whole numbers that broadcast to a shape S.
        count: the number of words at each address.
        first: the index of the first word.

    Returns:
        int64, S + (count,).
    """
    numbers, places = (np.asarray(values, dtype=np.int64) for values in (replications, slots))
    replications, slots = np.broadcast_arrays(numbers[..., None], places[..., None])
    low, high = first // 4, -(-(first + count) // 4)
    blocks = np.arange(low, high)
    halves = replications & MASK, (replications >> 32) & MASK
    drawn = philox(blocks, slots, *halves, *(int(word) for word in np.asarray(key)))
    drawn = np.stack(drawn, axis=-1).reshape(*slots.shape[:-1], -1)
    return drawn[..., first - 4 * low : first - 4 * low + count]


def shuffle(order: NDArray[np.int64], words: NDArray[np.int64], first: int = 0) -> None:
    """Take steps of a shuffle (Fisher-Yates) in place: place j swaps with one of the places j to N - 1.

    Arguments:
        order: (R, N).
        words: one word for each row and step, (R, n).
        first: the first step's place.

    >>> order = np.arange(4)[None]
    >>> shuffle(order, np.array([[2**31, 0, 2**32 - 1]]))
    >>> order
    array([[2, 1, 3, 0]])
    """
    rows = np.arange(len(order))
    total = order.shape[1]
    for step in range(words.shape[1]):
        place = first + step
        other = place + ((words[:, step] * (total - place)) >> 32)
        taken = order[rows, other]
        order[rows, other] = order[rows, place]
        order[rows, place] = taken


def step_slots(steps: ArrayLike, prompts: ArrayLike) -> NDArray[np.int64]:
    """The slot of a prompt at a step of a trajectory: step 2¹⁰ + prompt.

    Step 0 is the start, whose slot is 0; steps 1 to 2²⁰ hold 2¹⁰ prompts each. So all slots are below
    2³¹, and differ from :data:`CONTEXT_SLOT`, where word n chooses the n-th prompt of the whole run.

    Arguments:
        steps, prompts: whole numbers that broadcast to a shape S, counted from 0.

    Returns:
        int64, S.

    >>> step_slots(3, [0, 1]).tolist()
    [3072, 3073]
    """
    return np.asarray(steps, np.int64) * MOST_PROMPTS + np.asarray(prompts, np.int64)


def thresholds(probs: ArrayLike) -> NDArray[np.int64]:
    """The upper ends, in units of 2⁻³², of the words that choose each outcome. Outcome j is drawn
    if ``thresholds[j-1] <= word < thresholds[j]``.

    The probability of the draw differs from the requested one by less than 2⁻³². The last outcome of
    positive probability, and all outcomes after it, end at 2³².

    Arguments:
        probs: (..., M), summing to 1 along the last axis.

    >>> thresholds([0.5, 0.25, 0.25]).tolist() == [2**31, 3 * 2**30, 2**32]
    True
    """
    probs = np.asarray(probs, dtype=np.float64)
    ends = np.rint(np.minimum(np.cumsum(probs, axis=-1), 1.0) * 2.0**32).astype(np.int64)
    positive = probs > 0
    last = probs.shape[-1] - 1 - np.argmax(positive[..., ::-1], axis=-1)
    ends[np.arange(probs.shape[-1]) >= last[..., None]] = 2**32
    return ends
