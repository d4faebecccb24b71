"""Intervals of means and of their functions hold what they say, and say where they know nothing."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import beta, binom, skew
from scipy.stats import t as student_law

from ustat_pg.inference import (
    Means,
    beside,
    log_ratio,
    means,
    norm_interval,
    pairs,
    product_interval,
    ratio,
    ratio_interval,
    student,
)
from ustat_pg.llm.pool.estimates import frac_reward_zero_std
from ustat_pg.llm.pool.moments import reward_tail


def at_most(share, times):
    """The misses that more than which have a chance below 1e-4 where the share is true."""
    return binom.isf(1e-4, times, share)


@pytest.mark.parametrize("freedom", [1, 2, 4, 5.7, 49, 1e5])
@pytest.mark.parametrize("looks", [1, 5])
def test_student_s_quantiles(freedom, looks):
    wanted = student_law.isf(0.025 / looks, freedom)
    assert student(freedom, looks) == pytest.approx(wanted, rel=1e-4)


def misses(draw, count, true, times=3000):
    """How often the true mean of columns of a law is below and above."""
    low, high = means(draw((count, times))).interval()
    return (low > true).sum(), (high < true).sum()


@pytest.mark.parametrize("count", [3, 4, 12])
def test_means_of_normal_parts(count):
    """Three parts miss by 2.5% on either side; with T² for T(T-1), or one degree of freedom more, by 4.5%."""
    rng = np.random.default_rng(1)
    for side in misses(rng.standard_normal, count, 0.0):
        assert binom.ppf(1e-4, 3000, 0.012) <= side <= at_most(0.026, 3000)


@pytest.mark.parametrize("count", [15, 60])
def test_means_of_skewed_parts(count):
    """Student's law misses exponential parts from above in 9% at 15 and in 5% at 60."""
    rng = np.random.default_rng(2)
    below, above = misses(rng.standard_exponential, count, 1.0)
    assert below <= at_most(0.025, 3000)
    assert above <= at_most(0.035, 3000)


def test_ends_of_skewed_parts_are_hall_s():
    """For the skewness that is seen, and 2/k more of it where k parts carry the spread."""
    values = np.array([0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.1, 1.4, 1.8, 2.3, 3.0, 4.0])
    n, d = 12, values - values.mean()
    g = skew(values, bias=False) * (1 + 2 * (d**4).sum() / (d**2).sum() ** 2)
    freedom = min(11, 2 * n / ((d**4).mean() / (d**2).mean() ** 2 - 1))
    x = -student_law.isf(0.025, freedom) / math.sqrt(n)
    bent = 3 * math.sqrt(n) / g * (np.cbrt(1 + g * (x - g / (6 * n))) - 1)
    high = means(values[:, None]).interval()[1][0]
    assert high == pytest.approx(values.mean() - bent * values.std(ddof=1) / math.sqrt(n), rel=1e-4)


def test_a_skewness_that_is_known_widens_what_parts_do_not_show():
    """One end, and by less where parts are few: Hall's cubic turns back where a mean is very skewed."""
    low, high = (np.array(ends) for ends in zip(*(
        (found.interval(skewness)[0][0], found.interval(skewness)[1][0])
        for found in [means(np.tile([-2.0, -1.0, 0.0, 1.0, 2.0], 10)[:, None])]
        for skewness in (-math.inf, 0.5, 1.5)
    ), strict=True))  # fmt: skip
    assert np.ptp(low) == 0
    assert high[0] < high[1] < high[2] < 1.3 * high[0]
    few = means(np.array([[-2.0], [-1.0], [0.0], [1.0], [2.0]]))
    assert few.interval(0.9)[1][0] == few.interval(1.5)[1][0] < 4.5 * few.interval()[1][0]
    skewed = [means(np.array([0.0] * 7 + [far, 1.0, 1.0])[:, None]) for far in (2.0, 4.0, 8.0)]
    reach = [(each.interval()[1][0] - each.full[0]) / each.se[0] for each in skewed]
    assert reach == sorted(reach)


def test_an_error_has_the_freedom_that_its_kurtosis_leaves():
    values = np.array([6.0, -6.0, 2.0, -2.0] + [1.0, -1.0] * 8)[:, None]
    kurtosis = (values**4).mean() / (values**2).mean() ** 2
    low, high = means(values).interval()
    half = student(2 * 20 / (kurtosis - 1)) * values.std(ddof=1) / math.sqrt(20)
    assert half > 1.05 * student(19) * values.std(ddof=1) / math.sqrt(20)
    assert (low[0], high[0]) == pytest.approx((-half, half))


