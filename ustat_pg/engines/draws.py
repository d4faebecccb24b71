"""The compiled engines' draws: words at an address, and steps of a shuffle."""

from __future__ import annotations

import numpy as np

from ..execution.compiled import body
from ..sampling import rng

MASK = rng.MASK

philox = body(rng.philox, inline=True)


@body(inline=True)
def words_at(block, slot, rep, key):
    """The four words of a block at a (replication, slot)."""
    # The masks tell the compiler that these are 32-bit numbers, which makes a product one step.
    return philox(
        block & MASK, slot & MASK, rep & MASK, (rep >> 32) & MASK, key[0] & MASK, key[1] & MASK
    )


@body(inline=True)
def other_place(word, place, total):
    """The place that a step of a shuffle (Fisher-Yates) swaps with the current one: this or a later place."""
    return place + ((word * (total - place)) >> 32)


@body
def swap(order, place, word):
    """One step of a shuffle: two places swap.

    Returns:
        the other place.
    """
    other = other_place(word, place, len(order))
    order[place], order[other] = order[other], order[place]
    return other


LOW, HALF = np.uint64(rng.MASK), np.uint64(32)


@body(inline=True)
def words_of_32(block, slot, low, high, key):
    """The same words as 32-bit numbers, which a device multiplies in one step."""
    c0, c1, c2, c3 = np.uint32(block), np.uint32(slot), low, high
    k0, k1 = key
    for _ in range(rng.ROUNDS):
        first = np.uint64(rng.MULTIPLIER_0) * np.uint64(c0)
        second = np.uint64(rng.MULTIPLIER_1) * np.uint64(c2)
        c0, c1, c2, c3 = (
            np.uint32(np.uint32(second >> HALF) ^ c1 ^ k0),
            np.uint32(second & LOW),
            np.uint32(np.uint32(first >> HALF) ^ c3 ^ k1),
            np.uint32(first & LOW),
        )
        k0 = np.uint32((np.uint64(k0) + np.uint64(rng.WEYL_0)) & LOW)
        k1 = np.uint32((np.uint64(k1) + np.uint64(rng.WEYL_1)) & LOW)
    return c0, c1, c2, c3
