"""Beyond the paper: with rewards 0 and 1 every critic-free estimator is a table by the number of
successes in its group, and its mean, weight w(p) and MSE are closed forms at every group size.

The checks use single prompts, and several prompts of unequal pass rates and probabilities. They cover the MSE
of the estimators in use, one also in a minibatch; their noise relative to the length of their own mean; their
mean and spread along a direction; and the mean under dynamic sampling, which is the mean of all groups
divided by the kept share. :mod:`~simulations.parts.verifiers` has rewards of a verifier with errors, and
clipped advantages; :mod:`~simulations.parts.best_of` has graded rewards and the best of k.

Falsified by an enumerated mean or MSE that differs by more than rounding, or a simulated one whose
interval misses. At G = 2 and 3 the normalised estimator is a rescaled leave-one-out: larger groups
tell them apart.

Cost: a few million groups for the nearest rivals.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ustat_pg.engines import Distance, Estimator, GradientCell, Mixed, SquaredProjection
from ustat_pg.moments.record import Moments
from ustat_pg.predictions import (
    count_table,
    frac_reward_zero_std,
    gradient_covariance,
    gradient_mse,
    mean_gradient,
)
from ustat_pg.validation import Array, changed

from .evidence import Check, Linear, Ratio, equal, mean_of
from .parts import best_of, verifiers
from .problems import BanditEntry, Suite, mse_of
from .shared.peers import error_of, mean_in, telling

ARCSINE = "arcsine weight at finite G"
ORDER = "MaxRL of order G"
OWN_REWARD = "mean with the own reward is unbiased"
PASS_RATE = "pass@k climbs the pass rate"
DDOF = "ddof makes no difference"
RESCALED = "std is a rescaled leave-one-out"
UNCORRELATED = "outputs of a group are uncorrelated"
REWEIGHTS = "dynamic sampling reweights prompts"
UNCHANGED = "dynamic sampling changes no mean"
OTHER_SIGNAL = "noise against the gradient, not the mean"
OF_TABLES = (
    *(ARCSINE, ORDER, OWN_REWARD, PASS_RATE, DDOF),
    *(RESCALED, UNCORRELATED, REWEIGHTS, UNCHANGED, OTHER_SIGNAL),
)
RIVALS = (*OF_TABLES, *verifiers.RIVALS, *best_of.RIVALS)
RIVALS_ON_NETWORKS = (*OF_TABLES, *verifiers.RIVALS_ON_NETWORKS)

ESTIMATORS = ("std", "std-ddof1", "group-mean", "others-std", "maxrl", "pass-at-k:2", "bayes:1,1")
"""The estimators with checked errors, with their numbers."""

NOISY = ("std", "maxrl")
"""The estimators with checked noise-to-signal, because their mean is longest."""

SPREAD = ("others-std", "pass-at-k:2")
"""The estimators with checked covariance, because their weights differ most between prompts."""

LEAST_COSINE = 0.1
"""The least cosine of mean and gradient for which a ratio with their product has an interval."""

MOST_PARAMETERS = 1_000
"""The number of parameters of the largest problem with a checked covariance matrix."""

SMALL = 4
"""The group size for checks of means; in larger groups MaxRL's orders G and G-1 are nearly equal."""


def wrong_weights(p: Array, group_size: int) -> dict[str, dict[str, Array]]:
    """The wrong weights w(p) of estimators, by the estimator's name."""
    q = 1 - p
    inside = np.where((p > 0) & (q > 0), p * q, 0.25)
    return {
        "std": {ARCSINE: 1 / np.sqrt(inside)},
        "std-ddof1": {DDOF: count_table("std", group_size).weight(p)},
        "group-mean": {OWN_REWARD: np.ones_like(p)},
        "maxrl": {ORDER: (1 - q**group_size) / np.where(p > 0, p, 1.0)},
        "pass-at-k:2": {PASS_RATE: np.ones_like(p)},
    }


def wrong_errors(m: Moments, name: str, group_size: int) -> dict[str, float]:
    """The wrong values of an estimator's MSE at one prompt."""
    predicted = gradient_mse(m, name, group_size)
    w, square = float(predicted.mean_factor[0]), m.mean_gradient_sq
    alone = count_table(name, group_size).second_moments(changed(m, gradient_sq=0 * m.gradient_sq))
    wrong = {UNCORRELATED: float(alone[0]) - w**2 * square / group_size + predicted.squared_bias}
    if name == "std":
        rloo = gradient_mse(m, "grpo", group_size).mse
        wrong[RESCALED] = w**2 * rloo + predicted.squared_bias
    return wrong


def checks(suite: Suite) -> Iterator[Check]:
    """The checks of errors at single prompts and of means over several prompts."""
    sizes = suite.sized((8,), (4, 8), (2, 3, 4, 8, 16), (2, 3, 4, 8, 16, 64, 256))
    for entry in suite.binary_prompts:
        for group_size in sizes:
            yield from errors(entry, group_size)
            yield from noise(entry, group_size)
    for entry in suite.unequal_rates:
        yield from means(entry, SMALL)
        yield alone(entry, SMALL)
        yield from noise(entry, SMALL)
    yield from verifiers.checks(suite)
    yield from best_of.checks(suite)


