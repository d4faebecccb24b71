"""The tables of the commands ``check`` and ``plan``, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .evidence import Plan
from .evidence.findings import CheckResult
from .evidence.report import as_table, in_words, number, predicted, says
from .paper import RESULTS

__all__ = ["check_table", "plan_table"]


def check_table(stem: str, check: CheckResult) -> str:
    """One check as a small table, with each kind of evidence and then each rival."""
    rows = []
    for kind, findings in check.findings.items():
        estimate, ends = in_words(check, findings, 12)
        error = number(findings.standard_error, "∞", 2)
        replications = f"{findings.replications:,}" if findings.replications else "-"
        rows.append([kind, estimate, error, ends, replications, findings.verdict])
    header = ["evidence", "estimate", "standard error", "interval", "replications", "verdict"]
    lines = [f"{RESULTS[stem].label} ({stem}): {check.name}"]
    lines += [f"predicted {predicted(check, 12)}", "", as_table(rows, header)]
    if check.not_enumerated:
        lines += ["", f"not enumerated: {check.not_enumerated}"]
    rivals = [
        [name, says(values), *(findings.rivals[name] for findings in check.findings.values())]
        for name, values in check.rivals.items()
    ]
    if rivals:
        lines += ["", as_table(rivals, ["rival", "says", *check.findings])]
    return "\n".join(lines)


def plan_table(plans: Sequence[Plan], budget: int) -> str:
    """The draws and the cost of a run, with one row per claim."""
    draws: list[list[Any]] = []
    costs: list[list[float]] = []
    for plan in plans:
        claim, most = plan.claim, max(plan.needed.values(), default=0)
        over = " (over the budget)" if most > budget else ""
        numbers = [len(claim.checks), len(plan.replications), f"{plan.alpha:.1e}"]
        drawn = [f"{sum(plan.replications.values()):,}", f"{most:,}{over}"]
        draws.append([claim.label, claim.stem, *numbers, *drawn])
        costs.append(list(plan.seconds.values()))
    costs.append([sum(column) for column in zip(*costs, strict=True)])
    names = [*(row[:2] for row in draws), ["all", ""]]
    rows = [
        [*name, *(f"{seconds:,.1f}" for seconds in (*parts, sum(parts)))]
        for name, parts in zip(names, costs, strict=True)
    ]
    header = ["result", "stem", "checks", "cells", "alpha a check", "replications"]
    replications = as_table(draws, [*header, "most for a check"])
    seconds = as_table(rows, ["result", "stem", *plans[0].seconds, "processor seconds"])
    return f"{replications}\n\n{seconds}"
