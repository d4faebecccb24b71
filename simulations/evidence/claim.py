"""Claims as data: checks, which are statements about functionals, and the rivals that they must exclude."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ustat_pg.engines import Cell, Quantity
from ustat_pg.validation import InputError

from ..paper import RESULTS
from .findings import Design
from .functionals import Functional
from .verdict import Statement


@dataclass(frozen=True)
class Check:
    """A typed statement about a functional.

    Functional and statement may be given as functions that make them at the first use. Such a functional
    counts as one that draws can mislead, on cells with up to the largest number of looks, before it is made.

    Arguments:
        name: name, unique in its claim.
        origin: origin of the problem: made-up, generated or real.
        asks: estimated functional.
        states: its region, and the regions of rivals.
        problem: name of the problem, in results.
    """

    name: str
    origin: str
    asks: Functional | Callable[[], Functional]
    states: Statement | Callable[[], Statement]
    problem: str = ""

    @cached_property
    def functional(self) -> Functional:
        """The number estimated."""
        if isinstance(self.asks, Functional):
            return self.asks
        made = self.asks()
        if not made.errs or looks_at(made) > Cell.looks:
            raise TypeError(f"{self.name}: counted as one that errs, at up to {Cell.looks} looks")
        return made

    @cached_property
    def statement(self) -> Statement:
        """The statement, as sharp as its rounding allows."""
        made = self.states if isinstance(self.states, Statement) else self.states()
        return replace(made, floor=self.functional.rounding)

    def coarser(self, factor: float) -> Check:
        """The same check, which allows intervals that are wider by a factor."""
        return replace(self, states=lambda: self.statement.coarser(factor))

    def __reduce__(self) -> tuple[Any, ...]:
        # Functions cannot be sent to another process, but their results can.
        made = self.functional, self.statement
        return Check, (self.name, self.origin, *made, self.problem)

    @property
    def design(self) -> Design:
        """The problem, sizes and estimators of it, for results."""
        cells, quantities = self.functional.cells, self.functional.quantities
        # A quantity with its own groups gives their sizes.
        groups = {getattr(quantity, "group_size", 0) for quantity in quantities} - {0}
        groups = groups or {cell.group_size for cell in cells}
        return Design(
            self.problem,
            tuple(sorted(groups)),
            tuple(sorted({cell.batch_size for cell in cells})),
            # Those of the quantities, or else of the cells.
            _estimators(quantities) or _estimators(cells),
        )


def looks_at(functional: Functional) -> int:
    """The largest number of looks at the cells of a functional."""
    return max((cell.looks for cell in functional.cells), default=1)


def _estimators(speakers: Iterable[Cell | Quantity]) -> tuple[str, ...]:
    """The names of the estimators in cells or quantities, in order of appearance."""
    labels: dict[str, None] = {}
    for speaker in speakers:
        one = getattr(speaker, "estimator", None)
        several = getattr(speaker, "estimators", () if one is None else (one,))
        labels |= dict.fromkeys(estimator.label for estimator in several)
    return tuple(labels)


@dataclass(frozen=True)
class Claim:
    """A numbered result with its checks, and the wrong formulas that they must exclude.

    Arguments:
        stem: stem of the result.
        rivals: names, in the order in which they are reported.
        checks: the design.
        by_simulation: rivals with checks that cannot be enumerated, for example on language models; if all
            rivals are here, the claim is decided by simulation, and its row says so.
        family: number of results that share the chance of a false alarm: those of the paper; 1 for a claim on
            a user's model, which is in no suite.
    """

    stem: str
    rivals: tuple[str, ...]
    checks: tuple[Check, ...] = field(repr=False)
    by_simulation: tuple[str, ...] = ()
    family: int = len(RESULTS)

    def __post_init__(self) -> None:
        names = [check.name for check in self.checks]
        if len(set(names)) != len(names):
            raise InputError(f"{self.stem}: two checks have the same name")

    def made(self) -> Claim:
        """The claim, once every check of it is made."""
        for listed in (self.by_simulation, *(check.statement.rivals for check in self.checks)):
            unknown = set(listed) - set(self.rivals)
            if unknown:
                raise InputError(f"{self.stem}: rivals {sorted(unknown)} are not listed")
        return self

    @property
    def label(self) -> str:
        """The paper's numbering."""
        return RESULTS[self.stem].label
