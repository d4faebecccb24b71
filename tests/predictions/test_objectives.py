"""What estimators climb and what KL penalties descend, from the theory alone: fractions and plain loops."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from itertools import product
from math import comb, exp, log, sqrt

import numpy as np
import pytest

from ustat_pg.predictions import (
    arcsine_objective,
    bernstein_objective,
    climbed_maximiser,
    count_table,
    kl_gradient,
    kl_penalty,
)
from ustat_pg.validation import InputError

SIZES = (1, 2, 3, 5, 8)


def integral(delta, p):
    """Φ(p) in fractions: Bernstein's polynomial of degree G with coefficients (δ(0) + ... + δ(k-1))/G."""
    size, total = len(delta), Fraction(0)
    for k in range(size + 1):
        level = sum((Fraction(each) for each in delta[:k]), Fraction(0)) / size
        total += comb(size, k) * p**k * (1 - p) ** (size - k) * level
    return total


@pytest.mark.parametrize(
    "name", ["vanilla", "group-mean", "std", "std-ddof1", "maxrl", "bayes:1,2"]
)
@pytest.mark.parametrize("size", SIZES)
def test_the_objective_is_bernsteins_polynomial(name, size):
    table = count_table(name, size)
    for p in (Fraction(0), Fraction(1, 7), Fraction(3, 5), Fraction(1)):
        assert float(bernstein_objective(table, float(p))) == pytest.approx(
            float(integral(table.delta.tolist(), p)), rel=1e-13, abs=1e-15
        )


def test_the_arcsine_is_reached_as_one_over_G():
    for p in (0.2, 0.5):
        off = [
            (1 - float(count_table("std", size).weight(p)) * sqrt(p * (1 - p))) * size
            for size in (256, 512)
        ]
        limit = 1 / (8 * p * (1 - p))
        assert abs(off[1] - limit) < 0.55 * abs(off[0] - limit) < 0.02
    assert float(arcsine_objective(0.5)) == pytest.approx(np.pi / 2, rel=1e-15)


def test_the_maximiser_is_where_the_slope_is_zero():
    """V = (u, .9 √(1-u)), unequally likely, with a penalty: by bisection of the derivative."""
    table, law = count_table("std", 8), [0.3, 0.7]

    def slope(u):
        first, second = table.weight([u, 0.9 * sqrt(1 - u)])
        return law[0] * first - law[1] * second * 0.45 / sqrt(1 - u) - 0.2 * u

    low, high = 0.01, 0.99
    assert slope(low) > 0 > slope(high)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    found = climbed_maximiser(
        lambda u: [u, 0.9 * sqrt(1 - u)],
        partial(bernstein_objective, table),
        0.0,
        1.0,
        context_probs=law,
        penalty=lambda u: 0.1 * u**2,
    )
    assert found == pytest.approx(low, abs=1e-10)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"low": 1.0}, "low must be below high"),
        ({"pass_rates": lambda u: [u + 0.5]}, r"pass rate is 1\.01: it must lie in"),
        ({"objective": lambda p: p}, "greatest at 1, an end of the interval"),
    ],
)
def test_what_has_no_maximiser_is_refused(change, says):
    asked = {
        "pass_rates": lambda u: [u],
        "objective": lambda p: p * (1 - p),
        "low": 0.0,
        "high": 1.0,
    }
    with pytest.raises(InputError, match=says):
        climbed_maximiser(**(asked | change))


VALUES = {"k1": lambda x: -x, "k2": lambda x: x * x / 2, "k3": lambda x: exp(x) - 1 - x}
SLOPES = {"k1": lambda x: -1.0, "k2": lambda x: x, "k3": lambda x: exp(x) - 1}

CASES = tuple(product(VALUES, ("loss", "reward")))

# Outputs of up to two tokens: an end token first, or after one; prefixes 0, 1 and 2.
OUTPUTS = [((0, 2),), ((0, 0), (1, 0)), ((0, 0), (1, 1)), ((0, 0), (1, 2)), ((0, 1), (2, 0)),
           ((0, 1), (2, 1)), ((0, 1), (2, 2))]  # fmt: skip
PREFIXES = [[n for n, _ in path] + [-1] * (2 - len(path)) for path in OUTPUTS]
TOKENS = [[c for _, c in path] + [-1] * (2 - len(path)) for path in OUTPUTS]


