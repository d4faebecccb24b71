"""Options for running claims, with the largest number of replications of a check."""

from __future__ import annotations

from dataclasses import dataclass

from ustat_pg.engines import Cell
from ustat_pg.engines.gradients.cell import engine_of
from ustat_pg.validation import MOST_WORKERS, device_name, integer, one_of

LARGEST_BLOCK = 65_536
"""The most replications in a block, of any cell, on a processor."""


@dataclass(frozen=True)
class Size:
    """The amount of draws.

    Arguments:
        budget: the most replications of one check.
        point_blocks: blocks of every measured point of a figure.
        times: how many times the replications that a check needs are drawn.
        point_most: the most replications of such a point: a figure shows no smaller error.
    """

    budget: int
    point_blocks: float
    times: int = 1
    point_most: int = 2**62


SIZES = {
    "smoke": Size(6_000_000, 0.125),
    "quick": Size(20_000_000, 2.0, point_most=LARGEST_BLOCK // 4),
    "full": Size(500_000_000, 64.0),
    "card": Size(5_000_000_000, 640.0, times=10),
}
"""The sizes of a run; the last one is for a GPU."""


@dataclass(frozen=True)
class Options:
    """The options of a run.

    Arguments:
        size: one of :data:`SIZES`.
        engine: cpu, cuda, reference or autograd; or exact for enumeration only.
        seed: seed of every draw.
        workers: number of threads.
        progress: whether progress is shown if stderr is a terminal.
        device: device of the autograd engine: cpu, cuda or cuda:N.
    """

    size: str = "quick"
    engine: str = "cpu"
    seed: int = 0
    workers: int = 1
    progress: bool = False
    device: str = "cpu"

    def __post_init__(self) -> None:
        one_of("size", self.size, SIZES)
        engine_of(self.engine)
        integer("seed", self.seed, 0)
        integer("workers", self.workers, maximum=MOST_WORKERS)
        device_name(self.device)

    @property
    def simulates(self) -> bool:
        """Whether there is a simulation in addition to the enumeration."""
        return self.engine != "exact"

    @property
    def drawn(self) -> Size:
        """The amount of draws."""
        return SIZES[self.size]


def block_of(cell: Cell, engine: str = "cpu") -> int:
    """The replications in a block of a cell."""
    return cell.device_block if engine == "cuda" else min(cell.block, LARGEST_BLOCK)
