"""U-statistics against their definitions, tuple by tuple."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.refusals import refusals
from ustat_pg import ustatistics
from ustat_pg.ustatistics import (
    covariance_kernel,
    covariance_ustatistic,
    covariance_variance_components,
    hoeffding,
    ustatistic,
)

COMPONENTS = ("zeta_1", "zeta_2", "variance")


def half_square(a, b):
    return (a - b) ** 2 / 2


def scalar_covariance(s, z, i, j):
    return (s[i] - s[j]) * (z[i] - z[j]) / 2


def four_tuple_components(h, n):
    """zeta_1, zeta_2 and Var U by averages over all tuples of different indices."""
    four = [h(i, j) * h(k, m) for i, j, k, m in itertools.permutations(range(n), 4)]
    three = [h(i, j) * h(i, k) for i, j, k in itertools.permutations(range(n), 3)]
    two = [h(i, j) * h(i, j) for i, j in itertools.permutations(range(n), 2)]
    squared_mean = sum(four) / len(four)
    zeta_1 = sum(three) / len(three) - squared_mean
    zeta_2 = sum(two) / len(two) - squared_mean
    # Var U from its definition, E U^2 - (E h)^2: not from zeta_1 and zeta_2.
    value = sum(h(i, j) for i, j in itertools.permutations(range(n), 2)) / (n * (n - 1))
    return zeta_1, zeta_2, value * value - squared_mean


def random_sample(seed, n, d):
    generator = np.random.default_rng(seed)
    return generator.normal(size=(n, d)), generator.exponential(size=n)


FINITE_LAWS = {
    "skewed": (np.array([0.0, 1.0, 4.0]), np.array([0.5, 0.3, 0.2])),
    "two": (np.array([-1.0, 1.0]), np.array([0.25, 0.75])),
    # A symmetric law makes (x - y)²/2 degenerate: zeta_1 = 0.
    "degenerate": (np.array([-1.0, 1.0]), np.array([0.5, 0.5])),
}


def enumerate_samples(probabilities, n):
    """Every sample of size n as indices of atoms, with its probability."""
    for indices in itertools.product(range(len(probabilities)), repeat=n):
        yield np.array(indices), math.prod(probabilities[i] for i in indices)


def expectation(function, probabilities, n):
    return sum(weight * function(rows) for rows, weight in enumerate_samples(probabilities, n))


# --- value ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "kernel"),
    [
        (1, lambda a: np.exp(a)),
        (2, lambda a, b: np.exp(a * b)),
        (3, lambda a, b, c: np.exp(a * b * c) + a + b + c),
        (4, lambda a, b, c, d: np.maximum(np.maximum(a, b), np.maximum(c, d))),
    ],
)
def test_value_is_the_mean_over_subsets(order, kernel, monkeypatch):
    """In one call of the kernel and in many."""
    x = np.random.default_rng(order).normal(size=7)
    values = [kernel(*subset) for subset in itertools.combinations(x, order)]
    for entries in (1, 10, 2**21):
        monkeypatch.setattr(ustatistics, "CHUNK_ENTRIES", entries)
        assert ustatistic(kernel, x, order) == pytest.approx(np.mean(values), rel=1e-14)


def test_boolean_kernel_is_averaged_as_zeros_and_ones():
    assert ustatistic(lambda a, b: a + b > 0, [-3.0, 1.0, 2.0]) == pytest.approx(1 / 3)


# --- the covariance kernel -----------------------------------------------------------------------


def test_covariance_kernel_is_half_the_product_of_differences():
    s, z = random_sample(4, 8, 3)
    first, second = (s[:4], z[:4]), (s[4:], z[4:])
    expected = [[scalar_covariance(s[:, k], z, i, i + 4) for k in range(3)] for i in range(4)]
    np.testing.assert_allclose(covariance_kernel(first, second), expected, rtol=1e-14)
    flat = covariance_kernel((s[:4, 0], z[:4]), (s[4:, 0], z[4:]))
    np.testing.assert_allclose(flat, np.array(expected)[:, 0], rtol=1e-14)
    # Unsigned rewards must not wrap around.
    narrow = covariance_kernel(([1.0], np.array([0], np.uint8)), ([0.0], np.array([1], np.uint8)))
    assert narrow == -0.5


def test_an_outlying_first_sample_costs_no_digits():
    s, z = random_sample(20, 1000, 3)
    s[0], z[0] = 1e6, 1e3
    exact = [np.cov(s[:, k].astype(np.longdouble), z, dtype=np.longdouble)[0, 1] for k in range(3)]
    np.testing.assert_allclose(covariance_ustatistic(s, z), np.array(exact, float), rtol=1e-13)


small = st.integers(-5, 5)


@st.composite
def integer_samples(draw):
    n = draw(st.integers(4, 6))
    s = draw(st.lists(small, min_size=n, max_size=n))
    z = draw(st.lists(small, min_size=n, max_size=n))
    return s, z


@settings(max_examples=60, deadline=None)
@given(integer_samples(), st.sampled_from([0, 10**6, 2**40]), st.sampled_from([0, 10**6, 2**40]))
@example(([0, 0, 0, 0], [1, 2, 3, 4]), 10**6, 0)
@example(([1, -1, 1, -1], [1, -1, 1, -1]), 0, 0)
@example(([5, 0, 0, 0], [0, 0, 0, 5]), 2**40, 2**40)
def test_fast_forms_are_exact_on_integers_however_large_their_offset(sample, s_offset, z_offset):
    s, z = sample
    n = len(s)
    shifted_s = np.array([[entry + s_offset] for entry in s], dtype=np.float64)
    shifted_z = np.array([entry + z_offset for entry in z], dtype=np.float64)

    def h(i, j):
        return Fraction((s[i] - s[j]) * (z[i] - z[j]), 2)

    pairs = [h(i, j) for i, j in itertools.combinations(range(n), 2)]
    value = covariance_ustatistic(shifted_s, shifted_z)
    assert value.shape == (1,)
    assert abs(value[0] - float(sum(pairs) / len(pairs))) < 1e-12
    exact = four_tuple_components(h, n)
    fast = covariance_variance_components(shifted_s, shifted_z)
    scale = max(1.0, float(max(abs(pair) for pair in pairs)) ** 2)
    for name, expected in zip(COMPONENTS, exact, strict=True):
        assert abs(getattr(fast, name)[0] - float(expected)) < 1e-13 * scale


@pytest.mark.parametrize("batch", [(3,), (2, 3)])
def test_leading_axes_are_separate_samples(batch):
    generator = np.random.default_rng(6)
    s, z = generator.normal(size=(*batch, 6, 2)), generator.normal(size=(*batch, 6))
    values, components = covariance_ustatistic(s, z), covariance_variance_components(s, z)
    assert values.shape == components.variance.shape == (*batch, 2)
    for index in np.ndindex(*batch):
        np.testing.assert_allclose(values[index], covariance_ustatistic(s[index], z[index]))
        one = covariance_variance_components(s[index], z[index])
        for name in COMPONENTS:
            np.testing.assert_allclose(
                getattr(components, name)[index], getattr(one, name), rtol=1e-12
            )


def test_equal_scores_or_equal_rewards_give_exact_zeros():
    s, z = random_sample(7, 7, 2)
    for scores, rewards in [(np.full((7, 2), 0.1), z), (s, np.full(7, 0.3))]:
        components = covariance_variance_components(scores, rewards)
        results = [covariance_ustatistic(scores, rewards)]
        results += [getattr(components, name) for name in COMPONENTS]
        assert all((result == 0).all() for result in results)


# --- Hoeffding parts -----------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("law", FINITE_LAWS)
def test_parts_have_mean_zero_are_uncorrelated_and_have_their_variances(law, n):
    atoms, p = FINITE_LAWS[law]

    def parts(rows):
        result = hoeffding(half_square, atoms[rows], atoms, p)
        return np.array([result.mean, result.first, result.second])

    means = expectation(parts, p, n)
    variance = p @ atoms**2 - (p @ atoms) ** 2
    np.testing.assert_allclose(means, [variance, 0, 0], atol=1e-14)
    moments = expectation(lambda rows: np.outer(parts(rows)[1:], parts(rows)[1:]), p, n)
    table = half_square(atoms[:, None], atoms)
    h_1 = table @ p
    h_2 = table - h_1[:, None] - h_1 + variance
    expected = np.diag([4 / n * (h_1**2 @ p - variance**2), 2 / (n * (n - 1)) * (p @ h_2**2 @ p)])
    np.testing.assert_allclose(moments, expected, atol=1e-13)


# --- refusals ------------------------------------------------------------------------------------


def skew(a, b):
    return a**2 * b


test_bad_input_is_refused = refusals(
    (lambda s, z: ustatistic(skew, z), "not symmetric"),
    (lambda s, z: hoeffding(skew, z, [0.0, 1.0], [0.5, 0.5]), "not symmetric"),
    (lambda s, z: ustatistic(lambda a, b, c: a + b * c, z, 3), "not symmetric"),
    (lambda s, z: ustatistic(half_square, z[:1]), "1 sample.* at least 2"),
    (lambda s, z: covariance_variance_components(s[:3], z[:3]), "3 sample.* at least 4"),
    (lambda s, z: covariance_ustatistic(s[:1], z[:1]), "1 sample.* at least 2"),
    (lambda s, z: ustatistic(lambda a, b: (a * b).sum(), z), "kernel returned shape"),
    (lambda s, z: ustatistic(covariance_kernel, (s, z[:4])), r"lengths \[5, 4\]"),
    (lambda s, z: ustatistic(half_square, (1.0, 2.0)), "pass plain data as a list"),
    (lambda s, z: hoeffding(half_square, z, z, np.full(4, 0.25)), "4 probabilities for 5"),
    (lambda s, z: covariance_ustatistic(s, z[:4]), "they must be"),
    of=lambda call: call(np.abs(random_sample(16, 5, 2)[0]) + 1, random_sample(16, 5, 2)[1]),
)
