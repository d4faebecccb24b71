"""The bias of steps on outputs that are used again: refusals, degenerate problems, and two tokens."""

import numpy as np
import pytest

from ustat_pg.policies import PrefixSoftmax, TabulatedPolicy
from ustat_pg.predictions import even_reuse_bias, reuse_bias
from ustat_pg.problems import SoftmaxBandit, modular_sum, reuse_moments
from ustat_pg.validation import InputError

EVEN = SoftmaxBandit.bernoulli([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]], [[1, 0, 0], [0, 1, 0.5]])
MOMENTS = reuse_moments(EVEN)


def test_the_first_pass_has_no_bias_and_later_ones_grow_by_equal_steps():
    slopes = [reuse_bias(MOMENTS, 4, 2, rate=0.5, passes=j).slope for j in (1, 2, 3, 6)]
    assert not slopes[0].any()
    assert np.allclose(slopes[2], 2 * slopes[1], rtol=1e-12, atol=0)
    assert np.allclose(slopes[3], 5 * slopes[1], rtol=1e-12, atol=0)


def test_other_minibatches_matter_for_the_ratio_of_tokens_alone():
    split = reuse_bias(MOMENTS, 4, 2, rate=0.5, passes=3, minibatches=5)
    assert np.array_equal(split.slope, reuse_bias(MOMENTS, 4, 2, rate=0.5, passes=3).slope)
    task = modular_sum(2, 2, prompts=[(1,)])
    policy = PrefixSoftmax.random(task.space, 1, seed=2)
    moments = reuse_moments(task.at(policy), "token")
    first = reuse_bias(moments, 4, rate=0.5, passes=1, minibatches=3)
    assert np.allclose(first.slope, 2 * moments.ratio_slope, rtol=1e-12, atol=0)
    assert np.linalg.norm(first.slope) > 0.01


def test_without_a_gradient_only_the_length_of_the_bias_is_known():
    level = SoftmaxBandit.bernoulli([0.2, 0.3, 0.5], [0.5, 0.5, 0.5])
    found = reuse_bias(reuse_moments(level), 2, rate=1.0)
    assert found.relative_bias is None
    assert np.linalg.norm(found.bias) > 0.01
    assert str(found).startswith("∇J = 0")


def test_the_record_says_where_the_bias_equals_the_noise():
    one = reuse_bias(MOMENTS, 4, 4, rate=0.1)
    there = reuse_bias(MOMENTS, 4, 4, rate=one.rate_at_noise)
    assert there.bias_to_noise == pytest.approx(1, rel=1e-12)
    wider = reuse_bias(MOMENTS, 4, 16, rate=0.1)
    assert wider.rate_at_noise == pytest.approx(2 * one.rate_at_noise, rel=1e-12)
    assert "rate at which the two are equal" in str(one)


@pytest.mark.parametrize("rate", [0.2, 0.9])
def test_scores_of_equal_norm_in_many_directions_follow_the_rule_of_thumb(rate):
    """With n equally likely outputs E‖s‖² = 1 - 1/n, and each other term is about 1/n of the first."""
    n = 400
    rewards = np.arange(n) < rate * n
    problem = SoftmaxBandit.from_probs(np.full(n, 1 / n), rewards.astype(float))
    found = reuse_bias(reuse_moments(problem), 8, rate=0.5, passes=4)
    rule = 0.5 * (1 - 1 / n) * even_reuse_bias(rate, 8, passes=4)
    assert found.along_gradient == pytest.approx(rule, rel=4 / n)
    assert found.relative_bias < abs(rule) * (1 + 4 / n)
    assert found.bias_to_noise < abs(rule) * np.sqrt(8)


def test_designs_leave_their_share_of_the_prompts_part():
    slopes = {
        design: reuse_bias(MOMENTS, 4, 2, rate=1.0, design=design).slope
        for design in ("iid", "fixed", "without-replacement")
    }
    assert np.array_equal(slopes["fixed"], slopes["without-replacement"])
    assert np.allclose(slopes["iid"] - slopes["fixed"], MOMENTS.between / 2, rtol=1e-12)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"rate": 0.0}, "rate"),
        ({"rate": 0.1, "passes": 0}, "passes"),
        ({"rate": 0.1, "minibatches": 2, "design": "fixed", "batch_size": 2}, "only iid is known"),
        ({"rate": 0.1, "group_size": 1}, "group size"),
    ],
)
def test_bad_input_is_refused(sizes, words):
    with pytest.raises(InputError, match=words):
        reuse_bias(MOMENTS, **({"group_size": 4} | sizes))


def test_the_rule_of_thumb_refuses_one_output():
    with pytest.raises(InputError, match="needs more than 1"):
        even_reuse_bias(0.5, 1)
    with pytest.raises(InputError, match="pass rate"):
        even_reuse_bias(1.5, 8)
    with pytest.raises(InputError, match=r"passes is 0\.5"):
        even_reuse_bias(0.5, 8, passes=0.5)


@pytest.mark.parametrize("known", [EVEN, EVEN.moments()])
def test_other_moments_are_refused(known):
    with pytest.raises(InputError, match="needs those of reuse_moments"):
        reuse_bias(known, 4, rate=0.1)


def test_policies_without_second_derivatives_are_refused():
    table = TabulatedPolicy(
        EVEN.policy.logits - np.log(np.exp(EVEN.policy.logits).sum(1))[:, None],
        np.stack([EVEN.policy.scores(x) for x in range(2)]),
    )
    bandit = SoftmaxBandit(table, EVEN.context_probs, EVEN.reward_values, EVEN.reward_probs)
    with pytest.raises(InputError, match="second derivatives of a TabulatedPolicy are not known"):
        reuse_moments(bandit)
    with pytest.raises(InputError, match="ratio 'words' is unknown"):
        reuse_moments(EVEN, "words")
