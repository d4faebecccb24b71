"""The O(n d) covariance U-statistic against its peers: ``python -m benchmarks.ustatistics``.

Peers are the PyPI package u-stats, on its NumPy and its torch backend, and loops over pairs: this
library's general ``ustatistic``, and a double loop compiled by numba. All start from the same
scores (n, d) and rewards (n,), and all must give the same value.

u-stats takes a kernel as a product of tensors, and there are two ways to make one of Lemma 1's. As
its README does it, tensors hold the kernel, or its two factors, at all pairs. Or the caller does
algebra first: over ordered pairs ½ (s₁ - s₂)(z₁ - z₂) has the mean of s₁ (z₁ - z₂), and that of
s₁ z₁ - s₁ z₂, whose tensors are the scores and the rewards themselves. Of each way the fastest form
is shown. Where tensors would not fit in the memory allowed, coordinates are taken in blocks.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from os import cpu_count
from pathlib import Path
from platform import processor, python_version
from time import perf_counter

import numpy as np
from numba import njit
from numpy.typing import NDArray
from tabulate import tabulate

from ustat_pg.ustatistics import covariance_kernel, covariance_ustatistic, ustatistic
from ustat_pg.whole_files import versions

SAMPLES = (8, 64, 512, 4096)
DIMENSIONS = (1, 100, 10_000)
TARGET = 50
AGREEMENT = 1e-10
MEMORY = 2**30
"""Bytes of tensors that a peer may hold at once."""

LONGEST = 10.0
"""Seconds: what would take longer is extrapolated from fewer coordinates, and marked ~."""

SHORT = 0.5
"""Seconds: what takes no longer is tried whole before the fastest form is chosen."""

KERNEL, REWRITTEN = "kernel as tensors", "kernel rewritten"
GENERAL, COMPILED = "general ustatistic", "compiled double loop"

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Peer:
    """One way to compute the statistic.

    Arguments:
        way: the column of the tables in which it competes.
        form: how it is written.
        function: (scores (n, d), rewards (n,)) to the value (d,).
        tensors: arrays of n² numbers that it holds per coordinate.
    """

    way: str
    form: str
    function: Callable[[Array, Array], Array]
    tensors: int = 0

    def block(self, n: int) -> int:
        """How many coordinates' tensors fit in the memory allowed."""
        return max(1, MEMORY // (8 * n * n * self.tensors)) if self.tensors else sys.maxsize

    def __call__(self, scores: Array, rewards: Array) -> Array:
        """The value, in blocks of coordinates where the tensors of all would not fit."""
        d, fit = scores.shape[1], self.block(len(scores))
        parts = [self.function(scores[:, k : k + fit], rewards) for k in range(0, d, fit)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


@dataclass(frozen=True)
class Timing:
    """Seconds of ours and of a peer, round by round, of which ``of`` coordinates were timed."""

    peer: Peer
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    of: int
    whole: bool

    @property
    def ratio(self) -> float:
        """Least time over least time: what other work on the machine disturbs least."""
        return min(self.theirs) / min(self.ours)

    @property
    def median(self) -> float:
        """The median of the rounds' ratios."""
        pairs = zip(self.theirs, self.ours, strict=True)
        return statistics.median(other / one for other, one in pairs)

    def cells(self) -> list[str]:
        """Form, time and ratio, as the tables show them."""
        time = duration(min(self.theirs))
        if not self.whole:
            return [self.peer.form, f"~ {time}", f"~ {number(self.ratio)} (d = {self.of})"]
        return [self.peer.form, time, f"{number(self.ratio)} [{number(self.median)}]"]


def number(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.1f}"


def u_stats_peers() -> list[Peer]:
    """The forms of the kernel for u-stats, on each of its backends that is installed."""
    if find_spec("u_stats") is None:
        return []
    from u_stats import get_backend, set_backend, ustat

    # Where coordinates stay in the output, _dediag=False is what u-stats falls back to by itself,
    # with a warning: its sum over partitions then takes off the diagonal that it cannot mask.
    def values(s: Array, z: Array) -> Array:
        if s.shape[1] == 1:
            column = s[:, 0]
            kernel = 0.5 * (column[:, None] - column) * (z[:, None] - z)
            return np.reshape(ustat([kernel], "ij->"), 1)
        kernel = s[:, None] - s
        kernel *= (0.5 * (z[:, None] - z))[:, :, None]
        return ustat([kernel], "ijp->p", _dediag=False)

    def factors(s: Array, z: Array) -> Array:
        return 0.5 * ustat([s[:, None] - s, z[:, None] - z], "ijp,ij->p", _dediag=False)

    def one_sided(s: Array, z: Array) -> Array:
        return ustat([s, z[:, None] - z], "ip,ij->p", _dediag=False)

    def expanded(s: Array, z: Array) -> Array:
        same = ustat([s, z], "ip,i->p", _dediag=False)
        return same - ustat([s, z], "ip,j->p", _dediag=False)

    def on(backend: str, form: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
        name, _, threads = backend.partition(", ")

        def function(s: Array, z: Array) -> Array:
            # Set only where it changes: that takes as long as a small statistic.
            if get_backend().backend != name:
                set_backend(name)
            if name == "torch":
                wanted = int(threads.split()[0])
                if torch.get_num_threads() != wanted:
                    torch.set_num_threads(wanted)
            return form(s, z)

        return function

    forms = (
        (KERNEL, "h_ij", values, 2),
        (KERNEL, "s_ij z_ij", factors, 2),
        (REWRITTEN, "s_i z_ij", one_sided, 0),
        (REWRITTEN, "s_i z_i - s_i z_j", expanded, 0),
    )
    backends = ["numpy"]
    if find_spec("torch"):
        import torch

        counts = {torch.get_num_threads(): None, 1: None}
        backends += [f"torch, {count} thread{'s' * (count > 1)}" for count in counts]
    return [
        Peer(way, f"{name}, {backend}", on(backend, form), tensors)
        for (way, name, form, tensors), backend in product(forms, backends)
    ]


@njit(fastmath=True)
def _one_column(s: Array, z: Array) -> float:
    total = 0.0
    for i in range(len(s)):
        for j in range(i):
            total += (s[i] - s[j]) * (z[i] - z[j])
    return total / (len(s) * (len(s) - 1.0))


@njit(fastmath=True)
def _columns(s: Array, z: Array) -> Array:
    n, d = s.shape
    total = np.zeros(d)
    for i in range(n):
        for j in range(i):
            step = z[i] - z[j]
            for p in range(d):
                total[p] += step * (s[i, p] - s[j, p])
    return total / (n * (n - 1.0))


def double_loop(s: Array, z: Array) -> Array:
    """The definition, compiled."""
    if s.shape[1] == 1:
        return np.array([_one_column(np.ascontiguousarray(s[:, 0]), z)])
    return _columns(s, z)


def loop_peers() -> list[Peer]:
    """The loops over pairs."""
    return [
        Peer(GENERAL, "NumPy", lambda s, z: ustatistic(covariance_kernel, (s, z))),
        Peer(COMPILED, "numba", double_loop),
    ]


def sample(n: int, d: int) -> tuple[Array, Array]:
    """Scores and rewards of covariance near 1: relative errors then mean something."""
    generator = np.random.default_rng([n, d])
    rewards = generator.normal(size=n)
    return generator.normal(size=(n, d)) + rewards[:, None], rewards


def seconds_of(peer: Peer, scores: Array, rewards: Array) -> float:
    """The time of one call, whose value is compared with ours.

    Raises:
        ValueError: the peer's value differs by more than 1e-10, relative.
    """
    start = perf_counter()
    value = peer(scores, rewards)
    seconds = perf_counter() - start
    ours = covariance_ustatistic(scores, rewards)
    if value.shape != ours.shape or not (np.abs(value - ours) <= AGREEMENT * np.abs(ours)).all():
        raise ValueError(f"{peer.way}, {peer.form}: another value than ours at {scores.shape}")
    return seconds


def estimate(peer: Peer, scores: Array, rewards: Array) -> tuple[float, int]:
    """Seconds that all coordinates take, and of how many that was measured.

    What takes long is measured on a few coordinates and on more, and continued as a straight line.
    """
    n, d = scores.shape
    few = min(d, peer.block(n), 4)
    seconds_of(peer, scores[:8, :few].copy(), rewards[:8])
    small = seconds_of(peer, scores[:, :few].copy(), rewards)
    if small * d / few <= SHORT:
        return _whole(peer, scores, rewards), d
    if few == d:
        return small, d
    if peer.block(n) < d:
        # A loop over blocks of coordinates: as long as one block, so many times.
        more = min(peer.block(n), max(few, int(few * SHORT / small)))
        large = seconds_of(peer, scores[:, :more].copy(), rewards)
        return large * d / more, more
    # Enough of them to leave the cache that a few fit in.
    more = min(d, max(64, int(few * 4 * SHORT / small)))
    large = seconds_of(peer, scores[:, :more].copy(), rewards)
    line = large + max(large - small, 0) / (more - few) * (d - more)
    return (_whole(peer, scores, rewards), d) if line <= 4 * SHORT else (line, more)


def _whole(peer: Peer, scores: Array, rewards: Array) -> float:
    seconds = seconds_of(peer, scores, rewards)
    # The first call at a size pays for memory; short ones are disturbed by other work besides.
    again = 1 if seconds > 0.1 else 9
    return min(seconds_of(peer, scores, rewards) for _ in range(again))


def clock(function: Callable[[], object], at_least: float = 5e-3) -> float:
    """Seconds of one call, from as many as last ``at_least``."""
    timer = timeit.Timer(function)
    once = timer.timeit(1)
    number = int(at_least / once) if once < at_least else 0
    return timer.timeit(number) / number if number else once


def compare(peers: Sequence[Peer], n: int, d: int, rounds: int) -> tuple[float, list[Timing]]:
    """Seconds of ours, and the fastest peer of each way against it, both timed in each round."""
    scores, rewards = sample(n, d)

    def ours() -> Array:
        return covariance_ustatistic(scores, rewards)

    found = []
    for way in dict.fromkeys(peer.way for peer in peers):
        (seconds, of), best = min(
            ((estimate(peer, scores, rewards), peer) for peer in peers if peer.way == way),
            key=lambda pair: pair[0][0],
        )
        if seconds > LONGEST:
            found.append(Timing(best, (clock(ours),), (seconds,), of, whole=False))
            continue
        pairs = [
            (clock(ours), clock(lambda peer=best: peer(scores, rewards)))
            for _ in range(min(rounds, max(1, int(2 / seconds))))
        ]
        found.append(Timing(best, *zip(*pairs, strict=True), of=d, whole=True))
    least = min((one for timing in found for one in timing.ours), default=clock(ours))
    return least, found


def duration(seconds: float) -> str:
    """Seconds in a unit that fits."""
    for unit, name in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= unit or unit == 1e-6:
            return f"{seconds / unit:.3g} {name}" if seconds < 1e3 else f"{seconds:,.0f} s"
    raise AssertionError


def machine(*packages: str) -> str:
    """The processor in words, Python's and the packages' versions."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    words = [f"{names[0] if names else processor()}, {cpu_count()} cores", python_version()]
    words[1] = f"Python {words[1]}"
    found = versions(*packages)
    return "; ".join([*words, *(f"{each} {found.get(each, 'not installed')}" for each in packages)])


def verdict(way: str, timings: dict[tuple[int, int], Timing]) -> str:
    """In how many cases the target is met; elsewhere, how fast scores would have to be read."""
    below = [
        f"{number(timing.ratio)} at n = {n}, d = {d} "
        f"({8e-9 * n * d * TARGET / min(timing.theirs):.3g} GB/s)"
        for (n, d), timing in timings.items()
        if timing.ratio < TARGET
    ]
    line = f"- u-stats, {way}: at least {TARGET}x in {len(timings) - len(below)} of {len(timings)}"
    if not below:
        return f"{line} cases."
    return f"{line} cases. Below (and what {TARGET}x would be as memory read): {', '.join(below)}."


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--samples", type=int, nargs="+", default=SAMPLES, metavar="N")
    parser.add_argument("--dimensions", type=int, nargs="+", default=DIMENSIONS, metavar="D")
    parser.add_argument("--quick", action="store_true", help="n up to 512, d up to 100, 3 rounds")
    options = parser.parse_args(arguments)
    if options.quick:
        options.samples = [n for n in options.samples if n <= 512]
        options.dimensions = [d for d in options.dimensions if d <= 100]
        options.rounds = min(options.rounds, 3)
    theirs, loops = u_stats_peers(), loop_peers()
    rows: dict[str, list[list[str]]] = {"u-stats": [], "loops": []}
    reached: dict[str, dict[tuple[int, int], Timing]] = {}
    for n, d in product(options.samples, options.dimensions):
        for name, peers in (("u-stats", theirs), ("loops", loops)):
            ours, found = compare(peers, n, d, options.rounds)
            cells = [cell for timing in found for cell in timing.cells()[name == "loops" :]]
            rows[name].append([str(n), f"{d:,}", duration(ours), *cells])
            for timing in found:
                reached.setdefault(timing.peer.way, {})[n, d] = timing
    print(f"{machine('numpy', 'numba', 'u-stats', 'opt_einsum', 'torch')}\n")
    print(
        f"Up to {options.rounds} rounds, each of which times both. Times are the least; a ratio is"
    )
    print("the peer's least time over ours [median of the rounds' ratios]; ~ is extrapolated.\n")
    start = ["n", "d", "ours"]
    if theirs:
        head = [[way, "time", "ratio"] for way in (KERNEL, REWRITTEN)]
        print(table(rows["u-stats"], [*start, *head[0], *head[1]]))
        print()
        print("\n".join(verdict(way, reached[way]) for way in (KERNEL, REWRITTEN)))
    else:
        print("u-stats is not installed: its tables are left out (pip install u-stats).")
    print()
    print(table(rows["loops"], [*start, GENERAL, "ratio", COMPILED, "ratio"]))
    return 0


def table(rows: list[list[str]], header: list[str]) -> str:
    return tabulate(rows, header, tablefmt="github", disable_numparse=True)


if __name__ == "__main__":
    sys.exit(main())
