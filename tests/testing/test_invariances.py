"""Which invariances hold, how a failure is found, and what degenerate groups do."""

import numpy as np
import pytest

from tests.support.advantages import (
    BOTH,
    batch_normalised,
    dr_grpo,
    failure,
    maximum_reward,
    neighbour,
    norm_weighted,
    normalised,
    normalised_without_epsilon,
    others_over_g,
    own_norm_weighted,
    own_reward_in_the_sum,
    rloo,
    signed_wrongly,
)
from ustat_pg import estimators, testing
from ustat_pg.testing import assert_finite, assert_invariances


@pytest.mark.parametrize("function", [rloo, dr_grpo, estimators.grpo])
def test_leave_one_out_has_every_invariance(function):
    assert_invariances(function, examples=10)
    assert_invariances(function, examples=5, layout="group")
    assert_invariances(function, examples=5, layout="minibatch")


@pytest.mark.parametrize(
    ("function", "kept"),
    [
        (normalised, {"shift", "permutation", "zero-sum"}),
        (estimators.vanilla, {"scale", "permutation"}),
        (neighbour, {"shift", "scale", "zero-sum"}),
        (others_over_g, {"scale", "permutation"}),
        (own_reward_in_the_sum, {"scale", "permutation"}),
        (signed_wrongly, set(testing.INVARIANCES)),
        (maximum_reward, {"permutation"}),
    ],
)
def test_which_invariances_hold(function, kept):
    assert_invariances(function, kept, examples=10, group_size=(2, 5))
    for name in set(testing.INVARIANCES) - kept:
        message = failure(assert_invariances, function, name, examples=30)
        assert message.startswith(function.__name__)
        text = "do not sum to zero" if name == "zero-sum" else f"is not {name}-"
        assert text in message
        assert "at rewards" in message


def test_invariances_of_functions_of_norms_and_of_minibatches():
    assert_invariances(norm_weighted, ["shift", "scale", "permutation"], inputs=BOTH, examples=10)
    message = failure(assert_invariances, norm_weighted, "zero-sum", inputs=BOTH, examples=10)
    assert "sum to zero" in message
    kept = ["shift", "permutation", "zero-sum"]
    assert_invariances(batch_normalised, kept, layout="minibatch", examples=10)
    message = failure(assert_invariances, batch_normalised, "scale", layout="minibatch")
    assert "the advantages are normalised" in message
    assert "mixes the groups" in failure(assert_invariances, batch_normalised, kept)


def test_advantages_that_grow_with_the_square_are_not_called_normalised():
    message = failure(assert_invariances, lambda z: estimators.grpo(z * np.abs(z)), "scale")
    assert "is not scale-equivariant" in message
    assert "normalised" not in message


def test_degenerate_groups():
    for function in (rloo, dr_grpo, normalised):
        for layout in testing.LAYOUTS:
            assert_finite(function, layout=layout)
    assert_finite(batch_normalised, layout="minibatch")
    assert_finite(norm_weighted, inputs=BOTH)
    message = failure(assert_finite, normalised_without_epsilon)
    assert message.startswith("G = 2, all rewards zero: normalised_without_epsilon is not finite")
    assert "the advantages of rewards [0.0, 0.0] are [nan, nan]" in message
    message = failure(assert_finite, own_norm_weighted, inputs=BOTH)
    assert "all scores zero: " in message
    one_over = failure(assert_finite, lambda z: rloo(z) / z.sum(axis=-1, keepdims=True))
    assert "all rewards zero" in one_over


@pytest.mark.parametrize(
    ("corner", "fails"),
    [
        ("a large offset", lambda z: z.min() > 1e5),
        ("negative rewards", lambda z: z.max() < 0),
        ("a tiny spread", lambda z: 0 < np.ptp(z) < 1e-5),
    ],
)
def test_groups_far_from_0_and_1_are_among_the_degenerate_ones(corner, fails):
    def function(z):
        return estimators.grpo(z) * (np.nan if fails(z) else 1.0)

    message = failure(assert_finite, function, layout="group")
    assert f"{corner}: function is not finite" in message


def test_rtol_is_how_far_a_group_may_be_from_itself_beside_others():
    def coarse(z):
        return estimators.grpo(z) * (1 + 1e-3 * len(z))

    assert_finite(coarse, rtol=0.01)
    with pytest.raises(AssertionError, match="mixes the groups"):
        assert_finite(coarse)
