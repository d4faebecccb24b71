"""Machine code: what ptxas makes of PTX, and how often warps issue each of its instructions."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

PACKAGES = {"ptxas": "nvidia-cuda-nvcc", "nvdisasm": "nvidia-cuda-nvdisasm"}
"""The package of the Python registry that has each tool."""


def tool(name: str) -> str | None:
    """A program of the CUDA toolkit: on PATH, in CUDA_HOME, or in its package."""
    folders = [os.environ.get("PATH", ""), str(Path(os.environ.get("CUDA_HOME", ".")) / "bin")]
    folders += [str(f) for place in sys.path for f in Path(place or ".").glob("nvidia/*/bin")]
    return shutil.which(name, path=os.pathsep.join(folders))


def missing(name: str) -> str:
    """What to do where a tool is not found."""
    return (
        f"{name} is not on PATH, in CUDA_HOME/bin or in site-packages/nvidia/*/bin: "
        f"pip install {PACKAGES[name]}, or install the CUDA toolkit"
    )


def version() -> str:
    """The release of ptxas."""
    said = subprocess.run([tool("ptxas") or "ptxas", "--version"], capture_output=True, text=True)
    return " ".join(["ptxas", *re.findall(r"V([\d.]+)", said.stdout)])


@dataclass(frozen=True)
class Machine:
    """A kernel's machine code.

    Arguments:
        registers, stack: of a thread; bytes of local memory.
        spill_stores, spill_loads: bytes of registers that ptxas moved to local memory.
        shared: bytes of shared memory of fixed size.
        instructions: those in the file, 16 bytes each.
    seconds: ptxas's processor time.
        blocks: basic blocks of (line of PTX, instruction); none without nvdisasm.
    """

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared: int
    instructions: int
    seconds: float
    blocks: tuple[tuple[tuple[int, str], ...], ...]


def text_bytes(cubin: bytes) -> int:
    """The size of a cubin's code, from its ELF sections."""
    start, size, count, names = (
        *struct.unpack_from("<Q", cubin, 0x28),
        *struct.unpack_from("<3H", cubin, 0x3A),
    )
    sections = [struct.unpack_from("<2I4Q", cubin, start + i * size) for i in range(count)]
    at = sections[names][4]
    return sum(one[5] for one in sections if cubin[at + one[0] :].startswith(b".text."))


