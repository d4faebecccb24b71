"""Tables by counts from a pool: every mean against enumeration, every tuple of rollouts, every design."""

import itertools

import numpy as np
import pytest
from scipy.stats import binom

from tests.support.listed_pools import (
    LENGTHS,
    bandit,
    expectation,
    linear,
    many_contexts,
    ordered_pools,
    pool_of,
    sampled,
    sets_of_prompts,
    token_problem,
    two_arms,
)
from tests.support.refusals import refuses
from ustat_pg.estimators import advantages
from ustat_pg.llm.pool import estimates
from ustat_pg.llm.pool.moments import prompt_moments
from ustat_pg.llm.pool.scored import ScoredPool
from ustat_pg.llm.pool.tables import (
    as_moments,
    group_moments,
    learned_moments,
    own_moments,
    raw_moments,
    table_moments,
)
from ustat_pg.predictions import best_table, count_table, gradient_mse

FEATURES = [[[1.0, 0.2], [-0.5, 1.0], [0.3, -2.0]], [[0.1, 1.0], [2.0, -0.3], [-1.0, 0.4]]]
BIASED = ("std", "group-mean", "maxrl", "pass-at-k:2", "others-std", "count-table:.3,2,-1,.5")


def table_errors(pool, table):
    """E‖ĝ - g‖² at each prompt."""
    result = table_moments(pool, table)
    return result.second - 2 * result.cross + prompt_moments(pool).gradient_sq


def solved():
    """Three arms with rewards 0 and 1."""
    return linear(FEATURES, [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])


def two_solved(context_probs=(0.4, 0.6)):
    """Two arms with rewards 0 and 1, so few that pools of three prompts can be listed."""
    features = [arms[:2] for arms in FEATURES]
    return linear(features, [[1.0, 0.0], [0.0, 1.0]], context_probs)


def small_pool():
    """Six prompts, the first never and the second always solved, and scores of no gradient."""
    numbers = np.random.default_rng(0)
    rewards = (numbers.random((6, 7)) < 0.45) * 1.0
    rewards[0], rewards[1] = 0.0, 1.0
    scores = numbers.normal(size=(6, 7, 3))
    return ScoredPool.from_scores(rewards, scores), scores


def truths(problem, context, table):
    """E‖ĝ‖² and ⟨E ĝ, g⟩ at one prompt, by the predictions."""
    moments = problem.restrict([context]).moments()
    weight, square = float(table.weight(moments.value)[0]), float(moments.gradient_sq[0])
    return {
        "second": float(table.second_moments(moments)[0]),
        "cross": weight * square,
    }


CASES = [(name, 2, 5) for name in BIASED] + [
    ("std", 1, 4), ("std", 3, 4), ("std", 3, 6), ("std", 4, 5), ("maxrl", 3, 6), ("pass-at-k:2", 3, 5),
    ("vanilla", 1, 4), ("vanilla", 4, 4), ("grpo", 4, 4), ("bayes:1,2", 3, 4), ("loo-table:.3,.1,.8", 3, 4),
]  # fmt: skip


@pytest.mark.parametrize(("name", "size", "rollouts"), CASES)
def test_every_moment_of_a_table_is_unbiased_over_all_ordered_pools(name, size, rollouts):
    problem, table = solved(), count_table(name, size)
    for context in (0, 1):
        for field, true in truths(problem, context, table).items():
            mean = expectation(
                problem, context, lambda p, f=field: getattr(table_moments(p, table), f), rollouts
            )
            assert mean == pytest.approx(true, rel=1e-10, abs=1e-12), field


ODD = "count-table:.3,2,-1,.5"
"""A table of groups of two whose weight goes by the pass rate: std and maxrl are grpo there, std at three a
multiple."""


@pytest.mark.parametrize(
    ("name", "size"), [(ODD, 2), ("maxrl", 3), ("pass-at-k:2", 3), ("grpo", 3)]
)
def test_the_factor_makes_a_pool_s_gradient_unbiased_for_the_mean(name, size):
    problem, table = solved(), count_table(name, size)
    for context in (0, 1):
        moments = problem.restrict([context]).moments()
        right = moments.weighted_gradient(table.weight(moments.value))

        def coordinate(pool, axis):
            return table_moments(pool, table).factor * pool.gradients[:, axis]

        result = [expectation(problem, context, lambda p, a=a: coordinate(p, a)) for a in (0, 1)]
        assert result == pytest.approx(right, rel=1e-11)

        def plugged_in(pool):
            return table.weight(pool.rewards.mean(axis=1)) * pool.gradients[:, 0]

        if not table.unbiased:
            wrong = expectation(problem, context, plugged_in)
            assert abs(wrong - right[0]) > 1e-3 * abs(right[0])


