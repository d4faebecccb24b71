"""What a run found, for a person: the verdict table, and the whole report as Markdown."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from os import cpu_count
from typing import Any

from tabulate import tabulate

from ._version import __version__
from .checks import FAMILY_ALPHA, RivalVerdict, Verdict
from .experiment import Options, Plan, Run
from .experiment.functionals import Identity
from .experiment.results import KINDS, CheckResult, ClaimResult
from .experiment.store import code_version
from .paper import PAPER, RESULTS

__all__ = [
    "check_table",
    "document",
    "exit_code",
    "plan_table",
    "remarks",
    "report",
    "verdict_table",
]

_ORIGINS = {"made-up": "made up", "generated": "generated", "real": "real data", "user": "problem"}


def verdict_table(run: Run, style: str = "simple") -> str:
    """One row for each claim: its verdict, the evidence on each kind of problem, its rivals."""
    origins = [
        origin
        for origin in _ORIGINS
        if any(check.check.origin == origin for result in run.claims for check in result.checks)
    ]
    header = [
        "result",
        "stem",
        "verdict",
        *(_ORIGINS[origin] for origin in origins),
        "rivals refuted",
    ]
    rows = []
    for result in run.claims:
        count = Counter(rival.verdict for rival in result.rivals)
        refuted = count[RivalVerdict.REFUTED]
        told = refuted + count[RivalVerdict.SURVIVED]
        alone = sum(
            rival.verdict == RivalVerdict.NOT_TESTED and rival.simulation == RivalVerdict.REFUTED
            for rival in result.rivals
        )
        count[RivalVerdict.NOT_TESTED] -= alone
        apart = [f"{alone} by simulation alone"] if alone else []
        apart += [
            f"{count[verdict]} {word}"
            for verdict, word in (
                (RivalVerdict.NOT_DISTINGUISHABLE, "coincide"),
                (RivalVerdict.NOT_TESTED, "not tested"),
            )
            if count[verdict]
        ]
        rows.append(
            [
                result.claim.label,
                result.claim.stem,
                result.verdict.value,
                *(_evidence(result, origin) for origin in origins),
                f"{refuted} of {told}" + (f" ({', '.join(apart)})" if apart else ""),
            ]
        )
    return str(tabulate(rows, header, tablefmt=style))


def _evidence(result: ClaimResult, origin: str) -> str:
    """Which kinds of evidence confirm a claim on problems of one origin, and which do not."""
    words = []
    for kind in KINDS:
        verdict = result.evidence(kind, origin)
        if verdict is not None:
            words.append(kind if verdict == Verdict.CONFIRMED else f"{kind} {verdict.value}")
    return " + ".join(words) or "-"


def remarks(run: Run) -> list[str]:
    """Lines that a reader must not miss: what failed, what is open and what it would take."""
    lines = []
    for result in run.claims:
        stem = result.claim.stem
        for check in result.checks:
            for kind, found in check.found.items():
                if found.decision.verdict == Verdict.CONFIRMED:
                    continue
                line = (
                    f"{stem}: {check.check.name} is {found.decision.verdict.value} by {kind}: "
                    f"{found.evidence.estimate:.6g} in [{found.evidence.interval.low:.6g}, "
                    f"{found.evidence.interval.high:.6g}], predicted {check.check.statement.prediction:.6g}"
                )
                if found.needed > found.evidence.replications:
                    line += (
                        f"; it would need {found.needed:,} replications "
                        f"and had {found.evidence.replications:,}"
                    )
                lines.append(line)
        lines += [
            f"{stem}: rival '{rival.name}' survived"
            for rival in result.rivals
            if rival.verdict == RivalVerdict.SURVIVED
        ]
        if not result.checks:
            lines.append(f"{stem}: nothing can be checked on this problem")
        elif result.evidence("exact") is None:
            reasons = [check.infeasible for check in result.checks if check.infeasible]
            lines.append(f"{stem}: nothing was enumerated: {reasons[0]}")
    lines += [f"damaged results file, kept and computed again: {name}" for name in run.set_aside]
    return lines


def exit_code(run: Run) -> int:
    """0 if every claim is confirmed, 1 if one is refuted, 3 if one is inconclusive."""
    verdicts = {result.verdict for result in run.claims}
    if Verdict.REFUTED in verdicts:
        return 1
    return 3 if Verdict.INCONCLUSIVE in verdicts else 0


def document(
    run: Run, options: Options, command: str = "", problem: str | None = None
) -> dict[str, Any]:
    """The run as one JSON object: ``claims`` depends on the claims, the seed, the engine and the
    code alone; ``draws`` has the replications of every check's cells, which reproduce it alone;
    ``run`` says when, where and by which command.
    """
    return {
        "claims": [result.to_dict() for result in run.claims],
        "draws": {plan.claim.stem: _draws(plan) for plan in run.plans},
        "run": {
            "command": command,
            "problem": problem,
            "seconds": round(run.seconds, 3),
            "paper": PAPER,
            "size": options.size,
            "engine": options.engine,
            "device": options.device,
            "seed": options.seed,
            "workers": options.workers,
            "family_alpha": FAMILY_ALPHA,
            "machine": {
                "system": platform.system(),
                "platform": platform.platform(),
                "processor": platform.machine(),
                "cores": cpu_count(),
            },
            "versions": {
                "ustat_pg": __version__,
                "code": code_version(),
                "python": platform.python_version(),
                **{
                    name: version(name)
                    for name in ("numpy", "scipy", "numba", "llvmlite", "pandas", "scikit-learn")
                },
                **({"torch": version("torch")} if find_spec("torch") else {}),
            },
            "set_aside": list(run.set_aside),
        },
    }


def _draws(plan: Plan) -> dict[str, list[int]]:
    """The replications of each simulated check's cells, in their order."""
    return {
        check.name: [
            plan.replications[name]
            for name in dict.fromkeys(c.name for c in check.functional.cells)
        ]
        for check in plan.claim.checks
        if not isinstance(check.functional, Identity) and plan.replications
    }


