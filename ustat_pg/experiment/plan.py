"""What a claim will run: its tasks, and the replications that its checks need.

From pilots, on replications of their own far from those that verdicts use, each rival is given to
the check that refutes it with the least work, and each check gets the replications that its margin
needs. So the number is fixed before the draws that a verdict reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import log10
from typing import Any

import numpy as np

from ..checks import allotted_alpha
from ..engines import Cell, GradientCell, InfeasibleError, Quantity
from ..engines.gradients import exact
from ..engines.gradients.cell import BLOCK
from .blocks import Block, IdentityBlock, Task, sums_of
from .claim import Check, Claim
from .functionals import Functional, Identity, LogSlope
from .options import Options

__all__ = [
    "Plan",
    "block_tasks",
    "exact_task",
    "first_wave",
    "identity_task",
    "make_plan",
    "panels",
    "panels_of",
    "why_not_compared",
    "why_not_enumerated",
    "why_not_exact",
]

PILOT = 8_192
PILOT_FIRST = 2**62
IDENTITY_GROUPS = 100
IDENTITY_WORK = 200_000_000
"""Numbers handled for the drawn groups of one cell: fewer groups are drawn of a large problem."""
IDENTITY_LIMIT = 300
"""Groups on which formulas are still compared one by one."""


@dataclass
class Plan:
    """What one claim will run.

    Arguments:
        claim: the claim that is planned.
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


Panel = tuple[Quantity, ...]
"""The quantities measured together on a cell."""


def panels_of(functionals: Iterable[Functional]) -> dict[str, tuple[Cell, Panel]]:
    """What functionals measure, cell by cell: the quantities of them all, in order of name."""
    cells: dict[str, Cell] = {}
    quantities: dict[str, dict[str, Quantity]] = {}
    for functional in functionals:
        if isinstance(functional, Identity):
            continue
        # Each point of a slope is measured on its own cell: another's may take fewer steps.
        for part in functional.points if isinstance(functional, LogSlope) else (functional,):
            for cell in part.cells:
                cells[cell.name] = cell
                quantities.setdefault(cell.name, {}).update({q.label: q for q in part.quantities})
    return {
        name: (cells[name], tuple(by[label] for label in sorted(by)))
        for name, by in quantities.items()
    }


def panels(claim: Claim) -> dict[str, tuple[Cell, Panel]]:
    """What a claim measures, by the quantities of all its checks."""
    return panels_of(check.functional for check in claim.checks)


def exact_task(cell: Cell, panel: Panel) -> Block:
    """Every outcome of a cell, for those quantities that can be enumerated."""
    return Block(cell, tuple(q for q in panel if why_not_enumerated(cell, (q,)) is None), "exact")


def pilot_task(cell: Cell, panel: Panel, options: Options) -> Block:
    """A cell's pilot, on replications that no verdict reads."""
    replications = PILOT // 8 if options.engine == "reference" else PILOT
    engine, replications = cell.engine(options.engine), cell.pilot(replications)
    return Block(cell, panel, engine, options.seed, PILOT_FIRST, replications, options.device)


def block_tasks(cell: Cell, panel: Panel, options: Options, n: int) -> list[Block]:
    """The blocks of a cell's first n replications."""
    size, engine = cell.block, cell.engine(options.engine)
    return [
        Block(cell, panel, engine, options.seed, first, size, options.device)
        for first in range(0, n, size)
    ]


