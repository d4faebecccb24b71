"""What a run found: check by check, claim by claim, as plain data and as a tidy frame."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checks import Decision, Evidence, RivalVerdict, Verdict
from ..validation import InputError
from .claim import Check, Claim

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["KINDS", "CheckResult", "ClaimResult", "Findings", "RivalResult", "load_results"]

KINDS = ("exact", "simulation")
"""The two kinds of evidence that a run produces."""

RESULTS_FILE = "verdicts.json"


def _number(value: float) -> float | None:
    """JSON has no infinity and no NaN."""
    return value if isfinite(value) else None


@dataclass(frozen=True)
class Findings:
    """One kind of evidence on one check, and what it decides.

    Arguments:
        evidence: estimate and interval.
        decision: the verdicts.
        needed: the replications that the check needs, by its pilot; 0 where nothing is drawn.
    """

    evidence: Evidence
    decision: Decision
    needed: int = 0

    def to_dict(self) -> dict[str, Any]:
        found = self.evidence
        return {
            "verdict": self.decision.verdict.value,
            "estimate": _number(found.estimate),
            "standard_error": _number(found.standard_error),
            "interval": [_number(found.interval.low), _number(found.interval.high)],
            "replications": found.replications,
            "replications_needed": self.needed,
            "alpha": found.alpha,
            "smallest_discrepancy": _number(found.smallest_discrepancy),
        }


@dataclass(frozen=True)
class CheckResult:
    """A check and what each kind of evidence says of it."""

    check: Check
    found: dict[str, Findings]
    infeasible: str | None
    required: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        statement = self.check.statement
        return {
            "name": self.check.name,
            "origin": self.check.origin,
            "prediction": statement.prediction,
            "region": [_number(statement.region.low), _number(statement.region.high)],
            "exact": self.found["exact"].to_dict() if "exact" in self.found else None,
            "not_enumerated": self.infeasible,
            "simulation": (
                self.found["simulation"].to_dict() if "simulation" in self.found else None
            ),
            "planned_for": list(self.required),
            "rivals": {
                rival: {
                    "says": [
                        _number(statement.rivals[rival].low),
                        _number(statement.rivals[rival].high),
                    ]
                    if rival in statement.rivals
                    else None,
                    **{
                        kind: findings.decision.rivals[rival].value
                        for kind, findings in self.found.items()
                    },
                }
                for rival in dict.fromkeys(
                    name for findings in self.found.values() for name in findings.decision.rivals
                )
            },
        }


@dataclass(frozen=True)
class RivalResult:
    """A rival of a claim, over all checks: refuted only where both kinds of evidence refute it."""

    name: str
    verdict: RivalVerdict
    exact: RivalVerdict
    simulation: RivalVerdict | None
    origins: dict[str, dict[str, RivalVerdict]]

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "verdict": self.verdict.value,
            "exact": self.exact.value,
            "simulation": None if self.simulation is None else self.simulation.value,
            "origins": {
                origin: {kind: verdict.value for kind, verdict in by.items()}
                for origin, by in self.origins.items()
            },
        }


def _first_of(verdicts: Sequence[RivalVerdict], order: Sequence[RivalVerdict]) -> RivalVerdict:
    """The first in the order that occurs; NOT TESTED if none does."""
    return next((verdict for verdict in order if verdict in verdicts), RivalVerdict.NOT_TESTED)


def _together(verdicts: Sequence[RivalVerdict]) -> RivalVerdict:
    """Of several checks on the same ground: one refutation is enough."""
    order = (RivalVerdict.REFUTED, RivalVerdict.SURVIVED, RivalVerdict.NOT_DISTINGUISHABLE)
    return _first_of(verdicts, order)


def _everywhere(verdicts: Sequence[RivalVerdict]) -> RivalVerdict:
    """Of several grounds, or of both kinds of evidence: refuted on each where it can be told apart."""
    order = (
        RivalVerdict.SURVIVED,
        RivalVerdict.NOT_TESTED,
        RivalVerdict.REFUTED,
        RivalVerdict.NOT_DISTINGUISHABLE,
    )
    return _first_of(verdicts, order)


def _rival(name: str, checks: Sequence[CheckResult], simulates: bool) -> RivalResult:
    kinds = KINDS if simulates else KINDS[:1]
    origins: dict[str, dict[str, RivalVerdict]] = {}
    for origin in dict.fromkeys(result.check.origin for result in checks):
        origins[origin] = {
            kind: _together(
                [
                    result.found[kind].decision.rivals[name]
                    for result in checks
                    if result.check.origin == origin
                    and kind in result.found
                    and name in result.found[kind].decision.rivals
                ]
            )
            for kind in kinds
        }
    # Real data must be told apart only where it can be within the budget; made-up and generated
    # problems are chosen so that it can.
    counted = {origin: by for origin, by in origins.items() if origin != "real"} or origins
    overall = {kind: _everywhere([by[kind] for by in counted.values()]) for kind in kinds}
    return RivalResult(
        name,
        _everywhere(list(overall.values())),
        overall["exact"],
        overall.get("simulation"),
        origins,
    )


@dataclass(frozen=True)
class ClaimResult:
    """The verdict on a claim."""

    claim: Claim
    verdict: Verdict
    checks: tuple[CheckResult, ...]
    rivals: tuple[RivalResult, ...]

    @classmethod
    def of(cls, claim: Claim, checks: Sequence[CheckResult], *, simulates: bool) -> ClaimResult:
        """REFUTED if any evidence is; CONFIRMED if every check is confirmed by each kind of
        evidence that is to be had, each kind is to be had at all, and no rival survived. Of what
        the claim leaves to simulation, simulation alone is heard.
        """
        kinds = KINDS if simulates else KINDS[:1]
        # On one's own problem a rival may have no check; the suite's problems leave none out.
        open_ends = {RivalVerdict.SURVIVED}
        if any(result.check.origin == "made-up" for result in checks):
            open_ends.add(RivalVerdict.NOT_TESTED)
        rivals = tuple(_rival(name, checks, simulates) for name in claim.rivals)
        enumerated = any("exact" in result.found for result in checks)
        if simulates and claim.rivals and set(claim.rivals) <= set(claim.by_simulation):
            # What was enumerated all the same is heard.
            kinds = KINDS if enumerated else KINDS[1:]
        verdicts = {kind: cls._of_kind(checks, kind) for kind in kinds}
        alone = set(claim.by_simulation) if simulates else set()
        if Verdict.REFUTED in verdicts.values():
            verdict = Verdict.REFUTED
        elif Verdict.INCONCLUSIVE in verdicts.values() or any(
            (rival.simulation if rival.name in alone else rival.verdict) in open_ends
            for rival in rivals
        ):
            verdict = Verdict.INCONCLUSIVE
        else:
            verdict = Verdict.CONFIRMED
        return cls(claim, verdict, tuple(checks), rivals)

    @staticmethod
    def _of_kind(checks: Sequence[CheckResult], kind: str) -> Verdict:
        heard = [r.found[kind].decision.verdict for r in checks if kind in r.found]
        if Verdict.REFUTED in heard:
            return Verdict.REFUTED
        if not heard or Verdict.INCONCLUSIVE in heard:
            return Verdict.INCONCLUSIVE
        return Verdict.CONFIRMED

    def evidence(self, kind: str, origin: str | None = None) -> Verdict | None:
        """The verdict of one kind of evidence, on one origin of problems; None without any."""
        checks = [
            r
            for r in self.checks
            if (origin is None or r.check.origin == origin) and kind in r.found
        ]
        return self._of_kind(checks, kind) if checks else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "stem": self.claim.stem,
            "label": self.claim.label,
            "verdict": self.verdict.value,
            "checks": [check.to_dict() for check in self.checks],
            "rivals": [rival.to_dict() for rival in self.rivals],
        }


def load_results(folder: str | Path) -> pd.DataFrame:
    """The checks of a finished run as a tidy frame: one row for each check and kind of evidence.

    Arguments:
        folder: the run's ``--out`` folder, or its ``verdicts.json``.

    Returns:
        columns stem, label, claim_verdict, check, origin, kind, prediction, and those of the
        evidence: verdict, estimate, standard_error, low, high, replications, alpha, ...

    Raises:
        InputError: there is no finished run, or the file is damaged.
    """
    import pandas as pd

    path = Path(folder)
    path = path / RESULTS_FILE if path.is_dir() else path
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        rows = [
            {
                "stem": claim["stem"],
                "label": claim["label"],
                "claim_verdict": claim["verdict"],
                "check": check["name"],
                "origin": check["origin"],
                "kind": kind,
                "prediction": check["prediction"],
                **{name: value for name, value in check[kind].items() if name != "interval"},
                "low": check[kind]["interval"][0],
                "high": check[kind]["interval"][1],
            }
            for claim in data["claims"]
            for check in claim["checks"]
            for kind in KINDS
            if check[kind] is not None
        ]
    except OSError as error:
        raise InputError(f"{path}: no finished run: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, IndexError):
        raise InputError(f"{path}: not the results of a run") from None
    return pd.DataFrame(rows)
