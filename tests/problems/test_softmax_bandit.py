"""The bandit's moments against sums, its scores and gradient against finite differences."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from ustat_pg.policies import PrefixSoftmax
from ustat_pg.problems import (
    KINDS,
    SoftmaxBandit,
    bracket_matching,
    digits_problem,
    modular_sum,
    random_problem,
)
from ustat_pg.validation import InputError

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


def summed(problem):
    """Every moment as a sum over contexts, arms and rewards, from dense scores."""
    names = ("value", "square", "fisher_trace", "norm_reward", "norm_squared_reward", "gradient_sq")
    rows, matrices = [], []
    for x, probs in enumerate(problem.policy.probs):
        scores, z = problem.policy.scores(x), problem.reward_values[x]
        # E z^n of each arm, times its probability.
        powers = [probs * (problem.reward_probs[x] * z**n).sum(axis=1) for n in range(3)]
        norms, gradient = (scores**2).sum(axis=1), powers[1] @ scores
        means = (powers[1].sum(), powers[2].sum(), *(power @ norms for power in powers))
        rows.append((*means, gradient @ gradient))
        matrices.append((*((scores.T * power) @ scores for power in powers), gradient))
    out = dict(zip(names, np.transpose(rows), strict=True))
    out["reward_variance"] = out.pop("square") - out["value"] ** 2
    return out, problem.context_probs @ [own for *_, own in matrices], matrices


def slope(problem, unit):
    """The return's derivative along a direction, by differences."""
    theta, step = problem.policy.theta, 1e-5
    up, down = problem.objective(theta + step * unit), problem.objective(theta - step * unit)
    return (up - down) / (2 * step)


@each
def test_scores_have_mean_zero_and_the_gradient_is_that_of_the_objective(problem):
    for x in range(problem.contexts):
        assert np.abs(problem.policy.probs[x] @ problem.policy.scores(x)).max() < 1e-14
    chosen = range(0, problem.d, max(1, problem.d // 20))
    numeric = [slope(problem, unit) for unit in np.eye(problem.d)[chosen]]
    assert np.allclose(problem.gradient()[chosen], numeric, rtol=1e-6, atol=1e-9)


@each
def test_moments_against_sums(problem):
    found = problem.moments()
    expected, gradient, matrices = summed(problem)
    for name, value in expected.items():
        assert np.allclose(getattr(found, name), value, rtol=1e-11, atol=1e-14), name
    assert np.allclose(problem.gradient(), gradient, rtol=1e-12, atol=1e-15)
    assert problem.objective() == pytest.approx(
        problem.context_probs @ expected["value"], rel=1e-13
    )
    centred = expected["norm_reward"] / expected["fisher_trace"]
    assert np.allclose(found.optimal_baseline, centred, rtol=1e-10, atol=1e-13)
    assert found.mean_gradient_sq == pytest.approx(gradient @ gradient, rel=1e-9, abs=1e-28)
    records = zip(found.matrices(), matrices, strict=True)
    for x, (record, (fisher, first, second, own)) in enumerate(records):
        assert np.allclose(record.fisher, fisher, rtol=0, atol=1e-14)
        v = found.value[x]
        assert np.allclose(record.advantage, first - v * fisher, rtol=0, atol=1e-14)
        expected = second - 2 * v * first + v * v * fisher
        assert np.allclose(record.squared_advantage, expected, rtol=0, atol=1e-13)
        assert np.allclose(record.gradient, own, rtol=0, atol=1e-14)


@every_kind
def test_outcomes_are_the_law_of_arm_and_reward(kind):
    problem = random_problem(2, kind)
    outcomes = problem.outcomes
    assert np.allclose(outcomes.probs.sum(axis=1), 1.0, rtol=0, atol=1e-14)
    for x in range(problem.contexts):
        law = {}
        for k, r in itertools.product(range(problem.arms), range(problem.reward_values.shape[2])):
            pair = (k, float(problem.reward_values[x, k, r]))
            chance = problem.policy.probs[x, k] * problem.reward_probs[x, k, r]
            law[pair] = law.get(pair, 0.0) + chance
        count = outcomes.counts[x]
        pairs = list(
            zip(
                outcomes.arms[x, :count].tolist(), outcomes.rewards[x, :count].tolist(), strict=True
            )
        )
        assert len(set(pairs)) == count
        assert set(pairs) == {pair for pair, chance in law.items() if chance > 0}
        for pair, chance in zip(pairs, outcomes.probs[x], strict=False):
            assert chance == pytest.approx(law[pair], rel=1e-12)
        assert not outcomes.probs[x, count:].any()
    low, high = problem.reward_range
    assert (low, high) == (
        outcomes.rewards[outcomes.probs > 0].min(),
        outcomes.rewards[outcomes.probs > 0].max(),
    )


@every_kind
def test_the_share_of_groups_without_a_signal(kind):
    """Every group of outcomes, one by one."""
    problem = random_problem(2, kind)
    outcomes = problem.outcomes
    for size in (1, 2, 3):
        expected = np.zeros(problem.contexts)
        for x in range(problem.contexts):
            kinds = range(outcomes.counts[x])
            for group in itertools.product(kinds, repeat=size):
                if len({float(outcomes.rewards[x, i]) for i in group}) == 1:
                    expected[x] += np.prod([outcomes.probs[x, i] for i in group])
        found = problem.zero_signal_share(size)
        assert found.shape == (problem.contexts,)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)
        assert (found <= 1).all()


def test_equal_rewards_of_one_arm_are_one_outcome_and_impossible_ones_none():
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
}
TABULAR, LINEAR, SHARED = GOOD


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
    ],
)
def test_refused(make, changes, message):
    assert make(**GOOD[make]).contexts
    with pytest.raises(InputError, match=re.escape(message)):
        make(**(GOOD[make] | changes))


