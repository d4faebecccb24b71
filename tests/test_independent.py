"""The theory, and then the library, against a second mind's enumeration (tests/support/independent.py)."""

from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest

from tests.support import independent as ind
from tests.support.independent import (
    BALANCED,
    DEGENERATE,
    PROBLEMS,
    SKEWED,
    THREE_CONTEXTS,
    TWO_ARMS,
    TWO_CONTEXTS,
    UNIFORM,
    UNIFORM_CONTEXTS,
    ZERO_SCORE,
    Problem,
    brute_force,
    brute_force_mse,
    moments,
)
from tests.support.problems import library_problem
from ustat_pg.predictions import gradient_covariance, gradient_mse

CONSTANT = Fraction(3, 7)
CLOSED = tuple(name for name in ind.BASELINES if name != "norm-weighted")
PROMPT_ONLY = ("vanilla", "oracle", "constant", "minimum-variance")
ONE_PROMPT = [p for p in PROBLEMS.values() if len(p.contexts) == 1]
ALL = list(PROBLEMS.values())

SKEWED_PAIR = ind.one_rewarded("skewed pair", "1/5 4/5", 0)
PAIRS = ind.tabular("pairs", "1/2 1/2", ["1/2 1/2", "1/3 2/3"], ["1 0", "0 4"])
#: A binary reward, independent of the arm, of pass rate 1/n: Assumption 2 holds and g = 0.
NO_GRADIENT = {
    n: ind.tabular(f"no gradient, p = 1/{n}", "1", ["1/2 1/2"], [f"1:1/{n},0:{n - 1}/{n} " * 2])
    for n in (2, 3, 4, 5)
}

#: (problem, group size, batch size, design)
CASES = [
    *((problem, 2, 1, "iid") for problem in ALL),
    *((problem, 3, 1, "iid") for problem in ALL),
    (SKEWED, 4, 1, "iid"),
    (TWO_ARMS, 6, 1, "iid"),
    (TWO_CONTEXTS, 4, 1, "iid"),
    (SKEWED, 2, 2, "iid"),
    (BALANCED, 2, 2, "iid"),
    (TWO_ARMS, 3, 3, "iid"),
    (TWO_CONTEXTS, 2, 2, "iid"),
    (TWO_CONTEXTS, 3, 2, "iid"),
    (THREE_CONTEXTS, 2, 2, "iid"),
    (DEGENERATE, 3, 2, "iid"),
    (ZERO_SCORE, 2, 3, "iid"),
    (UNIFORM_CONTEXTS, 2, 2, "iid"),
    (UNIFORM_CONTEXTS, 3, 2, "iid"),
    (UNIFORM_CONTEXTS, 2, 3, "iid"),
    *(
        (UNIFORM_CONTEXTS, group_size, batch_size, "without-replacement")
        for group_size in (2, 3)
        for batch_size in (1, 2, 3)
    ),
    (UNIFORM_CONTEXTS, 2, 3, "fixed"),
    (UNIFORM_CONTEXTS, 3, 3, "fixed"),
    (DEGENERATE, 3, 2, "fixed"),
    (DEGENERATE, 3, 1, "without-replacement"),
    (SKEWED, 3, 1, "fixed"),
    (SKEWED, 3, 1, "without-replacement"),
]


def label(value: object) -> str:
    return value.name if isinstance(value, Problem) else str(value)


cases = pytest.mark.parametrize(
    ("problem", "group_size", "batch_size", "design"),
    CASES,
    ids=["-".join(label(v) for v in case) for case in CASES],
)
every_problem = pytest.mark.parametrize("problem", ALL, ids=label)
one_prompt = pytest.mark.parametrize("problem", ONE_PROMPT, ids=label)


def exact(problem, name, group_size, batch_size=1, design="iid"):
    constant = CONSTANT if name == "constant" else Fraction(0)
    return brute_force(problem, name, group_size, batch_size, design, constant)


def distinct(truth, rivals):
    """The truth and all rivals differ from each other."""
    values = {"truth": truth, **rivals}
    same = [(a, b) for a, b in combinations(values, 2) if values[a] == values[b]]
    assert not same


# ---------------------------------------------------------------- the brute force itself


