"""The reference engine: its draws by the address, its values by loops."""

import itertools

import numpy as np
import pytest

from ustat_pg.engines import (
    Distance,
    Estimator,
    GradientCell,
    MomentSums,
    Projection,
    SquaredError,
    SquaredProjection,
)
from ustat_pg.engines.gradients import reference
from ustat_pg.engines.gradients.cell import direction
from ustat_pg.problems import random_problem
from ustat_pg.sampling import rng

EVEN = random_problem(0, "uniform-contexts", contexts=4)


def test_a_draw_follows_from_its_address():
    cell = GradientCell(random_problem(3, "plain"), 6, 5)
    first, seed = 2**40 + 3, 9
    result = reference.draw(cell, seed=seed, first=first, replications=4)
    key, outcomes = rng.cell_key(seed, cell.name), cell.problem.outcomes
    context_ends = np.cumsum(cell.problem.context_probs)
    for r, b in itertools.product(range(4), range(5)):
        word = rng.words(key, first + r, rng.CONTEXT_SLOT, 5)[b] / 2**32
        x = int((word >= context_ends).sum())
        assert result.contexts[r, b] == x
        for i, w in enumerate(rng.words(key, first + r, b, 6) / 2**32):
            j = int((w >= np.cumsum(outcomes.probs[x])).sum())
            assert result.arms[r, b, i] == outcomes.arms[x, j]
            assert result.rewards[r, b, i] == outcomes.rewards[x, j]
            norm = (cell.problem.policy.scores(x)[result.arms[r, b, i]] ** 2).sum()
            assert result.squared_norms[r, b, i] == pytest.approx(norm, rel=1e-12)


def test_fixed_prompts_are_all_in_order():
    result = reference.draw(GradientCell(EVEN, 2, 4, "fixed"), seed=0, first=0, replications=3)
    assert result.contexts.tolist() == [[0, 1, 2, 3]] * 3


@pytest.mark.parametrize("kind", ["plain", "linear", "shared-linear"])
def test_values_by_loops(kind):
    problem = random_problem(2, kind)
    cell = GradientCell(problem, 3, 2)
    grpo, fixed = Estimator("grpo"), Estimator("constant", constant=0.4)
    quantities = [
        SquaredError(grpo),
        SquaredError(fixed),
        Distance(grpo, fixed),
        Projection(fixed, 1),
        SquaredProjection(grpo, 1),
    ]
    draws = reference.draw(cell, seed=1, first=0, replications=5)
    scores = np.stack([problem.policy.scores(x) for x in range(3)])
    result = reference.values_of(cell, quantities, draws)
    assert result.shape == (5, 5)
    g, unit = problem.gradient(), direction(problem, 1)
    for r in range(5):
        one, two = np.zeros(problem.d), np.zeros(problem.d)
        for b in range(2):
            z = draws.rewards[r, b]
            for i in range(3):
                s = scores[draws.contexts[r, b], draws.arms[r, b, i]] / 6
                one += s * (z[i] - (z.sum() - z[i]) / 2)
                two += s * (z[i] - 0.4)
        expected = [
            ((one - g) ** 2).sum(),
            ((two - g) ** 2).sum(),
            ((one - two) ** 2).sum(),
            (two - g) @ unit,
            ((one - g) @ unit) ** 2,
        ]
        assert result[r] == pytest.approx(expected, rel=1e-11, abs=1e-15)
    measured = cell.measure("reference", quantities, seed=1, first=0, replications=5)
    expected = MomentSums.of(result)
    assert measured.n == 5
    assert np.allclose(measured.mean, expected.mean, rtol=1e-14)
    assert np.allclose(measured.products, expected.products, rtol=1e-12)


@pytest.mark.parametrize("size", [2, 64])
def test_outcomes_that_repeat_are_weighed_once(size):
    """Where their number is too large to count them by, each stands for itself."""
    cell = GradientCell(random_problem(3, "plain"), size, 2)
    draws, place = reference.different(cell, seed=1, first=5, replications=600)
    every = reference.draw(cell, seed=1, first=5, replications=600)
    for name in ("contexts", "arms", "rewards", "squared_norms"):
        assert np.array_equal(getattr(draws, name)[place], getattr(every, name))
    assert (len(draws.arms) < 600) == (size == 2)


def test_a_memory_changes_no_draw_of_the_group():
    problem = random_problem(0)
    cell = GradientCell(problem, 2, 3)
    where = {"seed": 1, "first": 5, "replications": 40}
    plain, place = reference.different(cell, **where)
    both, there = reference.different(cell, **where, memory=4)
    assert plain.earlier is None
    assert both.earlier[there].shape == (40, 3, 4)
    assert np.array_equal(both.arms[there], plain.arms[place])
    assert np.array_equal(both.rewards[there], plain.rewards[place])
