"""The record of a problem of the suite: its name, where it comes from, and itself."""

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
    """Name, origin and generator of each drawn problem of a kind: of one by the seed ``made_up``, where that
    is given, then of those that are generated.

    A kind's own stream keeps its numbers apart from those of others.
    """
    if made_up is not None:
        yield kind, "made-up", np.random.default_rng(made_up)
    for number in range(count):
        rng = np.random.default_rng([seed, number, stream])
        yield f"{kind}#{seed}.{number}", "generated", rng


@dataclass(frozen=True)
class Entry(Generic[P]):
    """A problem with a name, unique in its claim, and where it comes from: made-up, generated or real."""

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
        """A check on the problem, what it asks and states made at once or when they are read.

        Its name is the problem's and, after a space or a colon, what it is.
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
        """A check of the slope of logarithms between places, as of the values that are predicted."""
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
        """Two checks of a difference: positive, which a rival denies, and of the size predicted."""
        scale = gain if scale is None else scale
        size = equal(gain, scale=scale, digits=digits, relative_margin=relative_margin)
        yield self.check(what, functional, positive(gain, [rival], scale=scale))
        yield self.check(f"{what}: by how much", functional, size)
