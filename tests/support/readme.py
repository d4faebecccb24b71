"""The verdict table of the README, as the records of a run make it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ustat_pg.paper import RESULTS

README = Path(__file__).resolve().parents[2] / "README.md"


def verdict_table(claims: Sequence[dict[str, Any]]) -> str:
    """The table of a run's claims, then of the results that this version does not verify.

    Arguments:
        claims: the entry ``claims`` of a run's ``verdicts.json``.
    """
    rows = [("result", "statement", "verdict", "evidence", "wrong formulas refuted"), ("---",) * 5]
    for claim in claims:
        result = RESULTS[claim["stem"]]
        kinds = [k for k in ("exact", "simulation") if any(check[k] for check in claim["checks"])]
        refuted = [rival["verdict"] for rival in claim["rivals"]].count("REFUTED")
        rivals = f"{refuted} of {len(claim['rivals'])}"
        rows.append((result.label, result.short, claim["verdict"], " + ".join(kinds), rivals))
    planned = [result for result in RESULTS.values() if not result.delivered]
    rows += [(result.label, result.short, "not yet", "-", "-") for result in planned]
    return "".join("| {} |\n".format(" | ".join(row)) for row in rows)


def printed_table() -> str:
    """The table that the README shows."""
    text = README.read_text("utf-8")
    return re.search(r"<!-- verdicts -->\n(.*)<!-- end -->", text, re.DOTALL)[1]
