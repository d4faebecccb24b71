"""The records of a run and their files, which runs write and reports and figures read.

A record is plain data without engine or design, so code for figures cannot simulate.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from io import StringIO
from math import inf, isfinite, nan
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from attrs import asdict, evolve, frozen, has

from ustat_pg.files.reading import read_json, read_text
from ustat_pg.validation import InputError

from ..paper import RESULTS
from ..proof import Proof
from .findings import KINDS, ORIGINS, CheckResult
from .intervals import Interval
from .verdict import RivalVerdict, Verdict, worst

if TYPE_CHECKING:
    import pandas as pd

VERDICTS_FILE = "verdicts.json"
CHECKS_FILE = "checks.csv"
CURVES_FILE = "curves.csv"
MARKDOWN_FILE = "report.md"
HTML_FILE = "report.html"
FIGURES_FOLDER = "figures"

CURVE_COLUMNS = {"figure", "series", "prediction", "exact", "estimate", "low", "high"}
"""Columns that every table of curves has."""


@frozen
class RivalResult:
    """A rival of a claim over all checks; it is refuted only if both kinds of evidence refute it.

    Arguments:
        name: name of the rival.
        verdict: joint verdict of both kinds.
        exact: verdict of enumeration.
        simulation: verdict of simulation; None if nothing was to be simulated.
        origins: verdict of each kind of evidence, by the origin of the problems.
    """

    name: str
    verdict: RivalVerdict
    exact: RivalVerdict
    simulation: RivalVerdict | None
    origins: dict[str, dict[str, RivalVerdict]]

    @property
    def refuted_by(self) -> tuple[str, ...]:
        """The kinds of evidence that refute it, where none that was to be had lets it pass."""
        verdicts = {"exact": self.exact, "simulation": self.simulation}
        kinds = tuple(kind for kind, says in verdicts.items() if says == RivalVerdict.REFUTED)
        # A rival that nothing could enumerate is left to simulation.
        left = self.verdict == RivalVerdict.NOT_TESTED and "simulation" in kinds
        return kinds if left or self.verdict == RivalVerdict.REFUTED else ()


ON_ONE_ORIGIN = (RivalVerdict.REFUTED, RivalVerdict.SURVIVED, RivalVerdict.NOT_DISTINGUISHABLE)
"""Which verdict several checks on problems of one origin give: one refutation is enough."""

EVERYWHERE = (
    RivalVerdict.SURVIVED,
    RivalVerdict.NOT_TESTED,
    RivalVerdict.REFUTED,
    RivalVerdict.NOT_DISTINGUISHABLE,
)
"""Which verdict several origins, or both kinds of evidence, give: REFUTED if it is on each where the
rival is distinguishable."""


def _first(verdicts: Iterable[RivalVerdict], order: Sequence[RivalVerdict]) -> RivalVerdict:
    """The first verdict in the order that occurs; NOT TESTED if none does."""
    heard = set(verdicts)
    return next((verdict for verdict in order if verdict in heard), RivalVerdict.NOT_TESTED)


def _rival(name: str, checks: Sequence[CheckResult], kinds: Sequence[str]) -> RivalResult:
    def verdict(kind: str, origin: str) -> RivalVerdict:
        regions = [
            c.findings[kind].rivals for c in checks if c.origin == origin and kind in c.findings
        ]
        return _first((rivals[name] for rivals in regions if name in rivals), ON_ONE_ORIGIN)

    origins = {
        origin: {kind: verdict(kind, origin) for kind in kinds}
        for origin in dict.fromkeys(check.origin for check in checks)
    }
    # Real data must distinguish a rival only where the budget allows; made-up and generated
    # problems are chosen so that they can.
    counted = [by for origin, by in origins.items() if origin != "real"] or origins.values()
    overall = {kind: _first((by[kind] for by in counted), EVERYWHERE) for kind in kinds}
    together = _first(overall.values(), EVERYWHERE)
    return RivalResult(name, together, overall["exact"], overall.get("simulation"), origins)


EFFECTS = (0.01, 0.02, 0.05, 0.1)
"""Effects, as shares of what is predicted, whose detection is reported beside every verdict."""


@frozen
class Power:
    """The probability that checks give REFUTED if every quantity differs by an effect.

    Arguments:
        kind: kind of evidence.
        effect: effect as a share of the prediction, or of the statement's scale if the prediction is 0.
        share: expected share of the checks that would refute.
        best: the largest probability of a check.
    """

    kind: str
    effect: float
    share: float
    best: float

    @classmethod
    def of(cls, checks: Sequence[CheckResult], kind: str, effect: float) -> Power:
        """The power of a kind of evidence, from its intervals."""
        chances = [one.detects(kind, effect) for one in checks if kind in one.findings] or [0.0]
        return cls(kind, effect, round(sum(chances) / len(chances), 6), round(max(chances), 6))


@frozen
class ClaimResult:
    """The verdict on a claim, its checks and its rivals.

    Arguments:
        stem: stem of the result.
        label: the paper's numbering.
        verdict: verdict of all evidence.
        checks: all of them, in the design's order.
        rivals: all of them, in the claim's order.
        failure: error of a formula that the design needs; None if there is a design.
        power: probability that each kind of evidence detects an effect, from its intervals.
        proof: answer of computer algebra on the closed forms; None if there is no statement.
    """

    stem: str
    label: str
    verdict: Verdict
    checks: tuple[CheckResult, ...]
    rivals: tuple[RivalResult, ...]
    failure: str | None = None
    power: tuple[Power, ...] = ()
    proof: Proof | None = None

    @classmethod
    def failed(cls, stem: str, failure: str) -> ClaimResult:
        """The verdict REFUTED, because a formula raised an error although the result gives it a value."""
        return cls(stem, RESULTS[stem].label, Verdict.REFUTED, (), (), failure)

    @classmethod
    def of(
        cls,
        stem: str,
        rivals: Sequence[str],
        checks: Sequence[CheckResult],
        by_simulation: Sequence[str] = (),
        *,
        simulates: bool,
    ) -> ClaimResult:
        """The verdict: REFUTED if any evidence refutes; CONFIRMED if each available kind of evidence confirms
        every check, each kind is available, and each kind refutes every rival. If the claim leaves a rival to
        simulation, only simulation counts.
        """
        kinds = KINDS if simulates else KINDS[:1]
        settled = tuple(_rival(name, checks, kinds) for name in rivals)
        alone = set(by_simulation) if simulates else set()
        if alone and set(rivals) <= alone and not any(check.exact for check in checks):
            # An enumeration all the same is heard.
            kinds = KINDS[1:]
        verdict = worst(_of_kind(checks, kind) or Verdict.INCONCLUSIVE for kind in kinds)
        if verdict == Verdict.CONFIRMED and not _excluded(settled, alone):
            verdict = Verdict.INCONCLUSIVE
        power = tuple(Power.of(checks, kind, effect) for kind in kinds for effect in EFFECTS)
        label = RESULTS[stem].label
        return cls(stem, label, verdict, tuple(checks), settled, power=power)

    def evidence(self, kind: str, origin: str | None = None) -> Verdict | None:
        """The verdict of one kind of evidence on problems of one origin; None if there are no problems."""
        return _of_kind([c for c in self.checks if origin in (None, c.origin)], kind)


def _excluded(rivals: Sequence[RivalResult], alone: Collection[str]) -> bool:
    """Whether every kind of evidence that tests a rival refutes it."""
    verdicts = {rival.simulation for rival in rivals}
    verdicts |= {rival.exact for rival in rivals if rival.name not in alone}
    # A rival that cannot be distinguished from the prediction does not count.
    return bool(rivals) and verdicts <= {RivalVerdict.REFUTED, None}


def _of_kind(checks: Sequence[CheckResult], kind: str) -> Verdict | None:
    heard = [check.findings[kind].verdict for check in checks if kind in check.findings]
    return worst(heard) if heard else None


@frozen
class Control:
    """The result of a control with planted effects: see ``simulations.evidence.planted``.

    Arguments:
        name: part of the error machinery that is controlled.
        held: whether all planted effects were refuted, and no true statement was.
        said: what went wrong; empty if the control succeeded.
    """

    name: str
    held: bool
    said: str


@frozen
class Provenance:
    """The place and the command of a run.

    A folder has one ``configuration``: kind of the problems, size, engine, device, seed.
    """

    command: str
    configuration: str
    paper: str
    size: str
    engine: str
    device: str
    seed: int
    workers: int
    family_alpha: float
    machine: dict[str, str]
    versions: dict[str, str]
    set_aside: tuple[str, ...]


@frozen
class Results:
    """A finished run.

    Arguments:
        claims: results that depend only on the claims, the seed, the engine and the code.
        controls: results of planted effects; empty if not requested.
        draws: replications of a check's cells, by stem and check: they reproduce it alone.
        run: place and command.
    """

    claims: tuple[ClaimResult, ...]
    controls: tuple[Control, ...]
    draws: dict[str, dict[str, tuple[int, ...]]]
    run: Provenance

    def with_earlier(self, earlier: Results, command: str) -> Results:
        """These results together with those of an earlier run with the same configuration and code on other
        claims.

        The command is the one that makes all of them.
        """
        claims = {claim.stem: claim for claim in (*earlier.claims, *self.claims)}
        return Results(
            tuple(claims[stem] for stem in RESULTS if stem in claims),
            self.controls,
            earlier.draws | self.draws,
            evolve(self.run, command=command),
        )

    def json(self, indent: int | None = 1) -> str:
        """The records as one JSON object, which :func:`load_run` reads."""
        return json.dumps(plain(self), indent=indent) + "\n" * (indent is not None)

    def frame(self) -> pd.DataFrame:
        """One row for each check and kind of evidence: see :func:`load_results`."""
        import pandas as pd

        rows = [
            {
                "stem": claim.stem,
                "label": claim.label,
                "claim_verdict": claim.verdict.value,
                "check": check.name,
                "origin": check.origin,
                **check.design.columns,
                "seed": self.run.seed,
                "kind": kind,
                "prediction": check.prediction,
                **plain(findings),
            }
            for claim in self.claims
            for check in claim.checks
            for kind, findings in check.findings.items()
        ]
        for row in rows:
            del row["rivals"]
            row["low"], row["high"] = row.pop("interval")
        return pd.DataFrame(rows).astype(
            {"group_size": "Int64", "batch_size": "Int64"} if rows else {}
        )


def plain(record: Any) -> dict[str, Any]:
    """A record in JSON's types: an interval is a pair, and a number that is not finite is null."""
    return asdict(record, value_serializer=lambda record, attribute, value: _plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, Interval):
        return [value.low, value.high]
    if isinstance(value, Verdict | RivalVerdict | Proof):
        return value.value
    return None if isinstance(value, float) and not isfinite(value) else value


