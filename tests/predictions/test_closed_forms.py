"""Closed forms against what they are the closed form of: brute force, limits, other closed forms."""

from fractions import Fraction
from itertools import permutations, product
from math import comb
from types import SimpleNamespace

import numpy as np
import pytest

from simulations.interior_problems.location_bandit import LocationBandit
from tests.support.moments import record
from ustat_pg.estimators import grpo
from ustat_pg.policies import OutputSpace, PrefixSoftmax
from ustat_pg.predictions import (
    adaptive_advice,
    aggregated_mean,
    arcsine_objective,
    bernstein_objective,
    best_two_stage,
    bound_curve,
    constant_bound,
    constant_floor,
    count_table,
    critic_error_at_par,
    critic_excess,
    critic_rollouts_at_par,
    decay_constant,
    epoch_gap,
    gradient_mse,
    known_rates_bound,
    leading_ratio_bias,
    learned_values,
    mse_constants,
    one_step_gap,
    optimal_group_size,
    plan_mse,
    token_mean_bias,
)
from ustat_pg.predictions.closed_forms import (
    baseline_square,
    budget_noise,
    centred_moment,
    costly_slope,
    grpo_error,
    inner_product,
    left_share,
    minibatch_error,
    pair_noise,
    table_shares,
)
from ustat_pg.problems import (
    SoftmaxBandit,
    TokenProblem,
    random_problem,
    token_outcomes,
)

GRADED = random_problem(4, "plain").moments()
BINARY = SoftmaxBandit.tabular(
    [0.3, 0.7],
    [[0.4, -0.3, 0.1], [0.0, 0.9, -0.6]],
    [[[1.0], [0.0], [0.0]], [[0.0], [1.0], [0.0]]],
    np.ones((2, 3, 1)),
)
MOMENTS = BINARY.moments()


def mse(name, size=5, moments=GRADED, **words):
    return gradient_mse(moments, name, size, **words).mse


# A critic and other baselines.


def test_a_critic_at_par_costs_as_much_as_not_knowing_the_value():
    error = critic_error_at_par(GRADED, 5)
    excess = [critic_excess(GRADED, GRADED.value + sign * error, 5, 3) for sign in (1, -1)]
    paid = mse("grpo", batch_size=3) - mse("oracle", batch_size=3)
    assert np.mean(excess) == pytest.approx(paid, rel=1e-12)
    assert excess[0] == pytest.approx(
        mse("critic", batch_size=3, critic=GRADED.value + error) - mse("oracle", batch_size=3)
    )
    sure = SoftmaxBandit.tabular([1.0], [[0.0, -800.0]], [[[1.0], [0.0]]], np.ones((1, 2, 1)))
    assert np.isnan(critic_error_at_par(sure.moments(), 5))
    rollouts = critic_rollouts_at_par(GRADED, 5)
    assert 2 <= rollouts <= 4
    noise = GRADED.reward_variance / rollouts
    assert critic_excess(GRADED, GRADED.value, 5, 3, noise) == pytest.approx(paid, rel=1e-12)


@pytest.mark.parametrize("step_size", [0.3, 1.0])
def test_learned_values_match_a_loop_over_rewards(step_size):
    mean, variance = np.full(len(GRADED), -0.4), np.zeros(len(GRADED))
    for rollouts in range(1, 5):
        mean = (1 - step_size) * mean + step_size * GRADED.value
        variance = (1 - step_size) ** 2 * variance + step_size**2 * GRADED.reward_variance
        found = learned_values(GRADED, rollouts, step_size, start=-0.4)
        np.testing.assert_allclose(found, (mean, variance), rtol=1e-12)
        found = learned_values(GRADED, rollouts)
        expected = (GRADED.value, GRADED.reward_variance / rollouts)
        np.testing.assert_allclose(found, expected, rtol=1e-15)


# Groups, by every outcome.


