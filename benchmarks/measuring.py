"""Clocks and words that benchmarks share."""

from __future__ import annotations

import argparse
import timeit
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count, getloadavg
from pathlib import Path
from platform import processor, python_version
from typing import Any

import numpy as np
from numpy.typing import NDArray
from statsmodels.stats.proportion import proportion_confint
from tabulate import tabulate

from ustat_pg.files.whole import versions

THREADS = 2
"""Threads that programs may use."""

ERRORS = 5.0
"""Standard errors that a mean may be off: a normal deviate exceeds it in 6e-7 of cases."""


def options_of(
    document: str | None, arguments: Sequence[str] | None, rounds: int
) -> argparse.Namespace:
    """``rounds`` and ``quick`` of a benchmark, from its command line."""
    parser = argparse.ArgumentParser(description=str(document).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    return parser.parse_args(arguments)


def clock(function: Callable[[], object], at_least: float = 5e-3) -> float:
    """Seconds of one call, from as many as last ``at_least``."""
    timer = timeit.Timer(function)
    once = timer.timeit(1)
    calls = int(at_least / once) if once < at_least else 0
    return timer.timeit(calls) / calls if calls else once


def in_turn(programs: Sequence[Callable[[], object]], rounds: int) -> NDArray[np.float64]:
    """Seconds (rounds, programs) of one call each, in interleaved rounds: other work falls on all alike."""
    once = [timeit.Timer(program) for program in programs]
    return np.array([[timer.timeit(1) for timer in once] for _ in range(rounds)])


def in_threads(
    function: Callable[[int, int], Any], replications: int, threads: int = THREADS
) -> list[Any]:
    """What a function of the first replication and their number gives, in equal shares, one a thread."""
    share = -(-replications // threads)
    firsts = range(0, replications, share)
    counts = [min(share, replications - first) for first in firsts]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, firsts, counts))


def over_first(spent: NDArray[np.float64]) -> list[str]:
    """Each program's times (rounds, programs) over the first's: median and quartiles of paired rounds."""
    low, middle, high = np.quantile(spent / spent[:, :1], [0.25, 0.5, 0.75], axis=0)
    return [f"{m:.2f} [{a:.2f}, {b:.2f}]" for a, m, b in zip(low, middle, high, strict=True)]


def upper(count: int, runs: int) -> float:
    """The one-sided 95% bound on a share, after Clopper and Pearson."""
    return float(proportion_confint(count, runs, alpha=0.1, method="beta")[1])


def same(what: str, mean: float, error: float, wanted: float, its_error: float = 0.0) -> None:
    """Stop unless a mean is the number wanted within the Monte Carlo errors of both."""
    off = abs(mean - wanted) / np.hypot(error, its_error)
    # Written so that a NaN is refused as well.
    if not off <= ERRORS:
        raise SystemExit(
            f"{what} computes something else: its mean {mean:.6g} is {off:.1f} standard errors "
            f"from {wanted:.6g}"
        )


def number(ratio: float) -> str:
    """A ratio, whole from 10 on."""
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.1f}"


def duration(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


def machine(*packages: str) -> str:
    """The processor, its load, and the versions of Python and of packages."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    installed = versions(*packages)
    return "; ".join(
        [
            f"{names[0] if names else processor()}, {cpu_count()} cores, load {getloadavg()[0]:.1f}",
            f"Python {python_version()}",
            *(f"{name} {installed.get(name, 'not installed')}" for name in packages),
        ]
    )


def show(
    title: str, notes: Iterable[str], rows: Sequence[Sequence[object]], header: Sequence[str]
) -> None:
    """Print a benchmark's results as Markdown."""
    print(f"# {title}\n")
    for note in notes:
        print(f"{note}\n")
    print(tabulate(rows, header, tablefmt="github", disable_numparse=True))