@every_problem
def test_moments_summed_in_two_ways(problem):
    for x in problem.contexts:
        m = moments(problem, x)
        assert ind.trace(m.fisher) == m.trF
        assert ind.trace(m.sigma) == m.tau - m.g2
        assert m.norm_a == m.norm_z - m.value * m.trF
        assert m.tau == m.norm_z2 - 2 * m.value * m.norm_z + m.value**2 * m.trF


@every_problem
@pytest.mark.parametrize("name", ind.BASELINES)
def test_counts_give_the_law_of_the_tuples(problem, name):
    for x in problem.contexts:
        assert ind.group_law_by_counts(problem, x, name, 3) == ind.group_law(problem, x, name, 3)


def test_tabular_scores_are_the_gradient_of_log_softmax():
    pi = np.array([float(p) for p in BALANCED.arm_probs[0]])
    logits, step = np.log(pi), 1e-6
    for k, j in product(range(4), range(4)):
        shift = step * np.eye(4)[j]
        up, down = (logits + sign * shift for sign in (1, -1))
        difference = (up[k] - np.log(np.exp(up).sum())) - (down[k] - np.log(np.exp(down).sum()))
        assert difference / (2 * step) == pytest.approx(float(BALANCED.scores[0][k][j]), abs=1e-8)


# ---------------------------------------------------------------- Lemma 1, Hoeffding


@every_problem
@pytest.mark.parametrize("group_size", [2, 3, 4])
def test_lemma_1_and_hoeffding_hold_group_by_group(problem, group_size):
    x = problem.contexts[-1]
    outcomes = problem.outcomes(x)
    if len(outcomes) ** group_size > 300:
        outcomes = outcomes[:3]
    grpo = ind.baseline_function(problem.outcomes(x), "grpo", Fraction(0))
    oracle = ind.baseline_function(problem.outcomes(x), "oracle", Fraction(0))
    full = ind.baseline_function(problem.outcomes(x), "group-mean", Fraction(0))
    g = moments(problem, x).g
    for group in product(outcomes, repeat=group_size):
        value = ind.group_gradient(group, grpo)
        assert value == ind.u_statistic(group)
        first, second = ind.hoeffding(problem, x, group)
        assert value == ind.add(g, ind.add(first, second))
        assert ind.group_gradient(group, oracle) == ind.add(g, first)
        shrink = Fraction(group_size - 1, group_size)
        assert ind.group_gradient(group, full) == ind.scale(shrink, value)


@every_problem
def test_the_parts_of_hoeffding_are_centred_and_uncorrelated(problem):
    for x in problem.contexts:
        law = {}
        for group in product(problem.outcomes(x), repeat=2):
            first, second = ind.hoeffding(problem, x, group)
            prob = group[0].prob * group[1].prob
            law[first + second] = law.get(first + second, Fraction(0)) + prob
        d = problem.dimension
        assert ind.mean_of(law) == (0,) * (2 * d)
        covariance = ind.covariance_of(law)
        assert all(covariance[i][d + j] == 0 for i in range(d) for j in range(d))


# ---------------------------------------------------------------- Theorem 2, Proposition 3


@cases
@pytest.mark.parametrize("name", ind.BASELINES)
def test_the_mean_is_the_gradient(problem, group_size, batch_size, design, name):
    factor = ind.mean_factor(name, group_size)
    mean = exact(problem, name, group_size, batch_size, design).mean
    assert mean == ind.scale(factor, ind.gradient(problem))


@cases
@pytest.mark.parametrize("name", CLOSED)
def test_proposition_3(problem, group_size, batch_size, design, name):
    result = exact(problem, name, group_size, batch_size, design)
    args = (problem, name, group_size, batch_size, design, CONSTANT)
    assert result.covariance == ind.proposition_3(*args)
    assert result.mse == ind.closed_mse(*args)


@one_prompt
@pytest.mark.parametrize("group_size", [2, 3])
@pytest.mark.parametrize("name", CLOSED)
def test_theorem_2(problem, group_size, name):
    result = exact(problem, name, group_size)
    assert result.covariance == ind.theorem_2(problem, 0, name, group_size, CONSTANT)
    if name == "grpo":
        assert result.mse == ind.scalar_grpo_mse(moments(problem, 0), group_size)