def test_tables_and_moments_are_one_estimate():
    """vanilla, grpo and the group mean, a multiple, go through the table or through moments of any reward."""
    pool = sampled(token_problem(), 200, 8, seed=3)
    for name in ("vanilla", "grpo"):
        for size in (2, 3, 8):
            (mse,) = estimates.curves(pool, [size], [name])["mse"]
            assert table_errors(pool, count_table(name, size)).mean() == pytest.approx(mse)
    result = estimates.noise_to_signal(pool, [2, 5], ["grpo", "dr-grpo", "std", "std-ddof1"])
    relative = result.pivot(index="estimator", columns="group_size", values="relative")
    assert relative.loc[["grpo", "group-mean"]].to_numpy() == pytest.approx(np.ones((2, 2)))
    assert relative.loc["std-ddof1"].tolist() == pytest.approx(relative.loc["std"].tolist())
    # A multiple has the other's intervals too, and their ratio has no error.
    rows = result.set_index(["estimator", "group_size"])
    ends = ["low", "high", "relative_low", "relative_high"]
    assert rows.loc["group-mean", ends].to_numpy() == pytest.approx(rows.loc["grpo", ends])
    assert rows.loc[("grpo", 2), "relative_low"] == pytest.approx(1, rel=1e-12)


def test_without_a_signal_there_is_no_ratio():
    rng = np.random.default_rng(0)
    pool = ScoredPool.from_scores(np.ones((6, 8)), rng.normal(size=(6, 8, 3)))
    result = estimates.noise_to_signal(pool, [2, 7], ["grpo", "std", "maxrl"])
    assert not result[["noise", "signal"]].to_numpy().any()
    assert np.isnan(result[["ratio", "relative"]].to_numpy()).all()
    assert not result[["low", "relative_low"]].to_numpy().any()
    assert (result["high"] == np.inf).all()


# The best table.


def test_the_best_table_is_learned_on_other_prompts_than_it_is_judged_on():
    pool, _ = small_pool()
    moments = prompt_moments(pool)

    ((result,),) = group_moments(pool, moments, ["best"], [3])
    errors = result.second - result.cross
    # Fewer prompts than parts: each is judged by what all others teach.
    for x in range(6):
        others = np.delete(np.arange(6), x)
        known = prompt_moments(pool.select_prompts(others))
        table = best_table(as_moments(known, np.ones(5, bool)), 3)
        judged = table_errors(pool.select_prompts([x]), table)
        np.testing.assert_allclose(errors[x], judged[0], rtol=0, atol=1e-13)
    row = estimates.ordering(pool, 3, ["grpo", "best"]).iloc[0]
    mse = estimates.curves(pool, [3], ["grpo", "best"])["mse"]
    assert row["difference"] == pytest.approx(mse[0] - mse[1])
    order = [5, 3, 1, 0, 2, 4]
    turned = pool.select_prompts(order)
    again = learned_moments(turned, prompt_moments(turned), 3)
    np.testing.assert_allclose(again.second, result.second[order], rtol=1e-12)


# Scores over lengths.


def groups_over_lengths(problem, context, table):
    """E‖ĝ‖² and E ĝ of (1/G) Σ A s/|y|, group by group."""
    size, probs = table.group_size, problem.policy.probs[context]
    arms = np.array(list(itertools.product(range(len(probs)), repeat=size)))
    z = problem.mean_rewards[context][arms]
    won = z.sum(axis=1, keepdims=True).astype(int)
    advantages = np.where(z == 1, table.successes[won], table.failures[won])
    scores = problem.policy.scores(context)[arms] / LENGTHS[arms % 3][..., None]
    result, chances = (advantages[..., None] * scores).mean(axis=1), probs[arms].prod(axis=1)
    return float(chances @ (result**2).sum(axis=1)), chances @ result


@pytest.mark.parametrize(("name", "size"), [(ODD, 2), ("std", 3), ("grpo", 4), ("vanilla", 1)])
def test_scores_over_lengths_are_unbiased_over_all_ordered_pools(name, size):
    problem, table = solved(), count_table(name, size)

    def coordinate(pool, axis):
        return raw_moments(pool, table, by_length=True).vectors[:, axis]

    for context in (0, 1):
        second, mean = groups_over_lengths(problem, context, table)
        text = expectation(
            problem, context, lambda pool: raw_moments(pool, table, by_length=True).second
        )
        assert text == pytest.approx(second, rel=1e-11)
        result = [expectation(problem, context, lambda p, a=a: coordinate(p, a)) for a in (0, 1)]
        assert result == pytest.approx(mean, rel=1e-10)
        if name != "grpo":
            continue
        # The mean of scores over lengths is not 0, so that this is no multiple of g.
        g = problem.restrict([context]).gradient()
        assert abs(mean[0] * g[1] - mean[1] * g[0]) > 1e-3 * np.linalg.norm(mean) * np.linalg.norm(
            g
        )