def test_one_step_by_every_pair():
    parts = [
        (share, BINARY.policy.probs[x], BINARY.policy.scores(x), BINARY.mean_rewards[x])
        for x, share in enumerate(BINARY.context_probs)
    ]
    gradient = BINARY.gradient()
    assert one_step_gap(parts, lambda g: 1 - float(g @ gradient)) == pytest.approx(
        1 - gradient @ gradient
    )
    square = mse("grpo", 2, MOMENTS) + gradient @ gradient
    assert one_step_gap(parts, lambda g: float(g @ g)) == pytest.approx(square, rel=1e-12)


# Lengths.


def test_the_leading_bias_of_a_token_mean():
    """What is left of the exact mean goes with 1/B²: a quarter where B is doubled."""
    task = TokenProblem(OutputSpace(2, 3, end=True), [(), (0,)], lambda x, y: len(y) / 2 - len(x))
    policy = PrefixSoftmax.random(task.space, 2, seed=3, scale=0.7)
    moments = task.at(policy).length_moments()
    lengths = moments.context_probs @ moments.probs @ moments.lengths
    plain = aggregated_mean(moments, "sequence-sum", "grpo", 3) / lengths
    left = []
    for batch in (40, 80):
        lead = token_mean_bias(moments, 3, batch)
        np.testing.assert_allclose(lead, token_mean_bias(moments, 3) / batch, rtol=1e-14)
        exact = aggregated_mean(moments, "token-mean", "grpo", 3, batch) - plain
        assert np.linalg.norm(exact - lead) < 0.03 * np.linalg.norm(exact)
        left.append(exact - lead)
    assert np.linalg.norm(left[0] - 4 * left[1]) < 0.1 * np.linalg.norm(left[0])


def test_leading_ratio_bias_has_a_term_in_steps_and_one_in_squared_steps():
    task = TokenProblem(OutputSpace(2, 2), [(), (0,)], lambda x, y: float(y[-1] == len(x)))
    outcomes = token_outcomes(task.at(PrefixSoftmax.random(task.space, 2, seed=3)))

    def bias(steps, batch):
        words = {"learning_rate": 0.1, "minibatch": steps + 1}
        return leading_ratio_bias(outcomes, "std", 4, batch, **words)

    variance = 2 * (bias(1, 1) - bias(1, 2))
    squared = bias(1, 1) - variance
    assert squared > 0.01 * variance
    for steps, batch in ((2, 1), (3, 2), (5, 7)):
        expected = steps / batch * variance + steps**2 * squared
        assert bias(steps, batch) == pytest.approx(expected, rel=1e-9)


# What is climbed.


def test_division_by_a_deviation_climbs_the_arcsine_in_the_limit():
    p = np.array([0.0, 0.07, 0.5, 0.83, 1.0])
    result = arcsine_objective(p)
    np.testing.assert_allclose(np.sin(result / 2) ** 2, p, atol=1e-15)
    assert result[-1] == pytest.approx(np.pi)
    # What is left goes with 1/√G.
    off = [result - bernstein_objective(count_table("std", size), p) for size in (1000, 4000)]
    np.testing.assert_allclose(off[1], off[0] / 2, atol=1e-3)
    assert off[1].max() < 0.05


# Runs.


