"""Errors that are computed bound the errors that there are; and checks that once refused a true result."""

from math import exp, log1p

import numpy as np
import pytest

from simulations import Suite, claim
from simulations.evidence import Options, Verdict
from simulations.evidence.runner import check_alone
from simulations.problems.tokens import until
from simulations.shared.numerics import derivative, later_terms
from ustat_pg.policies import PrefixSoftmax
from ustat_pg.problems import modular_sum

SLOPES = {
    "steep": (lambda t: 1 / (1 + np.exp(-30 * t - 1)), 30 * exp(-1) / (1 + exp(-1)) ** 2),
    "flat": (lambda t: 0.3 + 1e-9 * np.sin(3 * t), 3e-9),
    "far from 0": (lambda t: 1e6 + np.sin(2 * t), 2.0),
    "of no slope": (lambda t: np.cos(5 * t), 0.0),
}


@pytest.mark.parametrize("name", SLOPES)
@pytest.mark.parametrize("reach", [0.01, 0.7, 5.0])
def test_a_derivative_is_off_by_its_error_at_most(name, reach):
    function, true = SLOPES[name]
    slope, error = derivative(function, 0.0, reach)
    assert abs(slope - true) <= error < 1e-7 * (1 + abs(function(0.0)))


@pytest.mark.parametrize("seed", range(8))
def test_a_derivative_goes_no_nearer_than_rounding_lets_it(seed):
    """Half the interval doubles what rounding makes of the slope: how it falls out leads no further."""
    rng, intervals = np.random.default_rng(seed), []

    def rounded(t):
        intervals.append(t)
        return np.exp(t) * (1 + 1e-13 * rng.uniform(-1, 1, t.shape))

    slope, error = derivative(rounded, 0.0, 2.0)
    # These values are further off than rounding, which alone the error knows.
    assert abs(slope - 1) < 1e-11
    assert error < 1e-10
    assert len(intervals) <= 3


def test_values_of_no_smooth_function_have_no_derivative():
    slope, error = derivative(lambda t: np.where(t > 0, 1.0, 0.0), 0.0, 1.0)
    assert np.isnan(slope)
    assert error == np.inf


def test_higher_derivatives_too():
    for order, true in ((2, -9.0), (3, 0.0)):
        value, error = derivative(lambda t: np.cos(3 * t), 0.0, 1.0, order)
        assert abs(value - true) <= error < 1e-6


@pytest.mark.parametrize(
    "terms", [(2.0,), (1.0, -8.0), (0.0, 5.0, 30.0), (1.0, 0.0, 0.0, 9.0, -50.0)]
)
@pytest.mark.parametrize("size", [2, 3, 32])
def test_what_is_left_out_of_a_limit_is_bounded(terms, size):
    def value(n: int) -> float:
        return 0.7 + sum(term / n ** (k + 1) for k, term in enumerate(terms)) + log1p(1 / n) ** 2

    later, error = later_terms(value, size)
    assert abs(later - (value(size) - 0.7)) <= error < 1e-4


@pytest.mark.parametrize("digits", [1e-9, 1e-13])
def test_what_cancels_in_a_value_is_allowed_for(digits):
    rng = np.random.default_rng(3)
    for _ in range(200):
        later, error = later_terms(
            lambda n: 1 + 1 / n + n * digits * rng.uniform(-1, 1), 3,
            cancels=lambda n: n * digits / np.finfo(float).eps,
        )  # fmt: skip
        assert abs(later - 1 / 3) <= error < 1e5 * digits


REFUSED_ONCE = (
    ("mse", "smoke", 13, "repeated#13.0 G=2 B=2 iid: noise to signal"),
    ("mse", "quick", 22, "repeated#22.0 G=2 B=2 iid: noise to signal"),
    ("mse", "quick", 45, "repeated#45.0 G=2 B=2 iid: noise to signal"),
    ("length_weights", "smoke", 4711, "counting#4711.0 token mean: leading and later bias with 3 prompts"),
)  # fmt: skip
"""Checks that refused a true result, since the evidence was off by more than it allowed for."""


@pytest.mark.parametrize(("stem", "size", "seed", "name"), REFUSED_ONCE)
def test_a_true_result_is_confirmed_where_it_was_refused(stem, size, seed, name):
    result = check_alone(claim(stem, Suite(size, seed)), name, Options(size, "exact", seed, 1))
    assert result.exact is not None
    assert result.exact.verdict == Verdict.CONFIRMED


def test_a_problem_is_drawn_however_rare_its_property_is():
    problem, draws = modular_sum(2, 1), iter(range(10**6))

    def draw():
        next(draws)
        return problem, PrefixSoftmax.zeros(problem.space, problem.contexts)

    until(draw, lambda bandit: next(draws) > 5000)
    assert next(draws) > 5000
    assert claim("survivors", Suite("smoke", 31415926)).checks
