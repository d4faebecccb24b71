"""A verifier that errs and advantages that are cut off: every output and every word, in exact fractions.

The formulas are written from the mathematics alone; a square root is the fraction of the nearest float,
the same one wherever it is asked for.
"""

from fractions import Fraction
from itertools import product
from math import comb, prod, sqrt

import numpy as np
import pytest

from ustat_pg.predictions import (
    count_table,
    gradient_covariance,
    verified_moments,
    verifier_effect,
)
from ustat_pg.problems import SoftmaxBandit

ZERO, ONE = Fraction(0), Fraction(1)
PROBS = [[Fraction(n, 10) for n in row] for row in ((2, 3, 5), (6, 3, 1))]
SUCCESS = [[ONE, Fraction(1, 4), ZERO], [Fraction(1, 5), Fraction(2, 3), Fraction(1, 2)]]
PROMPTS = list(zip(PROBS, SUCCESS, strict=True))
CHANCES = [Fraction(2, 3), Fraction(1, 3)]
PROBLEM = SoftmaxBandit.bernoulli(*(np.array(x, float) for x in (PROBS, SUCCESS, CHANCES)))
RATES = [(ONE, ZERO), (Fraction(9, 10), Fraction(1, 5)), (Fraction(1, 4), Fraction(3, 4))]


def own_mean(z):
    return [own - sum(z) / Fraction(len(z)) for own in z]


def leave_one_out(z):
    return [own - (sum(z) - own) / Fraction(len(z) - 1) for own in z]


def standardised(z):
    """(z - mean)/std, G - 1 in the variance, 0 in a group of equal rewards."""
    centred = own_mean(z)
    square = sum(x * x for x in centred) / (len(z) - 1)
    return [x / Fraction(sqrt(square)) if square else x for x in centred]


def cut_off(limit):
    return lambda z: [min(max(x, -limit), limit) for x in standardised(z)]


ADVANTAGES = {"grpo": leave_one_out, "group-mean": own_mean, "std-ddof1": standardised}


def scores(probs):
    """∇ log π of three arms by their logits."""
    return np.array([[Fraction(i == k) - p for i, p in enumerate(probs)] for k in range(3)])


def expected(law, *numbers):
    """E of a product of numbers, vectors or matrices."""
    return sum(map(prod, zip(law, *numbers, strict=True)))


def brute(probs, accepted, advantages, size):
    """E ĝ and E ĝ ĝᵀ of one prompt, over all outputs and all words of a group."""
    s, law = scores(probs), []
    for arm, (p, chance) in enumerate(zip(probs, accepted, strict=True)):
        law += [(arm, 1, p * chance), (arm, 0, p * (1 - chance))]
    mean, square = np.full(3, ZERO), np.full((3, 3), ZERO)
    for group in product([row for row in law if row[2]], repeat=size):
        arms, words, chances = zip(*group, strict=True)
        estimate = expected(advantages(words), s[[*arms]]) / size
        mean += prod(chances) * estimate
        square += prod(chances) * np.outer(estimate, estimate)
    return mean, square


def binomial(trials, p):
    return [comb(trials, m) * p**m * (1 - p) ** (trials - m) for m in range(trials + 1)]


def table_of(advantages, size):
    """a₁(n) and a₀(n), read off groups of n successes; 0 where no output has it."""
    groups = [advantages([1] * n + [0] * (size - n)) for n in range(size + 1)]
    return [ZERO, *(row[0] for row in groups[1:])], [*(row[-1] for row in groups[:-1]), ZERO]


def weight(table, p):
    won, lost = table
    return expected(binomial(len(won) - 2, p), [w - b for w, b in zip(won[1:], lost, strict=False)])


@pytest.mark.parametrize("rates", RATES, ids=str)
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("name", ADVANTAGES)
def test_mean_and_second_moment_of_one_prompt_by_a_verifiers_words(name, size, rates):
    a, c = rates
    table = table_of(ADVANTAGES[name], size)
    effect = verifier_effect(PROBLEM, float(a), float(c), name, size)
    for x, (probs, success) in enumerate(PROMPTS):
        accepted = [c + (a - c) * chance for chance in success]
        mean, square = brute(probs, accepted, ADVANTAGES[name], size)
        s, p = scores(probs), expected(probs, success)
        g, seen = expected(probs, success, s), c + (a - c) * p
        factor = weight(table, seen) * (a - c)
        assert (mean == factor * g).all()
        if name != "std-ddof1":
            assert factor == (a - c) * (ONE if name == "grpo" else Fraction(size - 1, size))
        assert effect.mean_factors[x] == pytest.approx(float(factor), rel=1e-12)
        only = verified_moments(PROBLEM.restrict([x]), float(a), float(c))
        spread = (square - np.outer(mean, mean)).astype(float)
        np.testing.assert_allclose(gradient_covariance(only, name, size), spread, atol=1e-14)


def test_the_best_group_size_is_that_of_the_noise_of_three_sizes():
    """MSE = c₁ + c₂/G + c₃/(G(G-1)) at sizes 2, 3 and 4, so that G* = 1 + √(c₃/c₁)."""
    a, c = RATES[1]
    two, three, four = (
        # The prompts' parameters are apart.
        sum(
            chance * np.trace(square) - chance**2 * (mean @ mean)
            for chance, (mean, square) in (
                (chance, brute(probs, [c + (a - c) * k for k in success], leave_one_out, size))
                for chance, (probs, success) in zip(CHANCES, PROMPTS, strict=True)
            )
        )
        for size in (2, 3, 4)
    )
    # two - three = c₂/6 + c₃/3, three - four = c₂/12 + c₃/12.
    third = 6 * (two - three) - 12 * (three - four)
    first = two - (12 * (three - four) - third) / 2 - third / 2
    effect = verifier_effect(PROBLEM, float(a), float(c))
    assert effect.best_group_size == pytest.approx(1 + sqrt(third / first), rel=1e-11)
    assert effect.best_group_size > effect.best_without_errors


@pytest.mark.parametrize("limit", [Fraction(1, 5), Fraction(1, 2), Fraction(9, 10), ONE * 5])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_advantages_that_are_cut_off_are_another_table(size, limit):
    table = count_table("std-ddof1", size).clipped(float(limit))
    for x, (probs, success) in enumerate(PROMPTS):
        mean, square = brute(probs, success, cut_off(limit), size)
        p, g = expected(probs, success), expected(probs, success, scores(probs))
        factor = weight(table_of(cut_off(limit), size), p)
        assert (mean == factor * g).all()
        if limit**2 * size <= 1:
            # Every mixed group pushes by the whole limit.
            assert factor == limit * (2 - p ** (size - 1) - (1 - p) ** (size - 1))
        assert table.weight(float(p)) == pytest.approx(float(factor), rel=1e-12)
        spread = (square - np.outer(mean, mean)).astype(float)
        found = gradient_covariance(PROBLEM.restrict([x]), table.estimator, size)
        np.testing.assert_allclose(found, spread, atol=1e-14)
