"""Every baseline that engines can run, so that a new one is tested without being named again."""

from __future__ import annotations

from ustat_pg.baselines import BASELINES
from ustat_pg.engines import Estimator
from ustat_pg.engines.base import RUNNABLE

__all__ = ["EACH", "WITH_RANGE"]

EACH = [Estimator(name, 0.3 if "constant" in BASELINES[name].needs else None) for name in RUNNABLE]
"""One estimator a baseline."""

WITH_RANGE = [
    each
    for each in EACH
    if each.record.of_prompt or each.record.of_pairs or each.record.within_rewards
]
"""Those whose gradients have a known bound."""
