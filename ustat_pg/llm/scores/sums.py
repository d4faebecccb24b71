"""The remains of the scores of prompts' completions: norms, sums, sketches, and Gram matrices.

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
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...memory import slices
from ...noise.sketch import Sketch
from ...noise.uses import Use
from .layers import Uses

Array = NDArray[np.float64]

_STRETCH = 2**9
"""Entries summed in the model's precision before the sum goes on in float64."""

_ROW = 2**26
"""Entries of a row in one product: a GPU's takes no rows that lie 2³¹ entries apart."""

_SHORT = 2**16
"""Numbers below which the start of an operation takes longer than the operation."""

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


# One matrix.


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
    # Of one completion.
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
            sums.append(_stacked(made))
        yield rows.start * columns, _stacked(sums).flatten(2)


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
        some = _some(other, part, len(theirs))
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
        first, second = _some(one, part, count), _some(other, part, count)
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
    """Of a use, the side that completions do not share in ``one``."""
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


def _some(use: Use, part: slice, count: int) -> Use:
    """The uses of some of ``count`` completions."""
    left, right = (side if len(side) < count else side[part] for side in (_left(use), use.right))
    return Use(left, right, use.rows)


def _stacked(arrays: list[Tensor]) -> Tensor:
    """Arrays of one shape in one; no copy is made of a single one."""
    return arrays[0][None] if len(arrays) == 1 else torch.stack(arrays)


def _left(use: Use) -> Tensor:
    assert use.left is not None
    return use.left


# All parameters.


