"""The verdict table of the README, as the records of a run make it."""

import re
from collections.abc import Sequence
from pathlib import Path

from simulations.evidence.report import evidence_of, rivals_of
from simulations.evidence.results import ClaimResult
from simulations.paper import RESULTS

README = Path(__file__).resolve().parents[2] / "README.md"


def verdict_table(claims: Sequence[ClaimResult]) -> str:
    """The table of a run's claims, in order; evidence that is not of both kinds stands beside its verdict."""
    header = ("result", "statement", "verdict", "algebra", "wrong formulas refuted")
    rows = [header, ("---",) * len(header)]
    judged = {claim.label: claim for claim in claims}
    for result in RESULTS.values():
        if (claim := judged.get(result.label)) is not None:
            proof = str(claim.proof or "-")
            evidence = evidence_of(claim).removeprefix(f"{proof} + ")
            beside = "" if evidence == "exact + simulation" else f" ({evidence})"
            verdict = f"{claim.verdict}{beside}"
            rows.append((claim.label, result.title, verdict, proof, rivals_of(claim)))
    return "".join("| {} |\n".format(" | ".join(row)) for row in rows)


def printed_table() -> str:
    """The table that the README shows."""
    text = README.read_text("utf-8")
    return re.search(r"<!-- verdicts -->\n(.*)<!-- end -->", text, re.DOTALL)[1]
