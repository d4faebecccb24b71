"""``python -m simulations mutants``: plant each error, run the claims named, and print what became of it."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ustat_pg._version import __version__
from ustat_pg.reading import read_json
from ustat_pg.validation import InputError

from .errors import ENGINES, RECORDS, ROOT, PlantedError, errors

__all__ = ["add_arguments", "run"]


STRIDE = 20
"""Errors are planted in the order first, twenty-first, ...; second, twenty-second, ..."""


def add_arguments(commands: Any, stems: Sequence[str]) -> None:
    """The command's arguments."""
    command = commands.add_parser(
        "mutants",
        help="plant errors in the program, one at a time, and see what verify says of each",
        description="Plant named errors of one line in the program, one at a time; run the claims that "
        "each may reach, by enumeration first; print a table of errors and verdicts. No file is "
        "changed. Killed at any moment, the same command continues.",
        epilog="Verdicts: REFUTED, as it should be; INCONCLUSIVE; ERROR, the program stopped with a "
        "message; TIMEOUT; CONFIRMED, a survivor. Exit codes: 0 all as they must be, 1 a survivor (or one "
        "refuted that is argued to change nothing), 2 usage or input, 3 neither, 130 interrupted.",
    )
    command.add_argument(
        "claims", nargs="*", metavar="CLAIM",
        help=f"errors that may reach these claims (default: all), of: {', '.join(stems)}",
    )  # fmt: skip
    command.add_argument(
        "--on", choices=tuple(RECORDS), default="bandit",
        help="errors of claims on bandits (default), or on language models: minutes each",
    )  # fmt: skip
    command.add_argument("--size", choices=("smoke", "quick"), default="smoke")
    which = command.add_mutually_exclusive_group()
    which.add_argument("--only", metavar="NAME", help="errors whose name or file holds this text")
    which.add_argument(
        "--sample", metavar="K/N", help="the K-th of N parts, each spread over all layers"
    )
    command.add_argument(
        "--engine", choices=ENGINES, default="cpu",
        help="exact: enumerate alone, and leave out errors in what only simulation calls (default: "
        "cpu, simulation where enumeration says nothing)",
    )  # fmt: skip
    command.add_argument(
        "--list", action="store_true", help="say what would be planted; run nothing"
    )
    command.add_argument(
        "--workers",
        "-n",
        type=int,
        default=os.cpu_count() or 1,
        help="processes (default: all cores)",
    )
    command.add_argument(
        "--limit", type=int, default=900, metavar="SECONDS", help="of one error (default: 900)"
    )
    command.add_argument("--out", type=Path, metavar="DIR", help="default: results/mutants")
    command.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="write the table as JSON too; interrupted, the part of it that is known",
    )
    command.add_argument(
        "--against", type=Path, metavar="FILE", help="a record: fail where an error that it has as "
        "refuted is not, and nowhere else",
    )  # fmt: skip
    command.add_argument(
        "--verified", action="store_true", help="the true program is confirmed already, by verify at "
        "this size: it is not run again",
    )  # fmt: skip
    command.add_argument("--json", action="store_true", help="one JSON object on stdout")


def chosen(options: argparse.Namespace, stems: Sequence[str]) -> list[PlantedError]:
    """The errors asked for.

    Raises:
        InputError: an unknown claim, a part that there is not, or no error that fits.
    """
    for stem in options.claims:
        if stem not in stems:
            raise InputError(f"claim {stem!r} is unknown: choose of {', '.join(stems)}")
    found = list(errors(options.on).values())
    if options.claims:
        found = [error for error in found if set(error.stems) & set(options.claims)]
    if options.engine == "exact":
        found = [error for error in found if "exact" in error.engines]
    if options.only:
        text = options.only.lower()
        found = [e for e in found if text in e.name.lower() or text in e.file.lower()]
    if options.sample:
        place, _, parts = options.sample.partition("/")
        if not (place.isdecimal() and parts.isdecimal() and 1 <= int(place) <= int(parts)):
            raise InputError(f"--sample {options.sample}: it is written K/N, 1/20 for example")
        found = found[int(place) - 1 :: int(parts)]
    if not found:
        raise InputError("no error fits: see python -m simulations mutants --list")
    return found


