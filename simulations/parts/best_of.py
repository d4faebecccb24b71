"""Beyond 1 with graded rewards: the best of k, as the sum over thresholds of the reward of pass@k.

The mean of ``pass-at-k`` and ``gain-at-k`` is the gradient of the expected greatest of k rewards. Their
error is exact at every group size, from pairs of thresholds. G times the noise tends to a covariance that
depends on the number to which the baseline tends. The effect of a finite group on this limit is removed by
doublings of a larger group (Richardson's rule), independently of the limit.

Falsified by an enumerated mean or error that differs by more than rounding, or a scaled error that differs
from its limit plus the effect of the finite group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ustat_pg.engines import Estimator
from ustat_pg.moments.record import RewardLevels
from ustat_pg.predictions import (
    CountTable,
    best_max_baseline,
    best_of_limit,
    count_table,
    expected_best,
    graded_mse,
    gradient_mse,
)
from ustat_pg.problems import SoftmaxBandit
from ustat_pg.validation import Array, changed

from ..engines import GradedCell
from ..evidence import Check, Linear, equal, mean_of
from ..problems import BanditEntry, Suite, mse_of
from ..shared.numerics import later_terms
from ..shared.peers import telling

MEAN_REWARD = "max@k climbs the mean reward"
TOP = "max@k is pass@k of the highest reward"
UNSCALED = "max@k without the factor k"
FROZEN = "leave-one-out on the frozen reward kψ"
APART = "thresholds are uncorrelated"
WITHOUT = "max@k without a baseline"
OTHER = "the limit is the same with every baseline"
LEAST = "E max of k is the best number"
RIVALS = (MEAN_REWARD, TOP, UNSCALED, FROZEN, APART, WITHOUT, OTHER, LEAST)

K = 2
"""The number of attempts; with more, more terms are alike."""

SMALL, LARGE = 4, 16
"""The group size of means and errors, and the one from which the limit is within reach."""

FIRST, DOUBLINGS = 4, 3
"""The larger groups of Richardson's rule: the first over the large one, and how often it doubles."""


def checks(suite: Suite) -> Iterator[Check]:
    """Means and errors over several prompts; errors and limits at single prompts of three rewards."""
    for entry in (suite.repeated, *suite.repeats()):
        yield from means(entry)
        yield from errors(entry)
    for entry in suite.rare_rewards:
        yield from limits(entry)


def names(k: int = K) -> tuple[str, str]:
    """The two estimators, which differ in the baseline."""
    return f"pass-at-k:{k}", f"gain-at-k:{k}"


def squared_bias(problem: SoftmaxBandit, vector: Array) -> float:
    """‖E ĝ - ∇J‖², which an error about ∇J has beside the noise."""
    return float(np.sum((vector - problem.gradient()) ** 2))


def means(entry: BanditEntry) -> Iterator[Check]:
    problem, levels = entry.problem, entry.problem.reward_levels()
    cell, top = GradedCell(problem, SMALL), levels.probs[:, -1]
    for name in names():
        vector = graded_mse(levels, name, SMALL).mean
        reach = np.ptp(levels.values) * count_table(name, SMALL).weight(top)
        wrong = {
            MEAN_REWARD: problem.gradient(),
            TOP: (levels.context_probs * reach) @ levels.scores[:, -1],
            UNSCALED: vector / K,
        }
        direction = telling(problem, (other - vector for other in wrong.values()))
        what = f"G={SMALL}: mean of {name}"
        yield direction.check(entry, what, cell, Estimator(name), vector, wrong)


def errors(entry: BanditEntry) -> Iterator[Check]:
    """Errors about ∇J, of one prompt in a step and of two."""
    levels = entry.problem.reward_levels()
    for name, batch in ((names()[0], 1), (names()[1], 1), (names()[0], 2)):
        found = graded_mse(levels, name, SMALL, batch)
        bias = squared_bias(entry.problem, found.mean)
        wrong = wrong_noise(entry.problem, levels) if (name, batch) == (names()[0], 1) else {}
        sizes = f"G={SMALL}" if batch == 1 else f"G={SMALL} B={batch}"
        yield entry.check(
            f"{sizes}: graded error of {name}",
            mean_of(GradedCell(entry.problem, SMALL, batch), mse_of(name)),
            equal(found.variance + bias, {rival: one + bias for rival, one in wrong.items()}),
        )


