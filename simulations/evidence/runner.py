"""The runner, which runs the blocks that the store lacks and then decides.

Two waves: first what is enumerated, and the pilots that the plan is made from; then the blocks that
it asks for, and on cells of several looks as many again while a check is open. Everything that a
verdict depends on is a function of the claims, the seed and the code: not of workers, order or
interruptions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from attrs import evolve

from ustat_pg.validation import InputError, integer, nearest

from ..paper import RESULTS
from ..proof import Proof, proof_of
from .claim import Check, Claim
from .findings import CheckResult, Findings
from .functionals import Functional, Sums
from .measurements import Measurements
from .options import Options, block_of
from .plan import Plan, make_plan
from .results import ClaimResult, Control
from .store import Memory, Store
from .verdict import Evidence, Verdict, decide, worst
from .work import Work, environment

MOST_REPLICATIONS = 10**10
"""The most replications of a cell that one check is asked for: days of work."""


@dataclass(frozen=True)
class Run:
    """Verdicts on claims, damaged files, and the results of planted effects."""

    claims: tuple[ClaimResult, ...]
    plans: tuple[Plan, ...]
    seconds: float
    set_aside: tuple[str, ...]
    controls: tuple[Control, ...] = ()

    def controlled(self, controls: Sequence[Control]) -> Run:
        """The run with its controls; if a control failed, no claim is CONFIRMED."""
        claims = self.claims
        if not all(control.held for control in controls):
            claims = tuple(
                evolve(claim, verdict=worst([claim.verdict, Verdict.INCONCLUSIVE]))
                for claim in claims
            )
        return replace(self, claims=claims, controls=tuple(controls))

    def with_proofs(self) -> Run:
        """The run with what computer algebra says of its claims; one that it does not prove is REFUTED."""
        claims = []
        for claim in self.claims:
            proof = proof_of(claim.stem)
            verdict = Verdict.REFUTED if proof is Proof.REFUTED else claim.verdict
            claims.append(evolve(claim, proof=proof, verdict=verdict))
        return replace(self, claims=tuple(claims))

    def with_failed(self, failed: Mapping[str, str]) -> Run:
        """The run, and the claims that have no design because a formula failed.

        Arguments:
            failed: what failed, by stem.
        """
        claims = {claim.stem: claim for claim in self.claims}
        claims |= {stem: ClaimResult.failed(stem, message) for stem, message in failed.items()}
        return replace(self, claims=tuple(claims[stem] for stem in RESULTS if stem in claims))


def _planned(claims: Sequence[Claim], work: Work, what: str) -> list[tuple[Measurements, Plan]]:
    """Run the first wave; the measurements of each claim, and its plan."""
    options = work.options
    measured = [
        Measurements((check.functional for check in claim.made().checks), options)
        for claim in claims
    ]
    work.run([task for measured_claim in measured for task in measured_claim.first_wave()], what)
    return [
        (measured_claim, make_plan(claim, measured_claim.pilots(work), options))
        for claim, measured_claim in zip(claims, measured, strict=True)
    ]


def _decide(measured: Measurements, plan: Plan, work: Work) -> ClaimResult:
    exact, drawn = measured.exact(work), measured.drawn(work, plan.replications)
    pilots = measured.pilots(work)
    results = [_settle(check, measured, plan, exact, drawn, pilots) for check in plan.claim.checks]
    claim, simulates = plan.claim, measured.options.simulates
    return ClaimResult.of(
        claim.stem, claim.rivals, results, claim.by_simulation, simulates=simulates
    )


def _settle(
    check: Check, measured: Measurements, plan: Plan, exact: Sums, drawn: Sums, pilots: Sums
) -> CheckResult:
    """A check's evidence of either kind, and what follows from it."""
    functional, findings = check.functional, dict[str, Findings]()
    reason = measured.why_not_exact(functional) or measured.why_not_settled(functional, exact)
    if reason is None:
        # Whatever else is no number is a finding, and leaves the check open.
        evidence = Evidence.enumerated(functional.exact(exact), check.statement)
        findings["exact"] = Findings.of(evidence, decide(check.statement, evidence, ()))
    required = plan.required.get(check.name, ())
    if measured.options.simulates:
        evidence = functional.evidence(drawn, plan.alpha, pilots)
        decision = decide(check.statement, evidence, required)
        findings["simulation"] = Findings.of(evidence, decision, plan.needed.get(check.name, 0))
    return CheckResult.of(
        check.name, check.origin, check.statement, findings, reason, required, check.design
    )


