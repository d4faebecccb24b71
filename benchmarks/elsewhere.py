"""The claims by other instructions: ``python -m benchmarks.elsewhere [--on KIND]`` decides them all at the
size smoke by enumeration, as this machine does, as others would and with every index checked, and prints
what differs.

Which checks, rivals and points there are and what is said of each follow from the problems. Of what a
processor or a library rounds in its own way, values alone may show, by :data:`LAST` and :data:`SAID`.
Draws whose address holds a computed number are other ones: how many is said.

``python -m benchmarks.elsewhere --by plain COMMAND ...`` runs a command by those instructions.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import isfinite, isnan
from pathlib import Path

import numpy as np

from benchmarks.measuring import THREADS
from simulations import NETWORKS, ON_NETWORKS, STEMS, Suite
from simulations.evidence import Claim, Options, run_claims
from simulations.evidence.curves import Point
from simulations.evidence.findings import CheckResult
from simulations.evidence.planted import run_controls
from simulations.evidence.store import Memory
from simulations.evidence.verdict import ROUNDING
from simulations.processes import designs

LAST = 1e-12
"""The share of its size by which what is enumerated may differ: some thousands of roundings."""

SAID = 1e-10
"""The same for what is predicted: extrapolations multiply roundings. A decider takes numbers for the same
that are ten times as far apart.
"""

MOST = 40
"""Differences that are printed."""

Fact = str | tuple[float, float]
"""A text, or a number and how far off another may be."""

CHECKED = Path("build/checked").resolve()

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def instructions() -> dict[str, dict[str, str]]:
    """Variables of the environment, by a name for what they make of this machine."""
    compiled = {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
        "NUMBA_CPU_NAME": "generic",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
    }
    found = np.show_config(mode="dicts")["SIMD Extensions"].get("found", ())
    arrays = {"OPENBLAS_CORETYPE": "Nehalem", "NPY_DISABLE_CPU_FEATURES": " ".join(found)}
    return {
        "here": ONE_THREAD,
        # What every processor of 2009 has.
        "plain": ONE_THREAD | compiled | arrays,
        # Fused products in arrays alone.
        "haswell": ONE_THREAD | compiled | {"OPENBLAS_CORETYPE": "Haswell"},
        "two-threads": dict.fromkeys(ONE_THREAD, "2"),
        # What is read past an array's end stops a run, and what was never written is no 0. What is
        # compiled so has a folder of its own: numba's names of what it keeps do not tell it apart.
        "checked": ONE_THREAD
        | {"NUMBA_BOUNDSCHECK": "1", "MALLOC_PERTURB_": "165", "NUMBA_CACHE_DIR": str(CHECKED)},
    }


def facts(on: str, stems: Sequence[str] = ()) -> tuple[dict[str, Fact], list[str]]:
    """What this process says of claims and of the points of their figures, and where draws are addressed."""
    options = Options("smoke", "exact")
    made, shown, failed = designs(
        stems or (STEMS if on == "bandit" else ON_NETWORKS), Suite("smoke", on=on)
    )
    run = run_claims(made, options, Memory()).with_failed(failed)
    told: dict[str, Fact] = {
        f"control of {control.name}": control.said or "held"
        for control in run_controls(made, options)
    }
    for claim in run.claims:
        told[claim.stem] = claim.failure or claim.verdict
        told |= {f"{claim.stem}, rival {rival.name}": rival.verdict for rival in claim.rivals}
        for check in claim.checks:
            name = f"{claim.stem}: {check.name}"
            told |= {f"{name}, {what}": said for what, said in _said(check)}
    for design, points in zip(made, shown, strict=True):
        for number, point in enumerate(points):
            name = f"{design.stem}: point {number} of {point.figure}, {point.series}"
            for what, value in {**point.at, "prediction": point.prediction}.items():
                told[f"{name}, {what}"] = (
                    (value, SAID * abs(value)) if isinstance(value, float) else str(value)
                )
    return told, addresses(made, shown)


def addresses(made: Sequence[Claim], shown: Sequence[Sequence[Point]]) -> list[str]:
    """The names of all cells, in the order of the checks and points that read them."""
    checks = [check.functional for claim in made for check in claim.checks]
    points = [point.functional for points in shown for point in points if point.functional]
    return list(dict.fromkeys(cell.name for asked in (*checks, *points) for cell in asked.cells))


def _said(check: CheckResult) -> Iterator[tuple[str, Fact]]:
    """What a check predicts, finds and decides."""
    size = max(check.scale, abs(check.prediction))
    # Where a quantity is rounding itself, its functional knows how much.
    floor = check.rounding if check.rounding > ROUNDING * check.scale else 0.0

    def number(value: float, share: float = SAID) -> Fact:
        return value, max(floor, share * (max(size, abs(value)) if isfinite(value) else size))

    yield "origin", check.origin
    yield "prediction", number(check.prediction)
    for name, values in check.rivals.items():
        for end in ("low", "high") if values is not None else ():
            yield f"{end} end of {name!r}", number(getattr(values, end))
    if check.exact is None:
        yield "not enumerated", str(check.not_enumerated)
        return
    yield "verdict", check.exact.verdict
    yield "enumerated", number(check.exact.estimate, LAST)
    for name, verdict in check.exact.rivals.items():
        yield f"verdict on {name!r}", verdict


def differences(here: Mapping[str, Fact], there: Mapping[str, Fact]) -> list[str]:
    """A line for everything that two runs say otherwise: texts, and numbers by more than they may."""
    lines = [f"{name}: only here" for name in here if name not in there]
    lines += [f"{name}: only there" for name in there if name not in here]
    if not lines and list(here) != list(there):
        lines.append("the order differs")
    for name in here:
        if name in there and not _alike(one := here[name], other := there[name]):
            lines.append(f"{name}: {one} here, {other} there")
    return lines


def _alike(here: Fact, there: Fact) -> bool:
    if isinstance(here, str) or isinstance(there, str):
        return here == there
    (one, within), (other, _) = here, there
    if one == other or (isnan(one) and isnan(other)):
        return True
    return abs(one - other) <= within


def ask(words: Sequence[str], variables: Mapping[str, str]) -> tuple[dict[str, Fact], list[str]]:
    """The facts and addresses of a process of its own with these variables in its environment."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "told.json"
        command = [sys.executable, "-m", "benchmarks.elsewhere", *words, "--write", str(file)]
        subprocess.run(command, env={**os.environ, **variables}, check=True)
        told, drawn = json.loads(file.read_text(encoding="utf-8"))
    return told, drawn


