"""A run's verdicts for a person: tables for a terminal, a Markdown page, and one self-contained
HTML page. All three show one view of the run's records, so that they cannot disagree.
"""

from __future__ import annotations

import shlex
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.resources import files
from math import isfinite
from typing import Any

from attrs import frozen
from tabulate import tabulate

from ustat_pg.display.shown import width

from ..paper import RESULTS
from ..proof import Proof
from .findings import KINDS, ORIGINS, CheckResult, Findings
from .intervals import Interval
from .planning import MOST
from .results import EFFECTS, ClaimResult, Control, Results, RivalResult, plain
from .verdict import RivalVerdict, Verdict, worst

EXIT_CODES = {Verdict.CONFIRMED: 0, Verdict.REFUTED: 1, Verdict.INCONCLUSIVE: 3}

WAYS = {
    ("exact", "simulation"): "by enumeration and again by simulation",
    ("exact",): "by enumeration alone",
    ("simulation",): "by simulation alone",
}
"""Words for the refutation of wrong formulas, by the kinds of evidence that refute them."""

MARKS = {"CONFIRMED": "✓", "REFUTED": "✗", "INCONCLUSIVE": "?"}

RECONSTRUCTED = (
    "[r] reconstructed: the formula follows the paper's proof or words, whose own constants we lack; "
    "the report says what the paper states."
)
"""The line below a table of verdicts that includes such a result."""

NEVER = {
    RivalVerdict.NOT_DISTINGUISHABLE: "coincides with the prediction on every problem",
    RivalVerdict.NOT_TESTED: "is not tested",
}
"""The reasons that evidence leaves a wrong formula open although it did not survive."""

ALL_DIGITS = 17
"""The number of digits that distinguishes all numbers of double precision."""

_PADDING = 2
"""The number of spaces between the columns of a table, and next to their headings."""

POWER_HEADER = ["result", "stem", "evidence", *(f"{effect:.0%} off" for effect in EFFECTS)]


def exit_code(claims: Iterable[ClaimResult], controls: Iterable[Control] = ()) -> int:
    """0 if every claim is confirmed, 1 if one is refuted or a control failed, 3 if one is inconclusive."""
    verdicts = [claim.verdict for claim in claims]
    verdicts += [Verdict.REFUTED for control in controls if not control.held]
    return EXIT_CODES[worst(verdicts)]