@one_prompt
@pytest.mark.parametrize("group_size", [8, 16])
def test_theorem_2_in_large_groups(problem, group_size):
    m = moments(problem, 0)
    assert brute_force_mse(problem, "grpo", group_size) == ind.scalar_grpo_mse(m, group_size)
    assert brute_force_mse(problem, "oracle", group_size) == (m.tau - m.g2) / group_size


@every_problem
@pytest.mark.parametrize("name", PROMPT_ONLY)
def test_one_output_per_prompt(problem, name):
    args = (problem, name, 1, 1, "iid", CONSTANT)
    assert exact(problem, name, 1).covariance == ind.proposition_3(*args)


@cases
def test_minibatch_mse_through_c1_c2_c3(problem, group_size, batch_size, design):
    c1, c2, c3 = ind.constants(problem)
    n = len(problem.contexts)
    if design == "fixed":
        c1 = Fraction(0)
    if design == "without-replacement":
        c1 *= Fraction(n - batch_size, n - 1) if n > 1 else Fraction(0)
    mse = (c1 + c2 / group_size + c3 / (group_size * (group_size - 1))) / batch_size
    assert exact(problem, "grpo", group_size, batch_size, design).mse == mse


def test_the_whole_set_without_replacement_is_the_fixed_design():
    for name in ind.BASELINES:
        fixed = exact(UNIFORM_CONTEXTS, name, 2, 3, "fixed")
        assert exact(UNIFORM_CONTEXTS, name, 2, 3, "without-replacement") == fixed


def test_equal_rewards_leave_no_noise_but_without_a_baseline():
    for name in ("grpo", "group-mean", "oracle", "minimum-variance", "norm-weighted"):
        assert exact(DEGENERATE, name, 3, 2).mse == 0
    assert exact(DEGENERATE, "vanilla", 3, 2).mse > 0


@one_prompt
@pytest.mark.parametrize("group_size", [2, 3, 4])
def test_the_second_order_term_is_at_most_half_the_explicit_bound(problem, group_size):
    term = brute_force_mse(problem, "grpo", group_size)
    term -= brute_force_mse(problem, "oracle", group_size)
    m = moments(problem, 0)
    bound = ind.explicit_bound(m, group_size, problem.reward_range())
    assert term == ind.second_order_term(m, group_size)
    assert 0 <= 2 * term <= bound
    if problem is TWO_ARMS:  # the half is attained
        assert 2 * term == bound


@pytest.mark.parametrize("group_size", [2, 3, 4])
@pytest.mark.parametrize("problem", [SKEWED, BALANCED, UNIFORM, ZERO_SCORE], ids=label)
def test_mse_rivals(problem, group_size):
    truth = exact(problem, "grpo", group_size).mse
    rivals = ind.mse_rivals(problem, 0, group_size)
    assert truth not in rivals.values()
    # Pairs of rivals do meet elsewhere: uniform arms at G = 4 (G^2, ||g||^2 missing), and one arm
    # rewarded under Assumption 2 at G = 2 (E z^2 for sigma2, Sigma without - g g^T).
    if problem in (SKEWED, ZERO_SCORE) or group_size == 3:
        distinct(truth, rivals)


@pytest.mark.parametrize(
    ("problem", "batch_size"),
    [(TWO_CONTEXTS, 2), (THREE_CONTEXTS, 2), (UNIFORM_CONTEXTS, 2)],
    ids=label,
)
def test_minibatch_rivals(problem, batch_size):
    truth = exact(problem, "grpo", 2, batch_size).mse
    distinct(truth, ind.minibatch_rivals(problem, 2, batch_size))


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_without_replacement_rivals(batch_size):
    truth = exact(UNIFORM_CONTEXTS, "grpo", 2, batch_size, "without-replacement").mse
    rival = ind.without_replacement_rival(UNIFORM_CONTEXTS, 2, batch_size)
    # the two factors meet where both are zero, B = N
    assert (truth == rival) == (batch_size == 3)
    # and without replacement is i.i.d. for a single prompt
    iid = exact(UNIFORM_CONTEXTS, "grpo", 2, batch_size).mse
    assert (truth == iid) == (batch_size == 1)


# ---------------------------------------------------------------- Corollary 4


RATIO = [p for p in ALL if p not in (DEGENERATE, TWO_ARMS)]


