"""The catalogue's pages are what their data makes."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from ustat_pg.catalogue import catalogue

ROOT = Path(__file__).resolve().parents[2]
MAKER = runpy.run_path(str(ROOT / "theory" / "_ext" / "catalogue_page.py"))


def filled(page):
    """The source of a page, with what is made in it."""
    source = [(ROOT / "theory" / f"{page}.md").read_text("utf-8")]
    MAKER["fill"](SimpleNamespace(), page, source)
    assert MAKER["MARKS"][page][0] not in source[0]
    return source[0]


def test_estimators_stand_under_five_headings():
    known = catalogue()
    text, variants = filled("estimators"), [*known.families, *known.others]
    for heading in MAKER["HEADINGS"]:
        assert text.count(f"**{heading}.** ") == len(variants)
    for name in variants:
        assert f"({MAKER['anchor'](name)})=" in text


def test_every_framework_has_a_row_and_a_page_with_all_its_options(tmp_path):
    (tmp_path / "catalogue.md").write_text("", "utf-8")
    stale = tmp_path / "catalogue" / "gone.md"
    stale.parent.mkdir()
    stale.write_text("", "utf-8")
    MAKER["write"](SimpleNamespace(srcdir=str(tmp_path)))
    listed, known = filled("catalogue"), catalogue()
    assert {page.stem for page in stale.parent.iterdir()} == set(known.frameworks)
    for record in known.frameworks.values():
        assert f"[{record.title}](catalogue/{record.name}.md)" in listed
        page = (stale.parent / f"{record.name}.md").read_text("utf-8")
        assert page.count(f"{record.repository}@{record.commit}") == 1
        rows, _, options = page.partition("## Its options")
        assert rows.count(" | read only |") == sum(row.read for row in record.rows)
        losses = [record.checked_loss(option) for option in record.options.values()]
        assert options.count(" | read only |") == losses.count("read only")
        for name in record.names():
            assert f"`{name}`" in page.partition("## Its options")[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "page"),
    [("scale_rewards", "trl"), ("actor_rollout_ref.actor.kl_loss_type", "verl")],
)
def test_the_search_finds_an_option(site, browser, option, page):
    from selenium.webdriver.support.wait import WebDriverWait

    browser.get((site / "search.html").as_uri() + f"?q={option}")
    wanted = f"#search-results a[href*='catalogue/{page}.html']"
    # Results are listed one by one.
    assert WebDriverWait(browser, 20).until(lambda _: browser.find_elements("css selector", wanted))
