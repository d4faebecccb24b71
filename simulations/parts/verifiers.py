"""Beyond 1 with changed rewards or advantages: a verifier with errors, and advantages that
are clipped.

A verifier accepts right answers at the rate a and wrong ones at the rate c. The mean is w(p̃)(a - c) g with
p̃ = c + (a - c) p: for leave-one-out a shorter gradient, for division by a deviation other weights too. Noise
and spread follow from moments of the verifier's verdicts, drawn or enumerated here with the outputs.

A table clipped at ±L is another table. At L <= 1/√G the weights with division by the deviation reverse
their order: a rarely solved prompt has a smaller weight than one of medium difficulty.

This module clips the estimator's advantages itself, so that the evidence is independent of predictions.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log, nan

import numpy as np

from ustat_pg.engines import Estimator, GradientCell, SquaredError, SquaredProjection
from ustat_pg.estimators import advantages
from ustat_pg.predictions import (
    count_table,
    gradient_covariance,
    gradient_mse,
    verified_moments,
    verifier_effect,
)
from ustat_pg.problems import SoftmaxBandit, verified

from ..evidence import Check, Linear, LogSlope, equal, mean_of
from ..problems import BanditEntry, Suite, mse_of
from ..shared.peers import scale, telling, weight_in

TRUE_RATE = "the true pass rate in w"
RIGHT_ALONE = "a for a - c"
SHORTER = "a verifier's errors shorten the step alone"
SMALLER = "cutting off is a smaller step"
ALIKE = "cut off, all prompts weigh alike"
RIVALS_ON_NETWORKS = (TRUE_RATE, RIGHT_ALONE, SHORTER)
RIVALS = (*RIVALS_ON_NETWORKS, SMALLER, ALIKE)

RIGHT, WRONG = 0.9, 0.3
"""a and c. They differ, so that neither can replace the other, and are far from a perfect verifier."""

GRPO, TABLE = Estimator("grpo"), "std-ddof1"

LARGE, SMALL, BATCH = 8, 4, 2
"""The group size at which prompts' weights differ clearly, and that of a minibatch for enumeration."""

SHARP = 0.03
"""The half-width of a mean's interval, as a share of one output; errors then need as many groups."""

TIGHT, LOOSE = 0.2, 1.0
"""Limits of advantages: one clips all advantages in groups of eight, one clips a few."""


def size(cell: GradientCell, advantage: float = 1.0, unit: np.ndarray | None = None) -> float:
    """The size of an error for advantages of that size, from scores only: E‖s‖², or E ⟨s, u⟩²."""
    policy = cell.problem.policy
    squares = policy.squared_norms if unit is None else policy.inner(unit) ** 2
    of_scores = float(cell.problem.context_probs @ (policy.probs * squares).sum(axis=1))
    return advantage**2 * of_scores / (cell.group_size * cell.batch_size)


def mean(
    entry: BanditEntry,
    cell: GradientCell,
    estimator: Estimator,
    what: str,
    vector: np.ndarray,
    rivals: dict[str, np.ndarray] | None = None,
    advantage: float = 1.0,
) -> Check:
    """E ĝ along a direction in which rivals differ; the tolerance is the size of one output's own part."""
    wrong = rivals or {}
    found = telling(cell.problem, [other - vector for other in wrong.values()] or [vector])
    part = (cell.group_size * size(cell, advantage, found.unit)) ** 0.5
    margins = {"scale": part, "relative_margin": SHARP}
    return found.check(entry, what, cell, estimator, vector, wrong, **margins)


def heard(entry: BanditEntry) -> Iterator[Check]:
    """Mean and error at the hardest prompt, and over several in a minibatch, with a verifier's verdicts."""
    hardest = int(rates(entry.problem).round(9).argmin())
    yield from at_one_prompt(entry.alone(hardest))
    yield from in_a_minibatch(entry)


def at_one_prompt(entry: BanditEntry) -> Iterator[Check]:
    moments, cell = entry.problem.moments(), GradientCell(verified_of(entry), LARGE)
    signal, along = RIGHT - WRONG, moments.weighted_gradient
    seen, what = verified_moments(moments, RIGHT, WRONG), f"G={LARGE}, verified"
    shorter = {SHORTER: signal**2 * gradient_mse(moments, "grpo", LARGE).mse}
    for name, errs, least in (("grpo", shorter, scale(cell, GRPO)), (TABLE, {}, size(cell))):
        effect = verifier_effect(moments, RIGHT, WRONG, name, LARGE)
        weight = count_table(name, LARGE).weight
        wrong = {RIGHT_ALONE: along(RIGHT * weight(WRONG + signal * moments.value))}
        if name == TABLE:
            wrong[TRUE_RATE] = along(signal * weight(moments.value))
        vector = along(effect.mean_factors)
        yield mean(entry, cell, Estimator(name), f"{what}: mean of {name}", vector, wrong)
        statement = equal(gradient_mse(seen, name, LARGE).mse, errs, scale=least)
        yield entry.check(f"{what}: error of {name}", mean_of(cell, mse_of(name)), statement)


