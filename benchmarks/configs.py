"""How often a run's own file is read as the framework reads it:

    python -m benchmarks.configs FOLDER EXPECTED.jsonl

A line of EXPECTED is a file in FOLDER, whose options it has, the advantage and G: ``{"path": "a/run.sh",
"framework": "verl", "estimator": "std-ddof1", "group_size": 8}``. Estimators are those of the library by
their own names, ``rloo`` for grpo, or the catalogue's other advantages; ``teacher``; ``own`` for a loss that
is no baseline of a group, ``none`` for no training with rewards, ``unknown`` where only the run says: there a
refusal is the right answer, and of a critic or a teacher it is one too. Expectations are written down before
the run, by who has not seen ours.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from ustat_pg.catalogue import Meaning, resolve
from ustat_pg.validation import InputError

NO_BASELINE = ("own", "none", "unknown")
"""Where nothing but a refusal is right."""

OTHERS = ("critic", "teacher")
"""Where a refusal is as right as its name."""
_NAMES = {"grpo": "rloo", "std": "std-ddof0"}
"""Estimators by the names that a reader of sources gives them."""


def label(meaning: Meaning) -> str:
    """The advantage of a meaning, as expectations name it."""
    name = meaning.estimator
    if name is not None and not name.startswith("count-table"):
        return _NAMES.get(name, name)
    if meaning.row.estimator is not None:
        return _NAMES.get(meaning.row.estimator, meaning.row.estimator)
    teacher = "teacher" in meaning.row.name
    return "teacher" if teacher else str(meaning.row.other)


def answer(path: Path) -> tuple[str, str, int | None]:
    """Framework, advantage and G of a file as it is read; the reason where it is refused."""
    try:
        meaning = resolve([str(path)])
    except InputError as error:
        return "refused", str(error), None
    return meaning.framework.name, label(meaning), meaning.group_size


def verdict(wanted: dict[str, Any], found: tuple[str, str, int | None]) -> str:
    """Whether an answer is right, wrong or a refusal of what has an answer."""
    framework, name, size = found
    if wanted["estimator"] in NO_BASELINE:
        return "right" if framework == "refused" else "wrong"
    if framework == "refused":
        return "right" if wanted["estimator"] in OTHERS else "refused"
    same = framework == wanted["framework"] and name == wanted["estimator"]
    # Without a group G changes nothing.
    alone = name in ("critic", "teacher", "batch", "running-mean", "vanilla")
    return "right" if same and (alone or size == wanted["group_size"]) else "wrong"


def rows(folder: Path, expected: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str, str, str]]:
    """Framework, verdict, file and what was found, of each expectation."""
    for wanted in expected:
        found = answer(folder / wanted["path"])
        shown = f"{found[0]}: {found[1]}, G = {found[2]}" if found[2] else f"{found[0]}: {found[1]}"
        yield wanted["framework"], verdict(wanted, found), wanted["path"], shown


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("expected", type=Path)
    given = parser.parse_args(arguments)
    expected = [json.loads(line) for line in given.expected.read_text("utf-8").splitlines()]
    found = list(rows(given.folder, expected))
    words = ("right", "wrong", "refused")
    counts = Counter((framework, word) for framework, word, *_ in found)
    frameworks = sorted({framework for framework, *_ in found})
    table = [[name, *(counts[name, word] for word in words)] for name in frameworks]
    table.append(["all", *(sum(row[place] for row in table) for place in (1, 2, 3))])
    print(tabulate(table, ["framework", *words], tablefmt="github"))
    for framework, word, path, shown in found:
        if word != "right":
            (wanted,) = [each for each in expected if each["path"] == path]
            size = wanted["group_size"]
            print(
                f"- {word}: {path}: {shown} (expected {framework}, {wanted['estimator']}, G = {size})"
            )
    return int(any(word == "wrong" for _, word, *_ in found))


if __name__ == "__main__":
    sys.exit(main())
