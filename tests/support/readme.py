"""The verdict table of the README, as the records of a run make it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ustat_pg.paper import RESULTS
from ustat_pg.report import statement_rows
from ustat_pg.results import ClaimResult

README = Path(__file__).resolve().parents[2] / "README.md"


def verdict_table(claims: Sequence[ClaimResult]) -> str:
    """The table of a run's claims, then of the results that this version does not verify."""
    rows = [("result", "statement", "verdict", "evidence, wrong formulas refuted"), ("---",) * 4]
    rows += statement_rows(claims)
    planned = [result for result in RESULTS.values() if not result.delivered]
    rows += [(result.label, result.short, "not yet", "-") for result in planned]
    return "".join("| {} |\n".format(" | ".join(row)) for row in rows)


def printed_table() -> str:
    """The table that the README shows."""
    text = README.read_text("utf-8")
    return re.search(r"<!-- verdicts -->\n(.*)<!-- end -->", text, re.DOTALL)[1]
