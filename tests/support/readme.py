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
    """The table of a run's claims, in order."""
    rows = [("result", "statement", "verdict", "evidence, wrong formulas refuted"), ("---",) * 4]
    judged = {row[0]: row for row in statement_rows(claims)}
    for result in RESULTS.values():
        if result.label in judged:
            rows.append(judged[result.label])
    return "".join("| {} |\n".format(" | ".join(row)) for row in rows)


def printed_table() -> str:
    """The table that the README shows."""
    text = README.read_text("utf-8")
    return re.search(r"<!-- verdicts -->\n(.*)<!-- end -->", text, re.DOTALL)[1]
