"""The page of planted errors is what the record of the last whole run makes."""

import runpy
from pathlib import Path
from types import SimpleNamespace

from simulations.mutants.runner import source_of

ROOT = Path(__file__).resolve().parents[2]
MAKER = runpy.run_path(str(ROOT / "theory" / "_ext" / "mutants_page.py"))


def test_the_page_holds_every_error_and_names_every_survivor():
    source = [(ROOT / "theory" / "mutants.md").read_text("utf-8")]
    MAKER["fill"](SimpleNamespace(), "mutants", source)
    assert not any(mark in source[0] for mark in MAKER["MARKS"])
    held, rows = MAKER["record"]()
    assert f"At size {held['size']}, version {held['version']}" in source[0]
    assert f"This checkout is of source {source_of()}" in source[0] or held["source"] == source_of()

    def named(heading):
        part = source[0].split(f"\n## {heading}\n")[1].split("\n## ")[0]
        return {line[2:].split(" | ")[0].strip() for line in part.splitlines() if line[:2] == "| "}

    assert "**all**" in named("What was found")
    assert set(rows.error) <= named("All of them")
    assert named("What survives") - {"error"} == set(rows.error[rows.off])