def identity_task(functional: Identity, options: Options | None) -> IdentityBlock:
    """The comparison of an identity's formulas: on drawn groups, or on all without options."""
    cell = functional.cell
    seed = groups = 0
    if options is not None:
        # Hoeffding parts need the kernel at every pair of outcomes, for each group.
        pairs = int(cell.problem.outcomes.counts.max()) ** 2 * cell.problem.d
        seed, groups = options.seed, min(IDENTITY_GROUPS, max(5, IDENTITY_WORK // pairs))
    return IdentityBlock(cell, functional.estimator, functional.formulas, seed, groups)


def why_not_enumerated(cell: Cell, quantities: Panel) -> str | None:
    """Why quantities on a cell cannot all be enumerated, or None."""
    try:
        cell.require_exact(quantities)
    except InfeasibleError as error:
        return str(error)
    return None


def why_not_exact(functional: Functional) -> str | None:
    """Why a functional has no exact value, or None."""
    assert not isinstance(functional, Identity)
    reasons = (
        why_not_enumerated(cell, (quantity,))
        for cell, quantities in panels_of([functional]).values()
        for quantity in quantities
    )
    return next((reason for reason in reasons if reason is not None), None)


def why_not_compared(cell: GradientCell) -> str | None:
    """Why formulas are not compared on every group of a cell, or None."""
    number = exact.size(cell, tuples=True)
    return (
        f"10^{log10(number):.1f} groups, compared one by one" if number > IDENTITY_LIMIT else None
    )


def first_wave(claims: Sequence[Claim], options: Options) -> list[Task]:
    """What must be known before a plan is made: enumerations, identities and pilots."""
    tasks: list[Task] = []
    for claim in claims:
        for cell, panel in panels(claim).values():
            if (task := exact_task(cell, panel)).quantities:
                tasks.append(task)
            if options.simulates:
                tasks.append(pilot_task(cell, panel, options))
        for check in claim.checks:
            if isinstance(check.functional, Identity):
                if why_not_compared(check.functional.cell) is None:
                    tasks.append(identity_task(check.functional, None))
                if options.simulates:
                    tasks.append(identity_task(check.functional, options))
    return tasks


def make_plan(claim: Claim, found: Callable[[Task], dict[str, Any]], options: Options) -> Plan:
    """The plan of a claim, from its pilots' results."""
    measured = panels(claim)
    simulated = [check for check in claim.checks if not isinstance(check.functional, Identity)]
    plan = Plan(claim, allotted_alpha(claim.stem, max(len(simulated), 1)))
    if not options.simulates:
        return plan
    pilots = {
        name: (panel, sums_of(found(pilot_task(cell, panel, options))))
        for name, (cell, panel) in measured.items()
    }

    def needed(check: Check, margin: float) -> int:
        assert not isinstance(check.functional, Identity)
        statement = check.statement
        margin = max(margin, 2 * statement.tolerance)
        if margin <= 0:
            return BLOCK
        wanted = check.functional.needed(pilots, margin, plan.alpha, statement.prediction)
        cells = check.functional.cells
        reserve = max(cell.reserve for cell in cells)
        return wanted if reserve == 1 else int(np.ceil(wanted * reserve))

    required: dict[str, list[str]] = {check.name: [] for check in simulated}
    for rival in claim.rivals:
        for origin in dict.fromkeys(check.origin for check in simulated):
            candidates = [
                (needed(check, check.statement.gap(rival) / 2) * _cost(check), i)
                for i, check in enumerate(simulated)
                if check.origin == origin
                and rival in check.statement.rivals
                and check.statement.distinguishable(rival)
            ]
            if not candidates:
                continue
            work_needed, i = min(candidates)
            # On real data a rival too near to be told apart is reported, not pursued.
            if origin != "real" or work_needed <= options.budget * _cost(simulated[i]):
                required[simulated[i].name].append(rival)
    for check in simulated:
        assert not isinstance(check.functional, Identity)
        plan.required[check.name] = tuple(required[check.name])
        wanted = needed(check, check.statement.margin_for(plan.required[check.name]))
        plan.needed[check.name] = wanted
        for cell in check.functional.cells:
            size, budget = cell.block, cell.budget(options.budget)
            # Far over the budget no verdict is to be had: a few blocks give the estimate.
            affordable = budget if wanted <= 10 * budget else 4 * size
            blocks = -(-min(wanted, affordable) // size)
            planned = plan.replications.get(cell.name, 0)
            plan.replications[cell.name] = max(planned, blocks * size)
    return plan


def _cost(check: Check) -> int:
    return sum(cell.outputs + 8 * cell.batch_size * cell.steps for cell in check.functional.cells)