def run_claims(
    claims: Sequence[Claim],
    options: Options,
    store: Store,
    executor: Executor | None = None,
    on_done: Callable[[], None] | None = None,
) -> Run:
    """Decide the claims, after running the blocks that the store lacks.

    Arguments:
        claims: designs.
        options: size, engine, seed, workers.
        store: where blocks are kept.
        executor: any ``concurrent.futures`` executor, or a cluster of
            :mod:`~simulations.evidence.executors`; threads of this process unless given.
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
        planned = _planned(claims, work, "enumerate")
        results: list[ClaimResult] = []
        again = True
        while again:
            drawn = [
                task for measured, plan in planned for task in measured.tasks(plan.replications)
            ]
            work.run(drawn, "simulate")
            results = [_decide(measured, plan, work) for measured, plan in planned]
            again = False
            for (_, plan), result in zip(planned, results, strict=True):
                # A refuted claim stays so.
                if result.verdict != Verdict.REFUTED:
                    drawn_of = ((check.name, check.simulation) for check in result.checks)
                    undecided = [n for n, f in drawn_of if f and f.verdict == Verdict.INCONCLUSIVE]
                    again |= plan.look_again(undecided)
    plans, seconds = tuple(plan for _, plan in planned), time.perf_counter() - start
    return Run(tuple(results), plans, seconds, tuple(store.set_aside))


def check_alone(
    claim: Claim,
    name: str,
    options: Options,
    replications: Sequence[int] = (),
    refute: Collection[str] = (),
) -> CheckResult:
    """Decide one check of a claim with a number of replications, without the store.

    Arguments:
        claim: the whole claim: the check's share of the false alarms depends on it.
        name: name of the check.
        options: engine, seed and workers; the size is the claim's own.
        replications: numbers for its cells, one for all or one for each; one block each unless given.
        refute: the rivals that the check must refute to be CONFIRMED, as a run plans them.
    """
    check = next((check for check in claim.checks if check.name == name), None)
    if check is None:
        raise InputError(_unknown(f"check of {claim.stem}", name, [c.name for c in claim.checks]))
    for rival in refute:
        if rival not in check.statement.rivals:
            known = list(check.statement.rivals)
            raise InputError(_unknown(f"rival of {name!r}", rival, known))
    for number in replications:
        integer("replications", number, 2, MOST_REPLICATIONS)
    # Other problems have other cells: their checks are counted, and not made.
    place = check.problem.partition("[")[0]
    functionals = [
        other.functional
        for other in claim.checks
        if isinstance(other.asks, Functional) or other.problem.partition("[")[0] == place
    ]
    measured = Measurements(functionals, options, only=check.functional)
    cells = measured.cells
    if len(replications) not in (0, 1, len(cells)):
        raise InputError(
            f"{len(replications)} numbers of replications: {name!r} has {len(cells)} "
            f"cell{'s' * (len(cells) > 1)}; give one number, or one for each"
        )
    numbers = list(replications) or [block_of(cell) for cell in cells.values()]
    numbers *= len(cells) // max(len(numbers), 1)
    plan = Plan.of(claim, required={name: tuple(refute)})
    plan.replications = dict(zip(cells, numbers, strict=True))
    with environment(options, None) as pool:
        work = Work(Memory(), options, pool)
        enumerable = measured.why_not_exact(check.functional) is None
        enumerations = measured.exact_tasks.values() if enumerable else ()
        pilots = measured.pilot_tasks.values()
        work.run([*enumerations, *pilots, *measured.tasks(plan.replications)], "check")
        exact = measured.exact(work) if enumerable else {}
        drawn = measured.drawn(work, plan.replications)
        return _settle(check, measured, plan, exact, drawn, measured.pilots(work))


def _unknown(what: str, name: str, known: Collection[str]) -> str:
    """The message that there is no such name, with the names that may have been meant."""
    near = nearest(name, known, count=3, cutoff=0.3) or list(known)[:3]
    names = ", ".join(repr(other) for other in near) or "there are none"
    return f"{what} {name!r} is unknown; the nearest of {len(known)}: {names}"