_hints = cache(get_type_hints)


def _record(kind: Any, value: Any) -> Any:
    """The inverse of :func:`plain`: a value of a type from its form in JSON."""
    parts = get_args(kind)
    if kind is Interval:
        low, high = value
        return Interval(-inf if low is None else low, inf if high is None else high)
    if has(kind):
        return kind(**{name: _record(hint, value[name]) for name, hint in _hints(kind).items()})
    if get_origin(kind) is UnionType:
        return None if value is None else _record(parts[0], value)
    if get_origin(kind) is tuple:
        return tuple(_record(parts[0], part) for part in _require(list, value))
    if get_origin(kind) is dict:
        return {name: _record(parts[1], part) for name, part in _require(dict, value).items()}
    if kind is float:
        return nan if value is None else float(_require((int, float), value))
    return kind(value) if kind in (Verdict, RivalVerdict, Proof) else _require(kind, value)


def _require(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not of type {kind}")
    return value


def load_run(folder: str | Path) -> Results:
    """The records of a finished run.

    Arguments:
        folder: the run's ``--out`` folder, or its ``verdicts.json``.

    Raises:
        InputError: there is no finished run, its file is damaged, or an older version wrote it.
    """
    path = Path(folder)
    path = path / VERDICTS_FILE if path.is_dir() else path
    if not path.exists():
        raise InputError(f"{path}: no finished run")
    data = read_json(path)
    try:
        results: Results = _record(Results, data)
        for claim in results.claims:
            _ = RESULTS[claim.stem], results.draws[claim.stem]
            _ = [ORIGINS[check.origin] for check in claim.checks]
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{path}: not the results of a run, or those of an older version: "
            "verify again, finished blocks are kept"
        ) from None
    return results


def load_results(folder: str | Path) -> pd.DataFrame:
    """The checks of a finished run as a tidy frame: one row for each check and kind of evidence.

    Arguments:
        folder: as for :func:`load_run`, with the same refusals.

    Returns:
        columns stem, label, claim_verdict, check, origin, problem, group_size and batch_size (NA where a
        check is of several), estimator (their names, with commas), seed, kind,
        prediction, and those of the evidence: verdict, estimate, standard_error, low, high,
        replications, alpha, ...
    """
    return load_run(folder).frame()


def load_curves(folder: str | Path) -> pd.DataFrame:
    """The points of a run's figures as a tidy frame, as ``experiment.run_points`` made them.

    Arguments:
        folder: the run's ``--out`` folder.
    """
    import pandas as pd

    path = Path(folder) / CURVES_FILE
    text = read_text(path)
    try:
        frame = pd.read_csv(StringIO(text), low_memory=False)
    except ValueError:
        raise InputError(f"{path}: not the curves of a run") from None
    if not set(frame.columns) >= CURVE_COLUMNS:
        raise InputError(f"{path}: not the curves of a run")
    return frame