def assembled(ptx: str, capability: tuple[int, int], most_registers: int | None = None) -> Machine:
    """PTX by ptxas, read by nvdisasm.

    Raises:
        RuntimeError: there is no ptxas, or it refuses.
    """
    program = tool("ptxas")
    if program is None:
        raise RuntimeError(missing("ptxas"))
    arch = f"-arch=sm_{capability[0]}{capability[1]}"
    with TemporaryDirectory() as folder:
        source, made = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx)
        most = [f"-maxrregcount={most_registers}"] if most_registers else []
        # A table of lines changes no instruction.
        words = [program, arch, "-O3", "-v", "--generate-line-info", *most, str(source), "-o"]
        start = os.times()
        done = subprocess.run([*words, str(made)], capture_output=True, text=True)
        seconds = os.times().children_user - start.children_user
        if done.returncode:
            raise RuntimeError(f"ptxas: {done.stderr.strip()[:500]}")
        size = text_bytes(made.read_bytes())
        listing = ""
        if reader := tool("nvdisasm"):
            words = [reader, "-gp", "-c", str(made)]
            listing = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    said = {
        name: int(found[1]) if (found := re.search(pattern, done.stderr)) else 0
        for name, pattern in {
            "registers": r"Used (\d+) registers",
            "stack": r"(\d+) bytes stack frame",
            "spill_stores": r"(\d+) bytes spill stores",
            "spill_loads": r"(\d+) bytes spill loads",
            "shared": r"(\d+) bytes smem",
        }.items()
    }
    return Machine(**said, instructions=size // 16, seconds=seconds, blocks=blocks_of(listing))


_LINE = re.compile(r'//## File "[^"]*", line (\d+)')
_INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;")
_ENDS = re.compile(r"(@!?U?P\w+ )?\s*(BRA|BRX|JMP|EXIT|RET|CALL|BREAK)\b")


def blocks_of(listing: str) -> tuple[tuple[tuple[int, str], ...], ...]:
    """The basic blocks in what ``nvdisasm -gp`` prints."""
    blocks: list[list[tuple[int, str]]] = [[]]
    number = 0
    for line in listing.splitlines():
        if found := _LINE.search(line):
            number = int(found[1])
        elif re.match(r"\s*[.$]\S+:\s*$", line):
            blocks.append([])
        elif found := _INSTRUCTION.match(line):
            blocks[-1].append((number, found[1]))
            if _ENDS.match(found[1]):
                blocks.append([])
    return tuple(tuple(block) for block in blocks if block)


def opcode(instruction: str) -> str:
    """An instruction's name, with its modifiers.

    >>> opcode("@!P0 IMAD.WIDE.U32 R4, R80, 0x14, RZ")
    'IMAD.WIDE.U32'
    """
    return re.sub(r"^@!?U?P\w+\s+", "", instruction).split()[0]


CLASSES = {
    "float64": ("DADD", "DMUL", "DFMA", "DSETP", "DMNMX"),
    "conversion": ("I2F", "F2I", "F2F", "I2D", "D2I", "FRND"),
    "special": ("MUFU", "POPC", "FLO", "BREV", "UPOPC", "UFLO"),
    "multiply": ("IMAD", "IMUL", "FFMA", "FMUL", "FADD", "FSETP", "FSEL", "FMNMX", "FCHK"),
    "shared": ("LDS", "STS", "ATOMS", "REDS"),
    "global": ("LDG", "STG", "ATOM", "ATOMG", "RED", "LD", "ST", "LDC", "ULDC", "LDCU", "CCTL"),
    "local": ("LDL", "STL"),
    "warp": ("SHFL", "VOTE", "VOTEU", "MATCH", "REDUX", "R2UR"),
    "barrier": ("BAR", "WARPSYNC", "NANOSLEEP", "MEMBAR", "ERRBAR", "DEPBAR", "WARPSYNC"),
    "branch": (
        *("BRA", "BRX", "JMP", "EXIT", "RET", "CALL", "BREAK", "BSSY", "BSYNC", "BMOV", "YIELD"),
        *("BPT", "KILL", "CALL", "WARPSYNC", "BRXU"),
    ),
    "other": ("NOP", "S2R", "S2UR", "CS2R"),
}
"""Opcodes by class; all others are integers."""

_CLASS = {name: kind for kind, names in CLASSES.items() for name in names}

PRINCIPAL = (
    (r"(ld|st|atom|red)\.(shared|global)", r"(LDS|STS|ATOMS|LDG|STG|LD|ST|ATOMG|RED)\b"),
    (r"(fma|add|sub|mul)\.(rn\.)?f64", r"D(ADD|MUL|FMA)\b"),
    (r"(div|rcp|sqrt)\.rn\.f64", r"MUFU\b"),
    (r"setp\.\w+\.f64", r"DSETP\b"),
    (r"cvt\.\w+\.f64\.\w+|cvt\.\w+\.\w+\.f64", r"(I2F|F2I|FRND)\b"),
    (r"shfl", r"SHFL\b"),
    (r"bar\.", r"(BAR|WARPSYNC)\b"),
)
"""PTX of which each copy in the machine code has one instruction of a kind."""


def weights(machine: Machine, counts: Mapping[int, int], opcodes: Mapping[int, str]) -> list[float]:
    """How often warps issue each basic block.

    Each line's copies were issued as often as the line: Σ_b copies(line, b) weight(b) = count(line).
    The weights break as few of these equations as they can, Σ |difference| · instructions: instructions
    that ptxas has moved to another block than their line's, or made twice, are outvoted by their
    neighbours there.

    Arguments:
        machine: the code.
        counts, opcodes: of lines of PTX.
    """
    copies: dict[int, Counter[int]] = defaultdict(Counter)
    sizes: Counter[int] = Counter()
    sure: set[int] = set()
    for b, block in enumerate(machine.blocks):
        for line, instruction in block:
            sizes[line] += 1
            copies[line][b] += 0
            kind = next((k for p, k in PRINCIPAL if re.match(p, opcodes.get(line, ""))), None)
            if kind is not None and re.match(kind, opcode(instruction)):
                copies[line][b] += 1
                sure.add(line)
    equations: dict[tuple[tuple[tuple[int, int], ...], int], float] = defaultdict(float)
    for line, each in copies.items():
        if line not in opcodes:
            continue
        if line in sure:
            row = tuple((b, m) for b, m in each.items() if m)
            weight = float(sizes[line])
        else:
            row = tuple((b, 1) for b in each)
            weight = float(sizes[line]) if len(row) == 1 else 1e-2
        equations[row, counts.get(line, 0)] += weight
    n, m = len(machine.blocks), len(equations)
    rows, columns, values, right, cost = [], [], [], [], []
    for i, ((row, count), weight) in enumerate(equations.items()):
        for b, times in row:
            rows.append(i)
            columns.append(b)
            values.append(float(times))
        rows += [i, i]
        columns += [n + i, n + m + i]
        values += [1.0, -1.0]
        right.append(float(count))
        cost.append(float(weight))
    system = coo_array((values, (rows, columns)), shape=(m, n + 2 * m)).tocsr()
    found = linprog(np.concatenate([np.full(n, 1e-6), cost, cost]), A_eq=system, b_eq=right)
    return [float(value) for value in found.x[:n]]


def issued(machine: Machine, weight: list[float]) -> dict[str, float]:
    """Instructions that warps issued, by class."""
    by_class: dict[str, float] = defaultdict(float)
    for block, times in zip(machine.blocks, weight, strict=True):
        for _, instruction in block:
            name = opcode(instruction).split(".")[0]
            by_class[_CLASS.get(name, "integer")] += times
    return by_class
