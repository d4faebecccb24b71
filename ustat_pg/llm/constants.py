"""The constants c1, c2, c3 of a pool, the best group size, how well they are known, and when that is enough.

A pool may grow until the group size is known well enough. The first look is at 32 prompts, each further one
at twice as many, the last at all that there are. How many looks there may be is known beforehand, and
intervals at each err at 5%/L, L that number: so whichever look is the last, and for whatever reason, those
that it prints hold 95% (union bound).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..noise.estimate import fieller
from ..predictions import (
    GroupSizeAdvice,
    MseConstants,
    critical_budget,
    group_size_advice,
    robust_group_size,
)
from ..validation import InputError, integer
from .moments import Means, beside, gradients, means, pairs, prompt_moments, zero_signal
from .pool import ScoredPool
from .printing import finite

__all__ = [
    "ConstantsEstimate",
    "Decision",
    "allowed_group_sizes",
    "constants",
    "decide",
    "look_sizes",
    "noise_and_signal",
    "ratio_interval",
    "refuse_group_size",
]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ConstantsEstimate:
    """c1, c2, c3, vanilla's constant of Proposition 3 (minibatch) and ‖g‖², estimated from a pool.

    Arguments:
        means: of c1, tr Cov_X g(X); c2, E[τ - ‖g‖²]; c3, E[φ + ‖g‖²]; vanilla, E[E[‖s‖² z²] - ‖g‖²];
            gradient_sq, ‖E g(X)‖². As unbiased estimates c1 and gradient_sq may be negative.
    """

    means: Means

    NAMES = ("c1", "c2", "c3", "vanilla", "gradient_sq")

    def __getattr__(self, name: str) -> float:
        if name not in self.NAMES:
            raise AttributeError(name)
        return float(self.means.full[self.NAMES.index(name)])

    @property
    def prompts(self) -> int:
        """P."""
        return len(self.means.without)

    def se(self, name: str) -> float:
        """The standard error of a constant."""
        return float(self.means.se[self._place(name)])

    def interval(self, name: str) -> tuple[float, float]:
        """The 95% interval of a constant, by Student's law with P - 1 degrees of freedom."""
        place = self._place(name)
        low, high = (float(end[place]) for end in self.means.interval())
        return low, high

    def _place(self, name: str) -> int:
        if name not in self.NAMES:
            raise InputError(f"constant {name!r} is unknown: choose one of {', '.join(self.NAMES)}")
        return self.NAMES.index(name)

    @property
    def clipped(self) -> tuple[str, ...]:
        """The constants whose estimates are negative and count as 0 in :meth:`predictions`."""
        return tuple(name for name in self.NAMES[:4] if getattr(self, name) < 0)

    def predictions(self) -> MseConstants:
        """The constants that predictions and advice take; negative estimates become 0."""
        return MseConstants(**{name: max(getattr(self, name), 0.0) for name in self.NAMES[:4]})

    @property
    def unbounded(self) -> bool:
        """Whether the data allow c1 = 0, so that G* has no upper limit."""
        return self.interval("c1")[0] <= 0

    @property
    def g_star_exact(self) -> float | None:
        """1 + √(c3/c1); None where the estimate of c1 is not positive."""
        paper = self.g_star_paper
        return None if paper is None else 1 + paper

    @property
    def g_star_paper(self) -> float | None:
        """√(c3/c1) [reconstructed]; None where the estimate of c1 is not positive."""
        return math.sqrt(max(self.c3, 0.0) / self.c1) if self.c1 > 0 else None

    def g_star_interval(self, kind: str = "exact") -> tuple[float, float]:
        """The 95% interval of G*, from Fieller's for c3/c1.

        The ratios r for which c3 - r c1 = 0 is not rejected. Where the interval of c1 reaches 0 no
        ratio is too large, and the upper end is infinite.

        Arguments:
            kind: exact or paper.
        """
        if kind not in ("exact", "paper"):
            raise InputError(f"kind is {kind!r}: choose exact or paper")
        low, high = ratio_interval(self.means.apply(lambda each: each[..., [2, 0]]))
        shift = 1.0 if kind == "exact" else 0.0
        return shift + math.sqrt(low), shift + math.sqrt(high)

    @property
    def k_crit(self) -> float | None:
        """The outputs of a step at which its least error is ‖g‖²; None where that is not positive."""
        signal = self.gradient_sq
        return critical_budget(self.predictions(), signal) if signal > 0 else None

    def k_crit_interval(self) -> tuple[float, float]:
        """The 95% interval of the critical budget, Fieller's: infinite above where ‖g‖² may be 0."""
        return ratio_interval(self.means.apply(noise_and_signal))

    def frame(self) -> pd.DataFrame:
        """A row for each constant, G* and K_crit: name, value, low, high, se; NaN where there is none."""
        rows = [(n, getattr(self, n), *self.interval(n), self.se(n)) for n in self.NAMES]
        stars = {f"g_star_{kind}": self.g_star_interval(kind) for kind in ("exact", "paper")}
        for name, ends in {**stars, "k_crit": self.k_crit_interval()}.items():
            value = getattr(self, name)
            rows.append((name, math.nan if value is None else value, *ends, math.nan))
        return pd.DataFrame(rows, columns=["name", "value", "low", "high", "se"])


