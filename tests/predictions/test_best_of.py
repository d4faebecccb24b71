"""The best of k with graded rewards: against every minibatch, against pass@k and against leave-one-out."""

from itertools import product
from math import prod

import numpy as np
import pytest

from tests.support import independent as ind
from tests.support.independent_tables import DEFINED
from tests.support.problems import library_problem
from tests.support.refusals import refusals
from ustat_pg.moments.record import RewardLevels
from ustat_pg.predictions import (
    best_max_baseline,
    best_of_limit,
    count_table,
    expected_best,
    graded_mse,
    gradient_mse,
    mean_gradient,
)
from ustat_pg.problems import SoftmaxBandit, random_problem
from ustat_pg.validation import changed

GRADED = [ind.TWO_CONTEXTS, ind.THREE_CONTEXTS, ind.ZERO_SCORE, ind.DEGENERATE]
NAMES = ["pass-at-k:1", "pass-at-k:2", "pass-at-k:3", "gain-at-k:2", "gain-at-k:3", "vanilla"]


def name_of(value):
    return getattr(value, "name", str(value))


CASES = [
    *product(GRADED, NAMES, (3, 4), (1,)),
    *product((ind.TWO_CONTEXTS, ind.DEGENERATE), ("pass-at-k:2",), (3,), (2,)),
]


@pytest.mark.parametrize(("problem", "name", "size", "batch"), CASES, ids=name_of)
def test_mean_and_noise_of_every_minibatch(problem, name, size, batch):
    define = DEFINED[name]
    result = ind.brute_force(problem, lambda m, z, w: z - define(z), size, batch)
    noise, length = float(result.covariance.trace()), float(result.mean @ result.mean)
    found = graded_mse(library_problem(problem).reward_levels(), name, size, batch)
    scale = noise + length or 1.0
    assert found.variance == pytest.approx(noise, abs=1e-13 * scale)
    np.testing.assert_allclose(found.mean, result.mean.astype(float), rtol=0, atol=1e-13 * scale)
    if length:
        assert found.noise_to_signal == pytest.approx(noise / length, rel=1e-12)
    else:
        assert found.noise_to_signal is None


def test_leave_one_out_is_a_sum_over_thresholds():
    problem = random_problem(3, "plain")
    graded = graded_mse(problem.reward_levels(), "grpo", 5, 4)
    assert graded.variance == pytest.approx(gradient_mse(problem.moments(), "grpo", 5, 4).mse)
    np.testing.assert_allclose(graded.mean, problem.gradient(), atol=1e-13)


def test_with_rewards_0_and_1_it_is_the_table():
    chances = [[0.2, 0.9, 0.4], [0.7, 0.0, 1.0]]
    problem = SoftmaxBandit.bernoulli([[0.3, 0.2, 0.5], [0.1, 0.6, 0.3]], chances)
    moments, table = problem.moments(), count_table("maxrl", 6)
    for estimator in ("max-at-k:3", "gain-at-k:3", table):
        found = graded_mse(problem.reward_levels(), estimator, 6)
        name = estimator if isinstance(estimator, str) else "maxrl"
        second = count_table(name, 6).second_moments(moments)
        np.testing.assert_allclose(found.second_moment, second, rtol=1e-12)
        np.testing.assert_allclose(found.mean, mean_gradient(moments, name, 6), atol=1e-14)


LEVELS = random_problem(7, "plain", contexts=2).reward_levels()


@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_expected_best_is_that_of_every_draw(k):
    for x, probs in enumerate(LEVELS.probs):
        draws = product(zip(probs, LEVELS.values, strict=True), repeat=k)
        mean = sum(prod(p for p, _ in draw) * max(v for _, v in draw) for draw in draws)
        assert expected_best(LEVELS, k)[x] == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "k", "others"), [("pass-at-k", 1, 1), ("pass-at-k", 3, 3), ("gain-at-k", 3, 2)]
)
def test_what_is_left_of_the_limit_halves_as_the_group_doubles(name, k, others):
    limit = best_of_limit(LEVELS, k, expected_best(LEVELS, others))
    left = [
        size * graded_mse(one, f"{name}:{k}", size).variance - limit[x]
        for size in (64, 128)
        for x, one in enumerate(map(alone, range(2)))
    ]
    assert np.divide(left[:2], left[2:]) == pytest.approx([2.0, 2.0], abs=0.15)


def alone(x):
    rows = {name: getattr(LEVELS, name)[x : x + 1] for name in ("probs", "squares", "scores")}
    return changed(LEVELS, context_probs=[1.0], **rows)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_the_limit_is_least_at_the_best_number(k):
    best = best_max_baseline(LEVELS, k)
    least = best_of_limit(LEVELS, k, best)
    assert np.isfinite(least).all()
    for off in (0.3, -0.7):
        beyond = k**2 * LEVELS.squares.sum(axis=1) * off**2
        np.testing.assert_allclose(best_of_limit(LEVELS, k, best + off) - least, beyond)


def test_without_scores_every_number_is_equally_good():
    still = RewardLevels([1.0], [0.0, 1.0], [[0.5, 0.5]], [[0.0, 0.0]], np.zeros((1, 2, 3)))
    assert np.isnan(best_max_baseline(still, 2)).all()
    assert graded_mse(still, "pass-at-k:2", 3).noise_to_signal is None


test_refusals = refusals(
    (lambda: graded_mse(LEVELS, "std", 4), "std are not a sum over thresholds"),
    (lambda: graded_mse(LEVELS, "pass-at-k:5", 4), "at least k = 5"),
    (lambda: graded_mse(LEVELS, "gain-at-k:1", 4), "k is 1"),
    (lambda: graded_mse(LEVELS, count_table("grpo", 3), 4), "groups of 3, and the group size is 4"),
    (lambda: best_of_limit(LEVELS, 2, [0.0, 1.0, 2.0]), "one for each prompt"),
    (lambda: changed(LEVELS, values=LEVELS.values[::-1]), "values must increase"),
    (lambda: changed(LEVELS, squares=LEVELS.squares[:, 1:]), "must start with"),
)
