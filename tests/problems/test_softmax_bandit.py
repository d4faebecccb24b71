"""The bandit's scores, gradient and Hessian against finite differences; its outcomes, digest and refusals."""

import re

import numpy as np
import pytest

from tests.support.refusals import refusals, refuses
from ustat_pg.policies import PrefixSoftmax
from ustat_pg.problems import (
    KINDS,
    SoftmaxBandit,
    bracket_matching,
    digits_problem,
    modular_sum,
    random_problem,
)

every_kind = pytest.mark.parametrize("kind", KINDS)
MODULAR, BRACKETS = modular_sum(5, 2, end=True, graded=True), bracket_matching(2, 3, end=True)
BANDITS = {f"{kind}-{seed}": random_problem(seed, kind) for kind in KINDS for seed in (0, 1)} | {
    "tokens": MODULAR.at(PrefixSoftmax.random(MODULAR.space, MODULAR.contexts, seed=3)),
    "tokens-shared": BRACKETS.at(
        PrefixSoftmax.random(BRACKETS.space, BRACKETS.contexts, seed=9, shared=True)
    ),
    "real data": digits_problem().restrict([5, 900, 1796]),
}
each = pytest.mark.parametrize("problem", BANDITS.values(), ids=BANDITS)


def slope(problem, unit):
    """The return's derivative along a direction, by differences."""
    theta, step = problem.policy.theta, 1e-5
    up, down = problem.objective(theta + step * unit), problem.objective(theta - step * unit)
    return (up - down) / (2 * step)


