"""Lemma 1: the grpo gradient is the U-statistic of order 2 with kernel ½ (s₁ - s₂)(z₁ - z₂).

This is an algebraic identity, so it is checked sample by sample: on every possible group in every order, and
    on drawn groups up to G = 16. grpo as trainers compute it must equal the U-statistic computed by the
    definition, its O(G d) form, and the sum of its Hoeffding parts; and g + first part must equal the oracle.
    One group that differs by more than rounding falsifies it.

The parts are those of Hoeffding's decomposition: h₁ = ½ (s a + g), output by output; E[h₂ | one output] = 0.
In the mean they are uncorrelated: MSE(grpo) = MSE(oracle) + E‖second‖². The terms of the second part are
uncorrelated too: E⟨h₂(1,2), h₂(1,3)⟩ = 0, and E‖second‖² is E‖h₂‖² divided by the number of pairs.

With the full group's mean as baseline the estimate is (G-1)/G times grpo, group by group: at a rate G/(G-1)
times as large its steps, and its whole path, are those of grpo.

Cost: seconds; the definition's loop over pairs is most of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np

from ustat_pg.engines import Distance, Draws, Estimator, GradientCell
from ustat_pg.engines.gradients import exact, reference
from ustat_pg.predictions import gradient_mse
from ustat_pg.ustatistics import covariance_ustatistic, covariance_variance_components
from ustat_pg.validation import Array

from .evidence import Check, EverySample, Extrapolation, Linear, equal, mean_of
from .evidence.formulas import FormulaDistance, Groups
from .problems import BanditEntry, Suite, mse_of
from .shared.margins import COARSE
from .shared.peers import scale
from .shared.runs import GRPO, ORACLE, VANILLA

Formula = Callable[[Array, Array], Array]

ROUNDING = 1e-13
"""The root mean square of differences that rounding explains, relative to the largest score times the largest
reward; one group in a hundred that differs by 1e-12 is detected.
"""

GIVEN_ONE = "U-statistic + E[h2 | one output]"

MOST_GROUPS = 5000
"""The number of ordered groups over which an estimated variance is summed."""

LARGEST_LAW = 100
"""The largest number of entries of all outcomes' scores for the check of E[h₂ | one output], which loops over
them.
"""

RIGHT = (
    ("grpo", "U-statistic"),
    ("grpo", "U-statistic in O(G d)"),
    ("grpo", "g + first + second"),
    ("oracle", "g + first"),
    ("grpo", GIVEN_ONE),
)
"""Each estimator with a formula that it equals, group by group."""

ONE_OUTPUT = (("oracle", "mean of 2 h1 - g"),)
SHORT = "group-mean", "(G-1)/G U-statistic"
"""The estimators and formulas for a single output, and for the full group's mean as baseline."""

FIRST_PART = "g + first part only"
SHARED = "pairs that share an output are correlated"

SIZES = {1: ONE_OUTPUT, 2: RIGHT, 3: (*RIGHT[:4], SHORT), 8: RIGHT[:2], 16: RIGHT[:2]}
"""The group sizes with their checks: h₁ for a single output; no parts in large groups, because these take
long.
"""

CORRELATION = 0.5
"""The rival's correlation of two terms of the second part with a common output."""


def _kernel(h: Callable[[Array, Array, Array, Array], Array]) -> Formula:
    """The mean of h(s₁, z₁, s₂, z₂) over pairs of outputs, with the earlier output first."""

    def formula(scores: Array, rewards: Array) -> Array:
        i, j = np.triu_indices(rewards.shape[1], 1)
        z = rewards[..., None]
        return np.asarray(h(scores[:, i], z[:, i], scores[:, j], z[:, j]).mean(axis=1))

    return formula


def _v_statistic(scores: Array, rewards: Array) -> Array:
    """All pairs of outputs, including each output with itself."""
    z = rewards[..., None]
    pairs = (scores[:, :, None] - scores[:, None]) * (z[:, :, None] - z[:, None])
    return np.asarray(0.5 * pairs.mean(axis=(1, 2)))


def _normalised(scores: Array, rewards: Array) -> Array:
    """The U-statistic divided by the group's standard deviation; 0 if that is 0."""
    spread = rewards.std(axis=1, keepdims=True)
    return covariance_ustatistic(scores, rewards) * (spread > 0) / (spread + (spread == 0))


WRONG: dict[str, Formula] = {
    "V-statistic": _v_statistic,
    "kernel without 1/2": _kernel(lambda s, z, t, y: (s - t) * (z - y)),
    "kernel s1 z1": _kernel(lambda s, z, t, y: (s * z + t * y) / 2),
    # It is not symmetric: the order of the group matters.
    "kernel (s1 - s2)(z1 + z2)/2": _kernel(lambda s, z, t, y: (s - t) * (z + y) / 2),
    "std-normalised": _normalised,
}
"""The rivals' formulas, from scores (n, G, d) and rewards (n, G) to (n, d)."""

ENUMERATED_NUMBERS = 200_000
"""The largest number of scores' entries over all groups for enumerating a rival's distance, and the number
over drawn groups otherwise.
"""