def _rivals_refuted(rivals: Iterable[RivalResult]) -> tuple[str, dict[str, int], list[str]]:
    """The number of distinguishable rivals that are refuted, by which evidence, and the others.

    A rival counts as refuted if each kind of evidence refutes it, or if simulation does and nothing
    could be enumerated. It is distinguishable if it is refuted or survived. The others coincide with the
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


def rivals_of(claim: ClaimResult) -> str:
    """The number of refuted rivals of a claim, for a table with a column for each kind of evidence."""
    refuted, ways, notes = _rivals_refuted(claim.rivals)
    alone = WAYS["simulation",]
    notes = [f"{ways[alone]} {alone}", *notes] if alone in ways else notes
    return f"{refuted} ({', '.join(notes)})" if notes else refuted


def evidence_of(claim: ClaimResult, origin: str | None = None) -> str:
    """The kinds of evidence that confirm a claim on problems of one origin, and the kinds that do not.

    A proof has no origin, so it comes before the others if no origin is given.
    """
    verdicts = {kind: claim.evidence(kind, origin) for kind in KINDS}
    words = [str(claim.proof)] if claim.proof and origin is None else []
    words += [
        kind if verdict == Verdict.CONFIRMED else f"{kind} {verdict}"
        for kind, verdict in verdicts.items()
        if verdict is not None
    ]
    return " + ".join(words) or "-"


def summary(claims: Sequence[ClaimResult]) -> str:
    """The number of confirmed results and of refuted wrong formulas, in one line."""
    count = Counter(claim.verdict for claim in claims)
    words = [f"{count[Verdict.CONFIRMED]} of {len(claims)} results confirmed"]
    open_ = (Verdict.REFUTED, Verdict.INCONCLUSIVE)
    words += [f"{count[verdict]} {verdict}" for verdict in open_ if count[verdict]]
    refuted, ways, notes = _rivals_refuted(rival for claim in claims for rival in claim.rivals)
    by = ", ".join(f"{number} {way}" for way, number in ways.items())
    by = f": {by}" if len(ways) > 1 else "".join(f" {way}" for way in ways)
    rest = f"; not counted: {', '.join(notes)}" if notes else ""
    return f"{', '.join(words)}; {refuted} wrong formulas refuted{by}{rest}"


def _origins(claims: Sequence[ClaimResult]) -> dict[str, str]:
    known = {check.origin for claim in claims for check in claim.checks}
    return {origin: word for origin, word in ORIGINS.items() if origin in known}


def verdict_table(
    claims: Sequence[ClaimResult], style: str = "simple", controls: Sequence[Control] = ()
) -> str:
    """One row for each claim: its verdict, the evidence on problems of each origin, and its rivals; one
    for the controls of the run, if there are any; and the meaning of a label's mark.
    """
    origins = _origins(claims)
    rows = []
    for claim in claims:
        label = f"{claim.label} [r]" if RESULTS[claim.stem].reconstructed else claim.label
        evidence = [evidence_of(claim, origin) for origin in origins]
        rows.append(
            [label, claim.stem, claim.verdict, claim.proof or "-", *evidence, rivals_of(claim)]
        )
    if controls:
        held = sum(control.held for control in controls)
        word = "HELD" if held == len(controls) else "FAILED"
        blank = [""] * len(origins)
        rows.append(["Controls", "", word, "", *blank, f"{held} of {len(controls)} held"])
    marked = any(RESULTS[claim.stem].reconstructed for claim in claims)
    header = ["result", "stem", "verdict", "algebra", *origins.values(), "rivals refuted"]
    return as_table(rows, header, style) + (f"\n\n{RECONSTRUCTED}" if marked else "")


def _power_rows(claims: Sequence[ClaimResult]) -> list[list[str]]:
    rows: dict[tuple[str, str, str], list[str]] = {}
    for claim in claims:
        for power in claim.power:
            share, best = f"{power.share:.0%}", f"{power.best:.0%}"
            cells = rows.setdefault((claim.label, claim.stem, power.kind), [])
            cells.append(share if share == best else f"{share} ({best})")
    return [[*first, *cells] for first, cells in rows.items()]


def power_table(claims: Sequence[ClaimResult], style: str = "simple") -> str:
    """The expected share of each claim's checks that would be REFUTED if every quantity were wrong by
    an effect; in brackets the probability of the most likely check, if it differs.
    """
    return as_table(_power_rows(claims), POWER_HEADER, style)


def as_table(rows: Sequence[Sequence[Any]], header: Sequence[str], style: str = "simple") -> str:
    """Rows under their headings, as wide as the terminal, or in Markdown if the style is ``github``."""
    cells = [[str(cell) for cell in row] for row in rows]
    options: dict[str, Any] = {}
    if style == "github":
        cells = [[cell.replace("|", "\\|") for cell in row] for row in cells]
    elif room := width():
        widths = _fitted(list(zip(header, *cells, strict=True)), room)
        options["maxcolwidths"] = widths
        options["maxheadercolwidths"] = [size - _PADDING for size in widths]
    return str(tabulate(cells, header, tablefmt=style, disable_numparse=True, **options))


def _fitted(columns: Sequence[Sequence[str]], room: int) -> list[int]:
    """Widths of columns that fit in a terminal, if words need not be broken there."""
    widths = [max([len(head) + _PADDING, *map(len, rest)]) for head, *rest in columns]
    words = [[*head.split(), *" ".join(rest).split()] for head, *rest in columns]
    least = [_PADDING + max(map(len, several), default=0) for several in words]
    while sum(widths) + _PADDING * (len(widths) - 1) > room:
        slack, widest = max(
            (size - low, n) for n, (size, low) in enumerate(zip(widths, least, strict=True))
        )
        if slack <= 0:
            break
        widths[widest] -= 1
    return widths


def number(value: float, none: str = "-", digits: int = 6) -> str:
    """A number with a few digits; a word if it is not finite."""
    return f"{value:.{digits}g}" if isfinite(value) else none


def digits_apart(value: float, others: Iterable[float], least: int = 6) -> int:
    """The digits at which a number looks different from all others with another value, at most all.

    >>> digits_apart(6.4967601, [6.4967601, 6.4967605, 7.0])
    8
    """
    different = [other for other in others if other != value and isfinite(other)]
    return next(
        (
            digits
            for digits in range(least, ALL_DIGITS)
            if number(value, digits=digits) not in {number(o, digits=digits) for o in different}
        ),
        ALL_DIGITS,
    )


def _digits(check: CheckResult, least: int) -> int:
    """The number of digits at which non-confirming evidence looks different from a check's prediction."""
    others = (
        end
        for findings in check.findings.values()
        if findings.verdict != Verdict.CONFIRMED
        for end in (findings.estimate, findings.interval.low, findings.interval.high)
    )
    return digits_apart(check.prediction, others, least)


