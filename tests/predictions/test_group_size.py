"""Group sizes: against every feasible one in exact arithmetic, and against minimisers of SciPy.

Constants, curves and optima with costs and populations are searched for in ``simulations/regimes/sizes.py``.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.linalg import solve_continuous_lyapunov
from scipy.optimize import minimize_scalar

from ustat_pg.moments import Moments
from ustat_pg.predictions import (
    MseConstants,
    covariance_parts,
    gap_group_size,
    gradient_covariance,
    group_size,
    group_size_advice,
    mse_constants,
    optimal_group_size,
    paired_constants,
    paper_group_size,
)
from ustat_pg.problems import (
    KINDS,
    LocationBandit,
    SoftmaxBandit,
    example_problem,
    problem_from_mapping,
    random_problem,
)
from ustat_pg.validation import InputError

every_kind = pytest.mark.parametrize("kind", KINDS)
EXAMPLE = problem_from_mapping(example_problem())


def moments_of(c1: float, c2: float, c3: float) -> Moments:
    """Two prompts with opposite gradients: c1 is ‖g(X)‖² itself; c3 >= c1 is needed."""
    return Moments(
        context_probs=np.array([0.5, 0.5]),
        value=np.zeros(2),
        reward_variance=np.ones(2),
        fisher_trace=np.full(2, c3 - c1),
        norm_advantage=np.zeros(2),
        norm_squared_advantage=np.full(2, c1 + c2),
        gradient_sq=np.full(2, c1),
        mean_gradient_sq=0.0,
        reward_range=(-1.0, 1.0),
    )


@st.composite
def constants(draw):
    """Constants of a possible problem, c3 >= 2 c1, over many orders of magnitude."""
    c1 = 10 ** draw(st.floats(-4, 1))
    return MseConstants(
        c1, c1 * 10 ** draw(st.floats(-2, 4)), 2 * c1 * (1 + 10 ** draw(st.floats(-3, 4)))
    )


def rational_mse(c, size, batch, population=None):
    """(1/B)(f c1 + c2/G + c3/(G(G-1))) in exact arithmetic."""
    share = Fraction(1)
    if population is not None:
        share = Fraction(population - batch, max(population - 1, 1))
    c1, c2, c3 = map(Fraction, (c.c1, c.c2, c.c3))
    return (share * c1 + c2 / size + c3 / (size * (size - 1))) / batch


def survey(module, c, budget, fixed=0, each=None, population=None):
    """Compare a module's advice with every feasible group size, one by one, in exact arithmetic."""
    moments = moments_of(c.c1, c.c2, c.c3)
    c = mse_constants(moments)  # the same numbers, as they are after rounding
    advice = module.group_size_advice(
        moments, budget, prompt_cost=fixed, output_cost=each, population=population
    )
    costly, each = fixed != 0 or each is not None, 1 if each is None else each
    cap = population or budget
    largest = (budget - fixed) // each
    feasible = {}
    for size in range(2, largest + 1):
        batch = budget // (fixed + each * size)
        if costly:
            feasible[size] = min(batch, cap)
        elif budget % size == 0 and batch <= cap:
            feasible[size] = batch
    errors = {size: rational_mse(c, size, batch, population) for size, batch in feasible.items()}
    least = min(errors.values())
    assert float(errors[advice.g_best]) == pytest.approx(float(least), rel=1e-12)
    powers = {2**k for k in range(1, 64) if 2**k <= largest}
    wanted = powers | {advice.g_best} if costly else set(feasible)
    assert [row.group_size for row in advice.table] == sorted(wanted)
    for row in advice.table:
        assert row.batch_size == feasible[row.group_size]
        error = errors[row.group_size]
        assert row.mse == pytest.approx(float(error), rel=1e-12)
        assert row.ratio_to_best == pytest.approx(float(error / least), rel=1e-11)
        assert row.ratio_to_best >= 1
    surely, perhaps = [], []
    for size in range(2, largest + 1):
        batch = Fraction(budget, fixed + each * size)
        if batch > cap and not costly:
            continue
        ratio = rational_mse(c, size, min(batch, Fraction(cap)), population) / least
        # On the border itself rounding decides.
        if ratio <= Fraction(105, 100) - Fraction(1, 10**9):
            surely.append(size)
        if ratio <= Fraction(105, 100) + Fraction(1, 10**9):
            perhaps.append(size)
    assert perhaps == list(range(perhaps[0], perhaps[-1] + 1))
    low, high = advice.g_interval
    assert perhaps[0] <= low <= surely[0] <= advice.g_best <= surely[-1] <= high <= perhaps[-1]


