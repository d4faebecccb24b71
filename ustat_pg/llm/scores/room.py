"""Memory for the passes of completions: how many fit at once, beside their sums, and fewer where it fails."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

from ...memory import ChunkWarning, free_memory, out_of_memory
from ...validation import InputError, integer
from .tokens import Batch

__all__ = ["Room", "blocks"]

T = TypeVar("T")

_LEAST = 2**22
"""Numbers of a sum that is not held whole, at least: its norm is off by 0.07%, one standard deviation."""

_CACHED = 2**25
"""Bytes of one layer's scores at a time on a CPU: more would leave its cache without a gain."""


def blocks(room: int, each: int, entry: int, d: int, numbers: int) -> tuple[int, int | None, int]:
    """How many completions fit into memory at once beside their sums.

    Arguments:
        room: bytes.
        each: of a completion's pass.
        entry: of one entry of all sums together.
        d: entries of a sum.
        numbers: of a sketch.

    Returns:
        completions, 0 where none fits; rows of tables of ``numbers`` for each sum, None where sums
        are held whole; bytes of the sums and one completion.

    >>> blocks(100, 10, 4, 15, 8)
    (4, None, 70)
    >>> blocks(10**9, 10, 12, 10**8, 2**23)
    (89933670, 1, 100663306)
    """
    taken, table = entry * d, None
    if taken + each > room and d > _LEAST:
        # An eighth of what is left is enough for sums, and blocks are the larger.
        table = max(1, max((room - each) // 8, entry * _LEAST) // (entry * numbers))
        taken = entry * numbers * table
    return max(room - taken, 0) // each, table, taken + each


class Room:
    """Bytes to hold besides a model, and what completions were found to take of them.

    Arguments:
        device: the model's.
        memory: bytes; None for most of what is free now.
    """

    def __init__(self, device: torch.device, memory: int | None) -> None:
        self.device = device
        self.memory = free_memory(device) if memory is None else integer("memory", memory)
        self.most: int | None = None
        self.found: dict[tuple[int, int], int] = {}
        self._tried = 1

    @property
    def working(self) -> int:
        """Bytes for one layer's scores at a time."""
        share = max(self.memory // 8, 2**16)
        return share if self.device.type == "cuda" else min(share, _CACHED)

    def taken(self, batch: Batch, measured: Callable[[], int]) -> int:
        """Bytes that a completion of a batch takes, of a length that fits or of just this one."""
        length, longest = len(batch.prompt), batch.longest
        for (p, t), bound in self.found.items():
            fits = batch.count * bound <= self.memory - self.working
            if p >= length and t >= longest and fits:
                return bound
        if (length, longest) not in self.found:
            self.found[length, longest] = measured()
        return self.found[length, longest]

    def plan(
        self, batch: Batch, each: int, entry: int, d: int, numbers: int, most: int
    ) -> tuple[int, int | None]:
        """How many completions at once, and rows of the tables for sums that cannot be held whole.

        Arguments:
            batch: the completions.
            each, entry, d, numbers: as for :func:`blocks`.
            most: completions that may be taken at once.
        """
        fit, table, least = blocks(self.memory - self.working, each, entry, d, numbers)
        if not fit:
            raise InputError(
                f"memory is {self.memory} bytes: completions of {batch.longest} tokens after a prompt "
                f"of {len(batch.prompt)} take {least + self.working} at least; raise memory=, score "
                "fewer parameters, or take shorter completions"
            )
        self._tried = min(fit, most, self.most or most)
        return self._tried, table

    def within(self, run: Callable[[], T], d: int) -> T:
        """``run``, again in smaller blocks where memory runs out; ``d`` parameters are scored."""
        while True:
            self._tried = 1
            try:
                return run()
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
                tried = self._tried
                if tried == 1:
                    raise InputError(
                        f"out of memory with one completion of a model with {d} parameters scored: "
                        "take shorter completions, fewer parameters (parameters=, LoRA), or a larger "
                        "machine"
                    ) from None
            # Out here the error no longer keeps the arrays alive that it was raised among.
            self.most = max(tried // 2, 1)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            warnings.warn(
                f"out of memory with {tried} completions at once: going on with {self.most}",
                ChunkWarning,
                stacklevel=3,
            )
