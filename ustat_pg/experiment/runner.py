"""The runner: plans the replications of each check, runs what is missing, decides.

Three waves. First what is enumerated, and pilots on replications of their own, far from those that
verdicts use. From the pilots each rival is given to the check that refutes it with the least work,
and each check gets the replications that its margin needs. Then the blocks. Everything that a
verdict depends on is a function of the claims, the seed and the code: not of workers, order or
interruptions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from math import log10
from shutil import get_terminal_size
from typing import Any

from threadpoolctl import threadpool_limits
from tqdm import tqdm

from ..checks import (
    Decision,
    Evidence,
    Interval,
    RivalVerdict,
    Verdict,
    allotted_alpha,
    decide,
)
from ..engines import Cell, InfeasibleError, MomentSums, Quantity, exact, get_engine
from ..validation import InputError, integer
from .blocks import Block, IdentityBlock, Task, run_task, sums_of
from .claim import Check, Claim, Identity
from .results import CheckResult, ClaimResult, Findings
from .store import Store

__all__ = ["Interrupted", "Options", "Plan", "Run", "plan_claims", "run_claims"]

BLOCK = 65_536
PILOT = 8_192
PILOT_FIRST = 2**62
IDENTITY_GROUPS = 100
IDENTITY_WORK = 200_000_000
"""Numbers handled for the drawn groups of one cell: fewer groups are drawn of a large problem."""
IDENTITY_LIMIT = 300
"""Groups on which formulas are still compared one by one."""

BUDGETS = {"smoke": 6_000_000, "quick": 20_000_000, "full": 500_000_000}
"""The most replications of one check, by size."""

Results = dict[str, dict[str, Any]]


class Interrupted(KeyboardInterrupt):
    """The run was stopped; finished blocks are kept, and the same call continues."""


@dataclass(frozen=True)
class Options:
    """How to run.

    Arguments:
        size: smoke, quick or full: sets the most replications of one check.
        engine: cpu, reference, or exact for enumeration alone.
        seed: of every draw.
        workers: threads.
        progress: show progress where stderr is a terminal.
    """

    size: str = "quick"
    engine: str = "cpu"
    seed: int = 0
    workers: int = 1
    progress: bool = False

    def __post_init__(self) -> None:
        if self.size not in BUDGETS:
            raise InputError(f"size {self.size!r} is unknown: choose one of {', '.join(BUDGETS)}")
        get_engine(self.engine)
        integer("seed", self.seed, 0)
        integer("workers", self.workers)

    @property
    def simulates(self) -> bool:
        """Whether there is a simulation beside the enumeration."""
        return not get_engine(self.engine).enumerates

    @property
    def budget(self) -> int:
        """The most replications of one check."""
        return BUDGETS[self.size]


@dataclass
class Plan:
    """What one claim will run.

    Arguments:
        claim: it.
        alpha: allotted to each simulated check.
        required: the rivals that each check is to refute, by check.
        needed: the replications that each check needs, by check, be they within the budget or not.
        replications: of each cell, by its name, a multiple of the block.
    """

    claim: Claim
    alpha: float
    required: dict[str, tuple[str, ...]] = field(default_factory=dict)
    needed: dict[str, int] = field(default_factory=dict)
    replications: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """Verdicts on claims, and what was set aside on the way."""

    claims: tuple[ClaimResult, ...]
    plans: tuple[Plan, ...]
    seconds: float
    set_aside: tuple[str, ...]


class _Work:
    """Runs tasks that the store does not have."""

    def __init__(
        self,
        store: Store,
        options: Options,
        executor: Executor,
        on_done: Callable[[], None] | None,
    ) -> None:
        self.store, self.options, self.executor = store, options, executor
        self.on_done = on_done
        self.results: Results = {}

    def run(self, tasks: Iterable[Task], what: str) -> None:
        """Have the results of all tasks, from the store or by running them."""
        missing: dict[str, Task] = {}
        for task in tasks:
            key = self.store.key(task.description)
            if key in self.results or key in missing:
                continue
            stored = self.store.get(task.description)
            if stored is None:
                missing[key] = task
            else:
                self.results[key] = stored
        total = sum(task.weight for task in missing.values())
        # disable=None: tqdm shows nothing where stderr is no terminal.
        with tqdm(
            total=total,
            desc=f"{what:9}",
            bar_format="{desc} {percentage:3.0f}%|{bar:30}| {elapsed}, {remaining} left",
            disable=None if self.options.progress else True,
            # A terminal that does not know its size is taken for a small one.
            ncols=min(get_terminal_size().columns, 80),
            nrows=20,
            leave=False,
        ) as bar:
            self._drain(missing, bar)

    def _drain(self, missing: dict[str, Task], bar: Any) -> None:
        queue = list(missing.items())[::-1]
        running: dict[Any, tuple[str, Task]] = {}
        try:
            while queue or running:
                # A short queue in the executor: an interruption waits for few blocks.
                while queue and len(running) < 2 * self.options.workers:
                    key, task = queue.pop()
                    running[self.executor.submit(run_task, task)] = (key, task)
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    key, task = running.pop(future)
                    self.results[key] = future.result()
                    self.store.put(task.description, self.results[key])
                    bar.update(task.weight)
                    if self.on_done is not None:
                        self.on_done()
        except KeyboardInterrupt:
            raise Interrupted from None
        finally:
            # What is under way when a run stops is finished and kept.
            for future, (_, task) in running.items():
                if not future.cancel() and future.exception() is None:
                    self.store.put(task.description, future.result())

    def __getitem__(self, task: Task) -> dict[str, Any]:
        return self.results[self.store.key(task.description)]

    def sums(self, tasks: Sequence[Block]) -> MomentSums:
        """The sums of blocks, merged in their order."""
        return reduce(MomentSums.merge, (sums_of(self[task]) for task in tasks))


def _panels(claim: Claim) -> dict[str, tuple[Cell, tuple[Quantity, ...]]]:
    """What a claim measures, cell by cell: the quantities of all its checks, in order of name."""
    cells: dict[str, Cell] = {}
    quantities: dict[str, dict[str, Quantity]] = {}
    for check in claim.checks:
        if isinstance(check.functional, Identity):
            continue
        for cell in check.functional.cells:
            cells[cell.name] = cell
            quantities.setdefault(cell.name, {}).update(
                {q.label: q for q in check.functional.quantities}
            )
    return {
        name: (cells[name], tuple(by[label] for label in sorted(by)))
        for name, by in quantities.items()
    }


def _exact_task(cell: Cell, panel: tuple[Quantity, ...]) -> Block:
    return Block(cell, panel, "exact")


def _pilot_task(cell: Cell, panel: tuple[Quantity, ...], options: Options) -> Block:
    replications = PILOT if options.engine == "cpu" else PILOT // 8
    return Block(cell, panel, options.engine, options.seed, PILOT_FIRST, replications)


def _blocks(cell: Cell, panel: tuple[Quantity, ...], options: Options, n: int) -> list[Block]:
    return [
        Block(cell, panel, options.engine, options.seed, first, BLOCK)
        for first in range(0, n, BLOCK)
    ]


def _identity_task(functional: Identity, options: Options | None) -> IdentityBlock:
    cell = functional.cell
    seed = groups = 0
    if options is not None:
        # Hoeffding parts need the kernel at every pair of outcomes, for each group.
        pairs = int(cell.problem.outcomes.counts.max()) ** 2 * cell.problem.d
        seed, groups = options.seed, min(IDENTITY_GROUPS, max(5, IDENTITY_WORK // pairs))
    return IdentityBlock(cell, functional.estimator, functional.formulas, seed, groups)


def _feasible(cell: Cell) -> str | None:
    """Why a cell cannot be enumerated, or None."""
    try:
        exact.ENGINE.check(cell, ())
    except InfeasibleError as error:
        return str(error)
    return None


def _comparable(cell: Cell) -> str | None:
    """Why formulas are not compared on every group of a cell, or None."""
    number = exact.size(cell, tuples=True)
    return (
        f"10^{log10(number):.1f} groups, compared one by one" if number > IDENTITY_LIMIT else None
    )


def _first_wave(claims: Sequence[Claim], options: Options) -> list[Task]:
    tasks: list[Task] = []
    for claim in claims:
        for cell, panel in _panels(claim).values():
            if _feasible(cell) is None:
                tasks.append(_exact_task(cell, panel))
            if options.simulates:
                tasks.append(_pilot_task(cell, panel, options))
        for check in claim.checks:
            if isinstance(check.functional, Identity):
                if _comparable(check.functional.cell) is None:
                    tasks.append(_identity_task(check.functional, None))
                if options.simulates:
                    tasks.append(_identity_task(check.functional, options))
    return tasks


def _plan(claim: Claim, work: _Work, options: Options) -> Plan:
    panels = _panels(claim)
    simulated = [check for check in claim.checks if not isinstance(check.functional, Identity)]
    plan = Plan(claim, allotted_alpha(claim.stem, max(len(simulated), 1)))
    if not options.simulates:
        return plan
    pilots = {
        name: (panel, sums_of(work[_pilot_task(cell, panel, options)]))
        for name, (cell, panel) in panels.items()
    }

    def needed(check: Check, margin: float) -> int:
        assert not isinstance(check.functional, Identity)
        statement = check.statement
        margin = max(margin, 2 * statement.tolerance)
        if margin <= 0:
            return BLOCK
        return check.functional.needed(pilots, margin, plan.alpha, statement.prediction)

    required: dict[str, list[str]] = {check.name: [] for check in simulated}
    for rival in claim.rivals:
        for group in dict.fromkeys(check.group for check in simulated):
            candidates = [
                (needed(check, check.statement.gap(rival) / 2) * _cost(check), i)
                for i, check in enumerate(simulated)
                if check.group == group
                and rival in check.statement.rivals
                and check.statement.distinguishable(rival)
            ]
            if not candidates:
                continue
            work_needed, i = min(candidates)
            # On real data a rival too near to be told apart is reported, not pursued.
            if group != "real" or work_needed <= options.budget * _cost(simulated[i]):
                required[simulated[i].name].append(rival)
    for check in simulated:
        assert not isinstance(check.functional, Identity)
        plan.required[check.name] = tuple(required[check.name])
        wanted = needed(check, check.statement.margin_for(plan.required[check.name]))
        plan.needed[check.name] = wanted
        # Far over the budget no verdict is to be had: a few blocks give the estimate.
        affordable = options.budget if wanted <= 10 * options.budget else 4 * BLOCK
        blocks = -(-min(wanted, affordable) // BLOCK)
        for cell in check.functional.cells:
            planned = plan.replications.get(cell.name, 0)
            plan.replications[cell.name] = max(planned, blocks * BLOCK)
    return plan


def _cost(check: Check) -> int:
    return sum(cell.batch_size * (8 + cell.group_size) for cell in check.functional.cells)


def _decide(plan: Plan, work: _Work, options: Options) -> ClaimResult:
    panels = _panels(plan.claim)
    exact_sums: dict[str, tuple[Sequence[Quantity], MomentSums]] = {}
    simulated: dict[str, tuple[Sequence[Quantity], MomentSums]] = {}
    reasons: dict[str, str] = {}
    for name, (cell, panel) in panels.items():
        reason = _feasible(cell)
        if reason is None:
            exact_sums[name] = (panel, sums_of(work[_exact_task(cell, panel)]))
        else:
            reasons[name] = reason
        if options.simulates:
            blocks = _blocks(cell, panel, options, plan.replications[name])
            simulated[name] = (panel, work.sums(blocks))
    results = []
    for check in plan.claim.checks:
        if isinstance(check.functional, Identity):
            results.append(_decide_identity(check, work, options))
            continue
        reason = next((reasons[c.name] for c in check.functional.cells if c.name in reasons), None)
        found: dict[str, Findings] = {}
        if reason is None:
            evidence = Evidence.enumerated(check.functional.exact(exact_sums), check.statement)
            found["exact"] = Findings(evidence, decide(check.statement, evidence, ()))
        if options.simulates:
            evidence = check.functional.evidence(simulated, plan.alpha)
            decision = decide(check.statement, evidence, plan.required[check.name])
            found["simulation"] = Findings(evidence, decision, plan.needed[check.name])
        results.append(CheckResult(check, found, reason, plan.required.get(check.name, ())))
    return ClaimResult.of(plan.claim, results, simulates=options.simulates)


def _decide_identity(check: Check, work: _Work, options: Options) -> CheckResult:
    """An identity's rivals are judged by the discrepancies of their own formulas."""
    functional = check.functional
    assert isinstance(functional, Identity)
    found: dict[str, Findings] = {}
    reason = _comparable(functional.cell)
    kinds: list[tuple[str, Options | None]] = [("exact", None)] if reason is None else []
    if options.simulates:
        kinds.append(("simulation", options))
    for kind, draws in kinds:
        record = work[_identity_task(functional, draws)]

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
                "exact" not in found
                or found["exact"].decision.rivals[rival] == RivalVerdict.REFUTED
            ):
                # No drawn group shows the difference, but others may.
                rivals[rival] = RivalVerdict.SURVIVED
            else:
                rivals[rival] = RivalVerdict.NOT_DISTINGUISHABLE
        worst = record["worst"][functional.formula]
        found[kind] = Findings(evidence(worst), Decision(verdicts[functional.formula], rivals))
    return CheckResult(check, found, reason, tuple(rival for rival, _ in functional.rivals))


