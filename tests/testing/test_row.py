"""Is it what the options mean: the catalogue's row, held against a function from outside."""

import numpy as np
import pytest

from tests.support.refusals import refuses
from ustat_pg.testing import assert_is


def divided(ddof=1, epsilon=1e-4, factor=1.0):
    def mine(z):
        spread = z.std(-1, ddof=ddof, keepdims=True)
        return factor * (z - z.mean(-1, keepdims=True)) / (spread + epsilon)

    return mine


def clamped(limit):
    def mine(z):
        return np.clip(divided()(z), -limit, limit)

    return mine


def left_out(z):
    return z - (z.sum(-1, keepdims=True) - z) / (z.shape[-1] - 1)


def test_a_function_equal_to_its_row_passes():
    assert_is(divided(), "trl scale_rewards=group", rtol=1e-9)
    assert_is(divided(epsilon=1e-6), "verl adv_estimator=grpo", rtol=1e-9)
    assert_is(left_out, "trl-rloo", rtol=1e-9)
    assert_is(lambda z: divided()(z.astype(np.float32)), {"scale_rewards": "group"})


@pytest.mark.parametrize(
    ("function", "spec", "said"),
    [
        (divided(ddof=0), "trl scale_rewards=group", "mine is not trl scale_rewards=group"),
        (divided(epsilon=1e-3), "trl scale_rewards=group", r"at G = 2 .* rewards \[0.0, 1.0\] are"),
        (divided(factor=1.001), "trl scale_rewards=group", "is not trl"),
        (left_out, "trl scale_rewards=none", "Dr. GRPO"),
        (lambda z: np.where(z > 1, 0, left_out(z)), "trl-rloo", r"rewards \[-1.0, 2.0\]"),
    ],
)
def test_a_function_unlike_its_row_is_shown_with_a_group(function, spec, said):
    with pytest.raises(AssertionError, match=said):
        assert_is(function, spec)


def test_large_groups_are_tried_by_counts():
    """Of 16 there are 65,536 groups and 17 counts; where an advantage is seldom large, only they show it."""
    assert_is(divided(), "trl scale_rewards=group", group_size=[16, 64], rtol=1e-9)
    assert_is(left_out, "trl-rloo", group_size=100, rtol=1e-9)
    for limit in (2.5, 3.5, 7.0):
        with pytest.raises(AssertionError, match=r"mine is not .*: at G = (16|64) "):
            assert_is(clamped(limit), "trl scale_rewards=group")
    with pytest.raises(AssertionError, match="at G = 16 "):
        assert_is(clamped(3.5), "trl scale_rewards=group", group_size=16)
    # It need not treat members alike to be seen: here the first is forgotten.
    with pytest.raises(AssertionError, match="at G = 32 "):
        assert_is(lambda z: left_out(z) * (np.arange(32) > 0), "trl-rloo", group_size=32)


def test_rows_that_need_more_than_rewards_are_refused():
    refuses(
        "depends on more than a group's rewards", assert_is, left_out, "trl scale_rewards=batch"
    )


def test_the_message_says_how_to_wrap_a_flat_function():
    def flat(z, size=4):
        return z - z.reshape(-1, size).mean(1).repeat(size)

    with pytest.raises(ValueError, match=r"shape|broadcast") as caught:
        assert_is(flat, "trl scale_rewards=none", group_size=4)
    (note,) = caught.value.__notes__
    assert "flat(z.reshape(-1), z.shape[-1]).reshape(z.shape)" in note
    assert_is(lambda z: flat(z.reshape(-1), z.shape[-1]).reshape(z.shape), "trl scale_rewards=none")
