"""``WeightedChi2`` against its peers: ``python -m benchmarks.weighted_chi2 [--rounds N] [--quick]``.

Peers are Imhof's integral through ``scipy.integrate.quad``, its integrand in NumPy and compiled;
the moment methods of ``momentchi2``; and Davies' sum, the characteristic function inverted on one
grid for all points, which is what a careful NumPy user would write for arrays. Beside each time
stands the largest absolute error of the cdf, and a peer is *valid* where that is at most 1e-6.

Errors are measured at reference points of 30 digits from far below to far above (``tests/data``),
and at the 1,000 points against ``WeightedChi2``, itself compared with the reference here.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import inf, pi
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numba import carray, cfunc, types
from numpy.typing import NDArray
from scipy import LowLevelCallable
from scipy.integrate import IntegrationWarning, quad
from tabulate import tabulate

from benchmarks.measuring import clock, duration, machine, number
from ustat_pg.distributions import WeightedChi2

DATA = Path(__file__).resolve().parents[1] / "tests/data/weighted_chi2_reference.json"
POINTS = 1000
VALID = 1e-6
FEW = 12
"""Points on which a peer that takes them one by one is timed; the others cost the same."""

CHUNK = 2**22

Array = NDArray[np.float64]


def imhof_numpy(weights: Array, x: float) -> float:
    """Imhof (1961): 1/2 - 1/π ∫ sin θ(u) / (u ρ(u)) du, as his paper has it."""

    def integrand(u: float) -> float:
        theta = 0.5 * np.arctan(weights * u).sum() - 0.5 * x * u
        rho = np.exp(0.25 * np.log1p((weights * u) ** 2).sum())
        return float(np.sin(theta) / (u * rho))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IntegrationWarning)
        value = quad(integrand, 0, inf, limit=1000, epsabs=1e-9, epsrel=1e-9)[0]
    return 0.5 - value / pi


@cfunc(types.double(types.intc, types.CPointer(types.double)))
def _integrand(count: int, arguments: Any) -> float:
    values = carray(arguments, count)
    u, x = values[0], values[1]
    theta = -0.5 * x * u
    rho = 1.0
    for k in range(2, count):
        v = values[k] * u
        theta += 0.5 * np.arctan(v)
        rho *= np.sqrt(np.sqrt(1.0 + v * v))
    return np.sin(theta) / (u * rho)


def imhof_compiled(weights: Array, x: float) -> float:
    """Imhof's integral with a compiled integrand, which quad calls without Python."""
    callback = LowLevelCallable(_integrand.ctypes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IntegrationWarning)
        arguments = (x, *weights.tolist())
        value = quad(callback, 0, inf, arguments, limit=1000, epsabs=1e-9, epsrel=1e-9)[0]
    return 0.5 - value / pi


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


@dataclass(frozen=True)
class Peer:
    """One way to the cdf: ``one`` for a point, ``many`` for an array where it has such a form."""

    name: str
    one: Callable[[Array, float], float]
    many: Callable[[Array, Array], Array] | None = None


def peers() -> list[Peer]:
    """Those that are installed."""
    found = [
        Peer("Imhof, quad", imhof_numpy),
        Peer("Imhof, quad, compiled", imhof_compiled),
        Peer("Davies' sum, NumPy", lambda w, x: float(davies(w, np.array([x]))[0]), davies),
    ]
    if find_spec("momentchi2"):
        import momentchi2

        for name in ("sw", "hbe", "wf", "lpb4"):
            function = getattr(momentchi2, name)
            found.append(Peer(f"momentchi2 {name}", *(lambda w, x, f=function: f(w, x),) * 2))
    return found


@dataclass(frozen=True)
class Case:
    """Weights, reference points with both tails, and the 1,000 points."""

    name: str
    weights: Array
    x: Array
    cdf: Array
    sf: Array

    @property
    def points(self) -> Array:
        """1,000 draws of the law."""
        return np.asarray(WeightedChi2(self.weights).rvs(POINTS, random_state=1))

    @property
    def middle(self) -> float:
        """The reference point nearest to the median."""
        return float(self.x[np.abs(self.cdf - 0.5).argmin()])


def cases(only: int | None = None) -> list[Case]:
    """The sets of weights with reference values, those of at most ``only`` weights."""
    found = []
    for entry in json.loads(DATA.read_text(encoding="utf-8"))["sets"]:
        x, cdf, sf = (
            np.array([float(point[key]) for point in entry["points"]]) for key in ("x", "cdf", "sf")
        )
        if only is None or len(entry["weights"]) <= only:
            found.append(Case(entry["name"], np.array(entry["weights"]), x, cdf, sf))
    return found


@dataclass(frozen=True)
class Row:
    """The time of one way and its error on one case; times are per point."""

    name: str
    one: float
    many: float
    each: bool
    error: float
    tail: float

    @property
    def valid(self) -> bool:
        return self.error <= VALID


def _worst(values: Array) -> float:
    """The largest, where NaN is the worst of all."""
    return float(np.where(np.isnan(values), inf, values).max())


