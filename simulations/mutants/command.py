"""``python -m simulations mutants``: plant each error, run the claims named, and say what survives."""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import import_module
from inspect import isfunction, unwrap
from pathlib import Path
from typing import Any

from ustat_pg._version import __version__
from ustat_pg.reading import read_json
from ustat_pg.validation import MOST_WORKERS, InputError, integer

from .errors import ENGINES, RECORDS, ROOT, PlantedError, errors, pattern

__all__ = ["add_arguments", "run", "untouched"]

Row = dict[str, Any]
"""The answer on one error, with its name."""


def add_arguments(commands: Any, stems: Sequence[str]) -> None:
    command = commands.add_parser(
        "mutants",
        help="plant errors in the program, one at a time, and see what verify says of each",
        description="Plant named errors of one line in the program, one at a time; run the claims that "
        "each may reach, by enumeration first; say what survives. No file is "
        "changed. Interrupted, the same command continues from its record.",
        epilog="Exit codes: 0 all as they must be, 1 a survivor (or one refuted that is argued to change "
        "nothing), 2 usage or input, 3 neither, 130 interrupted.",
    )
    option = command.add_argument
    option(
        "claims",
        nargs="*",
        metavar="CLAIM",
        help=f"errors that may reach these claims: {', '.join(stems)}",
    )
    option("--on", choices=tuple(RECORDS), default="bandit", help="the claims' problems; language "
           "models take minutes for each error")  # fmt: skip
    option("--size", choices=("smoke", "quick"), default="smoke")
    option("--seed", type=int, default=0, help="of the claims' drawn problems")
    option("--only", metavar="NAME", help="errors whose name or file holds this text")
    option(
        "--sample", metavar="K/N", default="1/1", help="the K-th of N parts, spread over all layers"
    )
    option("--engine", choices=ENGINES, default="cpu", help="exact: enumerate alone, and leave out "
           "errors in what only simulation calls")  # fmt: skip
    option("--list", action="store_true", help="say what would be planted, and which public functions "
           "nothing touches; run nothing")  # fmt: skip
    option("--workers", "-n", type=int, default=os.cpu_count() or 1, help="processes")
    option("--record", type=Path, metavar="FILE", help="keep the table as JSON, and continue it")
    option("--against", type=Path, metavar="FILE", help="a record: fail where an error that it has as "
           "refuted is not, and nowhere else")  # fmt: skip
    option("--verified", action="store_true", help="the true program is confirmed already, by verify at "
           "this size: it is not run again")  # fmt: skip
    command.set_defaults(run=lambda options: run(options, stems))


def chosen(options: argparse.Namespace, stems: Sequence[str]) -> list[PlantedError]:
    """The errors asked for.

    Raises:
        InputError: an unknown claim, a part that there is not, or no error that fits.
    """
    if unknown := set(options.claims) - set(stems):
        raise InputError(f"claim {min(unknown)!r} is unknown: choose one of {', '.join(stems)}")
    place, _, parts = options.sample.partition("/")
    if not (place.isdecimal() and parts.isdecimal() and 1 <= int(place) <= int(parts)):
        raise InputError(f"--sample {options.sample}: it is written K/N, 1/20 for example")
    text = (options.only or "").lower()
    fitting = [
        error
        for error in errors(options.on).values()
        if (not options.claims or set(error.stems) & set(options.claims))
        and (options.engine != "exact" or "exact" in error.engines)
        and (text in error.name.lower() or text in error.file.lower())
    ][int(place) - 1 :: int(parts)]
    if not fitting:
        raise InputError("no error fits: see python -m simulations mutants --list")
    return fitting


def run(options: argparse.Namespace, stems: Sequence[str]) -> int:
    integer("workers", options.workers, maximum=MOST_WORKERS)
    planted = chosen(options, stems)
    if options.list:
        print(_catalogue(planted, options.on))
        return 0
    from tqdm import tqdm

    from .runner import ask, run_errors, source_of

    seed = integer("seed", options.seed, 0)
    head = {"version": __version__, "size": options.size, "seed": seed, "source": source_of()}
    engines = ENGINES[: ENGINES.index(options.engine) + 1]
    rows = _recorded(options.record, head, engines[-1])
    missing = [error for error in planted if error.name not in rows]
    answers = run_errors(missing, options.size, seed, engines, options.workers)
    try:
        for error, answer in tqdm(answers, total=len(missing), desc="planted", disable=None):
            rows[error.name] = {"name": error.name, **answer}
            if answer["verdict"] not in error.allowed:
                print(f"{answer['verdict']:12} {error.name}  ({error.file})", file=sys.stderr)
    finally:
        if options.record:
            every = [rows[name] for name in errors(options.on) if name in rows]
            lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in every)
            text = f"{json.dumps({**head, 'errors': []})[:-2]}\n{lines}\n]}}\n"
            options.record.write_text(text, encoding="utf-8")
    results = [(error, rows[error.name]) for error in planted]
    refuting = {(row["stem"], row["engine"]) for _, row in results if row["verdict"] == "REFUTED"}
    for stem, engine in () if options.verified else sorted(refuting):
        if (true := ask(None, (stem,), options.size, seed, engine))["verdict"] != "CONFIRMED":
            raise InputError(
                f"{stem} by {engine} is {true['verdict']} without any error ({true['check']}): "
                "nothing can be said of errors there"
            )
    print(summary(results))
    if options.against:
        lost = _lost(rows, read_json(options.against), options.engine)
        for name in lost:
            print(f"- refuted in {options.against}, and no longer: {name}", file=sys.stderr)
        return int(bool(lost))
    return exit_code(results)


