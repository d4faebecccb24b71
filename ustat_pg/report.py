"""What a run found, for a person: tables for a terminal, a Markdown page, and one HTML page that
stands alone. All three show one view of the run's records, so that they cannot disagree.
"""

from __future__ import annotations

import platform
import shlex
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from math import isfinite
from os import cpu_count
from typing import Any

from attrs import asdict, frozen
from tabulate import tabulate

from ._version import __version__
from .checks import FAMILY_ALPHA, Interval, RivalVerdict, Verdict, worst
from .checks.planning import MOST
from .experiment import Options, Plan, Run
from .experiment.store import code_version
from .paper import PAPER, RESULTS
from .results import (
    EFFECTS,
    KINDS,
    ORIGINS,
    CheckResult,
    ClaimResult,
    Control,
    Findings,
    Provenance,
    Results,
    RivalResult,
    plain,
)
from .whole_files import versions

__all__ = [
    "EXIT_CODES",
    "Figure",
    "check_command",
    "check_table",
    "document",
    "duration_table",
    "exit_code",
    "html",
    "markdown",
    "plan_table",
    "power_table",
    "remarks",
    "statement_rows",
    "summary",
    "verdict_table",
    "view",
]

EXIT_CODES = {Verdict.CONFIRMED: 0, Verdict.REFUTED: 1, Verdict.INCONCLUSIVE: 3}

WAYS = {
    ("exact", "simulation"): "by enumeration and again by simulation",
    ("exact",): "by enumeration alone",
    ("simulation",): "by simulation alone",
}
"""How wrong formulas are refuted, by the kinds of evidence that refute them."""

MARKS = {"CONFIRMED": "✓", "REFUTED": "✗", "INCONCLUSIVE": "?"}

AUTHORS = "The ustat_pg authors (2026)"
"""Whom to cite, as CITATION.cff has them."""

STRIP_PIXELS = 148
"""The width of the picture beside a check."""

UNIT_PIXELS = 16.0
"""Pixels of a half-width in that picture."""

EDGE_UNITS = 4.0
"""Half-widths from the prediction to the picture's edge: what lies further away is drawn there."""


def document(
    run: Run,
    options: Options,
    command: str = "",
    problem: str | None = None,
    configuration: str = "",
) -> Results:
    """The records of a run, with what reproduces it.

    Arguments:
        run: the verdicts and the plans.
        options: size, engine, device, seed and workers.
        command: the one that makes the run again.
        problem: the file of the user's own problem.
        configuration: what results in one folder have in common.
    """
    libraries = ["numpy", "scipy", "numba", "llvmlite", "pandas", "scikit-learn", "torch"]
    provenance = Provenance(
        command,
        configuration,
        problem,
        PAPER,
        options.size,
        options.engine,
        options.device,
        options.seed,
        options.workers,
        FAMILY_ALPHA,
        {
            "system": platform.system(),
            "platform": platform.platform(),
            "processor": platform.machine(),
            "cores": str(cpu_count()),
        },
        {
            "ustat_pg": __version__,
            "code": code_version(),
            **versions(*libraries),
        },
        run.set_aside,
    )
    draws: dict[str, dict[str, tuple[int, ...]]] = {claim.stem: {} for claim in run.claims}
    draws |= {plan.claim.stem: _draws(plan) for plan in run.plans}
    return Results(run.claims, run.controls, draws, provenance)


def _draws(plan: Plan) -> dict[str, tuple[int, ...]]:
    """The replications of each simulated check's cells, in their order."""
    return {
        check.name: tuple(
            plan.replications[name]
            for name in dict.fromkeys(c.name for c in check.functional.cells)
        )
        for check in plan.claim.checks
        if plan.replications
    }


def exit_code(claims: Iterable[ClaimResult], controls: Iterable[Control] = ()) -> int:
    """0 if every claim is confirmed, 1 if one is refuted or a control failed, 3 if one is inconclusive."""
    verdicts = [claim.verdict for claim in claims]
    verdicts += [Verdict.REFUTED for control in controls if not control.held]
    return EXIT_CODES[worst(verdicts)]