def test_epochs_by_every_order():
    """Two epochs of three prompts in every order: the mean of the squared displacement, step by step."""
    hills = LocationBandit.bump([-1.0, 0.0, 1.0], [-0.7, 0.8, 0.3])
    problem, basis = hills.at(hills.maximiser), hills.identifiable
    (curvature,) = hills.curvatures[:1]
    rates, start, size = np.array([0.3, 0.25, 0.2, 0.4, 0.1, 0.15]), 0.35, 2
    along, within = [], []
    for x in range(3):
        outcomes = problem.outcomes
        scores = problem.policy.scores(x)[outcomes.arms[x]] @ basis[:, 0]
        mean = square = 0.0
        for chosen in map(list, product(np.flatnonzero(outcomes.probs[x]), repeat=size)):
            chance = outcomes.probs[x][chosen].prod()
            estimate = grpo(outcomes.rewards[x][chosen]) @ scores[chosen] / size
            mean, square = mean + chance * estimate, square + chance * estimate**2
        along.append(mean)
        within.append(square - mean**2)
    assert np.ptp(along) > 0.01
    gaps = []
    for first, second in product(permutations(range(3)), repeat=2):
        order = [*first, *second]
        delta, variance = start, 0.0
        for rate, x in zip(rates, order, strict=True):
            delta = (1 - curvature * rate) * delta + rate * along[x]
            variance = (1 - curvature * rate) ** 2 * variance + rate**2 * within[x]
        gaps.append(curvature / 2 * (delta**2 + variance))
    found = epoch_gap(
        problem.moments(),
        basis,
        curvature,
        rates,
        group_size=size,
        batch_size=1,
        displacement=start,
    )
    assert found == pytest.approx(np.mean(gaps), rel=1e-10)
    whole = epoch_gap(
        problem.moments(),
        basis,
        curvature,
        rates,
        group_size=size,
        batch_size=3,
        displacement=start,
    )
    assert whole < found


def test_constant_and_decaying_rates_are_limits_of_the_curve():
    made = {"pl": 0.3, "smoothness": 1.1, "mse": 0.7}
    eta = 0.37
    floor = constant_floor(eta, **made)
    curve = bound_curve(2.0, np.full(400, eta), **made)
    assert curve[-1] == pytest.approx(floor, rel=1e-9)
    ratio = 1 - 2 * 0.3 * eta + 0.3 * 1.1 * eta**2
    steps = np.array([0, 1, 7])
    np.testing.assert_allclose(
        constant_bound(steps, 2.0, eta, **made) - curve[steps], ratio**steps * floor, rtol=1e-10
    )
    c, many = 4.1, np.arange(1, 60_001)
    # The start is forgotten as 1/T^{2μc - 1}: slowly.
    decayed = bound_curve(0.0, c / (many + 30), **made)
    assert len(many) * decayed[-1] == pytest.approx(decay_constant(c, **made), rel=5e-3)


# Groups sized by their rewards.


def test_advice_on_plans_is_the_best_of_all():
    stage_cost = 0.4

    def cost(plan, stages=0.0):
        found = plan_mse(MOMENTS, plan)
        pilot = int(plan.split("+")[0]) if "+" in plan else 0
        square = found.mse
        more = 0.0
        if pilot:
            p = MOMENTS.value
            more = stages * float(MOMENTS.context_probs @ (1 - p**pilot - (1 - p) ** pilot))
        return (found.expected_size + more) * square

    most = 4
    advice = adaptive_advice(MOMENTS, stage_cost=stage_cost, largest_group=most)
    fixed = {size: cost(str(size)) for size in range(2, most + 1)}
    assert advice.group_size == min(fixed, key=fixed.get)
    plans = {
        f"{first}+{more} if mixed": cost(f"{first}+{more} if mixed", stage_cost)
        for first in range(2, most)
        for more in range(1, most - first + 1)
    }
    best = min(plans, key=plans.get)
    assert advice.plan == best
    assert advice.plan_ratio == pytest.approx(plans[best] / fixed[advice.group_size], rel=1e-9)
    assert advice.plan_size == pytest.approx(plan_mse(MOMENTS, best).expected_size)
    plan, value = best_two_stage(MOMENTS, largest_group=most, stage_cost=stage_cost)
    assert (plan.text, value) == (best, pytest.approx(plans[best], rel=1e-9))
    bound = known_rates_bound(MOMENTS, most)[0]
    assert advice.bound_ratio == pytest.approx(bound / fixed[advice.group_size])


