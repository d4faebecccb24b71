"""The best leave-one-out table on networks: errors where rewards are 0 and 1, without training."""

from __future__ import annotations

from ustat_pg.experiment import Check, Claim, Point
from ustat_pg.predictions import gradient_mse

from ..best_baseline import OF_ERRORS, STEM, gradient_errors
from ..problems import Suite

LEAST_GAIN = 1e-6
"""The least share of grpo's error that the best table must save, for the saving to be asked."""


def claim(suite: Suite) -> Claim:
    """The errors at two group sizes; nothing where rewards are others, or nothing is to gain."""
    checks: list[Check] = []
    for entry in suite.token_problems:
        for group_size in (2, 4):
            if entry.problem.binary:
                moments = entry.problem.moments()
                best, grpo = (gradient_mse(moments, n, group_size).mse for n in ("best", "grpo"))
                if grpo - best > LEAST_GAIN * grpo:
                    checks += gradient_errors(entry, group_size)
    return Claim(STEM, OF_ERRORS, tuple(checks))


def curves(suite: Suite) -> tuple[Point, ...]:
    """None: the curves are those of training runs."""
    return ()
