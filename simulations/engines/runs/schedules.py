"""Schedules: the learning rates of a training run's steps."""

from __future__ import annotations

from math import isfinite

import numpy as np

from ustat_pg.validation import Array, InputError, field, number, positive, record


@record(eq=True)
class Constant:
    """The schedule ηₜ = η.

    >>> Constant(0.5).rates(3)
    array([0.5, 0.5, 0.5])
    """

    eta: float = field(positive)

    def rates(self, steps: int) -> Array:
        """η₁ to η_T, (T,)."""
        return np.full(steps, self.eta)


@record(eq=True)
class Decay:
    """The schedule ηₜ = c / (t + t₀), t = 1, …, T.

    Arguments:
        c: number above 0.
        t0: number above -1, so that every rate is positive; the paper's c / t is t₀ = 0.

    >>> Decay(6.0, 2.0).rates(4)
    array([2. , 1.5, 1.2, 1. ])
    """

    c: float = field(positive)
    t0: float = field(number, above=-1.0, default=0.0)

    def __attrs_post_init__(self) -> None:
        if not isfinite(self.c / (1.0 + self.t0)):
            raise InputError(f"c is {self.c!r} and t0 {self.t0!r}: the first rate overflows")

    def rates(self, steps: int) -> Array:
        return np.asarray(self.c / (np.arange(1, steps + 1) + self.t0), dtype=np.float64)


Schedule = Constant | Decay