def main(arguments: Sequence[str] | None = None) -> int:
    known = instructions()
    parser = argparse.ArgumentParser(description=str(__doc__).partition(":")[0])
    parser.add_argument(
        "--on", choices=("bandit", *NETWORKS), default="bandit", help="the problems"
    )
    parser.add_argument(
        "--claim", action="append", choices=STEMS, default=[], help="not all of them"
    )
    parser.add_argument("--by", choices=known, help="run COMMAND by these instructions instead")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    given = parser.parse_args(arguments)
    if bool(given.command) != (given.by is not None):
        parser.error("--by NAME and COMMAND go together")
    if given.command:
        return subprocess.run(given.command, env={**os.environ, **known[given.by]}).returncode
    if given.write is not None:
        given.write.write_text(json.dumps(facts(given.on, given.claim)), encoding="utf-8")
        return 0
    words = ["--on", given.on, *(word for stem in given.claim for word in ("--claim", stem))]
    with ThreadPoolExecutor(THREADS) as pool:
        (here, drawn), *others = pool.map(lambda by: ask(words, by), known.values())
    differs = False
    for name, (there, others_drawn) in zip([*known][1:], others, strict=True):
        lines = differences(here, there)
        differs |= bool(lines)
        moved = len({*others_drawn} - {*drawn})
        print(
            f"{name}: {len(lines)} of {len(here)} facts differ; draws of {moved} of {len(drawn)} cells"
        )
        print(*(f"  {line}\n" for line in lines[:MOST]), sep="", end="")
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