def _groups(cell: Groups) -> Iterator[tuple[Draws, Array]]:
    """Every group with its probability; if there are too many, drawn groups with equal weights."""
    entries = cell.group_size**2 * cell.problem.d
    if exact.size(cell, tuples=True) * entries <= ENUMERATED_NUMBERS:
        yield from exact.minibatches(cell, tuples=True)
    else:
        drawn = min(cell.block, max(ENUMERATED_NUMBERS // entries, 1))
        draws = reference.draw(cell, seed=0, first=0, replications=drawn)
        yield draws, np.full(drawn, 1 / drawn)


def rivals(cell: Groups) -> dict[str, float]:
    """Each rival's E‖ĝ - U‖², the distance of its formula from the U-statistic."""
    distances = dict.fromkeys(WRONG, 0.0)
    for draws, chance in _groups(cell):
        scores, rewards = cell.groups(draws)
        right = covariance_ustatistic(scores, rewards)
        for name, formula in WRONG.items():
            apart = (formula(scores, rewards) - right) / cell.scale
            distances[name] += float(chance @ (apart**2).sum(axis=-1))
    second = gradient_mse(cell.problem.moments(), "grpo", cell.group_size).second_order_term
    return {**distances, FIRST_PART: second / cell.scale / cell.scale}


RIVALS = (*WRONG, FIRST_PART, SHARED)


def checks(suite: Suite) -> Iterator[Check]:
    """Checks of the identities on single prompts, on every group if there are few, and on drawn groups."""
    for entry in suite.single_prompts:
        for group_size, right in SIZES.items():
            groups = Groups(entry.problem, group_size)
            for estimator, formula in right:
                if formula == GIVEN_ONE and groups.law[0].size > LARGEST_LAW:
                    continue
                distance = FormulaDistance(Estimator(estimator), formula)
                every = EverySample(groups, ((distance, 1.0),), limit=ROUNDING**2)
                wrong = rivals(groups) if formula == "U-statistic" and group_size < 4 else {}
                statement = equal(0.0, wrong, scale=0.0)
                yield entry.check(f"G={group_size}: {estimator} = {formula}", every, statement)
        yield from _uncorrelated(entry)
        yield _shared(entry)
        yield from _estimated(entry)


def _estimated(entry: BanditEntry) -> Iterator[Check]:
    """The checks that the variance which a group of four estimates for its U-statistic has grpo's error as
    mean over all groups.
    """
    outcomes, size = entry.problem.outcomes, 4
    probs = outcomes.probs[0]
    if len(probs) ** size > MOST_GROUPS:
        return
    ways = np.array(list(product(range(len(probs)), repeat=size)))
    scores = entry.problem.policy.scores(0)[outcomes.arms[0]]
    estimates = covariance_variance_components(scores[ways], outcomes.rewards[0][ways])
    parts = 2 * (2 * (size - 2) * estimates.zeta_1 + estimates.zeta_2) / (size * (size - 1))
    cell = GradientCell(entry.problem, size)
    for what, variances in (("variance", estimates.variance), ("parts, put together", parts)):
        value = float(probs[ways].prod(axis=1) @ variances.sum(axis=-1))
        statement = equal(value, scale=scale(cell, GRPO), relative_margin=COARSE)
        name = f"G={size}: mean of the estimated {what}"
        yield entry.check(name, mean_of(cell, mse_of("grpo")), statement)


SECOND = Distance(GRPO, ORACLE)


def _uncorrelated(entry: BanditEntry) -> Iterator[Check]:
    """The checks that the parts are uncorrelated, so their errors add up; and that the terms of the second
    part are uncorrelated, so its square falls with the number of pairs.
    """
    for cell in (GradientCell(entry.problem, group_size) for group_size in (2, 3)):
        weights = ((mse_of("grpo"), 1.0), (mse_of("oracle"), -1.0), (SECOND, -1.0))
        nothing = equal(0.0, scale=scale(cell, GRPO), relative_margin=COARSE)
        what = f"G={cell.group_size}: parts uncorrelated"
        yield entry.check(what, Linear(cell, weights), nothing)
    cell = GradientCell(entry.problem, 8)
    second = gradient_mse(entry.problem.moments(), "grpo", 8).second_order_term
    # A pair has one output in common with 2 (G - 2) of the other pairs.
    wrong = {SHARED: second * (1 + CORRELATION * 2 * (8 - 2))}
    statement = equal(second, wrong, scale=scale(cell, VANILLA) / (8 - 1), relative_margin=COARSE)
    yield entry.check("G=8: pairs uncorrelated", mean_of(cell, SECOND), statement)


def _shared(entry: BanditEntry) -> Check:
    """E⟨h₂(1,2), h₂(1,3)⟩: E‖second‖² is E‖h₂‖² at G = 2, and at G = 3 one third of that plus two thirds of
    this correlation.
    """
    moments = entry.problem.moments()
    three, two = (gradient_mse(moments, "grpo", size).second_order_term for size in (3, 2))
    cells = [GradientCell(entry.problem, group_size) for group_size in (3, 2)]
    wrong, size = {SHARED: CORRELATION * two}, scale(cells[1], VANILLA)
    return entry.check(
        "E<h2(1,2), h2(1,3)>",
        Extrapolation(tuple(mean_of(cell, SECOND) for cell in cells), (1.5, -0.5)),
        equal(1.5 * three - 0.5 * two, wrong, scale=size, relative_margin=COARSE),
    )
