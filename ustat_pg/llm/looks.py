"""Looks: a pool that grows until the group size is known well enough.

The first look is at 32 prompts, each further one at twice as many, the last at all that there are. How many
looks there may be is known beforehand, and intervals at each err at 5%/L, L that number: so whichever look
is the last, and for whatever reason, those that it prints hold 95% (union bound).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..predictions import GroupSizeAdvice, group_size_advice, robust_group_size
from .constants import ConstantsEstimate, constants
from .printing import finite
from .scored import ScoredPool
from .summary import zero_signal

__all__ = ["Decision", "decide", "look_sizes"]

FIRST = 32
"""Prompts of the first look: with fewer, errors of c1 are hardly known."""


def look_sizes(prompts: int) -> tuple[int, ...]:
    """Prompts at each look, of so many in all.

    >>> look_sizes(500), look_sizes(70), look_sizes(20)
    ((32, 64, 128, 256, 500), (32, 70), (20,))
    """
    sizes, size = [], FIRST
    # A last look at little more than the one before would be spent for nothing.
    while 3 * size <= 2 * prompts:
        sizes.append(size)
        size *= 2
    return (*sizes, prompts)


@dataclass(frozen=True)
class Decision:
    """The advice on a group size, and how sure it is.

    Arguments:
        known: c1, c2, c3 and G*, with intervals.
        advice: at their estimates.
        group_size: the feasible G of the least worst loss.
        worst: its error over the least of the feasible ones, at most, whatever c1, c2 and c3 are within
            their intervals; None where these are infinite.
    """

    known: ConstantsEstimate
    advice: GroupSizeAdvice
    group_size: int
    worst: float | None

    def settles(self, until: str | float) -> bool:
        """Whether that is well enough.

        Arguments:
            until: flat, every whole G in the interval of G* is within 5% of the least error; or a share,
                the most that the worst error may be above the least.
        """
        if until == "flat":
            low, high = self.known.g_star_interval()
            least, most = self.advice.g_interval
            return least <= math.ceil(low) and high < most + 1
        return self.worst is not None and self.worst <= 1 + float(until)

    def record(self) -> dict[str, Any]:
        """G* with its interval, what is within 5%, and the advised G with its worst loss, as JSON has it."""
        return {
            "g_star": self.known.g_star_exact,
            "g_star_interval": [finite(end) for end in self.known.g_star_interval()],
            "g_interval": list(self.advice.g_interval),
            "g_robust": self.group_size,
            "worst_ratio": self.worst,
        }

    def __str__(self) -> str:
        low, high = self.known.g_star_interval()
        star = self.known.g_star_exact
        least, most = self.advice.g_interval
        told = "G* unknown" if star is None else f"G* {star:.3g}"
        told += f" [{low:.3g}, {high:.3g}], G from {least} to {most} within 5%"
        loss = "not bounded" if self.worst is None else f"at most {self.worst - 1:.1%}"
        return f"{told}, loss of G = {self.group_size} {loss}"


def decide(pool: ScoredPool, budget: float, costs: Mapping[str, Any]) -> Decision | None:
    """What a pool says of the group size; None where no group of it has a signal.

    Arguments:
        pool: of at least two prompts, with sketches.
        budget: as for :func:`~ustat_pg.predictions.group_size_advice`.
        costs: prompt_cost, output_cost and population of the same function.

    Raises:
        InputError: as that function says, or one prompt only.
    """
    known = constants(pool)
    if not np.ptp(pool.rewards, axis=1).any():
        return None
    found = known.predictions()
    advice = group_size_advice(
        found,
        budget,
        **costs,
        zero_signal=lambda size: finite(zero_signal(pool, [size])["share"].iloc[0]),
    )
    ends = {name: known.interval(name) for name in ("c1", "c2", "c3")}
    if not np.isfinite(list(ends.values())).all():
        return Decision(known, advice, advice.g_best, None)
    size, ratios = robust_group_size(
        found,
        group_sizes=[row.group_size for row in advice.table],
        batch_sizes=[row.batch_size for row in advice.table],
        **ends,
        population=costs["population"],
    )
    return Decision(known, advice, size, float(ratios.min()))
