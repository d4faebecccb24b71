"""The README: its code runs, its table is the one that a run prints."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

from simulations import STEMS, Suite, claim
from ustat_pg.paper import RESULTS

README = Path(__file__).resolve().parents[1] / "README.md"


def test_its_code_runs():
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    found = doctest.testfile(str(README), module_relative=False, optionflags=flags)
    assert found.attempted > 8
    assert found.failed == 0


def test_its_table_is_the_runs():
    text = re.search(r"<!-- verdicts -->\n(.*)<!-- end -->", README.read_text(), re.DOTALL)[1]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:]]
    both = "exact + simulation"
    assert rows == [
        [
            RESULTS[stem].label,
            stem,
            "CONFIRMED",
            both,
            both,
            both,
            "{0} of {0}".format(len(claim(stem, Suite()).rivals)),
        ]
        for stem in STEMS
    ]