def in_a_minibatch(entry: BanditEntry) -> Iterator[Check]:
    problem, moments = entry.problem, entry.problem.moments()
    sizes, what, words = (SMALL, BATCH), f"G={SMALL} B={BATCH}", verified_of(entry)
    cell = GradientCell(words, *sizes)
    effect = verifier_effect(moments, RIGHT, WRONG, TABLE, *sizes)
    vector = moments.weighted_gradient(effect.mean_factors)
    yield mean(entry, cell, Estimator(TABLE), f"{what}, verified: mean of {TABLE}", vector)
    seen = verified_moments(moments, RIGHT, WRONG)
    error = equal(gradient_mse(seen, TABLE, *sizes).mse, scale=size(cell))
    yield entry.check(f"{what}, verified: error of {TABLE}", mean_of(cell, mse_of(TABLE)), error)
    effect = verifier_effect(moments, RIGHT, WRONG, "grpo", *sizes)
    clean = gradient_mse(moments, "grpo", *sizes).mse / moments.mean_gradient_sq
    for how, of, value, wrong in (
        (", verified", words, effect.noise_to_signal, {SHORTER: clean}),
        ("", problem, effect.without_errors, {}),
    ):
        square, asked = float(of.gradient() @ of.gradient()), GradientCell(of, *sizes)
        yield entry.check(
            f"{what}{how}: noise over signal of grpo",
            Linear(asked, ((mse_of("grpo"), 1 / square),)),
            equal(nan if value is None else value, wrong, scale=scale(asked, GRPO) / square),
        )
    found = telling(words, [words.gradient()])
    spread = gradient_covariance(seen, "grpo", *sizes)
    yield entry.check(
        f"{what}, verified: spread of grpo along a direction",
        mean_of(cell, SquaredProjection(GRPO, found.number)),
        equal(found.along(spread @ found.unit), scale=scale(cell, GRPO, found.unit)),
    )


def rates(problem: SoftmaxBandit) -> np.ndarray:
    """The pass rates of prompts, by their outcomes, (X,)."""
    return np.asarray((problem.policy.probs * problem.mean_rewards).sum(axis=1))


def verified_of(entry: BanditEntry) -> SoftmaxBandit:
    return verified(entry.problem, RIGHT, WRONG)


def cut_off(name: str, group_size: int, limit: float) -> Estimator:
    """The estimator with advantages clipped at ±limit, computed for each number of successes."""
    groups = np.tri(group_size + 1, group_size, -1)
    kept = np.minimum(np.maximum(advantages(name, groups), -limit), limit)
    table = [*kept[1:, 0], *kept[:-1, -1]]
    return Estimator("count-table:" + ",".join(repr(float(number)) for number in table))


def cut(entry: BanditEntry) -> Iterator[Check]:
    """Mean and error with clipped advantages, and which of two prompts has the larger weight."""
    problem, moments = entry.problem, entry.problem.moments()
    cell, table = GradientCell(problem, LARGE), count_table(TABLE, LARGE)
    for limit in (TIGHT, LOOSE):
        what, estimator = f"G={LARGE}, cut off at {limit:g}", cut_off(TABLE, LARGE, limit)
        other = table.clipped(limit)
        vector = moments.weighted_gradient(other.weight(moments.value))
        yield mean(entry, cell, estimator, f"{what}: mean of {TABLE}", vector, advantage=limit)
        says = equal(gradient_mse(moments, other.estimator, LARGE).mse, scale=size(cell, limit))
        drawn = mean_of(cell, SquaredError(estimator))
        yield entry.check(f"{what}: error of {TABLE}", drawn, says)
    off = np.abs(rates(problem) - 0.5).round(9)
    places, estimator = (int(off.argmax()), int(off.argmin())), cut_off(TABLE, LARGE, TIGHT)
    kept, whole = (each.weight(moments.value[[*places]]) for each in (table.clipped(TIGHT), table))
    points = []
    for x in places:
        prompt = problem.restrict([x])
        number = telling(prompt, [prompt.gradient()]).number
        points.append(weight_in(GradientCell(prompt, LARGE), estimator, number))
    value, uncut = (log(first / second) for first, second in (kept, whole))
    yield entry.check(
        f"G={LARGE}, cut off at {TIGHT:g}: log weight of prompt {places[0]} over that of {places[1]}",
        LogSlope((1.0, 0.0), tuple(points), tuple(kept.tolist())),
        equal(value, {SMALLER: uncut, ALIKE: 0.0}, scale=1.0, relative_margin=1.0),
    )


def on_networks(suite: Suite) -> Iterator[Check]:
    """Two outputs of one token; with a verifier's verdicts there are four outcomes."""
    for entry in suite.winnable(SMALL):
        if entry.problem.arms == 2:
            yield from heard(entry)


def checks(suite: Suite) -> Iterator[Check]:
    """Problems of three prompts and rewards 0 and 1; their groups and verdicts can be enumerated."""
    for entry in suite.few_outcomes:
        yield from heard(entry)
        yield from cut(entry)