def predicted(check: CheckResult, digits: int = 6) -> str:
    """The prediction in words, with more digits if different evidence would look the same."""
    return number(check.prediction, digits=_digits(check, digits))


def in_words(check: CheckResult, findings: Findings, digits: int = 6) -> tuple[str, str]:
    """The estimate and the interval in words, with more digits if they differ from the prediction
    but would look the same; 0 if they differ from a predicted 0 only by rounding.
    """
    digits = _digits(check, digits)
    low, high = findings.interval.low, findings.interval.high
    rounding = check.rounding if findings.standard_error else findings.smallest_discrepancy
    # An enumerated value's own interval adds the same rounding again.
    if check.prediction == 0 and max(abs(low), abs(high)) <= 2 * rounding:
        return ("0 to rounding" if findings.estimate else "0"), "[0, 0]"
    ends = f"[{number(low, '-∞', digits)}, {number(high, '∞', digits)}]"
    return number(findings.estimate, digits=digits), ends


def remarks(
    claims: Iterable[ClaimResult],
    set_aside: Iterable[str] = (),
    controls: Iterable[Control] = (),
) -> list[str]:
    """Lines that a reader must not miss: failures, open checks and their needs, and the files
    set aside because they were damaged.
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
        for kind, findings in check.findings.items():
            if findings.verdict == Verdict.CONFIRMED:
                continue
            if not check.coherent:
                yield f"{check.name} is REFUTED by its own formula: {_contradiction(check)}"
                break
            estimate, ends = in_words(check, findings)
            known = f"{estimate} in {ends}" if isfinite(findings.estimate) else "no number"
            line = f"{check.name} is {findings.verdict} by {kind}: {known}"
            line += f", predicted {predicted(check)}"
            needed = findings.replications_needed
            if needed > findings.replications and needed < MOST:
                line += f"; it would need {needed:,} replications and had {findings.replications:,}"
            elif needed > findings.replications:
                line += "; no number of replications would do: a prediction of 0 needs a scale, "
                line += "equal(0.0, ..., scale=...)"
            yield line
    if claim.checks:
        yield from _open_rivals(claim)
    if claim.proof is Proof.REFUTED:
        yield f"its closed forms are not proved: see python -m simulations prove {claim.stem}"
    if claim.failure is not None:
        yield f"REFUTED: {claim.failure}"
    elif claim.evidence("exact") is None:
        reasons = [f": {check.not_enumerated}" for check in claim.checks if check.not_enumerated]
        yield "nothing was enumerated" + (reasons[0] if reasons else "")


def _contradiction(check: CheckResult) -> str:
    """The error of a prediction that its own statement does not allow."""
    if not isfinite(check.prediction):
        return "it gives no number"
    ends = check.region.low, check.region.high
    digits = digits_apart(check.prediction, ends)
    low, high = (number(end, "∞", digits) for end in ends)
    given = number(check.prediction, digits=digits)
    return f"it gives {given}, and the statement allows {low} to {high}"


def _open_rivals(claim: ClaimResult) -> Iterator[str]:
    """The wrong formulas that the evidence leaves open, with the kind of evidence."""
    for rival in claim.rivals:
        if rival.verdict == RivalVerdict.SURVIVED:
            yield f"the wrong formula “{rival.name}” survived"
        elif claim.verdict == Verdict.INCONCLUSIVE:
            for kind in KINDS:
                if (words := NEVER.get(getattr(rival, kind))) is not None:
                    yield f"the wrong formula “{rival.name}” {words} ({kind})"
    told_apart = {RivalVerdict.REFUTED, RivalVerdict.SURVIVED}
    if not any({r.exact, r.simulation} & told_apart for r in claim.rivals):
        yield "no wrong formula is distinguishable from the prediction here"


def check_command(results: Results, stem: str, check: CheckResult) -> list[str]:
    """The words, quoted for a shell, of the command that reproduces one single check of a run."""
    run, draws = results.run, results.draws[stem].get(check.name, ())
    words = ["python", "-m", "simulations", "check", stem, check.name]
    words += ["--size", run.size, "--engine", run.engine, "--seed", str(run.seed)]
    # A check without draws has no replications.
    if check.simulation is not None and check.simulation.replications:
        numbers = draws or (check.simulation.replications,)
        numbers = numbers[:1] if len(set(numbers)) == 1 else numbers
        words += ["--replications", ",".join(map(str, numbers))]
    if draws:
        words += [word for rival in check.planned_for for word in ("--refute", rival)]
    return [shlex.quote(word) for word in words]


@frozen
class Drawing:
    """A figure for the HTML page: its anchor, its title, its description in words, and its file."""

    name: str
    title: str
    alt: str
    svg: bytes

    @property
    def source(self) -> str:
        """The picture itself instead of its address."""
        return f"data:image/svg+xml;base64,{b64encode(self.svg).decode()}"


def markdown(results: Results) -> str:
    """The run as a Markdown page: table, remarks, and every check with its evidence."""
    return _rendered("report.md", results)


def html(results: Results, figures: Sequence[Drawing] = ()) -> str:
    """The run as one HTML page that loads no other files."""
    return _rendered("report.html", results, figures)


def _rendered(template: str, results: Results, figures: Sequence[Drawing] = ()) -> str:
    """A template filled with the records of a run, and with this module's words for them."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=template.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"plain": plain, "says": says, "shown": shown}
    claims, run, controls = results.claims, results.run, results.controls
    source = files("simulations").joinpath("templates", template).read_text(encoding="utf-8")
    return environment.from_string(source).render(
        about=RESULTS,
        claims=claims,
        command=partial(check_command, results),
        controls=controls,
        evidence_of=evidence_of,
        figures=figures,
        marks=MARKS,
        origins=ORIGINS,
        power=power_table(claims, "github"),
        power_rows=[POWER_HEADER, *_power_rows(claims)],
        remarks=remarks(claims, run.set_aside, controls),
        remarks_of={claim.stem: list(_remarks(claim)) for claim in claims},
        rivals_of=rivals_of,
        rows_as_table=_rows_as_table,
        run=run,
        shown_origins=_origins(claims),
        strip=_strip,
        summary=summary(claims),
        table=verdict_table(claims, "github", controls),
        worst=worst(claim.verdict for claim in claims),
    )


