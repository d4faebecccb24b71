"""``WeightedChi2`` against its peer: ``python -m benchmarks.weighted_chi2 [--rounds N] [--quick]``.

The peer is Davies' sum, the characteristic function inverted on one grid for all points, which is what a
careful NumPy user would write for arrays. Beside each time stands the largest absolute error of the cdf,
and a peer is *valid* where that is at most 1e-6. Errors are measured at reference points of 30 digits from
far below to far above (``tests/data``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, pi
from pathlib import Path

import numpy as np

from benchmarks.measuring import clock, duration, machine, number, options_of, show
from ustat_pg.distributions import WeightedChi2
from ustat_pg.validation import Array

DATA = Path(__file__).resolve().parents[1] / "tests/data/weighted_chi2_reference.json"
POINTS = 1000
VALID = 1e-6
CHUNK = 2**22


def davies(weights: Array, x: Array) -> Array:
    """Davies (1973): 1/2 - Σ Im(φ((k + ½)Δ) e^{-i (k + ½) Δ x}) / (π (k + ½)), k < K.

    Δ is set so that what folds back is below 1e-8 by Chernoff's bound, K so that the terms left
    out are (by their size; at most 2^15).
    """
    top, mean, spread = weights.max(), weights.sum(), np.sqrt(2 * (weights**2).sum())
    beyond = max(x.max(), mean + spread)
    # P(Q > b) <= e^{-sb} Π (1 - 2 w s)^{-1/2}, over a few s.
    s = np.linspace(0.02, 0.98, 49) / (2 * top)
    power = -0.5 * np.log1p(-2 * weights * s[:, None]).sum(axis=1)
    end = ((power + np.log(1e9)) / s).min()
    step = 2 * pi / (end + beyond)
    count = 64
    while count < 2**15:
        u = (count + 0.5) * step
        if np.exp(-0.25 * np.log1p(4 * (weights * u) ** 2).sum()) < 1e-8:
            break
        count *= 2
    index = np.arange(count) + 0.5
    u = index * step
    phase, size = np.empty(count), np.empty(count)
    block = max(1, CHUNK // len(weights))
    for start in range(0, count, block):
        v = 2 * u[start : start + block, None] * weights
        phase[start : start + block] = 0.5 * np.arctan(v).sum(axis=1)
        size[start : start + block] = np.exp(-0.25 * np.log1p(v**2).sum(axis=1))
    size /= pi * index
    out = np.empty(len(x))
    rows = max(1, CHUNK // count)
    for start in range(0, len(x), rows):
        part = x[start : start + rows, None]
        out[start : start + rows] = 0.5 - np.sin(phase - part * u) @ size
    return out


def ours(weights: Array, x: Array) -> Array:
    """A new law for every call."""
    return np.asarray(WeightedChi2(weights).cdf(x))


PROGRAMS: dict[str, Callable[[Array, Array], Array]] = {
    "WeightedChi2": ours,
    "Davies' sum, NumPy": davies,
}
"""Ways to the cdf of weights at points, ours first."""


@dataclass(frozen=True)
class Case:
    """Weights, and reference points with both tails."""

    name: str
    weights: Array
    x: Array
    cdf: Array
    sf: Array


def cases(most: float = inf) -> list[Case]:
    """The sets with reference values of at most so many weights."""
    sets = json.loads(DATA.read_text(encoding="utf-8"))["sets"]
    return [
        Case(
            entry["name"],
            np.array(entry["weights"]),
            *(np.array([float(p[key]) for p in entry["points"]]) for key in ("x", "cdf", "sf")),
        )
        for entry in sets
        if len(entry["weights"]) <= most
    ]


def errors(case: Case, name: str) -> tuple[float, float]:
    """The largest absolute error of the cdf, and relative error of the smaller tail."""
    with np.errstate(all="ignore"):
        cdf = PROGRAMS[name](case.weights, case.x)
    sf = WeightedChi2(case.weights).sf(case.x) if name == "WeightedChi2" else 1 - cdf
    error = float(np.maximum(np.abs(cdf - case.cdf), np.abs(sf - case.sf)).max())
    tails = np.where(case.cdf < case.sf, cdf / case.cdf, sf / case.sf)
    tail = float(np.abs(tails - 1).max())
    if name == "WeightedChi2" and not (error <= 1e-12 and tail <= 1e-8):
        raise SystemExit(f"WeightedChi2 misses the reference on {case.name}: {error}, {tail}")
    return error, tail


def measure(case: Case, rounds: int) -> tuple[list[list[str]], str]:
    """A row for each program, and the ratio to the peer; times are the least of rounds."""
    middle = case.x[[np.abs(case.cdf - 0.5).argmin()]]
    points = np.asarray(WeightedChi2(case.weights).rvs(POINTS, random_state=1))
    accuracy = {name: errors(case, name) for name in PROGRAMS}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in PROGRAMS}
    for _ in range(rounds):
        for name, program in PROGRAMS.items():
            one = clock(lambda program=program: program(case.weights, middle))
            all_of = clock(lambda program=program: program(case.weights, points))
            times[name].append((one, all_of / POINTS))
    least = {name: np.min(pairs, axis=0) for name, pairs in times.items()}
    rows = [
        [
            f"{case.name} ({len(case.weights)})",
            name,
            *(f"{error:.0e}" for error in accuracy[name]),
            "yes" if accuracy[name][0] <= VALID else "no",
            *map(duration, least[name]),
            *map(number, least[name] / least["WeightedChi2"]),
        ]
        for name in PROGRAMS
    ]
    (peer,) = set(PROGRAMS) - {"WeightedChi2"}
    if accuracy[peer][0] > VALID:
        return rows, f"- {case.name}: the peer is not valid."
    one, many = least[peer] / least["WeightedChi2"]
    times = f"one point {number(one)}, {POINTS:,} {number(many)}"
    return rows, f"- {case.name}: the peer's time over ours, {times}."


HEADER = [
    "weights", "program", "error", "tail error", "valid", "one point", "per point of 1,000",
    "ratio, one", "ratio, 1,000",
]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(__doc__, arguments, rounds=5)
    rounds = 1 if options.quick else options.rounds
    measured = [measure(case, rounds) for case in cases(20 if options.quick else inf)]
    notes = [
        f"`python -m benchmarks.weighted_chi2`; {machine('numpy', 'scipy')}.",
        f"Least times of {rounds} rounds in one process; a ratio is the time over ours.",
        "\n".join(verdict for _, verdict in measured),
    ]
    rows = [row for part, _ in measured for row in part]
    show("WeightedChi2 against its peer", notes, rows, HEADER)
    return 0


if __name__ == "__main__":
    sys.exit(main())
