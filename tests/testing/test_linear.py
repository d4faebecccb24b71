"""Formulas of advantage functions as users write them, and proofs that use them."""

import warnings

import numpy as np
import pytest
import sympy

from tests.support.advantages import (
    dr_grpo,
    failure,
    maximum_reward,
    neighbour,
    normalised,
    others_over_g,
    own_reward_in_the_sum,
    rloo,
    signed_wrongly,
)
from tests.support.refusals import refusals, refuses
from ustat_pg import estimators
from ustat_pg.algebra import G, V
from ustat_pg.testing import NoFormulaError, assert_unbiased, linear_formula

LAMBDA = sympy.Symbol("λ")
SYMBOLS, NUMBERS = "from symbols for the rewards", "from numbers, up to rounding"


def others(z):
    return (z.sum(-1, keepdims=True) - z) / (z.shape[-1] - 1)


def shrunken(z):
    return z - 0.3 * others(z)


def by_constant(z):
    return z - LAMBDA * others(z) + 0.125


def square_root(z):
    return np.sqrt(1 - 1 / z.shape[-1]) * rloo(z)


def where_zero(z):
    """Symbols never meet the comparison."""
    return np.where(z == 0, 7.0, rloo(z))


def of_symbols_alone(z):
    return z - others(z) * (2 if z.dtype == object else 1)


def no_zero(z):
    """The constant is an epsilon that is more than rounding."""
    return rloo(z) / (1 + 1e-8)


@pytest.mark.parametrize(
    ("function", "coefficients", "how"),
    [
        (rloo, (1, -1 / (G - 1), 0), SYMBOLS),
        (dr_grpo, ((G - 1) / G, -1 / G, 0), SYMBOLS),
        (others_over_g, (1, -1 / G, 0), SYMBOLS),
        (own_reward_in_the_sum, ((G - 2) / (G - 1), -1 / (G - 1), 0), SYMBOLS),
        (shrunken, (1, sympy.Rational(-3, 10) / (G - 1), 0), SYMBOLS),
        (by_constant, (1, -LAMBDA / (G - 1), sympy.Rational(1, 8)), SYMBOLS),
        (lambda z: z - V, (1, 0, -V), SYMBOLS),
        (estimators.grpo, (1, -1 / (G - 1), 0), NUMBERS),
        (estimators.group_mean, ((G - 1) / G, -1 / G, 0), NUMBERS),
        (estimators.vanilla, (1, 0, 0), NUMBERS),
        (of_symbols_alone, (1, -1 / (G - 1), 0), NUMBERS),
    ],
)
def test_coefficients_are_the_function_s_own(function, coefficients, how):
    found = linear_formula(function)
    read = (found.own, found.other, found.offset)
    assert all(sympy.cancel(a - b) == 0 for a, b in zip(read, coefficients, strict=True))
    assert found.source == f"read at G = 2 to 20, {how}"


@pytest.mark.parametrize("function", [rloo, dr_grpo])
def test_layouts_and_kinds_of_arrays_give_the_same(function):
    wanted = str(linear_formula(function))
    assert str(linear_formula(function, layout="group")) == wanted
    single = linear_formula(function, array=np.float32, rtol=1e-5)
    assert str(single) == wanted.replace(SYMBOLS, NUMBERS)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (normalised, "not linear in the rewards: at G = 2 the advantages of "),
        (maximum_reward, "not linear in the rewards"),
        (where_zero, "not linear in the rewards"),
        (neighbour, "does not treat the outputs of a group alike: at G = 3"),
        (
            lambda z: z + np.arange(z.shape[-1]),
            "does not treat the outputs of a group alike: at G = 2",
        ),
        (lambda z: z * (1 + np.arange(z.shape[-1])), "does not treat the outputs of a group alike"),
        (square_root, "coefficient of its own reward is 0.7071 at G = 2, 0.866 at G = 4"),
        (no_zero, "no simple rational function of G"),
    ],
)
def test_other_functions_have_no_formula(function, said):
    assert isinstance(refuses(said, linear_formula, function), NoFormulaError)


@pytest.mark.parametrize("function", [rloo, others_over_g, shrunken, by_constant, estimators.grpo])
def test_proofs_pass(function):
    """Without a warning, which would be an error here."""
    assert_unbiased(function, proof=True)


def test_proofs_fail_by_the_mean():
    said = failure(assert_unbiased, dr_grpo, proof=True)
    assert "at every group size E ĝ = c g with c = (G - 1)/G; " in said
    assert "as for the full group mean" in said
    assert said.endswith(f"read at G = 2 to 20, {SYMBOLS}")
    assert "the sign is wrong" in failure(assert_unbiased, signed_wrongly, proof=True)
    own = failure(assert_unbiased, lambda z: LAMBDA * z, proof=True)
    assert "c = λ; its advantages are" in own


def test_scales_are_allowed_where_they_lead_upwards_at_every_size():
    assert_unbiased(dr_grpo, proof=True, up_to_scale=True)
    # c = (G-2)/(G-1): enumeration of G = 3 and 4 alone sees no harm.
    assert_unbiased(own_reward_in_the_sum, group_size=(3, 4), up_to_scale=True)
    said = failure(assert_unbiased, own_reward_in_the_sum, proof=True, up_to_scale=True)
    assert "c = (G - 2)/(G - 1)" in said
    failure(assert_unbiased, signed_wrongly, proof=True, up_to_scale=True)


def test_a_bias_that_begins_beyond_the_enumerated_sizes_leaves_no_formula():
    def late(z):
        return rloo(z) if z.shape[-1] < 8 else dr_grpo(z)

    assert_unbiased(late)
    with pytest.warns(
        UserWarning, match="no proof for every group size.*1 at G = 4, 0.95 at G = 20"
    ):
        assert_unbiased(late, proof=True)


@pytest.mark.parametrize("function", [neighbour, maximum_reward])
def test_without_a_formula_a_warning_says_so_and_it_is_enumerated(function):
    with pytest.warns(UserWarning, match="E ĝ is enumerated instead") as caught:
        assert_unbiased(function, proof=True, group_size=3)
    assert [entry.filename for entry in caught] == [__file__]


def test_without_a_formula_a_bias_is_found_by_enumeration():
    for function in (normalised, square_root):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert "is biased: at G = " in failure(assert_unbiased, function, proof=True)


test_what_a_proof_is_not_for = refusals(
    ({"plan": "3+2 if mixed"}, "proof is for groups of rewards that stand alone"),
    ({"turns": True}, "proof is for groups"),
    ({"layout": "minibatch"}, "proof is for groups"),
    ({"inputs": ("rewards", "squared_norms")}, "a proof is for a function of rewards only"),
    of=lambda options: assert_unbiased(rloo, proof=True, **options),
)
test_bad_input = refusals(
    (rloo, {"layout": "minibatch"}, "groups that stand alone"),
    (3, {}, "must be callable"),
    (rloo, {"rtol": 2}, "rtol is 2"),
    of=lambda function, options: linear_formula(function, **options),
)
