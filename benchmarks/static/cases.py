"""The kernels whose cost is kept, as calls launch them.

What is asked of an engine is asked here alone: a launch, and what the host makes of its results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import mse_kernel, trajectories
from simulations.engines.runs import cuda as runs
from simulations.engines.runs.trajectory import starts
from ustat_pg.engines import Distance, Estimator, GradientCell, Projection, SquaredError
from ustat_pg.engines.base import Replications
from ustat_pg.engines.device import Launch, power_of_2
from ustat_pg.engines.gradients import cuda as gradients
from ustat_pg.problems import random_problem

STEPS = 50
"""Steps of a run: enough that its beginning does not count."""

OUTPUTS, BLOCK, MANY = 2**26, 2**16, 2**40
"""Outputs of a large call, replications of a small one, and those of a cell that has a kernel of its own."""


@dataclass(frozen=True)
class Case:
    """A kernel, as a call launches it.

    Arguments:
        label: what it is called.
        units: outputs or steps of a call.
        launch: makes the call's launch.
        after: the host's work on what the device returned.
        sampled: the thread blocks that are executed.
    """

    label: str
    units: int
    launch: Callable[[], Launch]
    after: Callable[[Launch], Any]
    sampled: int


def gradient(
    label: str, cell: GradientCell, asked: Sequence[Any], count: int, whole: int = 0
) -> Case:
    """A measurement of gradients, in a cell of so many replications."""
    shapes: list[Any] = []

    def launch() -> Launch:
        made, shape = gradients.launch_of(cell, asked, Replications(0, 0, count, whole))
        shapes[:] = [shape]
        return made

    def after(made: Launch) -> Any:
        sums = np.array(made.arguments[-1]).reshape(made.blocks, -1)
        return gradients.merged(sums, count, shapes[0])

    return Case(label, count * cell.outputs, launch, after, 2)


def run(case: trajectories.Case, label: str, count: int, whole: int) -> Case:
    """Whole training runs, as a part of a call of so many."""
    trajectory, block = case.trajectory(STEPS), Replications(0, 0, count)

    def launch() -> Launch:
        return runs.launch_of(trajectory, block, starts(trajectory, block), whole)

    def after(made: Launch) -> Any:
        return np.array(made.arguments[-1])

    return Case(f"runs, {case.label}, {label}", count * STEPS, launch, after, 4)


GRPO = (SquaredError(Estimator("grpo")),)
TEN = (
    *map(SquaredError, map(Estimator, ("grpo", "norm-weighted", "std", "vanilla", "oracle"))),
    *(
        Distance(Estimator("grpo"), Estimator(name))
        for name in ("norm-weighted", "std", "vanilla", "oracle")
    ),
    Projection(Estimator("grpo"), 1),
)


def cases() -> list[Case]:
    """Every kernel of the table."""
    sizes = [*mse_kernel.SIZES, (1000, 200)]
    plain, dense = (random_problem(1, kind) for kind in ("plain", "linear"))
    return [
        *(
            gradient(f"K = {k}, G = {g}", cell, GRPO, OUTPUTS // power_of_2(g), MANY)
            for k, g in sizes
            for cell in [mse_kernel.Case(k, g).cell]
        ),
        gradient("generic, K = 10, G = 16", mse_kernel.Case(10, 16).cell, GRPO, BLOCK),
        gradient("generic, dense, G = 8", GradientCell(dense, 8), GRPO, BLOCK),
        gradient("generic, B = 8, G = 8", GradientCell(plain, 8, 8), GRPO, BLOCK),
        gradient("generic, 10 quantities, G = 8", GradientCell(plain, 8), TEN, BLOCK),
        *(run(case, "built in", 2**14, MANY) for case in trajectories.CASES),
        *(run(case, "roomy", 2**14, 2**14) for case in trajectories.CASES),
    ]
