"""The records of a check: its design, and the findings of each kind of evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

from attrs import frozen
from scipy.special import ndtr

from .intervals import Interval
from .verdict import Decision, Evidence, RivalVerdict, Statement, Verdict, worst

KINDS = ("exact", "simulation")
"""The two kinds of evidence of a run."""

ORIGINS = {"made-up": "made up", "generated": "generated", "real": "real data"}
"""The origins of problems, with their printed words."""

_OF_EVIDENCE = (
    *("estimate", "standard_error", "interval", "replications", "alpha"),
    "smallest_discrepancy",
)


@frozen
class Findings:
    """One kind of evidence on one check, and its decision.

    Arguments:
        replications_needed: replications that the check needs, by its pilot; 0 if nothing is drawn.
        rivals: verdict on each rival of the check.

    The other fields are those of :class:`~simulations.evidence.Evidence`.
    """

    verdict: Verdict
    estimate: float
    standard_error: float
    interval: Interval
    replications: int
    replications_needed: int
    alpha: float
    smallest_discrepancy: float
    rivals: dict[str, RivalVerdict]

    @classmethod
    def of(cls, evidence: Evidence, decision: Decision, needed: int = 0) -> Findings:
        """The record of an engine's evidence and of what the decider makes of it."""
        values = {name: getattr(evidence, name) for name in _OF_EVIDENCE}
        rivals = dict(decision.rivals)
        return cls(decision.verdict, replications_needed=needed, rivals=rivals, **values)


@frozen
class Design:
    """The design of a check.

    Arguments:
        problem: name of the problem; empty where there is none.
        group_sizes, batch_sizes: G and B of its cells, each once, in increasing order.
        estimators: their names, in order of appearance.
    """

    problem: str = ""
    group_sizes: tuple[int, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    estimators: tuple[str, ...] = ()

    @property
    def columns(self) -> dict[str, Any]:
        """Its columns in a frame: sizes are None where there is not one."""
        group, batch = (
            sizes[0] if len(sizes) == 1 else None for sizes in (self.group_sizes, self.batch_sizes)
        )
        return {
            "problem": self.problem,
            "group_size": group,
            "batch_size": batch,
            "estimator": ", ".join(self.estimators),
        }


@frozen
class CheckResult:
    """A check, with the findings of each kind of evidence.

    Arguments:
        name: name, unique in its claim.
        origin: where the problem comes from, a key of :data:`ORIGINS`.
        prediction: the value expected.
        rounding: differences up to this are rounding.
        region: the values that the statement allows.
        scale: size that effects are relative to where the prediction is 0.
        exact: enumerated finding; None if nothing was enumerated.
        not_enumerated: why nothing was enumerated; None if something was.
        simulation: simulated finding; None if nothing was simulated.
        planned_for: rivals that the check was planned to refute.
        rivals: values that each rival allows; None for a rival that is another formula.
        design: the problem, the sizes and the estimators.
    """

    name: str
    origin: str
    prediction: float
    rounding: float
    region: Interval
    scale: float
    exact: Findings | None
    not_enumerated: str | None
    simulation: Findings | None
    planned_for: tuple[str, ...]
    rivals: dict[str, Interval | None]
    design: Design = Design()

    @classmethod
    def of(
        cls,
        name: str,
        origin: str,
        statement: Statement,
        findings: Mapping[str, Findings],
        not_enumerated: str | None,
        planned_for: Iterable[str] = (),
        design: Design = Design(),
    ) -> CheckResult:
        """The record of a check's statement and of the findings on it, by kind."""
        rivals = dict.fromkeys(name for one in findings.values() for name in one.rivals)
        return cls(
            *(name, origin, statement.prediction, statement.tolerance, statement.region),
            scale=statement.scale,
            exact=findings.get("exact"),
            not_enumerated=not_enumerated,
            simulation=findings.get("simulation"),
            planned_for=tuple(planned_for),
            rivals={rival: statement.rivals.get(rival) for rival in rivals},
            design=design,
        )

    @property
    def coherent(self) -> bool:
        """Whether the statement allows its own prediction."""
        return self.region.widened(self.rounding).contains(self.prediction)

    @property
    def findings(self) -> dict[str, Findings]:
        """The findings by kind, of the kinds that there are."""
        kinds = {"exact": self.exact, "simulation": self.simulation}
        return {kind: findings for kind, findings in kinds.items() if findings is not None}

    def detects(self, kind: str, effect: float) -> float:
        """The probability that evidence of this precision gives REFUTED if the quantity differs by an effect,
        a share of the prediction, in the direction in which the statement ends first.
        """
        findings = self.findings[kind]
        by = effect * (abs(self.prediction) or self.scale)
        ends = (self.region.low - self.prediction, self.prediction - self.region.high)
        beyond = by + max(ends)
        half = findings.interval.half_width
        if not isfinite(half) or not isfinite(beyond):
            return 0.0
        if findings.standard_error == 0 or not isfinite(findings.standard_error):
            return float(beyond > half)
        return float(ndtr((beyond - half) / findings.standard_error))

    @property
    def verdict(self) -> Verdict | None:
        """The worst verdict of any kind of evidence; None without any."""
        return worst(f.verdict for f in self.findings.values()) if self.findings else None

    def rival_end(self, rival: str) -> float | None:
        """The finite end of a rival's region, the lower one if both are finite; None if there is none."""
        ends = () if (values := self.rivals[rival]) is None else (values.low, values.high)
        return next((end for end in ends if isfinite(end)), None)
