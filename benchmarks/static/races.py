"""Accesses to shared memory that no barrier separates: the numbers of a run need not show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.static.arithmetic import Array
from benchmarks.static.program import Line
from benchmarks.static.ptx import WARP, Execution

READ, WRITE, ATOMIC = range(3)


class Races(Execution):
    """A run whose accesses to shared memory are held against its barriers.

    Two threads race if no barrier separates their accesses to a word, one of them writes it, and they neither
    write the same number nor add to it. A barrier of a thread block separates all its threads; one of a
    warp separates those of the warp.

    Attributes:
        racing: the lines of PTX whose accesses race, (n,).
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._seen: list[pd.DataFrame] = []
        super().__init__(*arguments, **options)
        rows = pd.concat(self._seen).drop_duplicates()
        between_warps = _racing(rows, ["word", "of_block"], "warp")
        in_a_warp = _racing(rows, ["word", "of_block", "warp", "of_warp"], "thread")
        self.racing = np.union1d(between_warps, in_a_warp)

    def _run(self) -> None:
        self._of_block, self._of_warp = np.zeros((2, self.n), np.int64)
        super()._run()

    def _met(self, wait: Line, which: Array) -> None:
        if wait.opcode.startswith("bar"):
            self._of_warp[which] += 1
            self._of_block[which] += not wait.opcode.startswith("bar.warp")

    def _record(
        self,
        line: Line,
        space: str,
        threads: Array,
        places: Array,
        size: int,
        values: Sequence[Array],
    ) -> None:
        if space != "shared":
            return
        kind = {"ld": READ, "st": WRITE}.get(line.opcode.partition(".")[0], ATOMIC)
        each = size // len(values)
        for i, value in enumerate(values):
            bits = np.zeros(len(threads), np.uint64)
            if kind == WRITE:
                bits[:] = value[threads].view(f"u{value.dtype.itemsize}")
            given = {"thread": threads, "warp": threads // WARP, "line": line.number, "kind": kind}
            given |= {"of_block": self._of_block[threads], "of_warp": self._of_warp[threads]}
            for word in range(max(each // 4, 1)):
                at = places.astype(np.int64) // 4 + i * each // 4 + word
                self._seen.append(pd.DataFrame(given | {"word": at, "value": bits}))


def _racing(rows: pd.DataFrame, together: list[str], who: str) -> Array:
    """The lines of accesses that race."""
    groups = rows.groupby(together)
    several = groups[who].transform("nunique") > 1
    most, least = groups["kind"].transform("max"), groups["kind"].transform("min")
    equal = (least == WRITE) & (most == WRITE) & (groups["value"].transform("nunique") == 1)
    return np.unique(rows["line"][several & (most > READ) & (least < ATOMIC) & ~equal])