def _rows_as_table(rows: Iterable[Mapping[str, str]], columns: Mapping[str, str]) -> str:
    cells = [[row[name] or "-" for name in columns] for row in rows]
    return as_table(cells, list(columns.values()), "github")


def shown(check: CheckResult) -> dict[str, str]:
    """The numbers of a check in words, as both pages show them."""
    exact, drawn = check.exact, check.simulation
    words = dict.fromkeys(("simulated", "error", "interval", "replications", "sees"), "-")
    if drawn is not None:
        words["simulated"], words["interval"] = in_words(check, drawn)
        words["error"] = number(drawn.standard_error, "∞", 2)
        words["replications"] = f"{drawn.replications:,}"
        words["sees"] = number(drawn.smallest_discrepancy, "∞", 2)
    return {
        "name": check.name,
        "verdict": check.verdict or "-",
        "predicted": predicted(check),
        "exact": "not enumerated" if exact is None else in_words(check, exact)[0],
        **words,
    }


def says(values: Interval | None) -> str:
    """The value that a rival gives a check, in words."""
    if values is None:
        return "another formula"
    low, high = number(values.low), number(values.high)
    if isfinite(values.low) and isfinite(values.high):
        return low if low == high else f"from {low} to {high}"
    return f"at least {low}" if isfinite(values.low) else f"at most {high}"


def _strip(check: CheckResult) -> dict[str, Any] | None:
    """The interval, the estimate and the rivals relative to the prediction, in units of the interval's
    half-width or, without draws, of a third of the nearest rival's distance; None without
    an estimate.
    """
    findings = check.simulation or check.exact
    if findings is None or not isfinite(findings.estimate):
        return None
    prediction, interval = check.prediction, findings.interval
    rivals = {name: end for name in check.rivals if (end := check.rival_end(name)) is not None}
    gaps = [abs(value - prediction) for value in rivals.values() if value != prediction]
    unit = interval.half_width if isfinite(interval.half_width) else 0.0
    if check.simulation is None or not unit > 0:
        # A discrepancy is shown relative to the allowed rounding.
        region = check.region.high if isfinite(check.region.high) else 0.0
        unit = min(gaps) / 3 if gaps else (region if not unit > 0 else unit) or 1.0
    estimate, ends = in_words(check, findings)
    return {
        "from": (interval.low - prediction) / unit if isfinite(interval.low) else None,
        "to": (interval.high - prediction) / unit if isfinite(interval.high) else None,
        "at": (findings.estimate - prediction) / unit,
        "rivals": {name: (value - prediction) / unit for name, value in rivals.items()},
        "label": f"estimate {estimate} in {ends}, predicted {predicted(check)}, "
        f"{len(rivals)} wrong formulas",
    }
