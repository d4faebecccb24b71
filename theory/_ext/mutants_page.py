"""The tables of the page ``mutants``, made from the record of the last whole run when the site is built."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from simulations.mutants.errors import KINDS, errors
from simulations.mutants.runner import source_of
from simulations.paper import RESULTS

if TYPE_CHECKING:
    from sphinx.application import Sphinx

RECORD = Path(__file__).resolve().parents[1] / "mutants.json"
"""The file that ``python -m simulations mutants --record`` writes."""

EVIDENCE = {
    "exact": "enumeration",
    "simulation": "simulation",
    "control": "a control",
    "design": "a formula that fails",
    "test": "a test",
}
"""The kinds of evidence that refute, in words."""


def plain(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "|*_$<[`\\" else letter for letter in text)


def record() -> tuple[dict[str, Any], pd.DataFrame]:
    """The head of the record, and a row for each of its errors in the page's words."""
    held = json.loads(RECORD.read_text(encoding="utf-8"))
    rows = []
    for row in held["errors"]:
        error, by = errors()[row["name"]], EVIDENCE.get(row["by"], row["by"])
        label = f"{RESULTS[row['stem']].label}, " if row["stem"] in RESULTS else ""
        seen = f"{label}{by}: " if row["verdict"] == "REFUTED" else ""
        rows.append(
            {
                "error": plain(error.name),
                "file": f"`{error.file.removeprefix('ustat_pg/')}`",
                "verdict": row["verdict"],
                "by": row["by"],
                "layer": error.layer,
                "kind": error.kind,
                "claims": ", ".join(error.stems),
                "why": plain(error.equivalent or error.silent),
                "argued": bool(error.equivalent or error.silent),
                "silent": bool(error.silent),
                "off": row["verdict"] not in error.allowed,
                "first seen by": "" if error.equivalent else seen + plain(row["check"]),
            }
        )
    return held, pd.DataFrame(rows)


def _table(rows: pd.DataFrame, **columns: str) -> str:
    """Columns of rows as Markdown, under the names given."""
    if rows.empty:
        return "None."
    return str(rows[[*columns]].rename(columns=columns).to_markdown(index=False))


def _share(part: pd.Series) -> str:
    return f"{part.sum()} of {len(part)} ({part.mean():.1%})"


def counts() -> str:
    """How many are refuted, by kind, by layer and by what refutes them."""
    held, rows = record()
    rows = rows[~rows.argued]
    refuted = rows.verdict == "REFUTED"
    text = (
        f"At size {held['size']}, version {held['version']} (source {held['source']}), "
        f"{_share(refuted)} planted errors are refuted, and "
        f"{_share(rows.verdict != 'CONFIRMED')} are not confirmed."
    )
    if (here := source_of()) != held["source"]:
        text += f" This checkout is of source {here}: the program has changed since that run."
    if since := len(errors()) - len(held["errors"]):
        text += f" The suite holds {since} more, which that run did not plant."
    later = Counter(
        (row.get("size", held["size"]), row["source"]) for row in held["errors"] if "source" in row
    )
    if later:
        parts = (
            f"{n} were planted later, at size {s} in source {of}" for (s, of), n in later.items()
        )
        text += f" Of these {', '.join(parts)}."
    planted = rows.kind.value_counts().reindex(KINDS, fill_value=0)
    kinds = pd.DataFrame({"what": KINDS, "planted": planted}).rename_axis("kind").reset_index()
    seen = {f"by {words}": refuted & (rows.by == by) for by, words in EVIDENCE.items()}
    survive = rows.verdict == "CONFIRMED"
    # Survivors stand first: a narrow window shows the left of a table.
    parts = pd.DataFrame({"planted": True, "survive": survive, **seen}, index=rows.index)
    parts["otherwise seen"] = ~refuted & ~survive
    layers = parts.groupby(rows.layer, sort=False).sum()
    layers.loc["**all**"] = layers.sum()
    table = layers.rename_axis("layer").reset_index().to_markdown(index=False)
    return f"{text}\n\n{_table(kinds, kind='kind', what='what is wrong', planted='planted')}\n\n{table}"


def survivors() -> str:
    """Each error that has another verdict than it must have, and the claims that did not see it."""
    _, rows = record()
    return _table(
        rows[rows.off], error="error", file="file", verdict="verdict", claims="claims that were run"
    )


def equivalent() -> str:
    """Each error that is argued to be none."""
    _, rows = record()
    return _table(
        rows[rows.argued & ~rows.silent], error="error", file="file", why="why it is none"
    )


def silent() -> str:
    """Each error that leaves a claim nothing to refute, and what the claim says."""
    _, rows = record()
    names = {"error": "error", "file": "file", "verdict": "verdict", "why": "why not REFUTED"}
    return _table(rows[rows.silent], **names)


def table() -> str:
    """All errors, layer by layer, with the claim and the check that saw them first."""
    _, rows = record()
    rows["verdict"] = rows.verdict.mask(rows.argued & ~rows.silent, "equivalent")
    names = {name: name for name in ("error", "verdict", "first seen by")}
    return "\n\n".join(
        f":::{{dropdown}} {layer.capitalize()}: {len(part)}\n{_table(part, **names)}\n:::"
        for layer, part in rows.groupby("layer", sort=False)
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