def test_logits_too_far_apart_are_refused_before_they_overflow():
    rewards, law = [[[1.0], [0.0]]], [[[1.0], [1.0]]]
    with np.errstate(over="raise"):
        for logits in ([[1e308, -1e308]], [[0.0, -1e101]]):
            with pytest.raises(InputError, match=r"logits exceed 1e\+"):
                SoftmaxBandit.tabular([1.0], logits, rewards, law)
        problem = SoftmaxBandit.tabular([1.0], [[1e50, -1e50]], rewards, law)
        assert problem.policy.probs.tolist() == [[1.0, 0.0]]


def test_restriction():
    problem = random_problem(1, "linear", contexts=4)
    part = problem.restrict([3, 1])
    chosen = [3, 1]
    assert part.contexts == 2
    assert part.d == problem.d
    weights = problem.context_probs[chosen]
    assert np.allclose(part.context_probs, weights / weights.sum(), rtol=1e-15)
    assert np.array_equal(part.reward_values, problem.reward_values[chosen])
    assert np.allclose(part.moments().value, problem.moments().value[chosen], rtol=1e-14)
    assert problem.restrict([3, 1], uniform=True).context_probs.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("contexts", "message"),
    [
        ([], "at least one"),
        ([0, 0], "must be distinct"),
        ([3], "context 3 is not there: contexts are 0 to 2"),
        ([0.5], "context is 0.5"),
    ],
)
def test_restrictions_that_are_refused(contexts, message):
    with pytest.raises(InputError, match=re.escape(message)):
        random_problem(0).restrict(contexts)


def test_other_parameters():
    problem = random_problem(0, "shared-linear")
    theta = np.linspace(-1, 1, problem.d)
    other = problem.with_theta(theta)
    assert np.array_equal(other.policy.theta, theta)
    assert other.objective() == pytest.approx(problem.objective(theta), rel=1e-15)
    assert other.objective() != problem.objective()
    for bad in (theta[1:], np.append(theta, 0.0), [np.nan] * problem.d, theta[None]):
        with pytest.raises(InputError, match="theta"):
            problem.with_theta(bad)


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
