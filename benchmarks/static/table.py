"""What each kernel costs on a device, and the tables and record of it."""

from __future__ import annotations

import argparse
import json
import timeit
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from numba.cuda.cudadrv.error import NvvmSupportError
from numba.cuda.cudadrv.nvvm import NVVM
from tabulate import tabulate

from benchmarks.measuring import machine, show
from benchmarks.static.cases import Case, cases
from benchmarks.static.kernels import compiled, executed, no_card, packed, types_of
from benchmarks.static.model import DEVICES, Device
from benchmarks.static.sass import issued, missing, tool, version, weights

HERE = Path(__file__).parents[1]

RECORD, BEFORE, PAGE = (
    HERE / "data/static.json",
    HERE / "data/static_20a08e27.json",
    HERE / "gpu.md",
)
"""The costs of today, those of commit 20a08e27, and the page that has both."""

Costs = dict[str, dict[str, "Cost"]]
"""By device and kernel."""


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
        expected: the time that the model expects.
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
    expected: float


def host(case: Case) -> float:
    """Processor seconds of a call's preparation, types, arguments and merged sums, when all is compiled."""

    def call() -> None:
        launch = case.launch()
        packed(launch, types_of(launch))
        case.after(launch)

    call()
    return min(timeit.repeat(call, number=5, repeat=3, timer=process_time)) / 5


def cost(case: Case, device: Device) -> Cost:
    """The cost of a kernel."""
    with no_card(device.capability):
        launch = case.launch()
        made = compiled(launch.kernel, types_of(launch), device.capability)
        code = made.machine
        which = np.linspace(0, launch.blocks - 1, case.sampled + 1).astype(int)[:-1]
        done = executed(launch, made.program, which=which)
        prepared = host(case)
    units = case.units * len(which) / launch.blocks / 32
    by_class: dict[str, float] = {}
    if code.blocks:
        by_class = issued(code, weights(code, done.counts, made.program.opcodes))
    each = {name: value / units for name, value in sorted(by_class.items())}
    near = [access for access in done.accesses.values() if access.space == "shared"]
    wavefronts = sum(access.wavefronts for access in done.accesses.values()) / units
    shared = code.shared + launch.shared
    blocks, warps = device.occupancy(code.registers, shared, launch.threads)
    bounds = device.bounds(each, wavefronts)
    bound = max(bounds, key=lambda name: bounds[name])
    return Cost(
        registers=code.registers,
        stack=code.stack,
        spills=code.spill_stores + code.spill_loads,
        shared=shared,
        blocks=blocks,
        warps=warps,
        instructions=code.instructions,
        issued=each,
        conflicts=sum(a.wavefronts for a in near) / max(sum(a.warps for a in near), 1),
        wavefronts=wavefronts,
        numba=made.seconds,
        ptxas=code.seconds,
        host=1e3 * prepared,
        bound=bound,
        ns=bounds[bound] / 32,
        expected=device.expected(bounds, warps) / 32,
    )


def costs_of(name: str) -> dict[str, Cost]:
    """What every kernel costs on a device."""
    return {case.label: cost(case, DEVICES[name]) for case in cases()}


def costs_of_all(names: Sequence[str]) -> list[dict[str, Cost]]:
    """The costs on several devices, each in a process that has compiled nothing yet."""
    if len(names) == 1:
        return [costs_of(*names)]
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        return list(pool.map(costs_of, names))


def code_row(label: str, one: Cost) -> list[str]:
    """A row of CODE."""
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
    """A row of ISSUED."""
    issued = [sum(one.issued.get(name, 0.0) for name in names) for names in SHOWN.values()]
    return [
        label,
        f"{sum(one.issued.values()):,.0f}",
        *(f"{value:,.0f}" for value in issued),
        f"{one.conflicts:.1f}",
        f"{one.wavefronts:,.0f}",
        one.bound,
        f"{one.ns:.4f}",
        f"{one.expected:.4f}",
    ]


ISSUED = [
    "kernel",
    "all",
    *SHOWN,
    "passes an access",
    "passes",
    "bound",
    "ns at its rate",
    "ns expected",
]


