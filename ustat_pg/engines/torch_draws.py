"""The draws of :mod:`ustat_pg.rng` as torch integers: the same words on the CPU and on CUDA.

Torch has no unsigned arithmetic of 64 bits. Products of two words of 32 bits wrap in int64, and
their halves are cut out by shift and mask. This module needs torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from .. import rng

__all__ = ["philox", "words"]

_MASK = 0xFFFFFFFF


def philox(counter: Tensor, key: Sequence[int]) -> Tensor:
    """Philox 4x32-10, as :func:`ustat_pg.rng.philox`.

    Arguments:
        counter: words of 32 bits in int64, (..., 4).
        key: two words of 32 bits.

    Returns:
        words of 32 bits in int64, (..., 4), on the counter's device.

    >>> [f"{word:08x}" for word in philox(torch.zeros(4, dtype=torch.int64), (0, 0)).tolist()]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    c0, c1, c2, c3 = counter.unbind(-1)
    k0, k1 = (int(word) for word in key)
    for _ in range(rng.ROUNDS):
        product_0, product_1 = rng.MULTIPLIER_0 * c0, rng.MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (
            ((product_1 >> 32) & _MASK) ^ c1 ^ k0,
            product_1 & _MASK,
            ((product_0 >> 32) & _MASK) ^ c3 ^ k1,
            product_0 & _MASK,
        )
        k0, k1 = (k0 + rng.WEYL_0) & _MASK, (k1 + rng.WEYL_1) & _MASK
    return torch.stack([c0, c1, c2, c3], dim=-1)


def words(
    key: ArrayLike, replications: Tensor, slots: Tensor, count: int, first: int = 0
) -> Tensor:
    """Words ``first`` to ``first + count`` at each (replication, slot), as :func:`ustat_pg.rng.words`.

    Arguments:
        key: (2,), see :func:`ustat_pg.rng.cell_key`.
        replications, slots: int64 that broadcast to a shape S, on one device.
        count: words wanted at each address.
        first: the word to begin with.

    Returns:
        words of 32 bits in int64, S + (count,).

    >>> where = torch.tensor([5]), torch.tensor([[0], [7]])
    >>> bool((words((1, 2), *where, 6).numpy() == rng.words((1, 2), [5], [[0], [7]], 6)).all())
    True
    """
    replications, slots = torch.broadcast_tensors(replications, slots)
    low, high = first // 4, -(-(first + count) // 4)
    blocks = torch.arange(low, high, dtype=torch.int64, device=slots.device)
    shape = (*slots.shape, len(blocks))
    counter = torch.stack(
        [
            blocks.expand(shape),
            slots[..., None].expand(shape),
            (replications & _MASK)[..., None].expand(shape),
            ((replications >> 32) & _MASK)[..., None].expand(shape),
        ],
        dim=-1,
    )
    drawn = philox(counter, np.asarray(key).tolist())
    return drawn.reshape(*slots.shape, -1)[..., first - 4 * low : first - 4 * low + count]
