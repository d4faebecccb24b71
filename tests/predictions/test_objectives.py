"""What estimators climb and what KL penalties descend, from the theory alone: fractions and plain loops."""

from fractions import Fraction
from itertools import product
from math import comb, exp, log

import numpy as np
import pytest

from tests.support.refusals import refusals, refuses
from ustat_pg.predictions import (
    bernstein_objective,
    climbed_maximiser,
    count_table,
    kl_gradient,
    kl_penalty,
)

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


@pytest.mark.parametrize("place", [0.012, 0.02, 0.5, 0.731, 0.98, 0.988])
def test_a_maximiser_keeps_its_digits_near_either_end(place):
    def hill(u):
        return -np.cosh(3 * (np.asarray(u) - place))

    found = climbed_maximiser(lambda u: [u], hill, 0.0, 1.0)
    assert found == pytest.approx(place, abs=1e-10)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"low": 1.0}, "low must be below high"),
        ({"pass_rates": lambda u: [u + 0.5]}, r"pass rate is 1\.01: it must lie in"),
        ({"objective": lambda p: p}, "greatest at 1, an end of the interval"),
    ],
)
def test_objectives_without_a_maximiser_are_refused(change, says):
    asked = {
        "pass_rates": lambda u: [u],
        "objective": lambda p: p * (1 - p),
        "low": 0.0,
        "high": 1.0,
    }
    refuses(says, climbed_maximiser, **(asked | change))


VALUES = {"k1": lambda x: -x, "k2": lambda x: x * x / 2, "k3": lambda x: exp(x) - 1 - x}
SLOPES = {"k1": lambda x: -1.0, "k2": lambda x: x, "k3": lambda x: exp(x) - 1}

PLACES = ("loss", "reward", "token-ratio", "prefix-ratio", "sequence-ratio")
CASES = tuple(product(VALUES, PLACES))

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
    result = kl_gradient(p, r, kind, place, prefixes=PREFIXES, tokens=TOKENS)
    mean = np.zeros((3, 3))
    for path in OUTPUTS:
        chance = np.prod([p[n, c] for n, c in path])
        ratios = [log(r[n, c] / p[n, c]) for n, c in path]
        values = [-VALUES[kind](x) for x in ratios]
        for t, ((n, c), x) in enumerate(zip(path, ratios, strict=True)):
            score = -p[n].copy()
            score[c] += 1
            slope = SLOPES[kind](x)
            mean[n] += (
                chance
                * score
                * {
                    "loss": slope,
                    "reward": sum(values),
                    "token-ratio": slope + values[t],
                    "prefix-ratio": slope + sum(values[t:]),
                    "sequence-ratio": slope + sum(values),
                }[place]
            )
    assert np.allclose(result, mean, rtol=0, atol=1e-15)


def moved(p, n, c, step):
    """The policy with one logit moved."""
    logits = np.log(p)
    logits[n, c] += step
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


@pytest.mark.parametrize(("kind", "place"), CASES)
def test_one_token_descends_its_own_divergence(kind, place):
    p, r = laws(3)[:, :1]
    result = kl_gradient(p, r, kind, place)[0]
    for c in range(3):
        ends = [kl_penalty(moved(p, 0, c, step)[0], r[0], kind, place) for step in (1e-5, -1e-5)]
        assert result[c] == pytest.approx(-(ends[0] - ends[1]) / 2e-5, abs=1e-9)
    assert kl_penalty(r[0], r[0], kind, place) == 0


@pytest.mark.parametrize("kind", ["k1", "k3"])
@pytest.mark.parametrize("place", ["prefix-ratio", "sequence-ratio"])
def test_a_ratio_of_whole_outputs_descends_their_divergence(kind, place):
    p, r = laws(5)

    def divergence(q):
        chances = [np.prod([q[n, c] for n, c in path]) for path in OUTPUTS]
        logs = [sum(log(q[n, c] / r[n, c]) for n, c in path) for path in OUTPUTS]
        return float(np.dot(chances, logs))

    result = kl_gradient(p, r, kind, place, prefixes=PREFIXES, tokens=TOKENS)
    for n, c in product(range(3), range(3)):
        slope = (divergence(moved(p, n, c, 1e-5)) - divergence(moved(p, n, c, -1e-5))) / 2e-5
        assert result[n, c] == pytest.approx(-slope, abs=1e-9)


def test_a_ratio_of_tokens_makes_no_gradient_of_a_function():
    """Its Jacobian in the logits is not symmetric."""
    p, r = laws(5)
    options = {"kind": "k3", "place": "token-ratio", "prefixes": PREFIXES, "tokens": TOKENS}

    def slope(n, c):
        ends = (kl_gradient(moved(p, n, c, step), r, **options) for step in (1e-5, -1e-5))
        return np.subtract(*ends) / 2e-5

    assert abs(slope(0, 0)[1, 0] - slope(1, 0)[0, 0]) > 1e-3


test_invalid_pairs_of_laws_are_refused = refusals(
    (([0.5, 0.5], [1.0, 0.0]), "a choice has probability 0"),
    (([0.5, 0.5], [0.2, 0.3, 0.5]), "they must be equal"),
    (([0.5, 0.5], [0.5, 0.5], "k4"), "KL estimator 'k4' is unknown"),
    of=lambda arguments: kl_penalty(*arguments),
)


test_outputs_that_are_not_all_there_are_refused = refusals(
    ({}, "if there are several prefixes, give both prefixes and tokens"),
    ({"prefixes": PREFIXES}, "give both"),
    ({"prefixes": PREFIXES[:-1], "tokens": TOKENS[:-1]}, "every output must occur once"),
    of=lambda outputs: kl_gradient(*laws(1), **outputs),
)
