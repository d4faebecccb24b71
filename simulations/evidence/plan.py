"""The plan of a claim: the replications that its checks need.

From pilots, on replications of their own far from those that verdicts use, each rival is given to
the check that refutes it with the least work, and each check gets the replications that its margin
needs. A check that is then still open gets another look, at twice as many. These numbers are fixed before the
draws that a verdict reads, and an interval of every look has its share of the check's false alarms, so that
the looks may end at any of them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ustat_pg.engines import Cell

from .claim import Check, Claim, looks_at
from .functionals import Functional, Sums
from .options import Options, block_of
from .planning import allotted_alpha


@dataclass
class Plan:
    """The replications that one claim will run.

    Arguments:
        claim: the claim that is planned.
        alpha: false-alarm rate of each check that draws can mislead, at each look.
        required: the rivals that each check is to refute, by check.
        needed: the replications that each check needs, by check, be they within the budget or not.
        replications: number for each cell, by its name, of the last look.
        look: number of the last look, from 1.
        seconds: processor seconds of the run by what takes them, design, enumeration and simulation; none
            until they are foretold.
    """

    claim: Claim
    alpha: float
    required: dict[str, tuple[str, ...]] = field(default_factory=dict)
    needed: dict[str, int] = field(default_factory=dict)
    replications: dict[str, int] = field(default_factory=dict)
    look: int = 1
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, claim: Claim, **given: Any) -> Plan:
        """A plan whose looks share the false alarms of a check equally."""
        return cls(claim, alpha_of(claim) / looks_of(claim), **given)

    def look_again(self, undecided: Collection[str]) -> bool:
        """Ask twice as many replications of the cells that these checks read, where looks are left.

        The intervals of all looks together err at the rate of the check, whichever is the last.

        Returns:
            whether there is another look.
        """
        again = {
            cell.name
            for check in self.claim.checks
            if check.name in undecided
            for cell in check.functional.cells
            if self.look < cell.looks
        }
        self.look += bool(again)
        for name in again:
            self.replications[name] *= 2
        return bool(again)


def alpha_of(claim: Claim) -> float:
    """The false-alarm rate of each check of a claim, at all looks together."""
    return allotted_alpha(max(erring_of(claim), 1), claim.family)


def looks_of(claim: Claim) -> int:
    """The most looks at a check of a claim; a functional that is yet to be made has those of any cell."""
    asked = (check.asks for check in claim.checks)
    return max((looks_at(f) if isinstance(f, Functional) else Cell.looks for f in asked), default=1)


def erring_of(claim: Claim) -> int:
    """The number of checks that draws can mislead."""
    return len(claim.checks) - sum(not functional.errs for functional in _made(claim))


def _made(claim: Claim) -> list[Functional]:
    """The functionals that need no making: the others err."""
    return [check.asks for check in claim.checks if isinstance(check.asks, Functional)]


def make_plan(claim: Claim, pilots: Sums, options: Options) -> Plan:
    """The plan of a claim, from its pilots' sums."""
    plan = Plan.of(claim)
    if not options.simulates:
        return plan

    def needed(check: Check, margin: float) -> int:
        statement = check.statement
        margin = max(margin, 2 * statement.tolerance)
        if margin <= 0 or not statement.coherent:
            # The sums of one block say all that is to be said.
            return max(map(block_of, check.functional.cells), default=0)
        wanted = check.functional.needed(pilots, margin, plan.alpha, statement.prediction)
        reserve = max((cell.reserve for cell in check.functional.cells), default=1)
        return wanted if reserve == 1 else int(np.ceil(wanted * reserve))

    required: dict[str, list[str]] = {check.name: [] for check in claim.checks}
    for rival in claim.rivals:
        for origin in dict.fromkeys(check.origin for check in claim.checks):
            candidates = [
                (needed(check, check.statement.gap(rival) / 2) * _cost(check), i)
                for i, check in enumerate(claim.checks)
                if check.origin == origin
                and rival in check.statement.rivals
                and check.statement.distinguishable(rival)
            ]
            if not candidates:
                continue
            work_needed, i = min(candidates)
            check = claim.checks[i]
            # On real data a rival too near to distinguish is reported, not pursued.
            if origin != "real" or work_needed <= options.drawn.budget * _cost(check):
                required[check.name].append(rival)
    for check in claim.checks:
        plan.required[check.name] = tuple(required[check.name])
        wanted = needed(check, check.statement.margin_for(plan.required[check.name]))
        plan.needed[check.name] = wanted
        for cell in check.functional.cells:
            block, budget = block_of(cell), cell.budget(options.drawn.budget)
            # Far over the budget no verdict is to be had: a few blocks give the estimate.
            affordable = budget if wanted <= 10 * budget else 4 * block
            drawn = max(min(options.drawn.times * wanted, affordable), cell.least)
            # The last block may be a part of one, of whole thousands.
            step = min(block, 1024)
            replications = -(-drawn // step) * step
            plan.replications[cell.name] = max(plan.replications.get(cell.name, 0), replications)
    return plan


def _cost(check: Check) -> int:
    """Roughly the work of one replication, for the choice of the check that refutes a rival."""
    return sum(cell.outputs + 8 * cell.batch_size * cell.steps for cell in check.functional.cells)
