"""One check of a claim alone: the replications of a run drawn again, and the same verdict.

The quantities measured are those of the whole claim on the check's cells. A compiled body may add up
in another order when it is asked for fewer, and then the last bit of an estimate would differ.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from difflib import get_close_matches
from functools import reduce
from typing import Any

from threadpoolctl import threadpool_limits

from ..checks import allotted_alpha, decide
from ..engines import MomentSums, Quantity
from ..results import CheckResult, Findings
from ..validation import InputError, integer
from .blocks import Block, Task, run_task, sums_of
from .claim import Check, Claim
from .functionals import Identity
from .options import Options
from .plan import (
    block_tasks,
    exact_task,
    identity_task,
    panels,
    why_not_compared,
    why_not_exact,
)
from .runner import decide_identity, enumerate_check

__all__ = ["check_alone"]


def check_alone(
    claim: Claim,
    name: str,
    options: Options,
    replications: Sequence[int] = (),
    refute: Collection[str] = (),
) -> CheckResult:
    """Settle one check of a claim, with that many replications; nothing is stored or read.

    Arguments:
        claim: the whole claim: the check's share of the false alarms depends on it.
        name: the check's.
        options: engine, seed and workers; the size is the claim's own.
        replications: of its cells, one number for all or one for each; one block each unless given.
            For an identity, the number of drawn groups.
        refute: the rivals that the check must refute to be CONFIRMED, as a run plans them. An
            identity must refute all of its own.

    Raises:
        InputError: a check or rival that the claim does not have, or a number of replications for
            which there is no cell.
    """
    check = _find(claim, name)
    own = check.functional
    listed = dict(own.rivals) if isinstance(own, Identity) else check.statement.rivals
    for rival in refute:
        if rival not in listed:
            raise InputError(_unknown(f"rival of {name!r}", rival, list(listed)))
    for number in replications:
        integer("replications", number, 2)
    if isinstance(check.functional, Identity):
        return _identity(check, check.functional, options, replications)
    measured = panels(claim)
    names = list(dict.fromkeys(cell.name for cell in check.functional.cells))
    if len(replications) not in (0, 1, len(names)):
        raise InputError(
            f"{len(replications)} numbers of replications: {name!r} has {len(names)} "
            f"cell{'s' * (len(names) > 1)}; give one number, or one for each"
        )
    asked = list(replications) or [measured[cell][0].block for cell in names]
    asked *= len(names) // len(asked)
    reason = why_not_exact(check.functional)
    enumerated = {} if reason else {cell: exact_task(*measured[cell]) for cell in names}
    drawn = {
        cell: _blocks(measured[cell], options, n)
        for cell, n in zip(names, asked, strict=True)
        if options.simulates
    }
    tasks: list[Task] = [*enumerated.values(), *(task for of in drawn.values() for task in of)]
    results = dict(zip(map(id, tasks), _run(tasks, options.workers), strict=True))

    def sums(blocks: Sequence[Block]) -> MomentSums:
        return reduce(MomentSums.merge, (sums_of(results[id(task)]) for task in blocks))

    statement, found = check.statement, dict[str, Findings]()
    if enumerated:
        known = {cell: (task.quantities, sums([task])) for cell, task in enumerated.items()}
        reason = enumerate_check(check, known, found)
    if drawn:
        of: dict[str, tuple[Sequence[Quantity], MomentSums]] = {
            cell: (measured[cell][1], sums(blocks)) for cell, blocks in drawn.items()
        }
        simulated = sum(not isinstance(other.functional, Identity) for other in claim.checks)
        evidence = check.functional.evidence(of, allotted_alpha(claim.stem, simulated))
        found["simulation"] = Findings.of(evidence, decide(statement, evidence, tuple(refute)))
    return CheckResult.of(check.name, check.origin, statement, found, reason, refute)


def _find(claim: Claim, name: str) -> Check:
    for check in claim.checks:
        if check.name == name:
            return check
    raise InputError(_unknown(f"check of {claim.stem}", name, [c.name for c in claim.checks]))


def _unknown(what: str, name: str, known: Collection[str]) -> str:
    """The message that there is no such name, with the names that may have been meant."""
    near = get_close_matches(name, known, n=3, cutoff=0.3) or list(known)[:3]
    said = ", ".join(repr(other) for other in near) or "there are none"
    return f"{what} {name!r} is unknown; the nearest of {len(known)}: {said}"


def _blocks(panel: tuple[Any, Any], options: Options, n: int) -> list[Block]:
    """Exactly n replications: whole blocks, as a run has them, and the rest."""
    rest = n % panel[0].block
    whole = block_tasks(*panel, options, n - rest)
    if rest:
        engine = panel[0].engine(options.engine)
        whole.append(Block(*panel, engine, options.seed, n - rest, rest, options.device))
    return whole


def _identity(
    check: Check, functional: Identity, options: Options, replications: Sequence[int]
) -> CheckResult:
    if len(replications) > 1:
        raise InputError(f"{check.name!r} has one cell: give one number of groups")
    tasks: list[Task] = []
    if why_not_compared(functional.cell) is None:
        tasks.append(identity_task(functional, None))
    if options.simulates:
        task = identity_task(functional, options)
        tasks.append(replace(task, replications=replications[0]) if replications else task)
    # The comparison on all groups draws none.
    by = {
        bool(task.replications): record
        for task, record in zip(tasks, _run(tasks, options.workers), strict=True)
    }
    return decide_identity(check, lambda task: by[bool(task.replications)], options)


def _run(tasks: Sequence[Task], workers: int) -> list[dict[str, Any]]:
    with threadpool_limits(1):
        pool = ThreadPoolExecutor(workers)
        try:
            return list(pool.map(run_task, tasks))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