def _rivals_refuted(rivals: Iterable[RivalResult]) -> tuple[str, dict[str, int], list[str]]:
    """How many rivals are refuted of those that can be told apart, by which evidence, and the others.

    A rival counts as refuted where each kind of evidence refutes it, or simulation does and nothing
    could be enumerated; as told apart where it is refuted or survived. The others coincide with the
    prediction, or were not tested.

    >>> said = RivalVerdict.REFUTED, RivalVerdict.NOT_TESTED, RivalVerdict.REFUTED
    >>> _rivals_refuted([RivalResult("runs", RivalVerdict.NOT_TESTED, *said[1:], {})])
    ('1 of 1', {'by simulation alone': 1}, [])
    """
    rivals = list(rivals)
    ways = Counter(WAYS[rival.refuted_by] for rival in rivals if rival.refuted_by)
    others = Counter(rival.verdict for rival in rivals if not rival.refuted_by)
    told_apart = ways.total() + others[RivalVerdict.SURVIVED]
    words = {RivalVerdict.NOT_DISTINGUISHABLE: "coincide", RivalVerdict.NOT_TESTED: "not tested"}
    notes = [f"{others[verdict]} {word}" for verdict, word in words.items() if others[verdict]]
    known = {way: ways[way] for way in WAYS.values() if ways[way]}
    return f"{ways.total()} of {told_apart}", known, notes


def _rivals_cell(rivals: Iterable[RivalResult]) -> str:
    """The same for a table, which has a column for each kind of evidence."""
    refuted, ways, notes = _rivals_refuted(rivals)
    alone = WAYS["simulation",]
    notes = [f"{ways[alone]} {alone}", *notes] if alone in ways else notes
    return f"{refuted} ({', '.join(notes)})" if notes else refuted


def _evidence(claim: ClaimResult, origin: str | None = None) -> str:
    """Which kinds of evidence confirm a claim on problems of one origin, and which do not."""
    words = []
    for kind in KINDS:
        verdict = claim.evidence(kind, origin)
        if verdict is not None:
            words.append(kind if verdict == Verdict.CONFIRMED else f"{kind} {verdict.value}")
    return " + ".join(words) or "-"


def summary(claims: Sequence[ClaimResult]) -> str:
    """How many results are confirmed and how many wrong formulas refuted, in one line."""
    count = Counter(claim.verdict for claim in claims)
    words = [f"{count[Verdict.CONFIRMED]} of {len(claims)} results confirmed"]
    words += [
        f"{count[verdict]} {verdict.value}"
        for verdict in (Verdict.REFUTED, Verdict.INCONCLUSIVE)
        if count[verdict]
    ]
    refuted, ways, notes = _rivals_refuted(rival for claim in claims for rival in claim.rivals)
    by = ", ".join(f"{number} {way}" for way, number in ways.items())
    by = f": {by}" if len(ways) > 1 else "".join(f" {way}" for way in ways)
    rest = f"; not counted: {', '.join(notes)}" if notes else ""
    return f"{', '.join(words)}; {refuted} wrong formulas refuted{by}{rest}"


def _origins(claims: Sequence[ClaimResult]) -> dict[str, str]:
    """The origins that there are checks of, with their words."""
    known = {check.origin for claim in claims for check in claim.checks}
    return {origin: word for origin, word in ORIGINS.items() if origin in known}


RECONSTRUCTED = (
    "[r] reconstructed: the formula follows the paper's proof or words, whose own constants we lack; "
    "the report says what the paper states."
)
"""The line below a table of verdicts that has such a result."""


def verdict_table(
    claims: Sequence[ClaimResult], style: str = "simple", controls: Sequence[Control] = ()
) -> str:
    """One row for each claim: its verdict, the evidence on problems of each origin, its rivals; one
    for the controls of the run, where there are any; and what the mark of a label means.
    """
    origins = _origins(claims)
    header = ["result", "stem", "verdict", *origins.values(), "rivals refuted"]
    rows = [
        [
            f"{claim.label} [r]" if RESULTS[claim.stem].reconstructed else claim.label,
            claim.stem,
            claim.verdict.value,
            *(_evidence(claim, origin) for origin in origins),
            _rivals_cell(claim.rivals),
        ]
        for claim in claims
    ]
    if controls:
        held = sum(control.held for control in controls)
        said = "HELD" if held == len(controls) else "FAILED"
        rows.append(
            ["Controls", "", said, *([""] * len(origins)), f"{held} of {len(controls)} held"]
        )
    marked = any(RESULTS[claim.stem].reconstructed for claim in claims)
    return _table(rows, header, style) + (f"\n\n{RECONSTRUCTED}" if marked else "")


