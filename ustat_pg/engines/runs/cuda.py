"""The cuda engine of trajectories: the cpu engine's draws and arithmetic, one run to a thread.

Words, thresholds and starting points are the cpu engine's. An arm, though, is chosen where a word
falls among sums of exponentials, and a device may round those otherwise: a draw is then another arm
with probability 1e-15 or so, and its run takes another path from there on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from ... import rng
from ..base import Array, Replications
from ..device import in_chunks, launch, require_device, upload
from . import scalar as bodies
from .cpu import plan_of
from .trajectory import Trajectory, starts


def run(trajectory: Trajectory, block: Replications) -> Array:
    """θ at the snapshots, one thread of the device to a run."""
    require_device()
    begin = starts(trajectory, block)
    plan = plan_of(trajectory)
    there = upload(plan)
    key = cuda.to_device(rng.cell_key(block.seed, trajectory.name))
    bends = np.zeros((0, 0, 0))
    if trajectory.policy.bends is not None:
        bends = np.moveaxis(trajectory.policy.bends, 0, 2)
    bends = upload(bends)
    out = np.empty((block.count, len(plan.snapshots), trajectory.problem.d))

    def chunk_of_runs(start: int, count: int, scratch: list[Any]) -> None:
        *rest, theta, kept = scratch
        chunk = theta.shape[1]
        room = bodies.Room(*rest)
        padded = np.zeros((trajectory.problem.d, chunk))
        padded[:, :count] = begin[start : start + count].T
        theta.copy_to_device(padded)
        where = (block.first, start, count, key, trajectory.batch_size, there, bends, room)
        launch(bodies.path_kernel, count, *where, theta, kept)
        out[start : start + count] = np.moveaxis(kept.copy_to_host(), -1, 0)[:count]

    in_chunks(block.count, shapes(trajectory, plan), chunk_of_runs)
    return out


def shapes(trajectory: Trajectory, plan: Any) -> dict[str, tuple[tuple[int, ...], Any]]:
    """The fields of :class:`~ustat_pg.engines.runs.scalar.Room`, θ₀ and the snapshots."""
    arms, d, _ = plan.features.shape
    group, reals = trajectory.group_size, np.float64
    shuffled = trajectory.problem.contexts if trajectory.design == "epochs" else 1
    return {
        "theta": ((d,), reals),
        "total": ((d,), reals),
        "centre": ((d,), reals),
        "weights": ((arms,), reals),
        "ends": ((arms,), reals),
        "arms": ((group,), np.int32),
        "rewards": ((group,), reals),
        "order": ((shuffled,), np.int32),
        "along": ((plan.basis.shape[1],), reals),
        "start": ((d,), reals),
        "snapshots": ((len(plan.snapshots), d), reals),
    }
