"""Devices, and the time that a kernel's instructions bound on them.

Limits and throughputs are those of the CUDA C++ programming guide by compute capability: results a
cycle and multiprocessor, here instructions of a warp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

WARP = 32
PARTITIONS = 4
"""Schedulers of a multiprocessor; each issues an instruction of a warp a cycle and has its own registers."""


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

    def cycles(self, issued: Mapping[str, float], wavefronts: float) -> dict[str, float]:
        """Cycles of a multiprocessor that instructions of warps take at least, by what bounds them.

        Arguments:
            issued: instructions of warps by class of :mod:`~benchmarks.static.sass`.
            wavefronts: of shared, global and local memory.
        """
        return {
            "issue": sum(issued.values()) / PARTITIONS,
            "integer": issued.get("integer", 0) * WARP / 64,
            "multiply": issued.get("multiply", 0) * WARP / 64,
            "float64": issued.get("float64", 0) * WARP / self.float64,
            "conversion": (issued.get("conversion", 0) + issued.get("special", 0)) * WARP / 16,
            # The data of shared memory, L1 and shuffles go one way, 128 bytes a cycle.
            "memory": wavefronts + issued.get("warp", 0),
        }

    def nanoseconds(self, cycles: float) -> float:
        """The time of so many cycles of one multiprocessor, shared by all."""
        return cycles / (self.multiprocessors * self.clock)


DEVICES = {
    "8.0": Device("A100", (8, 0), 108, 1.41, 164 * 1024, 32),
    "9.0": Device("H200", (9, 0), 132, 1.755, 228 * 1024, 64),
    "10.0": Device("B200", (10, 0), 148, 1.665, 228 * 1024, 64),
}
"""A card of each compute capability; clocks are the published base of the H200 and boosts of the others."""