def _safe(function: Callable[..., Any], *arguments: Any) -> Any:
    """The value, or NaN where a peer raises."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return function(*arguments)
    except Exception:
        return np.nan


def ours(case: Case, kept: bool = False) -> Row:
    """WeightedChi2 on a case, a new object for every call or one for all.

    Raises:
        SystemExit: the law misses the reference.
    """
    weights, x = case.weights, case.points
    law = WeightedChi2(weights)
    error = np.maximum(np.abs(law.cdf(case.x) - case.cdf), np.abs(law.sf(case.x) - case.sf)).max()
    smaller = case.cdf < case.sf
    tails = np.where(smaller, law.cdf(case.x) / case.cdf, law.sf(case.x) / case.sf)
    tail = np.abs(tails - 1).max()
    if not (error <= 1e-12 and tail <= 1e-8):
        raise SystemExit(f"WeightedChi2 misses the reference on {case.name}: {error}, {tail}")
    if kept:
        one, many = clock(lambda: law.cdf(case.middle)), clock(lambda: law.cdf(x)) / POINTS
        return Row("WeightedChi2, kept", one, many, False, float(error), float(tail))
    one = clock(lambda: WeightedChi2(weights).cdf(case.middle))
    many = clock(lambda: WeightedChi2(weights).cdf(x)) / POINTS
    return Row("WeightedChi2", one, many, False, float(error), float(tail))


def theirs(peer: Peer, case: Case) -> Row:
    """A peer on a case."""
    weights, x = case.weights, case.points
    cdf = np.array([_safe(peer.one, weights, float(point)) for point in case.x])
    few = x[:: POINTS // FEW]
    true = WeightedChi2(weights).cdf(x)
    values = (
        np.array([_safe(peer.one, weights, float(point)) for point in few])
        if peer.many is None
        else np.broadcast_to(_safe(peer.many, weights, x), POINTS)
    )
    wanted = true[:: POINTS // FEW] if peer.many is None else true
    error = max(_worst(np.abs(cdf - case.cdf)), _worst(np.abs(values - wanted)))
    smaller = case.cdf < case.sf
    tail = _worst(np.abs(np.where(smaller, cdf / case.cdf, (1 - cdf) / case.sf) - 1))
    one = clock(lambda: _safe(peer.one, weights, case.middle))
    if peer.many is None:
        start = perf_counter()
        for point in few:
            _safe(peer.one, weights, float(point))
        many = (perf_counter() - start) / len(few)
    else:
        many = clock(lambda: _safe(peer.many, weights, x)) / POINTS
    return Row(peer.name, one, many, peer.many is None, error, tail)


def compare(case: Case, ways: Sequence[Peer], rounds: int) -> list[Row]:
    """All on one case, in turn, round by round; times are the least."""
    _safe(ours, case)
    rows = [
        [ours(case), ours(case, kept=True), *(theirs(peer, case) for peer in ways)]
        for _ in range(rounds)
    ]
    return [
        Row(
            row.name,
            min(other.one for other in same),
            min(other.many for other in same),
            row.each,
            row.error,
            row.tail,
        )
        for row, same in zip(rows[0], zip(*rows, strict=True), strict=True)
    ]


def lines(case: Case, rows: Sequence[Row]) -> list[list[str]]:
    """A case's rows as the table shows them."""
    first = rows[0]
    return [
        [
            f"{case.name} ({len(case.weights)})",
            row.name,
            f"{row.error:.0e}",
            f"{row.tail:.0e}",
            "yes" if row.valid else "no",
            duration(row.one),
            f"{duration(row.many)}{' (each)' if row.each else ''}",
            number(row.one / first.one),
            number(row.many / first.many),
        ]
        for row in rows
    ]


def verdict(case: Case, rows: Sequence[Row]) -> str:
    """The ratio to the fastest valid peer, at one point and at 1,000."""
    valid = [row for row in rows if row.valid and not row.name.startswith("WeightedChi2")]
    if not valid:
        return f"- {case.name}: no peer is valid."
    words = []
    for what in ("one", "many"):
        best = min(valid, key=lambda row: getattr(row, what))
        ratio = getattr(best, what) / getattr(rows[0], what)
        words.append(f"{number(ratio)} ({best.name})")
    return f"- {case.name}: fastest valid peer's time over ours, one point {words[0]}, 1,000 {words[1]}."


HEADER = [
    "weights", "program", "error", "tail error", "valid", "one point", "per point of 1,000",
    "ratio, one", "ratio, 1,000",
]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="up to 20 weights, one round")
    options = parser.parse_args(arguments)
    found = cases(20 if options.quick else None)
    ways = peers()
    rows, verdicts = [], []
    valid: dict[str, int] = {}
    for case in found:
        measured = compare(case, ways, 1 if options.quick else options.rounds)
        rows += lines(case, measured)
        verdicts.append(verdict(case, measured))
        for row in measured:
            valid[row.name] = valid.get(row.name, 0) + row.valid
    print("# WeightedChi2 against its peers\n")
    words = machine("numpy", "scipy", "numba", "momentchi2")
    print(f"`python -m benchmarks.weighted_chi2`; {words}.\n")
    print(
        f"Least times of {1 if options.quick else options.rounds} rounds in one process; ours "
        "include making the object, or keep it. A ratio is the time over ours.\n"
        "`error` is the largest absolute error of the cdf, `tail error` the largest relative error "
        "of the smaller tail\nat the reference points (down to 1e-12; inf where a peer raises or "
        f"gives NaN); valid means an error of at most {VALID:g}.\n"
        "`(each)`: the peer takes points one by one.\n"
    )
    if not find_spec("momentchi2"):
        print("momentchi2 is not installed: its rows are left out.\n")
    print("\n".join(verdicts))
    counts = ", ".join(f"{name} {count}" for name, count in valid.items())
    print(f"- Valid on how many of {len(found)}: {counts}.")
    print()
    print(tabulate(rows, HEADER, tablefmt="github", disable_numparse=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
