"""Lemma 11: advantages over the group's standard deviation tend to the U-statistic with kernel h/σ(x).

The checks use single prompts with rewards 0 and 1 and pass rates away from ½. The distance to the
leave-one-out estimate divided by σ falls as 1/G, so there is a limit; it does not fall faster, so the two are
not equivalent at the scale √G. G times the distance is the value of the delta method. G times the error about
g/σ is tr Σ/σ² minus the gain from estimating the deviation. With graded rewards, one of them rare, that error
is checked exactly at a small G, and its limit is far above tr Σ/σ². The effect of a finite group on a limit
is removed by three doublings of a larger group (Richardson's rule), independently of the limit.

The claim is falsified by another slope, or by a scaled error that differs from its limit plus the effect of
the finite group; with graded rewards, by more than the change of the exact formula as the group doubles.

Cost: some millions of groups of up to 64.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ustat_pg.engines import Distance, Estimator, GradientCell
from ustat_pg.predictions import (
    count_table,
    gradient_mse,
    normalised_distance,
    normalised_error_of,
    normalised_limit,
    normalised_limit_of,
)
from ustat_pg.problems import SoftmaxBandit
from ustat_pg.validation import Array, changed

from .evidence import Check, Linear, equal, mean_of
from .problems import BanditEntry, Suite, mse_of
from .problems.tokens import lopsided
from .shared.margins import FAR_ORDER, LOOSE
from .shared.numerics import later_terms
from .shared.runs import GRPO

EQUIVALENT = "equivalent at the scale √G"
NO_LIMIT = "no limit: the deviation stays random"
NAIVE = "tr Σ/σ²: estimating σ costs nothing"
UNDIVIDED = "the limit is that of grpo itself"
BINARY = "graded rewards by the formula of 0 and 1"
OF_BINARY = (EQUIVALENT, NO_LIMIT, NAIVE, UNDIVIDED)
"""Rivals that prompts with rewards 0 and 1 can refute."""
RIVALS = (*OF_BINARY, BINARY)

STD = Estimator("std")
SMALL = 4
"""The group size at which the error with graded rewards is far from its limit."""

LARGE = 32
"""The group size that is used as a large one, with thousands of groups of three or four outcomes."""

LARGE_GRADED = 64
"""The large group size for graded rewards, with three outcomes, one of them rare."""


def distance(entry: BanditEntry, group_size: int) -> tuple[Linear, float]:
    """The measured quantity E‖ĝ_std - ĝ_grpo/σ‖², and its value at that G."""
    square = float(entry.problem.moments().reward_variance[0])
    limit = count_table("grpo", group_size).scaled(square**-0.5)
    apart = count_table("std", group_size).less(limit)
    cell = GradientCell(entry.problem, group_size)
    measured = mean_of(cell, Distance(STD, Estimator(limit.estimator)))
    return measured, float(apart.second_moments(entry.problem.moments())[0])


def error(entry: BanditEntry, group_size: int) -> tuple[Linear, float]:
    """The measured quantity G E‖ĝ_std - g/σ‖², and its value at that G.

    ‖ĝ - c g‖² = c ‖ĝ - g‖² + (1-c) ‖ĝ‖² + (c² - c) ‖g‖², and ‖ĝ‖ is the distance from the estimate 0.
    """
    moments = entry.problem.moments()
    c, square = float(moments.reward_variance[0]) ** -0.5, moments.mean_gradient_sq
    table = count_table("std", group_size)
    nothing = Estimator(table.scaled(0.0).estimator)
    terms = ((mse_of("std"), group_size * c), (Distance(STD, nothing), group_size * (1 - c)))
    cell = GradientCell(entry.problem, group_size)
    measured = Linear(cell, terms, group_size * (c * c - c) * square)
    mean = float(table.weight(moments.value)[0])
    value = float(table.second_moments(moments)[0]) + (c * c - 2 * c * mean) * square
    return measured, group_size * value


def checks(suite: Suite) -> Iterator[Check]:
    """Checks of the distance's slope, of both limits at single prompts, and of graded rewards."""
    for entry in suite.lopsided:
        yield from _binary(entry)
    for entry in suite.rare_rewards:
        yield from _graded(entry)