def report(run: Run, options: Options, command: str) -> str:
    """The run as a Markdown page: table, remarks, and every check with its evidence."""
    lines = [
        "# Verdicts",
        "",
        f"On {PAPER}; size {options.size}, engine {options.engine}, seed {options.seed}; "
        f"ustat_pg {__version__}, code {code_version()}.",
        "",
        f"Reproduce with `{command}`.",
        "",
        verdict_table(run, "github"),
        "",
        f"A suite of true claims shows a false alarm with probability at most {FAMILY_ALPHA:g}; "
        "intervals are empirical Bernstein ones, which hold at every sample size. Each rival is refuted "
        "by the check that does it with the fewest replications, in every origin of problems; other "
        "checks may be too coarse for it and say only that they agree with the prediction.",
        "",
        *(f"- {line}" for line in remarks(run)),
    ]
    for result in run.claims:
        lines += ["", *_section(result)]
    return "\n".join(lines) + "\n"


def _section(result: ClaimResult) -> Iterator[str]:
    about = RESULTS[result.claim.stem]
    yield f"## {about.label} ({result.claim.stem}): {result.verdict.value}"
    yield ""
    yield about.statement
    if about.assumptions:
        yield f"Assumes: {about.assumptions}"
    if about.sharper:
        yield f"Here: {about.sharper}"
    yield ""
    rivals = [
        [
            rival.name.replace("|", "\\|"),
            rival.verdict.value,
            rival.exact.value,
            "-" if rival.simulation is None else rival.simulation.value,
        ]
        for rival in result.rivals
    ]
    yield str(tabulate(rivals, ["rival", "verdict", "exact", "simulation"], tablefmt="github"))
    yield ""
    header = [
        "check",
        "predicted",
        "exact",
        "simulated",
        "standard error",
        "interval",
        "replications",
        "sees",
        "verdict",
    ]
    yield str(
        tabulate(
            [_row(check) for check in result.checks],
            header,
            tablefmt="github",
            disable_numparse=True,
        )
    )


def _row(check: CheckResult) -> list[str]:
    exact, drawn = check.found.get("exact"), check.found.get("simulation")
    verdicts = {found.decision.verdict for found in check.found.values()}
    verdict = next((v for v in (Verdict.REFUTED, Verdict.INCONCLUSIVE) if v in verdicts), None)
    return [
        check.check.name.replace("|", "\\|"),
        f"{check.check.statement.prediction:.6g}",
        "too many outcomes" if exact is None else f"{exact.evidence.estimate:.6g}",
        "-" if drawn is None else f"{drawn.evidence.estimate:.6g}",
        "-" if drawn is None else f"{drawn.evidence.standard_error:.2g}",
        "-"
        if drawn is None
        else f"[{drawn.evidence.interval.low:.6g}, {drawn.evidence.interval.high:.6g}]",
        "-" if drawn is None else f"{drawn.evidence.replications:,}",
        "-" if drawn is None else f"{drawn.evidence.smallest_discrepancy:.2g}",
        (verdict or Verdict.CONFIRMED).value,
    ]


def check_table(stem: str, result: CheckResult) -> str:
    """One check as a small table: each kind of evidence, then each rival."""
    statement = result.check.statement
    lines = [
        f"{RESULTS[stem].label} ({stem}): {result.check.name}",
        f"predicted {statement.prediction:.12g}",
        "",
    ]
    found = [
        [
            kind,
            f"{evidence.estimate:.12g}",
            f"{evidence.standard_error:.2g}",
            f"[{evidence.interval.low:.12g}, {evidence.interval.high:.12g}]",
            f"{evidence.replications:,}" if evidence.replications else "-",
            findings.decision.verdict.value,
        ]
        for kind, findings in result.found.items()
        for evidence in [findings.evidence]
    ]
    header = ["evidence", "estimate", "standard error", "interval", "replications", "verdict"]
    lines.append(tabulate(found, header, disable_numparse=True))
    if result.infeasible:
        lines += ["", f"not enumerated: {result.infeasible}"]
    names = dict.fromkeys(
        name for findings in result.found.values() for name in findings.decision.rivals
    )
    rivals = []
    for name in names:
        says = statement.rivals.get(name)
        if says is None:
            said = "another formula"
        elif says.low == says.high:
            said = f"{says.low:.6g}"
        else:
            said = f"[{says.low:.6g}, {says.high:.6g}]"
        rivals.append([name, said, *(f.decision.rivals[name].value for f in result.found.values())])
    if rivals:
        lines += [
            "",
            str(tabulate(rivals, ["rival", "says", *result.found], disable_numparse=True)),
        ]
    return "\n".join(lines)


def plan_table(plans: list[Plan], budget: int) -> str:
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
            ]
        )
    header = [
        "result",
        "stem",
        "checks",
        "cells",
        "alpha a check",
        "replications",
        "most for a check",
    ]
    return str(tabulate(rows, header, disable_numparse=True))
