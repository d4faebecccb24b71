"""The kernels whose cost is kept, and the table and record of it."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numba.cuda.cudadrv.error import NvvmSupportError
from numba.cuda.cudadrv.nvvm import NVVM

from benchmarks import mse_kernel, trajectories
from benchmarks.measuring import clock, machine, show
from benchmarks.static.kernels import compiled, executed, no_card, packed, types_of
from benchmarks.static.model import DEVICES, Device
from benchmarks.static.ptx import Program
from benchmarks.static.sass import assembled, issued, missing, tool, version, weights
from simulations.engines.runs import cuda as runs
from simulations.engines.runs.trajectory import starts
from ustat_pg.engines import Distance, Estimator, GradientCell, Projection, SquaredError
from ustat_pg.engines.base import Replications
from ustat_pg.engines.device import Launch, power_of_2
from ustat_pg.engines.gradients import cuda as gradients
from ustat_pg.problems import random_problem

RECORD = Path(__file__).parents[1] / "data" / "static.json"

STEPS = 100
"""Steps of a run: enough that its beginning does not count."""

OUTPUTS, BLOCK = 2**26, 2**16
"""Outputs of a call from which on kernels are built in, and replications of a block of ``verify``."""


@dataclass(frozen=True)
class Case:
    """A kernel, as a call launches it.

    Arguments:
        label: what it is called.
        unit: output or step.
        units: those of a call.
        launch: makes the call's launch.
        after: the host's work on what the device returned.
        sampled: the thread blocks that are executed.
    """

    label: str
    unit: str
    units: int
    launch: Callable[[], Launch]
    after: Callable[[Launch], Any]
    sampled: int


def gradient(
    label: str, cell: GradientCell, asked: Sequence[Any], count: int, sampled: int
) -> Case:
    """A measurement of gradients."""
    shapes: list[Any] = []

    def launch() -> Launch:
        made, shape = gradients.launch_of(cell, asked, Replications(0, 0, count))
        shapes[:] = [shape]
        return made

    def after(made: Launch) -> Any:
        sums = np.array(made.arguments[-1]).reshape(made.blocks, -1)
        return gradients.merged(sums, count, shapes[0])

    return Case(label, "output", count * cell.outputs, launch, after, sampled)


def run(case: trajectories.Case, label: str, count: int, whole: int) -> Case:
    """Whole training runs, as a part of a call of so many."""
    trajectory, block = case.trajectory(STEPS), Replications(0, 0, count)

    def launch() -> Launch:
        return runs.launch_of(trajectory, block, starts(trajectory, block), whole)

    def after(made: Launch) -> Any:
        return np.moveaxis(np.array(made.arguments[-1]), -1, 0)

    return Case(f"runs, {case.label}, {label}", "step", count * STEPS, launch, after, 4)


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
            gradient(
                f"K = {k}, G = {g}", mse_kernel.Case(k, g).cell, GRPO, OUTPUTS // power_of_2(g), 2
            )
            for k, g in sizes
        ),
        gradient("generic, K = 10, G = 16", mse_kernel.Case(10, 16).cell, GRPO, BLOCK, 2),
        gradient("generic, dense, G = 8", GradientCell(dense, 8), GRPO, BLOCK, 2),
        gradient("generic, B = 8, G = 8", GradientCell(plain, 8, 8), GRPO, BLOCK, 2),
        gradient("generic, 10 quantities, G = 8", GradientCell(plain, 8), TEN, BLOCK, 2),
        *(run(case, "built in", 2**14, 2**22) for case in trajectories.CASES),
        *(run(case, "roomy", 2**14, 2**14) for case in trajectories.CASES),
    ]


@dataclass(frozen=True)
class Cost:
    """What a kernel costs on a device.

    Arguments:
        registers, stack, spills, shared: a thread's registers, its bytes of local memory and of spilled
            registers, and a thread block's bytes of shared memory.
        blocks, warps: those of a multiprocessor.
        instructions: in the machine code.
        issued: instructions of a thread an output or step, by class.
        conflicts: wavefronts of a warp's access to shared memory.
        wavefronts: those of all memory, of a warp's 32 outputs or steps.
        numba, ptxas: processor seconds that compiling takes.
        host: milliseconds of a call, but for the launch.
        bound, ns: what bounds the time an output or step most, and that time.
    """

    registers: int
    stack: int
    spills: int
    shared: int
    blocks: int
    warps: int
    instructions: int
    issued: dict[str, float]
    conflicts: float
    wavefronts: float
    numba: float
    ptxas: float
    host: float
    bound: str
    ns: float


def host(case: Case) -> float:
    """Seconds of a call's preparation, types, arguments and merged sums, when all is compiled."""

    def call() -> None:
        launch = case.launch()
        packed(launch, types_of(launch))
        case.after(launch)

    return min(clock(call, 2e-2) for _ in range(5))


