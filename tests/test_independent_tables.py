"""Estimators as tables by counts against a second mind's enumeration in fractions
(tests/support/independent_tables.py).
"""

from fractions import Fraction
from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import independent as ind
from tests.support import independent_tables as tables
from tests.support.independent_tables import CORNERS, DEFINED, EVEN, LEAST, UNEQUAL
from tests.support.problems import library_problem
from ustat_pg.estimators import advantages
from ustat_pg.predictions import (
    best_table,
    count_table,
    frac_reward_zero_std,
    gradient_covariance,
    gradient_mse,
    mean_gradient,
)

SIZES = range(1, 7)
SPEAKING = [(name, size) for name, size in product(DEFINED, SIZES) if size >= LEAST.get(name, 1)]
speaking = pytest.mark.parametrize(("name", "size"), SPEAKING)

#: (problem, group size, batch size, design)
CASES = [
    *product((UNEQUAL, EVEN, CORNERS), (2, 3, 4), [1], ["iid"]),
    *product((UNEQUAL, CORNERS), [3], [2], ["iid"]),
    (EVEN, 3, 2, "without-replacement"),
    (EVEN, 2, 3, "fixed"),
]
cases = pytest.mark.parametrize(
    "case", CASES, ids=lambda c: "-".join(str(getattr(e, "name", e)) for e in c)
)


def irregular(size):
    """A table without any regularity."""
    number = [Fraction((7 * i * i + 3 * i + 5) % 11 - 4, 1 + i % 4) for i in range(2 * size)]
    return tables.Table((Fraction(0), *number[:size]), (*number[size:], Fraction(0)))


@pytest.mark.parametrize("name", [name for name in DEFINED if name != "vanilla"])
@pytest.mark.parametrize(
    ("shift", "spread"),
    [(0.0, 1.0), (-9.0, 1.0), (0.6, 0.01), (3e6, 1e6)],
    ids=["of both signs", "below 0", "nearly equal", "large"],
)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=5)
def test_advantages_of_any_rewards(name, shift, spread, seed):
    rng = np.random.default_rng(seed)
    # Subsets are few enough in small groups alone.
    for size in rng.integers((3, 33), (9, 65))[: 1 if "pass" in name else 2]:
        z = shift + spread * rng.normal(size=size)
        wanted = DEFINED[name](np.array([*map(Fraction, z)])).astype(float)
        if name == "maxrl" and z.mean() <= 0:
            wanted = np.zeros(size)  # the mean is no pass rate
        near = {"rtol": 1e-9, "atol": 1e-12 * np.abs(z).max()}
        np.testing.assert_allclose(advantages(name, z), wanted, **near)


@speaking
def test_tables_and_weights(name, size):
    table, library = tables.table_of(DEFINED[name], size), count_table(name, size)
    near = {"rtol": 0, "atol": 1e-14 * max(1, size)}
    np.testing.assert_allclose(library.successes[1:], np.array(table.won[1:], dtype=float), **near)
    np.testing.assert_allclose(
        library.failures[:-1], np.array(table.lost[:-1], dtype=float), **near
    )
    np.testing.assert_allclose(library.delta, np.array(table.delta, dtype=float), **near)
    assert library.unbiased == (set(table.delta) == {1})
    for p in map(Fraction, ("0", "1/7", "1/2", "9/10", "1")):
        chances = [comb(size - 1, m) * p**m * (1 - p) ** (size - 1 - m) for m in range(size)]
        expected = float(np.dot(chances, table.delta))
        assert float(library.weight(float(p))) == pytest.approx(expected, rel=1e-13, abs=1e-13)
    again, half = count_table(library.estimator, size), library.scaled(0.5)
    np.testing.assert_array_equal(again.successes[1:], library.successes[1:])
    np.testing.assert_array_equal(again.failures[:-1], library.failures[:-1])
    np.testing.assert_allclose(library.less(half).delta, half.delta, rtol=1e-14)
    np.testing.assert_allclose(half.weight(0.3), library.weight(0.3) / 2, rtol=1e-14)