def _power_rows(claims: Sequence[ClaimResult]) -> list[list[str]]:
    rows = []
    for claim in claims:
        for kind in KINDS:
            cells = [
                share if share == best else f"{share} ({best})"
                for found in claim.power
                if found.kind == kind
                for share, best in [(f"{found.share:.0%}", f"{found.best:.0%}")]
            ]
            rows += [[claim.label, claim.stem, kind, *cells]] if cells else []
    return rows


_POWER_HEADER = ["result", "stem", "evidence", *(f"{effect:.0%} off" for effect in EFFECTS)]


def power_table(claims: Sequence[ClaimResult], style: str = "simple") -> str:
    """The expected share of each claim's checks that would say REFUTED, were every quantity off by an
    effect; in brackets the likeliest check's probability, where it is another.
    """
    return _table(_power_rows(claims), _POWER_HEADER, style)


def statement_rows(claims: Sequence[ClaimResult]) -> list[tuple[str, str, str, str]]:
    """Result, short statement, verdict and evidence of each claim, for a page.

    Arguments:
        claims: those of a run, ``load_run(folder).claims`` for example.
    """
    return [
        (
            claim.label,
            RESULTS[claim.stem].title,
            claim.verdict.value,
            f"{_evidence(claim)}, {_rivals_cell(claim.rivals)}",
        )
        for claim in claims
    ]


def _table(rows: Sequence[Sequence[Any]], header: Sequence[str], style: str = "simple") -> str:
    if style == "github":
        rows = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    return str(tabulate(rows, header, tablefmt=style, disable_numparse=True))


def _number(value: float, none: str = "-", digits: int = 6) -> str:
    return f"{value:.{digits}g}" if isfinite(value) else none


def _zero(check: CheckResult, findings: Findings) -> bool:
    """Whether what was found differs from a predicted 0 by rounding alone."""
    rounding = check.rounding if findings.standard_error else findings.smallest_discrepancy
    ends = (findings.interval.low, findings.interval.high)
    # An enumerated value's own interval reaches as far again.
    return check.prediction == 0 and max(map(abs, ends)) <= 2 * rounding


def _estimate(check: CheckResult, findings: Findings, digits: int = 6) -> str:
    zero = findings.estimate != 0 and _zero(check, findings)
    return "0 to rounding" if zero else _number(findings.estimate, digits=digits)


def _ends(check: CheckResult, findings: Findings, digits: int = 6) -> tuple[str, str]:
    if _zero(check, findings):
        return "0", "0"
    return (
        _number(findings.interval.low, "-∞", digits),
        _number(findings.interval.high, "∞", digits),
    )


def remarks(
    claims: Iterable[ClaimResult],
    set_aside: Iterable[str] = (),
    controls: Iterable[Control] = (),
) -> list[str]:
    """Lines that a reader must not miss: what failed, what is open and what it would take.

    Arguments:
        claims: those of a run.
        set_aside: names of the files that the run found damaged.
        controls: those of the run.
    """
    return [
        *(
            f"control of {control.name} FAILED, so that this run confirms nothing: {control.said}"
            for control in controls
            if not control.held
        ),
        *(f"{claim.stem}: {remark}" for claim in claims for remark in _remarks(claim)),
        *(f"damaged results file, kept and computed again: {name}" for name in set_aside),
    ]


