"""Options: how claims are run, and how many replications a check may cost."""

from __future__ import annotations

from dataclasses import dataclass

from ..engines import Cell
from ..engines.base import require_engine
from ..validation import MOST_WORKERS, device_name, integer, one_of

LARGEST_BLOCK = 65_536
"""The most replications in a block, of any cell."""

BUDGETS = {"smoke": 6_000_000, "quick": 20_000_000, "full": 500_000_000}
"""The most replications of one check, by size."""


@dataclass(frozen=True)
class Options:
    """How to run.

    Arguments:
        size: smoke, quick or full: sets the most replications of one check.
        engine: cpu, cuda, reference or autograd; or exact for enumeration alone.
        seed: seed of every draw.
        workers: number of threads.
        progress: whether progress is shown where stderr is a terminal.
        device: device of the autograd engine: cpu, cuda or cuda:N.
    """

    size: str = "quick"
    engine: str = "cpu"
    seed: int = 0
    workers: int = 1
    progress: bool = False
    device: str = "cpu"

    def __post_init__(self) -> None:
        one_of("size", self.size, BUDGETS)
        require_engine(self.engine)
        integer("seed", self.seed, 0)
        integer("workers", self.workers, maximum=MOST_WORKERS)
        device_name(self.device)

    @property
    def simulates(self) -> bool:
        """Whether there is a simulation beside the enumeration."""
        return self.engine != "exact"

    @property
    def budget(self) -> int:
        """The most replications of one check."""
        return BUDGETS[self.size]


def block_of(cell: Cell) -> int:
    """The replications in a block of a cell."""
    return min(cell.block, LARGEST_BLOCK)