def test_the_formulas_keep_fractions_and_are_what_predictions_return():
    def exact(values):
        return [
            Fraction(value).limit_denominator(10**6) for value in np.atleast_1d(values).tolist()
        ]

    m = record()
    probs, *prompts = map(exact, (m.context_probs, m.value, m.reward_variance, m.fisher_trace))
    prompts += map(exact, (m.norm_advantage, m.norm_squared_advantage, m.gradient_sq))
    size, batch, (signal,) = Fraction(5), Fraction(2), exact(m.mean_gradient_sq)
    between = sum(p * row[-1] for p, row in zip(probs, zip(*prompts, strict=True), strict=True))
    oracle = pairs = vanilla = Fraction(0)
    for p, value, variance, fisher, cross, square, gradient in zip(probs, *prompts, strict=True):
        pair = pair_noise(variance, fisher, gradient)
        oracle += p * (square - gradient) / size
        pairs += p * grpo_error(size, square - gradient, pair)
        vanilla += p * (baseline_square(square, cross, fisher, -value) - gradient) / size
    for name, within in (("oracle", oracle), ("grpo", pairs), ("vanilla", vanilla)):
        value = minibatch_error(batch, between - signal, within)
        assert isinstance(value, Fraction)
        assert gradient_mse(m, name, 5, 2).mse == pytest.approx(float(value), rel=1e-14)
    c1, c2, c3 = between - signal, size * oracle, size * (size - 1) * (pairs - oracle)
    spent = budget_noise(size, c1, c2, c3)
    assert spent == size * batch * minibatch_error(batch, c1, pairs)
    assert mse_constants(m).mse(5, 2) * 10 == pytest.approx(float(spent), rel=1e-14)
    costs = costly_slope(Fraction(3), c2 / c1, c3 / c1)
    best = optimal_group_size(mse_constants(m), prompt_cost=3) - 1
    assert abs(sum(c * best**k for k, c in enumerate(reversed(costs)))) < 1e-12 * best**4
    assert (
        minibatch_error(batch, c1, pairs, left_share(batch, Fraction(7)))
        == (c1 * Fraction(5, 6) + pairs) / batch
    )


def test_the_second_moment_by_counts_is_that_of_all_groups_in_fractions():
    size, p = 3, Fraction(2, 5)
    one, other = (
        SimpleNamespace(
            successes=np.array([Fraction(a, n + 2) for n in range(size + 1)]),
            failures=np.array([Fraction(n - b, n + 1) for n in range(size + 1)]),
        )
        for a, b in ((3, 1), (-2, 5))
    )

    def mean(own, won, values):
        others = size - own
        law = [comb(others, m) * p**m * (1 - p) ** (others - m) for m in range(others + 1)]
        return sum(chance * value for chance, value in zip(law, values, strict=True))

    def expected(*tables, vectors):
        """E of the product of two estimates; a success adds one number, a failure another."""
        total = Fraction(0)
        for group in product((1, 0), repeat=size):
            n = sum(group)
            each = [
                sum((t.successes if z else t.failures)[n] * u[1 - z] for z in group) / size
                for t, u in zip(tables, vectors, strict=True)
            ]
            total += p**n * (1 - p) ** (size - n) * each[0] * each[1]
        return total

    score = 1 - p, -p
    gradient = p * (1 - p)
    known = p * score[0] ** 2, p * score[0] ** 2 + (1 - p) * score[1] ** 2, gradient**2
    second = centred_moment(table_shares(one, mean), *known)
    assert second == expected(one, one, vectors=(score, score))
    u, v = (Fraction(3), Fraction(-7)), (Fraction(1, 2), Fraction(5))
    (a, b), (c, d) = ((p * w[0], (1 - p) * w[1]) for w in (u, v))
    means = a * v[0], b * v[1], a * c, b * d, a * d, b * c
    inner = inner_product(table_shares(one, mean, other), means)
    assert inner == expected(one, other, vectors=(u, v))
