"""Lemma 1: the grpo gradient is the U-statistic of order 2 with kernel ½ (s₁ - s₂)(z₁ - z₂).

An algebraic identity, so it is checked sample by sample: on every group that can occur, and on
drawn ones with larger G, grpo as trainers compute it must equal the U-statistic computed by the
definition, its O(G d) form, and the sum of its Hoeffding parts; and g + first part must equal the
oracle. One group that differs by more than rounding falsifies it.

That the parts are uncorrelated is a statement about means: MSE(grpo) = MSE(oracle) + E‖second‖².

Cost: seconds; the definition's loop over pairs is most of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from ustat_pg.checks import equal
from ustat_pg.engines import Distance, Draws, Estimator, GradientCell
from ustat_pg.engines.gradients import exact, reference
from ustat_pg.experiment import Claim, EverySample, Linear, Point, mean_of
from ustat_pg.experiment.formulas import FormulaDistance, Groups
from ustat_pg.predictions import gradient_mse
from ustat_pg.ustatistics import covariance_ustatistic

from .problems import Suite, mse_of
from .problems.bandits import prompts

Array = NDArray[np.float64]
Formula = Callable[[Array, Array], Array]

STEM = "ustatistic"

ROUNDING = 1e-13
"""The root mean square of differences that are rounding, relative to the largest score times the
largest reward: a single group of a hundred that is off by 1e-12 is refused.
"""

RIGHT = (
    ("grpo", "U-statistic"),
    ("grpo", "U-statistic in O(G d)"),
    ("grpo", "g + first + second"),
    ("oracle", "g + first"),
)
"""Each estimator with a formula that it is, group by group."""

FIRST_PART = "g + first part only"


def _kernel(h: Callable[[Array, Array, Array, Array], Array]) -> Formula:
    """The mean of h(s₁, z₁, s₂, z₂) over pairs of outputs, the earlier one first."""

    def formula(scores: Array, rewards: Array) -> Array:
        i, j = np.triu_indices(rewards.shape[1], 1)
        z = rewards[..., None]
        return np.asarray(h(scores[:, i], z[:, i], scores[:, j], z[:, j]).mean(axis=1))

    return formula


def _v_statistic(scores: Array, rewards: Array) -> Array:
    """All pairs of outputs, each with itself too."""
    z = rewards[..., None]
    pairs = (scores[:, :, None] - scores[:, None]) * (z[:, :, None] - z[:, None])
    return np.asarray(0.5 * pairs.mean(axis=(1, 2)))


def _normalised(scores: Array, rewards: Array) -> Array:
    """The U-statistic over the group's standard deviation; 0 where that is 0."""
    spread = rewards.std(axis=1, keepdims=True)
    value = covariance_ustatistic(scores, rewards)
    return np.where(spread > 0, value / np.where(spread > 0, spread, 1.0), 0.0)


WRONG: dict[str, Formula] = {
    "V-statistic": _v_statistic,
    "kernel without 1/2": _kernel(lambda s, z, t, y: (s - t) * (z - y)),
    "kernel s1 z1": _kernel(lambda s, z, t, y: (s * z + t * y) / 2),
    # Not symmetric: the order of the group matters.
    "kernel (s1 - s2)(z1 + z2)/2": _kernel(lambda s, z, t, y: (s - t) * (z + y) / 2),
    "std-normalised": _normalised,
}
"""The rivals' formulas, from scores (n, G, d) and rewards (n, G) to (n, d)."""

ENUMERATED_NUMBERS = 20_000_000
"""Scores' entries, over all groups, up to which a rival's distance is enumerated; else, over those
that are drawn in their place."""


def _groups(cell: Groups) -> Iterator[tuple[Draws, Array]]:
    """Every group with its chance; where there are too many, drawn ones in equal shares."""
    entries = cell.group_size**2 * cell.problem.d
    if exact.size(cell, tuples=True) * entries <= ENUMERATED_NUMBERS:
        yield from exact.minibatches(cell, tuples=True)
    else:
        drawn = min(cell.block, max(ENUMERATED_NUMBERS // entries, 1))
        draws = reference.draw(cell, seed=0, first=0, replications=drawn)
        yield draws, np.full(drawn, 1 / drawn)


def rivals(cell: Groups) -> dict[str, float]:
    """What each rival says of E‖ĝ - U‖²: the distance of its own formula from the U-statistic."""
    said = dict.fromkeys(WRONG, 0.0)
    for draws, chance in _groups(cell):
        scores, rewards = cell.groups(draws)
        right = covariance_ustatistic(scores, rewards)
        for name, formula in WRONG.items():
            apart = (formula(scores, rewards) - right) / cell.scale
            said[name] += float(chance @ (apart**2).sum(axis=-1))
    second = gradient_mse(cell.problem.moments(), "grpo", cell.group_size).second_order_term
    return {**said, FIRST_PART: second / cell.scale / cell.scale}


def claim(suite: Suite) -> Claim:
    """The identities on single prompts, every group where there are few, drawn groups everywhere."""
    checks = []
    for entry in suite.single_prompts:
        for group_size in dict.fromkeys((*suite.group_sizes[:3], 3)):
            groups = Groups(entry.problem, group_size)
            for estimator, formula in RIGHT:
                distance = FormulaDistance(Estimator(estimator), formula)
                every = EverySample(groups, ((distance, 1.0),), limit=ROUNDING**2)
                wrong = rivals(groups) if formula == "U-statistic" else {}
                statement = equal(0.0, wrong, scale=0.0)
                checks.append(
                    entry.check(f"G={group_size}: {estimator} = {formula}", every, statement)
                )
        cell = GradientCell(entry.problem, 2)
        second = Distance(Estimator("grpo"), Estimator("oracle"))
        weights = ((mse_of("grpo"), 1.0), (mse_of("oracle"), -1.0), (second, -1.0))
        scale = gradient_mse(entry.problem.moments(), "grpo", 2).mse
        nothing = equal(0.0, scale=scale)
        checks.append(entry.check("G=2: parts uncorrelated", Linear(cell, weights), nothing))
    return Claim(STEM, (*WRONG, FIRST_PART), tuple(checks))


def curves(suite: Suite) -> Iterator[Point]:
    """The two parts of grpo's error against G: what the oracle has too, and what it has not."""
    for entry, _ in suite.shown:
        problem = prompts(entry, 1)[0].problem
        moments = problem.moments()
        for group_size in suite.curve_sizes:
            predicted, cell = (
                gradient_mse(moments, "grpo", group_size),
                GradientCell(problem, group_size),
            )
            at = {"problem": entry.name, "group_size": group_size}
            second = Distance(Estimator("grpo"), Estimator("oracle"))
            for part, value, quantity in (
                ("first", predicted.first_order_term, mse_of("oracle")),
                ("second", predicted.second_order_term, second),
                ("grpo", predicted.mse, mse_of("grpo")),
            ):
                yield Point("parts", part, at, value, mean_of(cell, quantity))
