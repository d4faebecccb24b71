"""The remains of the scores of a prompt's completions: norms, sums, a sketch, and their Gram matrix.

Scores arrive parameter by parameter and a few completions at a time, and are gone when the next
arrive. Norms and inner products are added up in float64.

In a :class:`Sketch` entry p of stretch c goes to place p + t_c of row ρ_c, around the end, with the sign
ε_c η_{c+p}. On a CPU that is one compiled pass over the vectors; on a device a few operations for each
entry, many at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...compiled import body
from .layers import Use, Uses

__all__ = [
    "PromptScores",
    "Sketch",
    "Sums",
    "dot",
    "pieces",
    "squares",
]

Array = NDArray[np.float64]

_CONTRACTION = 2**14
"""Entries summed in the model's precision before the sum goes on in float64."""

_FEW = 32
"""Rows below which a product is made in float64 altogether."""

_SEED = 20_260_101
"""Of the sketches of scores: those of different processes can be compared."""


def dot(first: Tensor, second: Tensor) -> Tensor:
    """first secondᵀ in float64, in the arrays' precision over short stretches only.

    Products with few rows are summed one after the other, and lose digits even in short stretches.
    """
    total = torch.zeros(len(first), len(second), dtype=torch.float64, device=first.device)
    exact = min(len(first), len(second)) < _FEW
    for k in range(0, first.shape[1], _CONTRACTION):
        one, other = first[:, k : k + _CONTRACTION], second[:, k : k + _CONTRACTION]
        if exact:
            total += one.double() @ other.double().T
        else:
            total += (one @ other.T).double()
    return total


def squares(rows: Tensor) -> Tensor:
    """Squared norms of rows, in float64."""
    total = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    for k in range(0, rows.shape[1], _CONTRACTION):
        total += rows[:, k : k + _CONTRACTION].square().sum(dim=1, dtype=torch.float64)
    return total