@pytest.mark.parametrize("problem", RATIO, ids=label)
@pytest.mark.parametrize("group_size", [2, 3])
def test_corollary_4(problem, group_size):
    for batch_size in (1, 2) if problem in (TWO_CONTEXTS, UNIFORM_CONTEXTS) else (1,):
        grpo = exact(problem, "grpo", group_size, batch_size).mse
        ratio = grpo / exact(problem, "oracle", group_size, batch_size).mse
        assert ratio == ind.corollary_4(problem, group_size)
    if len(problem.contexts) == 1:
        assert ratio == ind.corollary_4_one_prompt(moments(problem, 0), group_size)


@pytest.mark.parametrize("group_size", [2, 3, 8])
def test_a_noiseless_oracle_has_no_ratio(group_size):
    """Two arms one half: s a = g for every outcome, so the ratio is infinite at every G."""
    m = moments(TWO_ARMS, 0)
    assert m.tau == m.g2
    assert brute_force_mse(TWO_ARMS, "oracle", group_size) == 0
    assert brute_force_mse(TWO_ARMS, "grpo", group_size) > 0


@pytest.mark.parametrize("problem", RATIO, ids=label)
def test_oracle_rivals(problem):
    truth = brute_force_mse(problem, "grpo", 4) / brute_force_mse(problem, "oracle", 4)
    distinct(truth, ind.oracle_rivals(problem, 4))


def test_an_oracle_rival_that_is_right_by_accident():
    """At G = 3 the balanced problem cannot refute (G/(G-1))^2: the exact ratio is 9/4."""
    ratio = exact(BALANCED, "grpo", 3).mse / exact(BALANCED, "oracle", 3).mse
    assert ratio == ind.oracle_rivals(BALANCED, 3)["(G/(G-1))^2"] == Fraction(9, 4)


def test_order_of_the_excess():
    """Excess(G)/excess(2G) tends to 2 at one prompt and to 4 in a minibatch with c1 > 0."""

    def excess(problem, group_size):
        grpo = brute_force_mse(problem, "grpo", group_size)
        return grpo / brute_force_mse(problem, "oracle", group_size) - 1

    one = excess(SKEWED_PAIR, 24) / excess(SKEWED_PAIR, 48)
    many = excess(PAIRS, 24) / excess(PAIRS, 48)
    assert one == Fraction(47, 23)
    assert 3.9 < many < 4.1
    assert ind.constants(PAIRS)[0] > 0


@pytest.mark.parametrize("problem", [UNIFORM, BALANCED], ids=label)
def test_one_sample_is_the_price_of_the_critic(problem):
    """Binary reward under Assumption 2: tau = phi, and the ratio is G/(G-1) but for ||g||^2."""
    m = moments(problem, 0)
    assert m.norm_a == 0
    assert m.tau == m.sigma2 * m.trF
    assert ind.corollary_4_one_prompt(m, 4) > Fraction(4, 3)


@pytest.mark.parametrize("group_size", [2, 3, 4, 7])
def test_one_sample_exactly_where_the_gradient_vanishes(group_size):
    ratio = brute_force_mse(NO_GRADIENT[2], "grpo", group_size)
    ratio /= brute_force_mse(NO_GRADIENT[2], "oracle", group_size)
    assert ratio == Fraction(group_size, group_size - 1)


# ---------------------------------------------------------------- Corollary 5


@pytest.mark.parametrize("group_size", [2, 3, 4, 8])
@pytest.mark.parametrize("problem", [*ONE_PROMPT, SKEWED_PAIR], ids=label)
def test_grpo_beats_vanilla_iff(problem, group_size):
    left, right = ind.corollary_5_sides(moments(problem, 0), group_size)
    grpo = brute_force_mse(problem, "grpo", group_size)
    vanilla = brute_force_mse(problem, "vanilla", group_size)
    assert (grpo < vanilla) == (left > right)
    assert vanilla - grpo == (left - right) / group_size


