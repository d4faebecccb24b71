"""U-statistics against their definitions, tuple by tuple, and against known statistics."""

from __future__ import annotations

import dataclasses
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.refusals import refuses
from ustat_pg.ustatistics import (
    covariance_kernel,
    covariance_ustatistic,
    covariance_variance_components,
    hoeffding,
    ustatistic,
    variance_components,
)

COMPONENTS = ("zeta_1", "zeta_2", "variance")


def half_square(a, b):
    return (a - b) ** 2 / 2


def skewness_kernel(a, b, c):
    """The symmetric kernel of order 3 whose mean is the third cumulant."""
    mixed = a**2 * b + a**2 * c + b**2 * a + b**2 * c + c**2 * a + c**2 * b
    return (a**3 + b**3 + c**3) / 3 - mixed / 2 + 2 * a * b * c


def matrix_kernel(first, second):
    """A matrix for each pair, neither a function of the difference nor degenerate."""
    (s, z), (t, w) = first, second
    sums = (s + t)[:, :, None] * (s * t)[:, None, :]
    return sums + (np.cos(z) + np.cos(w))[:, None, None]


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


@pytest.mark.parametrize("chunk", [1, 3, 7, None])
@pytest.mark.parametrize(
    ("order", "kernel"),
    [
        (1, lambda a: np.exp(a)),
        (2, lambda a, b: np.exp(a * b)),
        (3, lambda a, b, c: np.exp(a * b * c) + a + b + c),
        (4, lambda a, b, c, d: np.maximum(np.maximum(a, b), np.maximum(c, d))),
    ],
)
def test_value_is_the_mean_over_subsets(order, kernel, chunk):
    x = np.random.default_rng(order).normal(size=7)
    values = [kernel(*subset) for subset in itertools.combinations(x, order)]
    assert ustatistic(kernel, x, order, chunk) == pytest.approx(np.mean(values), rel=1e-14)


def test_matrix_valued_kernel_on_a_tuple_of_samples():
    s, z = random_sample(0, 6, 3)
    total = np.zeros((3, 3))
    for i, j in itertools.combinations(range(6), 2):
        total += np.outer(s[i] + s[j], s[i] * s[j]) + np.cos(z[i]) + np.cos(z[j])
    np.testing.assert_allclose(ustatistic(matrix_kernel, (s, z), chunk=4), total / 15, rtol=1e-13)


def concordance(first, second):
    return np.sign(first[0] - second[0]) * np.sign(first[1] - second[1])


@pytest.mark.parametrize("n", [3, 12])
def test_known_statistics(n):
    """The sample variance, the third k-statistic and Kendall's tau, by NumPy and SciPy."""
    x, y = np.random.default_rng(n).exponential(size=(2, n))
    y += 0.5 * x
    assert ustatistic(half_square, x[:2]) == pytest.approx(np.var(x[:2], ddof=1), rel=1e-13)
    assert ustatistic(half_square, x) == pytest.approx(np.var(x, ddof=1), rel=1e-13)
    assert ustatistic(skewness_kernel, x, 3) == pytest.approx(scipy.stats.kstat(x, 3), rel=1e-12)
    tau = scipy.stats.kendalltau(x, y).statistic
    assert ustatistic(concordance, (x, y)) == pytest.approx(tau, rel=1e-13)


def test_boolean_kernel_is_averaged_as_zeros_and_ones():
    assert ustatistic(lambda a, b: a + b > 0, [-3.0, 1.0, 2.0]) == pytest.approx(1 / 3)


def test_a_constant_far_from_zero_costs_no_accuracy():
    x = np.random.default_rng(3).normal(size=200)
    offset = 2.0**40
    value = ustatistic(lambda a, b: np.round(a * b * 4096) / 4096 + offset, x)
    pairs = [round(a * b * 4096) for a, b in itertools.combinations(x, 2)]
    exact = Fraction(sum(pairs), len(pairs) * 4096)
    # One rounding of the result itself, half a unit of 2^-12.
    assert abs(float(Fraction(float(value)) - int(offset) - exact)) <= 2.0**-13