def constants(pool: ScoredPool) -> ConstantsEstimate:
    """The constants behind MSE(G, B) = (1/B)(c1 + c2/G + c3/(G(G-1))) and G* (Theorem 7, group_size).

    Raises:
        InputError: one prompt only, or a pool without sketches.

    >>> pool = ScoredPool.from_scores(
    ...     [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0]],
    ...     [[[1.0], [-1.0], [1.0], [-1.0]], [[-1.0], [1.0], [1.0], [-1.0]]],
    ... )
    >>> found = constants(pool)
    >>> round(found.c2, 12), round(found.c3, 4), found.prompts, found.unbounded
    (0.0625, 0.5208, 2, True)
    """
    moments, sketches = prompt_moments(pool), gradients(pool)
    columns = [
        moments.gradient_sq,
        moments.norm_squared_advantage - moments.gradient_sq,
        moments.variance_trace + moments.gradient_sq,
        moments.norm_squared_reward - moments.gradient_sq,
    ]
    found = beside(means(np.column_stack(columns), pool.looks), pairs(sketches, pool.looks))

    def with_c1(each: Array) -> Array:
        within, c2, c3, vanilla, signal = np.moveaxis(each, -1, 0)
        return np.stack([within - signal, c2, c3, vanilla, signal], axis=-1)

    return ConstantsEstimate(found.apply(with_c1))


def noise_and_signal(each: Array) -> Array:
    """c1 + c2 + 2 √(c1 c3) and ‖g‖², whose ratio is the critical budget, (..., 2).

    Arguments:
        each: c1, c2, c3 first and ‖g‖² last, (..., Q).
    """
    c1, c2, c3, gradient_sq = (each[..., place] for place in (0, 1, 2, -1))
    root = np.sqrt(np.maximum(c1, 0.0) * np.maximum(c3, 0.0))
    return np.stack([c1 + c2 + 2 * root, gradient_sq], axis=-1)


def ratio_interval(found: Means) -> tuple[float, float]:
    """Fieller's 95% interval of a ratio of positive quantities, from 0 to at most infinity.

    The ratios r for which numerator - r denominator = 0 is not rejected. Where the denominator is not
    told from 0 no ratio is too large, and the upper end is infinite.

    Arguments:
        found: numerator and denominator.

    >>> apart = np.array([[0.1, 0.1], [0.1, -0.1], [-0.1, 0.1], [-0.1, -0.1]])
    >>> low, high = ratio_interval(Means(np.array([6.0, 2.0]), [6.0, 2.0] + apart))
    >>> round(low, 3), round(high, 3)
    (2.307, 4.186)
    """
    width = found.quantile
    if not math.isfinite(width):
        return 0.0, math.inf
    numerator, denominator = found.full
    return fieller(float(numerator), float(denominator), found.covariance, -width, width)


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


def allowed_group_sizes(budget: int, prompts: int | None = None) -> tuple[int, ...]:
    """The group sizes that a budget of completions can hold: divisors of at least 2.

    With B = budget/G prompts in a step there must be as many prompts, since TRL draws those of a
    step without replacement and drops what does not fill one.

    Arguments:
        budget: completions of one step, K = B G.
        prompts: how many prompts there are, if that limits B.

    Raises:
        InputError: the budget is not a whole number of at least 2.

    >>> allowed_group_sizes(32)
    (2, 4, 8, 16, 32)
    >>> allowed_group_sizes(32, prompts=5)
    (8, 16, 32)
    """
    budget = integer("budget", budget, 2)
    fewest = 2 if prompts is None else max(2, -(-budget // prompts))
    return tuple(size for size in range(fewest, budget + 1) if budget % size == 0)


def refuse_group_size(group_size: int, budget: int, prompts: int | None = None) -> None:
    """Refuse a group size that the budget cannot hold, with those that it can.

    Raises:
        InputError: the group size does not divide the budget, or needs more prompts than there are.

    >>> refuse_group_size(8, 20)
    Traceback (most recent call last):
    ...
    ustat_pg.validation.InputError: group size 8 does not divide the budget of 20 completions: ...
    """
    allowed = allowed_group_sizes(budget, prompts)
    if group_size in allowed:
        return
    if group_size < 2:
        what = f"group size is {group_size}: it must be at least 2"
    elif budget % group_size:
        what = f"group size {group_size} does not divide the budget of {budget} completions"
    else:
        what = (
            f"group size {group_size} at a budget of {budget} completions needs "
            f"{budget // group_size} prompts in a step and there are {prompts}"
        )
    raise InputError(f"{what}: choose one of {', '.join(map(str, allowed))}")
