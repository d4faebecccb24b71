"""The cuda engine of trajectories: the cpu engine's draws and arithmetic, one run to a thread.

Words, thresholds and starting points are the cpu engine's. An arm, though, is chosen where a word
falls among sums of exponentials, and a device may round those otherwise: a draw is then another arm
with probability 1e-15 or so, and its run takes another path from there on.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import ceil

import numpy as np

from ustat_pg.engines import device
from ustat_pg.engines.base import Replications
from ustat_pg.engines.device import (
    MOST_THREADS,
    SHARED_BYTES,
    STEPS,
    Launch,
    free_bytes,
    power_of_2,
    require_device,
    stream,
)
from ustat_pg.execution.memory import in_slices
from ustat_pg.sampling import rng
from ustat_pg.validation import Array

from . import scalar
from .cpu import plan_of
from .lanes.plan import FREE
from .trajectory import Trajectory, starts

THREADS = 128
"""The runs of a thread block."""


def run(trajectory: Trajectory, block: Replications) -> Array:
    """θ at the snapshots, one thread of the device to a run."""
    require_device()
    begin = starts(trajectory, block)
    shape, _ = _tables(trajectory)
    out = np.empty((block.count, shape.kept, shape.d))

    def runs(rows: slice) -> None:
        part = replace(block, first=block.first + rows.start, count=rows.stop - rows.start)
        launch = launch_of(trajectory, part, begin[rows], block.whole)
        launch.run()
        theta = launch.arguments[-1].copy_to_host(stream=stream())
        stream().synchronize()
        out[rows] = np.moveaxis(theta, -1, 0)

    for _ in in_slices(block.count, _most(shape), "replications", runs):
        pass
    return out


def launch_of(trajectory: Trajectory, block: Replications, begin: Array, whole: int) -> Launch:
    """The launch of a block; the last argument receives θ at the snapshots, (S, d, n).

    Arguments:
        trajectory: the run.
        block: replications.
        begin: θ₀ of each, (n, d).
        whole: the replications of all calls, of which these are a part.
    """
    shape, there = _tables(trajectory)
    key = tuple(np.uint32(word) for word in rng.cell_key(block.seed, trajectory.name))
    if STEPS.pays(whole * shape.steps):
        kernel = scalar.built_in(shape)
    else:
        sizes = shape.arms, shape.d, shape.group, shape.contexts, max(shape.rank, 1)
        kernel = scalar.roomy(*map(power_of_2, sizes))
    first = device.upload(np.ascontiguousarray(begin.T))
    kept = device.empty((shape.kept, shape.d, block.count))
    shared = 8 * there.table.size if shape.staged else 0
    given = shape, block.first, block.count, key, there, first, kept
    return Launch(kernel, ceil(block.count / THREADS), THREADS, shared, given)


def _most(shape: scalar.Shape) -> int:
    """The runs of one launch: as many as the device has memory for."""
    bytes_of_run = 8 * shape.d * (shape.kept + 1)
    return max(1, int(min(MOST_THREADS, free_bytes() / bytes_of_run)))


@lru_cache(maxsize=32)
def _tables(trajectory: Trajectory) -> tuple[scalar.Shape, scalar.There]:
    """A trajectory's shape, and its tables on the device."""
    plan, policy = plan_of(trajectory), trajectory.policy
    arms, d, contexts = plan.features.shape
    parts = [plan.features, plan.offset, plan.law, plan.rewards, plan.mean_rewards]
    if policy.bends is not None:
        parts.append(np.moveaxis(policy.bends, 0, 2))
    table = np.concatenate([np.ravel(part).astype(np.float64) for part in parts])
    shape = scalar.Shape(
        arms=arms,
        d=d,
        contexts=contexts,
        values=len(plan.rewards),
        group=trajectory.group_size,
        batch=trajectory.batch_size,
        steps=trajectory.steps,
        kept=len(plan.snapshots),
        kind=plan.kind,
        design=plan.design,
        bent=int(policy.bends is not None),
        rank=0 if plan.theta_set == FREE else plan.basis.shape[1],
        staged=int(8 * table.size <= SHARED_BYTES),
    )
    arrays = plan.contexts, plan.by_count.ravel(), plan.rates, plan.snapshots
    contexts_, by_count, rates, snapshots = map(device.upload, arrays)
    return shape, scalar.There(
        table=device.upload(table),
        contexts=contexts_,
        constant=float(plan.constant),
        by_count=by_count,
        rates=rates,
        snapshots=snapshots,
        centre=device.upload(plan.centre),
        basis=device.upload(plan.basis.ravel()),
        radius=float(plan.radius),
    )
