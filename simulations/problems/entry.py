"""The record of a problem of the suite: its name, its origin, and the problem itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from ustat_pg.problems import SoftmaxBandit

from ..evidence import (
    Check,
    Extrapolation,
    Linear,
    LogSlope,
    Ratio,
    Statement,
    equal,
    positive,
)
from ..evidence.functionals import Functional

P = TypeVar("P")


def streams(
    kind: str, seed: int, count: int, stream: int, made_up: int | None = None
) -> Iterator[tuple[str, str, np.random.Generator]]:
    """Name, origin and generator of each drawn problem of a kind: of one with the seed ``made_up``, if that
    is given, then of the generated ones.

    Each kind has its own stream, so that its numbers are independent of other kinds.
    """
    if made_up is not None:
        yield kind, "made-up", np.random.default_rng(made_up)
    for number in range(count):
        rng = np.random.default_rng([seed, number, stream])
        yield f"{kind}#{seed}.{number}", "generated", rng


@dataclass(frozen=True)
class Entry(Generic[P]):
    """A problem with a name, unique in its claim, and its origin: made-up, generated or real."""

    name: str
    origin: str
    problem: P

    def alone(self: Entry[SoftmaxBandit], x: int) -> Entry[SoftmaxBandit]:
        """A prompt of the problem by itself."""
        return Entry(f"{self.name}[{x}]", self.origin, self.problem.restrict([x]))

    def check(
        self,
        what: str,
        functional: Functional | Callable[[], Functional],
        statement: Statement | Callable[[], Statement],
    ) -> Check:
        """A check on the problem; quantity and statement are created at once or at the first use.

        Its name is the problem's name, a space or a colon, and the quantity.
        """
        space = "" if what.startswith(":") else " "
        return Check(
            f"{self.name}{space}{what}", self.origin, functional, statement, problem=self.name
        )

    def slope(
        self,
        what: str,
        places: Sequence[float],
        points: Sequence[Linear | Ratio | Extrapolation],
        values: Sequence[float],
        rivals: dict[str, float],
        **margins: float,
    ) -> Check:
        """A check that the slope of logarithms between places is that of the predicted values."""
        predicted = float(np.polyfit(places, np.log(values), 1)[0])
        slope = LogSlope(tuple(places), tuple(points), tuple(values))
        return self.check(what, slope, equal(predicted, rivals, **margins))

    def gains(
        self,
        what: str,
        functional: Functional,
        gain: float,
        rival: str,
        *,
        scale: float | None = None,
        digits: float = 0.0,
        relative_margin: float = 0.1,
    ) -> Iterator[Check]:
        """Two checks of a difference: it is positive, which a rival denies, and has the predicted size."""
        scale = gain if scale is None else scale
        size = equal(gain, scale=scale, digits=digits, relative_margin=relative_margin)
        yield self.check(what, functional, positive(gain, [rival], scale=scale))
        yield self.check(f"{what}: by how much", functional, size)