def cost(case: Case, device: Device) -> Cost:
    """The cost of a kernel."""
    with no_card(device.capability):
        launch = case.launch()
        start = time.process_time()
        text = compiled(launch, device.capability)
        seconds = time.process_time() - start
        code = assembled(text, device.capability, launch.kernel.targetoptions.get("max_registers"))
        program = Program(text)
        which = np.linspace(0, launch.blocks - 1, case.sampled + 1).astype(int)[:-1]
        done = executed(launch, program, which=which)
        prepared = host(case)
    units = case.units * len(which) / launch.blocks / 32
    opcodes = {line.number: line.opcode for block in program.blocks for line in block.lines}
    by_class: Counter[str] = Counter()
    if code.blocks:
        by_class = issued(code, weights(code, done.counts, opcodes))
    each = {name: value / units for name, value in sorted(by_class.items())}
    memory = [access for access in done.accesses.values() if access.space == "shared"]
    wavefronts = sum(access.wavefronts for access in done.accesses.values()) / units
    shared = code.shared + launch.shared
    blocks, warps = device.occupancy(code.registers, shared, launch.threads)
    cycles = device.cycles(each, wavefronts)
    bound = max(cycles, key=lambda name: cycles[name])
    return Cost(
        registers=code.registers,
        stack=code.stack,
        spills=code.spill_stores + code.spill_loads,
        shared=shared,
        blocks=blocks,
        warps=warps,
        instructions=code.instructions,
        issued=each,
        conflicts=sum(a.wavefronts for a in memory) / max(sum(a.warps for a in memory), 1),
        wavefronts=wavefronts,
        numba=seconds,
        ptxas=code.seconds,
        host=1e3 * prepared,
        bound=bound,
        ns=device.nanoseconds(cycles[bound] / 32),
    )


def code_row(label: str, one: Cost) -> list[str]:
    return [
        label,
        str(one.registers),
        f"{one.stack}, {one.spills}",
        f"{one.shared / 1024:.1f}",
        f"{one.blocks}, {one.warps}",
        f"{one.instructions:,}",
        f"{one.numba:.1f}, {one.ptxas:.1f}",
        f"{one.host:.2f}",
    ]


CODE = [
    *("kernel", "registers", "stack, spills (B)", "shared (KiB)", "blocks, warps an SM"),
    *("instructions", "numba, ptxas (s)", "host (ms a call)"),
]

SHOWN = {
    **{name: (name,) for name in ("integer", "multiply", "float64")},
    "conversion": ("conversion", "special"),
    "shared": ("shared",),
    "global, local": ("global", "local"),
    "warp": ("warp", "barrier"),
    "branch": ("branch",),
    "other": ("other",),
}
"""Columns of classes: shuffles, votes and barriers are of the warp."""


def issue_row(label: str, one: Cost) -> list[str]:
    issued = [sum(one.issued.get(name, 0.0) for name in names) for names in SHOWN.values()]
    return [
        label,
        f"{sum(one.issued.values()):,.0f}",
        *(f"{value:,.0f}" for value in issued),
        f"{one.conflicts:.1f}",
        f"{one.wavefronts:,.0f}",
        one.bound,
        f"{one.ns:.4f}",
    ]


ISSUED = ["kernel", "all", *SHOWN, "passes an access", "passes", "bound", "ns at issue rate"]


def main(arguments: Sequence[str]) -> int:
    """The table of each device; exits with 2 where a tool is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu --static")
    parser.add_argument("--static", action="store_true")
    parser.add_argument("--devices", nargs="+", choices=DEVICES, default=["9.0"])
    parser.add_argument("--record", action="store_true", help="write benchmarks/data/static.json")
    options = parser.parse_args(arguments)
    try:
        lacking = [missing(name) for name in ("ptxas", "nvdisasm") if tool(name) is None]
        NVVM()
    except NvvmSupportError as error:
        lacking = [
            f"numba finds no NVVM library ({error}): install the CUDA toolkit or nvidia-nvvm"
        ]
    if lacking:
        print("\n".join(lacking))
        return 2
    found = {}
    for name in options.devices:
        device = DEVICES[name]
        costs = found[name] = {case.label: cost(case, device) for case in cases()}
        notes = [
            f"{machine('numpy', 'numba')}; {version()}.",
            f"{device.name}: {device.multiprocessors} multiprocessors at {device.clock} GHz.",
        ]
        rows = [code_row(label, one) for label, one in costs.items()]
        show(f"Kernels for compute capability {name}", notes, rows, CODE)
        rows = [issue_row(label, one) for label, one in costs.items()]
        show("Instructions of a thread an output or step", [], rows, ISSUED)
    if options.record:
        kept = {
            name: {label: asdict(one) for label, one in costs.items()}
            for name, costs in found.items()
        }
        RECORD.write_text(json.dumps(kept, indent=1) + "\n")
    return 0
