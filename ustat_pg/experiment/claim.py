"""Claims as data: checks, each a statement about a functional, and the rivals they must exclude."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ..checks import Statement
from ..engines import Cell, Quantity
from ..paper import RESULTS
from ..results import Design
from ..validation import InputError
from .functionals import Functional

__all__ = ["Check", "Claim"]


@dataclass(frozen=True)
class Check:
    """A typed statement about a functional.

    Arguments:
        name: name, unique in its claim.
        origin: place where the problem comes from: made-up, generated or real.
        functional: what is estimated.
        statement: where it lies and where rivals say it lies.
        problem: name of the problem, in results.
    """

    name: str
    origin: str
    functional: Functional
    statement: Statement
    problem: str = ""

    def __post_init__(self) -> None:
        sharp = replace(self.statement, floor=self.functional.rounding)
        object.__setattr__(self, "statement", sharp)

    @property
    def design(self) -> Design:
        """What it is asked of, for results."""
        cells, quantities = self.functional.cells, self.functional.quantities
        # A quantity that speaks of groups of its own says so.
        groups = {getattr(quantity, "group_size", 0) for quantity in quantities} - {0}
        groups = groups or {cell.group_size for cell in cells}
        return Design(
            self.problem,
            tuple(sorted(groups)),
            tuple(sorted({cell.batch_size for cell in cells})),
            # Those of the quantities, or else of the cells.
            _baselines(quantities) or _baselines(cells),
        )


def _baselines(speakers: Iterable[Cell | Quantity]) -> tuple[str, ...]:
    """The names of the estimators that cells or quantities speak of, in order of appearance."""
    found: dict[str, None] = {}
    for each in speakers:
        one = getattr(each, "estimator", None)
        several = getattr(each, "estimators", () if one is None else (one,))
        found |= dict.fromkeys(estimator.label for estimator in several)
    return tuple(found)


@dataclass(frozen=True)
class Claim:
    """A numbered result: its checks, and the wrong formulas that they must exclude.

    Arguments:
        stem: stem of the result.
        rivals: names, in the order in which they are reported.
        checks: the design.
        by_simulation: rivals whose checks nothing can enumerate, those of language models for
            example; with all of them here the claim is settled by simulation, and its row says so.

    Raises:
        InputError: names that occur twice, or a check with a rival that the claim does not list.
    """

    stem: str
    rivals: tuple[str, ...]
    checks: tuple[Check, ...] = field(repr=False)
    by_simulation: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [check.name for check in self.checks]
        if len(set(names)) != len(names):
            raise InputError(f"{self.stem}: two checks have the same name")
        for listed in (self.by_simulation, *(check.statement.rivals for check in self.checks)):
            unknown = set(listed) - set(self.rivals)
            if unknown:
                raise InputError(f"{self.stem}: rivals {sorted(unknown)} are not listed")

    @property
    def label(self) -> str:
        """The paper's numbering."""
        return RESULTS[self.stem].label
