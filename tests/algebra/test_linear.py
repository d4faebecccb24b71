"""Formulas of linear estimators against closed forms and against every outcome of drawn problems."""

import numpy as np
import pytest
import sympy

from tests.support.refusals import refusals
from ustat_pg.algebra import MOMENTS, G, LinearEstimator, V, rational_function, written
from ustat_pg.engines import Estimator, enumerate_mean, enumerate_mse
from ustat_pg.predictions import gradient_mse
from ustat_pg.problems import random_problem

OF_NAME = {
    "grpo": LinearEstimator(1, "-1/(G-1)"),
    "group-mean": LinearEstimator("(G-1)/G", "-1/G"),
    "vanilla": LinearEstimator(1),
    "oracle": LinearEstimator(1, 0, "-V"),
}
PROBLEMS = [random_problem(seed, kind, contexts=1) for seed, kind in enumerate(("plain", "binary"))]
LAMBDA = sympy.Symbol("λ")


def number(formula, problem, size, **constants):
    """A formula at the moments of a problem of one prompt."""
    moments = problem.moments()
    values = {
        "τ": moments.norm_squared_advantage,
        "E‖s‖²a": moments.norm_advantage,
        "tr F": moments.fisher_trace,
        "σ²": moments.reward_variance,
        "‖g‖²": moments.gradient_sq,
    }
    given = {MOMENTS[name]: float(value[0]) for name, value in values.items()}
    given |= {G: size, V: float(moments.value[0])}
    return float(formula.subs(given | {sympy.Symbol(k): c for k, c in constants.items()}))


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize(("name", "formula"), OF_NAME.items())
def test_errors_are_those_of_the_closed_forms(name, formula, size, problem):
    known = gradient_mse(problem, name, size)
    assert number(formula.error, problem, size) == pytest.approx(known.mse, rel=1e-11)
    assert number(formula.variance, problem, size) == pytest.approx(
        known.mse - known.squared_bias, rel=1e-11
    )
    assert number(formula.mean, problem, size) == pytest.approx(known.mean_factor[0], rel=1e-12)


MINE = [
    (
        LinearEstimator(1, -LAMBDA / (G - 1)),
        lambda z, c: z - c * (z.sum(-1, keepdims=True) - z) / (z.shape[-1] - 1),
    ),
    (
        LinearEstimator(2 - LAMBDA, -LAMBDA / G, "1/3 - λ/G**2"),
        lambda z, c: (
            2 * z
            - c * z
            - c * (z.sum(-1, keepdims=True) - z) / z.shape[-1]
            + 1 / 3
            - c / z.shape[-1] ** 2
        ),
    ),
]


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("constant", [0.3, 1.7])
@pytest.mark.parametrize(("formula", "function"), MINE)
def test_errors_are_those_of_every_outcome(formula, function, constant, problem):
    mine = Estimator("mine", function=lambda z, _: function(z, constant))
    for size in (2, 3):
        error = number(formula.error, problem, size, λ=constant)
        assert error == pytest.approx(enumerate_mse(problem, mine, size).mse, rel=1e-10)
        share = number(formula.mean, problem, size, λ=constant)
        mean = enumerate_mean(problem, mine, size)
        assert mean == pytest.approx(share * problem.gradient(), rel=1e-10)


def test_a_constant_of_least_error_is_found():
    """With ‖s‖² and rewards uncorrelated the best λ shrinks as V²/(V² + (σ² + ‖g‖²/tr F)/(G-1))."""
    noise = MINE[0][0].error.subs(MOMENTS["E‖s‖²a"], 0)
    (best,) = sympy.solve(sympy.diff(noise, LAMBDA), LAMBDA)
    spread = MOMENTS["σ²"] + MOMENTS["‖g‖²"] / MOMENTS["tr F"]
    assert sympy.simplify(best - V**2 / (V**2 + spread / (G - 1))) == 0


@pytest.mark.parametrize(
    ("mean", "unbiased", "upwards"),
    [
        ("1", True, True),
        ("(G-1)/G", False, True),
        ("(G-2)/(G-1)", False, False),  # 0 at G = 2
        ("(G-5)**2/G**2", False, False),  # 0 at G = 5 alone
        ("1/((7-2*G)*(9-2*G))", False, False),  # negative at G = 4 alone
        ("-1", False, False),
        ("0", False, False),
        ("λ", False, False),
    ],
)
def test_what_a_mean_says(mean, unbiased, upwards):
    found = LinearEstimator(mean, "1/G")
    assert (found.unbiased, found.upwards) == (unbiased, upwards)
    assert sympy.simplify(found.mean - sympy.sympify(mean)) == 0


test_bad_input = refusals(
    ("1 +", "own is '1 +': it must be a rational function of G"),
    ("sqrt(1 - 1/G)", "own is 'sqrt(1 - 1/G)'"),
    ("2**G", "a rational function of G"),
    (None, "own is None"),
    ([1, 2], "a rational function of G"),
    (float("nan"), "own is nan"),
    of=LinearEstimator,
    literal=True,
)


def test_numbers_are_simple_fractions():
    assert LinearEstimator(1, -0.3 / (G - 1)).other == sympy.Rational(-3, 10) / (G - 1)


def test_views():
    found = LinearEstimator(1, "-1/(G-1)", source="from a page")
    assert str(found).splitlines()[-1].split(maxsplit=1) == ["coefficients", "from a page"]
    assert found.to_dict()["other"] == "-1/(G - 1)"
    assert found.latex().startswith(r"\frac{\tau}{G} + \frac{\operatorname{tr} F \sigma^2}{G")
    assert r"- \frac{\lVert g\rVert^2 \left(G - 2\right)}" in found.latex()
    assert str(LinearEstimator(0)).splitlines() == [
        "advantage    0",
        "mean         0",
        "error        ‖g‖²",
    ]


def test_rational_functions_are_found_from_their_values():
    rng = np.random.default_rng(0)
    for _ in range(10):
        p, q = ([int(c) for c in rng.integers(1, 9, rng.integers(1, 4))] for _ in range(2))
        wanted = sympy.Poly(p, G).as_expr() / sympy.Poly(q, G).as_expr()
        values = {size: wanted.subs(G, size) for size in range(2, 15)}
        assert sympy.cancel(rational_function(values) - wanted) == 0
        # One value that is off leaves no function of low degree.
        assert rational_function(values | {9: values[9] + 1}) is None


@pytest.mark.parametrize("text", ["2**G", "sqrt(1 - 1/G)", "1/factorial(G)", "sin(λ)/G", "G**7"])
def test_other_functions_are_none(text):
    formula = sympy.sympify(text)
    assert rational_function({size: formula.subs("G", size) for size in range(2, 21)}) is None


def test_other_symbols_stay():
    formula = LAMBDA**2 / (G - 1) - V * LAMBDA + sympy.Rational(3, 7)
    found = rational_function({size: formula.subs(G, size) for size in range(2, 21)})
    assert sympy.simplify(found - formula) == 0
    # A symbol that stands at one size alone is 0 at the others.
    assert rational_function({size: LAMBDA * int(size == 20) for size in range(2, 21)}) is None
    assert written(LAMBDA**12 * V / G) == "V λ¹²/G"
