"""Stretches of vectors turned and added: the arithmetic of :class:`~ustat_pg.llm.scores.sums.Sketch`.

Entry p of stretch c goes to place p + t_c of row ρ_c, around the end, with the sign ε_c η_{c+p}. On a CPU
that is one compiled pass over the vectors; on a device a few operations for each entry, many at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...compiled import body

__all__ = ["Draws", "by_loops", "by_windows"]

Draws = tuple[Tensor, Tensor, Tensor, Tensor]
"""t, ρ and ε, (C,) each, and η, (C + k,), for C stretches."""

_TURNED = 2**20
"""Entries of each vector that are turned at once, few enough for a cache."""


def by_loops(table: Tensor, values: Tensor, start: int, draws: Draws) -> None:
    """Add vectors on a CPU.

    Arguments:
        table: (r, M, k).
        values: (r, m), entries ``start`` to ``start`` + m, of the same precision.
        draws: of all stretches.
    """
    arrays = (each.numpy() for each in draws)
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
            # What comes before the end of the row, and what goes around it.
            first = min(count, max(0, k - turns[c] - p))
            for low, high, around in ((0, first, 0), (first, count, k)):
                own = values[i, done + low : done + high]
                flips = line[c + p + low : c + p + high]
                to = out[p + low + turns[c] - around :]
                for j in range(high - low):
                    to[j] += sign * flips[j] * own[j]
            done += count


def by_windows(table: Tensor, values: Tensor, start: int, draws: Draws) -> None:
    """The same on any device, by operations on whole tensors."""
    turns, rows, signs, line = draws
    k, stop = table.shape[2], start + values.shape[1]
    step = max(1, _TURNED // k) * k
    for place in range(start // k * k, stop, step):
        low, high = max(place, start), min(place + step, stop)
        first, last = low // k, -(-high // k)
        own = values[:, low - start : high - start]
        own = torch.nn.functional.pad(own, (low - first * k, last * k - high))
        flips = line[first : last - 1 + k].unfold(0, k, 1)
        signed = own.view(len(own), last - first, k) * flips * signs[first:last, None]
        # All turns of a stretch are windows of two copies of it.
        windows = signed.repeat(1, 1, 2).unfold(2, k, 1)
        stretches = torch.arange(last - first, device=table.device)
        turned = windows[:, stretches, k - turns[first:last]]
        table.index_add_(1, rows[first:last] % table.shape[1], turned)