@pytest.mark.parametrize("group_size", [2, 3, 4])
@pytest.mark.parametrize("problem", [TWO_CONTEXTS, THREE_CONTEXTS, UNIFORM_CONTEXTS], ids=label)
def test_grpo_beats_vanilla_iff_at_each_context_and_on_average(problem, group_size):
    """Context by context, around the context's own gradient; for i.i.d. prompts, in the mean."""
    average = Fraction(0)
    for x, p in zip(problem.contexts, problem.context_probs, strict=True):
        m = moments(problem, x)
        left, right = ind.corollary_5_sides(m, group_size)
        grpo, vanilla = (
            ind.mse_of(ind.group_law_by_counts(problem, x, name, group_size), m.g)
            for name in ("grpo", "vanilla")
        )
        assert vanilla - grpo == (left - right) / group_size
        average += p * (left - right) / group_size
    grpo, vanilla = (brute_force_mse(problem, name, group_size) for name in ("grpo", "vanilla"))
    assert vanilla - grpo == average


def test_grpo_can_lose_to_vanilla():
    assert brute_force_mse(SKEWED, "grpo", 16) > brute_force_mse(SKEWED, "vanilla", 16)
    assert brute_force_mse(UNIFORM, "grpo", 3) > brute_force_mse(UNIFORM, "vanilla", 3)


@pytest.mark.parametrize("arms", [2, 3, 4, 5])
@pytest.mark.parametrize("group_size", [2, 3, 4, 5, 6, 7])
def test_uniform_arms_threshold_is_one_over_g_minus_one(arms, group_size):
    problem, p = ind.uniform_arms(arms), Fraction(1, arms)
    grpo = brute_force_mse(problem, "grpo", group_size)
    vanilla = brute_force_mse(problem, "vanilla", group_size)
    assert (grpo < vanilla) == (p > Fraction(1, group_size - 1))
    assert (grpo == vanilla) == (p == Fraction(1, group_size - 1))


@pytest.mark.parametrize("n", [2, 3, 4, 5])
@pytest.mark.parametrize("group_size", [2, 3, 4, 5, 6])
def test_threshold_is_one_over_g_where_the_gradient_vanishes(n, group_size):
    grpo = brute_force_mse(NO_GRADIENT[n], "grpo", group_size)
    vanilla = brute_force_mse(NO_GRADIENT[n], "vanilla", group_size)
    assert (grpo < vanilla) == (group_size > n)
    assert (grpo == vanilla) == (group_size == n)


@every_problem
def test_oracle_beats_vanilla_iff(problem):
    for x in problem.contexts:
        m = moments(problem, x)
        oracle, vanilla = (
            ind.mse_of(ind.group_law(problem, x, name, 2), m.g) for name in ("oracle", "vanilla")
        )
        assert (oracle < vanilla) == (m.value * (2 * m.b_star - m.value) > 0)
        assert vanilla - oracle == m.trF * m.value * (2 * m.b_star - m.value) / 2


def test_oracle_against_vanilla_goes_both_ways():
    signs = {
        (m.value > 0) - (m.value < 0): m.value * (2 * m.b_star - m.value) > 0
        for m in (moments(TWO_CONTEXTS, x) for x in TWO_CONTEXTS.contexts)
    }
    assert signs[-1]  # a negative value, and the oracle wins
    m = moments(SKEWED, 0)
    assert m.value * (2 * m.b_star - m.value) < 0


@every_problem
def test_no_prompt_only_baseline_beats_the_minimum_variance_one(problem):
    for x in problem.contexts:
        m = moments(problem, x)
        best = ind.mse_of(ind.group_law(problem, x, "minimum-variance", 2), m.g)
        for b in (m.value, Fraction(0), m.b_star + Fraction(1, 100), m.b_star - Fraction(1, 100)):
            other = ind.mse_of(ind.group_law(problem, x, "constant", 2, b), m.g)
            assert other - best == m.trF * (b - m.b_star) ** 2 / 2


@pytest.mark.parametrize("problem", [UNIFORM, BALANCED, TWO_ARMS], ids=label)
def test_the_value_is_the_best_baseline_under_assumption_2(problem):
    m = moments(problem, 0)
    assert m.norm_a == 0
    assert m.value == m.b_star
    assert brute_force_mse(problem, "oracle", 3) == brute_force_mse(problem, "minimum-variance", 3)
    assert brute_force_mse(problem, "oracle", 3) < brute_force_mse(problem, "vanilla", 3)


