"""Pool estimators against enumeration: their means over all pools, their intervals, their refusals."""

import itertools
import math
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from tests.support.listed_pools import (
    LENGTHS,
    PROXIES,
    bandit,
    exact_mse,
    expectation,
    many_contexts,
    ordered_pools,
    pool_of,
    sampled,
    sets_of_prompts,
    token_problem,
    two_arms,
)
from tests.support.pools import ARRAYS
from tests.support.refusals import refuses
from ustat_pg.catalogue.choice import Direction
from ustat_pg.engines import Estimator
from ustat_pg.llm.advice.commands import errors_of_pool
from ustat_pg.llm.pool import estimates
from ustat_pg.llm.pool import weighted as weighted_module
from ustat_pg.llm.pool.constants import constant_means
from ustat_pg.llm.pool.plans import adaptive_pool_advice
from ustat_pg.llm.pool.scored import ScoredPool
from ustat_pg.llm.pool.tables import group_moments
from ustat_pg.llm.pool.weighted import at_best_constant, group_errors
from ustat_pg.predictions import (
    mse_constants,
)
from ustat_pg.problems import SoftmaxBandit


def truth(problem, name, context):
    moments = problem.moments()
    if name == "variance_trace":
        return (moments.reward_variance * moments.fisher_trace)[context]
    if name == "norm_squared_reward":
        norms = problem.policy.squared_norms[context][problem.outcomes.arms[context]]
        return problem.outcomes.probs[context] @ (norms * problem.outcomes.rewards[context] ** 2)
    return getattr(moments, name)[context]


