"""The compiled engines' draws: words at an address, and steps of a shuffle."""

from __future__ import annotations

from .. import rng
from ..compiled import body

MASK = rng.MASK

philox = body(rng.philox, inline=True)


@body(inline=True)
def words_at(block, slot, rep, key):
    """The four words of a block at a (replication, slot)."""
    # The masks tell the compiler that these are 32-bit numbers, which makes a product one step.
    return philox(
        block & MASK, slot & MASK, rep & MASK, (rep >> 32) & MASK, key[0] & MASK, key[1] & MASK
    )


@body
def swap(order, place, word):
    """One step of a shuffle (Fisher-Yates): a place swaps with one of itself and those behind it.

    Returns:
        the other place.
    """
    other = place + ((word * (len(order) - place)) >> 32)
    order[place], order[other] = order[other], order[place]
    return other
