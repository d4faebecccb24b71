"""Advantage functions as trainers write them, under the check of unbiasedness."""

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
    other_prompts,
    others_over_g,
    own_norm_weighted,
    own_reward_in_the_sum,
    rloo,
    signed_wrongly,
    stale,
    whole_minibatch,
)
from tests.support.refusals import refuses
from ustat_pg import estimators, testing
from ustat_pg.problems import SoftmaxBandit, random_problem
from ustat_pg.testing import assert_invariances, assert_unbiased, default_problems


@pytest.mark.parametrize(
    "function",
    # 1/G for 1/(G-1) in the baseline is unbiased all the same: invariances tell it.
    [rloo, maximum_reward, neighbour, others_over_g, estimators.grpo, estimators.vanilla],
)
def test_unbiased_functions_pass(function):
    assert_unbiased(function)


@pytest.mark.parametrize("layout", ["group", "minibatch"])
def test_every_layout_serves_a_function_of_any_leading_axes(layout):
    assert_unbiased(rloo, layout=layout, group_size=3)
    assert "(G-1)/G" in failure(assert_unbiased, dr_grpo, layout=layout, group_size=3)


def test_layouts_call_with_the_shapes_they_promise():
    seen = {}
    for layout in testing.LAYOUTS:
        seen[layout] = set()

        def function(z, norms, contexts, layout=layout):
            assert z.shape == norms.shape
            assert z.shape[:-1] == contexts.shape
            seen[layout].add(z.shape if layout != "batched" else (z.ndim, z.shape[-1]))
            return rloo(z)

        inputs = ("rewards", "squared_norms", "contexts")
        problem = default_problems()["a prompt rarely solved"]
        assert_unbiased(function, layout=layout, inputs=inputs, group_size=2, problems=problem)
    assert seen == {"batched": {(2, 2)}, "minibatch": {(1, 2), (2, 2)}, "group": {(2,)}}


@pytest.mark.parametrize(
    ("function", "factor", "words"),
    [
        (dr_grpo, "(G-1)/G", "a rescaled learning rate, as for the full group mean"),
        (signed_wrongly, "-1", "the sign is wrong"),
        (own_reward_in_the_sum, "(G-2)/(G-1)", "a sum that includes the output's own reward"),
        (lambda z: -dr_grpo(z), "-(G-1)/G", "the sign is wrong"),
        (lambda z: rloo(z) * z.shape[-1], "G", "a sum over the group"),
        (lambda z: rloo(z) / z.shape[-1], "1/G", "divided by the group size twice"),
        (lambda z: 0 * z, "0", "no signal"),
        (lambda z: rloo(z) * 1.5, "1.5 at G = 2, 1.5 at G = 3, 1.5 at G = 4", "a rescaled"),
        (lambda z: rloo(z) * (2.5 - z.shape[-1]), "0.5 at G = 2, -0.5 at G = 3", "not always up"),
    ],
)
def test_multiples_of_the_gradient_are_named(function, factor, words):
    message = failure(assert_unbiased, function)
    assert "on every problem E ĝ is c times the gradient" in message
    assert f"c = {factor}" in message
    assert words in message


def test_rescaled_functions_pass_where_that_is_allowed():
    assert_unbiased(dr_grpo, up_to_scale=True)
    assert_unbiased(lambda z: rloo(z) * 7, up_to_scale=True)
    for function in (signed_wrongly, normalised, lambda z: 0 * z):
        failure(assert_unbiased, function, up_to_scale=True)


@pytest.mark.parametrize("layout", ["batched", "group"])
def test_normalisation_is_more_than_a_rescaled_learning_rate(layout):
    message = failure(assert_unbiased, normalised, layout=layout)
    assert "E ĝ is not a multiple of the gradient" in message
    assert "more than a rescaled learning rate" in message
    assert "c =" not in message


def test_a_factor_that_changes_with_the_problem_is_no_learning_rate():
    # One prompt and two arms: every E ĝ is parallel to g there, so that one problem shows nothing.
    two_arms = {str(s): random_problem(s, "two-arms", contexts=1) for s in range(2)}
    message = failure(assert_unbiased, normalised, problems=two_arms, group_size=3)
    assert "the factor changes from problem to problem" in message
    alone = failure(assert_unbiased, normalised, problems=two_arms["0"], group_size=3)
    assert "on this problem E ĝ is c times the gradient" in alone