def test_assumption_2_for_every_reward_means_equal_norms():
    """The deviation E[||s||^2 a] is linear in the reward, so the indicators decide."""
    for probs, equal in ((".4 .3 .2 .1", False), ("1/4 1/4 1/4 1/4", True), ("1/5 4/5", False)):
        problems = [ind.one_rewarded("", probs, k) for k in range(len(probs.split()))]
        norms = {ind.square_norm(o) for o in problems[0].outcomes(0)}
        assert (len(norms) == 1) is equal
        assert all(moments(p, 0).norm_a == 0 for p in problems) is equal


def test_value_and_best_baseline_of_the_published_examples():
    assert moments(SKEWED, 0).value == Fraction(4, 5)
    assert round(moments(SKEWED, 0).b_star, 3) == Fraction(128, 1000)
    assert moments(BALANCED, 0).value == moments(BALANCED, 0).b_star == Fraction(3, 10)


@pytest.mark.parametrize(
    ("group_size", "name", "published"),
    [
        (16, "vanilla", ".550"),
        (16, "grpo", "10.327"),
        (16, "oracle", "9.950"),
        (16, "minimum-variance", ".199"),
        (16, "norm-weighted", "1.737"),
        (8, "norm-weighted", "12.9"),
        (8, "grpo", "21.5"),
        (4, "norm-weighted", "49.3"),
        (4, "grpo", "47.3"),
        (3, "norm-weighted", "74.9"),
        (3, "grpo", "68.1"),
    ],
)
def test_published_figures(group_size, name, published):
    digits = len(published.split(".")[1])
    mse = 1000 * brute_force_mse(SKEWED, name, group_size)
    assert round(mse, digits) == Fraction(published)


def test_norm_weighted_is_grpo_in_pairs():
    assert exact(SKEWED, "norm-weighted", 2) == exact(SKEWED, "grpo", 2)
    # but not where a score is zero: its baseline is then 0, not the other reward
    assert exact(ZERO_SCORE, "norm-weighted", 2) != exact(ZERO_SCORE, "grpo", 2)
    assert exact(ZERO_SCORE, "norm-weighted", 2).mean == ind.gradient(ZERO_SCORE)


# ---------------------------------------------------------------- the library

LIBRARY_CASES = [case for case in CASES if case[0] is not ZERO_SCORE]


@pytest.mark.parametrize(
    ("problem", "group_size", "batch_size", "design"),
    LIBRARY_CASES,
    ids=["-".join(label(v) for v in case) for case in LIBRARY_CASES],
)
@pytest.mark.parametrize("name", CLOSED)
def test_library_equals_enumeration(problem, group_size, batch_size, design, name):
    m = library_problem(problem).moments()
    setting = {
        "group_size": group_size,
        "batch_size": batch_size,
        "design": design,
        "constant": float(CONSTANT) if name == "constant" else None,
    }
    result = exact(problem, name, group_size, batch_size, design)
    covariance = np.array(result.covariance, dtype=float)
    # where the truth is zero, rounding is measured against the size of the terms: vanilla's MSE
    size = float(result.mse) or float(exact(problem, "vanilla", group_size, batch_size, design).mse)
    assert abs(float(gradient_mse(m, name, **setting).mse) - float(result.mse)) <= 1e-12 * size
    library = np.asarray(gradient_covariance(m, name, **setting))
    assert library.shape == covariance.shape
    largest = np.abs(covariance).max() or size
    np.testing.assert_allclose(library, covariance, rtol=0, atol=1e-12 * largest)


@pytest.mark.parametrize("name", ["vanilla", "grpo", "oracle", "minimum-variance"])
def test_library_in_groups_of_sixteen(name):
    m = library_problem(SKEWED).moments()
    mse = gradient_mse(m, name, group_size=16, batch_size=1, design="iid", constant=None).mse
    assert float(mse) == pytest.approx(float(brute_force_mse(SKEWED, name, 16)), rel=1e-12)


@pytest.mark.parametrize("problem", [SKEWED, TWO_CONTEXTS, DEGENERATE], ids=label)
@pytest.mark.parametrize("name", ["vanilla", "group-mean", "oracle", "minimum-variance"])
def test_library_in_groups_of_one(problem, name):
    m = library_problem(problem).moments()
    truth = float(exact(problem, name, 1, 2).mse)
    mse = float(gradient_mse(m, name, group_size=1, batch_size=2).mse)
    assert mse == pytest.approx(truth, rel=1e-12, abs=1e-15)
