"""The verdict table of the README, as the records of a run make it."""

import re
from collections.abc import Sequence
from pathlib import Path

from simulations.evidence.report import evidence_of, rivals_of
from simulations.evidence.results import ClaimResult
from simulations.paper import RESULTS

README = Path(__file__).resolve().parents[2] / "README.md"


def verdict_table(claims: Sequence[ClaimResult]) -> str:
    """The table of a run's claims, in order."""
    rows = [("result", "statement", "verdict", "evidence, wrong formulas refuted"), ("---",) * 4]
    judged = {claim.label: claim for claim in claims}
    for result in RESULTS.values():
        if (claim := judged.get(result.label)) is not None:
            evidence = f"{evidence_of(claim)}, {rivals_of(claim)}"
            rows.append((claim.label, result.title, claim.verdict, evidence))
    return "".join("| {} |\n".format(" | ".join(row)) for row in rows)


def printed_table() -> str:
    """The table that the README shows."""
    text = README.read_text("utf-8")
    return re.search(r"<!-- verdicts -->\n(.*)<!-- end -->", text, re.DOTALL)[1]