# ------------------------------------------------------------------- the optimum and the table


@given(constants(), st.integers(2, 400))
def test_the_advice_is_the_best_of_all_divisors(c, budget):
    survey(group_size, c, budget)


@given(constants(), st.integers(2, 300), st.integers(0, 40), st.integers(1, 5), st.integers(1, 200))
def test_with_costs_it_is_the_best_of_all_group_sizes(c, budget, fixed, each, population):
    assume(fixed + 2 * each <= budget)
    survey(group_size, c, budget, fixed, each)
    survey(group_size, c, budget, fixed, each, population)


@given(constants(), st.integers(2, 400), st.integers(1, 100))
def test_without_replacement_it_is_the_best_of_all_divisors(c, budget, population):
    survey(group_size, c, budget, population=population)


@given(constants())
def test_the_real_optimum(c):
    star = optimal_group_size(c)
    assert star == pytest.approx(1 + math.sqrt(c.c3 / c.c1))
    assert paper_group_size(c) == pytest.approx(star - 1)
    assert c.mse(star, 1 / star) == pytest.approx(c.least_mse(1), rel=1e-12)
    for other in (star * 1.01, 1 + (star - 1) / 1.01):
        assert c.mse(other, 1 / other) > c.least_mse(1)


# ------------------------------------------------------------------- the constants


def test_curves_are_arrays_where_asked():
    c = MseConstants(0.1, 1.0, 2.0, 3.0)
    found = c.mse(np.array([[2.0], [2.5]]), np.array([1.0, 2.0, 4.0]))
    assert found.shape == (2, 3)
    assert found[1, 2] == pytest.approx((0.1 + 1 / 2.5 + 2 / (2.5 * 1.5)) / 4)
    assert isinstance(c.mse(2), float)
    assert c.mse(1, baseline="vanilla") == pytest.approx(3.1)


@pytest.mark.parametrize("seed", range(5))
def test_one_prompt_or_prompts_alike_have_no_optimum_short_of_the_budget(seed):
    one = random_problem(seed, "one-context")
    alike = SoftmaxBandit.shared_linear(
        [0.3, 0.3, 0.4],
        [[1.0, 0.7]] * 3,
        np.random.default_rng(seed).normal(size=(4, 2)),
        np.broadcast_to(one.reward_values[:1, :1], (3, 4, one.reward_values.shape[2]))
        * np.arange(4)[None, :, None],
        np.broadcast_to(one.reward_probs[:1, :1], (3, 4, one.reward_probs.shape[2])),
    )
    for problem in (one, alike, random_problem(seed, "equal-rewards")):
        moments = problem.moments()
        c = mse_constants(moments)
        assert c.c1 == 0
        assert optimal_group_size(c) == paper_group_size(c) == math.inf
        advice = group_size_advice(moments, 97)
        assert (advice.g_star_exact, advice.g_star_paper) == (None, None)
        assert advice.g_best == 97
        for budget in (96, 1000):
            advice = group_size_advice(moments, budget)
            assert advice.g_best == budget
            assert advice.g_interval[1] == budget
            assert group_size_advice(moments, budget, output_cost=1).g_best == budget
            # Three prompts would do, but two thirds of a group are of no use either.
            assert group_size_advice(moments, budget, prompt_cost=6).g_best == budget - 6


