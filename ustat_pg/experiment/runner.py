"""The runner: runs what the store lacks, then decides.

Two waves: first what is enumerated, and the pilots that the plan is made from; then the blocks that
it asks for. Everything that a verdict depends on is a function of the claims, the seed and the code:
not of workers, order or interruptions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from shutil import get_terminal_size
from typing import Any

from threadpoolctl import threadpool_limits
from tqdm import tqdm

from ..checks import Decision, Evidence, Interval, RivalVerdict, Verdict, decide
from ..engines import MomentSums, Quantity
from .blocks import Block, Task, run_task, sums_of
from .claim import Check, Claim, Identity
from .plan import (
    Options,
    Plan,
    block_tasks,
    exact_task,
    first_wave,
    identity_task,
    make_plan,
    panels,
    why_not_compared,
    why_not_enumerated,
)
from .results import CheckResult, ClaimResult, Findings
from .store import Store

__all__ = ["Interrupted", "Run", "plan_claims", "run_claims"]

Results = dict[str, dict[str, Any]]


class Interrupted(KeyboardInterrupt):
    """The run was stopped; finished blocks are kept, and the same call continues."""


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


def _decide(plan: Plan, work: _Work, options: Options) -> ClaimResult:
    measured = panels(plan.claim)
    exact_sums: dict[str, tuple[Sequence[Quantity], MomentSums]] = {}
    simulated: dict[str, tuple[Sequence[Quantity], MomentSums]] = {}
    reasons: dict[str, str] = {}
    for name, (cell, panel) in measured.items():
        reason = why_not_enumerated(cell)
        if reason is None:
            exact_sums[name] = (panel, sums_of(work[exact_task(cell, panel)]))
        else:
            reasons[name] = reason
        if options.simulates:
            blocks = block_tasks(cell, panel, options, plan.replications[name])
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
    reason = why_not_compared(functional.cell)
    kinds: list[tuple[str, Options | None]] = [("exact", None)] if reason is None else []
    if options.simulates:
        kinds.append(("simulation", options))
    for kind, draws in kinds:
        record = work[identity_task(functional, draws)]

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
        executor: any ``concurrent.futures`` executor; threads of this process unless given.
        on_done: called after each finished block.

    Raises:
        Interrupted: by the keyboard or a signal; the same call continues.
        StoreError: results cannot be written.
    """
    start = time.perf_counter()
    with _environment(options, executor) as pool:
        work = _Work(store, options, pool, on_done)
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
