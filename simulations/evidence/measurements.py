"""Measurements of the cells of functionals; each cell is measured once for all functionals.

Verdicts, curves and single checks use it for enumerations, pilots, the blocks of a number of replications,
and their sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from math import isnan

from ustat_pg.engines import Cell, InfeasibleError, Quantity

from .blocks import Block
from .functionals import Functional, Sums
from .options import Options, block_of
from .work import Work

PILOT_REPLICATIONS = 8_192
"""The replications of a gradient's pilot."""

PILOT_FIRST = 2**62
"""The first replication of every pilot; verdicts do not read later replications."""


class Measurements:
    """The measurements that some functionals need, cell by cell.

    A cell is measured by the quantities of all functionals that read it, in order of name: a compiled
    body may add up in another order when it is asked for fewer, and the last bit would differ.

    Arguments:
        functionals: those of a claim's checks, or of a figure's points.
        options: engine, seed and device.
        enumerated: the functionals whose exact value is wanted; all of them unless given.
        only: the functional whose cells alone are measured; those of all unless given.
    """

    def __init__(
        self,
        functionals: Iterable[Functional],
        options: Options,
        *,
        enumerated: Iterable[Functional] | None = None,
        only: Functional | None = None,
    ) -> None:
        functionals = list(functionals)
        self.options = options
        self.cells: dict[str, Cell] = {}
        for functional in functionals if only is None else [only]:
            self.cells.update({cell.name: cell for cell in functional.cells})
        self._drawn = self._by_cell(functionals)
        self._enumerated = self._drawn if enumerated is None else self._by_cell(enumerated)
        self._reasons: dict[tuple[str, str], str | None] = {}

    def _by_cell(self, functionals: Iterable[Functional]) -> dict[str, tuple[Quantity, ...]]:
        by_label: dict[str, dict[str, Quantity]] = {}
        for functional in functionals:
            for part in functional.parts:
                for cell in part.cells:
                    if cell.name in self.cells:
                        quantities = by_label.setdefault(cell.name, {})
                        together = cell.together(part.quantities)
                        quantities.update({quantity.label: quantity for quantity in together})
        return {name: tuple(by[label] for label in sorted(by)) for name, by in by_label.items()}

    def _reason(self, cell: Cell, quantity: Quantity) -> str | None:
        """Why a quantity on a cell cannot be enumerated, or None; the engine answers once."""
        key = cell.name, quantity.label
        if key not in self._reasons:
            try:
                cell.require_exact((quantity,))
                self._reasons[key] = None
            except InfeasibleError as error:
                self._reasons[key] = str(error)
        return self._reasons[key]

    def why_not_exact(self, functional: Functional) -> str | None:
        """Why a functional has no exact value, or None."""
        return next(
            (
                reason
                for part in functional.parts
                for cell in part.cells
                for quantity in sorted(part.quantities, key=lambda one: one.label)
                if (reason := self._reason(cell, quantity)) is not None
            ),
            None,
        )

    @staticmethod
    def why_not_settled(functional: Functional, exact: Sums) -> str | None:
        """Why a functional has no exact value though its means are enumerated, or None: a cell says of one
        that it is uncertain.

        Arguments:
            functional: one that can be enumerated.
            exact: the enumerated means of each cell.
        """
        uncertain = any(
            isnan(mean) and quantity in part.quantities
            for part in functional.parts
            for cell in part.cells
            if not cell.settles
            for quantity, mean in zip(exact[cell.name][0], exact[cell.name][1].mean, strict=True)
        )
        if uncertain:
            return "backward induction did not settle on the finest grid that is feasible"
        return None

    @cached_property
    def exact_tasks(self) -> dict[str, Block]:
        """Every outcome of each cell, for those quantities that can be enumerated."""
        tasks = {}
        for name, quantities in self._enumerated.items():
            cell = self.cells[name]
            feasible = tuple(
                quantity for quantity in quantities if self._reason(cell, quantity) is None
            )
            if feasible:
                tasks[name] = Block(cell, feasible, "exact")
        return tasks

    @cached_property
    def pilot_tasks(self) -> dict[str, Block]:
        """A pilot of each cell, on replications that no verdict reads."""
        return self.pilots_of(
            PILOT_REPLICATIONS // (8 if self.options.engine == "reference" else 1)
        )

    def pilots_of(self, replications: int) -> dict[str, Block]:
        """Pilots of about this many replications of a gradient."""
        return {
            name: self._block(name, PILOT_FIRST, cell.pilot(replications))
            for name, cell in self.cells.items()
            if self.options.simulates
        }

    def blocks(self, replications: Mapping[str, int]) -> dict[str, list[Block]]:
        """The blocks of the first replications of each cell; the last one may be smaller."""
        if not self.options.simulates:
            return {}
        return {
            name: [
                self._block(name, first, min(size, replications[name] - first), replications[name])
                for size in [block_of(cell, cell.engine(self.options.engine))]
                for first in range(0, replications[name], size)
            ]
            for name, cell in self.cells.items()
        }

    def tasks(self, replications: Mapping[str, int]) -> list[Block]:
        """The blocks of all cells, cell by cell."""
        return [task for blocks in self.blocks(replications).values() for task in blocks]

    def _block(self, name: str, first: int, replications: int, whole: int = 0) -> Block:
        cell, options = self.cells[name], self.options
        draws = options.seed, first, replications, options.device, whole
        return Block(cell, self._drawn[name], cell.engine(options.engine), *draws)

    def first_wave(self) -> list[Block]:
        """The enumerations and pilots that a plan is made from."""
        pilots = list(self.pilot_tasks.values())
        # A kind's first pilot compiles for a device what the others call: enumerations run beside it.
        first = list({type(task.cell): task for task in reversed(pilots)}.values())
        rest = (task for task in pilots if task not in first)
        return [*first, *self.exact_tasks.values(), *rest]

    def exact(self, work: Work) -> Sums:
        """The enumerated means of each cell."""
        return self.alone(work, self.exact_tasks)

    def pilots(self, work: Work) -> Sums:
        """The sums of each cell's pilot."""
        return self.alone(work, self.pilot_tasks)

    def drawn(self, work: Work, replications: Mapping[str, int]) -> Sums:
        """The sums of the first replications of each cell."""
        return self._sums(work, self.blocks(replications))

    @classmethod
    def alone(cls, work: Work, tasks: Mapping[str, Block]) -> Sums:
        """The sums of one task for each cell."""
        return cls._sums(work, {name: [task] for name, task in tasks.items()})

    @staticmethod
    def _sums(work: Work, tasks: Mapping[str, Sequence[Block]]) -> Sums:
        return {name: (blocks[0].quantities, work.sums(blocks)) for name, blocks in tasks.items()}
