"""The library against a second mind's enumeration in fractions (tests/support/independent.py).

That the named wrong formulas differ from the truth is in ``tests/simulations/test_designs.py``.
"""

from itertools import product

import numpy as np
import pytest

from tests.support import independent as ind
from tests.support.independent import (
    CONSTANT,
    DEGENERATE,
    ONE_PROMPT,
    PROBLEMS,
    SKEWED,
    THREE_CONTEXTS,
    TWO_ARMS,
    UNIFORM_CONTEXTS,
    ZERO_SCORE,
    Problem,
    brute_force,
    moments,
)
from tests.support.problems import library_problem
from ustat_pg.predictions import (
    critic_excess,
    explicit_bound,
    gradient_covariance,
    gradient_mse,
    grpo_beats_vanilla,
    minimum_variance_gain,
    oracle_beats_vanilla,
)

CLOSED = tuple(name for name in ind.BASELINES if name != "norm-weighted")
WITHOUT_OTHERS = tuple(name for name in CLOSED if name != "grpo")

SKEWED_PAIR = ind.one_rewarded("skewed pair", "1/5 4/5", 0)
#: A binary reward, independent of the arm, of pass rate 1/n: Assumption 2 holds and g = 0.
NO_GRADIENT = {
    n: ind.tabular(f"no gradient, p = 1/{n}", "1", ["1/2 1/2"], [f"1:1/{n},0:{n - 1}/{n} " * 2])
    for n in (2, 3, 4, 5, 6)
}

#: (problem, group size, batch size, design): corners that no claim's problem has, so that the audit of a
#: run (simulations/audit.py) meets none of them; and whole matrices of one ordinary problem in each design.
CASES = [
    *product((ZERO_SCORE, DEGENERATE), (1, 2, 3), [1], ["iid"]),
    (ZERO_SCORE, 2, 3, "iid"),
    (DEGENERATE, 3, 2, "iid"),
    (DEGENERATE, 3, 2, "fixed"),
    (DEGENERATE, 3, 1, "without-replacement"),
    (SKEWED, 3, 1, "fixed"),
    (SKEWED, 3, 1, "without-replacement"),
    (THREE_CONTEXTS, 2, 2, "iid"),
    (UNIFORM_CONTEXTS, 2, 2, "without-replacement"),
    (UNIFORM_CONTEXTS, 2, 3, "fixed"),
]


def label(value: object) -> str:
    return value.name if isinstance(value, Problem) else str(value)


def with_baselines():
    """Every case with every baseline; groups of one have no others."""
    return [
        (*case, name)
        for case, name in product(CASES, CLOSED)
        if name in (WITHOUT_OTHERS if case[1] == 1 else CLOSED)
    ]


def mse(problem, name, group_size, batch_size=1, design="iid"):
    return brute_force(problem, name, group_size, batch_size, design).mse


# ---------------------------------------------------------------- the library


@pytest.mark.parametrize("case", with_baselines(), ids=lambda case: "-".join(map(label, case)))
def test_means_covariances_and_errors(case):
    problem, group_size, batch_size, design, name = case
    m = library_problem(problem).moments()
    setting = (group_size, batch_size, design)
    result = brute_force(problem, name, *setting)
    # where the truth is zero, rounding is measured against the size of the terms: vanilla's MSE
    size = float(result.mse or mse(problem, "vanilla", *setting))
    known = {}
    if name == CONSTANT:
        name, known = "constant", {"constant": float(CONSTANT)}
    prediction = gradient_mse(m, name, *setting, **known)
    assert abs(prediction.mse - float(result.mse)) <= 1e-12 * size
    for other, found in (("oracle", prediction.oracle_mse), ("vanilla", prediction.vanilla_mse)):
        assert abs(found - float(mse(problem, other, *setting))) <= 1e-12 * size
    assert (prediction.paper_bound is None) == (name != "grpo")
    mean = prediction.mean_factor[0] * ind.gradient(problem).astype(float)
    np.testing.assert_allclose(mean, result.mean.astype(float), rtol=0, atol=1e-14)
    covariance = result.covariance.astype(float)
    library = np.asarray(gradient_covariance(m, name, *setting, **known))
    assert library.shape == covariance.shape
    largest = np.abs(covariance).max() or size
    np.testing.assert_allclose(library, covariance, rtol=0, atol=1e-12 * largest)


@pytest.mark.parametrize("problem", ONE_PROMPT, ids=label)
@pytest.mark.parametrize("group_size", [2, 3, 4])
def test_the_second_order_term_is_at_most_half_the_explicit_bound(problem, group_size):
    term = float(mse(problem, "grpo", group_size) - mse(problem, "oracle", group_size))
    library = library_problem(problem).moments()
    bound = explicit_bound(library, group_size)
    assert explicit_bound(library, group_size, 3) == pytest.approx(bound / 3, rel=1e-14)
    assert 0 <= 2 * term <= bound * (1 + 1e-12)
    if problem is TWO_ARMS:  # the half is attained
        assert 2 * term == pytest.approx(bound, rel=1e-12)


# ---------------------------------------------------------------- Corollary 5


@pytest.mark.parametrize(
    ("problem", "group_size"),
    [*product([*PROBLEMS, SKEWED_PAIR], (2, 3, 4)), (SKEWED_PAIR, 8)],
    ids=label,
)
def test_who_beats_vanilla_at_which_context(problem, group_size):
    library = library_problem(problem).moments()
    for name, rule in (
        ("grpo", grpo_beats_vanilla(library, group_size)),
        ("oracle", oracle_beats_vanilla(library)),
    ):
        wins = [
            ind.group_mse(problem, x, name, group_size)
            < ind.group_mse(problem, x, "vanilla", group_size)
            for x in problem.contexts
        ]
        assert rule.tolist() == wins, name


@pytest.mark.parametrize("n", NO_GRADIENT)
@pytest.mark.parametrize("group_size", range(2, 9))
def test_the_threshold_is_g_for_the_inverse_pass_rate_and_one_less_for_uniform_arms(n, group_size):
    """Grpo beats vanilla iff p > 1/G where the gradient vanishes, p > 1/(G-1) at uniform arms."""
    for problem, even in ((NO_GRADIENT[n], n), (ind.uniform_arms(n), n + 1)):
        grpo, vanilla = (mse(problem, name, group_size) for name in ("grpo", "vanilla"))
        assert (grpo < vanilla) == (group_size > even)
        assert (grpo == vanilla) == (group_size == even)
    library = grpo_beats_vanilla(library_problem(problem).moments(), group_size)
    assert library.tolist() == [group_size > even]


@pytest.mark.parametrize("problem", PROBLEMS, ids=label)
def test_what_other_baselines_of_the_prompt_lose_to_the_best_one(problem):
    library, size = library_problem(problem).moments(), float(mse(problem, "vanilla", 2))
    best, oracle = (mse(problem, name, 2) for name in ("minimum-variance", "oracle"))
    gain = minimum_variance_gain(library, 2)
    assert gain == pytest.approx(float(oracle - best), abs=1e-12 * size)
    assert minimum_variance_gain(library, 2, 3) == pytest.approx(gain / 3, abs=1e-12 * size)
    critic = [float(moments(problem, x).b_star) for x in problem.contexts]
    assert critic_excess(library, critic, 2) == pytest.approx(-gain, abs=1e-12 * size)