class Kept:
    """Norms and weighted sums of the scores of d parameters, added up parameter by parameter.

    Completions of several prompts may come at once. Where all do, a parameter's sums are final at once: they
    are multiplied, sketched and dropped. Else sums are held until the last block, whole where they fit, so
    that their inner products are exact; where they do not, as sketches of as many numbers as do fit, in
    ``table`` rows.

    Arguments:
        prompts: the completions of each of P prompts, of n in all.
        weights: those of completions, (r, n), or None for norms alone.
        sketch: of vectors of d numbers.
        like: a tensor of the precision and on the device of scores.
        budget: bytes of one layer's scores at a time.
        at_once: whether all completions come in one block.
        table: rows for sketches of sums that are held, or None where they are held whole.
        gram: whether to make the prompts' Gram matrices too.
    """

    def __init__(
        self,
        prompts: Sequence[slice],
        weights: Tensor | None,
        sketch: Sketch,
        d: int,
        like: Tensor,
        budget: int,
        *,
        at_once: bool = True,
        table: int | None = None,
        gram: bool = False,
    ) -> None:
        self._prompts, self._weights, self._sketch = prompts, weights, sketch
        self._budget, self._dtype, self._at_once = budget, like.dtype, at_once
        sizes = [prompt.stop - prompt.start for prompt in prompts]
        self.norms = like.new_zeros(sum(sizes), dtype=torch.float64)
        self.grams = [self.norms.new_zeros(n, n) for n in sizes] if gram else []
        self._few = min(_SHORT, budget // (4 * like.dtype.itemsize))
        self._short: list[tuple[int, Tensor]] = []
        self._final: list[Tensor] = []
        self._products: Tensor | float = 0.0
        self._sums, self._in_each = 0, 0.0
        if weights is not None:
            self._sums = len(weights)
            self._in_each = float((weights != 0).sum()) / weights.shape[1]
            rows = 1 if at_once else table
            shape = (d,) if rows is None else (rows, sketch.numbers)
            self._held = weights.new_zeros(len(prompts) * len(weights), *shape)

    def take(self, part: slice, start: int, uses: Uses) -> None:
        """Take some completions' scores in a parameter, the entries of which begin at ``start``."""
        if uses[0].left is None:
            self._put_off(part, start, torch.stack([use.right for use in uses]).sum(dim=0))
            return
        others = len(self.grams[0]) if self.grams else 1
        if not by_tokens(uses, self._sums, others, self._in_each):
            for entry, values in pieces(uses, self._budget, self._dtype):
                self._put_off(part, start + entry, values)
            return
        if self.grams:
            for prompt, gram in zip(self._prompts, self.grams, strict=True):
                own = [_some(use, prompt, len(self.norms)) for use in uses]
                gram += inner_products(own, True, self._budget, self._dtype)
        else:
            self.norms[part] += inner_products(uses, False, self._budget, self._dtype)
        if self._weights is not None:
            inside = self._inside(part)
            for entry, made in weighted(uses, self._weights[:, part], inside, self._budget):
                self._add([start + entry], made)

    def give(self, part: slice, *given: tuple[int, Tensor]) -> None:
        """Add some completions' scores (n, m), each with the entry where it begins."""
        values = given[0][1] if len(given) == 1 else torch.cat([rows for _, rows in given], dim=1)
        if self.grams:
            for prompt, gram in zip(self._prompts, self.grams, strict=True):
                gram += dot(values[prompt], values[prompt])
        else:
            self.norms[part] += squares(values)
        if self._weights is not None:
            weights = self._weights[:, part]
            sums = [weights[:, prompt] @ values[prompt] for prompt in self._inside(part)]
            made = _stacked(sums)
            self._add([start for start, _ in given], made, [rows.shape[1] for _, rows in given])

    def _put_off(self, part: slice, start: int, values: Tensor) -> None:
        """Add scores, short ones together with others."""
        if values.numel() > self._few:
            self.give(part, (start, values))
            return
        self._short.append((start, values))
        if sum(rows.numel() for _, rows in self._short) > self._few:
            self.flush(part)

    def flush(self, part: slice) -> None:
        """Add short scores, which were put off to be added together."""
        if self._short:
            self.give(part, *self._short)
            self._short = []

    def _inside(self, part: slice) -> Sequence[slice]:
        """The prompts' completions among some: all, or a block of one prompt's."""
        return self._prompts if self._at_once else [slice(0, part.stop - part.start)]

    def _add(self, starts: list[int], sums: Tensor, sizes: list[int] | None = None) -> None:
        """Add sums, (P, r, m), which are final where all completions come at once."""
        if self._at_once and not self.grams:
            self._final.append(sums)
            if sum(made.numel() for made in self._final) > self._few:
                self._multiply()
        flat = sums.flatten(0, 1)
        for start, piece in zip(starts, flat.split(sizes or [flat.shape[1]], dim=1), strict=True):
            if self._held.ndim == 2:
                self._held[:, start : start + piece.shape[1]] += piece
            else:
                self._sketch.add(self._held, start, piece)

    def _multiply(self) -> None:
        if self._final:
            made = self._final[0] if len(self._final) == 1 else torch.cat(self._final, dim=2)
            self._products, self._final = self._products + dot(made, made), []

    def products(self) -> list[Tensor]:
        """Inner products of each prompt's sums, (r, r), exact unless these were held as sketches."""
        assert self._weights is not None
        if self.grams:
            wide = [self._weights[:, prompt].double() for prompt in self._prompts]
            return [w @ gram @ w.T for w, gram in zip(wide, self.grams, strict=True)]
        if self._at_once:
            self._multiply()
            assert isinstance(self._products, Tensor)
            return list(self._products)
        flat = self._held.flatten(1)
        return [dot(flat, flat)]

    def sketches(self) -> list[Tensor]:
        """Sketches of each prompt's sums, (r, k)."""
        k = self._sketch.numbers
        if self._held.ndim == 3:
            table = self._held
        else:
            table = self._held.new_zeros(len(self._held), 1, k)
            step = k * max(1, self._budget // (4 * self._held[:, :k].nbytes))
            for start in range(0, self._held.shape[1], step):
                self._sketch.add(table, start, self._held[:, start : start + step])
        return list(table.sum(dim=1).double().unflatten(0, (len(self._prompts), -1)))


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