@pytest.mark.parametrize("chunk", [1, 5, 1000])
def test_no_call_holds_more_tuples_than_the_chunk(chunk):
    sizes = []

    def kernel(a, b):
        sizes.append(len(a))
        return half_square(a, b)

    x = np.arange(40.0)
    ustatistic(kernel, x, chunk=chunk)
    variance_components(kernel, x, chunk=chunk)
    hoeffding(kernel, x, x, np.full(40, 1 / 40), chunk=chunk)
    # The check of symmetry makes a call of its own, of at most 32 tuples.
    assert max(sizes) <= max(chunk, 32)
    assert chunk < 32 or max(sizes) == min(chunk, 40 * 40)


def test_default_chunk_shrinks_with_the_size_of_a_sample():
    sizes = []

    def kernel(a, b):
        sizes.append(len(a))
        return (a * b).sum(axis=1)

    ustatistic(kernel, np.ones((70, 2**14)))
    assert max(sizes) == 64


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


# The compiled loop takes rows by seven and columns by 1024: all remainders, and both sides of a seam.
@pytest.mark.parametrize("n", [2, 3, 7, 8, 9, 13, 14, 15, 30])
@pytest.mark.parametrize("d", [1, 7, 1023, 1024, 1025, 2050])
def test_covariance_ustatistic_of_many_rows_and_columns(n, d):
    s, z = random_sample(n, n, d)
    expected = [math.fsum((s[:, k] - s[:, k].mean()) * (z - z.mean())) / (n - 1) for k in range(d)]
    value = covariance_ustatistic(s, z)
    np.testing.assert_allclose(value, expected, rtol=1e-10, atol=1e-14)
    if d < 10:
        np.testing.assert_allclose(value, ustatistic(covariance_kernel, (s, z)), rtol=1e-12)


def test_an_outlying_first_sample_costs_no_digits():
    s, z = random_sample(20, 1000, 3)
    s[0], z[0] = 1e6, 1e3
    exact = [np.cov(s[:, k].astype(np.longdouble), z, dtype=np.longdouble)[0, 1] for k in range(3)]
    np.testing.assert_allclose(covariance_ustatistic(s, z), np.array(exact, float), rtol=1e-13)


def unaligned(array):
    """The same numbers, one byte off."""
    room = np.empty(array.nbytes + 1, np.uint8)
    other = room[1:].view(array.dtype).reshape(array.shape)
    other[...] = array
    return other


def read_only(array):
    other = array.copy()
    other.setflags(write=False)
    return other


@pytest.mark.parametrize(
    "kind",
    [
        read_only,
        np.asfortranarray,
        lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
        lambda a: a[::-1].copy()[::-1],
        unaligned,
        lambda a: a.astype(">f8"),
        lambda a: a.astype(np.longdouble),
        np.ndarray.tolist,
        lambda a: a.view(np.recarray),
    ],
)
def test_equal_numbers_in_any_memory_give_equal_bytes(kind):
    s, z = random_sample(19, 9, 4)
    expected = covariance_ustatistic(s, z)
    for scores, rewards in ((kind(s), z), (s, kind(z)), (kind(s), kind(z))):
        np.testing.assert_array_equal(covariance_ustatistic(scores, rewards), expected)
    for scores, rewards in ((s.astype(int), z), (s, z.astype(int)), (s, z > 1)):
        plain = covariance_ustatistic(np.asarray(scores, float), np.asarray(rewards, float))
        np.testing.assert_array_equal(covariance_ustatistic(scores, rewards), plain)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_no_entry_that_is_not_finite_goes_unseen(bad):
    # Equal rewards make every weight 0, and 0 must not hide it; nor may the other infinity.
    s, z = random_sample(21, 9, 3)
    for rewards in (z, np.full(9, 0.5)):
        for row, column in itertools.product(range(9), range(3)):
            wrong = s.copy()
            wrong[row, column] = bad
            where = rf"scores holds .* at \[{row}, {column}\]"
            refuses(where, covariance_ustatistic, wrong, rewards)
            wrong[(row + 1) % 9, column] = -bad
            refuses("scores holds", covariance_ustatistic, wrong, rewards)
            refuses("scores holds", covariance_ustatistic, wrong[None], rewards[None])
    for scores in (s, np.full((9, 3), 0.1)):
        for row in range(9):
            wrong = z.copy()
            wrong[row] = bad
            refuses(rf"rewards holds .* at \[{row}\]", covariance_ustatistic, scores, wrong)


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
    slow = variance_components(covariance_kernel, (shifted_s, shifted_z))
    scale = max(1.0, float(max(abs(pair) for pair in pairs)) ** 2)
    for name, expected in zip(COMPONENTS, exact, strict=True):
        assert abs(getattr(fast, name)[0] - float(expected)) < 1e-13 * scale
        assert abs(getattr(slow, name)[0] - float(expected)) < 1e-13 * scale


