"""The group size that follows from intervals of the constants, and the prompts that would decide it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..display.numbers import readable
from ..display.shown import Shown
from ..inference import Interval, student
from ..inference.estimate import Estimate
from .advice import GroupSizeAdvice
from .budget import robust_group_size
from .group_size import MseConstants

_GROWTH = 2 ** np.arange(0.5, 6.5, 0.5)
"""The largest multiple of the prompts that the advice asks for."""


class HasConstants(Protocol):
    """Estimates of the constants of Proposition 3 (minibatch) and of G*, from a pool or a training."""

    @property
    def c1(self) -> Estimate: ...
    @property
    def c2(self) -> Estimate: ...
    @property
    def c3(self) -> Estimate: ...
    @property
    def g_star(self) -> Estimate: ...


@dataclass(frozen=True)
class Decision(Shown):
    """A group size under uncertainty: the one with the least worst-case loss over the interval of G*.

    Arguments:
        group_size: the group size, the largest one if several are equal.
        worst: the largest ratio of its error to the least feasible error, over all c1, c2 and c3 in their
            intervals. If an end of these is not known: over all c1/c3 in the interval of G*, with c2/c3 at
            its estimate.
        known: whether all ends are known.
        not_ruled_out: the least and greatest feasible sizes that are the best for some value in the interval
            of G*.
    """

    group_size: int
    worst: float
    known: bool
    not_ruled_out: tuple[int, int]

    def settles(self, share: float) -> bool:
        """Whether all ends are known and the worst error exceeds the least by at most this share."""
        return self.known and self.worst <= 1 + share

    def __str__(self) -> str:
        least, most = self.not_ruled_out
        text = f"G = {self.group_size}"
        text += "" if self.known else " until more is known"
        worst = readable(self.worst)
        text += (
            ": no other feasible group size has a smaller error, "
            if worst == "1"
            else f": its error is at most {worst} times the least of the feasible group sizes, "
        )
        text += (
            "for all c1, c2 and c3 in their 95% intervals."
            if self.known
            else "for every c1/c3 that the interval of G* allows (at most 1), if c2/c3 equals its estimate."
        )
        return text + (
            f" No G from {least} to {most} is ruled out as the best." if least < most else ""
        )


def decision(
    found: HasConstants, sizes: GroupSizeAdvice, population: int | None = None
) -> Decision:
    """The decision among feasible group sizes.

    It depends only on ratios of the constants. c1/c3 is in the interval of G*, and at most 1 because c3 - c1
    = E φ + ‖g‖² >= 0 (Theorem 7, group_size); this bounds it even if the data do not. c2/c3 is set to its
    estimate: it hardly differs between prompts, because the lengths of their scores cancel.

    Arguments:
        found: estimates from a pool (:func:`~ustat_pg.llm.pool.constants.constants`) or from a training
            (:class:`~ustat_pg.noise.NoiseEstimate`).
        sizes: the feasible designs, from :func:`~ustat_pg.predictions.group_size_advice`.
        population: N, where prompts are drawn without replacement.

    >>> from types import SimpleNamespace
    >>> from ustat_pg.predictions import group_size_advice
    >>> ends = {"c1": (0.0, 0.3), "c2": (0.4, 0.7), "c3": (0.9, math.inf), "g_star": (2.5, math.inf)}
    >>> found = {name: Estimate(max(low, 0.1), 0.1, low, high) for name, (low, high) in ends.items()}
    >>> sizes = group_size_advice(MseConstants(0.1, 0.5, 1.0), 64)
    >>> found = decision(SimpleNamespace(**found), sizes)
    >>> found.group_size, round(found.worst, 2), found.known, found.not_ruled_out
    (4, 1.69, False, (2, 64))
    """
    designs = np.array([(row.group_size, row.batch_size) for row in sizes.table]).T
    most, least = (min((end - 1) ** -2.0, 1.0) if end > 1 else 1.0 for end in found.g_star.interval)
    share = max(found.c2.value, 0.0) / found.c3.value if found.c3.value > 0 else 0.0

    def over(low: float, high: float) -> tuple[int, NDArray[np.float64]]:
        return _asked(((low, high), (share, share), (1.0, 1.0)), designs, population)

    # A larger c1/c3 makes the best group smaller.
    smallest, largest = over(most, most)[0], over(least, least)[0]
    best, worst = over(least, most)
    intervals = found.c1.interval, found.c2.interval, found.c3.interval
    if known := bool(np.isfinite(intervals).all()):
        _, worst = _asked(intervals, designs, population)
    return Decision(best, float(worst[designs[0] == best][0]), known, (smallest, largest))


def prompts_to_settle(
    found: HasConstants,
    count: int,
    sizes: GroupSizeAdvice,
    share: float,
    population: int | None = None,
) -> int | None:
    """The approximate number of prompts, instead of ``count``, that would decide the group size up to this
    share.

    It assumes that the estimates are right and that intervals shrink as 1/√(prompts). It is None if c1, the
    least certain constant of a pool, is not distinguishable from 0 by its standard error, or if the allowed
    number is not enough.
    """
    designs = np.array([(row.group_size, row.batch_size) for row in sizes.table]).T
    three = found.c1, found.c2, found.c3
    values, errors, low, high = (
        np.array([getattr(each, name) for each in three]) for name in ("value", "se", "low", "high")
    )
    if not (np.isfinite(errors).all() and values[0] > errors[0]):
        return None
    width = student(count - 1) * errors
    below, above = (np.where(np.isfinite(end), end, width) for end in (values - low, high - values))
    for more in _GROWTH:
        ends = zip(values - below / math.sqrt(more), values + above / math.sqrt(more), strict=True)
        if _asked(tuple(ends), designs, population)[1].min() <= 1 + share:
            return math.ceil(more * count)
    return None


def _asked(
    ends: Sequence[Interval], designs: NDArray[np.int64], population: int | None
) -> tuple[int, NDArray[np.float64]]:
    c1, c2, c3 = ends
    nothing = MseConstants(0.0, 0.0, 0.0)
    return robust_group_size(nothing, c1, c3, *designs, c2=c2, population=population)
