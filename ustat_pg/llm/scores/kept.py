"""Accumulation of completions' scores over all parameters, as norms and sketches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...noise.sketch import Sketch
from ...validation import Array
from .layers import Uses
from .sums import pieces, squares

_SHORT = 2**16
"""The size below which starting an operation takes longer than the operation."""


class Kept:
    """Squared norms and sketches of the scores of n completions, added up parameter by parameter.

    Arguments:
        count: n.
        sketch: sketch of scores; None for norms only.
        like: a tensor of the precision and on the device of scores.
        budget: bytes of one layer's scores at a time.
    """

    def __init__(self, count: int, sketch: Sketch | None, like: Tensor, budget: int) -> None:
        self._sketch, self._budget, self._dtype = sketch, budget, like.dtype
        # New memory for each piece would be a tenth of all time on a CPU; a GPU's is kept by torch.
        self._scratch = like.new_empty(0 if like.is_cuda else budget // like.dtype.itemsize)
        self.norms = like.new_zeros(count, dtype=torch.float64)
        # A table with one row for each, as for sketches of single vectors.
        self.sketches = like.new_zeros(count, 1, 0 if sketch is None else sketch.numbers)
        self._few = min(_SHORT, budget // (4 * like.dtype.itemsize))
        self._short: list[tuple[int, Tensor]] = []

    def take(self, part: slice, start: int, uses: Uses) -> None:
        """Add some completions' scores in a parameter, whose entries begin at ``start``."""
        if uses[0].left is None:
            self._put_off(part, start, torch.stack([use.right for use in uses]).sum(dim=0))
            return
        for entry, values in pieces(uses, self._budget, self._dtype, self._scratch):
            self._put_off(part, start + entry, values)

    def give(self, part: slice, *given: tuple[int, Tensor]) -> None:
        """Add some completions' scores (n, m), each with the index of its first entry."""
        values = given[0][1] if len(given) == 1 else torch.cat([rows for _, rows in given], dim=1)
        self.norms[part] += squares(values)
        if self._sketch is not None:
            for start, rows in given:
                self._sketch.add(self.sketches[part], start, rows)

    def _put_off(self, part: slice, start: int, values: Tensor) -> None:
        """Add scores; short ones are collected first."""
        if values.numel() > self._few:
            self.give(part, (start, values))
            return
        self._short.append((start, values.clone()))
        if sum(rows.numel() for _, rows in self._short) > self._few:
            self.flush(part)

    def flush(self, part: slice) -> None:
        """Add the collected short scores together."""
        if self._short:
            self.give(part, *self._short)
            self._short = []


@dataclass(frozen=True, eq=False)
class PromptScores:
    """Norms and sketches of the scores of N completions of one prompt.

    Attributes:
        squared_norms: ‖s_i‖², (N,).
        scores: CountSketches of s_i, (N, k), or scores themselves if they have at most k entries.
        token_proxy: Σ_t (1 - 2 π_t + Σ_v π_v²) over the completion's tokens, (N,).
        surprise: Σ_t (-log π_t - H_t), H the entropy, (N,).
        surprise_variance: Σ_t Var log π_v, v drawn from the policy, (N,).
    """

    squared_norms: Array
    scores: NDArray[np.floating]
    token_proxy: Array
    surprise: Array
    surprise_variance: Array