NAMES = tuple(estimates.PromptMoments.__dataclass_fields__)[:-1]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("context", [0, 1])
@pytest.mark.parametrize("rollouts", [4, 5])
def test_every_moment_is_unbiased_over_all_ordered_pools(name, context, rollouts):
    problem = bandit()
    mean = expectation(
        problem, context, lambda pool: getattr(estimates.prompt_moments(pool), name), rollouts
    )
    assert mean == pytest.approx(truth(problem, name, context), rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("group_size", [2, 3, 5])
@pytest.mark.parametrize("name", ["vanilla", "grpo", "oracle"])
def test_curves_are_unbiased_at_group_sizes_below_and_above_the_pool(name, group_size):
    problem = bandit()
    for context in (0, 1):

        def errors(pool):
            moments = estimates.prompt_moments(pool)
            ((group,),) = group_moments(pool, moments, [name], [group_size])
            return group.second - group.cross

        exact = exact_mse(problem, context, Estimator(name), group_size)
        assert expectation(problem, context, errors) == pytest.approx(exact, rel=1e-12)


def weighted(by_arm):
    """The estimator whose baseline weights the other rewards by a number of their arms."""

    def advantages(rewards, draws):
        others = by_arm[draws.arms][..., None, :] * (1 - np.eye(rewards.shape[-1]))
        return rewards - (others * rewards[..., None, :]).sum(-1) / others.sum(-1)

    return Estimator("by arm", function=advantages)


@pytest.mark.parametrize(
    ("name", "estimator"),
    [(name, Estimator(name)) for name in ("norm-weighted",)]
    + [("length-weighted", weighted(LENGTHS)), ("token-weighted", weighted(PROXIES))],
)
def test_random_groups_are_unbiased_for_the_error_of_baselines_that_read_the_group(name, estimator):
    problem, sizes = bandit(), [2, 3, 4]
    for context in (0, 1):
        total = np.zeros(len(sizes))
        # Each pool alone and under one name, so that all have the same permutations.
        for arms, probability in zip(*ordered_pools(problem, context), strict=True):
            pool = pool_of(problem, [context], arms[None])
            result, _ = group_errors(pool, [name], sizes, permutations=2)
            total += probability * result[0, :, 0]
        exact = [exact_mse(problem, context, estimator, size) for size in sizes]
        assert total == pytest.approx(exact, rel=1e-11)


def test_random_groups_depend_on_seed_and_name_only(monkeypatch):
    rng = np.random.default_rng(0)
    pool = pool_of(bandit(), [0, 1, 1, 0, 1], rng.integers(0, 3, (5, 9)))
    asked, few = (["length-weighted", "norm-weighted"], [2, 4]), {"permutations": 5}
    whole, _ = group_errors(pool, *asked, seed=5, **few)
    part, _ = group_errors(pool.select_prompts([2, 0]), ["norm-weighted"], [4], seed=5, **few)
    assert np.allclose(part[0, 0], whole[1, 1][[2, 0]], rtol=1e-12)
    assert not np.allclose(group_errors(pool, *asked, seed=6, **few)[0], whole)
    # Nor on how many prompts are taken at a time, or orders.
    monkeypatch.setattr(weighted_module, "_ENTRIES", 170)
    monkeypatch.setattr(weighted_module, "_ROUND", 2)
    assert np.allclose(group_errors(pool, *asked, seed=5, **few)[0], whole, rtol=1e-12)


def test_random_groups_are_as_many_as_their_own_error_asks_for(monkeypatch):
    rng = np.random.default_rng(1)
    pool = pool_of(bandit(), rng.integers(0, 2, 30).tolist(), rng.integers(0, 3, (30, 16)))
    grpo = estimates.curves(pool, [2], ["grpo"])["mse"]
    frame = estimates.curves(pool, [2, 4, 8], ["norm-weighted", "oracle"]).set_index("estimator")
    # With two rewards each is the other's baseline, whatever its weight.
    assert frame["mse"].iloc[0] == pytest.approx(grpo[0], rel=1e-12)
    drawn, known = frame.loc["norm-weighted"], frame.loc["oracle"]
    assert (known["own_se"] == 0).all()
    assert (drawn["own_se"].iloc[1:] > 0).all()
    assert (drawn["own_se"] <= 0.01 * drawn["mse"].abs()).all()
    # Its size is what other orders differ by.
    asked = pool, ["norm-weighted"], [4]
    monkeypatch.setattr(weighted_module, "_ROUND", 8)
    several = [group_errors(*asked, seed=k, permutations=8) for k in range(60)]
    apart = np.std([errors[0, 0].mean() for errors, _ in several], ddof=1)
    said = np.mean([np.linalg.norm(own) / pool.size for _, own in several])
    assert apart == pytest.approx(said, rel=0.3)


def values_of(result, *names):
    return np.array([getattr(result, name).value for name in names])


def test_constants_are_unbiased_over_all_sets_of_prompts():
    problem = two_arms()
    total, wrong = np.zeros(4), np.zeros(2)
    for contexts, arms, probability in sets_of_prompts(problem, 3):
        pool = pool_of(problem, contexts, arms)
        result = estimates.constants(pool)
        moments = estimates.prompt_moments(pool)
        total += probability * values_of(result, "c1", "c2", "c3", "vanilla")
        spread = moments.gradient_sq.mean()
        # ‖g‖² with pairs of a prompt and itself, and with these counted as others.
        kept = (pool.gradients.sum(axis=0) ** 2).sum()
        kept = kept / np.array([pool.size**2, pool.size * (pool.size - 1)])
        wrong += probability * (spread - kept)
    right = mse_constants(problem.moments())
    assert total == pytest.approx([right.c1, right.c2, right.c3, right.vanilla], rel=1e-11)
    assert (np.abs(wrong - right.c1) > 0.01 * right.c1).all()


@pytest.mark.parametrize("seen", [2, 3, 5])
def test_constants_of_a_set_of_prompts_are_unbiased_over_its_subsets(seen):
    whole = sampled(token_problem(), 6, 4, seed=3)
    names = ("c1", "c2", "c3", "vanilla", "signal")
    right = values_of(estimates.constants(whole, whole.size), *names)
    drawn = [whole.select_prompts([*some]) for some in itertools.combinations(range(6), seen)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found, independent = (
            np.mean([values_of(estimates.constants(pool, size), *names) for pool in drawn], axis=0)
            for size in (whole.size, None)
        )
    assert found == pytest.approx(right, rel=1e-11)
    # Products of a prompt with itself make the set's own gradient, but for what a group's noise adds.
    moments = estimates.prompt_moments(whole)
    vectors = estimates.gradients(whole)
    noise = moments.gradient_sq.mean() - (vectors**2).sum(axis=1).mean()
    assert right[4] == pytest.approx((vectors.mean(axis=0) ** 2).sum() + noise / whole.size)
    assert abs(independent[4] - right[4]) > 0.05 * abs(right[4])


def test_a_set_of_fewer_prompts_than_the_pool_is_refused():
    pool = sampled(token_problem(), 3, 4, seed=3)
    refuses("the pool has 3 different prompts of it", estimates.constants, pool, 2)


def test_no_prompt_of_a_log_is_compared_with_itself():
    """Means over all logs of two prompts in two steps each; counted as four prompts they are biased."""
    problem, total, wrong = two_arms(), np.zeros(4), np.zeros(4)
    for contexts, arms, probability in sets_of_prompts(problem, 2, groups=2):
        as_four = pool_of(problem, contexts, arms)
        for sums, pool in ((wrong, as_four), (total, replace(as_four, clusters=[0, 0, 1, 1]))):
            result = estimates.constants(pool)
            sums += probability * values_of(result, "c1", "c2", "c3", "signal")
    known = mse_constants(problem.moments())
    right = np.array([known.c1, known.c2, known.c3, problem.moments().mean_gradient_sq])
    assert total == pytest.approx(right, rel=1e-11)
    # One of three pairs is of one prompt.
    assert wrong == pytest.approx(right + np.array([-1, 0, 0, 1]) * known.c1 / 3, rel=1e-11)


def test_a_prompt_that_is_given_again_says_nothing_new():
    """Every number and interval is that of the pool without the rows that stand there again."""
    pool = sampled(many_contexts(), 12, 6, seed=3)
    rows = np.repeat(np.arange(12), [3, 1, 2] * 4)
    names = [pool.prompts[x] if rows[i - 1] != x else f"{x} again {i}" for i, x in enumerate(rows)]
    arrays = {name: getattr(pool, name) for name in ARRAYS}
    arrays = {name: array[rows] for name, array in arrays.items() if array is not None}
    again = ScoredPool(tuple(names), **arrays, clusters=rows)

    def numbers(of):
        for frame in errors_of_pool(of).tables.values():
            # Random groups go by the names of rows.
            yield frame[frame["own_se"] == 0] if "own_se" in frame else frame
        yield estimates.curves(of, [3], ["grpo", "best"])
        yield estimates.oracle_ratio(of, [4])
        yield pd.DataFrame([vars(estimates.direction(of, "std", 4))])
        yield pd.DataFrame([vars(adaptive_pool_advice(of))])

    for one, other in zip(numbers(pool), numbers(again), strict=True):
        pd.testing.assert_frame_equal(one, other, rtol=1e-9, atol=1e-12)
    single = again.select_prompts([0, 1, 2])
    refuses("there is 1 prompt", estimates.constants, single)
    assert errors_of_pool(single).constants is None


def plug_in(pool):
    """The error at the best constant of the same rollouts."""
    norms, z = pool.squared_norms, pool.rewards
    best = (norms * z).sum(axis=1, keepdims=True) / norms.sum(axis=1, keepdims=True)
    return (norms * (z - best) ** 2).mean(axis=1)


def test_the_jackknifed_best_constant_is_what_deleting_rollouts_gives():
    rng = np.random.default_rng(2)
    pool = pool_of(bandit(), [0, 1], rng.integers(0, 3, (2, 7)))
    whole = plug_in(pool)
    rests = [pool.select_rollouts(np.delete(range(7), k)) for k in range(7)]
    without = [plug_in(rest) for rest in rests]
    slow = 7 * whole - 6 * np.mean(without, axis=0)
    assert at_best_constant(pool) == pytest.approx(slow, rel=1e-12)


def one_context(logits, rewards):
    """One context of arms with sure rewards."""
    sure = np.ones((1, len(logits), 1))
    return SoftmaxBandit.tabular([1.0], [logits], np.reshape(rewards, sure.shape), sure)


def large_norms_without_reward():
    """The plainest counter-example to Corollary 5: V = .8, b* = .128, so the oracle is worse than nothing."""
    return one_context(np.log([0.8, 0.1, 0.05, 0.05]), [1.0, 0.0, 0.0, 0.0])


def test_the_paper_s_reading_fails_where_theory_says_so():
    pool = sampled(large_norms_without_reward(), 400, 16, seed=2)
    frame = estimates.ordering(pool, 16, ["vanilla", "grpo", "oracle", "norm-weighted"])
    read = frame.set_index(["first", "second"])
    assert read.loc[("vanilla", "oracle"), "larger"] == "oracle"
    assert read.loc[("vanilla", "oracle"), "reading"] == "fails"
    assert read.loc[("vanilla", "grpo"), "reading"] == "fails"
    assert read.loc[("grpo", "oracle"), "reading"] == "holds"
    assert read.loc[("grpo", "norm-weighted"), "larger"] == "grpo"
    assert read.loc[("grpo", "norm-weighted"), "reading"] == "none"
    table = estimates.summary(pool).set_index("name")
    assert table.loc["correlation", "high"] < 0
    assert table.loc["best_less_value", "high"] < 0
    assert table.loc["optimal_baseline", "value"] < 0.3


def test_one_prompt_has_no_spread_between_prompts_and_two_no_error_of_it():
    pool = sampled(token_problem(), 1, 6, seed=1)
    curve = estimates.curves(pool, [2, 64])
    assert np.isfinite(curve.mse).all()
    assert (curve.low[0], curve.high[0]) == (-math.inf, math.inf)
    assert math.isnan(curve.se[0])
    assert estimates.ordering(pool, 4).larger.tolist() == ["open"] * 3
    refuses("there is 1 prompt", estimates.constants, pool)
    result = estimates.constants(sampled(token_problem(), 2, 6, seed=1))
    assert math.isfinite(result.c1.value)
    assert math.isnan(result.c1.se)
    assert result.c1.interval == (-math.inf, math.inf)
    assert result.g_star.interval == (1.0, math.inf)
    assert len(result.to_frame()) == 7
    assert math.isfinite(result.c2.se)


@pytest.mark.parametrize("level", [0.0, 1.0, 1e6 + 0.1])
def test_equal_rewards_teach_nothing(level):
    rng = np.random.default_rng(0)
    pool = ScoredPool.from_scores(np.full((6, 8), level), rng.normal(size=(6, 8, 3)))
    result = estimates.constants(pool)
    assert values_of(result, "c1", "c2", "c3").tolist() == [0, 0, 0]
    assert result.g_star.value == math.inf
    assert result.g_star.interval == (1.0, math.inf)
    frame = estimates.curves(pool, [2, 8], ["grpo", "oracle", "minimum-variance"])
    # b* is a ratio whose numerator and denominator round apart.
    assert np.abs(frame.mse).max() <= 1e-12 * max(level, 1.0) ** 2
    assert not frame[frame.estimator != "minimum-variance"].mse.any()
    weighted = estimates.curves(pool, [2, 8], ["norm-weighted"])
    assert np.abs(weighted.mse).max() <= 1e-12 * max(level, 1.0) ** 2
    assert (estimates.curves(pool, [2], ["vanilla"]).mse > 0).all() == (level > 0)
    assert estimates.frac_reward_zero_std(
        pool, [2, pool.rollouts]
    ).frac_reward_zero_std.tolist() == [1.0, 1.0]
    assert np.isnan(estimates.oracle_ratio(pool, [4]).predicted).all()
    assert estimates.ordering(pool, 4, ["grpo", "oracle"]).larger.tolist() == ["tie"]
    assert estimates.ordering(pool, 4, ["grpo", "oracle"]).reading.tolist() == ["tie"]
    table = estimates.summary(pool).set_index("name")
    assert table.loc["mixed", "value"] == 0
    assert np.isnan(table.loc["oracle_beats_vanilla", "value"])
    assert np.isnan(table.loc["correlation", "value"])
    assert table.loc["pass_rate", "value"] == level


#: Norms of the scores of each prompt's four rollouts.
EDGES = {
    "no score": [[0.0] * 4] * 3,
    "one prompt's scores": [[1.0, 2.0, 0.5, 1.5], [0.0] * 4, [0.0] * 4],
    "one score of each": [[0.0, 0.0, 2.0, 0.0]] * 3,
    "equal norms": [[1.0] * 4] * 3,
}


@pytest.mark.parametrize("name", EDGES)
def test_what_is_0_divides_nothing(name):
    """All is a number, or NaN where there is nothing that it could be the share or the ratio of."""
    rewards, norms = (
        np.array([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]]),
        EDGES[name],
    )
    directions = np.random.default_rng(6).normal(size=(3, 4, 2))
    directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    pool = ScoredPool.from_scores(rewards, np.array(norms)[..., None] * directions)
    # The best constant of the rollouts that count, and without each of them.
    for x, own in enumerate(np.square(norms)):

        def plug_in(kept, own=own, z=rewards[x]):
            q, r = own[kept], z[kept]
            return (q * (r - q @ r / (q.sum() or 1.0)) ** 2).mean()

        rests = [plug_in(np.delete(range(4), k)) for k in range(4)]
        wanted = 4 * plug_in(range(4)) - 3 * np.mean(rests)
        assert at_best_constant(pool)[x] == pytest.approx(wanted, abs=1e-12)
    every = ["vanilla", "grpo", "oracle", "minimum-variance", "norm-weighted", "std"]
    assert np.isfinite(estimates.curves(pool, [2, 3], every)[["mse", "se"]]).all(axis=None)
    read = estimates.summary(pool).set_index("name")["value"]
    square = np.square(norms)
    total = square.sum()
    best = (square * rewards).sum() / total if total else rewards.mean()
    assert read["optimal_baseline"] == pytest.approx(best)
    assert read["fisher_trace"] == pytest.approx(total / 12)
    assert math.isnan(read["correlation"]) == (name in ("no score", "equal norms"))
    assert math.isfinite(read["best_less_value"])
    assert (read["mixed"], read["pass_rate"]) == (1.0, 0.5)
    if not total:
        assert not estimates.noise_to_signal(pool, [2], ["grpo", "std"])[["noise", "signal"]].any(
            axis=None
        )
        assert values_of(estimates.constants(pool), "c1", "c2", "c3").tolist() == [0, 0, 0]
        assert estimates.direction(pool, "std", 2) == Direction(None, None, -1.0, 1.0)
        assert read["oracle_beats_vanilla"] == read["best_less_value"] == 0


def test_shares_of_groups_without_signal():
    rewards = [[1.0, 1.0, 0.0, 0.0, 0.0], [1.0] * 5]
    frame = estimates.frac_reward_zero_std(rewards, [1, 2, 3, 5, 6])
    of_the_first = [1, 1 / 10 + 3 / 10, 1 / 10, 0, np.nan]
    expected = [(share + 1) / 2 for share in of_the_first]
    assert frame.frac_reward_zero_std.tolist() == pytest.approx(expected, nan_ok=True)
    assert frame.biased.tolist() == [False] * 4 + [True]
    # A larger group is silent at most as often.
    assert (frame.low[4], frame.high[4]) == (0, frame.high[3])
    pool = ScoredPool.from_scores(rewards, np.ones((2, 5, 1)))
    assert estimates.frac_reward_zero_std(pool, [2]).equals(
        estimates.frac_reward_zero_std(rewards, [2])
    )


def test_a_share_that_no_prompt_has_may_be_that_of_prompts_to_come():
    """The ends at which all of 20 prompts would be alike with probability 2.5%, as of a binomial law."""
    for rewards, ends in (([1.0, 0.0, 1.0, 0.0], (0, 1)), ([1.0] * 4, (1, 0))):
        (row,) = estimates.frac_reward_zero_std([rewards] * 20, [4]).to_dict("records")
        near, far = (row["low"], row["high"])[:: 1 if ends[0] == 0 else -1]
        assert (row["frac_reward_zero_std"], near) == (ends[0], ends[0])
        assert abs(far - ends[0]) == pytest.approx(binomtest(0, 20).proportion_ci().high)


def test_bad_questions_are_refused():
    pool = sampled(token_problem(), 4, 6, seed=0)
    refuses("leave-one-out needs at least 2", estimates.curves, pool, [1])
    refuses("'critic' is unknown", estimates.curves, pool, [2], ["critic"])
    refuses("which has 6 rollouts per prompt", estimates.curves, pool, [7], ["norm-weighted"])
    refuses("group-mean is biased", estimates.ordering, pool, 2, ["grpo", "group-mean"])


def test_what_the_jackknife_deletes_is_what_a_pool_without_that_prompt_says():
    rng = np.random.default_rng(4)
    pool = pool_of(bandit(), rng.integers(0, 2, 8), rng.integers(0, 3, (8, 6)))
    result = constant_means(pool)
    for x in range(8):
        rest = pool.select_prompts(np.delete(np.arange(8), x).tolist())
        assert result.without[x] == pytest.approx(constant_means(rest).full, rel=1e-10)