def run(options: argparse.Namespace, stems: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    asked = chosen(options, stems)
    if options.list:
        print(_difference(asked[0]) if len(asked) == 1 else _catalogue(asked))
        return 0
    from tqdm import tqdm

    from .runner import Found, Mutants

    engines = ENGINES[: ENGINES.index(options.engine) + 1]
    folder = options.out or Path("results/mutants")
    mutants = Mutants(
        options.size, folder, options.workers, options.limit, engines=engines,
        verified=options.verified,
    )  # fmt: skip
    known = sum(mutants.found(error) is not None for error in asked)
    with tqdm(total=len(asked), initial=known, desc="planted", disable=None, leave=False) as bar:

        def said(error: PlantedError, found: Found) -> None:
            bar.update()
            if found.verdict not in error.allowed:
                bar.write(f"{found.verdict:12} {error.name}  ({error.file})", file=sys.stderr)

        try:
            # Spread over the layers from the first on: what an interruption leaves is a fair part.
            mutants.run([error for first in range(STRIDE) for error in asked[first::STRIDE]], said)
        finally:
            known_ones = ((error, mutants.found(error)) for error in asked)
            rows = [_row(error, found) for error, found in known_ones if found is not None]
            table = {"version": __version__, "size": options.size, "source": mutants.source}
            table["errors"] = rows
            if options.record:
                options.record.write_text(_compact(table), encoding="utf-8")
    if options.json:
        print(json.dumps(table, ensure_ascii=False))
    else:
        print(_table(rows))
        print(f"\n{summary(rows)}")
    if options.against:
        lost = _lost(rows, read_json(options.against), options.engine)
        for name in lost:
            print(f"- refuted in {options.against}, and no longer: {name}", file=sys.stderr)
        return int(bool(lost))
    return exit_code(rows)


def _lost(rows: Sequence[dict[str, Any]], record: dict[str, Any], engine: str) -> list[str]:
    """The errors that a record has as refuted, in a way that was taken, and these rows have not."""
    by = ("exact", "design") if engine == "exact" else ("exact", "design", "simulation", "control")
    then = {
        row["name"] for row in record["errors"] if row["verdict"] == "REFUTED" and row["by"] in by
    }
    return [row["name"] for row in rows if row["name"] in then and row["verdict"] != "REFUTED"]


def _row(error: PlantedError, found: Any) -> dict[str, Any]:
    """One error, and what became of it."""
    return {
        "name": error.name,
        "layer": error.layer,
        "file": error.file,
        **asdict(found),
        "equivalent": bool(error.equivalent),
        "silent": bool(error.silent),
        "allowed": list(error.allowed),
    }


def _compact(table: dict[str, Any]) -> str:
    """JSON with a line for each error: what does not stand in its data."""
    said = ("name", "verdict", "stem", "engine", "by", "check")
    kept = [{name: row[name] for name in said} for row in table["errors"]]
    rows = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in kept)
    head = json.dumps({**table, "errors": []}, ensure_ascii=False)
    return f"{head[:-2]}\n{rows}\n]}}\n"


def exit_code(rows: Sequence[dict[str, Any]]) -> int:
    """0 if all are as they must be, 1 for a survivor or a refuted one that is none, 3 if neither."""
    off = [row for row in rows if row["verdict"] not in row["allowed"]]
    if any(row["equivalent"] or row["verdict"] == "CONFIRMED" for row in off):
        return 1
    return 3 if off else 0


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """What became of all of them, in a few lines; survivors by name."""
    counted = [row for row in rows if not row["equivalent"] and not row["silent"]]
    verdicts = Counter(row["verdict"] for row in counted)
    kinds = Counter(row["by"] for row in counted if row["verdict"] == "REFUTED")
    said = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    lines = [
        f"{len(counted)} planted: {said or 'none'}. "
        f"{kinds['exact']} of them are refuted by enumeration, {kinds['simulation']} by simulation, "
        f"{kinds['control']} by a run's controls, {kinds['design']} because a formula fails."
    ]
    for kind, words in (
        ("equivalent", "Argued to change nothing"),
        ("silent", "Leave nothing to refute, and must not be CONFIRMED"),
    ):
        if count := sum(row[kind] for row in rows):
            lines.append(f"{words}: {count}.")
    lines += [
        f"- {row['verdict']}: {row['name']} ({row['file']})"
        for row in rows
        if row["verdict"] not in row["allowed"]
    ]
    return "\n".join(lines)


def _table(rows: Sequence[dict[str, Any]]) -> str:
    """Error against verdict, layer by layer."""
    from tabulate import tabulate

    shown, layer = [], ""
    for row in rows:
        verdict = "equivalent" if row["equivalent"] else row["verdict"]
        evidence = f"{row['stem']}, {row['by']}: {row['check']}" if row["by"] else row["check"]
        shown.append(
            ["" if row["layer"] == layer else row["layer"], row["name"], verdict, evidence[:70]]
        )
        layer = row["layer"]
    return tabulate(shown, ["layer", "error", "verdict", "first seen by"])


def _catalogue(asked: Sequence[PlantedError]) -> str:
    """The errors, and where they are planted."""
    from tabulate import tabulate

    rows = [[error.layer, error.name, error.file, " ".join(error.stems)] for error in asked]
    return tabulate(rows, ["layer", "error", "file", "claims"]) + f"\n\n{len(rows)} errors."


def _difference(error: PlantedError) -> str:
    """One error as a difference of its file."""
    before = (ROOT / error.file).read_text(encoding="utf-8").splitlines()
    after = error.source().splitlines()
    lines = difflib.unified_diff(before, after, error.file, f"{error.name}", lineterm="", n=1)
    why = {"Equivalent": error.equivalent, "Leaves nothing to refute": error.silent}
    return "\n".join([*lines, *(f"{what}: {said}" for what, said in why.items() if said)])
