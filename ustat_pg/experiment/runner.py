"""The runner: runs what the store lacks, then decides.

Two waves: first what is enumerated, and the pilots that the plan is made from; then the blocks that
it asks for. Everything that a verdict depends on is a function of the claims, the seed and the code:
not of workers, order or interruptions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from math import isnan
from typing import Any

from ..checks import Decision, Evidence, Interval, RivalVerdict, Verdict, decide
from ..engines import MomentSums, Quantity
from ..results import CheckResult, ClaimResult, Findings
from .blocks import Task, sums_of
from .claim import Check, Claim
from .functionals import Identity, Sums
from .options import Options
from .plan import (
    Plan,
    block_tasks,
    exact_task,
    first_wave,
    identity_task,
    make_plan,
    panels,
    why_not_compared,
    why_not_exact,
)
from .store import Store
from .work import Work, environment

__all__ = ["Run", "plan_claims", "run_claims"]


@dataclass(frozen=True)
class Run:
    """Verdicts on claims, and what was set aside on the way."""

    claims: tuple[ClaimResult, ...]
    plans: tuple[Plan, ...]
    seconds: float
    set_aside: tuple[str, ...]


def _decide(plan: Plan, work: Work, options: Options) -> ClaimResult:
    exact_sums: dict[str, tuple[Sequence[Quantity], MomentSums]] = {}
    simulated: dict[str, tuple[Sequence[Quantity], MomentSums]] = {}
    for name, (cell, panel) in panels(plan.claim).items():
        task = exact_task(cell, panel)
        if task.quantities:
            exact_sums[name] = (task.quantities, sums_of(work[task]))
        if options.simulates:
            blocks = block_tasks(cell, panel, options, plan.replications[name])
            simulated[name] = (panel, work.sums(blocks))
    results = []
    for check in plan.claim.checks:
        if isinstance(check.functional, Identity):
            results.append(decide_identity(check, work.__getitem__, options))
            continue
        reason = why_not_exact(check.functional)
        found: dict[str, Findings] = {}
        if reason is None:
            reason = enumerate_check(check, exact_sums, found)
        if options.simulates:
            evidence = check.functional.evidence(simulated, plan.alpha)
            decision = decide(check.statement, evidence, plan.required[check.name])
            found["simulation"] = Findings.of(evidence, decision, plan.needed[check.name])
        required = plan.required.get(check.name, ())
        results.append(
            CheckResult.of(check.name, check.origin, check.statement, found, reason, required)
        )
    claim = plan.claim
    return ClaimResult.of(
        claim.stem, claim.rivals, results, claim.by_simulation, simulates=options.simulates
    )


def enumerate_check(check: Check, sums: Sums, found: dict[str, Findings]) -> str | None:
    """Add what is found without sampling; or say why there is nothing."""
    assert not isinstance(check.functional, Identity)
    value = check.functional.exact(sums)
    if isnan(value) and not all(cell.settles for cell in check.functional.cells):
        return "backward induction did not settle on the finest grid that is feasible"
    evidence = Evidence.enumerated(value, check.statement)
    found["exact"] = Findings.of(evidence, decide(check.statement, evidence, ()))
    return None


def decide_identity(
    check: Check, found_by: Callable[[Task], dict[str, Any]], options: Options
) -> CheckResult:
    """An identity's rivals are judged by the discrepancies of their own formulas."""
    functional = check.functional
    assert isinstance(functional, Identity)
    found: dict[str, Findings] = {}
    reason = why_not_compared(functional.cell)
    kinds: list[tuple[str, Options | None]] = [("exact", None)] if reason is None else []
    if options.simulates:
        kinds.append(("simulation", options))
    for kind, draws in kinds:
        record = found_by(identity_task(functional, draws))

        def evidence(worst: float, groups: int = record["n"]) -> Evidence:
            rounding = check.statement.region.high
            return Evidence(worst, Interval(worst, worst), replications=groups, rounding=rounding)

        verdicts: dict[str, Verdict] = {}
        for formula, worst in record["worst"].items():
            verdicts[formula] = decide(check.statement, evidence(worst)).verdict
        rivals = {}
        for rival, formula in functional.rivals:
            if verdicts[formula] == Verdict.REFUTED:
                rivals[rival] = RivalVerdict.REFUTED
            elif kind == "simulation" and (
                "exact" not in found or found["exact"].rivals[rival] == RivalVerdict.REFUTED
            ):
                # No drawn group shows the difference, but others may.
                rivals[rival] = RivalVerdict.SURVIVED
            else:
                rivals[rival] = RivalVerdict.NOT_DISTINGUISHABLE
        worst = record["worst"][functional.formula]
        found[kind] = Findings.of(evidence(worst), Decision(verdicts[functional.formula], rivals))
    required = [rival for rival, _ in functional.rivals]
    return CheckResult.of(check.name, check.origin, check.statement, found, reason, required)


def plan_claims(
    claims: Sequence[Claim], options: Options, store: Store, executor: Executor | None = None
) -> list[Plan]:
    """Run the first wave and say what the second would run."""
    with environment(options, executor) as pool:
        work = Work(store, options, pool)
        work.run(first_wave(claims, options), "pilots")
        return [make_plan(claim, work.__getitem__, options) for claim in claims]


def run_claims(
    claims: Sequence[Claim],
    options: Options,
    store: Store,
    executor: Executor | None = None,
    on_done: Callable[[], None] | None = None,
) -> Run:
    """Settle the claims: run what the store lacks, then decide.

    Arguments:
        claims: designs.
        options: size, engine, seed, workers.
        store: where blocks are kept.
        executor: any ``concurrent.futures`` executor, or a cluster of
            :mod:`~ustat_pg.experiment.executors`; threads of this process unless given.
        on_done: called after each finished block.

    Raises:
        Interrupted: by the keyboard or a signal; the same call continues.
        LostWorkers: the executor broke; finished blocks are kept, and the same call with another
            executor continues.
        StoreError: results cannot be written.
    """
    start = time.perf_counter()
    with environment(options, executor) as pool:
        work = Work(store, options, pool, on_done)
        work.run(first_wave(claims, options), "enumerate")
        plans = [make_plan(claim, work.__getitem__, options) for claim in claims]
        second = [
            block
            for plan in plans
            for name, (cell, panel) in panels(plan.claim).items()
            for block in block_tasks(cell, panel, options, plan.replications.get(name, 0))
        ]
        work.run(second, "simulate")
        results = tuple(_decide(plan, work, options) for plan in plans)
    return Run(results, tuple(plans), time.perf_counter() - start, tuple(store.set_aside))
