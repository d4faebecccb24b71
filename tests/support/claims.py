"""A claim of two checks that a smoke run settles."""

from __future__ import annotations

from simulations.problems import Suite, mse_of
from ustat_pg.checks import equal
from ustat_pg.engines import GradientCell
from ustat_pg.experiment import Check, Claim, mean_of
from ustat_pg.predictions import gradient_mse

SKEWED = Suite().skewed.problem


def small_claim(truth: float = 1.0, rival: float = 1.5) -> Claim:
    """grpo's MSE on two cells, said to be ``truth`` times itself, against a rival."""
    checks = []
    for size in (2, 3):
        value = gradient_mse(SKEWED.moments(), "grpo", size).mse
        cell = GradientCell(SKEWED, size)
        statement = equal(truth * value, {"other": rival * value}, scale=truth * value)
        checks.append(Check(f"G={size}", "made-up", mean_of(cell, mse_of("grpo")), statement))
    return Claim("mse", ("other",), tuple(checks))