@each
def test_scores_have_mean_zero_and_the_gradient_matches_the_objective(problem):
    for x in range(problem.contexts):
        assert np.abs(problem.policy.probs[x] @ problem.policy.scores(x)).max() < 1e-14
    chosen = range(0, problem.d, max(1, problem.d // 20))
    numeric = [slope(problem, unit) for unit in np.eye(problem.d)[chosen]]
    assert np.allclose(problem.gradient()[chosen], numeric, rtol=1e-6, atol=1e-9)


def test_equal_rewards_of_an_arm_merge_and_impossible_ones_vanish():
    problem = SoftmaxBandit.tabular(
        [0.5, 0.5],
        np.zeros((2, 2)),
        [[[1.0, 1.0, 5.0], [0.0, -0.0, 1.0]], [[1.0, 2.0, 3.0], [9.0, 2.0, 2.0]]],
        [[[0.25, 0.75, 0.0], [0.5, 0.25, 0.25]], [[0.5, 0.25, 0.25], [0.0, 0.5, 0.5]]],
    )
    outcomes = problem.outcomes
    assert outcomes.counts.tolist() == [3, 4]
    assert outcomes.arms[0, :3].tolist() == [0, 1, 1]
    assert outcomes.rewards[0, :3].tolist() == [1.0, 0.0, 1.0]
    assert outcomes.probs.tolist() == [[0.5, 0.375, 0.125, 0.0], [0.25, 0.125, 0.125, 0.5]]
    assert problem.reward_range == (0.0, 3.0)
    # What cannot happen moves no outcome, and so no draw: the first that can stands for its equals.
    laws = [[2.0, 1.0], [0.25, 0.75]], [[1.0, 2.0, 1.0], [0.0, 0.25, 0.75]]
    short, padded = (SoftmaxBandit.tabular([1.0], [[0.0]], [[z]], [[p]]).outcomes for z, p in laws)
    assert padded.rewards.tolist() == short.rewards.tolist()
    assert padded.probs.tolist() == short.probs.tolist()


def test_prompts_are_equally_likely_or_not_by_more_than_rounding():
    for off, uniform in ((1e-15, True), (1e-7, False), (0.03, False)):
        chances = (1 + off * np.array([0.0, 1.0, -1.0])) / 3
        rewards = np.zeros((3, 2, 1))
        problem = SoftmaxBandit.tabular(chances, np.zeros((3, 2)), rewards, rewards + 1)
        assert problem.uniform == uniform


ONE = {"reward_values": [[[1.0], [0.0]]], "reward_probs": [[[1.0], [1.0]]], "context_probs": [1.0]}
GOOD = {
    SoftmaxBandit.tabular: {
        "context_probs": [0.5, 0.5],
        "logits": [[0.0, 0.0], [1.0, 0.0]],
        "reward_values": [[[1.0], [0.0]], [[1.0], [0.0]]],
        "reward_probs": [[[1.0], [1.0]], [[1.0], [1.0]]],
    },
    SoftmaxBandit.linear: ONE | {"features": [[[1.0], [0.0]]], "theta": [1.0]},
    SoftmaxBandit.shared_linear: ONE | {"context_features": [[1.0]], "weights": [[1.0], [0.0]]},
    SoftmaxBandit.bernoulli: {"probs": [[0.25, 0.75], [0.5, 0.5]], "success": [[1, 0], [0, 0.5]]},
    SoftmaxBandit.from_probs: {"probs": [0.25, 0.75], "rewards": [-2, 3]},
}
TABULAR, LINEAR, SHARED, BERNOULLI, SURE = GOOD


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (TABULAR, {"context_probs": [0.5, 0.4]}, "context_probs sums to 0.9"),
        (TABULAR, {"context_probs": [1.0]}, "has 1 entries: the policy has 2 contexts"),
        (
            TABULAR,
            {"reward_values": [[[1.0, 2.0], [0.0, 2.0]]] * 2},
            "reward_values has shape (2, 2, 2) and reward_probs (2, 2, 1)",
        ),
        (TABULAR, {"reward_values": [[[1e101], [0.0]]] * 2}, "reward_values exceed 1e+"),
        (TABULAR, {"reward_probs": [[[0.5], [1.0]]] * 2}, "reward_probs sums to 0.5 at [0, 0]"),
        (LINEAR, {"theta": [1.0, 2.0]}, "features have 1 entries per arm and theta 2"),
        (LINEAR, {"features": [[[1e200], [0.0]]], "theta": [1e200]}, "logits exceed 1e+"),
        (LINEAR, {"offset": [[0.0]]}, "offset has shape"),
        (SHARED, {"weights": [[1.0], [0.0], [0.0]]}, "two contexts and arms"),
        (BERNOULLI, {"success": [1, 0]}, "success has shape (2,) and probs (2, 2)"),
        (BERNOULLI, {"success": [[1, 0], [0, 1.5]]}, "success is 1.5: it must lie in [0, 1]"),
        (BERNOULLI, {"probs": [[1, 0], [0.5, 0.5]]}, "probs is 0 at [0, 1], which has no logit"),
        (BERNOULLI, {"probs": [[0.5, 0.6], [0.5, 0.5]]}, "probs sums to 1.1 at [0]"),
        (BERNOULLI, {"probs": [[0.5, 0.5], [1.5, -0.5]]}, "probs is -0.5 at [1, 1]"),
        (BERNOULLI, {"context_probs": [1.0]}, "has 1 entries: the policy has 2 contexts"),
        (
            SURE,
            {"probs": [[[0.5, 0.5]]]},
            "probs have shape (1, 1, 2): they must be (K,) or (X, K)",
        ),
        (SURE, {"probs": 1.0}, "probs have shape ()"),
        (SURE, {"rewards": [np.nan, 0]}, "rewards holds nan at [0]"),
        (SURE, {"rewards": [[-2, 3]]}, "rewards has shape (1, 2) and probs (2,)"),
    ],
)
def test_refused(make, changes, message):
    assert make(**GOOD[make]).contexts
    refuses(re.escape(message), make, **GOOD[make] | changes)


