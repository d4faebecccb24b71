"""Cells of estimators with a memory of earlier rewards: gradients at fixed parameters, and whole runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ustat_pg.engines.base import InfeasibleError, Quantity
from ustat_pg.engines.gradients.cell import GradientCell
from ustat_pg.problems import SoftmaxBandit
from ustat_pg.validation import InputError

from .runs.cell import Training


@dataclass(frozen=True)
class MemoryCell(GradientCell):
    """Groups with earlier rewards of the same prompts, which may come from an earlier policy.

    Arguments:
        past: the problem at the earlier parameters (default: the problem itself).
    """

    past: SoftmaxBandit | None = None

    engines = ("exact", "reference")

    def __post_init__(self) -> None:
        super().__post_init__()
        before, now = self.before.outcomes, self.problem.outcomes
        if not np.array_equal(before.rewards, now.rewards):
            raise InputError("past has other rewards than the problem: only its policy may differ")

    @property
    def name(self) -> str:
        return f"{super().name}/memory/{self.before.digest}"

    @property
    def before(self) -> SoftmaxBandit:
        return self.past or self.problem


@dataclass(frozen=True, eq=False)
class MemoryTraining(Training):
    """Whole training runs, in which estimators may remember the last rewards of each prompt.

    A run begins with a memory that the first policy has filled. It also depends on its memory, so it is
    drawn and not enumerated.
    """

    engines = ("reference",)  # type: ignore[assignment]

    def require_exact(self, quantities: Sequence[Quantity]) -> None:
        self.require_quantities(quantities)
        raise InfeasibleError("a run with a memory has too many states: it is drawn")
