"""The cuda engine of trajectories: the cpu engine's draws and arithmetic, one run to a thread.

Words, thresholds and starting points are the cpu engine's. An arm, though, is chosen where a word
falls among sums of exponentials, and a device may round those otherwise: a draw then *flips* to
another arm with probability 1e-15 or so, and its run takes another path from there on.
:func:`flips` counts such runs between any two engines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda

from ... import rng
from ...validation import InputError
from ..base import Array, Replications
from ..device import in_chunks, launch, require_device, upload
from . import scalar as bodies
from .cpu import plan_of
from .trajectory import Trajectory, starts

__all__ = ["Flips", "flips", "run"]

TOLERANCE = 1e-9
"""Two paths that differ by less made the same draws: rounding alone stays far below."""


def run(trajectory: Trajectory, block: Replications) -> Array:
    """θ at the snapshots, one thread of the device to a run.

    Raises:
        InputError: there is no device, or tables and scratch do not fit it.
    """
    require_device()
    begin = starts(trajectory, block)
    plan = plan_of(trajectory)
    there = upload(plan, "the trajectory's tables")
    key = cuda.to_device(rng.cell_key(block.seed, trajectory.name))
    bends = np.zeros((0, 0, 0))
    if trajectory.policy.bends is not None:
        bends = np.moveaxis(trajectory.policy.bends, 0, 2)
    bends = upload(bends, "the bends")
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
    weighted = group if "squared_norms" in trajectory.estimator.record.needs else 1
    shuffled = trajectory.problem.contexts if trajectory.design == "epochs" else 1
    return {
        "theta": ((d,), reals),
        "total": ((d,), reals),
        "centre": ((d,), reals),
        "weights": ((arms,), reals),
        "ends": ((arms,), reals),
        "arms": ((group,), np.int32),
        "rewards": ((group,), reals),
        "norms": ((weighted,), reals),
        "before": ((2 * weighted,), reals),
        "order": ((shuffled,), np.int32),
        "along": ((plan.basis.shape[1],), reals),
        "start": ((d,), reals),
        "snapshots": ((len(plan.snapshots), d), reals),
    }


@dataclass(frozen=True)
class Flips:
    """How two engines' runs of one trajectory compare.

    Arguments:
        runs: number of runs compared.
        draws: number of outputs drawn in all of them.
        diverged: runs whose θ differs by more than the tolerance at some snapshot: at least one of
            their draws flipped.
        apart: the largest difference among the other runs.
    """

    runs: int
    draws: int
    diverged: int
    apart: float

    @property
    def rate(self) -> float:
        """Diverged runs for each draw: the chance of a flip, where runs rarely meet two."""
        return self.diverged / self.draws


def flips(
    trajectory: Trajectory,
    first_engine: str = "cpu",
    second_engine: str = "cuda",
    *,
    seed: int = 0,
    first: int = 0,
    replications: int = 1000,
    tolerance: float = TOLERANCE,
) -> Flips:
    """Count the runs that two engines take along different paths, though their words are the same.

    A flip is seen at the snapshots behind it. Differences are relative to θ where |θ| is above 1.

    Arguments:
        trajectory: what both run.
        first_engine, second_engine: names of trajectory engines.
        seed, first, replications: which runs.
        tolerance: the largest difference of two runs with the same draws.

    Raises:
        InputError: an engine that is unknown or cannot run here; a tolerance that is not positive.

    >>> from ustat_pg.engines import Constant
    >>> from ustat_pg.problems import random_problem
    >>> ask = Trajectory(random_problem(1, "linear"), group_size=4, steps=10, schedule=Constant(0.1))
    >>> found = flips(ask, "reference", "cpu", replications=50)
    >>> found.runs, found.draws, found.diverged, found.rate
    (50, 2000, 0, 0.0)
    """
    if not 0 < tolerance < np.inf:
        raise InputError(f"tolerance is {tolerance!r}: it must be positive and finite")
    one, two = (
        trajectory.run(name, seed=seed, first=first, replications=replications)
        for name in (first_engine, second_engine)
    )
    # Runs without a projection may end at infinity, in both engines alike.
    same = (one == two) | (np.isnan(one) & np.isnan(two))
    with np.errstate(invalid="ignore"):
        off = np.where(same, 0.0, np.abs(one - two) / np.maximum(np.abs(one), 1.0))
    apart = off.max(axis=(1, 2))
    together = apart <= tolerance
    return Flips(
        runs=replications,
        draws=replications * trajectory.steps * trajectory.batch_size * trajectory.group_size,
        diverged=int((~together).sum()),
        apart=float(apart[together].max(initial=0.0)),
    )
