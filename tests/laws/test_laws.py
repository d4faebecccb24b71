"""Laws that hold for every array of scores and rewards, or for every problem."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ustat_pg import estimators, ustatistics
from ustat_pg.problems import KINDS, random_problem

NUMBER = st.floats(-100, 100, allow_subnormal=False)
ROUNDING = 1e-10  # of numbers up to 1e4 in sums of a few terms


@st.composite
def groups(draw, least=2):
    """Scores (G, d), rewards (G,) and squared norms (G,)."""
    size, d = draw(st.integers(least, 8)), draw(st.integers(1, 4))
    scores = draw(hnp.arrays(np.float64, (size, d), elements=NUMBER))
    rewards = draw(hnp.arrays(np.float64, (size,), elements=NUMBER))
    return scores, rewards, (scores**2).sum(axis=1)


problems = st.builds(
    random_problem,
    st.integers(0, 10_000),
    st.sampled_from(KINDS),
    contexts=st.integers(1, 3),
)
NAMES = ("vanilla", "grpo", "group-mean", "oracle", "norm-weighted")
SHIFTED = ("grpo", "group-mean", "norm-weighted")


def advantages(name, rewards, norms, value=0.25):
    extra = {"oracle": {"value": value}, "norm-weighted": {"squared_norms": norms}}.get(name, {})
    return estimators.advantages(name, rewards, **extra)


@given(groups(), st.floats(-100, 100))
def test_a_common_shift_of_rewards_changes_nothing(group, shift):
    _, rewards, norms = group
    # Where all other norms are zero the norm-weighted baseline is 0 by definition, no mean.
    norms = norms + 1.0
    for name in SHIFTED:
        before, after = (advantages(name, z, norms) for z in (rewards, rewards + shift))
        assert np.allclose(before, after, rtol=0, atol=ROUNDING), name
    moved = advantages("oracle", rewards + shift, norms, value=0.25 + shift)
    assert np.allclose(moved, advantages("oracle", rewards, norms), rtol=0, atol=ROUNDING)


@given(groups(), st.floats(-100, 100))
def test_advantages_scale_with_rewards(group, factor):
    _, rewards, norms = group
    for name in NAMES:
        scaled = advantages(name, factor * rewards, norms, value=0.25 * factor)
        expected = factor * advantages(name, rewards, norms)
        assert np.allclose(scaled, expected, rtol=0, atol=100 * ROUNDING), name


@given(groups(), st.randoms(use_true_random=False))
def test_outputs_have_no_order(group, random):
    scores, rewards, norms = group
    order = list(range(len(rewards)))
    random.shuffle(order)
    for name in NAMES:
        one = advantages(name, rewards, norms)
        two = advantages(name, rewards[order], norms[order])
        assert np.allclose(two, one[order], rtol=0, atol=ROUNDING), name
        assert np.allclose(
            estimators.gradient(scores[order], two),
            estimators.gradient(scores, one),
            rtol=0,
            atol=100 * ROUNDING,
        ), name


@given(groups())
def test_no_advantage_uses_its_own_reward_as_baseline(group):
    """The derivative of A_i by z_i is 1 for leave-one-out; (G-1)/G for the group mean."""
    _, rewards, norms = group
    size, step = len(rewards), 1.0
    for name, slope in (
        ("vanilla", 1.0),
        ("grpo", 1.0),
        ("norm-weighted", 1.0),
        ("oracle", 1.0),
        ("group-mean", 1 - 1 / size),
    ):
        moved = rewards.copy()
        moved[0] += step
        change = (advantages(name, moved, norms) - advantages(name, rewards, norms))[0]
        assert change == pytest.approx(slope, abs=ROUNDING), name


@given(groups())
def test_lemma_1_grpo_is_the_covariance_u_statistic(group):
    scores, rewards, _ = group
    result = estimators.gradient(scores, estimators.grpo(rewards))
    expected = ustatistics.covariance_ustatistic(scores, rewards)
    assert np.allclose(result, expected, rtol=0, atol=100 * ROUNDING)
    by_pairs = ustatistics.ustatistic(ustatistics.covariance_kernel, (scores, rewards))
    assert np.allclose(result, by_pairs, rtol=0, atol=100 * ROUNDING)


@given(problems, st.integers(2, 6), st.data())
def test_grpo_is_mean_plus_first_plus_second_part(problem, size, data):
    """Sample by sample, under the problem's own law; the oracle is mean plus first part."""
    x = data.draw(st.integers(0, problem.contexts - 1))
    count = int(problem.outcomes.counts[x])
    drawn = np.array(data.draw(st.lists(st.integers(0, count - 1), min_size=size, max_size=size)))
    arms, rewards = problem.outcomes.arms[x, :count], problem.outcomes.rewards[x, :count]
    scores = problem.policy.scores(x)[arms]
    parts = ustatistics.hoeffding(
        ustatistics.covariance_kernel,
        (scores[drawn], rewards[drawn]),
        (scores, rewards),
        problem.outcomes.probs[x, :count],
    )
    g = problem.policy.combine(x, problem.policy.probs[x] * problem.mean_rewards[x])
    assert np.allclose(parts.mean, g, rtol=0, atol=1e-13)
    grpo = estimators.gradient(scores[drawn], estimators.grpo(rewards[drawn]))
    assert np.allclose(grpo, g + parts.first + parts.second, rtol=0, atol=1e-12)
    value = float(problem.moments().value[x])
    oracle = estimators.gradient(scores[drawn], estimators.oracle(rewards[drawn], value=value))
    assert np.allclose(oracle, g + parts.first, rtol=0, atol=1e-12)