def laws(seed):
    """Two policies at three prefixes."""
    return np.random.default_rng(seed).dirichlet([2.0, 2.0, 2.0], size=(2, 3))


@pytest.mark.parametrize(("kind", "place"), CASES)
def test_the_gradient_is_the_mean_over_all_outputs(kind, place):
    """In plain loops from the definition: coefficients times scores, output by output."""
    p, r = laws(1)
    found = kl_gradient(p, r, kind, place, prefixes=PREFIXES, tokens=TOKENS)
    mean = np.zeros((3, 3))
    for path in OUTPUTS:
        chance = np.prod([p[n, c] for n, c in path])
        ratios = [log(r[n, c] / p[n, c]) for n, c in path]
        whole = -sum(VALUES[kind](x) for x in ratios)
        for (n, c), x in zip(path, ratios, strict=True):
            score = -p[n].copy()
            score[c] += 1
            mean[n] += chance * score * (SLOPES[kind](x) if place == "loss" else whole)
    assert np.allclose(found, mean, rtol=0, atol=1e-15)


def moved(p, n, c, step):
    """The policy with one logit moved."""
    logits = np.log(p)
    logits[n, c] += step
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


def jacobian(kind, place):
    """Derivatives of the gradient by all nine logits."""
    p, r = laws(2)
    of_outputs = {"prefixes": PREFIXES, "tokens": TOKENS}
    columns = []
    for n, c in product(range(3), range(3)):
        ends = [
            kl_gradient(moved(p, n, c, step), r, kind, place, **of_outputs)
            for step in (1e-5, -1e-5)
        ]
        columns.append(((ends[0] - ends[1]) / 2e-5).ravel())
    return np.array(columns)


def test_only_k1_in_the_reward_is_a_gradient():
    off = {case: np.abs(jacobian(*case) - jacobian(*case).T).max() for case in CASES}
    assert off["k1", "loss"] == 0
    assert off["k1", "reward"] < 1e-9
    assert min(off[kind, place] for kind in ("k2", "k3") for place in ("loss", "reward")) > 0.005


@pytest.mark.parametrize(("kind", "place"), CASES)
def test_one_token_descends_its_own_divergence(kind, place):
    p, r = laws(3)[:, :1]
    found = kl_gradient(p, r, kind, place)[0]
    for c in range(3):
        ends = [kl_penalty(moved(p, 0, c, step)[0], r[0], kind, place) for step in (1e-5, -1e-5)]
        assert found[c] == pytest.approx(-(ends[0] - ends[1]) / 2e-5, abs=1e-9)
    assert kl_penalty(r[0], r[0], kind, place) == 0


def test_the_divergences_by_hand():
    p, r = [0.5, 0.5], [0.8, 0.2]
    reverse = 0.5 * log(0.5 / 0.8) + 0.5 * log(0.5 / 0.2)
    forward = 0.8 * log(0.8 / 0.5) + 0.2 * log(0.2 / 0.5)
    square = (log(0.5 / 0.8) ** 2 + log(0.5 / 0.2) ** 2) / 4
    found = {case: kl_penalty(p, r, *case) for case in CASES}
    assert found == pytest.approx(
        {
            ("k1", "loss"): 0.0,
            ("k2", "loss"): reverse,
            ("k3", "loss"): forward,
            ("k1", "reward"): reverse,
            ("k2", "reward"): square - reverse,
            ("k3", "reward"): reverse - forward,
        },
        rel=1e-14,
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (([0.5, 0.5], [1.0, 0.0]), "a choice has probability 0"),
        (([0.5, 0.5], [0.2, 0.3, 0.5]), "they must be equal"),
        (([0.5, 0.5], [0.5, 0.5], "k4"), "KL estimator 'k4' is unknown"),
    ],
)
def test_what_is_no_pair_of_laws_is_refused(arguments, says):
    with pytest.raises(InputError, match=says):
        kl_penalty(*arguments)


@pytest.mark.parametrize(
    ("outputs", "says"),
    [
        ({}, "several prefixes need prefixes and tokens"),
        ({"prefixes": PREFIXES}, "give both"),
        ({"prefixes": PREFIXES[:-1], "tokens": TOKENS[:-1]}, "every output must be there once"),
    ],
)
def test_outputs_that_are_not_all_there_are_refused(outputs, says):
    with pytest.raises(InputError, match=says):
        kl_gradient(*laws(1), **outputs)