def test_an_interior_optimum_leaves_no_spread_of_rounding():
    """There g is rounding noise, computed in two ways, whose difference must not be a c1."""
    one = LocationBandit.bump([1.0], targets=[0.35])
    moments = one.at(one.maximiser).moments()
    assert moments.gradient_sq[0] < 1e-20
    assert mse_constants(moments).c1 == 0
    twice = LocationBandit.bump([1.0, 1.0], targets=[0.35, 0.35])
    assert mse_constants(twice.at(twice.maximiser).moments()).c1 == 0
    apart = LocationBandit.bump([1.0, 1.0], targets=[0.35, 0.36])
    assert mse_constants(apart.at(apart.maximiser).moments()).c1 > 0


def test_a_small_spread_that_is_real_is_kept():
    c = mse_constants(moments_of(1e-18, 1.0, 1.0))
    assert c.c1 == 1e-18
    assert optimal_group_size(c) == pytest.approx(1e9)


# ------------------------------------------------------------------- the gap's optimum


def test_the_numbers_of_the_theory():
    first, third = np.diag([1.0, 0.02]), np.diag([1.0, 8.0])
    found = [gap_group_size(first, third, [0.2, 1.0], c) for c in (3, 50, 1e9)]
    assert found == pytest.approx([2.61, 3.92, 3.97], abs=0.005)
    assert found[2] == pytest.approx(1 + math.sqrt(9 / 1.02), rel=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_the_gaps_optimum_minimises_the_gap(seed):
    """½ tr(Λ Γ), Γ from SciPy's solver of (cΛ - ½) Γ + Γ (cΛ - ½) = c² Σ, over B = K/G."""
    generator = np.random.default_rng(seed)
    first, second, third = (m @ m.T for m in generator.normal(size=(3, 3, 3)))
    third *= 20
    bends = generator.uniform(0.2, 2.0, size=3)
    c = 0.6 / bends.min()

    def gap(size):
        sigma = size * (first + second / size + third / (size * (size - 1)))
        drift = c * np.diag(bends) - np.eye(3) / 2
        return np.trace(np.diag(bends) @ solve_continuous_lyapunov(drift, c**2 * sigma)) / 2

    expected = minimize_scalar(gap, bounds=(1.01, 200), method="bounded", options={"xatol": 1e-9})
    found = gap_group_size(first, third, bends, c)
    assert found == pytest.approx(expected.x, rel=1e-5)
    plain = 1 + math.sqrt(np.trace(third) / np.trace(first))
    assert abs(found - plain) > 1e-3 * plain
    # Where all curvatures are equal it is the optimum of the MSE, whatever c.
    for rate in (c, 10 * c):
        assert gap_group_size(first, third, np.full(3, bends.min()), rate) == pytest.approx(plain)


@every_kind
def test_the_parts_make_the_covariance(kind):
    for seed in range(2):
        problem = random_problem(seed, kind)
        moments, c = problem.moments(), mse_constants(problem.moments())
        first, second, third = parts = covariance_parts(moments)
        scale = max(1.0, float(moments.norm_squared_advantage.max()))
        for size, batch in ((2, 1), (5, 3)):
            expected = gradient_covariance(moments, "grpo", size, batch)
            found = (first + second / size + third / (size * (size - 1))) / batch
            assert np.allclose(found, expected, rtol=0, atol=1e-14 * scale)
        for part, trace in zip(parts, (c.c1, c.c2, c.c3), strict=True):
            assert np.trace(part) == pytest.approx(trace, rel=1e-9, abs=1e-14 * scale)
        basis = np.linalg.qr(np.random.default_rng(seed).normal(size=(problem.d, 2)))[0]
        for part, own in zip(parts, covariance_parts(moments, basis), strict=True):
            assert own.shape == (2, 2)
            assert np.allclose(own, basis.T @ part @ basis, rtol=0, atol=1e-14 * scale)


# ------------------------------------------------------------------- zero signal


def test_the_share_of_groups_without_a_signal():
    moments = EXAMPLE.moments()
    assert group_size_advice(moments, 8).table[0].zero_signal_share is None
    table = group_size_advice(moments, 8, zero_signal=EXAMPLE.zero_signal_share).table
    # Prompt 1: solved with probability 1/2. Prompt 2: 1, -.5, .5, .3 and 0, from arms (.2, .4, .4).
    for row in table:
        laws = ((0.6, (0.5, 0.5)), (0.4, (0.2, 0.24, 0.16, 0.24, 0.16)))
        expected = sum(w * sum(p**row.group_size for p in law) for w, law in laws)
        assert row.zero_signal_share == pytest.approx(expected, rel=1e-12)
    numbers = group_size_advice(moments, 8, zero_signal=lambda size: 1 / size).table
    assert [row.zero_signal_share for row in numbers] == [0.5, 0.25, 0.125]
    with pytest.raises(InputError, match=r"zero_signal has shape \(3,\)"):
        group_size_advice(moments, 8, zero_signal=lambda size: np.ones(3))


# ------------------------------------------------------------------- refusals


C = MseConstants(0.1, 1.0, 2.0)
GOOD = {
    "advice": (group_size_advice, {"moments": EXAMPLE.moments(), "budget": 64}),
    "constants": (MseConstants, {"c1": 0.1, "c2": 1.0, "c3": 2.0}),
    "curve": (C.mse, {"group_size": 2}),
    "least": (C.least_mse, {"budget": 64}),
    "pairs": (paired_constants, {"alpha": 1.0, "beta": 1.0, "gamma": 0.5, "group_size": 2}),
    "optimum": (optimal_group_size, {"constants": C}),
    "gap": (
        gap_group_size,
        {"first": np.eye(2), "third": np.eye(2), "curvatures": [0.2, 1.0], "c": 3.0},
    ),
    "parts": (covariance_parts, {"moments": EXAMPLE.moments()}),
}


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("advice", {"budget": 1}, "budget is 1: it must be a whole number of at least 2"),
        ("advice", {"budget": 10**13}, r"pays for 1e\+13 outputs: it may be at most 1e\+06"),
        ("advice", {"prompt_cost": -1}, "prompt cost is -1.0: it must be at least 0"),
        ("advice", {"output_cost": 0}, "output cost is 0.0: it must be positive"),
        ("advice", {"budget": 5, "prompt_cost": 4}, "5: one prompt with two outputs costs 6"),
        ("curve", {"group_size": 1}, "group size is 1.0: leave-one-out needs more than 1"),
        ("curve", {"group_size": 0.5, "baseline": "oracle"}, "0.5: it must be at least 1"),
        ("curve", {"batch_size": 0}, "batch size is 0.0: it must be positive"),
        ("curve", {"baseline": "critic"}, "baseline 'critic' has no curve"),
        ("curve", {"batch_size": 3, "population": 2}, "it can be at most the population"),
        ("constants", {"c1": -1e-9}, "c1"),
        ("least", {"budget": 0}, r"budget is 0\.0"),
        ("optimum", {"population": 4}, "given together"),
        ("gap", {"c": 2.5}, r"c is 2.5: it must exceed 1/\(2λ\) = 2.5"),
        ("pairs", {"group_size": 1}, "group size is 1"),
        ("parts", {"moments": moments_of(0.1, 1.0, 1.0)}, "traces only"),
    ],
)
def test_refused(name, changes, message):
    function, good = GOOD[name]
    with pytest.raises(InputError, match=message):
        function(**(good | changes))


# ------------------------------------------------------------------- planted errors


def test_constants_are_as_good_as_the_moments_they_are_made_of():
    moments = EXAMPLE.moments()
    whole = EXAMPLE.context_probs @ EXAMPLE.zero_signal_share(8)
    by_moments = group_size_advice(moments, 64, zero_signal=EXAMPLE.zero_signal_share)
    by_constants = group_size_advice(
        mse_constants(moments),
        64,
        zero_signal=lambda size: EXAMPLE.context_probs @ EXAMPLE.zero_signal_share(size),
    )
    assert by_constants == by_moments
    assert by_constants.table[2].zero_signal_share == pytest.approx(whole)
    with pytest.raises(InputError, match=r"one per context \(0\)"):
        group_size_advice(mse_constants(moments), 64, zero_signal=EXAMPLE.zero_signal_share)
