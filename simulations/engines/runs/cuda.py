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
from numpy.typing import ArrayLike

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
from ustat_pg.engines.kinds import GROUP_MEAN, GRPO
from ustat_pg.execution.memory import in_slices
from ustat_pg.sampling import rng
from ustat_pg.validation import Array

from . import scalar
from .cpu import plan_of, rows_of
from .lanes.plan import FAR, FREE, SHARED, SPACED, UNIT
from .trajectory import Trajectory, starts

THREADS = 128
"""The runs of a thread block."""

ROOM = 32, 4, 32
"""The arms, parameters and prompts of an epoch for which every general kernel has room."""


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
        launch.arguments[-1].copy_to_host(out[rows], stream())
        stream().synchronize()

    for _ in in_slices(block.count, _most(shape), "replications", runs):
        pass
    return out


def launch_of(trajectory: Trajectory, block: Replications, begin: Array, whole: int) -> Launch:
    """The launch of a block; the last argument receives θ at the snapshots, (n, S, d).

    Arguments:
        trajectory: the run.
        block: replications.
        begin: θ₀ of each, (n, d).
        whole: the replications of all calls, of which these are a part.
    """
    shape, numbers = _tables(trajectory)
    key = tuple(np.uint32(word) for word in rng.cell_key(block.seed, trajectory.name))
    sizes = shape.arms, shape.d, shape.ordered
    if STEPS.pays(whole * shape.steps):
        kernel = scalar.built_in(shape)
    else:
        kernel = scalar.roomy(shape.staged, *map(max, ROOM, map(power_of_2, sizes)))
    kept = device.empty((block.count, shape.kept, shape.d))
    given = scalar.narrow(shape), block.first, block.count, key, numbers, device.upload(begin), kept
    shared = 8 * shape.rates * shape.staged
    return Launch(kernel, ceil(block.count / THREADS), THREADS, shared, given)


def _most(shape: scalar.Shape) -> int:
    """The runs of one launch: as many as the device has memory for."""
    bytes_of_run = 8 * shape.d * (shape.kept + 1)
    return max(1, int(min(MOST_THREADS, free_bytes() / bytes_of_run)))


@lru_cache(maxsize=32)
def _tables(trajectory: Trajectory) -> tuple[scalar.Shape, Array]:
    """A trajectory's shape, and its numbers on the device."""
    plan = plan_of(trajectory)
    rows, group = rows_of(trajectory, plan), trajectory.group_size
    arms, d, contexts = plan.features.shape
    values, kept = len(plan.rewards), len(plan.snapshots)
    share = 1 / (group - 1) if plan.kind == GRPO else 1 / group
    slope = 1 + share if plan.kind == GRPO else 1.0
    head = plan.constant, share, slope, plan.radius, FAR / max(arms - 1, 1)
    at = np.cumsum([arms * rows.width, arms, (values - 1) * arms, values * arms, arms])
    features, offset, law, rewards, means, ways = np.split(rows.table[:, :contexts], at)
    parts: dict[str, ArrayLike] = {
        "head": head,
        "features": features,
        "offset": offset,
        "law": scalar.WHOLE + (law - 1) / UNIT,
        "rewards": rewards,
        "means": means,
        "ways": ways,
        "logits": rows.offset,
        "chances": scalar.WHOLE + plan.contexts,
        "by_count": plan.by_count,
        "centre": plan.centre,
        "basis": plan.basis,
        "rates": plan.rates / (group * trajectory.batch_size),
        "snapshots": plan.snapshots,
    }
    flat = [np.ravel(part) for part in parts.values()]
    ends = np.cumsum([len(part) for part in flat]).tolist()
    places = dict(zip(parts, [0, *ends], strict=False))
    shape = scalar.Shape(
        arms=arms,
        d=d,
        contexts=contexts,
        values=values,
        width=rows.width,
        group=group,
        batch=trajectory.batch_size,
        steps=trajectory.steps,
        kept=kept,
        kind=plan.kind,
        design=plan.design,
        form=rows.form,
        shared=int(rows.form in (SHARED, SPACED)),
        sure=int(plan.kind in (GRPO, GROUP_MEAN)),
        plain=int(rows.plain),
        rank=0 if plan.theta_set == FREE else plan.basis.shape[1],
        half_arms=power_of_2(arms) // 2,
        half_contexts=power_of_2(contexts) // 2,
        staged=int(8 * places["rates"] <= SHARED_BYTES),
        one=1,
        **{name: places[name] for name in scalar.Shape._fields if name in places},
    )
    return shape, device.upload(np.concatenate(flat).astype(np.float64))
