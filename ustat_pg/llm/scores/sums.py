"""The remains of the scores of prompts' completions: norms, sums, sketches, and Gram matrices.

Scores arrive parameter by parameter and a few completions at a time, and are gone when the next
arrive. In a matrix the score of completion i is Σ_t l_it ⊗ r_it over its tokens. Norms and weighted sums
are made in one of two ways, whichever takes less time. Either scores are formed, squared and added up, or
they never are:

    ⟨s_i, s_j⟩ = Σ_{t,u} ⟨l_it, l_ju⟩ ⟨r_it, r_ju⟩,    Σ_i w_i s_i = Σ_{i,t} l_it ⊗ w_i r_it.

Norms and inner products are added up in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

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


def by_tokens(uses: Uses, sums: int, others: int = 1) -> bool:
    """Whether products of tokens take less time than scores that are formed.

    Arguments:
        uses: of a matrix.
        sums: how many weighted sums of the scores are wanted.
        others: with how many scores each is multiplied; with itself for its norm.
    """
    count, columns = len(uses[0].right), uses[0].right.shape[-1]
    passes = _PASSES["cuda" if uses[0].right.is_cuda else "cpu"]
    entries = uses[0].rows * columns
    # Of one completion.
    formed = entries * (passes + 2 * (sums + others))
    never = (entries * passes * sums + _STARTS) / count
    for use in uses:
        dense, tokens = _left(use).ndim == 3, use.right.shape[1]
        once = 2 * tokens * (entries if dense else columns)
        formed += once
        never += once * sums
        never += others * tokens**2 * (passes + 2 * (use.rows * dense + columns))
    return never < formed


def pieces(uses: Uses, budget: int, dtype: torch.dtype) -> Iterator[tuple[int, Tensor]]:
    """The scores of n completions in a matrix, in pieces (n, entries) of ``budget`` bytes.

    With each comes the first entry of the parameter that it holds.
    """
    count, columns = len(uses[0].right), uses[0].right.shape[-1]
    size = count * columns * dtype.itemsize * min(len(uses), 2)
    for rows in slices(uses[0].rows, budget // size):
        yield rows.start * columns, _formed(uses, rows, dtype).flatten(1)


def weighted(
    uses: Uses, weights: Tensor, prompts: Sequence[slice], budget: int
) -> Iterator[tuple[int, Tensor]]:
    """Weighted sums of the scores in a matrix, (P, r, entries), in pieces of ``budget`` bytes.

    ``weights`` are (r, n), and ``prompts`` the completions of each of P prompts.
    """
    tokens, columns = uses[0].right.shape[1:]
    each = 2 * len(weights) * columns * weights.dtype.itemsize
    for rows in slices(uses[0].rows, budget // (each * len(prompts))):
        sums: list[Tensor] = []
        for prompt in prompts:
            total: Tensor | None = None
            for some in slices(prompt.stop - prompt.start, budget // (each * tokens)):
                part = slice(prompt.start + some.start, prompt.start + some.stop)
                joined = [_joined(use, part, weights[:, part]) for use in uses]
                made = _formed(joined, rows, weights.dtype)
                total = made if total is None else total.add_(made)
            assert total is not None
            sums.append(total)
        yield rows.start * columns, _stacked(sums).flatten(2)


def inner_products(uses: Uses, gram: bool, budget: int, dtype: torch.dtype) -> Tensor:
    """Squared norms of the scores in a matrix, (n,), or all inner products, (n, n)."""
    count = len(uses[0].right)
    total = torch.zeros([count] * (1 + gram), dtype=torch.float64, device=uses[0].right.device)
    for one, other in product(uses, uses):
        tokens, others = one.right.shape[1], other.right.shape[1] * (count if gram else 1)
        for part in slices(count, budget // (3 * tokens * others * dtype.itemsize)):
            if gram:
                made = _of_pairs(_joined(one, part), _joined(other, slice(None)), dtype)
                made = made.view(part.stop - part.start, tokens, count, -1).transpose(1, 2)
            else:
                made = _of_pairs(_some(one, part), _some(other, part), dtype)
            total[part] += made.sum(dim=-1).sum(dim=-1, dtype=torch.float64)
    return total


def _of_pairs(one: Use, other: Use, dtype: torch.dtype) -> Tensor:
    """⟨l_t, l_u⟩ ⟨r_t, r_u⟩ of the tokens of two uses, (b, t, u)."""
    first, second = _left(one), _left(other)
    if first.ndim == second.ndim == 3:
        lefts = _product(first, second.mT, dtype)
    elif first.ndim == second.ndim:
        lefts = first[:, :, None] == second[:, None, :]
    elif first.ndim == 2:
        lefts = second.gather(2, first[:, None].expand(-1, second.shape[1], -1)).mT
    else:
        lefts = first.gather(2, second[:, None].expand(-1, first.shape[1], -1))
    return _product(one.right, other.right.mT, dtype).mul_(lefts)


def _formed(uses: Uses, rows: slice, dtype: torch.dtype) -> Tensor:
    """Σ_t left[t] ⊗ right[t] in some rows, (b, rows, columns)."""
    total: Tensor | None = None
    for use in uses:
        left, right = _left(use), use.right
        if left.ndim == 3:
            part = _product(left[..., rows].mT, right, dtype)
        else:
            height, right = rows.stop - rows.start, right.to(dtype)
            place = (
                left - rows.start + height * torch.arange(len(left), device=left.device)[:, None]
            )
            if height < use.rows:
                inside = (left >= rows.start) & (left < rows.stop)
                place, right = place[inside], right[inside]
            part = right.new_zeros(len(left) * height, right.shape[-1])
            part.index_add_(0, place.flatten(), right.reshape(-1, right.shape[-1]))
            part = part.view(len(left), height, -1)
        total = part if total is None else total.add_(part)
    assert total is not None
    return total


def _product(first: Tensor, second: Tensor, dtype: torch.dtype) -> Tensor:
    """Products of matrices of 16 bits, or more, summed in float32 at least."""
    narrow = first.is_cuda and first.dtype.itemsize == 2 and dtype == torch.float32
    if narrow and first.dtype == second.dtype:
        return torch.bmm(first, second, out_dtype=dtype)
    return torch.bmm(first.to(dtype), second.to(dtype))


def _joined(use: Use, part: slice, weights: Tensor | None = None) -> Use:
    """The tokens of some completions as those of one, or of r weighted sums of these."""
    left, right = _left(use)[part].flatten(0, 1)[None], use.right[part]
    if weights is None:
        return Use(left, right.flatten(0, 1)[None], use.rows)
    scaled = (right * weights[..., None, None]).flatten(1, 2)
    # A GPU multiplies numbers of 16 bits several times as fast.
    scaled = scaled.to(right.dtype) if right.is_cuda else scaled
    return Use(left.expand(len(weights), *left.shape[1:]), scaled, use.rows)


def _stacked(arrays: list[Tensor]) -> Tensor:
    """Arrays of one shape in one; no copy is made of a single one."""
    return arrays[0][None] if len(arrays) == 1 else torch.stack(arrays)


def _some(use: Use, part: slice) -> Use:
    return Use(_left(use)[part], use.right[part], use.rows)


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
        if weights is not None:
            rows = 1 if at_once else table
            shape = (d,) if rows is None else (rows, sketch.numbers)
            self._held = weights.new_zeros(len(prompts) * len(weights), *shape)

    def take(self, part: slice, start: int, uses: Uses) -> None:
        """Take some completions' scores in a parameter, the entries of which begin at ``start``."""
        if uses[0].left is None:
            self._put_off(part, start, torch.stack([use.right for use in uses]).sum(dim=0))
            return
        sums = 0 if self._weights is None else len(self._weights)
        if not by_tokens(uses, sums, len(self.grams[0]) if self.grams else 1):
            for entry, values in pieces(uses, self._budget, self._dtype):
                self._put_off(part, start + entry, values)
            return
        if self.grams:
            for prompt, gram in zip(self._prompts, self.grams, strict=True):
                own = [_some(use, prompt) for use in uses]
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
