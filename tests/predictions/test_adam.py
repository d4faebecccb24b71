"""Adam's best group size against a search over second moments that exact fractions enumerate."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from tests.support.refusals import refuses
from ustat_pg.predictions import adam_group_size, mse_constants, optimal_group_size
from ustat_pg.problems import SoftmaxBandit, named_problem, random_problem

FEATURES = named_problem("features").problem

PROBS = [
    [Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)],
    [Fraction(1, 5), Fraction(3, 5), Fraction(1, 5)],
]
REWARDS = [[1, 0, 2], [0, 1, 1]]
RAW = [[[3, -1], [0, 2], [1, 1]], [[-2, 1], [1, 0], [4, 2]]]
"""Two prompts of three arms, the features of two parameters."""


def drawn():
    """The gradient, and E ĝⱼ² of one prompt's group of 2, 3 and 4, in fractions."""
    gradient, squares = [Fraction(0)] * 2, {size: [Fraction(0)] * 2 for size in (2, 3, 4)}
    for probs, rewards, raw in zip(PROBS, REWARDS, RAW, strict=True):
        mean = [sum(p * f[j] for p, f in zip(probs, raw, strict=True)) for j in (0, 1)]
        scores = [[f[j] - mean[j] for j in (0, 1)] for f in raw]
        for j in (0, 1):
            gradient[j] += (
                sum(p * s[j] * r for p, s, r in zip(probs, scores, rewards, strict=True)) / 2
            )
        for size, square in squares.items():
            for group in product(range(3), repeat=size):
                chance, total = Fraction(1, 2), sum(rewards[k] for k in group)
                for k in group:
                    chance *= probs[k]
                for j in (0, 1):
                    push = sum(
                        (rewards[k] - Fraction(total - rewards[k], size - 1)) * scores[k][j]
                        for k in group
                    )
                    square[j] += chance * (push / size) ** 2
    return gradient, squares


def searched(budget, other):
    """The group size of the largest gain and this gain, on a grid, by curves through the three sizes; and the
    gain at another size.
    """
    gradient, squares = drawn()
    g = np.array([float(one) ** 2 for one in gradient])
    # With B = K/G prompts E ĝⱼ² = gⱼ² + (E ĝⱼ² at one prompt - gⱼ²) G/K.
    noise = [
        [size * (float(s) - part) for s, part in zip(squares[size], g, strict=True)]
        for size in squares
    ]
    curve = np.linalg.solve([[size, 1, 1 / (size - 1)] for size in squares], noise)
    sizes = np.append(np.linspace(1.1, budget, 400_001), other)
    rows = np.stack([sizes, np.ones_like(sizes), 1 / (sizes - 1)], axis=1)
    gains = (g / np.sqrt(g + rows @ curve / budget)).sum(axis=1)
    return sizes[gains.argmax()], gains.max(), gains[-1]


@pytest.mark.parametrize("budget", [8, 64, 4096])
def test_the_largest_gain_by_enumeration(budget):
    logits, values = np.log(np.array(PROBS, dtype=float)), np.array(REWARDS, dtype=float)[..., None]
    problem = SoftmaxBandit.linear(
        [0.5, 0.5], np.array(RAW, dtype=float), np.zeros(2), values, np.ones_like(values), logits
    )
    found, plain = adam_group_size(problem, budget), optimal_group_size(mse_constants(problem))
    size, gain, at_plain = searched(budget, plain)
    assert found.group_size == pytest.approx(size, abs=2 * budget / 400_000)
    assert found.gain == pytest.approx(gain, rel=1e-9)
    assert found.plain_group_size == plain
    assert found.kept == pytest.approx(at_plain / gain, rel=1e-9)
    assert found.kept < 1 - 1e-6


def test_one_parameter_has_the_plain_best():
    """If v is one number, the gain is largest where the error is least."""
    coin = SoftmaxBandit.linear(
        [0.5, 0.5], [[[1.0], [0.0]], [[1.0], [0.0]]], [0.0], [[[1.0], [0.0]], [[0.4], [1.0]]],
        np.ones((2, 2, 1)),
    )  # fmt: skip
    found = adam_group_size(coin, 64)
    assert found.group_size == pytest.approx(found.plain_group_size, rel=1e-9)
    assert found.kept == pytest.approx(1)


def test_prompts_that_agree_take_the_whole_budget():
    one = random_problem(5, "binary", contexts=1)
    found = adam_group_size(one, 32)
    assert found.group_size == pytest.approx(32)
    assert np.isinf(found.plain_group_size)
    assert found.kept == pytest.approx(1)


def test_refusals():
    refuses("budget is 1: it must be a whole number of at least 2", adam_group_size, FEATURES, 1)
    same = SoftmaxBandit.bernoulli([0.5, 0.5], [0.3, 0.3])
    refuses("the mean gradient is 0", adam_group_size, same, 8)