def _remarks(claim: ClaimResult) -> Iterator[str]:
    for check in claim.checks:
        for kind, findings in check.found.items():
            if findings.verdict == Verdict.CONFIRMED:
                continue
            if not check.coherent:
                yield f"{check.name} is REFUTED by its own formula: {_contradiction(check)}"
                break
            low, high = _ends(check, findings)
            line = (
                f"{check.name} is {findings.verdict.value} by {kind}: "
                f"{_estimate(check, findings)} in [{low}, {high}], "
                f"predicted {_number(check.prediction)}"
            )
            if findings.replications_needed > findings.replications:
                needed = findings.replications_needed
                line += (
                    "; no number of replications would do: a prediction of 0 needs a scale, "
                    "equal(0.0, ..., scale=...)"
                    if needed >= MOST
                    else f"; it would need {needed:,} replications and had {findings.replications:,}"
                )
            yield line
    if claim.checks:
        yield from _open_rivals(claim)
    if claim.failure is not None:
        yield f"REFUTED: {claim.failure}"
    elif not claim.checks:
        yield "nothing can be checked on this problem"
    elif claim.evidence("exact") is None:
        reasons = [check.not_enumerated for check in claim.checks if check.not_enumerated]
        yield f"nothing was enumerated: {reasons[0]}" if reasons else "nothing was enumerated"


def _contradiction(check: CheckResult) -> str:
    """What is wrong with a prediction that its own statement does not allow."""
    if not isfinite(check.prediction):
        return "it gives no number"
    low, high = (_number(end, "∞") for end in (check.region.low, check.region.high))
    return f"it gives {_number(check.prediction)}, and the statement allows {low} to {high}"


_NEVER = {
    RivalVerdict.NOT_DISTINGUISHABLE: "coincides with the prediction on every problem",
    RivalVerdict.NOT_TESTED: "is not tested",
}


def _open_rivals(claim: ClaimResult) -> Iterator[str]:
    """Which wrong formulas the evidence leaves open, and by which kind of it."""
    for rival in claim.rivals:
        if rival.verdict == RivalVerdict.SURVIVED:
            yield f"the wrong formula “{rival.name}” survived"
        elif claim.verdict == Verdict.INCONCLUSIVE:
            for kind in KINDS:
                if (words := _NEVER.get(getattr(rival, kind))) is not None:
                    yield f"the wrong formula “{rival.name}” {words} ({kind})"
    told_apart = {RivalVerdict.REFUTED, RivalVerdict.SURVIVED}
    if not any({r.exact, r.simulation} & told_apart for r in claim.rivals):
        yield "no wrong formula can be told from the prediction here"


def check_command(results: Results, stem: str, check: CheckResult) -> list[str]:
    """The words, quoted for a shell, of the command that reproduces one check of a run by itself."""
    run, draws = results.run, results.draws[stem].get(check.name, ())
    words = ["python", "-m", "simulations", "check", stem, check.name]
    for option, value in (("size", run.size), ("engine", run.engine), ("seed", run.seed)):
        words += [f"--{option}", str(value)]
    if check.simulation is not None:
        numbers = draws or (check.simulation.replications,)
        numbers = numbers[:1] if len(set(numbers)) == 1 else numbers
        words += ["--replications", ",".join(str(n) for n in numbers)]
    if draws:
        for rival in check.planned_for:
            words += ["--refute", rival]
    if run.problem is not None:
        words += ["--problem", run.problem]
    return [shlex.quote(word) for word in words]


@frozen
class Figure:
    """A drawn figure for the HTML page.

    Arguments:
        name: short, the figure's anchor.
        title: a few words.
        alt: what is seen, in one sentence.
        svg: the whole file.
    """

    name: str
    title: str
    alt: str
    svg: bytes

    @property
    def source(self) -> str:
        """The picture itself in place of its address."""
        return f"data:image/svg+xml;base64,{b64encode(self.svg).decode()}"


def markdown(results: Results) -> str:
    """The run as a Markdown page: table, remarks, and every check with its evidence."""
    return _rendered("report.md", results)


def html(results: Results, figures: Sequence[Figure] = ()) -> str:
    """The run as one HTML page that loads nothing, from here or anywhere.

    Arguments:
        results: those of a finished run.
        figures: drawn ones, in their order.
    """
    return _rendered("report.html", results, figures)


