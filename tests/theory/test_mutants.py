"""The page of planted errors is what the record of the last whole run makes."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

from simulations.mutants.errors import errors
from simulations.mutants.runner import source_of

ROOT = Path(__file__).resolve().parents[2]
MAKER = runpy.run_path(str(ROOT / "theory" / "_ext" / "mutants_page.py"))


def test_the_record_is_of_errors_that_are_still_planted():
    _, rows = MAKER["record"]()
    assert {error.name for error, _ in rows} <= set(errors())
    assert rows


def test_the_page_holds_every_error_and_names_every_survivor():
    source = [(ROOT / "theory" / "mutants.md").read_text("utf-8")]
    MAKER["fill"](SimpleNamespace(), "mutants", source)
    assert not any(mark in source[0] for mark in MAKER["MARKS"])
    held, rows = MAKER["record"]()
    assert f"At size {held['size']}, version {held['version']}" in source[0]
    assert f"This checkout is of source {source_of()}" in source[0] or held["source"] == source_of()
    assert "| layer | planted | survive |" in source[0]
    survivors, whole = (source[0].split(f"\n## {head}\n")[1] for head in
                        ("What survives", "All of them"))  # fmt: skip
    survivors = survivors.split("\n## ")[0]
    for error, row in rows:
        name = f"| {MAKER['plain'](error.name)} |"
        assert name in whole
        unseen = row["verdict"] not in error.allowed
        assert (name in survivors) == unseen
