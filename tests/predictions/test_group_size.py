"""Group sizes against every feasible one in exact arithmetic, at edges, and what is refused."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from simulations.interior_problems.location_bandit import LocationBandit
from tests.support.refusals import refusals, refuses
from ustat_pg.moments.record import Moments
from ustat_pg.predictions import (
    MseConstants,
    covariance_parts,
    critical_budget,
    gap_group_size,
    group_size_advice,
    mse_constants,
    near_budget,
    optimal_group_size,
    paired_constants,
    paper_group_size,
    robust_group_size,
)
from ustat_pg.problems import SoftmaxBandit, example_problem, problem_from_mapping, random_problem
from ustat_pg.validation import changed

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


def survey(c, budget, fixed=0, each=None, population=None):
    """Compare a module's advice with every feasible group size, one by one, in exact arithmetic."""
    moments = moments_of(c.c1, c.c2, c.c3)
    c = mse_constants(moments)  # the same numbers, as they are after rounding
    advice = group_size_advice(
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
    assert float(errors[advice.group_size]) == pytest.approx(float(least), rel=1e-12)
    powers = {2**k for k in range(1, 64) if 2**k <= largest}
    wanted = powers | {advice.group_size} if costly else set(feasible)
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
    assert perhaps[0] <= low <= surely[0] <= advice.group_size <= surely[-1] <= high <= perhaps[-1]


@given(constants(), st.integers(2, 400))
def test_the_advice_is_the_best_of_all_divisors(c, budget):
    survey(c, budget)


@given(constants(), st.integers(2, 300), st.integers(0, 40), st.integers(1, 5), st.integers(1, 200))
def test_advice_with_costs_is_the_best_of_all_group_sizes(c, budget, fixed, each, population):
    assume(fixed + 2 * each <= budget)
    survey(c, budget, fixed, each)
    survey(c, budget, fixed, each, population)


@given(constants(), st.integers(2, 400), st.integers(1, 100))
def test_advice_without_replacement_is_the_best_of_all_divisors(c, budget, population):
    survey(c, budget, population=population)


@given(constants(), st.floats(0, 20), st.floats(0.1, 5), st.integers(2, 200), st.integers(1, 50))
def test_no_real_group_size_beside_the_optimum_has_less_error(c, fixed, each, population, times):
    budget = 2.0 * times * (fixed + 2 * each)
    # All prompts are in use where a group is no larger.
    full = (budget / population - fixed) / each

    def error(size, share=1.0):
        return (fixed + each * size) * (share * c.c1 + c.c2 / size + c.c3 / size / (size - 1))

    def error_of_few(size):
        return error(size, (population - budget / (fixed + each * size)) / (population - 1))

    costs = {"prompt_cost": fixed, "output_cost": each}
    star = optimal_group_size(c, **costs)
    near = 1 + (star - 1) * np.array([0.5, 0.97, 1.03, 2.0])
    assert (error(star) <= error(near) * (1 + 1e-12)).all()
    star = optimal_group_size(c, **costs, population=population, budget=budget)
    near = 1 + (star - 1) * np.array([0.5, 0.97, 1.03, 2.0])
    assert star >= full * (1 - 1e-12)
    near = near[near >= full]
    assert (error_of_few(star) <= error_of_few(near) * (1 + 1e-12)).all()


def noise(c, size):
    """K times the error of a budget K."""
    return c.c1 * size + c.c2 + c.c3 / (size - 1)


@given(constants(), st.integers(2, 3000), st.floats(0.01, 2.0))
def test_nearest_and_critical_budget(c, budget, signal):
    sizes = np.arange(2, budget + 1)
    least = noise(c, min(max(1 + math.sqrt(c.c3 / c.c1), 2.0), budget))
    flat = sizes[noise(c, sizes) <= 1.05 * least * (1 - 1e-9)]
    nearby, size = near_budget(c, budget)
    assert nearby % size == 0
    assert noise(c, size) <= 1.05 * least * (1 + 1e-9)
    assert abs(nearby - budget) <= np.minimum(budget % flat, -budget % flat).min(initial=budget)
    best = c.c1 + c.c2 + 2 * math.sqrt(c.c1 * c.c3)
    assert critical_budget(c, signal) == pytest.approx(best / signal, rel=1e-12)


@given(constants(), st.booleans(), st.sampled_from([None, 100]))
def test_robust_group_size_covers_the_worst_case_of_a_grid(c, known, population):
    sizes = np.array([2, 3, 4, 6, 8, 12, 16, 24, 48])
    batches = 48 // sizes
    ends = {"c1": (c.c1 / 4, 5 * c.c1), "c3": (c.c3 / 2, 2 * c.c3)}
    middle = (c.c2,) * 2 if known else (0.0, 3 * c.c2)
    share = 1.0 if population is None else (population - batches) / (population - 1)
    worst = np.ones(len(sizes))
    for c1, c2, c3 in product(
        *(np.linspace(*pair, 4) for pair in (ends["c1"], middle, ends["c3"]))
    ):
        errors = (share * c1 + c2 / sizes + c3 / sizes / (sizes - 1)) / batches
        worst = np.maximum(worst, errors / errors.min())
    size, found = robust_group_size(
        c, **ends, group_sizes=sizes, batch_sizes=batches, c2=None if known else middle,
        population=population,
    )  # fmt: skip
    np.testing.assert_allclose(found, worst, rtol=1e-10)
    assert worst[sizes == size] <= worst.min() * (1 + 1e-10)


@given(constants(), st.sampled_from(["c1", "c2", "c3", "c1 c3", "c1 c2 c3"]))
def test_a_constant_without_an_upper_end_may_be_all_that_counts(c, without):
    sizes = np.array([2, 3, 4, 6, 8, 12, 16, 24, 48])
    ends = {name: (getattr(c, name) / 2, 2 * getattr(c, name)) for name in ("c1", "c2", "c3")}
    ends |= {name: (ends[name][0], math.inf) for name in without.split()}
    far = {name: (low, 1e15 if high == math.inf else high) for name, (low, high) in ends.items()}
    designs = {"group_sizes": sizes, "batch_sizes": 48 // sizes}
    size, found = robust_group_size(c, **ends, **designs)
    np.testing.assert_allclose(found, robust_group_size(c, **far, **designs)[1], rtol=1e-6)
    assert found[sizes == size] == found.min()


def test_curves_are_arrays_on_request():
    c = MseConstants(0.1, 1.0, 2.0, 3.0)
    result = c.mse(np.array([[2.0], [2.5]]), np.array([1.0, 2.0, 4.0]))
    assert result.shape == (2, 3)
    assert result[1, 2] == pytest.approx((0.1 + 1 / 2.5 + 2 / (2.5 * 1.5)) / 4)
    assert isinstance(c.mse(2), float)
    assert c.mse(1, estimator="vanilla") == pytest.approx(3.1)


@pytest.mark.parametrize("seed", range(5))
def test_one_prompt_or_equal_prompts_have_no_optimum_below_the_budget(seed):
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
        assert advice.group_size == 97
        for budget in (96, 1000):
            advice = group_size_advice(moments, budget)
            assert advice.group_size == budget
            assert advice.g_interval[1] == budget
            assert group_size_advice(moments, budget, output_cost=1).group_size == budget
            # Three prompts would do, but two thirds of a group are of no use either.
            assert group_size_advice(moments, budget, prompt_cost=6).group_size == budget - 6


def test_rounding_gives_no_spread_at_an_interior_optimum():
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
    # Prompts whose gradients nearly agree.
    alike = changed(moments_of(1.0, 1.0, 2.0), mean_gradient_sq=1 - 1e-6)
    assert mse_constants(alike).c1 == pytest.approx(1e-6)


def test_the_share_of_groups_without_a_signal():
    moments = EXAMPLE.moments()
    assert group_size_advice(moments, 8).table[0].frac_reward_zero_std is None
    table = group_size_advice(moments, 8, frac_reward_zero_std=EXAMPLE.frac_reward_zero_std).table
    # Prompt 1: solved with probability 1/2. Prompt 2: 1, -.5, .5, .3 and 0, from arms (.2, .4, .4).
    for row in table:
        laws = ((0.6, (0.5, 0.5)), (0.4, (0.2, 0.24, 0.16, 0.24, 0.16)))
        expected = sum(w * sum(p**row.group_size for p in law) for w, law in laws)
        assert row.frac_reward_zero_std == pytest.approx(expected, rel=1e-12)
    numbers = group_size_advice(moments, 8, frac_reward_zero_std=lambda size: 1 / size).table
    assert [row.frac_reward_zero_std for row in numbers] == [0.5, 0.25, 0.125]
    wrong = {"frac_reward_zero_std": lambda size: np.ones(3)}
    refuses(r"frac_reward_zero_std has shape \(3,\)", group_size_advice, moments, 8, **wrong)


def test_certain_constants_have_the_advice_and_a_c1_that_may_be_0_larger_groups():
    known = MseConstants(0.1, 0.5, 1.0)
    table = group_size_advice(known, 64).table
    designs = [row.group_size for row in table], [row.batch_size for row in table]
    best, worst = robust_group_size(known, (0.1, 0.1), (1.0, 1.0), *designs)
    assert best == group_size_advice(known, 64).group_size
    assert worst.tolist() == pytest.approx([row.ratio_to_best for row in table])
    wide, _ = robust_group_size(known, (-0.3, 0.1), (1.0, 1.0), *designs)
    assert wide > best
    nothing = MseConstants(0.0, 0.0, 0.0)
    assert robust_group_size(nothing, (0, 0), (0, 0), *designs)[1].tolist() == [1.0] * len(table)


C, OF_EXAMPLE = MseConstants(0.1, 1.0, 2.0), EXAMPLE.moments()


def advice(budget=64, **costs):
    return group_size_advice(OF_EXAMPLE, budget, **costs)


def robust(c1=(0.0, 1.0), c3=(0.0, 1.0), size=2):
    return robust_group_size(C, c1, c3, [size], [1])


test_refused = refusals(
    (lambda: advice(1), "budget is 1: it must be a whole number of at least 2"),
    (lambda: advice(10**6 + 3), "pays for 1,000,003 outputs: at most 1,000,000 are allowed"),
    (lambda: advice(prompt_cost=-1), "prompt cost is -1.0: it must be at least 0"),
    (lambda: advice(output_cost=0), "output cost is 0.0: it must be positive"),
    (lambda: advice(5, prompt_cost=4), "5: one prompt with two outputs costs 6"),
    (lambda: C.mse(1), "group size is 1.0: leave-one-out needs more than 1"),
    (lambda: C.mse(0.5, estimator="oracle"), "0.5: it must be at least 1"),
    (lambda: C.mse(2, batch_size=0), "batch size is 0.0: it must be positive"),
    (lambda: C.mse(2, estimator="critic"), "estimator 'critic' has no curve"),
    (lambda: C.mse(2, 3, population=2), "it can be at most the population"),
    (lambda: MseConstants(-1e-9, 1.0, 2.0), "c1"),
    (lambda: C.least_mse(0), r"budget is 0\.0"),
    (lambda: optimal_group_size(C, population=4), "given together"),
    (lambda: gap_group_size(np.eye(2), np.eye(2), [0.2, 1.0], 2.5), r"must exceed 1/\(2λ\) = 2.5"),
    (lambda: paired_constants(1.0, 1.0, 0.5, 1), "group size is 1"),
    (lambda: covariance_parts(moments_of(0.1, 1.0, 1.0)), "only traces"),
    (lambda: critical_budget(C, -1.0), "gradient_sq is -1"),
    (lambda: near_budget(C, 1), "budget is 1"),
    (lambda: robust(c1=(2.0, 1.0)), "c1 is"),
    (lambda: robust(c3=(1.0,)), "c3 is"),
    (lambda: robust(c3=("low", "high")), "c3 is"),
    (lambda: robust(c1=(0.0, math.nan)), "c1 is"),
    (lambda: robust(c1=(math.inf, math.inf)), "c1 is"),
    (lambda: robust(c1=0.5), "c1 is"),
    (lambda: robust(size=1), "leave-one-out needs"),
)


def test_constants_stand_for_their_moments():
    moments = EXAMPLE.moments()
    whole = EXAMPLE.context_probs @ EXAMPLE.frac_reward_zero_std(8)
    by_moments = group_size_advice(moments, 64, frac_reward_zero_std=EXAMPLE.frac_reward_zero_std)
    by_constants = group_size_advice(
        mse_constants(moments),
        64,
        frac_reward_zero_std=lambda size: (
            EXAMPLE.context_probs @ EXAMPLE.frac_reward_zero_std(size)
        ),
    )
    assert by_constants == by_moments
    assert by_constants.table[2].frac_reward_zero_std == pytest.approx(whole)
    wrong = {"frac_reward_zero_std": EXAMPLE.frac_reward_zero_std}
    refuses(r"one per context \(0\)", group_size_advice, mse_constants(moments), 64, **wrong)
