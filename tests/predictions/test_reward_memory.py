"""The error, the weight and the group size with a memory of earlier rewards, against enumeration."""

from dataclasses import replace

import numpy as np
import pytest

from simulations.engines import MemoryCell
from tests.support.refusals import refusals
from ustat_pg import load_problem
from ustat_pg.engines import Estimator, SquaredError, enumerate_mse
from ustat_pg.predictions import (
    MseConstants,
    best_memory_weight,
    gradient_covariance,
    gradient_mse,
    memory_group_size,
    memory_mse,
)
from ustat_pg.problems import SoftmaxBandit, random_problem

NOW = random_problem(0, contexts=2)
THETA = NOW.policy.theta
PAST = NOW.with_theta(THETA + 0.4 * np.random.default_rng(0).normal(size=THETA.shape))
DRIFT = {
    "drift": PAST.moments().value - NOW.moments().value,
    "past_variance": PAST.moments().reward_variance,
}


@pytest.mark.parametrize(
    ("group_size", "name"),
    [(1, "memory:1"), (1, "memory:3"), (2, "memory:2"), (3, "weighted-memory:1,0.3")],
)
def test_the_error_is_that_of_every_outcome(group_size, name):
    found, every = gradient_mse(NOW, name, group_size, 2), enumerate_mse(NOW, name, group_size, 2)
    for part in ("mse", "prompt_term", "first_order_term", "second_order_term"):
        assert getattr(found, part) == pytest.approx(getattr(every, part), rel=1e-12)
    assert every.squared_bias == 0
    trace = np.trace(gradient_covariance(NOW, name, group_size, 2))
    assert trace == pytest.approx(found.mse, rel=1e-12)


@pytest.mark.parametrize(
    ("group_size", "weight"), [(1, None), (2, None), (2, 0.0), (3, 0.3), (2, 1.0)]
)
def test_the_error_under_drift_is_that_of_every_outcome(group_size, weight):
    name = "memory:2" if weight is None else f"weighted-memory:2,{weight}"
    cell = MemoryCell(NOW, group_size, past=PAST)
    every = cell.measure("exact", [SquaredError(Estimator(name))]).mean[0]
    found = memory_mse(NOW, group_size, 2, weight=weight, **DRIFT)
    assert found == pytest.approx(every, rel=1e-12)


def test_without_a_drift_it_is_the_error_by_name():
    assert memory_mse(NOW, 3, 2, 4) == pytest.approx(gradient_mse(NOW, "memory:2", 3, 4).mse)


def test_the_best_weight_has_the_least_error():
    weight = best_memory_weight(NOW, 3, 2, **DRIFT)
    assert 0 < weight < 1
    least = memory_mse(NOW, 3, 2, weight=weight, **DRIFT)
    for step in (-0.01, 0.01):
        assert memory_mse(NOW, 3, 2, weight=weight + step, **DRIFT) > least
    assert best_memory_weight(NOW, 3, 2) > 2 / 4
    assert best_memory_weight(NOW, 3, 2, drift=1e3) < 1e-3
    assert best_memory_weight(SoftmaxBandit.bernoulli([0.5, 0.5], [1, 1]), 2, 1) == 1.0


@pytest.mark.parametrize("memory", [1, 3, 8])
def test_the_advice_is_the_least_of_all_feasible_sizes(memory):
    problem, budget = load_problem("ustat:uneven"), 24
    sizes = [size for size in range(1, budget + 1) if budget % size == 0]
    errors = [gradient_mse(problem, f"memory:{memory}", g, budget // g).mse for g in sizes]
    plain = min(gradient_mse(problem, "grpo", g, budget // g).mse for g in sizes[1:])
    found = memory_group_size(problem, memory, budget)
    assert found.group_size == sizes[int(np.argmin(errors))]
    assert found.ratio == pytest.approx(min(errors) / plain)
    assert found.ratio_at_one == pytest.approx(errors[0] / plain)


@pytest.mark.parametrize("memory", [1, 4])
def test_the_tolerated_drift_takes_the_gain(memory):
    # Equal norms: they are uncorrelated with the reward.
    even = SoftmaxBandit.bernoulli(np.full((2, 4), 0.25), [[1, 1, 0, 0], [1, 0, 0, 0]])
    found = memory_group_size(even, memory, 24)
    size = found.group_size
    plain = min(gradient_mse(even, "grpo", g, 24 // g).mse for g in (2, 3, 4, 6, 8, 12, 24))
    off = memory_mse(even, size, memory, 24 // size, drift=found.tolerated_drift)
    assert off == pytest.approx(plain)
    assert memory_mse(even, size, memory, 24 // size) < plain


def test_the_exact_size_is_the_least_of_real_sizes():
    constants = MseConstants(c1=0.02, c2=1.0, c3=2.0)
    found = memory_group_size(constants, 3, 240, spread=0.9)
    grid = np.linspace(1, 30, 200_001)
    number = grid + 2
    errors = 0.02 * grid + 2.0 / number - 3 * 0.9 / number**2
    assert found.g_star_exact == pytest.approx(grid[errors.argmin()], abs=1e-3)
    assert found.g_star == 8.0
    assert memory_group_size(constants, 20, 240).g_star == 1.0
    assert memory_group_size(MseConstants(0.0, 1.0, 2.0), 3, 240).g_star_exact == np.inf


def test_the_answer_in_words():
    uneven = load_problem("ustat:uneven")
    assert "G = 1 is the best with this memory" in str(memory_group_size(uneven, 4, 64))
    for high, unsure in ((0.9, False), (np.inf, True)):
        known = replace(memory_group_size(uneven, 4, 64), ratio_at_one_interval=(0.1, high))
        assert ("do not tell whether it gains" in known.answer) == unsure
    wide = MseConstants(c1=0.02, c2=1.0, c3=2.0)
    text = str(memory_group_size(wide, 2, 64, spread=0.02, fisher_trace=4.0))
    assert "G = 1 is not the best with this memory" in text
    assert "It is the best from n = " in text
    assert "The gain lasts while" in text
    assert "with any memory" in str(memory_group_size(MseConstants(1e-9, 1.0, 2.0), 2, 64))


test_arguments_that_are_refused = refusals(
    (lambda: memory_mse(NOW, 0, 2), "group size is 0"),
    (lambda: memory_mse(NOW, 1, 0), "memory is 0"),
    (lambda: memory_mse(NOW, 1, 2, weight=0.5), "group size with a weight is 1"),
    (lambda: memory_mse(NOW, 2, 2, weight=1.5), "weight is 1.5"),
    (lambda: memory_mse(NOW, 2, 2, drift=[0.1, 0.2, 0.3]), "drift has shape"),
    (lambda: memory_mse(NOW, 2, 2, past_variance=-1.0), "variance of earlier rewards"),
    (lambda: best_memory_weight(NOW, 1, 2), "group size is 1"),
    (lambda: memory_group_size(NOW, 0, 8), "memory is 0"),
    (lambda: memory_group_size(NOW, 1, 1), "budget is 1"),
    (lambda: gradient_mse(NOW, "memory:0.5", 2), "memory is 0.5"),
    (lambda: gradient_mse(NOW, "weighted-memory:2,nan", 2), "weight holds nan"),
    (lambda: gradient_mse(NOW, "weighted-memory:2,1.5", 2), "weight is 1.5"),
    (lambda: gradient_mse(NOW, "memory", 2), "it is written memory:memory"),
    (
        lambda: memory_group_size(SoftmaxBandit.bernoulli([0.5, 0.5], [1, 1]), 1, 8),
        "all equal",
    ),
    of=lambda call: call(),
)
