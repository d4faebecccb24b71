"""The remains of the scores of a prompt's completions: norms, sums, a sketch, and their Gram matrix.

Scores arrive parameter by parameter and a few completions at a time, and are gone when the next
arrive. Norms and inner products are added up in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...noise.sketch import Sketch
from ...noise.uses import Use
from .layers import Uses

Array = NDArray[np.float64]

_STRETCH = 2**9
"""Entries summed in the model's precision before the sum goes on in float64."""

_ROW = 2**26
"""Entries of a row in one product: a GPU's takes no rows that lie 2³¹ entries apart."""


def dot(first: Tensor, second: Tensor) -> Tensor:
    """first secondᵀ in float64, in the arrays' precision over short stretches only."""
    total = torch.zeros(len(first), len(second), dtype=torch.float64, device=first.device)
    for left, right in zip(first.split(_ROW, dim=1), second.split(_ROW, dim=1), strict=True):
        (one, end), (other, other_end) = map(_stretches, (left.contiguous(), right.contiguous()))
        products = torch.bmm(one.transpose(0, 1), other.permute(1, 2, 0))
        total += products.sum(dim=0, dtype=torch.float64) + end.double() @ other_end.double().T
    return total


def squares(rows: Tensor) -> Tensor:
    """Squared norms of rows, in float64."""
    whole, end = _stretches(rows)
    norms = torch.linalg.vector_norm(whole, dim=2).double()
    return norms.square().sum(dim=1) + end.double().square().sum(dim=1)


def _stretches(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (r, m) in stretches (r, m // s, s), and the entries left over.

    All at once: threads that meet after every stretch cost more than the sums where others use the cores.
    """
    count = rows.shape[1] // _STRETCH
    whole = rows[:, : count * _STRETCH].unflatten(1, (count, _STRETCH))
    return whole, rows[:, count * _STRETCH :]


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
    count, columns = len(uses[0].right), uses[0].right.shape[-1]
    size = count * columns * turned[0].right.element_size() * min(len(uses), 2)
    step = max(1, budget // size)
    for start in range(0, uses[0].rows, step):
        rows = slice(start, min(start + step, uses[0].rows))
        yield start * columns, _rows(turned, rows).flatten(1)


def _rows(uses: Uses, rows: slice) -> Tensor:
    """Scores of n completions in some rows of a parameter, (n, rows, columns)."""
    total: Tensor | None = None
    for use in uses:
        left, right = use.left, use.right
        assert left is not None
        if left.ndim == 2:
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


class Sums:
    """Weighted sums of the scores of d parameters, added up over the blocks of one prompt.

    They are held whole where they fit, so that their inner products are exact; where they do not,
    as a sketch of as many numbers as do fit, in ``table`` rows. ``weights`` are those of completions, (r, N).
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
        whole: whether sums were held whole, so that ``products`` are exact.
    """

    squared_norms: Array
    products: Array | None
    sketches: Array | None
    gram: Array | None
    token_proxy: Array
    surprise: Array
    surprise_variance: Array
    whole: bool


def firsts(sizes: Sequence[int]) -> list[int]:
    """Where each parameter begins among all entries."""
    return [0, *np.cumsum(sizes)[:-1].tolist()]
