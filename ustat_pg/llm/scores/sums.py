"""The remains of the scores of completions in one matrix: norms, weighted sums, inner products.

Scores arrive parameter by parameter and a few completions at a time, and are gone when the next
arrive. In a matrix the score of completion i is Σ_t l_it ⊗ r_it over its tokens. Norms and weighted sums
are made in one of two ways, whichever takes less time. Either scores are formed, squared and added up, or
they never are:

    ⟨s_i, s_j⟩ = Σ_{t,u} ⟨l_it, l_ju⟩ ⟨r_it, r_ju⟩,    Σ_i w_i s_i = Σ_{i,t} l_it ⊗ w_i r_it.

At the tokens that all completions share, those of the prompt, a layer reads the same, r_t say, and

    ⟨s_i, s_j⟩ = Σ_t ⟨l_it, Σ_u ⟨r_t, r_ju⟩ l_ju⟩,    Σ_i w_i s_i = Σ_t (Σ_i w_i l_it) ⊗ r_t.

Norms and inner products are added up in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from ...memory import slices
from ...noise.uses import Use
from .layers import Uses

_STRETCH = 2**9
"""Entries summed in the model's precision before the sum goes on in float64."""

_ROW = 2**26
"""Entries of a row in one product: a GPU's takes no rows that lie 2³¹ entries apart."""

_PASSES = {"cpu": 64, "cuda": 1024}
"""Operations of a product of matrices in the time in which a number is written and read twice.

Measured on a CPU; of a GPU by data sheets: 12 bytes at 3 to 5 TB a second, and 10¹⁵ operations in 16 bits.
"""


_STARTS = 2**22
"""Operations of a product of matrices in the time that starting the second way takes longer."""


def dot(first: Tensor, second: Tensor) -> Tensor:
    """first secondᵀ in float64, in the arrays' precision over short stretches only; (..., r, m) each."""
    total = torch.zeros((), dtype=torch.float64, device=first.device)
    for left, right in zip(first.split(_ROW, dim=-1), second.split(_ROW, dim=-1), strict=True):
        (one, end), (other, other_end) = map(_stretches, (left.contiguous(), right.contiguous()))
        products = one.movedim(-2, 0) @ other.movedim(-2, 0).mT
        total = total + products.sum(dim=0, dtype=torch.float64)
        total = total + end.double() @ other_end.double().mT
    return total


def squares(rows: Tensor) -> Tensor:
    """Squared norms of rows, in float64."""
    whole, end = _stretches(rows)
    norms = torch.linalg.vector_norm(whole, dim=2).double()
    return norms.square().sum(dim=1) + end.double().square().sum(dim=1)


