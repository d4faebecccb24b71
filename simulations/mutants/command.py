"""``python -m simulations mutants``: plant each error, run the named claims, and list the survivors."""

from __future__ import annotations

import argparse
import ast
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import isfunction, unwrap
from pathlib import Path
from typing import Any

from tabulate import tabulate
from tqdm import tqdm

from ustat_pg._version import __version__
from ustat_pg.files.reading import read_json
from ustat_pg.validation import MOST_WORKERS, InputError, integer, one_of

from .errors import ENGINES, RECORDS, ROOT, SUITE, PlantedError, errors, pattern

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
        epilog="Exit codes: 0 all as they must be, 1 not (a survivor, or one refuted that is argued to "
        "change nothing), 2 usage or input, 130 interrupted.",
    )
    option = command.add_argument
    names = ", ".join(stems)
    option("claims", nargs="*", metavar="CLAIM", help=f"errors that may reach these: {names}")
    on = "the claims' problems; language models take minutes for each error"
    option("--on", choices=tuple(RECORDS), default="bandit", help=on)
    option("--size", choices=("smoke", "quick"), default="smoke")
    option("--only", metavar="NAME", default="", help="errors whose name or file holds this text")
    part = "the K-th of N parts, spread over all layers"
    option("--sample", metavar="K/N", default="1/1", help=part)
    exact = (
        "exact: enumerate alone, and leave out errors in what only simulation calls; test: enumerate, then "
        "ask the tests that make test has for the file"
    )
    option("--engine", choices=(*ENGINES, SUITE), default="cpu", help=exact)
    listed = "say what would be planted, and which public functions nothing touches; run nothing"
    option("--list", action="store_true", help=listed)
    option("--workers", "-n", type=int, default=os.cpu_count() or 1, help="processes")
    option("--record", type=Path, metavar="FILE", help="keep the table as JSON, and continue it")
    lost = "a record: fail where an error that it has as refuted is not, and nowhere else"
    option("--against", type=Path, metavar="FILE", help=lost)
    true = "the true program is confirmed already, by verify at this size: it is not run again"
    option("--verified", action="store_true", help=true)
    command.set_defaults(run=lambda options: run(options, stems))


def chosen(options: argparse.Namespace, stems: Sequence[str]) -> list[PlantedError]:
    """The requested errors.

    Raises:
        InputError: a claim is unknown, a part does not exist, or no error fits.
    """
    for stem in options.claims:
        one_of("claim", stem, stems)
    place, _, parts = options.sample.partition("/")
    if not (place.isdecimal() and parts.isdecimal() and 1 <= int(place) <= int(parts)):
        raise InputError(f"--sample {options.sample}: it is written K/N, 1/20 for example")
    fitting = [
        error
        for error in errors(options.on).values()
        if (not options.claims or set(error.stems) & set(options.claims))
        and (options.engine != "exact" or "exact" in error.engines)
        and options.only.lower() in f"{error.name}\n{error.file}".lower()
    ][int(place) - 1 :: int(parts)]
    if not fitting:
        raise InputError("no error fits: see python -m simulations mutants --list")
    return fitting


def run(options: argparse.Namespace, stems: Sequence[str]) -> int:
    from .runner import ask, run_errors, source_of

    integer("workers", options.workers, maximum=MOST_WORKERS)
    planted = chosen(options, stems)
    if options.list:
        table = [[error.layer, error.name, error.file, " ".join(error.stems)] for error in planted]
        print(tabulate(table, ["layer", "error", "file", "claims"]), f"\n\n{len(table)} errors.")
        unseen = untouched(errors(options.on).values())
        print("\nUnverified: no error touches these functions.", *unseen, sep="\n")
        return 0
    here = {"size": options.size, "source": source_of()}
    record = Record.read(options.record, here)
    rows = record.rows
    missing = [error for error in planted if not record.answers(error.name, here, options.engine)]
    answers = run_errors(missing, options.size, options.engine, options.workers)
    try:
        for error, answer in tqdm(answers, total=len(missing), desc="planted", disable=None):
            rows[error.name] = {"name": error.name, **answer, **here}
    finally:
        if options.record:
            every = [rows[name] for name in errors(options.on) if name in rows]
            if every:
                options.record.write_text(record.text(every), encoding="utf-8")
    results = [(error, rows[error.name]) for error in planted]
    refuting = {(row["stem"], row["engine"]) for _, row in results if row["verdict"] == "REFUTED"}
    for stem, engine in () if options.verified else sorted(refuting):
        if (true := ask(None, (stem,), options.size, (engine,)))["verdict"] != "CONFIRMED":
            raise InputError(
                f"{stem} by {engine} is {true['verdict']} without any error ({true['check']}): "
                "nothing can be said of errors there"
            )
    counted = [row["verdict"] for error, row in results if not (error.equivalent or error.silent)]
    counts = ", ".join(f"{count} {verdict}" for verdict, count in Counter(counted).most_common())
    argued = len(results) - len(counted)
    print(
        f"{len(counted)} planted: {counts or 'none'}. Argued that nothing can refute them: {argued}."
    )
    lost = [(error, row) for error, row in results if row["verdict"] not in error.allowed]
    unknown: list[PlantedError] = []
    if options.against:
        against = read_json(options.against)
        names = refuted(against, options.engine)
        lost = [(error, row) for error, row in lost if error.name in names]
        known = {row["name"] for row in against["errors"]}
        unknown = [error for error in planted if error.name not in known]
    for error, row in lost:
        print(f"- {row['verdict']}: {error.name} ({error.file})")
    for error in unknown:
        print(f"- not in {options.against}: {error.name} ({error.file})")
    return int(bool(lost or unknown))


