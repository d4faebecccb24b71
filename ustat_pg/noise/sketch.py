"""CountSketch of vectors that arrive in pieces.

Entry p of stretch c goes to place p + t_c of row ρ_c, modulo k, with the sign ε_c η_{c+p}.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

Draws = tuple[Tensor, Tensor, Tensor, Tensor]
"""t, ρ and ε, (C,) each, and η, (C + k,), for C stretches."""

_SEED = 20_260_101
"""Seed of the sketches of scores, so that those of different processes can be compared."""
_TURNED = 2**20
"""Entries of each vector that are turned together; few enough to fit in a cache."""


def pieces(values: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Short stretches of a tensor's numbers in float32, (1, m), and the position where each begins."""
    inner = math.prod(values.shape[1:])
    if inner > _TURNED:
        for k, row in enumerate(values):
            yield from ((k * inner + start, part) for start, part in pieces(row))
        return
    values = values.reshape(1) if not values.ndim else values
    step = _TURNED // max(inner, 1)
    for start in range(0, len(values), step):
        yield start * inner, values[start : start + step].float().reshape(1, -1)


class Sketch:
    """CountSketch of vectors of d numbers: k numbers whose inner products are unbiased for theirs.

    The c-th stretch of k entries is rotated by a random number of places and added; entry p has the sign
    ε_c η_{c+p}. A table of hashes would need a random number for each entry. Two entries of
    different stretches share a number with probability 1/k, whatever their places, and two of one stretch
    never do. So the variance of ⟨Su, Sv⟩ is that of Charikar, Chen and Farach-Colton (2002), at most
    2 ‖u‖² ‖v‖² / k, plus a term from the one rotation in k at which all signs η of two stretches agree.
    The term is at most as large, for vectors nearly constant in a stretch. Without rotation a matrix column
    would fall on one number if the matrix's width divides k.
    Vectors that have no more than k numbers are kept whole.

    Arguments:
        d: entries of a vector.
        numbers: k.
        like: a tensor with the precision and the device of the vectors.
        seed: the seed of the draws; by default the seed for all scores.
    """

    def __init__(
        self, d: int, numbers: int, like: Tensor, seed: int | Sequence[int] = _SEED
    ) -> None:
        self.numbers = min(numbers, d)
        stretches = -(-d // self.numbers)
        # NumPy's bits are the same everywhere; torch's depend on the device.
        rng = np.random.default_rng(seed)
        bits = rng.integers(0, 2, 2 * stretches + self.numbers) * 2 - 1
        places = rng.integers(0, [[self.numbers], [2**31]], (2, stretches))
        # Only the relative rotation of stretches matters, so the first one, or a whole short vector, stays.
        places[0, 0] = 0
        turns, rows = torch.as_tensor(places, device=like.device)
        signs = torch.as_tensor(bits, dtype=like.dtype, device=like.device)
        self._draws = turns, rows, signs[:stretches], signs[stretches:]

    def add(self, table: Tensor, start: int, values: Tensor) -> None:
        """Add vectors that are ``values`` (r, m) from entry ``start`` on, and 0 elsewhere.

        ``table`` is (r, M, k): each stretch is added to a random row. The sum over rows is the sketch;
        with M > 1 the table itself is a sketch of M k numbers.
        """
        fold = by_windows
        if table.device.type == "cpu":
            # One compiled pass is 13 times as fast, but numba is optional.
            with suppress(ImportError):
                from .loops import by_loops as fold
        fold(table, values, start, self._draws)


def by_windows(table: Tensor, values: Tensor, start: int, draws: Draws) -> None:
    """Add vectors on any device, by operations on whole tensors.

    Arguments:
        table: (r, M, k).
        values: (r, m), entries ``start`` to ``start`` + m, of the table's precision.
        draws: the draws of all stretches.
    """
    turns, rows, signs, line = draws
    k, stop = table.shape[2], start + values.shape[1]
    step = max(1, _TURNED // k) * k
    for place in range(start // k * k, stop, step):
        low, high = max(place, start), min(place + step, stop)
        first, last = low // k, -(-high // k)
        part = values[:, low - start : high - start]
        part = torch.nn.functional.pad(part, (low - first * k, last * k - high))
        flips = line[first : last - 1 + k].unfold(0, k, 1)
        signed = part.view(len(part), last - first, k) * flips * signs[first:last, None]
        # Each rotation of a stretch is a window of two copies of it.
        windows = signed.repeat(1, 1, 2).unfold(2, k, 1)
        stretches = torch.arange(last - first, device=table.device)
        turned = windows[:, stretches, k - turns[first:last]]
        if table.shape[1] == 1:
            table[:, 0] += turned.sum(dim=1)
        else:
            table.index_add_(1, rows[first:last] % table.shape[1], turned)
