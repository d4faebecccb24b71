"""Devices, and the time that a kernel's instructions bound on them.

Limits and throughputs are those of the CUDA C++ programming guide by compute capability: results a
cycle and multiprocessor, here instructions of a warp.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import hypot

WARP = 32

PARTITIONS = 4
"""Schedulers of a multiprocessor; each issues an instruction of a warp a cycle and has its own registers."""

LATENCY = 3.8
"""Cycles between instructions of a warp that is alone on its partition: 4.6 and 3.0 in the two kernels of
runs by which the model is calibrated (``benchmarks/gpu.md``).
"""


@dataclass(frozen=True)
class Device:
    """A card.

    Arguments:
        name: a card of the compute capability.
        multiprocessors, clock: of it; GHz.
        shared: bytes of shared memory of a multiprocessor.
        float64: results a cycle and multiprocessor.
        blocks, warps: the most thread blocks and warps of a multiprocessor.
        registers: of a multiprocessor.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    clock: float
    shared: int
    float64: int
    blocks: int = 32
    warps: int = 64
    registers: int = 65_536

    def occupancy(self, registers: int, shared: int, threads: int) -> tuple[int, int]:
        """Thread blocks and warps that a multiprocessor holds at once.

        A warp takes registers in units of 256, from one partition; a thread block takes shared memory
        in units of 128 bytes, 1,024 more than it asks for.
        """
        warps = -(-threads // WARP)
        of_warp = -(-registers * WARP // 256) * 256
        of_block = -(-(shared + 1024) // 128) * 128
        blocks = min(
            self.blocks,
            self.warps // warps,
            PARTITIONS * (self.registers // PARTITIONS // of_warp) // warps,
            self.shared // of_block,
        )
        return blocks, blocks * warps

    def bounds(self, issued: Mapping[str, float], wavefronts: float) -> dict[str, float]:
        """The least nanoseconds that all multiprocessors take together, by what bounds them.

        Arguments:
            issued: instructions of warps by class of :mod:`~benchmarks.static.sass`.
            wavefronts: of shared, global and local memory.
        """
        each = Counter({name: value * WARP for name, value in issued.items()})
        cycles = {
            "issue": sum(issued.values()) / PARTITIONS,
            "integer": each["integer"] / 64,
            "multiply": each["multiply"] / 64,
            "float64": each["float64"] / self.float64,
            "conversion": (each["conversion"] + each["special"]) / 16,
            # The data of shared memory, L1 and shuffles go one way, 128 bytes a cycle.
            "memory": wavefronts + issued.get("warp", 0.0),
        }
        return {name: value / (self.multiprocessors * self.clock) for name, value in cycles.items()}

    def expected(self, bounds: Mapping[str, float], warps: int) -> float:
        """The time that a kernel will take: bounds that are close delay each other.

        The root of the sum of squares of the bounds by issue, float64 and memory, and of the time that
        so few warps leave between their instructions.
        """
        waiting = bounds["issue"] * PARTITIONS * LATENCY / warps
        return hypot(bounds["issue"], bounds["float64"], bounds["memory"], waiting)


DEVICES = {
    "8.0": Device("A100", (8, 0), 108, 1.41, 164 * 1024, 32),
    "9.0": Device("H200", (9, 0), 132, 1.98, 228 * 1024, 64),
    "10.0": Device("B200", (10, 0), 148, 1.965, 228 * 1024, 64),
}
"""A card of each compute capability, with the clock that it reaches."""
