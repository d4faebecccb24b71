"""An executor of PTX: what a compiled kernel computes, and what its warps do, without a card.

The threads of some thread blocks run together, a vector of NumPy to a register. Of the threads that
can go on, those run that are at the earliest basic block, so that the threads of a warp meet again
where their ways join. It counts the warps that issue each line, and the wavefronts of each access
to memory.

It has the instructions that kernels of this library have been compiled to, and refuses others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.static.arithmetic import HOLDS, KINDS, LONG, WORD, Array, Function, Kind, operation
from benchmarks.static.memory import ARENA
from benchmarks.static.program import ENDING, WAITING, Block, Line, Program, Refused

WARP = 32

SHARED_WINDOW, LOCAL_WINDOW = LONG.type(1 << 62), LONG.type(1 << 63)
"""Where shared and local memory begin among generic addresses."""

WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "global": LONG.type(0)}

DONE = np.iinfo(np.int64).max
"""The place of threads that have ended."""

Step = Callable[[Any, Any], None]
"""Of the threads that run: a mask, and their numbers or a slice of all."""


def whole(size: int) -> int:
    """A size, with room to the next 16 bytes."""
    return -(-size // 16) * 16


@dataclass
class Access:
    """What warps needed at one line.

    Arguments:
        space: shared, global or local.
        warps: accesses of warps.
        wavefronts: passes over the 32 banks of 4 bytes.
    """

    space: str
    warps: int = 0
    wavefronts: int = 0


def wavefronts(threads: Array, places: Array, size: int, together: bool = True) -> int:
    """Passes over 32 banks of 4 bytes that warps' accesses need.

    Accesses of 8 or 16 bytes go by halves or quarters of a warp.

    Arguments:
        threads, places: numbers of threads, in warps of 32, and their byte addresses.
        size: bytes of each access.
        together: whether threads at one place are served at once.
    """
    size = max(size, 4)
    banks = 128 // size
    unit = (places // LONG.type(size)).astype(np.int64)
    bank = threads // banks * banks + unit % banks
    if together:
        bank = np.unique(bank << 40 | unit) >> 40
    count = np.bincount(bank, minlength=(int(threads.max()) // banks + 1) * banks)
    return int(count.reshape(-1, banks).max(1).sum())


class Execution:
    """A run of thread blocks, and what it took.

    Arguments:
        program: the kernel.
        arguments: its parameters, numbers of ctypes; pointers are to :data:`~.memory.ARENA`.
        blocks, threads: of the launch.
        shared: bytes of shared memory that the launch adds.
        which: the thread blocks that run, all unless said.
        watch: whether to count wavefronts.

    Attributes:
        counts: warps that issued each line.
        accesses: what they needed from memory, by line and space.
        issued, lanes: instructions of warps and of threads.
    """

    def __init__(
        self,
        program: Program,
        arguments: Sequence[Any],
        blocks: int,
        threads: int,
        shared: int = 0,
        which: Sequence[int] | None = None,
        watch: bool = True,
    ) -> None:
        if threads % WARP:
            raise Refused(f"{threads} threads, not whole warps")
        numbers = np.arange(blocks) if which is None else np.array(which)
        self.program, self.threads, self.watch = program, threads, watch
        self.n = n = len(numbers) * threads
        self.parameters = dict(zip(program.parameters, map(bytes, arguments), strict=True))
        self.registers = {
            name: np.zeros((count, n), KINDS[kind])
            for name, (kind, count) in program.registers.items()
        }
        self.thread = np.arange(n)
        self.lane, self.block = self.thread % WARP, self.thread // threads
        sizes = program.static_bytes + shared, program.local_bytes
        self.spaces: dict[str, tuple[Array, int, Array]] = {
            "shared": (np.zeros(len(numbers) * whole(sizes[0]), np.uint8), sizes[0], self.block),
            "local": (np.zeros(n * whole(sizes[1]), np.uint8), sizes[1], self.thread),
            "global": (ARENA, ARENA.size, np.zeros_like(self.thread)),
        }
        alike = {
            "ntid.x": threads,
            "nctaid.x": blocks,
            "dynamic_smem_size": shared,
            "tid": 0,
            "ctaid": 0,
        }
        alike |= {
            f"{name}.{axis}": name[0] == "n"
            for name in ("tid", "ntid", "ctaid", "nctaid")
            for axis in "yz"
        }
        self.special = {name: np.full(n, value, WORD) for name, value in alike.items()} | {
            "tid.x": (self.thread % threads).astype(WORD),
            "ctaid.x": numbers[self.block].astype(WORD),
            "laneid": self.lane.astype(WORD),
        }
        self.counts: Counter[int] = Counter()
        self.accesses: dict[tuple[int, str], Access] = {}
        self.issued = self.lanes = 0
        self._steps = [self._compiled(block) for block in program.blocks]
        self._run()

    # Operands.

    def _value(self, word: str, kind: Kind) -> Array:
        """A register or constant of all threads, seen as of this kind."""
        if word[1:] in self.special:
            return self.special[word[1:]].view(kind)
        if made := re.fullmatch(r"%([A-Za-z]+)(\d*)", word):
            register = self.registers[made[1]][int(made[2] or 0)]
            return register.view(kind) if register.dtype.itemsize == kind.itemsize else register
        if re.fullmatch(r"0[df][0-9A-Fa-f]+", word):
            number = np.array(int(word[2:], 16), f"u{len(word) // 2 - 1}")
            number = number.view(f"f{number.itemsize}")
        elif word in self.program.places:
            number = LONG.type(self.program.places[word])
        else:
            number = np.array(int(word, 0) % 2 ** (8 * kind.itemsize), f"u{kind.itemsize}").view(
                kind
            )
        return np.broadcast_to(number, (self.n,))

    def _target(self, word: str, kind: Kind) -> Array:
        if not word.startswith("%") or word[1:] in self.special:
            raise Refused(f"a result in {word}")
        return self._value(word, kind)

    def _holds(self, guard: str) -> Callable[[], Array]:
        register = self._value(guard.lstrip("!"), HOLDS)
        return (lambda: ~register) if guard.startswith("!") else (lambda: register)

    # Instructions.

    def _compiled(self, block: Block) -> list[Step]:
        steps = []
        for line in block.lines:
            if line.opcode.startswith(("bar", *ENDING)):
                continue
            try:
                step = self._step(line)
            except (Refused, LookupError, ValueError) as error:
                what = f"{line.opcode} {', '.join(line.operands)}"
                raise Refused(f"line {line.number}: {what}: {error}") from error
            steps.append(self._guarded(line.guard, step) if line.guard else step)
        return steps

    def _guarded(self, guard: str, step: Step) -> Step:
        holds = self._holds(guard)

        def guarded(mask: Any, _: Any) -> None:
            now = mask & holds()
            if now.any():
                step(now, np.flatnonzero(now))

        return guarded

    def _step(self, line: Line) -> Step:
        name, *words = line.opcode.split(".")
        if name in ("ld", "st", "atom", "red"):
            return self._memory(line, name, words)
        if name in ("shfl", "vote", "match"):
            return {"shfl": self._shuffle, "vote": self._vote, "match": self._match}[name](
                line, words
            )
        to, *given = line.operands
        if name == "cvta":
            (space,) = {*words} & WINDOWS.keys()
            window = WINDOWS[space]
            return self._assign(
                to,
                LONG,
                (lambda a: a - window) if "to" in words else (lambda a: a + window),
                given,
                [LONG],
            )
        if to.startswith("{"):
            low, high = (self._target(part.strip(), WORD) for part in to[1:-1].split(","))
            both = self._value(given[0], LONG)

            def split(_: Any, which: Any) -> None:
                low[which], high[which] = both[which].astype(WORD), both[which] >> LONG.type(32)

            return split
        if given[0].startswith("{"):
            parts = [part.strip() for part in given[0][1:-1].split(",")]
            return self._assign(
                to,
                LONG,
                lambda low, high: low | (high.astype(LONG) << LONG.type(32)),
                parts,
                [WORD] * 2,
            )
        function, kinds, result = operation(name, words)
        return self._assign(to, result, function, given, kinds)

    def _assign(
        self, to: str, kind: Kind, function: Function, given: Sequence[str], kinds: Sequence[Kind]
    ) -> Step:
        out = self._target(to, kind)
        values = [self._value(word, kind) for word, kind in zip(given, kinds, strict=True)]

        def step(_: Any, which: Any) -> None:
            out[which] = function(*(value[which] for value in values))

        return step

    # Memory.

    def _memory(self, line: Line, name: str, words: list[str]) -> Step:
        (kind,) = (KINDS[word] for word in words if word in KINDS)
        space = next((word for word in words if word in ("param", *WINDOWS)), "generic")
        if {*words} - {*KINDS, *WINDOWS, "param", "v2", "v4", "add"} or (
            name in ("atom", "red")
        ) != ("add" in words):
            raise Refused("unknown instruction")
        *result, place, value = line.operands if name != "ld" else line.operands[::-1]
        base, _, offset = place[1:-1].partition("+")
        names = [part.strip() for part in value.strip("{}").split(",")]
        if space == "param":
            (held,) = np.frombuffer(self.parameters[base], kind, 1, int(offset or 0))
            return self._assign(value, kind, lambda: held, (), ())
        where, add = self._value(base, LONG), LONG.type(int(offset or 0) % 2**64)
        find = self._target if name == "ld" else self._value
        values, size = [find(part, kind) for part in names], kind.itemsize * len(names)
        old = self._target(result[0], kind) if name == "atom" else None

        def step(_: Any, which: Any) -> None:
            for one, threads, places in self._places(
                space, self.thread[which], where[which] + add, size
            ):
                if self.watch:
                    self._record(line, one, threads, places, size, values)
                cells, at = self.spaces[one][0].view(kind), places // LONG.type(kind.itemsize)
                for i, value in enumerate(values):
                    if name == "ld":
                        value[threads] = cells[at + LONG.type(i)]
                    elif name == "st":
                        cells[at + LONG.type(i)] = value[threads]
                    else:
                        added(cells, at, threads, value)

        def added(cells: Array, at: Array, threads: Array, value: Array) -> None:
            if old is not None:
                for thread, i in zip(threads, at, strict=True):
                    old[thread] = cells[i]
                    cells[i] = np.add(cells[i], value[thread], dtype=kind)
            else:
                np.add.at(cells, at, value[threads])

        return step

    def _places(
        self, space: str, threads: Array, addresses: Array, size: int
    ) -> Iterator[tuple[str, Array, Array]]:
        """The threads at each space, and their places there."""
        ends = {
            "global": (0, SHARED_WINDOW),
            "shared": (SHARED_WINDOW, LOCAL_WINDOW),
            "local": (LOCAL_WINDOW, None),
        }
        for one, (least, end) in ends.items():
            if space not in ("generic", one):
                continue
            places = addresses
            if space == "generic":
                here = (
                    (addresses >= least)
                    if end is None
                    else (addresses >= least) & (addresses < end)
                )
                if not here.any():
                    continue
                threads_, places = threads[here], addresses[here] - WINDOWS[one]
            else:
                threads_ = threads
            _, room, owner = self.spaces[one]
            if one == "global":
                places = places - LONG.type(ARENA.ctypes.data)
            if (
                (places > LONG.type(max(room - size, 0))).any()
                or (places % LONG.type(size)).any()
                or size > room
            ):
                raise Refused(f"an access beyond the {room} bytes of {one} memory, or not aligned")
            yield one, threads_, places + (owner[threads_] * whole(room)).astype(LONG)

    def _record(
        self,
        line: Line,
        space: str,
        threads: Array,
        places: Array,
        size: int,
        values: Sequence[Array],
    ) -> None:
        """Count an access; the values are those of all threads, before a read and after a write."""
        together = not line.opcode.startswith(("atom", "red"))
        made = self.accesses.setdefault((line.number, space), Access(space))
        made.warps += np.count_nonzero(np.bincount(threads // WARP))
        if space == "local":
            # The words of 4 bytes of a warp's threads lie side by side.
            words = (places % LONG.type(whole(self.program.local_bytes))).astype(np.int64) // 4
            rows = len(np.unique(threads // WARP << 40 | words))
            made.wavefronts += rows * max(size // 4, 1)
        else:
            made.wavefronts += wavefronts(threads, places, size, together)

    # Warps.

    def _members(self, line: Line) -> Array:
        return self._value(line.operands[0 if line.opcode.startswith("bar") else -1], WORD)

    def _shuffle(self, line: Line, words: list[str]) -> Step:
        to, _, found = line.operands[0].partition("|")
        out, value = self._target(to, WORD), self._value(line.operands[1], WORD)
        inside = self._target(found, HOLDS) if found else np.zeros(self.n, bool)
        given = [self._value(word, WORD) for word in line.operands[2:4]]

        def step(_: Any, which: Any) -> None:
            lane = self.lane[which]
            by, limits = (part[which].astype(np.int64) for part in given)
            segment, clamp, by = limits >> 8 & 31, limits & 31, by & 31
            least = lane & segment
            most = least | (clamp & ~segment & 31)
            ways = {
                "bfly": lane ^ by,
                "down": lane + by,
                "up": lane - by,
                "idx": least | (by & ~segment & 31),
            }
            source = ways[words[1]]
            valid = source >= most if words[1] == "up" else source <= most
            out[which] = value[self.thread[which] - lane + np.where(valid, source, lane)]
            inside[which] = valid

        return step

    def _vote(self, line: Line, words: list[str]) -> Step:
        holds, members = self._holds(line.operands[1]), self._members(line)
        out = self._target(line.operands[0], WORD if words[1] == "ballot" else HOLDS)

        def step(_: Any, which: Any) -> None:
            votes = self._bits(holds()) & members
            out[which] = {"ballot": votes, "any": votes != 0, "all": votes == members}[words[1]][
                which
            ]

        return step

    def _match(self, line: Line, words: list[str]) -> Step:
        out, members = self._target(line.operands[0], WORD), self._members(line)
        value = self._value(line.operands[1], KINDS[words[-1]])

        def step(_: Any, which: Any) -> None:
            rows = value.reshape(-1, WARP)
            same = (rows[:, :, None] == rows[:, None, :]).astype(WORD)
            bits = (same << np.arange(WARP, dtype=WORD)).sum(2, dtype=WORD).ravel()
            out[which] = (bits & members)[which]

        return step

    def _bits(self, holds: Array) -> Array:
        """Of each thread, the lanes of its warp where something holds."""
        bits = (holds.astype(WORD) << self.lane.astype(WORD)).reshape(-1, WARP)
        return np.bitwise_or.reduce(bits, axis=1).repeat(WARP)

    # Threads.

    def _run(self) -> None:
        at, parked = np.zeros(self.n, np.int64), np.zeros(self.n, bool)
        while True:
            now = np.where(parked, DONE, at).min()
            if now == DONE:
                if (at == DONE).all():
                    return
                raise Refused("threads wait for ever")
            lines, here = self.program.blocks[now].lines, at == now
            if lines and lines[0].opcode.startswith(WAITING):
                ready = self._ready(lines[0], here, at)
                parked[here] = ~ready[here]
                here &= ready
                if not here.any():
                    continue
            which = np.flatnonzero(here)
            if lines and lines[0].opcode.startswith(WAITING):
                self._met(lines[0], which)
            warps = int(here.reshape(-1, WARP).any(1).sum())
            self.counts.update({line.number: warps for line in lines})
            self.issued += warps * len(lines)
            self.lanes += len(which) * len(lines)
            chosen = slice(None) if len(which) == self.n else which
            for step in self._steps[now]:
                step(here, chosen)
            at[which] = now + 1
            if lines and lines[-1].opcode.startswith(ENDING):
                end = lines[-1]
                taken = here & self._holds(end.guard)() if end.guard else here
                jumps = end.opcode.startswith("bra")
                at[taken] = self.program.labels[end.operands[0]] if jumps else DONE

    def _met(self, wait: Line, which: Array) -> None:
        """Threads go on, because those for whom they wait have come."""

    def _ready(self, wait: Line, here: Array, at: Array) -> Array:
        """Whether all whom a thread waits for have come."""
        if wait.opcode.startswith(("bar.sync", "barrier.sync")):
            missing = (~here & (at != DONE)).reshape(-1, self.threads)
            return ~missing.any(1).repeat(self.threads)
        return (self._members(wait) & ~self._bits(here)) == 0