def _binary(entry: BanditEntry) -> Iterator[Check]:
    moments = entry.problem.moments()
    sizes = (LARGE // 4, LARGE // 2, LARGE)
    points, values = zip(*(distance(entry, size) for size in sizes), strict=True)
    yield entry.slope(
        f"G={sizes[0]} to {LARGE}: slope of the distance",
        np.log(sizes).tolist(),
        points,
        values,
        {EQUIVALENT: -2.0, NO_LIMIT: 0.0},
        relative_margin=FAR_ORDER,
    )
    few = sizes[0] // 2
    table = Estimator(count_table("grpo", few).estimator)
    yield entry.check(
        f"G={few}: grpo is its table",
        mean_of(GradientCell(entry.problem, few), Distance(GRPO, table)),
        equal(0.0, scale=gradient_mse(moments, "grpo", few).mse),
    )
    limit = float(normalised_distance(moments)[0])
    later, digits = later_terms(lambda size: size * distance(entry, size)[1], LARGE, 4)
    yield entry.check(
        f"G={LARGE}: distance",
        points[-1].times(LARGE),
        equal(limit + later, {EQUIVALENT: later}, digits=digits, relative_margin=LOOSE),
    )
    measured, _ = error(entry, LARGE)
    later, digits = later_terms(lambda size: error(entry, size)[1], LARGE, 4)
    sigma = float(moments.norm_squared_advantage[0] - moments.gradient_sq[0])
    naive = sigma / float(moments.reward_variance[0])
    wrong = {NAIVE: naive + later, UNDIVIDED: sigma + later}
    for what, limit in (
        ("", float(normalised_limit(moments)[0])),
        (", as of any rewards", normalised_limit_of(*outcomes(entry.problem))),
    ):
        statement = equal(limit + later, wrong, digits=digits)
        yield entry.check(f"G={LARGE}: error about g/σ{what}", measured, statement)


def graded_error(entry: BanditEntry, group_size: int) -> tuple[Linear, float]:
    """The measured quantity G E‖ĝ_std - g/σ‖² at a prompt with any rewards, and its value at that G.

    Rewards divided by σ have the same standardised advantages and the gradient g/σ, from which the error is
    measured.
    """
    problem = entry.problem
    deviation = float(problem.moments().reward_variance[0]) ** 0.5
    scaled = changed(problem, reward_values=problem.reward_values / deviation)
    measured = Linear(GradientCell(scaled, group_size), ((mse_of("std"), group_size),))
    return measured, normalised_error_of(*outcomes(problem), group_size)


def outcomes(problem: SoftmaxBandit) -> tuple[Array, Array, Array]:
    """Probabilities, rewards and scores of the outcomes of one rollout at a problem's only prompt."""
    lists = problem.outcomes
    return lists.probs[0], lists.rewards[0], problem.policy.scores(0)[lists.arms[0]]


def graded_lines(entry: BanditEntry) -> tuple[float, dict[str, float]]:
    """The limit of that error, and the rivals' values."""
    moments = entry.problem.moments()
    square, value = float(moments.reward_variance[0]), float(moments.value[0])
    naive = float(moments.norm_squared_advantage[0] - moments.gradient_sq[0]) / square
    bent = 0.75 * moments.mean_gradient_sq * (1 - 2 * value) ** 2 / square**2
    return normalised_limit_of(*outcomes(entry.problem)), {NAIVE: naive, BINARY: naive - bent}


def _graded(entry: BanditEntry) -> Iterator[Check]:
    for size in (SMALL, 2 * SMALL):
        measured, value = graded_error(entry, size)
        yield entry.check(f"G={size}: error about g/σ", measured, equal(value))
    limit, wrong = graded_lines(entry)
    measured, value = graded_error(entry, LARGE_GRADED)
    later, _ = later_terms(lambda size: graded_error(entry, size)[1], LARGE_GRADED, 2, doublings=3)
    # Smaller groups may lack the rare reward, so doublings do not show the error: the tolerance is the whole
    # excess of the largest size over the limit.
    beyond = graded_error(entry, 8 * LARGE_GRADED)[1] - (value - later)
    wrong = {rival: limit + later for rival, limit in wrong.items()}
    statement = equal(limit + later, wrong, digits=abs(beyond))
    yield entry.check(f"G={LARGE_GRADED}: error about g/σ", measured, statement)


RIVALS_ON_NETWORKS = OF_BINARY


def on_networks(suite: Suite) -> Iterator[Check]:
    """The checks of the distance's slope and of both limits, at prompts with enumerable large groups."""
    for entry in lopsided(suite.on, suite.generated, suite.seed, suite.dense):
        yield from _binary(entry)
