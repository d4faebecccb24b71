"""Learning rates as the paper defines them: predictions read these, and not the engines' own."""

from __future__ import annotations

import numpy as np

from ustat_pg.engines import Constant, Decay
from ustat_pg.engines.runs.schedules import Schedule


def rates_of(schedule: Schedule, steps: int) -> np.ndarray:
    """η₁ to η_T, (T,): η at every step, or c/(t + t₀) at t = 1, …, T."""
    match schedule:
        case Constant(eta=eta):
            return np.array([eta] * steps)
        case Decay(c=c, t0=offset):
            return np.array([c / (t + offset) for t in range(1, steps + 1)])
