"""Tables by counts: against the estimators' functions; the best table; what is refused. Every outcome is
added up in fractions in ``tests/test_independent_tables.py``, and in large groups by ``simulations/regimes``.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from simulations.problems import two_valued
from ustat_pg.baselines import BASELINES, parse
from ustat_pg.estimators import advantages
from ustat_pg.predictions import (
    best_shrinkage,
    best_table,
    count_table,
    gradient_mse,
    mean_gradient,
    silent_share,
)
from ustat_pg.problems import SoftmaxBandit, random_problem
from ustat_pg.validation import InputError

NAMES = [
    "vanilla",
    "grpo",
    "group-mean",
    "shrinkage:0.25,0.5",
    "bayes:1,0.5",
    "std",
    "std-ddof1",
    "others-std",
    "maxrl",
    "pass-at-k:1",
    "pass-at-k:2",
    "pass-at-k:3",
]
SIZED = [
    (name, size)
    for name, size in product(NAMES, range(1, 7))
    if size >= max(parse(name)[0].least_group, parse(name)[1].get("k", 1))
]


def uneven(even=False):
    """Two prompts of pass rates .15 and .7 or so, arms in common features; three outputs each."""
    rng = np.random.default_rng(5)
    probs = [[0.15, 0.6, 0.25], [0.7, 0.1, 0.2]]
    success = np.array([[0.9, 0.02, 0.0], [1.0, 0.3, 0.0]])
    return SoftmaxBandit.linear(
        [0.5, 0.5] if even else [0.8, 0.2],
        rng.normal(size=(2, 3, 3)),
        np.zeros(3),
        np.tile([1.0, 0.0], (2, 3, 1)),
        np.stack([success, 1 - success], axis=-1),
        np.log(probs),
    )


def noise(rates, weights):
    """Prompts whose reward is no fault of their two outputs: norms alike, and no gradient."""
    law = np.stack([rates, 1 - rates], axis=-1)[:, None].repeat(2, axis=1)
    rewards = np.tile([1.0, 0.0], (len(rates), 2, 1))
    return SoftmaxBandit.tabular(weights, np.zeros((len(rates), 2)), rewards, law)


def test_every_estimator_by_counts_is_here():
    families = {parse(name)[0].name for name in NAMES}
    by_count = {name for name, record in BASELINES.items() if record.by_count}
    assert by_count - families <= {"loo-table", "best", "count-table"}


@pytest.mark.parametrize(("name", "size"), SIZED)
def test_a_table_is_the_function_on_every_binary_group(name, size):
    groups = np.array(list(product((0.0, 1.0), repeat=size)))
    table, count = count_table(name, size), groups.sum(axis=1).astype(int)
    expected = np.where(
        groups == 1, table.successes[count][:, None], table.failures[count][:, None]
    )
    np.testing.assert_allclose(advantages(name, groups), expected, rtol=0, atol=1e-13)


# The best table.


@pytest.mark.parametrize(
    ("size", "rloo", "best"),
    [(2, "2.00", "1.33"), (4, "1.33", "1.20"), (8, "1.14", "1.11")],
)
def test_uniform_pass_rates_by_hand(size, rloo, best):
    """Nodes of Gauss and Legendre integrate polynomials over pass rates without an error."""
    nodes, weights = np.polynomial.legendre.leggauss(12)
    moments = noise((nodes + 1) / 2, weights / 2).moments()
    oracle = gradient_mse(moments, "oracle", size).mse
    found = {
        name: gradient_mse(moments, name, size).mse / oracle
        for name in ("grpo", "best", "bayes:1,1")
    }
    assert found["grpo"] == pytest.approx(size / (size - 1), rel=1e-12)
    assert found["best"] == pytest.approx(1 + 1 / (size + 1), rel=1e-12)
    assert found["bayes:1,1"] == pytest.approx(found["best"], rel=1e-12)
    assert (f"{found['grpo']:.2f}", f"{found['best']:.2f}") == (rloo, best)
    expected = (np.arange(size) + 1) / (size + 1)
    np.testing.assert_allclose(best_table(moments, size).baseline, expected, rtol=1e-12)


def test_a_count_that_no_prompt_shows_has_some_entry():
    sure = noise(np.array([1.0]), np.array([1.0])).moments()
    table = best_table(sure, 3)
    assert table.unbiased
    assert table.baseline[-1] == pytest.approx(1.0)
    assert gradient_mse(sure, "best", 3).mse == pytest.approx(0.0, abs=1e-15)


# Degenerate prompts, and what is refused.


def test_prompts_always_or_never_solved():
    problem = noise(np.array([0.0, 1.0]), np.array([0.5, 0.5]))
    moments = problem.moments()
    assert silent_share(moments, 4) == 1.0
    found = gradient_mse(moments, "std", 4)
    assert (found.mse, found.noise_to_signal, found.cosine) == (0.0, None, None)
    weights = count_table("std", 4).weight([0.0, 1.0])
    assert weights == pytest.approx([3**0.5, 3**0.5])


BINARY = uneven().moments()
GRADED = random_problem(0).moments()
REFUSED = {
    "no name": (lambda: count_table("stdd", 4), "did you mean std"),
    "no table": (lambda: count_table("oracle", 4), "oracle is no table"),
    "too small a group": (lambda: count_table("grpo", 1), "at least 2: group size is 1"),
    "best without moments": (lambda: count_table("best", 4), "moments are needed"),
    "a table of another length": (
        lambda: count_table("loo-table:0,1", 4),
        "2 values: a group of 4",
    ),
    "rates above 1": (lambda: count_table("std", 4).weight(1.5), "pass rate is 1.5"),
    "graded rewards": (lambda: gradient_mse(GRADED, "std", 4), "std has a closed form for rewards"),
    "delta of another length": (lambda: best_table(BINARY, 4, [1.0, 1.0]), r"needs \(4,\)"),
    "loud groups": (
        lambda: mean_gradient(BINARY, "vanilla", 4, dynamic_sampling=True),
        "silent groups of vanilla are not silent",
    ),
    "no group to keep": (
        lambda: mean_gradient(
            noise(np.array([1.0]), np.array([1.0])).moments(), "std", 4, dynamic_sampling=True
        ),
        "every group is silent",
    ),
    "a constant": (
        lambda: gradient_mse(BINARY, "std", 4, constant=0.5),
        "which the baseline std does not take",
    ),
}


@pytest.mark.parametrize(("ask", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(ask, message):
    with pytest.raises(InputError, match=message):
        ask()


def test_a_share_is_at_most_one():
    rates = np.arange(1, 10) / 10
    assert silent_share(noise(rates, np.full(9, 1 / 9)).moments(), 1) == 1.0


@pytest.mark.parametrize("size", [2, 3, 10, 100, 1100])
def test_rounding_leaves_no_negative_error(size):
    """One prompt with two equal arms, the first rewarded: the best table has no error at all."""
    coin = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    found = gradient_mse(coin.moments(), "best", size)
    assert 0 <= found.mse < 1e-15
    assert found.first_order_term >= 0


# The best amount of shrinkage; that it is the best is in ``simulations/regimes/baselines.py``.


def test_the_mean_value_is_that_of_the_prompts_unless_given():
    mean = BINARY.context_probs @ BINARY.value
    assert best_shrinkage(BINARY, 4) == best_shrinkage(BINARY, 4, mean)
    assert best_shrinkage(BINARY, 4) != best_shrinkage(BINARY, 4, mean + 0.1)


def test_the_amount_is_held_between_grpo_and_the_constant():
    # b* is .13 and V .8: a mean below V would be overtaken, one above it is the wrong way.
    skewed = two_valued([0.8, 0.1, 0.05, 0.05], [1, 0, 0, 0]).moments()
    assert best_shrinkage(skewed, 4, 0.6) == 1.0
    assert best_shrinkage(skewed, 4, 1.5) == 0.0
    # Nothing to choose from: all rewards alike.
    assert best_shrinkage(two_valued([0.5, 0.5], [1, 1]).moments(), 4, 1.0) == 1.0
