"""Addressed randomness: Philox 4x32-10, a draw as a function of where it is used.

A draw is addressed by (seed, cell, replication, slot, index). Seed and cell make the 64-bit key;
replication, slot (a prompt of the minibatch) and index (an output of its group) make the counter.
So a result does not depend on how replications were shared out, and two programs that agree on the
address agree on the integer.

:func:`philox` is the face for arrays, written to be read; the compiled engine has the same function
on scalars. Reference: Salmon, Moraes, Dror and Shaw (2011),
*Parallel random numbers: as easy as 1, 2, 3*.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .validation import InputError

__all__ = [
    "CONTEXT_SLOT",
    "MOST_PROMPTS",
    "MOST_STEPS",
    "MULTIPLIER_0",
    "MULTIPLIER_1",
    "ROUNDS",
    "WEYL_0",
    "WEYL_1",
    "cell_key",
    "philox",
    "step_slots",
    "thresholds",
    "words",
]

MULTIPLIER_0 = 0xD2511F53
MULTIPLIER_1 = 0xCD9E8D57
WEYL_0 = 0x9E3779B9
WEYL_1 = 0xBB67AE85
ROUNDS = 10
_MASK = 0xFFFFFFFF

CONTEXT_SLOT = 0xFFFFFFFF
"""The slot whose words choose the prompts; slots below it are the prompts' own."""

MOST_STEPS, MOST_PROMPTS = 2**20, 2**10
"""The longest trajectory and the largest minibatch in it that :func:`step_slots` has slots for."""


def philox(counter: ArrayLike, key: ArrayLike) -> NDArray[np.uint32]:
    """Philox 4x32-10: four random words for each counter.

    Arguments:
        counter: words of 32 bits, (..., 4).
        key: words of 32 bits, (2,) or (..., 2).

    Returns:
        uint32, (..., 4).

    >>> [f"{word:08x}" for word in philox([0, 0, 0, 0], [0, 0])]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    c0, c1, c2, c3 = np.moveaxis(np.asarray(counter, dtype=np.uint64), -1, 0)
    k0, k1 = np.moveaxis(np.asarray(key, dtype=np.uint64), -1, 0)
    mask, half = np.uint64(_MASK), np.uint64(32)
    for _ in range(ROUNDS):
        product_0 = np.uint64(MULTIPLIER_0) * c0
        product_1 = np.uint64(MULTIPLIER_1) * c2
        c0, c1, c2, c3 = (
            (product_1 >> half) ^ c1 ^ k0,
            product_1 & mask,
            (product_0 >> half) ^ c3 ^ k1,
            product_0 & mask,
        )
        k0 = (k0 + np.uint64(WEYL_0)) & mask
        k1 = (k1 + np.uint64(WEYL_1)) & mask
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def cell_key(seed: int, cell: str) -> NDArray[np.uint64]:
    """The key of a cell, (2,): 64 bits of BLAKE2b over the seed and the cell's name.

    >>> cell_key(0, "a").tolist() == cell_key(0, "a").tolist() != cell_key(1, "a").tolist()
    True
    """
    digest = hashlib.blake2b(f"{seed}\x00{cell}".encode(), digest_size=8).digest()
    return np.frombuffer(digest, dtype="<u4").astype(np.uint64)


def words(
    key: ArrayLike, replications: ArrayLike, slots: ArrayLike, count: int
) -> NDArray[np.uint32]:
    """The first ``count`` words at each (replication, slot): word i is word i mod 4 of block i div 4.

    Arguments:
        key: (2,), see :func:`cell_key`.
        replications, slots: whole numbers that broadcast to a shape S.
        count: words wanted at each address.

    Returns:
        uint32, S + (count,).
    """
    replications, slots = np.broadcast_arrays(
        np.asarray(replications, dtype=np.uint64), np.asarray(slots, dtype=np.uint64)
    )
    blocks = np.arange(-(-count // 4), dtype=np.uint64)
    shape = (*replications.shape, len(blocks))
    counter = np.empty((*shape, 4), dtype=np.uint64)
    counter[..., 0] = blocks
    counter[..., 1] = slots[..., None]
    counter[..., 2] = (replications & np.uint64(_MASK))[..., None]
    counter[..., 3] = (replications >> np.uint64(32))[..., None]
    return philox(counter, key).reshape(*shape[:-1], -1)[..., :count]


def step_slots(steps: ArrayLike, prompts: ArrayLike) -> NDArray[np.uint64]:
    """The slot of a prompt at a step of a trajectory: step 2¹⁰ + prompt.

    Step 0 is the start, whose slot is 0; steps 1 to 2²⁰ hold 2¹⁰ prompts each. So slots end below
    2³¹, and none is :data:`CONTEXT_SLOT`, where word n chooses the n-th prompt of the whole run.

    Arguments:
        steps, prompts: whole numbers that broadcast to a shape S, counted from 0.

    Returns:
        uint64, S.

    Raises:
        InputError: a step above 2²⁰, a prompt of 2¹⁰ or more, or a negative one.

    >>> step_slots(3, [0, 1]).tolist()
    [3072, 3073]
    """
    steps, prompts = np.asarray(steps), np.asarray(prompts)
    for name, array, most in (("steps", steps, MOST_STEPS), ("prompts", prompts, MOST_PROMPTS - 1)):
        if array.dtype.kind not in "iu" or (array < 0).any() or (array > most).any():
            raise InputError(f"{name} are {array}: they must be whole numbers from 0 to {most}")
    return steps.astype(np.uint64) * np.uint64(MOST_PROMPTS) + prompts.astype(np.uint64)


def thresholds(probs: ArrayLike) -> NDArray[np.uint64]:
    """Upper ends, in units of 2⁻³², of the words that choose each outcome: outcome j is drawn
    where ``thresholds[j-1] <= word < thresholds[j]``.

    The probability drawn differs from the one asked by less than 2⁻³²; the last outcome of
    positive probability, and all after it, end at 2³².

    Arguments:
        probs: (..., M), summing to 1 along the last axis.

    >>> thresholds([0.5, 0.25, 0.25]).tolist() == [2**31, 3 * 2**30, 2**32]
    True
    """
    probs = np.asarray(probs, dtype=np.float64)
    if (probs < 0).any() or not np.allclose(probs.sum(axis=-1), 1.0, rtol=0, atol=1e-9):
        raise InputError("probs must be nonnegative and sum to 1 along the last axis")
    ends = np.rint(np.minimum(np.cumsum(probs, axis=-1), 1.0) * 2.0**32).astype(np.uint64)
    positive = probs > 0
    last = probs.shape[-1] - 1 - np.argmax(positive[..., ::-1], axis=-1)
    ends[np.arange(probs.shape[-1]) >= last[..., None]] = np.uint64(2**32)
    return ends
