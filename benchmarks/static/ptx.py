"""An executor of PTX: what a compiled kernel computes, and what each of its warps does, without a card.

All threads of some thread blocks run together, a vector of NumPy to a register. Of the threads that
can go on, those run that are at the earliest basic block, so that the threads of a warp meet again
where their ways join. It counts the warps that issue each line, and records the wavefronts of
each access to memory.

It has the instructions that kernels of this library have been compiled to, and refuses others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from benchmarks.static.memory import ARENA, Array

WARP = 32

SHARED_WINDOW, LOCAL_WINDOW = np.uint64(1 << 62), np.uint64(1 << 63)
"""Where shared and local memory begin among generic addresses."""

KINDS = {
    **{f"{letter}{size}": np.dtype(f"u{size // 8}") for letter in "bu" for size in (8, 16, 32, 64)},
    **{f"s{size}": np.dtype(f"i{size // 8}") for size in (8, 16, 32, 64)},
    "f32": np.dtype("f4"),
    "f64": np.dtype("f8"),
    "pred": np.dtype(bool),
}

SPACES = ("param", "shared", "global", "local")

MODIFIERS = {"rn", "lo", "wide", "hi", "wrap", "uni", "volatile", "nc", "relaxed", "cta", "approx"}

DONE = np.iinfo(np.int64).max


class Refused(ValueError):
    """PTX that the executor cannot run."""


@dataclass
class Access:
    """What the warps that made an access to memory needed.

    Arguments:
        space: shared, global or local.
        warps: accesses of warps.
        wavefronts: passes over the 32 banks, of 4 bytes each.
        lines: lines of 128 bytes.
    """

    space: str
    warps: int = 0
    wavefronts: int = 0
    lines: int = 0


@dataclass(frozen=True)
class Line:
    """An instruction with its place in the file."""

    number: int
    guard: str
    opcode: str
    operands: tuple[str, ...]


@dataclass
class Block:
    """A basic block: only its first line may wait for other threads, and only its last jumps."""

    lines: list[Line] = field(default_factory=list)
    label: str = ""


_TOKEN = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")
_WAITING = ("bar.sync", "barrier.sync", "bar.warp.sync", "shfl.sync", "vote.sync", "match.any.sync")
_ENDING = ("bra", "ret", "exit")


class Program:
    """A kernel in PTX.

    Arguments:
        text: a module with one kernel.
    """

    def __init__(self, text: str) -> None:
        head, _, rest = text.partition(".visible .entry")
        if not rest or ".visible .entry" in rest:
            raise Refused("the module must have one kernel")
        given, _, body = rest.partition("{")
        self.parameters = re.findall(r"\.param\s+(?:\.align \d+ )?\.\w+ (\w+)", given)
        self.registers: dict[str, int] = {}
        self.static_bytes = self.local_bytes = 0
        self.places: dict[str, tuple[str, int]] = {}
        first = text.count("\n", 0, len(text) - len(body))
        for line in head.splitlines():
            self._declare(line.strip())
        self.blocks = [Block()]
        for number, line in enumerate(body.splitlines(), first + 1):
            self._read(number, line.split("//")[0].strip())
        self.blocks = [block for block in self.blocks if block.lines or block.label]
        self.labels = {block.label: i for i, block in enumerate(self.blocks) if block.label}

    def _declare(self, line: str) -> None:
        if made := re.match(r"\.reg \.\w+\s+%(\w+)<(\d+)>", line):
            self.registers[made[1]] = int(made[2])
        elif made := re.match(r"\.reg \.b64\s+%(SPL?);", line):
            self.registers[made[1]] = 1
        elif made := re.match(
            r"(?:\.\w+ )*\.(shared|local) \.align (\d+) \.\w+\s+(\w+)\[(\d*)\]", line
        ):
            space, align, name, size = made[1], int(made[2]), made[3], made[4]
            room = "static_bytes" if space == "shared" else "local_bytes"
            at = -(-getattr(self, room) // align) * align
            # Without a size it is what the launch adds, after what is known here.
            self.places[name] = space, at if size else -1
            if size:
                setattr(self, room, at + int(size))

    def _read(self, number: int, line: str) -> None:
        if not line or line in "{}":
            return
        if line.startswith("."):
            self._declare(line)
            return
        if line.endswith(":"):
            self.blocks.append(Block(label=line[:-1]))
            return
        if not line.endswith(";"):
            raise Refused(f"line {number}: {line}")
        guard = ""
        if line.startswith("@"):
            guard, _, line = line[1:].partition(" ")
        opcode, _, operands = line[:-1].strip().partition("\t")
        opcode, _, more = opcode.partition(" ")
        one = Line(number, guard, opcode, tuple(_TOKEN.findall(more + operands)))
        if opcode.startswith(_WAITING):
            if guard:
                raise Refused(f"line {number}: threads that wait only where {guard}")
            if self.blocks[-1].lines:
                self.blocks.append(Block())
        self.blocks[-1].lines.append(one)
        if opcode.startswith(_ENDING):
            self.blocks.append(Block())


# Arithmetic that NumPy lacks.


def fused(a: Array, b: Array, c: Array) -> Array:
    """a b + c, the product unrounded: Dekker's product and Knuth's sum, within a unit of the last place."""
    with np.errstate(all="ignore"):
        product = a * b
        if product.dtype == np.float32:
            return (np.multiply(a, b, dtype=np.float64) + c).astype(np.float32)
        high_a, high_b = (x * 134217729.0 - (x * 134217729.0 - x) for x in (a, b))
        low_a, low_b = a - high_a, b - high_b
        lost = low_a * low_b - (((product - high_a * high_b) - low_a * high_b) - high_a * low_b)
        whole = product + c
        part = whole - product
        rest = (product - (whole - part)) + (c - part) + lost
        return np.where(np.isfinite(rest), whole + rest, whole)


def quotient(a: Array, b: Array) -> Array:
    """a / b towards 0; all bits where b = 0, as on a device."""
    safe = np.where(b == 0, np.ones_like(b), b)
    down = a // safe
    whole = down + ((a % safe != 0) & ((a < 0) != (safe < 0))).astype(a.dtype)
    return np.where(b == 0, ~np.zeros_like(b), whole)


def remainder(a: Array, b: Array) -> Array:
    return a - b * quotient(a, b)


def high_product(a: Array, b: Array) -> Array:
    """The upper half of a product."""
    if a.dtype.itemsize == 4:
        wide = np.dtype(f"{a.dtype.kind}8")
        return ((a.astype(wide) * b.astype(wide)) >> wide.type(32)).astype(a.dtype)
    if a.dtype.kind != "u":
        raise Refused("mul.hi.s64")
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    middle = (a & low) * (b & low) >> shift
    one, other = (a >> shift) * (b & low) + middle, (a & low) * (b >> shift)
    return (a >> shift) * (b >> shift) + (one >> shift) + ((one & low) + other >> shift)


def inserted(a: Array, b: Array, at: Array, size: Array) -> Array:
    """bfi: the low bits of a, in b."""
    one = b.dtype.type(1)
    mask = ((one << size.astype(b.dtype)) - one) << at.astype(b.dtype)
    return (b & ~mask) | ((a << at.astype(b.dtype)) & mask)


def extracted(a: Array, at: Array, size: Array) -> Array:
    """bfe of an unsigned number."""
    one = a.dtype.type(1)
    return (a >> at.astype(a.dtype)) & ((one << size.astype(a.dtype)) - one)


def converted(value: Array, kind: np.dtype[Any], rounding: str) -> Array:
    """cvt: integers wrap, floats are rounded and kept within the range; NaN is 0."""
    rounds = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}
    if rounding in rounds:
        value = rounds[rounding](value)
    if value.dtype.kind == "f" and kind.kind in "iu":
        ends = np.iinfo(kind)
        below = np.clip(np.nan_to_num(value, nan=0.0), ends.min, np.nextafter(float(ends.max), 0.0))
        return np.where(value >= float(ends.max), kind.type(ends.max), below.astype(kind))
    return value.astype(kind)


def permuted(a: Array, b: Array, selector: Array) -> Array:
    """prmt: four bytes of two words, by the low bits of a selector's four digits."""
    both = a.astype(np.uint64) | (b.astype(np.uint64) << np.uint64(32))
    result = np.zeros_like(both)
    for i in range(4):
        digit = (selector.astype(np.uint64) >> np.uint64(4 * i)) & np.uint64(15)
        if np.any(digit > 7):
            raise Refused("prmt with signs")
        result |= ((both >> (digit * np.uint64(8))) & np.uint64(255)) << np.uint64(8 * i)
    return result.astype(np.uint32)


