"""Estimators as tables by counts: the theory, and then the library, against a second mind's
enumeration in fractions (tests/support/independent_tables.py).
"""

from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np
import pytest

from tests.support import independent as ind
from tests.support import independent_tables as tables
from tests.support.independent_tables import CORNERS, DEFINED, EVEN, LEAST, UNEQUAL, max_rl
from tests.support.problems import library_problem
from ustat_pg.predictions import (
    best_table,
    count_table,
    gradient_covariance,
    gradient_mse,
    mean_gradient,
    silent_share,
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


@cache
def baseline(name):
    """What an estimator subtracts, whether or not that is a baseline: z - A."""
    return lambda m, z, w: z - DEFINED[name](z)


@cache
def arbitrary(size):
    """A table without any regularity."""
    number = [Fraction((7 * i * i + 3 * i + 5) % 11 - 4, 1 + i % 4) for i in range(2 * size)]
    return tables.Table((Fraction(0), *number[:size]), (*number[size:], Fraction(0)))


# ---------------------------------------------------------------- the theory


@speaking
def test_every_estimator_is_a_table_on_every_binary_group(name, size):
    table = tables.table_of(DEFINED[name], size)
    for bits in product((Fraction(0), Fraction(1)), repeat=size):
        z = np.array(bits)
        assert (DEFINED[name](z) == table.advantages(z)).all()


@cases
def test_mean_and_covariance_of_an_arbitrary_table(case):
    problem, size, batch_size, design = case
    table = arbitrary(size)
    law = ind.minibatch_law(
        problem, lambda m, z, w: z - table.advantages(z), size, batch_size, design
    )
    result = ind.read_off(law, ind.gradient(problem))
    expected = tables.closed(table, problem, batch_size, design)
    assert (result.mean == expected.mean).all()
    assert (result.covariance == expected.covariance).all()
    assert result.mse == expected.mse


# ---------------------------------------------------------------- the library


@speaking
def test_the_library_s_tables_and_weights(name, size):
    table, library = tables.table_of(DEFINED[name], size), count_table(name, size)
    near = {"rtol": 0, "atol": 1e-14 * max(1, size)}
    np.testing.assert_allclose(library.successes[1:], np.array(table.won[1:], dtype=float), **near)
    np.testing.assert_allclose(
        library.failures[:-1], np.array(table.lost[:-1], dtype=float), **near
    )
    np.testing.assert_allclose(library.delta, np.array(table.delta, dtype=float), **near)
    assert library.unbiased == (set(table.delta) == {1})
    for p in map(Fraction, ("0", "1/7", "1/2", "9/10", "1")):
        expected = float(tables.weight(table, p))
        assert float(library.weight(float(p))) == pytest.approx(expected, rel=1e-13, abs=1e-13)


@pytest.mark.parametrize("name", DEFINED)
@cases
def test_the_library_s_mean_covariance_and_error(case, name):
    problem, size, batch_size, design = case
    if size < LEAST.get(name, 1):
        return
    law = ind.minibatch_law(problem, baseline(name), size, batch_size, design)
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


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name", ["vanilla", "std", "maxrl", "pass-at-k:2"])
@pytest.mark.parametrize("problem", [UNEQUAL, EVEN], ids=["unequal", "even"])
def test_the_library_s_best_table(problem, name, size):
    if size < LEAST.get(name, 1):
        return
    delta = tables.table_of(DEFINED[name], size).delta
    lost = tables.least_lost(problem, delta)
    result = best_table(library_problem(problem).moments(), size, [float(d) for d in delta])
    np.testing.assert_allclose(
        result.failures[:-1], np.array(lost, dtype=float), rtol=0, atol=1e-11
    )
    expected = [float(d + a) for d, a in zip(delta, lost, strict=True)]
    np.testing.assert_allclose(result.successes[1:], expected, rtol=0, atol=1e-11)


# ---------------------------------------------------------------- dynamic sampling, pass@k, MaxRL


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("name", ["std", "maxrl", "group-mean", "grpo"])
@pytest.mark.parametrize("problem", [UNEQUAL, CORNERS], ids=["unequal", "corners"])
def test_dynamic_sampling_rescales_and_redrawing_a_prompt_s_group_reweights(problem, name, size):
    """Groups with unequal rewards, enumerated: among all prompts, and prompt by prompt."""
    table = tables.table_of(DEFINED[name], size)
    total, kept, redrawn = 0 * ind.gradient(problem), Fraction(0), 0 * ind.gradient(problem)
    for x in problem.contexts:
        m, here, mass = ind.moments(problem, x), 0 * ind.gradient(problem), Fraction(0)
        for prob, group in ind.groups(problem.outcomes(x), size):
            if len({o.reward for o in group}) == 2:
                here = here + prob * ind.group_gradient(m, baseline(name), group)
                mass += prob
        p = m.value
        assert mass == 1 - p**size - (1 - p) ** size
        total, kept = (
            total + problem.context_probs[x] * here,
            kept + problem.context_probs[x] * mass,
        )
        if mass:  # a prompt that is always or never solved has no such group
            assert (here == tables.weight(table, p) * m.g).all()
            redrawn = redrawn + problem.context_probs[x] * here / mass
    mean = tables.closed(table, problem).mean
    assert (total / kept == mean / kept).all()
    moments = library_problem(problem).moments()
    result = mean_gradient(moments, name, size, dynamic_sampling=True)
    np.testing.assert_allclose(result, (mean / kept).astype(float), rtol=1e-12, atol=1e-14)
    assert silent_share(moments, size) == pytest.approx(float(1 - kept), rel=1e-12)
    if problem is UNEQUAL:
        # A prompt's group drawn again until it is mixed points elsewhere.
        a, b = redrawn.astype(float), mean.astype(float)
        assert (a @ b) ** 2 < (1 - 1e-6) * (a @ a) * (b @ b)


@pytest.mark.parametrize("size", SIZES)
def test_weights_that_have_a_name(size):
    for p in map(Fraction, ("1/7", "1/2", "9/10")):
        q = 1 - p
        if size > 1:
            table = tables.table_of(max_rl, size)
            assert tables.weight(table, p) == (1 - q ** (size - 1)) / p
            assert tables.weight(table, p) == sum(q**j for j in range(size - 1))
        for k in range(1, min(size, 3) + 1):
            if size >= LEAST[f"pass-at-k:{k}"]:
                table = tables.table_of(DEFINED[f"pass-at-k:{k}"], size)
                assert tables.weight(table, p) == k * q ** (k - 1)
