"""The constants c1, c2, c3 of a pool and the best group size, each with its interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..jackknife import FEW, Interval, Means, beside, means, ratio_interval
from ..predictions import MseConstants, critical_budget
from ..shown import Shown, plain
from .moments import gradients, norm_interval, pairs, prompt_moments
from .pool import ScoredPool
from .printing import interval_lines

Array = NDArray[np.float64]

_TELLING = 3
"""Prompts in which ‖g(x)‖² must be seen for an upper end of c1."""


@dataclass(frozen=True, eq=False)
class ConstantsEstimate(Shown):
    """c1, c2, c3, vanilla's constant of Proposition 3 (minibatch) and ‖g‖², estimated from a pool.

    Arguments:
        means: of c1, tr Cov_X g(X); c2, E[τ - ‖g‖²]; c3, E[φ + ‖g‖²]; vanilla, E[E[‖s‖² z²] - ‖g‖²];
            gradient_sq, ‖E g(X)‖². As unbiased estimates c1 and gradient_sq may be negative.
        signal: the 95% interval of ‖E g(X)‖²; that of the means unless given.
        telling: the prompts that have two rewards or more apart from their most common one; all unless
            given. Of rare rewards no other prompt shows ‖g(x)‖², so that few of them leave c1 without an
            upper end.
    """

    means: Means
    signal: Interval | None = None
    telling: int | None = None

    NAMES = ("c1", "c2", "c3", "vanilla", "gradient_sq")

    def __getattr__(self, name: str) -> float:
        if name not in self.NAMES:
            raise AttributeError(name)
        return float(self.means.full[self.NAMES.index(name)])

    def se(self, name: str) -> float:
        """The standard error of a constant."""
        return float(self.means.se[self.NAMES.index(name)])

    def interval(self, name: str) -> tuple[float, float]:
        """The 95% interval of a constant; an end that is not known is infinite."""
        if name == "gradient_sq" and self.signal is not None:
            return self.signal
        low, high = (float(end[self.NAMES.index(name)]) for end in self.means.interval())
        return low, math.inf if name == "c1" and self._silent else high

    @property
    def not_known(self) -> dict[str, str]:
        """Why a constant's interval has an end that is not known, for those that have one."""
        reasons = {name: self.means.carried(place) for place, name in enumerate(self.NAMES)}
        if self._silent:
            reasons["c1"] = (
                f"{self.telling} of {len(self.means.without)} prompts have two rewards or more apart from "
                "their most common one, and c1 is seen in no other"
            )
        return {name: reason for name, reason in reasons.items() if reason is not None}

    @property
    def _silent(self) -> bool:
        few = self.telling is not None and self.telling < _TELLING
        return few and len(self.means.without) >= FEW

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
        return 1 + math.sqrt(max(self.c3, 0.0) / self.c1) if self.c1 > 0 else None

    def g_star_interval(self) -> tuple[float, float]:
        """The 95% interval of G*, from that of c3/c1.

        Where the interval of c1 reaches 0 no ratio is too large, and the upper end is infinite.
        """
        low, high = ratio_interval(self.means.apply(lambda columns: columns[..., [2, 0]]))
        return 1.0 if self._silent else 1 + math.sqrt(low), 1 + math.sqrt(high)

    @property
    def k_crit(self) -> float | None:
        """The outputs of a step at which its least error is ‖g‖²; None where that is not positive."""
        signal = self.gradient_sq
        return critical_budget(self.predictions(), signal) if signal > 0 else None

    def k_crit_interval(self) -> tuple[float, float]:
        """The 95% interval of the critical budget: infinite above where ‖g‖² may be 0."""
        return ratio_interval(self.means.apply(noise_and_signal), self.signal)

    def to_dict(self) -> dict[str, Any]:
        """The rows of :meth:`to_frame`, and why ends are not known, as JSON has them."""
        return {"constants": plain(self.to_frame()), "not_known": self.not_known}

    def __str__(self) -> str:
        return interval_lines(self.to_frame(), self.not_known)

    def to_frame(self) -> pd.DataFrame:
        """A row for each constant, G* and K_crit: name, value, low, high, se; NaN where there is none."""
        rows = [(n, getattr(self, n), *self.interval(n), self.se(n)) for n in self.NAMES]
        intervals = {"g_star_exact": self.g_star_interval(), "k_crit": self.k_crit_interval()}
        for name, ends in intervals.items():
            value = getattr(self, name)
            rows.append((name, math.nan if value is None else value, *ends, math.nan))
        return pd.DataFrame(rows, columns=["name", "value", "low", "high", "se"])


def constants(pool: ScoredPool) -> ConstantsEstimate:
    """The constants behind MSE(G, B) = (1/B)(c1 + c2/G + c3/(G(G-1))) and G* (Theorem 7, group_size).

    >>> pool = ScoredPool.from_scores(
    ...     [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0]],
    ...     [[[1.0], [-1.0], [1.0], [-1.0]], [[-1.0], [1.0], [1.0], [-1.0]]],
    ... )
    >>> estimate = constants(pool)
    >>> round(estimate.c2, 12), round(estimate.c3, 4), estimate.unbounded
    (0.0625, 0.5208, True)
    """
    moments, sketches = prompt_moments(pool), pool.by_prompt(gradients(pool))
    columns = [
        moments.gradient_sq,
        moments.norm_squared_advantage - moments.gradient_sq,
        moments.variance_trace + moments.gradient_sq,
        moments.norm_squared_reward - moments.gradient_sq,
    ]
    averages = beside(
        means(pool.by_prompt(np.column_stack(columns)), pool.looks), pairs(sketches, pool.looks)
    )

    def with_c1(columns: Array) -> Array:
        within, c2, c3, vanilla, signal = np.moveaxis(columns, -1, 0)
        return np.stack([within - signal, c2, c3, vanilla, signal], axis=-1)

    rewards = pool.rewards
    alike = (rewards[:, :, None] == rewards[:, None, :]).sum(axis=2).max(axis=1)
    telling = int((pool.by_prompt(alike <= rewards.shape[1] - 2) > 0).sum())
    return ConstantsEstimate(averages.apply(with_c1), norm_interval(sketches, pool.looks), telling)


def noise_and_signal(columns: Array) -> Array:
    """c1 + c2 + 2 √(c1 c3) and ‖g‖², whose ratio is the critical budget.

    From c1, c2, c3 first and ‖g‖² last, (..., Q) to (..., 2).
    """
    c1, c2, c3, gradient_sq = (columns[..., place] for place in (0, 1, 2, -1))
    root = np.sqrt(np.maximum(c1, 0.0) * np.maximum(c3, 0.0))
    return np.stack([c1 + c2 + 2 * root, gradient_sq], axis=-1)
