"""CountSketch, and the metric of Adam's step, in one compiled pass over the vectors, on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..execution.compiled import body


def by_loops(table: Tensor, values: Tensor, start: int, draws: tuple[Tensor, ...]) -> None:
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
            # The entries before the end of the row, then those that wrap around it.
            first = min(count, max(0, k - turns[c] - p))
            for low, high, around in ((0, first, 0), (first, count, k)):
                entries = values[i, done + low : done + high]
                flips = line[c + p + low : c + p + high]
                to = out[p + low + turns[c] - around :]
                for j in range(high - low):
                    to[j] += sign * flips[j] * entries[j]
            done += count


def scaled_by_loops(
    values: Tensor, second: Tensor, step: float, beta2: float, eps: float
) -> Tensor:
    """:func:`~ustat_pg.noise.scaling.scaled_by_tensors` of vectors on a CPU."""
    result = torch.empty_like(values, memory_format=torch.contiguous_format)
    arrays = (each.detach().contiguous().numpy().reshape(-1) for each in (values, second, result))
    _scale(*arrays, np.float32(1 / (1 - beta2**step)), np.float32(eps))
    return result


@body
def _scale(values: Any, second: Any, result: Any, correction: Any, eps: Any) -> None:
    for i in range(len(values)):
        root = np.sqrt(np.sqrt(second[i] * correction) + eps)
        result[i] = values[i] / root if second[i] > 0 else np.float32(0)
