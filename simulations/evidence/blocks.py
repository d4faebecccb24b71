"""Blocks, the units of work: plain data in and out, run by any executor on any machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from threading import local
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from ustat_pg.engines import Cell, MomentSums, Quantity

from ..engines import ON_TORCH


@dataclass(frozen=True)
class Block:
    """Some replications of a cell, or all its outcomes if the engine enumerates."""

    cell: Cell
    quantities: tuple[Quantity, ...]
    engine: str
    seed: int = 0
    first: int = 0
    replications: int = 0
    device: str = "cpu"
    whole: int = 0
    """The replications of the cell that are planned, of which these are a part."""

    @cached_property
    def description(self) -> dict[str, Any]:
        """The computation, as used in the store's key."""
        return {
            # Last digits depend on the device; only this engine has a choice of devices.
            **({"device": self.device} if self.engine in ON_TORCH else {}),
            "kind": "block",
            "cell": self.cell.name,
            "quantities": [quantity.label for quantity in self.quantities],
            "engine": self.engine,
            "seed": self.seed,
            "first": self.first,
            "replications": self.replications,
        }

    @property
    def weight(self) -> float:
        """The approximate amount of work, for progress and forecasts."""
        if self.engine == "exact":
            return self.cell.effort(self.quantities)
        return max(self.replications, 1024) * self.cell.outputs


_THREAD = local()


def _one_thread(engine: str) -> None:
    """Limit this thread's linear algebra to one thread for good, so that sums are equal in every process.

    Some libraries limit the thread that asks, some the process. A limit on the process that
    is lifted after each task would be lifted while another task runs; in the runner's process, the runner
    lifts it.
    """
    if not hasattr(_THREAD, "limit"):
        _THREAD.limit = threadpool_limits(1)
    if engine in ON_TORCH and not hasattr(_THREAD, "torch") and find_spec("torch"):
        # Torch, if loaded after that limit, has its own threads.
        torch = import_module("torch")
        torch.set_num_threads(1)
        _THREAD.torch = torch


def run_task(task: Block) -> MomentSums:
    """Do the work."""
    _one_thread(task.engine)
    return task.cell.on(task.device).measure(
        task.engine,
        task.quantities,
        seed=task.seed,
        first=task.first,
        replications=task.replications,
        whole=task.whole,
    )


def record_of(sums: MomentSums) -> dict[str, Any]:
    """Sums in the form of a store: numbers, lists and names."""
    counts = {label: count.tolist() for label, count in sums.counts.items()}
    return {
        "n": sums.n,
        "mean": sums.mean.tolist(),
        "products": sums.products.tolist(),
        **({"counts": counts} if counts else {}),
    }


def sums_of(result: dict[str, Any]) -> MomentSums:
    """The sums from a store."""
    counts = {label: np.array(count) for label, count in result.get("counts", {}).items()}
    return MomentSums(result["n"], np.array(result["mean"]), np.array(result["products"]), counts)
