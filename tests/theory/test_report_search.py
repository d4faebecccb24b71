"""The search of checks on a run's page, in a browser."""

import pytest

from simulations.__main__ import main
from simulations.evidence.report import html
from simulations.evidence.results import load_run

pytestmark = pytest.mark.slow


def test_the_search_shows_the_checks_that_hold_every_word(browser, tmp_path):
    words = [
        "verify",
        "ustatistic",
        "minibatch",
        "--size",
        "smoke",
        "--engine",
        "exact",
        "--workers",
        "1",
    ]
    assert main([*words, "--out", str(tmp_path)]) == 0
    run = load_run(tmp_path)
    (tmp_path / "page.html").write_text(html(run), encoding="utf-8")
    names = [check.name for claim in run.claims for check in claim.checks]
    browser.get((tmp_path / "page.html").as_uri())
    box = browser.find_element("id", "find")

    def shown():
        rows = browser.find_elements("css selector", "table.checks tbody")
        return sum(row.is_displayed() for row in rows)

    assert shown() == 0
    box.send_keys(names[0])
    assert 1 <= shown() < len(names)
    assert browser.find_element("id", "found").text.startswith(f"{shown()} check")
    result = shown()
    box.clear()
    box.send_keys(names[0].replace(" ", ", "))
    assert shown() == result
    box.send_keys(" no-such-word")
    assert shown() == 0
    assert browser.find_element("id", "found").text == "0 checks"
