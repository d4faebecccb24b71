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


def floored(spread_of):
    def mine(z):
        centred = z - z.mean(-1, keepdims=True)
        variance = (centred**2).sum(-1, keepdims=True) / (z.shape[-1] - 1)
        return centred / spread_of(variance)

    return mine


E = 1e-6
KIN = {
    "another floor, by a clamp of the variance": lambda v: np.sqrt(np.maximum(v, 1e-6)),
    "the deviation or ε": lambda v: np.maximum(np.sqrt(v), E),
    "a clamp of the variance at ε²": lambda v: np.sqrt(np.maximum(v, E**2)),
    "ε within the root": lambda v: np.sqrt(v + E**2),
    "ε within the root, as it is": lambda v: np.sqrt(v + E),
    "ε twice as large": lambda v: np.sqrt(v) + 2 * E,
    "ε of 1% more": lambda v: np.sqrt(v) + 1.01 * E,
    "no ε": lambda v: np.where(v > 0, np.sqrt(v), 1.0),
    "ε and a floor": lambda v: np.maximum(np.sqrt(v), 3e-6) + E,
    "nothing divided below a bound": lambda v: np.where(v < 1e-8, 1.0, np.sqrt(v) + E),
    "a deviation that is capped": lambda v: np.minimum(np.sqrt(v), 100.0) + E,
}


@pytest.mark.parametrize("name", KIN)
@pytest.mark.parametrize("single", [False, True])
def test_floors_and_clamps_under_a_deviation_are_seen(name, single):
    def mine(z):
        return floored(KIN[name])(z.astype(np.float32) if single else z)

    with pytest.raises(AssertionError, match=r"mine is not verl adv_estimator=grpo \(GRPO\)"):
        assert_is(mine, "verl adv_estimator=grpo")


@pytest.mark.parametrize("limit", [5.0, 10.0])
@pytest.mark.parametrize("spec", ["verl adv_estimator=grpo", "trl-rloo", "trl scale_rewards=none"])
def test_clamps_of_advantages_are_seen(limit, spec):
    def mine(z):
        whole = {"verl": divided(epsilon=E), "trl-rloo": left_out}.get(
            spec.split()[0], lambda z: z - z.mean(-1, keepdims=True)
        )
        return np.clip(whole(z), -limit, limit)

    with pytest.raises(AssertionError, match="mine is not"):
        assert_is(mine, spec)


@pytest.mark.parametrize(
    ("epsilon", "spec"),
    [(1e-9, "openrlhf algo.advantage.estimator=group_norm"), (1e-4, "trl scale_rewards=group")],
)
@pytest.mark.parametrize("single", [False, True])
def test_the_row_itself_passes_at_every_scale_and_another_epsilon_fails(epsilon, spec, single):
    kind = np.float32 if single else np.float64
    assert_is(lambda z: divided(epsilon=epsilon)(z.astype(kind)), spec)
    for other in (0.5 * epsilon, 2 * epsilon):
        with pytest.raises(AssertionError, match="is not"):
            assert_is(lambda z, other=other: divided(epsilon=other)(z), spec)


def test_what_a_framework_clips_itself_is_left_out():
    spec = "areal reward_norm.mean_level=group reward_norm.std_level=none adv_norm.mean_level=none"
    spec += " adv_norm.std_level=none"

    def clipped(limit):
        def mine(z):
            z = np.clip(z, -limit, limit)
            return z - z.mean(-1, keepdims=True)

        return mine

    def of_others(z):
        z = left_out(z)
        return z / (z.std(-1, ddof=1, keepdims=True) + 1e-5)

    assert_is(clipped(20.0), spec)
    over = spec.replace("std_level=none", "std_level=group", 1)
    assert_is(of_others, f"{over} reward_norm.mean_leave1out=true", rtol=1e-9)
    with pytest.raises(AssertionError, match="of_others is not areal"):
        assert_is(of_others, over)
    with pytest.raises(AssertionError, match="mine is not areal"):
        assert_is(clipped(1.5), spec)


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
