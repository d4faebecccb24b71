"""Theorem 7 on networks: the noise at fixed parameters, and one prompt a step against several.

A few long steps at a budget: one prompt a step (B = 1) loses to four outputs a prompt, which c₁, c₂ and
c₃ recommend. Trained return against G at several budgets and steps is measured and decides nothing.

Cost: seconds for prefix policies, a minute or two for transformers.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log

import numpy as np

from ustat_pg.checks import positive
from ustat_pg.engines import Gap
from ustat_pg.experiment import Check, Claim, Linear, LogSlope, Point, mean_of
from ustat_pg.predictions import mse_constants, optimal_group_size
from ustat_pg.predictions.group_size import MseConstants

from ..group_size import HALVED, PAPER, STEM, gradient_errors
from ..problems import Suite
from . import optimizers
from .learners import BUDGET, GRIDS, GRPO, PATH, SMALL, Learner, large, learners

LARGEST = "B = 1 is as good as any"
TRAINED_RIVALS = (LARGEST,)

EFFECT = 0.07
"""A share of the gap that is looked for when two group sizes are compared."""

STAGES = ("initial", "middle", "final")


def trained(suite: Suite) -> Iterator[Check]:
    """One prompt a step against four outputs a prompt, in a few long steps.

    What stands as predicted is the least effect that is looked for: none is known in closed form.
    """
    steps = 10
    for learner in learners(suite):
        # Three times the rate at which so few steps would gain half of the gap.
        rate = 3 * learner.rate * PATH / steps
        best, worst = (
            mean_of(learner.runs(g, BUDGET, steps, rate, 512), Gap(GRPO, steps))
            for g in (SMALL, BUDGET)
        )
        yield learner.check(
            f"K={BUDGET} T={steps}: gap at G={BUDGET} over that at G={SMALL}, by some {EFFECT:.0%}",
            LogSlope((0.0, 1.0), (best, worst), (0.4, 0.4 * (1 + EFFECT))),
            positive(log(1 + EFFECT), TRAINED_RIVALS, scale=1.0),
        )


def claim(suite: Suite) -> Claim:
    """The gradient's error on every problem, and two group sizes in training where there is any."""
    checks = [check for entry in suite.stand_ins for check in gradient_errors(entry, 4)]
    if not suite.trains:
        return Claim(STEM, (PAPER, HALVED), tuple(checks))
    rivals = (PAPER, HALVED, *TRAINED_RIVALS)
    return Claim(STEM, rivals, (*checks, *trained(suite)), TRAINED_RIVALS)


def stages(learner: Learner, rate: float, steps: int) -> dict[str, MseConstants]:
    """c₁, c₂ and c₃ at the start, half-way and the end of exact ascent at the grid's rate and for as
    long as its longest runs.
    """
    path = learner.ascent(rate, steps)
    places = dict(zip(STAGES, (0, steps // 2, steps), strict=True))
    return {name: mse_constants(path[place].moments()) for name, place in places.items()}


def curves(suite: Suite) -> Iterator[Point]:
    """Trained return against G at every budget and step, and the curves that c₁, c₂, c₃ predict."""
    if not suite.trains:
        return
    learner, grid, figure = large(suite), GRIDS[suite.on], f"{suite.on}_group_size"
    for budget in grid.budgets:
        for group_size in grid.group_sizes:
            training = learner.runs(group_size, budget, grid.steps[-1], grid.rate, 32)
            for step in grid.steps:
                at = {
                    "panel": "trained", "problem": learner.name,
                    "group_size": group_size, "budget": budget, "step": step,
                }  # fmt: skip
                value = Linear(training, ((Gap(GRPO, step), -1.0),), learner.problem.optimum)
                yield Point(figure, f"K = {budget}, T = {step}", at, None, value)
    for name, constants in stages(learner, grid.rate, grid.steps[-1]).items():
        least = _curve(constants, optimal_group_size(constants))
        for size in np.geomspace(2, grid.group_sizes[-1], 40).tolist():
            at = {"panel": "predicted", "problem": learner.name, "group_size": size}
            yield Point(figure, name, at, _curve(constants, size) / least)
    if suite.on == "transformer":
        yield from optimizers.curves(suite)


def _curve(known: MseConstants, group_size: float) -> float:
    """K times the MSE at a budget K."""
    return known.c1 * group_size + known.c2 + known.c3 / (group_size - 1)
