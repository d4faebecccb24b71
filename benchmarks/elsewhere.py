"""The claims by other instructions: ``python -m benchmarks.elsewhere [--on KIND]`` decides them all at the
size smoke by enumeration, as this machine does and as others would, and prints what differs.

Which checks, rivals and points there are, what is said of each and where its draws are addressed follow
from the problems. Of what a processor or a library rounds in its own way, values alone may show, by
:data:`LAST`. ``python -m benchmarks.elsewhere --by NAME COMMAND ...`` runs a command by those instructions.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from pathlib import Path

import numpy as np

from simulations import KINDS, ON_NETWORKS, STEMS, Suite
from simulations.evidence import Options, run_claims
from simulations.evidence.findings import CheckResult
from simulations.evidence.planted import run_controls
from simulations.evidence.store import Memory
from simulations.processes import designs

LAST = 1e-12
"""The share of a number's size by which it may differ: some thousands of roundings."""

MOST = 40
"""Differences that are printed."""

Facts = dict[str, str | list[float]]
"""What a run says, by what it is said of: a text, or a number and the size that it is compared by."""

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
    two_threads = {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    return {
        "here": ONE_THREAD,
        # No instruction that a processor of 2009 lacks.
        "plain": ONE_THREAD | compiled | arrays,
        # Fused products in arrays alone.
        "haswell": ONE_THREAD | compiled | {"OPENBLAS_CORETYPE": "Haswell"},
        "two-threads": two_threads,
    }


def facts(on: str) -> Iterator[tuple[str, str | list[float]]]:
    """What this process says of every claim and of every point of its figures."""
    stems, options = STEMS if on == "bandit" else ON_NETWORKS, Options("smoke", "exact")
    made, shown, failed = designs(stems, Suite("smoke", on=on))
    run = run_claims(made, options, Memory()).with_failed(failed)
    for control in run_controls(made, options):
        yield f"control of {control.name}", control.said or "held"
    cells = {
        (claim.stem, check.name): [cell.name for cell in check.functional.cells]
        for claim in made
        for check in claim.checks
    }
    for claim in run.claims:
        yield claim.stem, claim.failure or claim.verdict
        for rival in claim.rivals:
            yield f"{claim.stem}, rival {rival.name}", rival.verdict
        for check in claim.checks:
            name = f"{claim.stem}: {check.name}"
            yield name, f"{check.origin}, drawn at {' '.join(cells[claim.stem, check.name])}"
            yield from ((f"{name}, {what}", said) for what, said in _said(check))
    for stem, points in zip((claim.stem for claim in made), shown, strict=True):
        for number, point in enumerate(points):
            name = f"{stem}: point {number} of {point.figure}, {point.series}"
            of = () if point.functional is None else point.functional.cells
            yield name, f"drawn at {' '.join(cell.name for cell in of)}"
            for what, value in {**point.at, "prediction": point.prediction}.items():
                told = isinstance(value, float) and [value, abs(value)]
                yield f"{name}, {what}", told or str(value)


def _said(check: CheckResult) -> Iterator[tuple[str, str | list[float]]]:
    """What a check predicts, finds and decides."""

    def number(value: float) -> list[float]:
        return [value, max(check.scale, abs(check.prediction))]

    yield "prediction", number(check.prediction)
    for name, values in check.rivals.items():
        for end in ("low", "high") if values is not None else ():
            yield f"{end} end of {name!r}", number(getattr(values, end))
    if check.exact is None:
        yield "not enumerated", str(check.not_enumerated)
        return
    yield "verdict", check.exact.verdict
    yield "enumerated", number(check.exact.estimate)
    for name, verdict in check.exact.rivals.items():
        yield f"verdict on {name!r}", verdict


def differences(one: Mapping[str, str | list[float]], other: Facts) -> Iterator[str]:
    """A line for everything that two runs say otherwise: texts, and numbers by more than :data:`LAST`."""
    for name in one.keys() | other.keys():
        if name not in one or name not in other:
            yield f"{name}: only {'there' if name in other else 'here'}"
    both = [[name for name in run if name in one and name in other] for run in (one, other)]
    yield from (
        f"{here}: in another order than {there}"
        for here, there in zip(*both, strict=True)
        if here != there
    )
    for name in both[0]:
        here, there = one[name], other[name]
        if isinstance(here, str) or isinstance(there, str):
            if here != there:
                yield f"{name}: {here} here, {there} there"
        elif not _close(here, there):
            yield f"{name}: {here[0]!r} here, {there[0]!r} there, of size {here[1]:.3g}"


def _close(here: Sequence[float], there: Sequence[float]) -> bool:
    (value, size), (other, _) = here, there
    if value == other or (isnan(value) and isnan(other)):
        return True
    return abs(value - other) <= LAST * max(size, abs(value))


def ask(on: str, variables: Mapping[str, str]) -> Facts:
    """What another process says that has these variables in its environment."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "facts.json"
        words = [sys.executable, "-m", "benchmarks.elsewhere", "--on", on, "--write", str(file)]
        subprocess.run(words, env={**os.environ, **variables}, check=True)
        told: Facts = json.loads(file.read_text(encoding="utf-8"))
    return told


def main(arguments: Sequence[str] | None = None) -> int:
    known = instructions()
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--on", choices=KINDS[:-1], default="bandit", help="the kind of problem")
    parser.add_argument("--by", choices=known, help="run COMMAND by these instructions instead")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    given = parser.parse_args(arguments)
    if bool(given.command) != (given.by is not None):
        parser.error("--by NAME and COMMAND go together")
    if given.command:
        return subprocess.run(given.command, env={**os.environ, **known[given.by]}).returncode
    if given.write is not None:
        given.write.write_text(json.dumps(dict(facts(given.on))), encoding="utf-8")
        return 0
    here, differs = ask(given.on, known.pop("here")), False
    for name, variables in known.items():
        lines = sorted(differences(here, ask(given.on, variables)))
        differs |= bool(lines)
        print(
            f"{name}: {len(lines)} of {len(here)} facts differ",
            *lines[:MOST],
            sep="\n  ",
            flush=True,
        )
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