def test_bandits_from_probabilities_equal_tabular_ones_from_logarithms():
    probs, chance, equal = (
        np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]]),
        [[1, 0, 0.5]] * 2,
        [0.5, 0.5],
    )
    laws = [[[z, 1 - z] for z in row] for row in chance]
    values, ones = [[[1.0, 0.0]] * 3] * 2, np.ones((2, 3, 1))
    rewards = [[3, -1, 0.5], [0, 2, 2]]
    for made, known in (
        (BERNOULLI(probs, chance), TABULAR(equal, np.log(probs), values, laws)),
        (SURE(probs, rewards), TABULAR(equal, np.log(probs), np.array(rewards)[..., None], ones)),
        (BERNOULLI(probs[0], chance[0]), TABULAR([1], np.log(probs[:1]), values[:1], laws[:1])),
        (SURE(probs, rewards, [0.9, 0.1]).restrict([1]), SURE(probs[1], rewards[1])),
    ):
        assert made.digest == known.digest
        assert [array.tolist() for array in made.arrays().values()] == [
            array.tolist() for array in known.arrays().values()
        ]
    # Its draws are addressed by these digits.
    assert BERNOULLI([0.7, 0.2, 0.1], [1, 0, 0]).digest == "2ff6132d9145f35a"


def test_logits_too_far_apart_are_refused_before_they_overflow():
    rewards, law = [[[1.0], [0.0]]], [[[1.0], [1.0]]]
    with np.errstate(over="raise"):
        for logits in ([[1e308, -1e308]], [[0.0, -1e101]]):
            refuses(r"logits exceed 1e\+", SoftmaxBandit.tabular, [1.0], logits, rewards, law)
        problem = SoftmaxBandit.tabular([1.0], [[1e50, -1e50]], rewards, law)
        assert problem.policy.probs.tolist() == [[1.0, 0.0]]


test_restrictions_that_are_refused = refusals(
    ([], "at least one"),
    ([0, 0], "must be distinct"),
    ([3], "context 3 does not exist: contexts are 0 to 2"),
    ([0.5], "context is 0.5"),
    of=random_problem(0).restrict,
    literal=True,
)


def test_other_parameters():
    problem = random_problem(0, "shared-linear")
    theta = np.linspace(-1, 1, problem.d)
    other = problem.with_theta(theta)
    assert np.array_equal(other.policy.theta, theta)
    assert other.objective() == pytest.approx(problem.objective(theta), rel=1e-15)
    assert other.objective() != problem.objective()
    for bad in (theta[1:], np.append(theta, 0.0), [np.nan] * problem.d, theta[None]):
        refuses("theta", problem.with_theta, bad)


@every_kind
def test_the_hessian_is_the_difference_of_the_gradient(kind):
    bandit = random_problem(4, kind)
    theta, numeric = bandit.policy.theta, []
    for h in 1e-3 * np.eye(bandit.d):
        slopes = {n: bandit.with_theta(theta + n * h).gradient() for n in (-2, -1, 1, 2)}
        numeric.append((8 * (slopes[1] - slopes[-1]) - slopes[2] + slopes[-2]) / 12e-3)
    assert np.allclose(bandit.hessian(), numeric, rtol=0, atol=1e-9)


def test_the_digest_names_the_problem():
    problems = [random_problem(seed, kind) for kind in KINDS for seed in range(3)]
    assert len({p.digest for p in problems}) == len(problems)
    assert random_problem(0, "plain").digest == random_problem(0, "plain").digest
    changed = GOOD[TABULAR] | {"logits": [[0.0, 1e-16], [1.0, 0.0]]}
    assert SoftmaxBandit.tabular(**changed).digest != SoftmaxBandit.tabular(**GOOD[TABULAR]).digest


def test_the_digest_is_kept_by_the_same_parameters():
    """The digest is the address of draws: a copy of a problem must see the same draws."""
    for seed in range(30):
        problem = random_problem(seed)
        assert problem.with_theta(problem.policy.theta).digest == problem.digest