def wrong_noise(problem: SoftmaxBandit, levels: RewardLevels) -> dict[str, float]:
    """The wrong values of the noise of ``pass-at-k``."""
    name, (rho, steps) = names()[0], (levels.context_probs, np.diff(levels.values))
    alone = sum(
        step**2 * graded_mse(at_threshold(levels, place + 1), name, SMALL).second_moment
        for place, step in enumerate(steps)
    )
    length = float(np.sum(graded_mse(levels, name, SMALL).mean ** 2))
    return {
        FROZEN: gradient_mse(frozen(problem).moments(), "grpo", SMALL).mse,
        APART: float(rho @ alone) - length,
        WITHOUT: graded_mse(levels, without_baseline(SMALL), SMALL).variance,
    }


def at_threshold(levels: RewardLevels, place: int) -> RewardLevels:
    """The levels of the reward 1{z ≥ v}."""
    parts = {
        part: np.stack(
            [getattr(levels, part)[:, :place].sum(1), getattr(levels, part)[:, place:].sum(1)],
            axis=1,
        )
        for part in ("probs", "squares", "scores")
    }
    return RewardLevels(levels.context_probs, np.array([0.0, 1.0]), **parts)


def frozen(problem: SoftmaxBandit) -> SoftmaxBandit:
    """The problem with the rewards kψ(z), ψ the mean greatest of z and one other reward."""
    levels = problem.reward_levels()
    best = np.einsum(
        "xkrl,xl->xkr", np.maximum(problem.reward_values[..., None], levels.values), levels.probs
    )
    return changed(problem, reward_values=K * best)


def without_baseline(group_size: int) -> CountTable:
    """The advantages k times the mean greatest of the subsets with the output, and nothing subtracted."""
    n = np.arange(group_size + 1)
    return CountTable(np.full(group_size + 1, float(K)), K * np.minimum(n / (group_size - 1), 1.0))


def limits(entry: BanditEntry) -> Iterator[Check]:
    """G times the noise of each estimator, and the best number from the difference of the two."""
    problem, levels = entry.problem, entry.problem.reward_levels()
    cell = GradedCell(problem, LARGE)
    single = frozen(problem).moments()
    numbers = [float(expected_best(levels, of)[0]) for of in (K, K - 1)]
    limit = [float(best_of_limit(levels, K, c)[0]) for c in numbers]

    def noise_of(name: str) -> Callable[[int], float]:
        return lambda size: size * graded_mse(levels, name, size).variance

    noises = [noise_of(name) for name in names()]

    bias = squared_bias(problem, graded_mse(levels, names()[0], LARGE).mean)
    for place, name in enumerate(names()):
        later, digits = later_terms(noises[place], LARGE, FIRST, doublings=DOUBLINGS)
        wrong = {WITHOUT: float(best_of_limit(levels, K, 0.0)[0]), OTHER: limit[1 - place]}
        if place == 0:
            wrong[FROZEN] = float(single.norm_squared_advantage[0] - single.gradient_sq[0])
        yield entry.check(
            f"G={LARGE}: limit of {name}",
            Linear(cell, ((mse_of(name), LARGE),), -LARGE * bias),
            equal(
                limit[place] + later,
                {rival: one + later for rival, one in wrong.items()},
                digits=digits,
            ),
        )
    # Noise is quadratic in the number c, so that two noises give the c where it is least.
    share = 1 / (2 * K**2 * float(levels.squares.sum()) * (numbers[1] - numbers[0]))

    def between(size: int) -> float:
        return sum(numbers) / 2 - share * (noises[1](size) - noises[0](size))

    later, digits = later_terms(between, LARGE, FIRST, doublings=DOUBLINGS)
    terms = ((mse_of(names()[1]), -share * LARGE), (mse_of(names()[0]), share * LARGE))
    yield entry.check(
        f"G={LARGE}: the best number",
        Linear(cell, terms, sum(numbers) / 2),
        equal(
            float(best_max_baseline(levels, K)[0]) + later,
            {LEAST: numbers[0] + later},
            digits=digits,
        ),
    )