def plan_claims(
    claims: Sequence[Claim], options: Options, store: Store, executor: Executor | None = None
) -> list[Plan]:
    """Run the first wave and say what the second would run."""
    with _environment(options, executor) as pool:
        work = _Work(store, options, pool, None)
        work.run(_first_wave(claims, options), "pilots")
        return [_plan(claim, work, options) for claim in claims]


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
        executor: any ``concurrent.futures`` executor; threads of this process unless given.
        on_done: called after each finished block.

    Raises:
        Interrupted: by the keyboard or a signal; the same call continues.
        StoreError: results cannot be written.
    """
    start = time.perf_counter()
    with _environment(options, executor) as pool:
        work = _Work(store, options, pool, on_done)
        work.run(_first_wave(claims, options), "enumerate")
        plans = [_plan(claim, work, options) for claim in claims]
        second = [
            block
            for plan in plans
            for name, (cell, panel) in _panels(plan.claim).items()
            for block in _blocks(cell, panel, options, plan.replications.get(name, 0))
        ]
        work.run(second, "simulate")
        results = tuple(_decide(plan, work, options) for plan in plans)
    return Run(results, tuple(plans), time.perf_counter() - start, tuple(store.set_aside))


@contextmanager
def _environment(options: Options, executor: Executor | None) -> Iterator[Executor]:
    """An executor, and one thread in the linear algebra: equal sums whatever the workers."""
    with threadpool_limits(1):
        if executor is not None:
            yield executor
            return
        pool = ThreadPoolExecutor(options.workers)
        try:
            yield pool
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