def _rendered(template: str, results: Results, figures: Sequence[Figure] = ()) -> str:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=template.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["table"] = _rows_as_table
    source = files("ustat_pg").joinpath("templates", template).read_text(encoding="utf-8")
    return environment.from_string(source).render(**view(results), figures=figures)


def _rows_as_table(rows: Sequence[Mapping[str, str]], columns: Mapping[str, str]) -> str:
    """Rows as a Markdown table: of each the named columns, under their headings."""
    cells = [[row[column] or "-" for column in columns] for row in rows]
    return _table(cells, list(columns.values()), "github")


def view(results: Results) -> dict[str, Any]:
    """What both templates show, all of it plain values."""
    claims, made = results.claims, results.run.versions
    return {
        "cite": f"{AUTHORS}, ustat_pg {made['ustat_pg']}, code {made['code']}; {results.run.paper}",
        "paper_address": f"https://arxiv.org/abs/{PAPER.split()[-1]}",
        "run": asdict(results.run),
        "claims": [_claim(results, claim) for claim in claims],
        "table": verdict_table(claims, "github", results.controls),
        "power": power_table(claims, "github"),
        "power_rows": [_POWER_HEADER, *_power_rows(claims)],
        "controls": [plain(control) for control in results.controls],
        "origins": _origins(claims),
        "marks": MARKS,
        "remarks": remarks(claims, results.run.set_aside, results.controls),
        "summary": summary(claims),
        "worst": worst(claim.verdict for claim in claims).value,
    }


def _claim(results: Results, claim: ClaimResult) -> dict[str, Any]:
    return {
        "stem": claim.stem,
        "label": claim.label,
        "verdict": claim.verdict.value,
        "about": RESULTS[claim.stem],
        "evidence": {origin: _evidence(claim, origin) for origin in ORIGINS},
        "refuted": _rivals_cell(claim.rivals),
        "rivals": [plain(rival) for rival in claim.rivals],
        "remarks": list(_remarks(claim)),
        "checks": [
            {**_check(check), "command": check_command(results, claim.stem, check)}
            for check in claim.checks
        ],
    }


def _check(check: CheckResult) -> dict[str, Any]:
    exact, drawn = check.exact, check.simulation
    low, high = ("-", "-") if drawn is None else _ends(check, drawn)
    return {
        "name": check.name,
        "origin": ORIGINS[check.origin],
        "verdict": "-" if check.verdict is None else check.verdict.value,
        "predicted": _number(check.prediction),
        "exact": "not enumerated" if exact is None else _estimate(check, exact),
        "why_not": check.not_enumerated or "",
        "simulated": "-" if drawn is None else _estimate(check, drawn),
        "error": "-" if drawn is None else _number(drawn.standard_error, "∞", 2),
        "interval": "-" if drawn is None else f"[{low}, {high}]",
        "replications": "-" if drawn is None else f"{drawn.replications:,}",
        "sees": "-" if drawn is None else _number(drawn.smallest_discrepancy, "∞", 2),
        "rivals": [
            {
                "name": name,
                "says": _says(values),
                "elsewhere": drawn is not None
                and drawn.rivals.get(name) == RivalVerdict.SURVIVED
                and name not in check.planned_for,
                **{
                    kind: check.found[kind].rivals[name].value if kind in check.found else "-"
                    for kind in KINDS
                },
            }
            for name, values in check.rivals.items()
        ],
        "strip": _strip(check),
    }


def _says(values: Interval | None) -> str:
    """What a rival says of a check's value, in words."""
    if values is None:
        return "another formula"
    low, high = _number(values.low), _number(values.high)
    if isfinite(values.low) and isfinite(values.high):
        return low if low == high else f"from {low} to {high}"
    return f"at least {low}" if isfinite(values.low) else f"at most {high}"