def funnel(left: bool, low: Array, high: Array, by: Array) -> Array:
    """shf: a shift of two words."""
    both = low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))
    by = by.astype(np.uint64) & np.uint64(31)
    return ((both << by >> np.uint64(32)) if left else (both >> by)).astype(np.uint32)


UFUNCS = {
    "add": np.add, "sub": np.subtract, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "not": np.bitwise_not, "neg": np.negative, "abs": np.absolute,
    "shl": np.left_shift, "shr": np.right_shift, "sqrt": np.sqrt,
}  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "fma": fused, "rem": remainder, "bfi": inserted, "bfe": extracted, "rcp": np.reciprocal,
    "prmt": permuted, "popc": lambda a: np.bitwise_count(a).astype(np.uint32),
}  # fmt: skip
COMPARISONS = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater,
    "hs": np.greater_equal, "neu": np.not_equal,
}  # fmt: skip
UNORDERED = {"ltu": np.greater_equal, "leu": np.greater, "gtu": np.less_equal, "geu": np.less}
"""Their negations, which a NaN makes true."""

Step = Callable[[Any, Any], None]
"""Of the threads that run: a mask or True, and their numbers or a slice."""


def wavefronts(warps: Array, places: Array, size: int, distinct: bool = True) -> int:
    """Passes over 32 banks of 4 bytes that warps' accesses need.

    Accesses of 8 or 16 bytes go by halves or quarters of a warp. Threads at one place are served
    together, but not where each must change it.

    Arguments:
        warps, places: each thread's warp in lane order with its lane, and byte address.
    """
    size = max(size, 4)
    banks = 128 // size
    group, unit = warps // banks, places // np.uint64(size)
    bank = group * banks + (unit % np.uint64(banks)).astype(np.int64)
    if distinct:
        bank = np.unique(np.stack([bank, unit.astype(np.int64)]), axis=1)[0]
    which, count = np.unique(bank, return_counts=True)
    most = np.zeros(int(group.max()) + 1, np.int64)
    np.maximum.at(most, which // banks, count)
    return int(most.sum())


class Execution:
    """A run of thread blocks, and what it took.

    Arguments:
        program: the kernel.
        arguments: its parameters, numbers of ctypes; pointers are to :data:`~.memory.ARENA`.
        blocks, threads: of the launch.
        shared: bytes of shared memory that the launch adds.
        which: the thread blocks that run, all unless said.
        watch: whether to record accesses to memory.
    """

    def __init__(
        self,
        program: Program,
        arguments: Sequence[Any],
        blocks: int,
        threads: int,
        shared: int = 0,
        which: Iterable[int] | None = None,
        watch: bool = True,
    ) -> None:
        if threads % WARP:
            raise Refused(f"{threads} threads, not whole warps")
        if len(arguments) != len(program.parameters):
            raise Refused(f"{len(arguments)} arguments for {len(program.parameters)} parameters")
        ids = np.arange(blocks) if which is None else np.array([*which])
        self.program, self.threads, self.watch = program, threads, watch
        self.n = n = len(ids) * threads
        self.parameters = dict(zip(program.parameters, map(bytes, arguments), strict=True))
        kinds = {"p": "pred", "rs": "b16", "r": "b32", "rd": "b64", "f": "f32", "fd": "f64"}
        kinds |= {"SP": "b64", "SPL": "b64"}
        self.registers = {
            name: np.zeros((count, n), KINDS[kinds[name]])
            for name, count in program.registers.items()
            if name in kinds
        }
        self.thread = np.arange(n)
        self.lane, self.block_of = self.thread % WARP, self.thread // threads
        self.shared_bytes = -(-(program.static_bytes + shared) // 16) * 16
        self.local_bytes = -(-program.local_bytes // 16) * 16
        self.memories = {
            "shared": np.zeros(len(ids) * self.shared_bytes, np.uint8),
            "local": np.zeros(n * self.local_bytes, np.uint8),
            "global": ARENA,
        }
        each = np.uint32
        self.special = {
            "%tid.x": (self.thread % threads).astype(each),
            "%ctaid.x": ids[self.block_of].astype(each),
            "%laneid": self.lane.astype(each),
        } | {
            name: np.full(n, value, each)
            for name, value in {
                "%ntid.x": threads, "%nctaid.x": blocks, "%tid.y": 0, "%tid.z": 0, "%ctaid.y": 0,
                "%ctaid.z": 0, "%ntid.y": 1, "%ntid.z": 1, "%nctaid.y": 1, "%nctaid.z": 1,
                "%warpsize": WARP, "%dynamic_smem_size": shared,
            }.items()
        }  # fmt: skip
        self.counts: dict[int, int] = {}
        """Warps that issued each line."""
        self.accesses: dict[int, Access] = {}
        self.lanes = self.issued = 0
        """Threads and warps of all instructions: their ratio is 32 where no warp ever parts."""
        self._steps = [self._compiled(block) for block in program.blocks]
        self._run()

    # Operands.

    def _value(self, word: str, kind: np.dtype[Any]) -> Array:
        """A register or constant, seen as of this kind."""
        if word in self.special:
            return self.special[word].view(kind) if kind.itemsize == 4 else self.special[word]
        if made := re.fullmatch(r"%([a-z]+|SPL?)(\d*)", word):
            register = self.registers[made[1]][int(made[2] or 0)]
            return register.view(kind) if register.dtype.itemsize == kind.itemsize else register
        if word[:2] in ("0d", "0f") and len(word) in (18, 10):
            bits = np.array(int(word[2:], 16), f"u{(len(word) - 2) // 2}")
            return bits.view(f"f{bits.itemsize}").astype(kind)
        if word in self.program.places:
            return np.uint64(self._place(word))
        try:
            number = int(word, 0)
        except ValueError:
            raise Refused(f"operand {word}") from None
        if kind.kind == "b":
            return np.bool_(number)
        return np.array(number % 2 ** (8 * kind.itemsize), f"u{kind.itemsize}").view(kind)[()]

    def _place(self, name: str) -> int:
        at = self.program.places[name][1]
        return at if at >= 0 else -(-self.program.static_bytes // 16) * 16

    def _target(self, word: str, kind: np.dtype[Any]) -> Array:
        found = self._value(word.split("|")[0], kind)
        if found.ndim != 1:
            raise Refused(f"operand {word}")
        return found

    def _address(self, word: str) -> tuple[Array, np.uint64]:
        base, _, offset = word[1:-1].replace(" ", "").partition("+")
        where = self._value(base, KINDS["u64"])
        return np.broadcast_to(where, (self.n,)), np.uint64(int(offset or 0) % 2**64)

    # Instructions.

    def _compiled(self, block: Block) -> tuple[Line | None, list[Step], Line | None]:
        lines = list(block.lines)
        wait = lines.pop(0) if lines and lines[0].opcode.startswith(_WAITING) else None
        end = lines.pop() if lines and lines[-1].opcode.startswith(_ENDING) else None
        steps = []
        if wait is not None and not wait.opcode.startswith("bar"):
            steps.append(self._exchange(wait))
        for line in lines:
            try:
                step = self._step(line)
            except (Refused, KeyError, IndexError) as error:
                raise Refused(
                    f"line {line.number}: {line.opcode} {line.operands}: {error}"
                ) from error
            steps.append(self._guarded(line, step) if line.guard else step)
        return wait, steps, end

    def _guarded(self, line: Line, step: Step) -> Step:
        holds = self._holds(line.guard)

        def guarded(mask: Any, _: Any) -> None:
            now = holds() & mask
            if now.any():
                step(now, np.flatnonzero(now))

        return guarded

    def _holds(self, guard: str) -> Callable[[], Array]:
        register = self._target(guard.lstrip("!"), KINDS["pred"])
        return (lambda: ~register) if guard[0] == "!" else (lambda: register)

    def _step(self, line: Line) -> Step:
        name, *words = line.opcode.split(".")
        kinds = [KINDS[word] for word in words if word in KINDS]
        kind = kinds[0]
        if name in ("ld", "ldu", "st", "atom", "red"):
            return self._memory(line, name, words, kind)
        to, *given = line.operands
        if name == "setp":
            return self._comparison(line, words[0], kind)
        if name in ("mov", "cvta"):
            return self._move(line, words, kind)
        if name == "cvt":
            to_, value = self._target(to, kinds[0]), self._value(given[0], kinds[1])
            rounding = next((word for word in words if word in ("rzi", "rni", "rmi", "rpi")), "")
            if value.dtype != kinds[1]:
                value_of = value
                value = None
            return self._by_function(
                to_,
                lambda v: converted(v.astype(kinds[1]), kinds[0], rounding),
                [value if value is not None else value_of],
            )
        unknown = [
            w for w in words if w not in KINDS and w not in MODIFIERS and w not in ("l", "r")
        ]
        if unknown:
            raise Refused(f"unknown {'.'.join(unknown)}")
        return self._arithmetic(name, words, kind, to, given)

    def _arithmetic(
        self, name: str, words: list[str], kind: np.dtype[Any], to: str, given: list[str]
    ) -> Step:
        wide = "wide" in words
        result = np.dtype(f"{kind.kind}{2 * kind.itemsize}") if wide else kind
        out = self._target(to, KINDS["u32"] if name == "popc" else result)
        if name == "selp":
            one, other = (self._value(word, kind) for word in given[:2])
            return self._by_function(
                out,
                lambda a, b, p: np.where(p, a, b),
                [one, other, self._value(given[2], KINDS["pred"])],
            )
        if name in ("shl", "shr"):
            by = self._value(given[1], KINDS["u32"])
            values = [self._value(given[0], kind), by]
            bits = 8 * kind.itemsize
            return self._by_function(
                out,
                lambda a, b: (
                    UFUNCS[name](a, np.minimum(b, np.uint32(bits - 1)).astype(kind))
                    if name == "shr" and kind.kind == "i"
                    else UFUNCS[name](a, b.astype(kind))
                ),
                values,
            )
        if name in ("bfi", "bfe"):
            values = [self._value(word, kind) for word in given[:-2]]
            values += [self._value(word, KINDS["u32"]) for word in given[-2:]]
            return self._by_function(out, FUNCTIONS[name], values)
        values = [self._value(word, kind) for word in given]
        if name in ("mul", "mad"):
            if wide:

                def product(a: Array, b: Array) -> Array:
                    return a.astype(result) * b.astype(result)
            elif "hi" in words:
                product = high_product
            else:
                product = np.multiply
            if name == "mul":
                return (
                    self._by_ufunc(out, np.multiply, values)
                    if product is np.multiply
                    else self._by_function(out, product, values)
                )
            values[2] = self._value(given[2], result)
            return self._by_function(out, lambda a, b, c: product(a, b) + c, values)
        if name in ("min", "max"):
            return self._by_ufunc(out, np.fmin if name == "min" else np.fmax, values)
        if name == "div":
            if kind.kind == "f":
                return self._by_ufunc(out, np.divide, values)
            return self._by_function(out, quotient, values)
        if name == "shf":
            return self._by_function(out, partial(funnel, words[0] == "l"), values)
        if name in UFUNCS:
            return self._by_ufunc(
                out, np.logical_not if kind.kind == "b" and name == "not" else UFUNCS[name], values
            )
        if name not in FUNCTIONS:
            raise Refused("unknown instruction")
        return self._by_function(out, FUNCTIONS[name], values)

    def _by_ufunc(self, out: Array, ufunc: Any, values: list[Array]) -> Step:
        def step(mask: Any, _: Any) -> None:
            ufunc(*values, out=out, where=mask)

        return step

    def _by_function(self, out: Array, function: Callable[..., Any], values: list[Array]) -> Step:
        values = [np.broadcast_to(value, (self.n,)) for value in values]

        def step(_: Any, which: Any) -> None:
            out[which] = function(*(value[which] for value in values))

        return step

    def _comparison(self, line: Line, name: str, kind: np.dtype[Any]) -> Step:
        to, *given = line.operands
        if len(given) != 2 or "|" in to:
            raise Refused("a comparison joined with another")
        out, values = self._target(to, KINDS["pred"]), [self._value(word, kind) for word in given]
        if name in UNORDERED:
            return self._by_function(out, lambda a, b: ~UNORDERED[name](a, b), values)
        if name == "ne" and kind.kind == "f":
            return self._by_function(out, lambda a, b: (a < b) | (a > b), values)
        return self._by_ufunc(out, COMPARISONS[name], values)

    def _move(self, line: Line, words: list[str], kind: np.dtype[Any]) -> Step:
        to, value = line.operands
        if "to" in words or line.opcode.startswith("mov") or "global" in words:
            window = np.uint64(0)
            if "to" in words and "global" not in words:
                window = -self._window(words)
        else:
            window = self._window(words)
        if to.startswith("{"):
            parts = [self._target(part.strip(), KINDS["u32"]) for part in to[1:-1].split(",")]
            whole = self._value(value, KINDS["u64"])

            def split(_: Any, which: Any) -> None:
                for i, part in enumerate(parts):
                    part[which] = (whole[which] >> np.uint64(32 * i)).astype(np.uint32)

            return split
        if value.startswith("{"):
            given = [self._value(part.strip(), KINDS["u32"]) for part in value[1:-1].split(",")]
            return self._by_function(
                self._target(to, KINDS["u64"]),
                lambda low, high: low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32)),
                given,
            )
        values = [self._value(value, kind)]
        if window:
            return self._by_function(self._target(to, kind), lambda a: a + window, values)
        if value in self.program.places:
            values = [np.broadcast_to(values[0], (self.n,)).astype(kind)]
        return self._by_ufunc(self._target(to, kind), np.positive if kind.kind != "b" else np.logical_or,
                              values * (1 if kind.kind != "b" else 2))  # fmt: skip

    def _window(self, words: list[str]) -> np.uint64:
        return SHARED_WINDOW if "shared" in words else LOCAL_WINDOW

    # Memory.

    def _memory(self, line: Line, name: str, words: list[str], kind: np.dtype[Any]) -> Step:
        space = next((word for word in words if word in SPACES), "generic")
        unknown = {*words} - {*SPACES, *KINDS, *MODIFIERS, "v2", "v4", "add", "shared::cta"}
        if unknown:
            raise Refused(f"unknown {unknown}")
        if name in ("atom", "red"):
            return self._atomic(line, name, space, kind)
        place, value = line.operands if name == "st" else line.operands[::-1]
        names = [part.strip() for part in value.strip("{}").split(",")]
        if space == "param":
            at, _, offset = place[1:-1].partition("+")
            held = np.frombuffer(self.parameters[at], kind, 1, int(offset or 0))[0]
            return self._by_function(
                self._target(value, kind), lambda v: v, [np.broadcast_to(held, (self.n,))]
            )
        where, offset = self._address(place)
        size = kind.itemsize * len(names)
        values = [
            self._target(part, kind)
            if name != "st"
            else np.broadcast_to(self._value(part, kind), (self.n,))
            for part in names
        ]

        def step(_: Any, which: Any) -> None:
            addresses = where[which] + offset
            threads = self.thread[which]
            for one, part, memory, places in self._places(space, threads, addresses, size):
                if self.watch:
                    self._record(line.number, one, threads[part], addresses[part], size)
                cells, at = memory.view(kind), places // np.uint64(kind.itemsize)
                for i, value in enumerate(values):
                    if name == "st":
                        cells[at + np.uint64(i)] = value[threads[part]]
                    else:
                        value[threads[part]] = cells[at + np.uint64(i)]

        return step

    def _places(self, space: str, threads: Array, addresses: Array, size: int) -> Any:
        """Each space's threads, and the places in it."""
        if space == "generic":
            windows = [
                ("local", addresses >= LOCAL_WINDOW),
                ("shared", (addresses >= SHARED_WINDOW) & (addresses < LOCAL_WINDOW)),
                ("global", addresses < SHARED_WINDOW),
            ]
        else:
            windows = [(space, np.ones(len(threads), bool))]
        for one, part in windows:
            if not part.any():
                continue
            places = addresses[part]
            if space == "generic" and one != "global":
                places = places - (LOCAL_WINDOW if one == "local" else SHARED_WINDOW)
            if one == "global":
                places = places - np.uint64(ARENA.ctypes.data)
                owner, room = np.uint64(0), ARENA.size
            elif one == "shared":
                owner, room = self.block_of[threads[part]].astype(np.uint64), self.shared_bytes
            else:
                owner, room = threads[part].astype(np.uint64), self.local_bytes
            if (places + np.uint64(size) > np.uint64(room)).any() or (
                places % np.uint64(size)
            ).any():
                raise Refused(f"an access to {one} memory beyond its {room} bytes, or not aligned")
            yield one, part, self.memories[one], places + owner * np.uint64(room)

    def _record(
        self,
        number: int,
        space: str,
        threads: Array,
        addresses: Array,
        size: int,
        distinct: bool = True,
    ) -> None:
        made = self.accesses.setdefault(number, Access(space))
        warps = np.unique(threads // WARP)
        made.warps += len(warps)
        if space == "local":
            # Words of 4 bytes of the 32 threads lie side by side.
            words = np.unique(
                np.stack([threads // WARP, (addresses // np.uint64(4)).astype(np.int64)]), axis=1
            )
            lines = words.shape[1] * max(size // 4, 1)
            made.wavefronts, made.lines = made.wavefronts + lines, made.lines + lines
            return
        made.wavefronts += wavefronts(threads, addresses, size, distinct)
        pair = np.stack([threads // WARP, (addresses // np.uint64(128)).astype(np.int64)])
        made.lines += np.unique(pair, axis=1).shape[1]

    def _atomic(self, line: Line, name: str, space: str, kind: np.dtype[Any]) -> Step:
        if "add" not in line.opcode:
            raise Refused("only sums are atomic")
        place, value = line.operands[-2:]
        old = self._target(line.operands[0], kind) if name == "atom" else None
        where, offset = self._address(place)
        added = np.broadcast_to(self._value(value, kind), (self.n,))

        def step(_: Any, which: Any) -> None:
            addresses, threads = where[which] + offset, self.thread[which]
            for one, part, memory, places in self._places(space, threads, addresses, kind.itemsize):
                if self.watch:
                    self._record(
                        line.number, one, threads[part], addresses[part], kind.itemsize, False
                    )
                cells, at = memory.view(kind), places // np.uint64(kind.itemsize)
                for thread, i in zip(threads[part], at, strict=True):
                    if old is not None:
                        old[thread] = cells[i]
                    cells[i : i + np.uint64(1)] += added[thread]

        return step

    # Warps.

    def _mask_of(self, line: Line) -> Array:
        word = line.operands[0 if line.opcode.startswith("bar") else -1]
        return np.broadcast_to(self._value(word, KINDS["u32"]), (self.n,))

    def _exchange(self, line: Line) -> Step:
        name, words = line.opcode.split(".")[0], line.opcode.split(".")
        if name == "shfl":
            value = self._target(line.operands[1], KINDS["u32"])
            return self._shuffle(line, words[2], value)
        if name == "vote":
            return self._vote(line, words[2])
        return self._match(line)

    def _shuffle(self, line: Line, mode: str, value: Array) -> Step:
        to, _, found = line.operands[0].partition("|")
        out = self._target(to, KINDS["u32"])
        inside = self._target(found, KINDS["pred"]) if found else np.zeros(self.n, bool)
        given = [
            np.broadcast_to(self._value(word, KINDS["u32"]), (self.n,))
            for word in line.operands[2:4]
        ]

        def step(_: Any, which: Any) -> None:
            lane, start = self.lane[which], self.thread[which] - self.lane[which]
            by, limits = (part[which].astype(np.int64) & 31 if i == 0 else part[which].astype(np.int64)
                          for i, part in enumerate(given))  # fmt: skip
            segment, clamp = limits >> 8 & 31, limits & 31
            least, most = lane & segment, (lane & segment) | (clamp & ~segment & 31)
            source = {
                "bfly": lambda: lane ^ by, "down": lambda: lane + by, "up": lambda: lane - by,
                "idx": lambda: least | (by & ~segment & 31),
            }[mode]()  # fmt: skip
            valid = source >= most if mode == "up" else source <= most
            out[which] = value[start + np.where(valid, source, lane)]
            inside[which] = valid

        return step

    def _vote(self, line: Line, mode: str) -> Step:
        guard = line.operands[1]
        holds = self._holds(guard)
        out = self._target(line.operands[0], KINDS["u32" if mode == "ballot" else "pred"])
        members = self._mask_of(line)

        def step(_: Any, which: Any) -> None:
            bits = np.zeros(self.n, np.uint32)
            bits[which] = holds()[which].astype(np.uint32) << self.lane[which].astype(np.uint32)
            votes = np.bitwise_or.reduce(bits.reshape(-1, WARP), axis=1).repeat(WARP) & members
            kinds = {"ballot": votes, "any": votes != 0, "all": votes == members}
            out[which] = kinds[mode][which]

        return step

    def _match(self, line: Line) -> Step:
        kind = KINDS[line.opcode.split(".")[-1]]
        out, value = (
            self._target(line.operands[0], KINDS["u32"]),
            self._value(line.operands[1], kind),
        )
        members = self._mask_of(line)

        def step(_: Any, which: Any) -> None:
            rows = value.reshape(-1, WARP)
            same = (rows[:, :, None] == rows[:, None, :]).astype(np.uint32)
            bits = (same << np.arange(WARP, dtype=np.uint32)).sum(2, dtype=np.uint32).ravel()
            out[which] = (bits & members)[which]

        return step

    # Threads.

    def _run(self) -> None:
        at, parked = np.zeros(self.n, np.int64), np.zeros(self.n, bool)
        labels = self.program.labels
        while True:
            now = np.where(parked, DONE, at).min()
            if now == DONE:
                if (at == DONE).all():
                    return
                raise Refused("threads wait for ever")
            if now == len(self._steps):
                raise Refused("the kernel's end without ret")
            wait, steps, end = self._steps[now]
            here = at == now
            if wait is not None:
                ready = self._ready(wait, here, at)
                parked[here] = ~ready[here]
                here &= ready
                if not here.any():
                    continue
            which = np.flatnonzero(here)
            everyone = len(which) == self.n
            mask, which = (True, slice(None)) if everyone else (here, which)
            warps = int(here.reshape(-1, WARP).any(1).sum())
            for line in self.program.blocks[now].lines:
                self.counts[line.number] = self.counts.get(line.number, 0) + warps
            size = len(self.program.blocks[now].lines)
            self.issued += warps * size
            self.lanes += int(here.sum()) * size
            for step in steps:
                step(mask, which)
            at[which] = now + 1
            if end is not None:
                taken = here & self._holds(end.guard)() if end.guard else here
                at[taken] = labels[end.operands[0]] if end.opcode.startswith("bra") else DONE

    def _ready(self, wait: Line, here: Array, at: Array) -> Array:
        """Whether all whom a thread waits for have come."""
        if wait.opcode.startswith(("bar.sync", "barrier.sync")):
            missing = (~here & (at != DONE)).reshape(-1, self.threads)
            return ~missing.any(1).repeat(self.threads)
        bits = (here.astype(np.uint32) << self.lane.astype(np.uint32)).reshape(-1, WARP)
        come = np.bitwise_or.reduce(bits, axis=1).repeat(WARP)
        return (self._mask_of(wait) & ~come) == 0
