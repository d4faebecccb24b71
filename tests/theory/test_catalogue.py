"""The catalogue's page is what its data makes."""

from __future__ import annotations

import runpy
from pathlib import Path

from ustat_pg.catalogue import catalogue

ROOT = Path(__file__).resolve().parents[2]
MAKER = runpy.run_path(str(ROOT / "theory" / "_ext" / "catalogue_page.py"))


def test_the_page_is_up_to_date():
    """``python theory/_ext/catalogue_page.py`` writes it."""
    assert MAKER["PAGE"].read_text("utf-8") == MAKER["page"]()


def test_every_variant_has_the_five_headings():
    known = catalogue()
    variants = len(known.families) + len(known.others)
    text = MAKER["PAGE"].read_text("utf-8")
    for heading in MAKER["HEADINGS"]:
        assert text.count(f"**{heading}.** ") == variants


def test_the_index_leads_there():
    text = (ROOT / "theory" / "index.md").read_text("utf-8")
    assert "(catalogue.md)" in text
    assert "\ncatalogue\n" in text
