"""A run's page in a browser: the search of checks, and what a phone shows."""

import pytest

from simulations.__main__ import main
from simulations.evidence.report import html
from simulations.evidence.results import load_run

pytestmark = pytest.mark.slow

SHOWN = """
return [...document.querySelectorAll("table.checks tbody")].filter(row => row.checkVisibility()).length
"""
"""How many checks are seen, by one request: a run has hundreds."""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a small run, and the run."""
    folder = tmp_path_factory.mktemp("run")
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
    assert main([*words, "--out", str(folder)]) == 0
    run = load_run(folder)
    (folder / "page.html").write_text(html(run), encoding="utf-8")
    return (folder / "page.html").as_uri(), run


def test_a_phone_shows_every_verdict_whole(page, browser):
    size = {"width": 390, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        browser.get(page[0])
        seen = browser.execute_script(
            "return [...document.querySelectorAll('table.results .verdict')].map(verdict => {"
            "  const box = verdict.getBoundingClientRect();"
            "  return [verdict.innerText, box.left >= 0 && box.right <= innerWidth]; });"
        )
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        labels = browser.execute_script(
            "return [...document.querySelectorAll('table.results [data-name]')]"
            ".map(cell => parseFloat(getComputedStyle(cell, '::before').paddingRight))"
        )
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert seen == [["✓ CONFIRMED", True]] * 2
    assert wide == 390
    assert min(labels) > 0, "a label touches its value"


def test_the_search_shows_the_checks_that_hold_every_word(page, browser):
    address, run = page
    names = [check.name for claim in run.claims for check in claim.checks]
    browser.get(address)
    box = browser.find_element("id", "find")

    def shown():
        return browser.execute_script(SHOWN)

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