def test_fast_components_agree_with_the_general_ones_on_many_samples():
    s, z = random_sample(5, 120, 4)
    fast = covariance_variance_components(s, z)
    slow = variance_components(covariance_kernel, (s, z), chunk=1000)
    for name in COMPONENTS:
        np.testing.assert_allclose(getattr(fast, name), getattr(slow, name), rtol=1e-11)


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


def test_arguments_are_left_as_they_were():
    s, z = random_sample(8, 5, 2)
    before = s.copy(), z.copy()
    covariance_ustatistic(s, z)
    covariance_variance_components(s, z)
    np.testing.assert_array_equal(s, before[0])
    np.testing.assert_array_equal(z, before[1])


# --- variance components -------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 5, None])
@pytest.mark.parametrize("n", [4, 5, 8])
def test_components_agree_with_all_four_tuples(n, chunk):
    s, z = random_sample(n + 10, n, 2)
    found = variance_components(matrix_kernel, (s, z), chunk)

    def h(i, j):
        return np.outer(s[i] + s[j], s[i] * s[j]) + np.cos(z[i]) + np.cos(z[j])

    for name, value in zip(COMPONENTS, four_tuple_components(h, n), strict=True):
        np.testing.assert_allclose(getattr(found, name), value, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("n", [4, 5, 6])
@pytest.mark.parametrize("law", FINITE_LAWS)
def test_components_are_unbiased_over_every_sample(law, n):
    atoms, p = FINITE_LAWS[law]
    table = half_square(atoms[:, None], atoms)
    h_1 = table @ p
    mean = h_1 @ p
    zeta_1, zeta_2 = h_1**2 @ p - mean**2, p @ table**2 @ p - mean**2

    def variance_of(rows):
        return np.var(atoms[rows], ddof=1)

    first = expectation(variance_of, p, n)
    exact = expectation(lambda rows: variance_of(rows) ** 2, p, n) - first**2

    def estimates(rows):
        found = variance_components(half_square, atoms[rows])
        return np.array([getattr(found, name) for name in COMPONENTS])

    def plug_in(rows):
        """A rival: the empirical law put for the true one in all three."""
        values = half_square(atoms[rows][:, None], atoms[rows])
        one = np.var(values.mean(axis=1))
        return np.array(
            [one, np.var(values), 2 / (n * (n - 1)) * (2 * (n - 2) * one + np.var(values))]
        )

    expected = [zeta_1, zeta_2, exact]
    np.testing.assert_allclose(expectation(estimates, p, n), expected, rtol=1e-12, atol=1e-14)
    # The negative control: this comparison does see a bias of a plausible size.
    assert (np.abs(expectation(plug_in, p, n) - expected)[[0, 2]] > 1e-3).all()


def test_an_estimate_may_be_negative():
    found = variance_components(half_square, [-1.0, -1.0, 1.0, 1.0])
    assert found.zeta_1 < 0
    assert found.variance < 0


def test_a_constant_added_to_the_kernel_changes_no_component():
    x = np.random.default_rng(9).normal(size=30)
    plain = variance_components(half_square, x)
    # The sum itself is rounded to 1.5e-8; squares taken without centring would be lost altogether.
    shifted = variance_components(lambda a, b: half_square(a, b) + 1e8, x)
    for name in COMPONENTS:
        assert getattr(shifted, name) == pytest.approx(getattr(plain, name), rel=1e-5, abs=1e-8)


# --- Hoeffding parts -----------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 4, None])
def test_parts_sum_to_the_statistic_sample_by_sample(chunk):
    generator = np.random.default_rng(10)
    atoms = (generator.normal(size=(5, 2)), generator.normal(size=5))
    p = generator.dirichlet(np.ones(5))
    rows = generator.integers(5, size=6)
    sample = (atoms[0][rows], atoms[1][rows])
    parts = hoeffding(matrix_kernel, sample, atoms, p, chunk)
    np.testing.assert_allclose(parts.total, ustatistic(matrix_kernel, sample), rtol=1e-12)
    table = np.array(
        [
            [np.outer(s + t, s * t) + np.cos(z) + np.cos(w) for t, w in zip(*atoms, strict=True)]
            for s, z in zip(*atoms, strict=True)
        ]
    )
    h_1 = np.einsum("ijkl,j->ikl", table, p)
    mean = np.einsum("i,ikl->kl", p, h_1)
    np.testing.assert_allclose(parts.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(
        parts.first, 2 * (h_1[rows].mean(axis=0) - mean), rtol=1e-12, atol=1e-13
    )


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("law", FINITE_LAWS)
def test_parts_have_mean_zero_are_uncorrelated_and_have_their_variances(law, n):
    atoms, p = FINITE_LAWS[law]

    def parts(rows):
        found = hoeffding(half_square, atoms[rows], atoms, p)
        return np.array([found.mean, found.first, found.second])

    means = expectation(parts, p, n)
    variance = p @ atoms**2 - (p @ atoms) ** 2
    np.testing.assert_allclose(means, [variance, 0, 0], atol=1e-14)
    moments = expectation(lambda rows: np.outer(parts(rows)[1:], parts(rows)[1:]), p, n)
    table = half_square(atoms[:, None], atoms)
    h_1 = table @ p
    h_2 = table - h_1[:, None] - h_1 + variance
    expected = np.diag([4 / n * (h_1**2 @ p - variance**2), 2 / (n * (n - 1)) * (p @ h_2**2 @ p)])
    np.testing.assert_allclose(moments, expected, atol=1e-13)


def test_parts_of_the_covariance_kernel_have_their_closed_forms():
    """With E s = 0: first-order part mean(s a) - g, kernel of the second -½ (s₁ a₂ + s₂ a₁)."""
    generator = np.random.default_rng(11)
    p = generator.dirichlet(np.ones(4))
    s, z = generator.normal(size=(4, 2)), generator.normal(size=4)
    s -= p @ s
    a = z - p @ z
    g = (p * a) @ s
    rows = np.array([0, 2, 2, 3, 1])
    parts = hoeffding(covariance_kernel, (s[rows], z[rows]), (s, z), p)
    np.testing.assert_allclose(parts.mean, g, rtol=1e-12)
    first = (s[rows] * a[rows, None]).mean(axis=0) - g
    np.testing.assert_allclose(parts.first, first, rtol=1e-12)
    second = np.mean(
        [-0.5 * (s[i] * a[j] + s[j] * a[i]) for i, j in itertools.combinations(rows, 2)], axis=0
    )
    np.testing.assert_allclose(parts.second, second, rtol=1e-12)


def test_parts_cannot_be_reassigned():
    parts = hoeffding(half_square, [0.0, 1.0], [0.0, 1.0], [0.5, 0.5])
    with pytest.raises(dataclasses.FrozenInstanceError):
        parts.mean = 1.0


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("order", "n"), [(1, 1), (2, 2), (4, 4)])
def test_as_many_samples_as_arguments_are_enough(order, n):
    x = np.arange(1.0, n + 1)
    assert ustatistic(lambda *arguments: sum(arguments), x, order) == pytest.approx(x.sum())


def test_too_few_samples_are_refused():
    s, z = random_sample(12, 3, 2)
    for n, least, *call in (
        (1, 2, ustatistic, half_square, z[:1]),
        (2, 3, ustatistic, skewness_kernel, z[:2], 3),
        (3, 4, ustatistic, lambda *arguments: sum(arguments), z, 4),
        (3, 4, variance_components, covariance_kernel, (s, z)),
        (3, 4, covariance_variance_components, s, z),
        (1, 2, covariance_ustatistic, s[:1], z[:1]),
        (1, 2, hoeffding, half_square, [1.0], [0.0, 1.0], [0.5, 0.5]),
    ):
        refuses(rf"{n} sample\(s\) given.*at least {least}", *call)


def test_asymmetric_kernels_are_refused():
    x = np.random.default_rng(13).normal(size=9)
    atoms, p = [0.0, 1.0], [0.5, 0.5]

    def skew(a, b):
        return a**2 * b

    for call in (
        lambda: ustatistic(skew, x),
        lambda: variance_components(skew, x),
        lambda: hoeffding(skew, x, atoms, p),
    ):
        refuses("kernel is not symmetric", call)
    # Symmetric in the first two arguments only, then in the last two only.
    refuses("arguments 1 and 2", ustatistic, lambda a, b, c: a * b + c, x, 3)
    refuses("arguments 0 and 1", ustatistic, lambda a, b, c: a + b * c, x, 3)
    # Symmetric on half of the pairs: a check of one pair alone could miss it.
    half = np.tile([-1.0, 1.0], 100)
    refuses("kernel is not symmetric", ustatistic, lambda a, b: np.where(a > 0, b, a + b), half)


def test_symmetry_is_asked_for_up_to_rounding_only():
    x = np.random.default_rng(14).normal(size=20)
    c = np.pi

    def rounded(a, b):
        return (a + c) + b

    assert any(rounded(a, b) != rounded(b, a) for a, b in itertools.combinations(x, 2))
    assert ustatistic(rounded, x) == pytest.approx(2 * x.mean() + c, rel=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_entries_that_are_not_finite_are_refused(bad):
    s, z = random_sample(15, 5, 2)
    s_bad, z_bad = s.copy(), z.copy()
    s_bad[3, 1] = z_bad[2] = bad
    for function, names in (
        (lambda a, b: ustatistic(covariance_kernel, (a, b)), (r"samples\[0\]", r"samples\[1\]")),
        (
            lambda a, b: variance_components(covariance_kernel, (a, b)),
            (r"samples\[0\]", r"samples\[1\]"),
        ),
        (
            lambda a, b: hoeffding(covariance_kernel, (s, z), (a, b), np.full(5, 0.2)),
            (r"atoms\[0\]", r"atoms\[1\]"),
        ),
        (covariance_variance_components, ("scores", "rewards")),
    ):
        refuses(f"{names[0]} holds {bad} at ", function, s_bad, z)
        refuses(f"{names[1]} holds {bad} at ", function, s, z_bad)


def test_kernel_values_of_the_wrong_kind_are_refused():
    x = np.arange(1.0, 6.0)
    for message, kernel in (
        (r"the kernel returned shape \(\) for 10 tuples", lambda a, b: (a * b).sum()),
        (r"the kernel returned shape \(2, 10\) for 10 tuples", lambda a, b: np.stack([a, b])),
        ("the kernel's value holds nan", lambda a, b: np.where(a + b == 9, np.nan, a + b)),
        ("not an array of numbers", lambda a, b: a * b * 1j),
    ):
        refuses(message, ustatistic, kernel, x)


def test_samples_of_the_wrong_structure_are_refused():
    s, z = random_sample(16, 5, 2)
    refuses(r"lengths \[5, 4\]", ustatistic, covariance_kernel, (s, z[:4]))
    refuses("empty tuple", ustatistic, half_square, ())
    refuses(r"samples\[0\] is a single number", ustatistic, half_square, (1.0, 2.0))
    refuses("samples is a single number", ustatistic, half_square, 1.0)
    for bad in (0, 2.5, -1):
        refuses("order is", ustatistic, half_square, z, order=bad)
        refuses("chunk is", ustatistic, half_square, z, chunk=bad)


def test_atoms_that_do_not_match_are_refused():
    s, z = random_sample(17, 5, 2)
    p = np.full(5, 0.2)
    refuses("one structure", hoeffding, covariance_kernel, (s, z), (s[:, :1], z), p)
    refuses("one structure", hoeffding, half_square, z, (z,), p)
    refuses("4 probabilities for 5 atoms", hoeffding, half_square, z, z, np.full(4, 0.25))
    refuses("must sum to 1", hoeffding, half_square, z, z, np.full(5, 0.25))


def test_scores_and_rewards_that_do_not_match_are_refused():
    s, z = random_sample(18, 5, 2)
    for function in (covariance_ustatistic, covariance_variance_components):
        for scores, rewards in [(s, z[:4]), (s[:, 0], z), (s, z[:, None]), (s[None], z)]:
            refuses("they must be", function, scores, rewards)
        refuses("overflow", function, s * 1e200, z * 1e200)
    for first, second in [
        ((s, z), (s[:, :1], z)),
        ((s, z), (s[:4], z[:4])),
        ((s, z[:4]), (s, z[:4])),
        ((s, z[:, None]), (s, z[:, None])),
    ]:
        refuses("both sides must be", covariance_kernel, first, second)
