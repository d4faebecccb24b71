"""Clocks and words that benchmarks share."""

from __future__ import annotations

import timeit
from collections.abc import Callable, Sequence
from os import cpu_count, getloadavg
from pathlib import Path
from platform import processor, python_version

import numpy as np
from numpy.typing import NDArray

from ustat_pg.whole_files import versions

__all__ = ["clock", "duration", "in_turn", "machine", "number"]


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
