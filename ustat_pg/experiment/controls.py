"""Controls: laws of an engine's draws and sums that no result is about, and every simulation rests on.

Each is a number that is 0 for a sound engine, whatever is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np

from ..engines import (
    Estimator,
    GradientCell,
    InfeasibleError,
    MomentSums,
    Projection,
    Quantity,
    SquaredError,
    SquaredProjection,
)
from ..engines.base import Replications
from ..validation import InputError, one_of

__all__ = ["CONTROLS", "Control", "Controls"]

CONTROLS = ("replications that share their draws", "merged sums", "standard errors")
"""Names of controls: the share of replications whose draws are those of another one; what sums merged
from uneven blocks lack of the whole's; and what a variance lacks of the one that raw moments give."""

NEAR = 64
"""Replications that are compared with one another one by one."""

STRIDES = tuple(1 << power for power in range(6, 61))
"""How far other replications lie from the first ones that they are compared with."""

TERMS = (Projection(Estimator("grpo")), SquaredProjection(Estimator("grpo")))


@dataclass(frozen=True)
class Control:
    """A number of an engine that is 0.

    Arguments:
        name: one of :data:`CONTROLS`.

    Raises:
        InputError: there is no such control.
    """

    name: str

    def __post_init__(self) -> None:
        one_of("control", self.name, CONTROLS)

    @property
    def label(self) -> str:
        return f"control[{self.name}]"


@dataclass(frozen=True)
class Controls(GradientCell):
    """A cell whose engine is asked about its own draws and sums.

    The problem must have outcomes enough that two minibatches hardly ever have the same error.
    """

    @property
    def name(self) -> str:
        """The cell's address in the space of draws."""
        return f"{super().name}/controls"

    @property
    def block(self) -> int:
        """One: a control is asked once."""
        return 1

    def pilot(self, replications: int) -> int:
        """One: a plan needs none."""
        return 1

    def range(self, quantity: Quantity) -> tuple[float, float]:
        """The range of a share or a relative difference, from 0 on."""
        return 0.0, np.inf

    def rounding(self, quantity: Quantity) -> float:
        """Nothing: what is taken for rounding is the claim's to say."""
        return 0.0

    def require_quantity(self, quantity: Quantity) -> None:
        """Refuse what is no control."""
        if not isinstance(quantity, Control):
            raise InputError(f"{quantity!r} is no control")

    def require_exact(self, quantities: Sequence[Quantity]) -> None:
        """Refuse: enumeration has no draws."""
        raise InfeasibleError("a control is about draws, and enumeration has none")

    def _measure(self, engine: str, quantities: Sequence[Any], block: Replications) -> MomentSums:
        cell = GradientCell(self.problem, self.group_size, self.batch_size, self.design)

        def sums(first: int, count: int, *asked: Quantity) -> MomentSums:
            return cell.measure(engine, asked, seed=block.seed, first=first, replications=count)

        measured = {
            CONTROLS[0]: lambda: _shared(sums),
            CONTROLS[1]: lambda: _merged(sums),
            CONTROLS[2]: lambda: _variance(sums),
        }
        return MomentSums.of([[measured[quantity.name]() for quantity in quantities]])


def _shared(sums: Any) -> float:
    """The share of replications, near and far, whose squared error is that of another one."""
    error = SquaredError(Estimator("grpo"))
    far = [start + stride for stride in STRIDES for start in (0, 1, 5)]
    numbers = [*range(NEAR), *(number for number in far if number >= NEAR)]
    # By one body and by the other: each has its own way to the words.
    found = np.array([[sums(n, 1, error).mean[0], sums(n, 1, *TERMS).mean[0]] for n in numbers])
    distinct = [len(np.unique(column)) for column in found.T]
    return 1 - min(distinct) / len(numbers)


def _merged(sums: Any) -> float:
    """The greatest relative difference of merged blocks of unequal size from the whole."""
    worst = 0.0
    for first in (0, (1 << 14) - 100, (1 << 32) - 100):
        ends = [first + n for n in (0, 1, 4, 30, 333, 400)]
        whole = sums(ends[0], ends[-1] - ends[0], *TERMS)
        parts = [sums(start, stop - start, *TERMS) for start, stop in pairwise(ends)]
        merged = reduce(MomentSums.merge, parts)
        pairs = ((merged.mean, whole.mean), (merged.products, whole.products))
        worst = max(worst, abs(merged.n / whole.n - 1))
        worst = max([worst, *(float(np.abs(one / other - 1).max()) for one, other in pairs)])
    return worst


def _variance(sums: Any) -> float:
    """The relative difference of the variance of ⟨ĝ - g, u⟩ from that of its first two moments."""
    n = 400
    parts = [sums(first, n // 4, *TERMS) for first in range(0, n, n // 4)]
    found = reduce(MomentSums.merge, parts)
    mean, square = found.mean
    return float(abs(found.covariance[0, 0] / ((square - mean**2) * n / (n - 1)) - 1))
