"""The scores of completions in one matrix, and squared norms.

In a matrix the score of completion i is Σ_t l_it ⊗ r_it over its tokens. Scores are formed a piece at a time,
and are gone when the next arrives. Norms are added up in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ...execution.memory import slices
from ...noise.uses import Use
from .layers import Uses

_STRETCH = 2**9
"""Entries summed in the model's precision before the sum goes on in float64."""


def squares(rows: Tensor) -> Tensor:
    """Squared norms of rows, in float64."""
    count = rows.shape[-1] // _STRETCH
    # All stretches at once: threads that meet after each cost more where others use the cores.
    whole, end = (
        rows[:, : count * _STRETCH].unflatten(1, (count, _STRETCH)),
        rows[:, count * _STRETCH :],
    )
    norms = torch.linalg.vector_norm(whole, dim=2).double()
    return norms.square().sum(dim=1) + end.double().square().sum(dim=1)


def pieces(
    uses: Uses, budget: int, dtype: torch.dtype, scratch: Tensor
) -> Iterator[tuple[int, Tensor]]:
    """The scores of n completions in a matrix, in pieces (n, entries) of ``budget`` bytes.

    With each comes the first entry of the parameter that it holds. A piece may lie in ``scratch``, and
    then holds until the next.
    """
    count, _, columns = uses[0].right.shape
    size = count * columns * dtype.itemsize * min(len(uses), 2)
    for rows in slices(uses[0].rows, budget // size):
        yield rows.start * columns, _formed(uses, rows, dtype, scratch).flatten(1)


def _formed(uses: Uses, rows: slice, dtype: torch.dtype, scratch: Tensor) -> Tensor:
    """Σ_t left[t] ⊗ right[t] in some rows, (b, rows, columns)."""
    total = None
    for use in uses:
        left, right = _left(use), use.right
        height = rows.stop - rows.start
        if left.ndim == 3:
            first = left[..., rows].mT
            if total is None:
                total = _product(first, right, dtype, scratch)
            else:
                total += _product(first, right, dtype)
            continue
        right = right.to(dtype)
        place = left - rows.start + height * torch.arange(len(left), device=left.device)[:, None]
        if total is None:
            total = right.new_zeros(len(left), height, right.shape[-1])
        if height < use.rows:
            inside = (left >= rows.start) & (left < rows.stop)
            place, right = place[inside], right[inside]
        total.view(-1, total.shape[-1]).index_add_(
            0, place.flatten(), right.reshape(-1, right.shape[-1])
        )
    assert total is not None
    return total


def _product(
    first: Tensor, second: Tensor, dtype: torch.dtype, scratch: Tensor | None = None
) -> Tensor:
    """Products of matrices of 16 bits, or more, summed in float32 at least; in ``scratch`` where they fit."""
    narrow = first.is_cuda and first.dtype.itemsize == 2 and dtype == torch.float32
    if narrow and first.dtype == second.dtype:
        return torch.bmm(first, second, out_dtype=dtype)
    out = None
    shape = *first.shape[:2], second.shape[2]
    if scratch is not None and math.prod(shape) <= len(scratch):
        out = scratch[: math.prod(shape)].view(shape)
    return torch.bmm(first.to(dtype), second.to(dtype), out=out)


def _left(use: Use) -> Tensor:
    assert use.left is not None
    return use.left
