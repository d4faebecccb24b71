"""The best amount of shrinkage, of any rewards, against enumerated errors."""

from __future__ import annotations

import numpy as np
import pytest

from simulations import Suite
from simulations.problems import mse_of, two_valued
from ustat_pg.engines import GradientCell
from ustat_pg.predictions import best_shrinkage
from ustat_pg.problems import random_problem

PROBLEMS = {
    "binary": Suite("smoke").uneven.problem,
    "any rewards": random_problem(7, "linear"),
    "one prompt": random_problem(8, "one-context"),
}


def enumerated(problem, group_size, mean, amounts):
    """Errors by enumeration of every outcome."""
    asked = [mse_of(f"shrinkage:{float(amount)!r},{mean!r}") for amount in amounts]
    return GradientCell(problem, group_size).measure("exact", asked).mean


def terms(moments, mean):
    """τ, φ + ‖g‖², δ² tr F and δ E[a‖s‖²] over prompts, with δ = μ - V."""
    probs, off = moments.context_probs, mean - moments.value
    return (
        probs @ moments.norm_squared_advantage,
        probs @ (moments.reward_variance * moments.fisher_trace + moments.gradient_sq),
        probs @ (off**2 * moments.fisher_trace),
        probs @ (off * moments.norm_advantage),
    )


@pytest.mark.parametrize("away", [-0.3, 0.0, 0.2])
@pytest.mark.parametrize("group_size", [2, 3, 4])
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_error_is_the_parabola_of_the_theory_and_the_best_amount_its_lowest_point(
    name, group_size, away
):
    problem = PROBLEMS[name]
    moments = problem.moments()
    mean = float(moments.context_probs @ moments.value) + away
    amounts = np.linspace(0, 1, 5)
    found = enumerated(problem, group_size, mean, amounts)
    tau, noise, spread, tilt = terms(moments, mean)
    # Of one group, less the squared length of the mean over prompts.
    expected = (
        tau
        + (1 - amounts) ** 2 * noise / (group_size - 1)
        + amounts**2 * spread
        - 2 * amounts * tilt
    ) / group_size
    expected += (1 - 1 / group_size) * (moments.context_probs @ moments.gradient_sq)
    expected -= problem.gradient() @ problem.gradient()
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    bend, slope, _ = np.polyfit(amounts, found, 2)
    lowest = np.clip(-slope / (2 * bend), 0, 1)
    best = best_shrinkage(moments, group_size, mean)
    assert best == pytest.approx(lowest, abs=1e-8)
    least = enumerated(problem, group_size, mean, [best])[0]
    for step in (-0.05, 0.05):
        beside = min(max(best + step, 0.0), 1.0)
        if beside != best:
            assert enumerated(problem, group_size, mean, [beside])[0] > least


def test_the_mean_value_is_that_of_the_prompts_unless_given():
    moments = PROBLEMS["binary"].moments()
    mean = moments.context_probs @ moments.value
    assert best_shrinkage(moments, 4) == best_shrinkage(moments, 4, mean)
    assert best_shrinkage(moments, 4) != best_shrinkage(moments, 4, mean + 0.1)


def test_the_amount_is_held_between_grpo_and_the_constant():
    # b* is .13 and V .8: a mean below V would be overtaken, one above it is the wrong way.
    skewed = two_valued([0.8, 0.1, 0.05, 0.05], [1, 0, 0, 0]).moments()
    assert best_shrinkage(skewed, 4, 0.6) == 1.0
    assert best_shrinkage(skewed, 4, 1.5) == 0.0
    # Nothing to choose from: all rewards alike.
    assert best_shrinkage(two_valued([0.5, 0.5], [1, 1]).moments(), 4, 1.0) == 1.0
