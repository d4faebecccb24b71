"""Outputs of unequal length: means in exact fractions, the engines, refusals."""

from collections import Counter
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from simulations.engines import TokenMeanCell
from tests.support import independent as ind
from tests.support.problems import library_problem
from tests.support.refusals import refusals
from ustat_pg.engines import Distance, Estimator, Mixed, Projection, SquaredError
from ustat_pg.engines.gradients.cell import direction
from ustat_pg.policies import OutputSpace, PrefixSoftmax
from ustat_pg.predictions import aggregated_mean, length_curl
from ustat_pg.problems import SoftmaxBandit, TokenProblem, random_problem

PROBLEM = ind.tabular("lengths", "1/4 3/4", ["1/2 3/8 1/8", "1/8 7/16 7/16"], ["1 0 1/2", "0 1 -1"])
LENGTHS = (1, 2, 5)
"""By output."""
BANDIT = library_problem(PROBLEM)


def brute(how, baseline, group_size, batch_size):
    """E ĝ over every group of a prompt and every number of tokens in the others of its minibatch."""
    law = Counter()
    for x, share in enumerate(PROBLEM.context_probs):
        for chance, group in groups_of(x, group_size):
            law[sum(LENGTHS[k] for k in group)] += share * chance
    others = {0: Fraction(1)}
    for _ in range(batch_size - 1):
        sums = Counter()
        for (n, p), (m, q) in product(others.items(), law.items()):
            sums[n + m] += p * q
        others = sums
    mean = 0 * ind.gradient(PROBLEM)
    for x, share in enumerate(PROBLEM.context_probs):
        outcomes, moments = PROBLEM.outcomes(x), ind.moments(PROBLEM, x)
        for chance, group in groups_of(x, group_size):
            z = np.array([outcomes[k].reward for k in group])
            advantages = z - ind.BASELINES[baseline](moments, z, None)
            tokens = sum(LENGTHS[k] for k in group)
            batch = sum(p / (tokens + m) for m, p in others.items())
            for k, advantage in zip(group, advantages, strict=True):
                weight = {
                    "sequence-sum": Fraction(1, group_size),
                    "sequence-mean": Fraction(1, group_size * LENGTHS[k]),
                    "prompt-mean": Fraction(1, tokens),
                    "token-mean": batch_size * batch,
                }[how]
                mean = mean + share * chance * weight * advantage * outcomes[k].score
    return mean.astype(float)


def groups_of(x, size):
    """Every group of outputs, by number and up to its order, with the chance of all its orders."""
    numbered = [outcome._replace(reward=k) for k, outcome in enumerate(PROBLEM.outcomes(x))]
    for chance, group in ind.groups(numbered, size):
        yield chance, [outcome.reward for outcome in group]


@pytest.mark.parametrize("how", ["sequence-sum", "sequence-mean", "prompt-mean", "token-mean"])
@pytest.mark.parametrize("baseline", ["vanilla", "grpo", "group-mean", "oracle"])
def test_means_match_the_enumeration_of_minibatches(how, baseline):
    moments = BANDIT.length_moments(LENGTHS)
    sizes = [(2, 1), (3, 1), (2, 2), (9, 1), (5, 4), (3, 20)]
    for group, batch in sizes + [(1, 1), (1, 3)] * (baseline in ("vanilla", "oracle")):
        result = aggregated_mean(moments, how, baseline, group, batch)
        assert result == pytest.approx(brute(how, baseline, group, batch), abs=1e-14)


@pytest.mark.parametrize("how", ["sequence-sum", "token-mean"])
def test_a_prompt_without_reward_adds_nothing_to_vanilla(how):
    """Outputs are of two tokens each, by which a mean of tokens divides."""
    rewards = np.array([[[1.0], [0.0], [0.5]], [[0.0], [0.0], [0.0]]])
    both = SoftmaxBandit.tabular([0.5, 0.5], np.zeros((2, 3)), rewards, np.ones((2, 3, 1)))
    mean = aggregated_mean(both.length_moments([2, 2, 2]), how, "vanilla", 2)
    assert mean == pytest.approx(both.gradient() / (2 if how == "token-mean" else 1), abs=1e-14)


def test_lengths_of_a_token_policy_include_the_end_token():
    space = OutputSpace(2, 2, end=True)
    task = TokenProblem(space, [(0,), (1,)], lambda x, y: float(len(y) + x[0]))
    policy = PrefixSoftmax.random(space, 2, seed=4)
    moments = task.at(policy).length_moments()
    assert moments.lengths.tolist() == [1, 2]
    assert moments.probs[:, 0] == pytest.approx(policy.probs[:, 0])
    assert moments.rewards.sum(axis=1) == pytest.approx((policy.probs * task.rewards).sum(axis=1))
    assert moments.scores.sum(axis=1) == pytest.approx(0, abs=1e-15)


# The cell.


def test_engines_agree_and_the_difference_is_on_the_same_draws():
    problem, grpo = BANDIT, Estimator("grpo")
    plain = TokenMeanCell(problem, 2, 2, lengths=LENGTHS)
    asked = [Projection(grpo, 0), SquaredError(grpo), Distance(grpo, Estimator("vanilla")), Mixed()]
    exact = plain.measure("exact", asked)
    drawn = plain.measure("reference", asked, replications=40_000)
    error = np.sqrt(drawn.covariance.diagonal() / drawn.n)
    assert (np.abs(drawn.mean - exact.mean) < 5 * error).all()
    paired = TokenMeanCell(problem, 2, 2, lengths=LENGTHS, scale=2.5, less_plain=True)
    u = direction(problem, 0)
    bias = 2.5 * aggregated_mean(problem.length_moments(LENGTHS), "token-mean", "grpo", 2, 2)
    result = paired.measure("exact", asked[:1]).mean[0] + problem.gradient() @ u
    assert result == pytest.approx((bias - problem.gradient()) @ u, abs=1e-14)


def test_ranges_hold():
    grpo = Estimator("grpo")
    for scale, less in ((1.0, False), (3.0, False), (3.0, True)):
        cell = TokenMeanCell(BANDIT, 2, 2, lengths=LENGTHS, scale=scale, less_plain=less)
        for quantity in (Projection(grpo, 1), SquaredError(grpo), Mixed()):
            low, high = cell.range(quantity)
            for seed in range(20):
                one = cell.measure("reference", [quantity], seed=seed, replications=1).mean[0]
                assert low <= one <= high


# Refusals.

MOMENTS = BANDIT.length_moments(LENGTHS)


test_what_does_not_fit_is_refused = refusals(
    (lambda: aggregated_mean(MOMENTS, "token-sum", "grpo", 2), "'token-sum' is unknown"),
    (lambda: aggregated_mean(MOMENTS, "token-mean", "std", 2), "estimator 'std' is unknown"),
    (lambda: length_curl(MOMENTS, "prompt-mean"), "'prompt-mean' is unknown"),
    (lambda: random_problem(0).length_moments(), "have no lengths"),
    (lambda: BANDIT.length_moments([1, 2, 2.5]), "3 whole numbers"),
    (lambda: BANDIT.length_moments([0, 1, 2]), "at least 1"),
)