def _strip(check: CheckResult) -> dict[str, Any]:
    """Places of the interval, the estimate and the rivals about the prediction, in pixels: in units
    of the interval's half-width, or where nothing is drawn of a third of the nearest rival's distance.
    """
    middle, prediction = STRIP_PIXELS / 2, check.prediction
    findings = check.simulation or check.exact
    if findings is None or not isfinite(findings.estimate):
        return {"width": STRIP_PIXELS, "middle": middle, "found": False, "label": "no estimate"}
    rivals = {name: end for name in check.rivals if (end := check.rival_end(name)) is not None}
    interval = findings.interval
    gaps = [abs(value - prediction) for value in rivals.values() if value != prediction]
    unit = interval.half_width if isfinite(interval.half_width) else 0.0
    if check.simulation is None or not unit > 0:
        # A discrepancy is shown against the rounding that is allowed.
        region = check.region.high if isfinite(check.region.high) else 0.0
        unit = min(gaps) / 3 if gaps else (region if not unit > 0 else unit) or 1.0

    def place(value: float) -> float:
        steps = max(-EDGE_UNITS, min(EDGE_UNITS, (value - prediction) / unit))
        return round(middle + UNIT_PIXELS * steps, 2)

    crosses = []
    for name, value in rivals.items():
        far = abs(value - prediction) / unit > EDGE_UNITS
        side = ("left" if value < prediction else "right") if far else ""
        planned = name in check.planned_for
        crosses.append({"x": place(value), "beyond": side, "name": name, "planned": planned})
    start = place(interval.low) if isfinite(interval.low) else 0.0
    end = place(interval.high) if isfinite(interval.high) else STRIP_PIXELS
    low, high = _ends(check, findings)
    return {
        "width": STRIP_PIXELS,
        "middle": middle,
        "found": True,
        "from": start,
        "to": max(end, start + 0.5),
        "at": place(findings.estimate),
        "crosses": crosses,
        "label": f"estimate {_estimate(check, findings)} in [{low}, {high}], "
        f"predicted {_number(prediction)}, {len(crosses)} wrong formulas",
    }


def check_table(stem: str, check: CheckResult) -> str:
    """One check as a small table: each kind of evidence, then each rival."""
    rows = []
    for kind, findings in check.found.items():
        low, high = _ends(check, findings, 12)
        rows.append(
            [
                kind,
                _estimate(check, findings, 12),
                _number(findings.standard_error, "∞", 2),
                f"[{low}, {high}]",
                f"{findings.replications:,}" if findings.replications else "-",
                findings.verdict.value,
            ]
        )
    header = ["evidence", "estimate", "standard error", "interval", "replications", "verdict"]
    lines = [
        f"{RESULTS[stem].label} ({stem}): {check.name}",
        f"predicted {_number(check.prediction, digits=12)}",
        "",
        _table(rows, header),
    ]
    if check.not_enumerated:
        lines += ["", f"not enumerated: {check.not_enumerated}"]
    rivals = [
        [name, _says(values), *(f.rivals[name].value for f in check.found.values())]
        for name, values in check.rivals.items()
    ]
    if rivals:
        lines += ["", _table(rivals, ["rival", "says", *check.found])]
    return "\n".join(lines)


def plan_table(plans: Sequence[Plan], budget: int) -> str:
    """What a run would draw: one row for each claim."""
    rows = []
    for plan in plans:
        most = max(plan.needed.values(), default=0)
        rows.append(
            [
                plan.claim.label,
                plan.claim.stem,
                len(plan.claim.checks),
                len(plan.replications),
                f"{plan.alpha:.1e}",
                f"{sum(plan.replications.values()):,}",
                f"{most:,}" + (" (over the budget)" if most > budget else ""),
                f"{plan.seconds / 60:.1f}",
            ]
        )
    header = ["result", "stem", "checks", "cells", "alpha a check", "replications"]
    header += ["most for a check", "processor minutes"]
    return _table(rows, header)


def duration_table(run: Run, others: Mapping[str, float]) -> str:
    """Where the processor seconds of a run went: stem by stem, and what is of no stem."""
    kinds = ("exact", "pilots", "simulation")
    rows = [
        [stem, *(f"{seconds[kind]:.1f}" for kind in kinds)]
        for stem, seconds in run.durations.items()
    ]
    rows += [[what, *[""] * (len(kinds) - 1), f"{seconds:.1f}"] for what, seconds in others.items()]
    return _table(rows, ["processor seconds", *kinds])