def _stretches(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (..., m) in stretches (..., m // s, s), and the entries left over.

    All at once: threads that meet after every stretch cost more than the sums where others use the cores.
    """
    count = rows.shape[-1] // _STRETCH
    whole = rows[..., : count * _STRETCH].unflatten(-1, (count, _STRETCH))
    return whole, rows[..., count * _STRETCH :]


def by_tokens(uses: Uses, sums: int, others: int = 1, in_each: float | None = None) -> bool:
    """Whether products of tokens take less time than scores that are formed.

    Arguments:
        uses: of a matrix.
        sums: how many weighted sums of the scores are wanted.
        others: with how many scores each is multiplied; with itself for its norm.
        in_each: in how many of the sums a completion is; in all unless given.
    """
    count, columns = _count(uses), uses[0].right.shape[-1]
    passes = _PASSES["cuda" if uses[0].right.is_cuda else "cpu"]
    entries, in_each = uses[0].rows * columns, sums if in_each is None else in_each
    # Operations for one completion.
    formed = entries * (passes + 2 * (sums + others))
    never = (entries * passes * sums + _STARTS) / count
    for use in uses:
        dense, tokens = _left(use).ndim == 3, use.right.shape[1]
        once = 2 * tokens * (entries if dense else columns)
        formed += once
        if _shared(use):
            never += once * sums / count
            never += 2 * (tokens + others) * tokens * (use.rows * dense + columns)
        else:
            never += once * in_each
            never += others * tokens**2 * (passes + 2 * (use.rows * dense + columns))
    return never < formed


def pieces(uses: Uses, budget: int, dtype: torch.dtype) -> Iterator[tuple[int, Tensor]]:
    """The scores of n completions in a matrix, in pieces (n, entries) of ``budget`` bytes.

    With each comes the first entry of the parameter that it holds.
    """
    count, columns = _count(uses), uses[0].right.shape[-1]
    size = count * columns * dtype.itemsize * min(len(uses), 2)
    for rows in slices(uses[0].rows, budget // size):
        yield rows.start * columns, _formed(uses, rows, dtype).flatten(1)


def weighted(
    uses: Uses, weights: Tensor, prompts: Sequence[slice], budget: int
) -> Iterator[tuple[int, Tensor]]:
    """Weighted sums of the scores in a matrix, (P, r, entries), in pieces of ``budget`` bytes.

    ``weights`` are (r, n), and ``prompts`` the completions of each of P prompts.
    """
    columns = uses[0].right.shape[-1]
    tokens = max(use.right.shape[1] for use in uses)
    each = 2 * columns * weights.dtype.itemsize
    chosen = [[_chosen(row, prompt) for row in weights] for prompt in prompts]
    for rows in slices(uses[0].rows, budget // (each * len(weights) * len(prompts))):
        sums: list[Tensor] = []
        for one in chosen:
            made = [_weighted(uses, *some, rows, budget // (each * tokens)) for some in one]
            sums.append(stacked(made))
        yield rows.start * columns, stacked(sums).flatten(2)


def _chosen(weights: Tensor, prompt: slice) -> tuple[Tensor, Tensor]:
    """A prompt's completions in a sum, and their weights."""
    # To leave any out a GPU would have to be waited for.
    own = weights[prompt]
    numbers = torch.arange(prompt.start, prompt.stop, device=own.device)
    return (numbers, own) if own.is_cuda else (numbers[own != 0], own[own != 0])


def _weighted(uses: Uses, chosen: Tensor, weights: Tensor, rows: slice, most: float) -> Tensor:
    """Σ_i w_i s_i of the chosen completions in some rows of a matrix, ``most`` completions at a time."""
    total: Tensor | None = None
    for use in uses:
        left, right = _left(use), use.right
        if _shared(use):
            left, right = (
                side
                if len(side) == 1
                else torch.tensordot(weights, side[chosen].to(weights), 1)[None]
                for side in (left, right)
            )
            total = _formed([Use(left, right, use.rows)], rows, weights.dtype, total)
            continue
        within = rows
        if left.ndim == 3:
            # Before they are chosen, which copies.
            left, within = left[..., rows], slice(0, rows.stop - rows.start)
        for some in slices(len(chosen), most):
            scaled = right[chosen[some]] * weights[some, None, None]
            # A GPU multiplies numbers of 16 bits several times as fast.
            scaled = scaled.to(right.dtype) if right.is_cuda else scaled
            part = _joined(Use(left[chosen[some]], scaled, use.rows))
            total = _formed([part], within, weights.dtype, total)
    if total is None:
        return weights.new_zeros(rows.stop - rows.start, uses[0].right.shape[-1])
    return total[0]


def inner_products(uses: Uses, gram: bool, budget: int, dtype: torch.dtype) -> Tensor:
    """Squared norms of the scores in a matrix, (n,), or all inner products, (n, n)."""
    count = _count(uses)
    total = torch.zeros([count] * (1 + gram), dtype=torch.float64, device=uses[0].right.device)
    # Those in which more is shared come first, so that the first of two has it wherever one does.
    ordered = sorted(uses, key=lambda use: not _shared(use))
    for one, other in combinations_with_replacement(ordered, 2):
        if _shared(one) and _side(other, one).ndim == 3:
            made = _through(one, other, gram, budget, dtype)
        else:
            made = _by_pairs(_spread(one, count), _spread(other, count), gram, budget, dtype)
        total += made
        if one is not other:
            total += made.T if gram else made
    return total


def _through(one: Use, other: Use, gram: bool, budget: int, dtype: torch.dtype) -> Tensor:
    """Inner products of a part of the scores, one side of which completions share, with another part."""
    lefts = len(_left(one)) == 1
    own, theirs = _side(one, one).to(dtype), _side(other, one).to(dtype)
    made = []
    for part in slices(len(theirs), budget // (own[0].nbytes or 1)):
        some = some_of(other, part, len(theirs))
        same = (_lefts if lefts else _rights)(one, some, dtype)
        # To each token of one what the other has at tokens, by their likeness on the shared side.
        means = torch.matmul(same, theirs[part])
        if gram:
            made.append(dot(own.flatten(1), means.flatten(1)))
        else:
            made.append((own[part] * means).sum(dim=-1).sum(dim=-1, dtype=torch.float64))
    return torch.cat(made, dim=-1)


def _by_pairs(one: Use, other: Use, gram: bool, budget: int, dtype: torch.dtype) -> Tensor:
    """Inner products of two parts of the scores by the likenesses of all their tokens on both sides."""
    count = len(one.right)
    tokens, others = one.right.shape[1], other.right.shape[1] * (count if gram else 1)
    made = []
    for part in slices(count, budget // (3 * tokens * others * dtype.itemsize)):
        first, second = some_of(one, part, count), some_of(other, part, count)
        if gram:
            first, second = _joined(first), _joined(other)
        both = _rights(first, second, dtype).mul_(_lefts(first, second, dtype))
        if gram:
            both = both.view(part.stop - part.start, tokens, count, -1).transpose(1, 2)
        made.append(both.sum(dim=-1).sum(dim=-1, dtype=torch.float64))
    return torch.cat(made)


def _rights(one: Use, other: Use, dtype: torch.dtype) -> Tensor:
    """⟨r_t, r_u⟩ of the tokens of two uses, (b, t, u)."""
    return _product(one.right, other.right.mT, dtype)


def _lefts(one: Use, other: Use, dtype: torch.dtype) -> Tensor:
    """⟨l_t, l_u⟩ of the tokens of two uses, (b, t, u)."""
    first, second = _left(one), _left(other)
    count = max(len(first), len(second))
    if first.ndim == second.ndim == 3:
        return _product(first, second.mT, dtype)
    if first.ndim == second.ndim:
        return (first[:, :, None] == second[:, None, :]).to(dtype)
    if first.ndim == 2:
        places = first[:, None].expand(count, second.shape[1], -1)
        return second.expand(count, -1, -1).gather(2, places).mT.to(dtype)
    places = second[:, None].expand(count, first.shape[1], -1)
    return first.expand(count, -1, -1).gather(2, places).to(dtype)


def _formed(uses: Uses, rows: slice, dtype: torch.dtype, total: Tensor | None = None) -> Tensor:
    """Σ_t left[t] ⊗ right[t] in some rows, (b, rows, columns), added to a total."""
    for use in uses:
        left, right = _left(use), use.right
        if left.ndim == 3:
            part = _product(left[..., rows].mT, right, dtype)
            total = part if total is None else total.add_(part)
            continue
        height, right = rows.stop - rows.start, right.to(dtype)
        left = left.expand(len(right), -1)
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


def _product(first: Tensor, second: Tensor, dtype: torch.dtype) -> Tensor:
    """Products of matrices of 16 bits, or more, summed in float32 at least; one may stand for many."""
    narrow = first.is_cuda and first.dtype.itemsize == 2 and dtype == torch.float32
    if narrow and first.dtype == second.dtype and len(first) == len(second):
        return torch.bmm(first, second, out_dtype=dtype)
    return torch.matmul(first.to(dtype), second.to(dtype))


def _count(uses: Uses) -> int:
    """The completions of a matrix's uses."""
    return max(max(len(_left(use)), len(use.right)) for use in uses)


def _shared(use: Use) -> bool:
    """Whether completions share what the layer read."""
    return len(_left(use)) != len(use.right)


def _side(use: Use, one: Use) -> Tensor:
    """The side of a use that completions do not share in ``one``."""
    return use.right if len(_left(one)) == 1 else _left(use)


def _spread(use: Use, count: int) -> Use:
    """A use with what is shared in every completion."""
    left = _left(use)
    return Use(
        left.expand(count, *left.shape[1:]), use.right.expand(count, *use.right.shape[1:]), use.rows
    )


def _joined(use: Use) -> Use:
    """The tokens of completions as those of one."""
    return Use(_left(use).flatten(0, 1)[None], use.right.flatten(0, 1)[None], use.rows)


def some_of(use: Use, part: slice, count: int) -> Use:
    """The uses of some of ``count`` completions."""
    left, right = (side if len(side) < count else side[part] for side in (_left(use), use.right))
    return Use(left, right, use.rows)


def stacked(arrays: list[Tensor]) -> Tensor:
    """Arrays of one shape in one; no copy is made of a single one."""
    return arrays[0][None] if len(arrays) == 1 else torch.stack(arrays)


def _left(use: Use) -> Tensor:
    assert use.left is not None
    return use.left
