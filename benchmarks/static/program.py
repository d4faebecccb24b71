"""PTX, read: a kernel's parameters, registers, memory and basic blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


class Refused(ValueError):
    """PTX that the executor cannot run."""


@dataclass(frozen=True)
class Line:
    """An instruction, with its number in the file.

    Arguments:
        guard: the predicate on which it depends, with ! where that must not hold; may be empty.
    """

    number: int
    guard: str
    opcode: str
    operands: tuple[str, ...]


@dataclass
class Block:
    """A basic block: only its first line may wait for other threads, and only its last jumps."""

    label: str = ""
    lines: list[Line] = field(default_factory=list)


WAITING = ("bar.sync", "barrier.sync", "bar.warp.sync", "shfl.sync", "vote.sync", "match.any.sync")
ENDING = ("bra", "ret", "exit")

_WORD = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")
_REGISTERS = re.compile(r"\.reg \.(\w+)\s+%(\w+?)(<(\d+)>)?;")
_MEMORY = re.compile(r"(?:\.\w+ )*\.(shared|local) \.align (\d+) \.b8\s+(\w+)\[(\d*)\]")


class Program:
    """A kernel.

    Arguments:
        text: a module with one kernel.

    Attributes:
        parameters: their names.
        registers: kind and number by name.
        places: where named memory begins in its space; that which a launch adds is after the rest.
        static_bytes, local_bytes: shared memory of a thread block, and local memory of a thread.
        blocks, labels: basic blocks in their order, and their numbers by label.
    """

    def __init__(self, text: str) -> None:
        head, _, rest = text.partition(".visible .entry")
        if not rest or ".visible .entry" in rest:
            raise Refused("the module must have one kernel")
        given, _, body = rest.partition("{")
        self.parameters = re.findall(r"\.param\s+(?:\.align \d+ )?\.\w+ (\w+)", given)
        self.registers: dict[str, tuple[str, int]] = {}
        self.places: dict[str, int] = {}
        self.static_bytes = self.local_bytes = 0
        self.blocks = [Block()]
        added = [self._declare(line.strip()) for line in head.splitlines()]
        for number, line in enumerate(body.splitlines(), 1 + text[: -len(body)].count("\n")):
            added.append(self._read(number, line.split("//")[0].strip()))
        self.static_bytes = -(-self.static_bytes // 16) * 16
        self.places |= {name: self.static_bytes for name in added if name}
        self.blocks = [block for block in self.blocks if block.lines or block.label]
        self.labels = {block.label: i for i, block in enumerate(self.blocks) if block.label}

    @property
    def opcodes(self) -> dict[int, str]:
        """The opcode of each line."""
        return {line.number: line.opcode for block in self.blocks for line in block.lines}

    def _declare(self, line: str) -> str | None:
        """Take a declaration; returns the name of memory that has no size yet."""
        if made := _REGISTERS.match(line):
            self.registers[made[2]] = made[1], int(made[4] or 1)
        elif made := _MEMORY.match(line):
            space, align, name, size = made[1], int(made[2]), made[3], made[4]
            if not size:
                return name
            total = "static_bytes" if space == "shared" else "local_bytes"
            self.places[name] = -(-getattr(self, total) // align) * align
            setattr(self, total, self.places[name] + int(size))
        return None

    def _read(self, number: int, line: str) -> str | None:
        if not line or line in "{}":
            return None
        if line.startswith("."):
            return self._declare(line)
        if line.endswith(":"):
            self.blocks.append(Block(line[:-1]))
            return None
        guard = ""
        if line.startswith("@"):
            guard, _, line = line[1:].partition(" ")
        opcode, *rest = line.strip().rstrip(";").split(maxsplit=1)
        one = Line(number, guard, opcode, tuple(_WORD.findall("".join(rest))))
        if not line.endswith(";") or (guard and opcode.startswith(WAITING)):
            raise Refused(f"line {number}: {line}")
        if opcode.startswith(WAITING) and self.blocks[-1].lines:
            self.blocks.append(Block())
        self.blocks[-1].lines.append(one)
        if opcode.startswith(ENDING):
            self.blocks.append(Block())
        return None