def truth_of_noise(problem, table, aggregation):
    """tr Cov ĝ and ‖E ĝ‖², prompts drawn anew."""
    if aggregation == "sequence-sum":
        right = gradient_mse(problem.moments(), table.estimator, table.group_size)
        signal = problem.moments().mean_gradient(right.mean_factor)[0]
        return right.noise_to_signal * signal, signal
    known = [groups_over_lengths(problem, x, table) for x in (0, 1)]
    mean = problem.context_probs @ np.stack([each[1] for each in known])
    return problem.context_probs @ [each[0] for each in known] - mean @ mean, mean @ mean


@pytest.mark.parametrize(
    ("name", "size", "prompts", "aggregation"),
    [
        (ODD, 2, 3, "sequence-sum"),
        ("maxrl", 3, 3, "sequence-sum"),
        (ODD, 2, 2, "sequence-mean"),
    ],
)
def test_noise_and_signal_are_unbiased_over_all_sets_of_prompts(name, size, prompts, aggregation):
    problem, total = two_solved(), np.zeros(2)
    for contexts, arms, probability in sets_of_prompts(problem, prompts):
        pool = pool_of(problem, contexts, arms)
        frame = estimates.noise_to_signal(pool, [size], [name], aggregation=aggregation)
        total += probability * frame[["noise", "signal"]].to_numpy()[0]
    right = truth_of_noise(problem, count_table(name, size), aggregation)
    assert total == pytest.approx(right, rel=1e-10)


# Refusals.


def test_tables_that_a_pool_cannot_judge_are_refused():
    pool, _ = small_pool()
    curves, noise = estimates.curves, estimates.noise_to_signal
    has = "groups are drawn from the pool, which has 7"
    refuses(f"group size is 8: {has}", curves, pool, [8], ["bayes:1,1"])
    refuses(f"group size is 7: {has} .* one more rollout", curves, pool, [7], ["std"])
    alone = pool.select_prompts([3])
    refuses("learned on other prompts, but this pool has only one", curves, alone, [3], ["best"])
    refuses("there is 1 prompt", noise, alone, [3], ["std"])
    graded = ScoredPool.from_scores(pool.rewards / 2, np.ones((6, 7, 2)))
    refuses("rewards that are 0 or 1: this pool has others", curves, graded, [3], ["bayes:1,1"])


OWN = ("std", "std-ddof1", "maxrl", "others-std", "grpo", "count-table:.3,2,-1,-.5,.2,.1,.4,-.3")


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("graded", [False, True])
def test_a_group_of_all_rollouts_is_one_draw_of_the_estimate(name, graded):
    """Its square and its sketch are those of ĝ, pool by pool."""
    problem = bandit() if graded else many_contexts()
    arms, _ = ordered_pools(problem, 0)
    pool = pool_of(problem, np.zeros(len(arms), int), arms)
    if graded and name == OWN[-1]:
        refuses("0 or 1", own_moments, pool, name)
        return
    a, scores = advantages(name, pool.rewards), problem.policy.scores(0)[arms]
    drawn = np.einsum("pn,pnd->pd", a, scores) / arms.shape[1]
    group = own_moments(pool, name)
    np.testing.assert_allclose(group.second, (drawn**2).sum(axis=1), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(group.vectors, drawn, rtol=1e-9, atol=1e-12)


def test_noise_of_the_logs_own_groups_is_unbiased():
    """Over all sets of three prompts: tr Cov ĝ and ‖E ĝ‖² of rewards over their deviation, G = N = 4."""
    problem = two_arms()
    found, squares, mean = np.zeros(2), 0.0, 0.0
    for contexts, arms, chance in sets_of_prompts(problem, 3):
        pool = pool_of(problem, contexts, arms)
        frame = estimates.noise_to_signal(pool, [4], ["std"])
        found += chance * frame[["noise", "signal"]].to_numpy()[0]
        a = advantages("std", pool.rewards)
        scores = np.stack(
            [problem.policy.scores(x)[k] for x, k in zip(contexts, arms, strict=True)]
        )
        drawn = np.einsum("pn,pnd->pd", a, scores) / 4
        squares, mean = squares + chance * (drawn[0] ** 2).sum(), mean + chance * drawn[0]
    signal = (mean**2).sum()
    assert found == pytest.approx([squares - signal, signal], rel=1e-9)


def test_intervals_at_the_logs_own_size_hold_the_truth():
    problem, runs = many_contexts(), 150
    exact = gradient_mse(problem.moments(), "std", 6)
    missed = cosines = 0
    for run in range(runs):
        pool = sampled(problem, 150, 6, run)
        (row,) = estimates.noise_to_signal(pool, [6], ["std"]).itertuples()
        missed += not row.low <= exact.noise_to_signal <= row.high
        bias = estimates.direction(pool, "std", 6)
        cosines += not bias.low <= exact.cosine <= bias.high
    most = binom.isf(1e-4, runs, 0.05)
    assert 0 < missed <= most
    assert cosines <= most