@dataclass
class Record:
    """The results for errors, from the program and the size that the head names, if a row has no source
    or size itself.
    """

    head: Row
    rows: dict[str, Row]

    @classmethod
    def read(cls, file: Path | None, here: Row) -> Record:
        held = read_json(file) if file is not None and file.exists() else {"errors": []}
        rows = held.pop("errors")
        head = held or {"version": __version__, **here}
        place = {name: head[name] for name in here}
        return cls(head, {row["name"]: place | row for row in rows})

    def answers(self, name: str, here: Row, engine: str) -> bool:
        """Whether an error needs no further run by this program and engine."""
        row = self.rows.get(name, {})
        same = here.items() <= row.items()
        return same and (row["verdict"] == "REFUTED" or row["engine"] == engine)

    def text(self, rows: Sequence[Row]) -> str:
        """The file of these rows; its head applies to most of them."""
        places = Counter((row["size"], row["source"]) for row in rows)
        head = self.head | dict(zip(("size", "source"), places.most_common(1)[0][0], strict=True))
        common = set(head.items())
        lines = (
            json.dumps({k: v for k, v in row.items() if (k, v) not in common}, ensure_ascii=False)
            for row in rows
        )
        each = ",\n".join(f"  {line}" for line in lines)
        return f"{json.dumps({**head, 'errors': []})[:-2]}\n{each}\n]}}\n"


UNSEEN = {"exact": {"simulation", "control", "test"}, "test": {"simulation"}}
"""The kinds of refuting evidence that an engine does not use; ``cpu`` uses all."""


def refuted(record: Row, engine: str) -> set[str]:
    """The errors that a record lists as refuted, by evidence that this engine uses."""
    return {
        row["name"]
        for row in record["errors"]
        if row["verdict"] == "REFUTED"
        and row["by"] not in UNSEEN.get(engine, ())
        and (engine == "cpu" or row["engine"] != "cpu")
    }


def untouched(planted: Iterable[PlantedError]) -> list[str]:
    """The public functions of the packages that have errors, except those that an error touches.

    An error touches the definition that contains it, and those in its file that use it in any way. Nothing
    shows that ``verify`` sees an error in the others.
    """
    planted = [error for error in planted if error.layer != "claims"]
    missing = []
    rooms = dict.fromkeys(tuple(error.file.removesuffix(".py").split("/")[:2]) for error in planted)
    for package, room in rooms:
        public = import_module(f"{package}.{room}")
        # A module without ``__all__`` offers its own definitions.
        own = [n for n, f in vars(public).items() if getattr(f, "__module__", 0) == public.__name__]
        for name in getattr(public, "__all__", [n for n in own if not n.startswith("_")]):
            function = unwrap(getattr(public, name))
            if isfunction(function):
                file = Path(function.__code__.co_filename)
                here = [error.old for error in planted if ROOT / error.file == file]
                if not _touched(file.read_text(encoding="utf-8"), function.__name__, here):
                    missing.append(f"{room}.{name}")
    return missing


def _touched(source: str, name: str, snippets: Sequence[str]) -> bool:
    """Whether a snippet is in a file's definition of a name, or in the definitions that it uses there."""
    parts: dict[str, ast.stmt] = {}
    for part in ast.parse(source).body:
        if isinstance(part, ast.FunctionDef | ast.ClassDef):
            parts[part.name] = part
        elif isinstance(part, ast.Assign | ast.AnnAssign):
            parts[next(n.id for n in ast.walk(part) if isinstance(n, ast.Name))] = part
    ahead = [name]
    while ahead:
        if reached := parts.pop(ahead.pop(), None):
            text = f"{ast.get_source_segment(source, reached)}\n"
            if any(pattern(old).search(text) for old in snippets):
                return True
            ahead += [node.id for node in ast.walk(reached) if isinstance(node, ast.Name)]
    return False