def errors(entry: BanditEntry, group_size: int) -> Iterator[Check]:
    moments, cell = entry.problem.moments(), GradientCell(entry.problem, group_size)
    for name in ESTIMATORS:
        wrong = wrong_errors(moments, name, group_size)
        yield error_of(entry, f"G={group_size}: {name}", cell, name, wrong)


def alone(entry: BanditEntry, group_size: int) -> Check:
    """The MSE at the first of several prompts, from the moments of all."""
    name, cell = ESTIMATORS[0], GradientCell(entry.problem.restrict([0]), group_size)
    value = gradient_mse(entry.problem.moments().at(0), name, group_size).mse
    what = f"G={group_size}: error of {name} at one prompt"
    return entry.check(what, mean_of(cell, mse_of(name)), equal(value))


def noise(entry: BanditEntry, group_size: int) -> Iterator[Check]:
    """E‖ĝ‖² / E⟨ĝ, g⟩, which is (1 + noise-to-signal) ‖E ĝ‖ / (‖g‖ cosine)."""
    moments, cell = entry.problem.moments(), GradientCell(entry.problem, group_size)
    square = moments.mean_gradient_sq
    for name in NOISY:
        predicted = gradient_mse(moments, name, group_size)
        ratio, cosine = predicted.noise_to_signal, predicted.cosine
        if ratio is None or cosine is None or cosine < LEAST_COSINE:
            continue
        times = float(np.linalg.norm(mean_gradient(moments, name, group_size))) / square**0.5
        nothing = Estimator(count_table(name, group_size).scaled(0.0).estimator)
        length = Distance(Estimator(name), nothing)
        # 2 ⟨ĝ, g⟩ = ‖ĝ‖² - ‖ĝ - g‖² + ‖g‖².
        along = Linear(cell, ((length, 0.5), (mse_of(name), -0.5)), square / 2)
        wrong = {OTHER_SIGNAL: (1 + times**2 * ratio) * times / cosine}
        yield entry.check(
            f"G={group_size}: noise-to-signal of {name}",
            Ratio(mean_of(cell, length), along, times * cosine * square),
            equal((1 + ratio) * times / cosine, wrong),
        )


def means(entry: BanditEntry, group_size: int) -> Iterator[Check]:
    """The means over several prompts, with and without dynamic sampling; their spread and MSE."""
    problem, moments = entry.problem, entry.problem.moments()
    cell = GradientCell(problem, group_size)
    gradients, wrong = moments.weighted_gradient, wrong_weights(moments.value, group_size)
    direction = telling(
        problem,
        (
            gradients(weight) - mean_gradient(moments, name, group_size)
            for name, weights in wrong.items()
            for weight in weights.values()
        ),
    )
    along, number = direction.along, direction.number
    for name in ESTIMATORS:
        vector = mean_gradient(moments, name, group_size)
        mean, what = along(vector), f"G={group_size}: mean of {name}"
        others = {rival: gradients(w) for rival, w in wrong.get(name, {}).items()}
        yield direction.check(entry, what, cell, Estimator(name), vector, others)
        if name in SPREAD and problem.d <= MOST_PARAMETERS:
            spread = along(gradient_covariance(moments, name, group_size) @ direction.unit)
            yield entry.check(
                f"G={group_size}: squared error of {name} along a direction",
                mean_of(cell, SquaredProjection(Estimator(name), number)),
                equal(spread + (mean - along(problem.gradient())) ** 2),
            )
        yield error_of(entry, f"G={group_size}: error of {name}", cell, name)
    name = "pass-at-k:2"  # the only estimator with a weight that is not constant in groups of two
    yield error_of(entry, f"G=2 B=2: error of {name}", GradientCell(problem, 2, 2), name)
    p, kept = moments.value, 1 - frac_reward_zero_std(moments, group_size)
    mixed = 1 - p**group_size - (1 - p) ** group_size
    for name in ("std", "maxrl"):
        weight = count_table(name, group_size).weight(p)
        mean = along(mean_gradient(moments, name, group_size, dynamic_sampling=True))
        rivals = {REWEIGHTS: along(gradients(weight / mixed)), UNCHANGED: mean * kept}
        yield entry.check(
            f"G={group_size}: {name} with dynamic sampling",
            Ratio(mean_in(cell, Estimator(name), number), mean_of(cell, Mixed()), kept),
            equal(mean, rivals),
        )


def on_networks(suite: Suite) -> Iterator[Check]:
    """Checks of errors at single prompts and means over all; none if rewards are not 0 and 1, or never
    differ.
    """
    for entry in suite.single_prompts:
        if entry.problem.binary:
            yield from errors(entry, SMALL)
    for entry in suite.winnable(SMALL):
        yield from means(entry, SMALL)
        yield from noise(entry, SMALL)
    yield from verifiers.on_networks(suite)