def _recorded(record: Path | None, head: Row, engine: str) -> dict[str, Row]:
    """The rows of a record of the same program and size that need no other run, by name."""
    held = read_json(record) if record is not None and record.exists() else {}
    if any(held.get(key, 0) != value for key, value in head.items()):
        return {}
    return {
        row["name"]: row
        for row in held["errors"]
        if row["verdict"] == "REFUTED" or row["engine"] == engine
    }


def _lost(rows: dict[str, Row], record: Row, engine: str) -> list[str]:
    """The errors that a record has as refuted, in a way that was taken, and these rows have not."""
    by = ("exact", "design", "test", *(("simulation", "control") if engine != "exact" else ()))
    then = [row for row in record["errors"] if row["verdict"] == "REFUTED" and row["by"] in by]
    names = [row["name"] for row in then if row["name"] in rows]
    return [name for name in names if rows[name]["verdict"] != "REFUTED"]


def _off(results: Sequence[tuple[PlantedError, Row]]) -> list[tuple[PlantedError, Row]]:
    """The errors with a verdict that they must not have."""
    return [(error, row) for error, row in results if row["verdict"] not in error.allowed]


def exit_code(results: Sequence[tuple[PlantedError, Row]]) -> int:
    """0 if all are as they must be, 1 for a survivor or a refuted one that is none, 3 if neither."""
    off = _off(results)
    if any(error.equivalent or row["verdict"] == "CONFIRMED" for error, row in off):
        return 1
    return 3 if off else 0


def summary(results: Sequence[tuple[PlantedError, Row]]) -> str:
    """The verdicts on all errors in a few lines; survivors by name."""
    counted = [row for error, row in results if not error.equivalent and not error.silent]
    verdicts = Counter(row["verdict"] for row in counted)
    kinds = Counter(row["by"] for row in counted if row["verdict"] == "REFUTED")
    words = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    lines = [
        f"{len(counted)} planted: {words or 'none'}. "
        f"{kinds['exact']} of them are refuted by enumeration, {kinds['simulation']} by simulation, "
        f"{kinds['control']} by a run's controls, {kinds['design']} because a formula fails, "
        f"{kinds['test']} by tests."
    ]
    if same := sum(bool(error.equivalent) for error, _ in results):
        lines.append(f"Argued to change nothing: {same}.")
    if silent := sum(bool(error.silent) for error, _ in results):
        lines.append(f"Leave nothing to refute, and must not be CONFIRMED: {silent}.")
    lines += [f"- {row['verdict']}: {error.name} ({error.file})" for error, row in _off(results)]
    return "\n".join(lines)


def _catalogue(planted: Sequence[PlantedError], on: str) -> str:
    """The errors, where they are planted, and the public functions that no error touches."""
    from tabulate import tabulate

    rows = [[error.layer, error.name, error.file, " ".join(error.stems)] for error in planted]
    table = tabulate(rows, ["layer", "error", "file", "claims"])
    missing = "\n".join(untouched(errors(on).values()))
    return f"{table}\n\n{len(rows)} errors.\n\nUnverified: no error touches these functions.\n{missing}"


def untouched(planted: Iterable[PlantedError]) -> list[str]:
    """The public functions of the rooms that errors stand in, but for those that one of them touches.

    An error touches what it stands in, and what reads that in the same file, by whatever steps. Nothing
    shows that ``verify`` sees an error in the others.
    """
    planted = [error for error in planted if error.layer != "claims"]
    missing = []
    rooms = dict.fromkeys(tuple(error.file.removesuffix(".py").split("/")[:2]) for error in planted)
    for package, room in rooms:
        public = import_module(f"{package}.{room}")
        # A module without a list offers what it defines.
        names = (
            n for n, f in vars(public).items() if getattr(f, "__module__", 0) == public.__name__
        )
        for name in getattr(public, "__all__", [n for n in names if not n.startswith("_")]):
            function = unwrap(getattr(public, name))
            if isfunction(function):
                file = Path(function.__code__.co_filename)
                here = [error.old for error in planted if ROOT / error.file == file]
                if not _touched(file.read_text(encoding="utf-8"), function.__name__, here):
                    missing.append(f"{room}.{name}")
    return missing


def _touched(source: str, name: str, snippets: Iterable[str]) -> bool:
    """Whether a snippet stands in what a file defines under a name, or in what that reads there."""
    parts: dict[str, ast.stmt] = {}
    for part in ast.parse(source).body:
        if isinstance(part, ast.FunctionDef | ast.ClassDef):
            parts[part.name] = part
        elif isinstance(part, ast.Assign | ast.AnnAssign):
            parts[next(n.id for n in ast.walk(part) if isinstance(n, ast.Name))] = part
    reached, ahead = set(), [name]
    while ahead:
        if (name := ahead.pop()) in parts and name not in reached:
            reached.add(name)
            ahead += [node.id for node in ast.walk(parts[name]) if isinstance(node, ast.Name)]
    lines = [source.count("\n", 0, match.start()) + 1
             for old in snippets for match in pattern(old).finditer(source)]  # fmt: skip
    ranges = [(parts[name].lineno, parts[name].end_lineno or 0) for name in reached]
    return any(first <= line <= last for first, last in ranges for line in lines)