@pytest.mark.parametrize("name", [*DEFINED, "irregular"])
@cases
def test_means_covariances_and_errors(case, name):
    problem, size, batch_size, design = case
    if size < LEAST.get(name, 1):
        return
    if name == "irregular":
        table = irregular(size)
        subtracted = tables.subtracted(table.advantages)
        numbers = map(float, (*table.won[1:], *table.lost[:-1]))
        name = "count-table:" + ",".join(map(repr, numbers))
    else:
        subtracted = tables.subtracted(DEFINED[name])
    law = ind.minibatch_law(problem, subtracted, size, batch_size, design)
    result = ind.read_off(law, ind.gradient(problem))
    moments = library_problem(problem).moments()
    setting = (name, size, batch_size, design)
    unit = float(result.mse)
    prediction = gradient_mse(moments, *setting)
    assert prediction.mse == pytest.approx(unit, rel=1e-12)
    covariance = gradient_covariance(moments, *setting)
    np.testing.assert_allclose(
        covariance, result.covariance.astype(float), rtol=0, atol=1e-12 * unit
    )
    mean = result.mean.astype(float)
    np.testing.assert_allclose(mean_gradient(moments, name, size), mean, rtol=0, atol=1e-13)
    g = ind.gradient(problem).astype(float)
    noise = float(result.covariance.trace()) / (mean @ mean)
    assert prediction.noise_to_signal == pytest.approx(noise, rel=1e-11)
    cosine = mean @ g / np.linalg.norm(mean) / np.linalg.norm(g)
    assert prediction.cosine == pytest.approx(cosine, rel=1e-12)
    bias = mean - g
    assert prediction.squared_bias == pytest.approx(bias @ bias, rel=1e-10, abs=1e-15)
    table = count_table(name, size)
    np.testing.assert_allclose(prediction.mean_factor, table.weight(moments.value), rtol=1e-12)
    squares = [
        float(ind.read_off(ind.group_law(problem, x, subtracted, size), ind.ZERO).mse)
        for x in problem.contexts
    ]
    np.testing.assert_allclose(table.second_moments(moments), squares, rtol=1e-11)
    assert (prediction.table is None) == (name in ("vanilla", "grpo", "group-mean"))


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name", ["vanilla", "std", "maxrl", "pass-at-k:2"])
@pytest.mark.parametrize("problem", [UNEQUAL, EVEN], ids=["unequal", "even"])
def test_the_best_table(problem, name, size):
    if size < LEAST.get(name, 1):
        return
    delta = tables.table_of(DEFINED[name], size).delta
    lost = tables.least_lost(problem, delta)
    result = best_table(library_problem(problem).moments(), size, [float(d) for d in delta])
    np.testing.assert_allclose(result.failures[:-1], lost, rtol=0, atol=1e-11)
    expected = [float(d) + a for d, a in zip(delta, lost, strict=True)]
    np.testing.assert_allclose(result.successes[1:], expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("name", ["std", "maxrl", "group-mean", "grpo"])
@pytest.mark.parametrize("problem", [UNEQUAL, CORNERS], ids=["unequal", "corners"])
def test_dynamic_sampling_leaves_the_mean_over_groups_of_unequal_rewards(problem, name, size):
    subtracted = tables.subtracted(DEFINED[name])
    total, kept = 0 * ind.gradient(problem), Fraction(0)
    for x in problem.contexts:
        for prob, group in ind.groups(problem.outcomes(x), size):
            if len({o.reward for o in group}) == 2:
                share = problem.context_probs[x] * prob
                total = total + share * ind.group_gradient(
                    ind.moments(problem, x), subtracted, group
                )
                kept += share
    moments = library_problem(problem).moments()
    result = mean_gradient(moments, name, size, dynamic_sampling=True)
    np.testing.assert_allclose(result, (total / kept).astype(float), rtol=1e-12, atol=1e-14)
    assert frac_reward_zero_std(moments, size) == pytest.approx(float(1 - kept), rel=1e-12)


@pytest.mark.parametrize("size", SIZES)
def test_weights_that_have_a_name(size):
    for p in (0.0, 1 / 7, 0.5, 0.9, 1.0):
        q = 1 - p
        if size > 1:
            expected = sum(q**j for j in range(size - 1))
            assert count_table("maxrl", size).weight(p) == pytest.approx(expected, rel=1e-13)
        for k in range(1, min(size, 3) + 1):
            result = count_table(f"pass-at-k:{k}", size).weight(p)
            assert result == pytest.approx(k * q ** (k - 1), rel=1e-13, abs=1e-13)
