"""Accumulation of completions' scores over all parameters, as norms and sketches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...noise.sketch import Sketch
from ...validation import Array
from .layers import Uses
from .metric import Metric
from .sums import pieces, squares

_SHORT = 2**16
"""The size below which starting an operation takes longer than the operation."""


class Sums:
    """Squared norms and sketches of n vectors, added up piece by piece.

    Arguments:
        count: n.
        sketch: sketch of the vectors; None for norms only.
        like: a tensor of their precision and on their device.
    """

    def __init__(self, count: int, sketch: Sketch | None, like: Tensor) -> None:
        self._sketch = sketch
        self.norms = like.new_zeros(count, dtype=torch.float64)
        # A table with one row for each, as for sketches of single vectors.
        self._tables = like.new_zeros(count, 1, 0 if sketch is None else sketch.numbers)

    @property
    def sketches(self) -> Tensor:
        """The sketches, (n, k)."""
        return self._tables[:, 0]

    def add(self, part: slice, given: Sequence[tuple[int, Tensor]]) -> None:
        """Add entries (n, m) of some vectors, each with the index of its first entry."""
        values = given[0][1] if len(given) == 1 else torch.cat([rows for _, rows in given], dim=1)
        self.norms[part] += squares(values)
        if self._sketch is not None:
            for start, rows in given:
                self._sketch.add(self._tables[part], start, rows)


class Scaled:
    """Sums of scores in the metric of a step, apart for coordinates of small v.

    Arguments:
        count, like: as for :class:`Sums`.
        metric: the metric of all scored parameters.
        large, small: sketches of all entries, and of those of small v; None for norms only.
    """

    def __init__(
        self, count: int, metric: Metric, large: Sketch | None, small: Sketch | None, like: Tensor
    ) -> None:
        self._metric = metric
        self.large = Sums(count, large, like)
        self.small, self.capped = (Sums(count, small, like) for _ in range(2))

    def add(self, part: slice, given: Sequence[tuple[int, Tensor]]) -> None:
        """Add some completions' scores (n, m), each with the index of its first entry."""
        metric = self._metric
        self.large.add(
            part,
            [(start, rows * metric.root[start : start + rows.shape[1]]) for start, rows in given],
        )
        for start, rows in given:
            inside = metric.within(start, start + rows.shape[1])
            if inside.start < inside.stop:
                few = rows[:, metric.small[inside] - start]
                self.small.add(part, [(inside.start, few * metric.small_root[inside])])
                self.capped.add(part, [(inside.start, few * metric.capped_root[inside])])

    def results(self, plain: Sums) -> dict[str, Tensor]:
        """Arrays of :class:`PromptScores` in the metric, and the plain sums beside them."""
        large, small, capped = self.large, self.small, self.capped
        return {
            "squared_norms": large.norms + small.norms,
            "scores": torch.cat([large.sketches, small.sketches], dim=1),
            "plain_scores": plain.sketches,
            "capped_scores": capped.sketches,
            "other_norms": torch.stack(
                [plain.norms, large.norms, small.norms, capped.norms], dim=1
            ),
        }


class Kept:
    """Squared norms and sketches of the scores of n completions, added up parameter by parameter.

    Arguments:
        count: n.
        sketch: sketch of scores; None for norms only.
        like: a tensor of the precision and on the device of scores.
        budget: bytes of one layer's scores at a time.
        scaled: sums of the same scores in a metric, if there is one.
    """

    def __init__(
        self,
        count: int,
        sketch: Sketch | None,
        like: Tensor,
        budget: int,
        scaled: Scaled | None = None,
    ) -> None:
        self._budget, self._dtype = budget, like.dtype
        # New memory for each piece would be a tenth of all time on a CPU; a GPU's is kept by torch.
        self._scratch = like.new_empty(0 if like.is_cuda else budget // like.dtype.itemsize)
        self.plain, self.scaled = Sums(count, sketch, like), scaled
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
        self.plain.add(part, given)
        if self.scaled is not None:
            self.scaled.add(part, given)

    def results(self) -> dict[str, Tensor]:
        """Arrays of :class:`PromptScores`, (n, ...)."""
        if self.scaled is not None:
            return self.scaled.results(self.plain)
        return {"squared_norms": self.plain.norms, "scores": self.plain.sketches}

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
        squared_norms: ‖s_i‖², (N,); in the metric of a step, if there is one.
        scores: CountSketches of s_i, (N, k), or scores themselves if they have at most k entries; in a
            metric, of the entries of large v and then of those of small v.
        token_proxy: Σ_t (1 - 2 π_t + Σ_v π_v²) over the completion's tokens, (N,).
        surprise: Σ_t (-log π_t - H_t), H the entropy, (N,).
        surprise_variance: Σ_t Var log π_v, v drawn from the policy, (N,).
        plain_scores: only in a metric, as in :class:`~ustat_pg.llm.pool.scored.ScoredPool`.
        capped_scores: likewise.
        other_norms: likewise.
    """

    squared_norms: Array
    scores: NDArray[np.floating]
    token_proxy: Array
    surprise: Array
    surprise_variance: Array
    plain_scores: NDArray[np.floating] | None = None
    capped_scores: NDArray[np.floating] | None = None
    other_norms: Array | None = None
