"""The catalogue's page is what its data makes."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

from ustat_pg.catalogue import catalogue

ROOT = Path(__file__).resolve().parents[2]
MAKER = runpy.run_path(str(ROOT / "theory" / "_ext" / "catalogue_page.py"))


def test_the_page_holds_every_variant_under_the_five_headings_and_every_framework():
    known = catalogue()
    variants = len(known.families) + len(known.others)
    source = [(ROOT / "theory" / "catalogue.md").read_text("utf-8")]
    MAKER["fill"](SimpleNamespace(), "catalogue", source)
    assert MAKER["MARK"] not in source[0]
    for heading in MAKER["HEADINGS"]:
        assert source[0].count(f"**{heading}.** ") == variants
    for framework in known.frameworks.values():
        assert f"\n### {framework.title}\n" in source[0]
