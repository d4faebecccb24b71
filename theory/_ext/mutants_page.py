"""The tables of the page ``mutants``, made from the record of the last whole run when the site is built."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulations.mutants.errors import KINDS as WRONG
from simulations.mutants.errors import PlantedError, errors
from simulations.mutants.runner import source_of
from simulations.paper import RESULTS

if TYPE_CHECKING:
    from sphinx.application import Sphinx

RECORD = Path(__file__).resolve().parents[1] / "mutants.json"
"""The file that ``python -m simulations mutants --record`` writes."""

KINDS = {
    "exact": "enumeration",
    "simulation": "simulation",
    "control": "a control",
    "design": "a formula that fails",
    "test": "a test",
}
"""The kinds of evidence that refute, in words."""

RUN = {"exact": "enumeration alone", "cpu": "simulation too", "": "nothing"}
"""How claims were run, in words."""


def record() -> tuple[dict[str, Any], list[tuple[PlantedError, dict[str, Any]]]]:
    held = json.loads(RECORD.read_text(encoding="utf-8"))
    return held, [(errors()[row["name"]], row) for row in held["errors"]]


def plain(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "|*_$<[`\\" else letter for letter in text)


def _table(head: list[str], rows: list[list[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.1%})" if whole else "none"


def _place(error: PlantedError) -> str:
    return f"`{error.file.removeprefix('ustat_pg/')}`"


def counts() -> str:
    """How many are refuted, by layer and by kind of evidence."""
    held, rows = record()
    counted = [entry for entry in rows if not entry[0].equivalent and not entry[0].silent]
    refuted = [row for _, row in counted if row["verdict"] == "REFUTED"]
    seen = [row for _, row in counted if row["verdict"] != "CONFIRMED"]
    since = len(errors()) - len(rows)
    text = (
        f"At size {held['size']}, version {held['version']} (source {held['source']}), "
        f"{_share(len(refuted), len(counted))} planted errors are refuted, and "
        f"{_share(len(seen), len(counted))} are not confirmed."
    )
    here = source_of()
    if here != held["source"]:
        text += f" This checkout is of source {here}: the program has changed since that run."
    text += f" The suite holds {since} more, which that run did not plant." if since else ""
    lines = []
    for layer in [*dict.fromkeys(error.layer for error, _ in counted), None]:
        mine = [row for error, row in counted if layer in (None, error.layer)]
        kinds = Counter(row["by"] for row in mine if row["verdict"] == "REFUTED")
        survived = sum(row["verdict"] == "CONFIRMED" for row in mine)
        other = len(mine) - kinds.total() - survived
        numbers = [len(mine), survived, *(kinds[kind] for kind in KINDS)]
        lines.append([layer or "**all**", *numbers, other])
    if later := held.get("later", {}):
        text += " Of these " + ", ".join(
            f"{count} were planted later, in source {source}" for source, count in later.items()
        ) + "."  # fmt: skip
    wrong = Counter(error.kind for error, _ in counted)
    text += "\n\n" + _table(
        ["kind", "what is wrong", "planted"],
        [[kind, what, wrong[kind]] for kind, what in WRONG.items()],
    )
    # Survivors stand first: a narrow window shows the left of a table.
    head = ["layer", "planted", "survive", *(f"by {words}" for words in KINDS.values())]
    return f"{text}\n\n{_table([*head, 'otherwise seen'], lines)}"


def survivors() -> str:
    """Each error that is not refuted, and the claims that did not see it."""
    _, rows = record()
    lines = [
        [
            plain(error.name),
            _place(error),
            row["verdict"],
            ", ".join(error.stems),
            RUN[row["engine"]],
        ]
        for error, row in rows
        if row["verdict"] not in error.allowed
    ]
    if not lines:
        return "Nothing does."
    return _table(["error", "file", "verdict", "claims that were run", "by"], lines)


def equivalent() -> str:
    """Each error that is argued to be none."""
    lines = [
        [plain(error.name), _place(error), plain(error.equivalent)]
        for error, _ in record()[1]
        if error.equivalent
    ]
    return _table(["error", "file", "why it is none"], lines)


def silent() -> str:
    """Each error that leaves a claim nothing to refute, and what the claim says."""
    lines = [
        [plain(error.name), _place(error), row["verdict"], plain(error.silent)]
        for error, row in record()[1]
        if error.silent
    ]
    return _table(["error", "file", "verdict", "why not REFUTED"], lines)


def table() -> str:
    """All errors, layer by layer, with the claim and the check that saw them first."""
    parts: dict[str, list[list[str]]] = {}
    for error, row in record()[1]:
        verdict = "equivalent" if error.equivalent else row["verdict"]
        told = [] if row["by"] == "test" else [RESULTS[row["stem"]].label]
        by = f"{', '.join([*told, KINDS.get(row['by'], row['by'])])}: {plain(row['check'])}"
        first = by if verdict == "REFUTED" else plain(row["check"])
        parts.setdefault(error.layer, []).append([plain(error.name), verdict, first])
    return "\n\n".join(
        f":::{{dropdown}} {layer[0].upper()}{layer[1:]}: {len(lines)}\n"
        f"{_table(['error', 'verdict', 'first seen by'], lines)}\n:::"
        for layer, lines in parts.items()
    )


MARKS = {
    "*The site has two tables here: errors by kind, and how many are refuted, by layer.*": counts,
    "*The site has a table here: the errors that survive.*": survivors,
    "*The site has a table here: the errors that are none.*": equivalent,
    "*The site has a table here: the errors that leave nothing to refute.*": silent,
    "*The site has tables here: all errors, layer by layer.*": table,
}
"""The makers of the tables, by the mark in their place."""


def fill(app: Sphinx, page: str, source: list[str]) -> None:
    if page == "mutants":
        for mark, made in MARKS.items():
            source[0] = source[0].replace(mark, made())


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", fill)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