def pieces(uses: Uses, budget: int) -> Iterator[tuple[int, Tensor]]:
    """The scores of n completions in one parameter, in pieces (n, entries) of ``budget`` bytes.

    With each comes the first entry of the parameter that it holds.
    """
    if all(use.left is None for use in uses):
        yield 0, torch.stack([use.right for use in uses]).sum(dim=0)
        return
    wide = any(use.right.dtype == torch.float64 for use in uses)
    # Left sides, which may be as wide as the vocabulary, are turned piecewise.
    dtype = torch.float64 if wide else torch.float32
    turned = [Use(use.left, use.right.to(dtype), use.rows) for use in uses]
    count, columns = uses[0].count, uses[0].right.shape[-1]
    each = count * columns * turned[0].right.element_size() * min(len(uses), 2)
    step = max(1, budget // each)
    for start in range(0, uses[0].rows, step):
        rows = slice(start, min(start + step, uses[0].rows))
        yield start * columns, _rows(turned, rows).flatten(1)


def _rows(uses: Uses, rows: slice) -> Tensor:
    """Scores of n completions in some rows of a parameter, (n, rows, columns)."""
    total: Tensor | None = None
    for use in uses:
        left, right = use.left, use.right
        assert left is not None
        if use.sparse:
            count, height = len(left), rows.stop - rows.start
            inside = (left >= rows.start) & (left < rows.stop)
            place = torch.arange(count, device=left.device)[:, None] * height + left - rows.start
            part = right.new_zeros(count * height, right.shape[-1])
            part.index_add_(0, place[inside], right[inside])
            part = part.view(count, height, -1)
        else:
            part = torch.bmm(left[..., rows].to(right.dtype).transpose(1, 2), right)
        total = part if total is None else total.add_(part)
    assert total is not None
    return total


class Sketch:
    """CountSketch of vectors of d numbers: k numbers whose inner products are unbiased for theirs.

    The c-th stretch of k entries is turned by a random number of places and added, entry p with the sign
    ε_c η_{c+p}, where a table of hashes would take a random number for each entry. Two entries of
    different stretches share a number with probability 1/k, wherever they stand, and no two of one stretch
    do, so the variance of ⟨Su, Sv⟩ is that of Charikar, Chen and Farach-Colton (2002), at most
    2 ‖u‖² ‖v‖² / k, and the share of one turn in k, at which all η of two stretches meet themselves: as much
    again at most, where vectors hardly change within a stretch. Without the turn a column of a weight matrix
    whose width divides k would fall on one number.
    Vectors that have no more than k numbers are kept whole.

    Arguments:
        d: entries of a vector.
        numbers: k.
        like: a tensor of the precision and on the device of the vectors.
        seed: of the draws; that of all scores unless given.
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
        # Only how stretches lie to one another counts; the first stays, and all of a short vector.
        places[0, 0] = 0
        turns, rows = torch.as_tensor(places, device=like.device)
        signs = torch.as_tensor(bits, dtype=like.dtype, device=like.device)
        self._draws = turns, rows, signs[:stretches], signs[stretches:]

    def add(self, table: Tensor, start: int, values: Tensor) -> None:
        """Add vectors that are ``values`` (r, m) from entry ``start`` on, and else 0.

        ``table`` is (r, M, k): each stretch is added to a random row. The sum over rows is the sketch;
        with M > 1 the table itself is one of M k numbers.
        """
        fold = by_loops if table.device.type == "cpu" else by_windows
        fold(table, values, start, self._draws)


class Sums:
    """Weighted sums of scores, added up over the blocks of one prompt.

    They are held whole where they fit, so that their inner products are exact; where they do not,
    as a sketch of as many numbers as do fit.

    Arguments:
        sketch: their form in the end.
        weights: of completions, (r, N).
        d: parameters.
        table: rows of k numbers that hold each sum; None for the whole.
    """

    def __init__(self, sketch: Sketch, weights: Tensor, d: int, table: int | None) -> None:
        self._sketch, self._weights = sketch, weights
        shape = (d,) if table is None else (table, sketch.numbers)
        self._held = weights.new_zeros(len(weights), *shape)

    def add(self, part: slice, start: int, values: Tensor) -> None:
        """Add some completions' scores, (n, m), from a parameter on."""
        here = self._weights[:, part] @ values
        if self._held.ndim == 2:
            self._held[:, start : start + values.shape[1]] += here
        else:
            self._sketch.add(self._held, start, here)

    def products(self) -> Tensor:
        """Inner products of the sums, (r, r)."""
        flat = self._held.flatten(1)
        return dot(flat, flat)

    def sketched(self, budget: int) -> Tensor:
        """Their sketches, (r, k), made in ``budget`` bytes at a time."""
        if self._held.ndim == 3:
            return self._held.sum(dim=1)
        k = self._sketch.numbers
        table = self._held.new_zeros(len(self._held), 1, k)
        step = k * max(1, budget // (4 * self._held[:, :k].nbytes))
        for start in range(0, self._held.shape[1], step):
            self._sketch.add(table, start, self._held[:, start : start + step])
        return table[:, 0]


@dataclass(frozen=True, eq=False)
class PromptScores:
    """Norms and sums of the scores of N completions of one prompt.

    Attributes:
        squared_norms: ‖s_i‖², (N,).
        products: inner products of the sums Σ_i w_ri s_i, (r, r); None where no weights were given.
        sketches: CountSketches of these sums, (r, k); None where no weights were given.
        gram: ⟨s_i, s_j⟩, (N, N); None where it was not asked for, or not all fitted into one block.
        token_proxy: Σ_t (1 - 2 π_t + Σ_v π_v²) over the completion's tokens, (N,).
        surprise: Σ_t (-log π_t - H_t), H the entropy, (N,).
        surprise_variance: Σ_t Var log π_v, v drawn from the policy, (N,).
        lengths: sampled tokens, (N,).
        passes: blocks that were differentiated; 1 where all completions fit in memory at once.
        whole: whether sums were held whole, so that ``products`` are exact.
    """

    squared_norms: Array
    products: Array | None
    sketches: Array | None
    gram: Array | None
    token_proxy: Array
    surprise: Array
    surprise_variance: Array
    lengths: NDArray[np.int64]
    passes: int
    whole: bool


def firsts(sizes: Sequence[int]) -> list[int]:
    """Where each parameter begins among all entries."""
    return [0, *np.cumsum(sizes)[:-1].tolist()]


Draws = tuple[Tensor, Tensor, Tensor, Tensor]
"""t, ρ and ε, (C,) each, and η, (C + k,), for C stretches."""

_TURNED = 2**20
"""Entries of each vector that are turned at once, few enough for a cache."""


def by_loops(table: Tensor, values: Tensor, start: int, draws: Draws) -> None:
    """Add ``values`` (r, m), from entry ``start`` on, to a table (r, M, k) on a CPU."""
    arrays = (draw.numpy() for draw in draws)
    _loops(table.numpy(), values.detach().contiguous().numpy(), start, *arrays)


@body
def _loops(
    table: Any, values: Any, start: int, turns: Any, rows: Any, signs: Any, line: Any
) -> None:
    height, k = table.shape[1:]
    for i in range(len(values)):
        done = 0
        while done < values.shape[1]:
            c, p = divmod(start + done, k)
            count = min(k - p, values.shape[1] - done)
            out, sign = table[i, rows[c] % height], signs[c]
            # Before the end of the row, and around it.
            first = min(count, max(0, k - turns[c] - p))
            for low, high, around in ((0, first, 0), (first, count, k)):
                entries = values[i, done + low : done + high]
                flips = line[c + p + low : c + p + high]
                to = out[p + low + turns[c] - around :]
                for j in range(high - low):
                    to[j] += sign * flips[j] * entries[j]
            done += count


def by_windows(table: Tensor, values: Tensor, start: int, draws: Draws) -> None:
    """The same on any device, by operations on whole tensors."""
    turns, rows, signs, line = draws
    k, stop = table.shape[2], start + values.shape[1]
    step = max(1, _TURNED // k) * k
    for place in range(start // k * k, stop, step):
        low, high = max(place, start), min(place + step, stop)
        first, last = low // k, -(-high // k)
        piece = values[:, low - start : high - start]
        piece = torch.nn.functional.pad(piece, (low - first * k, last * k - high))
        flips = line[first : last - 1 + k].unfold(0, k, 1)
        signed = piece.view(len(piece), last - first, k) * flips * signs[first:last, None]
        # All turns of a stretch are windows of two copies of it.
        windows = signed.repeat(1, 1, 2).unfold(2, k, 1)
        stretches = torch.arange(last - first, device=table.device)
        turned = windows[:, stretches, k - turns[first:last]]
        table.index_add_(1, rows[first:last] % table.shape[1], turned)