FIRST, LAST = "<!-- static -->", "<!-- end -->"
"""Between them stand the tables of the page."""

COMPARED: dict[str, Callable[[Cost], str]] = {
    "registers": lambda one: str(one.registers),
    "stack, spills (B)": lambda one: f"{one.stack}, {one.spills}",
    "warps an SM": lambda one: str(one.warps),
    "instructions": lambda one: f"{one.instructions:,}",
    "issued": lambda one: f"{sum(one.issued.values()):,.0f}",
    "passes": lambda one: f"{one.wavefronts:,.0f}",
    "ns at its rate": lambda one: f"{one.ns:.4f}",
    "ns expected": lambda one: f"{one.expected:.4f}",
    "compiling (s)": lambda one: f"{one.numba + one.ptxas:.1f}",
    "host (ms)": lambda one: f"{one.host:.2f}",
}
"""Columns of the page."""


def main(arguments: Sequence[str]) -> int:
    """The tables of each device.

    Returns 2 where NVVM or ptxas is missing; without nvdisasm nothing is known of issued instructions.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu --static")
    parser.add_argument("--static", action="store_true")
    text = "compute capabilities: 9.0 unless said, all for --record"
    parser.add_argument("--devices", nargs="+", choices=DEVICES, help=text)
    parser.add_argument("--record", action="store_true", help="write the record and the page")
    options = parser.parse_args(arguments)
    try:
        NVVM()
    except NvvmSupportError:
        print(
            "numba finds no NVVM library: install the CUDA toolkit, or name its folder in CUDA_HOME"
        )
        return 2
    lacking = [missing(name) for name in ("ptxas", "nvdisasm") if tool(name) is None]
    print(*lacking, sep="\n", end="\n" * len(lacking))
    if tool("ptxas") is None or (lacking and options.record):
        return 2
    names = options.devices or ([*DEVICES] if options.record else ["9.0"])
    found = dict(zip(names, costs_of_all(names), strict=True))
    for name, costs in found.items():
        device = DEVICES[name]
        notes = [
            f"{machine('numpy', 'numba')}; {version()}.",
            f"{device.name}: {device.multiprocessors} multiprocessors at {device.clock} GHz.",
        ]
        rows = [code_row(label, one) for label, one in costs.items()]
        show(f"Kernels for compute capability {name}", notes, rows, CODE)
        if not lacking:
            rows = [issue_row(label, one) for label, one in costs.items()]
            print(f"\n{tabulate(rows, ISSUED, tablefmt='github', disable_numparse=True)}\n")
    if options.record:
        write(read(RECORD) | found)
    return 0


def read(record: Path) -> Costs:
    """The costs in a file."""
    kept = json.loads(record.read_text(encoding="utf-8"))
    return {
        name: {label: Cost(**one) for label, one in costs.items()} for name, costs in kept.items()
    }


def rounded(value: Any) -> Any:
    """Numbers to four digits."""
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def write(costs: Costs) -> None:
    """Keep costs in the record, and put them on the page."""
    kept = {
        name: {label: rounded(asdict(one)) for label, one in of.items()}
        for name, of in costs.items()
    }
    RECORD.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    start, end = text.index(FIRST) + len(FIRST), text.index(LAST)
    PAGE.write_text(f"{text[:start]}\n\n{compared()}\n\n{text[end:]}", encoding="utf-8")


def compared() -> str:
    """The tables of the page: of each device what kernels cost before, and cost today."""
    before, today = read(BEFORE), read(RECORD)
    tables = []
    for name, costs in today.items():
        rows = []
        for label, one in costs.items():
            old = before.get(name, {}).get(label)
            pairs = [(text(old) if old else "-", text(one)) for text in COMPARED.values()]
            rows.append([label, *(b if a == b else f"{a} → {b}" for a, b in pairs)])
        header = [f"{DEVICES[name].name} ({name})", *COMPARED]
        tables.append(tabulate(rows, header, tablefmt="pipe", disable_numparse=True))
    return "\n\n".join(tables)