def test_functions_that_mix_prompts_are_sent_to_the_minibatch_layout():
    message = failure(assert_unbiased, batch_normalised)
    assert "mixes the groups of a batch" in message
    assert "layout='minibatch'" in message
    message = failure(assert_unbiased, batch_normalised, layout="minibatch", group_size=3)
    assert "more than a rescaled learning rate" in message
    assert_unbiased(stale, layout="minibatch")
    assert "mixes" in failure(assert_unbiased, stale)


def test_batch_sizes_are_the_users_to_choose():
    assert_unbiased(other_prompts, layout="minibatch", batch_size=2)
    message = failure(assert_unbiased, whole_minibatch, layout="minibatch", group_size=(2, 3))
    assert "c = (BG-1)/(BG)" in message
    assert "0.8333 at G = 3, B = 2" in message
    assert "c = B: " in failure(
        assert_unbiased, lambda z: len(z) * rloo(z), layout="minibatch", group_size=(2, 3)
    )
    refuses("batch_size is given with layout 'batched'", assert_unbiased, rloo, batch_size=2)


def test_functions_of_squared_norms():
    assert_unbiased(norm_weighted, inputs=BOTH)
    assert_unbiased(lambda norms, z: norm_weighted(z, norms), inputs=BOTH[::-1])
    assert "not a multiple" in failure(assert_unbiased, own_norm_weighted, inputs=BOTH)


def test_a_critic_is_a_function_of_the_contexts():
    values = np.array([0.3, -2.0])

    def critic(z, contexts):
        return z - values[contexts][..., None]

    assert_unbiased(critic, inputs=("rewards", "contexts"))
    assert_unbiased(critic, inputs=("rewards", "contexts"), layout="minibatch", group_size=2)


def test_random_functions_and_functions_with_memory_are_refused():
    rng = np.random.default_rng(0)
    running = [0.0]

    def remembers(z):
        running[0] = 0.9 * running[0] + 0.1 * z.mean()
        return z - running[0]

    for function in (lambda z: rloo(z) + rng.normal(size=z.shape), remembers):
        for layout in testing.LAYOUTS:
            message = failure(assert_unbiased, function, layout=layout, group_size=2)
            assert "is random or remembers earlier calls" in message


def test_functions_may_write_into_what_they_are_given():
    def in_place(z):
        z -= (z.sum(axis=-1, keepdims=True) - z) / (z.shape[-1] - 1)
        return z

    def in_place_with_norms(z, norms):
        out = norm_weighted(z.copy(), norms.copy())
        z[...], norms[...] = 7, 7
        return out

    assert_unbiased(in_place)
    assert_unbiased(in_place_with_norms, inputs=BOTH)
    assert_invariances(in_place, examples=10)


def test_a_zero_gradient_still_has_a_scale():
    equal = random_problem(0, "equal-rewards")
    assert_unbiased(rloo, problems=equal)
    # Rewards that differ though their means do not: g = 0 again, and 3 z³ has another mean.
    values = np.broadcast_to([[[1.0, -1.0], [2.0, -1.0]]], (1, 2, 2))
    probs = np.array([[[0.5, 0.5], [1 / 3, 2 / 3]]])
    level = SoftmaxBandit.tabular([1.0], [[0.0, 0.7]], values, probs)
    assert_unbiased(rloo, problems=level)
    message = failure(assert_unbiased, lambda z: rloo(z**3), problems=level)
    assert "times (E‖s‖² E z²)^½" in message
    assert "there the gradient is 0 and E ĝ is not" in message


def test_single_precision_is_named():
    def single(z):
        return rloo(z.astype(np.float32) / 3) * 3

    message = failure(assert_unbiased, single)
    assert "only by rounding" in message
    assert "rtol=1e-05 allows for that" in message
    assert_unbiased(single, rtol=1e-5)
    assert "single precision" not in failure(assert_unbiased, lambda z: dr_grpo(z) * np.float32(1))
