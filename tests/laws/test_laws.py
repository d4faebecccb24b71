"""Laws that hold for every array of scores and rewards, or for every problem."""

import numpy as np
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