def test_what_two_of_twenty_parts_carry_has_no_upper_end():
    values = np.zeros((20, 3))
    values[:2, 0], values[:4, 1], values[:2, 2] = 5.0, 5.0, -5.0
    found = means(values)
    low, high = found.interval()
    assert np.isfinite([low[0], low[1], high[1]]).all()
    assert high[0] == math.inf
    assert (low[2], high[2]) == (-math.inf, math.inf)
    assert found.carried(0) == "2 of 20 prompts carry 100% of it, and larger ones may be unseen"
    assert found.carried(1) is None
    nothing = means(np.zeros((20, 1)))
    assert nothing.interval()[1][0] == math.inf
    assert nothing.carried(0).startswith("none of 20 prompts")
    sure = means(np.full((20, 1), 3.0))
    assert [end[0] for end in sure.interval()] == [3.0, 3.0]


@pytest.mark.parametrize("count", [4, 40])
def test_parts_that_are_equally_far_carry_alike(count):
    """All of them, whatever their unit and however few they are; of one far from the rest about one."""
    spread = np.tile([1.0, -1.0], count // 2)
    alone = np.eye(1, count)[0]
    found = means(np.stack([spread, 1e6 * spread, alone, 0 * spread], axis=1)).carriers
    assert found[[0, 1, 3]] == pytest.approx([count, count, 0])
    assert 1 < found[2] < 2.5


@pytest.mark.parametrize(("carriers", "known"), [(2.45, False), (2.55, True)])
def test_an_end_is_known_from_two_and_a_half_carriers_on(carriers, known):
    def parts(third):
        return np.array([[5.0], [5.0], [third]] + [[0.0]] * 37)

    third = brentq(lambda x: means(parts(x)).carriers[0] - carriers, 0, 5)
    found = means(parts(third))
    assert (found.interval()[1][0] < math.inf) == known
    assert (found.carried(0) is None) == known


def test_parts_below_five_show_no_law_and_above_four_degrees_of_freedom():
    """One part carries all: of four the interval is Student's, of five an end is not known."""
    for count in (4, 5, 40):
        column = np.eye(1, count).T
        (low,), (high,) = means(column).interval()
        freedom = 3 if count == 4 else 4
        half = student_law.isf(0.025, freedom) * column.std(ddof=1) / math.sqrt(count)
        assert low == pytest.approx(1 / count - half, rel=1e-4)
        assert high == (pytest.approx(1 / count + half, rel=1e-4) if count == 4 else math.inf)


def test_usual_parts_are_carried_by_enough():
    rng = np.random.default_rng(3)
    for law in (rng.standard_normal, rng.standard_exponential):
        found = means(law((50, 500)))
        assert np.isfinite(found.interval()).all(axis=0).mean() > 0.95


def test_the_squared_length_of_a_small_mean():
    """With errors that do not grow with the value the true one would be above in a fifth of the times."""
    rng, times = np.random.default_rng(4), 800
    mean, scales = np.array([0.05, 0.2, 0.0]), np.array([1.0, 0.4, 0.2])
    low, high = np.array(
        [norm_interval(mean + scales * rng.normal(size=(40, 3))) for _ in range(times)]
    ).T
    assert (low > mean @ mean).sum() <= at_most(0.03, times)
    assert (high < mean @ mean).sum() <= at_most(0.03, times)


def test_the_square_of_one_mean_has_the_squares_of_its_ends():
    column = np.random.default_rng(10).normal(size=(60, 1))
    column = 0.4 + (column - column.mean()) / column.std(ddof=1)
    half, k = student(59) / math.sqrt(60), means(column).carriers[0]
    low, high = norm_interval(column)
    assert (0.4 - half) ** 2 * 0.6 < low < (0.4 - half) ** 2 * 1.01
    half *= math.sqrt(1 + 2 / k)
    assert (0.4 + half) ** 2 * 0.99 < high < (0.4 + half) ** 2 * 1.2


def test_a_mean_that_errors_may_have_shortened():
    """Errors are along one axis, the mean along the other: it may have lost what it had along the first."""
    wave = np.tile([1.0, -1.0], 20)
    vectors = np.column_stack([wave, 0.3 + 0.01 * np.repeat([1.0, -1.0], 20)])
    _, high = norm_interval(vectors)
    assert high > 0.09 + 3 * student(39) ** 2 / 40


def test_a_product_of_one_mean_with_itself_is_its_squared_length():
    vectors = 0.2 + np.random.default_rng(6).normal(size=(40, 3))
    low, high = norm_interval(vectors)
    assert product_interval(vectors, vectors) == pytest.approx((low, high), rel=1e-12)
    # A longer vector, and one the other way.
    assert product_interval(vectors, 3 * vectors) == pytest.approx((3 * low, 3 * high), rel=1e-12)
    assert product_interval(vectors, -vectors) == pytest.approx((-high, -low), rel=1e-12)
    assert pairs(vectors, -vectors).full[0] == pytest.approx(-pairs(vectors).full[0], rel=1e-12)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_product_of_two_small_means_of_rare_parts(sign):
    """One part in twenty has anything: ends hold, and are known in most of the times."""
    rng, times, found = np.random.default_rng(8), 400, []
    for _ in range(times):
        seen = rng.random((100, 1)) < 0.05
        shared = seen * (1 + rng.normal(size=(100, 3)))
        other = sign * (shared + 0.3 * seen * rng.normal(size=(100, 3)))
        found.append(product_interval(shared, other))
    low, high = np.array(found).T
    assert np.isfinite(found).all(axis=1).mean() > 0.5
    assert (low > sign * 3 * 0.05**2).sum() <= at_most(0.04, times)
    assert (high < sign * 3 * 0.05**2).sum() <= at_most(0.04, times)


def variance_at_its_most(coins, counted):
    """Unbiased p (1 - p) of 16 throws, whose error is that of pairs of throws where p is a half."""
    n, heads = len(coins), coins.sum()
    full = heads * (n - heads) / (n * (n - 1))

    def without(throws, left):
        return (heads - throws) * (n - left - heads + throws) / ((n - left) * (n - left - 1))

    both = without(coins[:, None] + coins, 2)[..., None] if counted else None
    return Means(np.array([full]), without(coins, 1)[:, None], without_two=both)


def test_errors_that_parts_make_together_alone():
    rng, times, far = np.random.default_rng(7), 1500, {True: 0, False: 0}
    for _ in range(times):
        coins = (rng.random(16) < 0.5).astype(float)
        for counted in far:
            (low,), (high,) = variance_at_its_most(coins, counted).interval()
            far[counted] += not low - 1e-9 <= 0.25 <= high + 1e-9
    assert far[True] <= at_most(0.05, times)
    assert far[False] > 0.15 * times


def test_what_two_parts_make_together_is_the_second_term_of_a_u_statistic():
    """Of the mean of x_i x_j over pairs: its exact variance is that of both terms, on the average."""
    rng, found, values = np.random.default_rng(9), [], []
    for _ in range(4000):
        x = rng.standard_normal(8)

        def mean(total, squares, count):
            return (total**2 - squares) / (count * (count - 1))

        total, squares = x.sum(), (x**2).sum()
        both = mean(total - x[:, None] - x, squares - x[:, None] ** 2 - x**2, 6)
        one = mean(total - x, squares - x**2, 7)
        full = np.array([mean(total, squares, 8)])
        alone = Means(full, one[:, None]).se[0] ** 2
        found.append(Means(full, one[:, None], without_two=both[..., None]).se[0] ** 2 - alone)
        values.append(full[0])
    # All of it is of pairs: 2/(n (n-1)).
    assert np.mean(found) == pytest.approx(2 / 56, rel=0.06)
    assert np.var(values) == pytest.approx(2 / 56, rel=0.15)


@pytest.mark.parametrize(("prompts", "rollouts"), [(5, 8), (5, 16), (12, 8)])
def test_prompts_that_all_have_the_least_silent_share(prompts, rollouts):
    """Half of the rewards of each are 1. By the spread of prompts alone 7 to 33% are above."""
    rng, times, sizes = np.random.default_rng(11), 300, np.array([2, 4, 8])
    outside = np.zeros((2, 3))
    for _ in range(times):
        frame = frac_reward_zero_std((rng.random((prompts, rollouts)) < 0.5).astype(float), sizes)
        outside += [frame.low > 0.5 ** (sizes - 1), frame.high < 0.5 ** (sizes - 1)]
    assert (outside <= at_most(0.04, times)).all(), outside


def test_an_error_of_rollouts_widens_no_share_of_prompts_that_differ():
    """Half of the prompts have no signal: what their rollouts make is no error of the share."""
    table = np.repeat([[0.0] * 8, [0.0, 1.0] * 4], 20, axis=0)
    (row,) = frac_reward_zero_std(table, [2]).itertuples()
    spread = means(np.repeat([1.0, 3 / 7], 20)[:, None])
    assert (row.low, row.high) == pytest.approx(np.concatenate(spread.interval()), rel=1e-9)


def test_rewards_whose_squares_may_have_no_variance():
    rng, shape = np.random.default_rng(13), (60, 8)
    heavy = rng.standard_t(3, shape), np.exp(rng.normal(size=shape)), rng.standard_cauchy(shape)
    light = rng.normal(size=shape), rng.random(shape), rng.normal(size=shape) < -1.9, np.ones(shape)
    few = rng.integers(0, 5, shape), (rng.random(shape) < 0.02) * rng.integers(1, 3, shape)
    assert [reward_tail(each) for each in heavy] == [6.0] * 3
    assert [reward_tail(each.astype(float)) for each in (*light, *few)] == [0.0] * 6


@pytest.mark.parametrize(("rate", "size"), [(0.02, 4), (0.02, 8), (0.3, 8)])
def test_shares_of_few_prompts(rate, size):
    """Half of the prompts have no success. Student's law misses in 6 to 11%, all on one side."""
    rng, times = np.random.default_rng(5), 400
    rates = np.array([0.0, 2 * rate])
    true = np.mean((1 - rates) ** size + rates**size)
    outside = np.zeros(2)
    for _ in range(times):
        prompts = rng.choice(rates, 20)
        frame = frac_reward_zero_std((rng.random((20, 8)) < prompts[:, None]).astype(float), [size])
        outside += [frame.low[0] > true, frame.high[0] < true]
    assert (outside <= at_most(0.03, times)).all(), outside


def test_a_share_of_few_prompts_has_the_trials_that_its_error_leaves():
    counts = np.array([0] * 17 + [1, 2, 4])
    table = (np.arange(8) < counts[:, None]).astype(float)
    shares = np.array([1 - c * (8 - c) / 28 for c in counts])
    p, d = shares.mean(), shares - shares.mean()
    trials = p * (1 - p) * 20 / shares.var(ddof=1)
    freedom = min(19, max(4, 40 / ((d**4).mean() / (d**2).mean() ** 2 - 1)))
    trials *= (student_law.isf(0.025, trials - 1) / student_law.isf(0.025, freedom)) ** 2
    (row,) = frac_reward_zero_std(table, [2]).itertuples()
    assert row.low == pytest.approx(beta.ppf(0.025, trials * p, trials * (1 - p) + 1), rel=1e-3)
    assert row.high == pytest.approx(beta.isf(0.025, trials * p + 1, trials * (1 - p)), rel=1e-3)


def parts_of(law, correlation, top, bottom):
    """Twelve parts of two columns, with these means and this correlation."""
    if law == "mirrored":
        # What is linear in these has no skewness, and no tails that take degrees of freedom.
        apart = np.tile([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], (3, 1))
    else:
        apart = np.random.default_rng(12).standard_exponential((12, 2))
        apart -= apart.mean(axis=0)
        apart @= np.linalg.inv(np.linalg.cholesky(apart.T @ apart / 12)).T
    own = math.sqrt(1 - correlation**2)
    return [top, bottom] + apart @ np.array([[1.0, correlation], [0.0, own]])


def first_root(function, start):
    """Where a function that falls is 0; 0 where it begins below, or never falls so far."""
    return brentq(function, start, 1e6, xtol=1e-13) if function(start) > 0 > function(1e6) else 0.0


MEANS = [(3.0, 2.0), (3.0, 0.3), (0.3, 2.0), (0.3, 0.3), (3.0, -0.1), (3.0, -2.0), (-3.0, 2.0)]
"""Numerators and denominators, some of which may be 0, and are below it."""


@pytest.mark.parametrize("law", ["mirrored", "skewed"])
@pytest.mark.parametrize("correlation", [-0.9, 0.0, 0.9])
@pytest.mark.parametrize(("top", "bottom"), MEANS)
def test_a_ratio_may_be_what_a_test_of_the_difference_does_not_refuse(
    law, correlation, top, bottom
):
    """Fieller's: at its ends x - r y has a mean of as many of its own errors as are the quantile's."""
    x, y = (columns := parts_of(law, correlation, top, bottom)).T

    def error(values):
        return values.std(ddof=1) / math.sqrt(12)

    apart = x - top / bottom * y if bottom > 0 else -y
    down, up = student_law.isf(0.025, 11), student_law.isf(0.025, 11)
    if law == "skewed":
        low, high = means((apart - apart.mean())[:, None]).interval()
        down, up = -low[0] / error(apart), high[0] / error(apart)
        assert abs(down - up) > 0.02
    low, high = ratio_interval(means(columns))
    wanted = first_root(lambda r: (x - r * y).mean() - down * error(x - r * y), 0.0)
    assert low == pytest.approx(wanted, rel=1e-4)
    unlimited = bottom <= up * error(y)
    assert (high == math.inf) == unlimited
    if not unlimited:
        over = first_root(lambda r: (x - r * y).mean() + up * error(x - r * y), top / bottom)
        assert high == pytest.approx(max(over, 0.0), rel=1e-4)
    found = ratio(means(columns))
    assert found.interval == (low, high)
    if bottom > 0:
        assert (found.value, found.se) == pytest.approx((top / bottom, error(apart) / bottom))
    else:
        assert found.value == math.inf
        assert math.isnan(found.se)


@pytest.mark.parametrize("correlation", [-0.9, 0.0, 0.9])
@pytest.mark.parametrize(("least", "most"), [(1.5, 4.0), (0.0, 4.0), (2.0, 2.0)])
def test_a_ratio_to_what_has_its_own_interval(correlation, least, most):
    """Donner and Zou's: the errors on each side are those of two intervals, and the correlation stays."""
    columns = parts_of("mirrored", correlation, 3.0, 2.0)
    half = student_law.isf(0.025, 11) * columns[:, 0].std(ddof=1) / math.sqrt(12)

    def apart(r, error):
        return math.sqrt(half**2 - 2 * r * correlation * half * error + (r * error) ** 2)

    low, high = ratio_interval(means(columns), (least, most))
    wanted = first_root(lambda r: 3 - 2 * r - apart(r, most - 2), 0.0)
    assert low == pytest.approx(wanted, rel=1e-4)
    if least == 0:
        assert high == math.inf
    else:
        wanted = first_root(lambda r: 3 - 2 * r + apart(r, 2 - least), 1.5)
        assert high == pytest.approx(wanted, rel=1e-4)


def test_a_ratio_of_what_is_not_known_may_be_anything():
    assert ratio_interval(means(np.ones((1, 2)))) == (0.0, math.inf)
    lost = ratio(means(np.full((6, 2), np.nan)))
    assert math.isnan(lost.value)
    assert lost.interval == (0.0, math.inf)


def log_of(four):
    return np.log(four[0] / four[1] / (four[2] / four[3]))


def test_a_ratio_of_ratios_has_the_interval_of_its_logarithm():
    """By deleting each part: what it changes is a part of a mean."""
    rng = np.random.default_rng(7)
    four = rng.standard_exponential((30, 4)) @ (np.eye(4) + 0.5) + 1
    one, other = means(four[:, :2]), means(four[:, 2:])
    whole = log_of(four.mean(axis=0))
    without = np.array([log_of(np.delete(four, k, axis=0).mean(axis=0)) for k in range(30)])
    values = whole + 29 * (without.mean() - without)
    found, wanted = log_ratio(one, other), means(values[:, None])
    low, high = wanted.interval()
    ends = [math.exp(each[0] - values.mean() + whole) for each in (low, high)]
    assert (found.value, *found.interval) == pytest.approx((math.exp(whole), *ends))
    assert found.se == pytest.approx(math.exp(whole) * wanted.se[0])
    same = log_ratio(one, one)
    assert (same.value, same.se, same.interval) == (1.0, 0.0, (1.0, 1.0))
    third = one.apply(lambda columns: columns * np.array([3.0, 1.0]))
    found = log_ratio(third, one)
    assert found.low == found.value == found.high == pytest.approx(3.0)
    # One of four that is not positive has no logarithm.
    for place in range(4):
        signs = np.where(np.arange(4) == place, -1.0, 1.0)
        turned = [means(four[:, part] * signs[part]) for part in (slice(0, 2), slice(2, 4))]
        lost = log_ratio(*turned)
        assert math.isnan(lost.value)
        assert lost.interval == (0.0, math.inf)


def test_means_beside_one_another_are_of_the_same_parts():
    columns = np.random.default_rng(8).normal(size=(9, 3))
    both = beside(means(columns[:, :1], 3, "steps"), means(columns[:, 1:], 3, "steps"))
    whole = means(columns, 3, "steps")
    np.testing.assert_allclose(both.full, whole.full, rtol=1e-12)
    np.testing.assert_allclose(both.without, whole.without, rtol=1e-12)
    assert (both.looks, both.parts) == (3, "steps")
