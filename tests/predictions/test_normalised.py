"""The limits of Lemma 11: against the closed forms at large G, by hand, and against enumeration."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tests.support.refusals import refuses
from ustat_pg.policies import TabulatedPolicy
from ustat_pg.predictions import (
    count_table,
    normalised_distance,
    normalised_error_of,
    normalised_limit,
    normalised_limit_of,
)
from ustat_pg.problems import SoftmaxBandit, random_problem

SIZES = np.array([1024, 2048, 4096])


def distance(moments, group_size, name="std"):
    """G E‖ĝ_std - ĝ_grpo/σ‖² of each prompt, exactly."""
    found = []
    for x, square in enumerate(moments.reward_variance):
        known = count_table("grpo", group_size).scaled(square**-0.5)
        found.append(count_table(name, group_size).less(known).second_moments(moments)[x])
    return group_size * np.array(found)


def error(moments, group_size, name="std"):
    """G E‖ĝ_std - g/σ‖² of each prompt, exactly."""
    table, deviation = count_table(name, group_size), moments.reward_variance**0.5
    cross = 2 * table.weight(moments.value) / deviation - 1 / deviation**2
    return group_size * (table.second_moments(moments) - cross * moments.gradient_sq)


def outcomes(problem, x):
    """Probabilities, rewards and scores of what one rollout at prompt x can yield."""
    found = problem.outcomes
    arms = found.arms[x]
    return found.probs[x], found.rewards[x], problem.policy.scores(x)[arms]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["std", "std-ddof1"])
@pytest.mark.parametrize(
    ("exact", "limit"), [(distance, normalised_distance), (error, normalised_limit)]
)
def test_what_is_left_to_the_limit_halves_as_the_group_doubles(exact, limit, name, seed):
    moments = random_problem(seed, "binary", contexts=4).moments()
    left = np.array([exact(moments, int(size), name) - limit(moments) for size in SIZES])
    assert np.abs(left[-1]).max() < 0.02 * normalised_limit(moments).max()
    assert left[1:] / left[:-1] == pytest.approx(0.5, abs=0.02)


def test_two_arms_by_hand():
    """With the score z - p the estimate *is* the group's deviation: a quarter of tr Σ/σ²."""
    probs, rewards, scores = np.array([0.1, 0.9]), np.array([1.0, 0.0]), np.array([[0.9], [-0.1]])
    policy = TabulatedPolicy(np.log([probs]), [scores])
    moments = SoftmaxBandit(policy, [1.0], [rewards[:, None]], [np.ones((2, 1))]).moments()
    assert normalised_limit(moments) == pytest.approx(0.8**2 / 4)
    assert normalised_distance(moments) == pytest.approx(0.8**2 / 4)
    found = [error(moments, size)[0] for size in (32, 512, 4096)]
    assert found == pytest.approx([0.2371, 0.1619, 0.1602], abs=5e-5)
    # Successes among 6, and the squared error of √(n (6-n))/6 about √(pq).
    chance = [0.9**6, 6 * 0.1 * 0.9**5, 15 * 0.01 * 0.9**4, 20 * 1e-3 * 0.9**3]
    chance += [15 * 1e-4 * 0.81, 6 * 1e-5 * 0.9, 1e-6]
    n = np.arange(7)
    by_hand = 6 * np.array(chance) @ (np.sqrt(n * (6 - n)) / 6 - 0.3) ** 2
    assert error(moments, 6)[0] == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize("kind", ["binary", "two-arms"])
def test_the_limit_for_any_reward_is_that_for_rewards_0_and_1(kind):
    problem = random_problem(3, kind)
    if kind == "two-arms":
        values = np.stack([np.ones((3, 2)), np.zeros((3, 2))], axis=-1)
        law = np.stack([problem.mean_rewards, 1 - problem.mean_rewards], axis=-1)
        problem = SoftmaxBandit(problem.policy, problem.context_probs, values, law)
    expected = normalised_limit(problem.moments())
    for x, value in enumerate(expected):
        assert normalised_limit_of(*outcomes(problem, x)) == pytest.approx(value, rel=1e-12)


# Rewards that are not 0 or 1: probabilities, rewards and scores before their mean is taken off.
GRADED = {
    "a middle that hides the deviation": ([0.495, 0.495, 0.01], [0.6, 0.4, 0.0], [[1], [-1], [0]]),
    "three grades": ([0.5, 0.3, 0.2], [1.0, 0.4, -0.5], [[1, 0], [0, 1], [0.5, -2]]),
    "one great reward": ([0.4, 0.35, 0.25], [0.0, 0.2, 3.0], [[1, 0], [0, 1], [1, 1]]),
}


@pytest.mark.parametrize("name", GRADED)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_error_at_a_finite_group_is_the_mean_over_every_ordered_group(name, size):
    probs, rewards, features = map(np.array, GRADED[name])
    scores = features - probs @ features
    advantage = rewards - probs @ rewards
    target = (probs * advantage) @ scores / (probs @ advantage**2) ** 0.5
    found = 0.0
    for chosen in map(list, product(range(3), repeat=size)):
        z = rewards[chosen]
        weights = (z - z.mean()) / z.std() if len(set(z)) > 1 else 0 * z
        found += (
            size * probs[chosen].prod() * ((weights @ scores[chosen] / size - target) ** 2).sum()
        )
    assert normalised_error_of(probs, rewards, scores, size) == pytest.approx(found, rel=1e-12)


def test_it_tends_to_the_limit_and_too_many_groups_are_refused():
    probs, rewards, features = map(np.array, GRADED["three grades"])
    scores = features - probs @ features
    limit = normalised_limit_of(probs, rewards, scores)
    left = [normalised_error_of(probs, rewards, scores, size) - limit for size in (512, 1024)]
    assert left[1] / left[0] == pytest.approx(0.5, abs=0.02)
    many = np.full(12, 1 / 12)
    said = "groups of 64 of 12 outcomes turn out in 4.9e.12 ways: at most"
    refuses(said, normalised_error_of, many, np.arange(12.0), np.ones((12, 1)), 64)
    refuses("group size", normalised_error_of, probs, rewards, scores, 0)


@pytest.mark.parametrize("limit", [normalised_distance, normalised_limit])
def test_moments_without_a_closed_form_are_refused(limit):
    def coin(rewards, chance):
        return SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [rewards], [chance]).moments()

    graded = coin([[1.0], [0.5]], [[1.0], [1.0]])
    refuses("has a closed form for rewards that are 0 or 1", limit, graded)
    sure = coin([[1.0], [1.0]], [[1.0], [1.0]])
    refuses("always or never solved has no deviation", limit, sure)
