"""The remains of the scores of completions in all parameters: norms, sums, sketches, Gram matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...noise.sketch import Sketch
from .layers import Uses
from .sums import by_tokens, dot, inner_products, pieces, some_of, squares, stacked, weighted

Array = NDArray[np.float64]

_SHORT = 2**16
"""Numbers below which the start of an operation takes longer than the operation."""


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
                own = [some_of(use, prompt, len(self.norms)) for use in uses]
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
            made = stacked(sums)
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
