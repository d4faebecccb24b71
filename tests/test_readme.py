"""The README: its code runs, its table is the one that a run prints."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from simulations import ON_NETWORKS, STEMS, Suite, claim
from ustat_pg.paper import RESULTS

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"


@pytest.mark.parametrize(("name", "least"), [("README.md", 9), ("CONTRIBUTING.md", 7)])
def test_its_code_runs(name, least):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    found = doctest.testfile(str(ROOT / name), module_relative=False, optionflags=flags)
    assert found.attempted >= least
    assert found.failed == 0


def test_its_table_is_the_runs():
    text = re.search(r"<!-- verdicts -->\n(.*)<!-- end -->", README.read_text(), re.DOTALL)[1]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:]]
    both = "exact + simulation"
    # On real data training is simulated, and for the last two results there is none.
    real = dict.fromkeys(("suboptimality", "limit_law"), "simulation")
    real |= dict.fromkeys(("oracle_policy", "optimal_policy"), "-")
    # Whole runs of a network are not enumerated; some results need an optimum within reach.
    network = dict.fromkeys(ON_NETWORKS, both) | {"suboptimality": "simulation"}
    assert rows == [
        [
            RESULTS[stem].label,
            stem,
            "CONFIRMED",
            both,
            both,
            real.get(stem, both),
            network.get(stem, "-"),
            network.get(stem, "-"),
            "{0} of {0}".format(len(claim(stem, Suite()).rivals)),
        ]
        for stem in STEMS
    ]
