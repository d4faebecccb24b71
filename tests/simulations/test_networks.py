"""Token problems of the suite: what is drawn and improved, and that it is the same every time."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import islice

import numpy as np
import pytest

from simulations.problems import tokens
from simulations.problems.tokens import improved, initial, tasks
from ustat_pg.policies import TabulatedPolicy
from ustat_pg.problems import TokenBandit

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch not installed")
ON = ["tokens", pytest.param("transformer", marks=needs_torch)]


def likely_reward(bandit, x):
    """The mean reward of a prompt, output by output."""
    return float(bandit.policy.probs[x] @ bandit.mean_rewards[x])


# Problems.


def test_tasks_reward_what_their_names_say():
    found = tasks()
    rewards = {
        name: {
            (prompt, output): problem.rewards[x, k]
            for x, prompt in enumerate(problem.prompts)
            for k, output in enumerate(map(tuple, problem.outputs))
        }
        for name, problem in found.items()
    }
    # Token 2 ends an output, and places after it hold -1.
    for (prompt, output), value in rewards["sums"].items():
        total = sum(token for token in output if token in (0, 1))
        assert value == float((total - sum(prompt)) % 2 == 0)
    for (prompt, output), value in rewards["addition"].items():
        digits = "".join(str(token) for token in output if token in (0, 1))
        assert value == float(digits != "" and int(digits or "0", 2) == sum(prompt))
    assert rewards["sorting"][(1, 0), (0, 1)] == 1.0
    assert rewards["sorting"][(1, 0), (1, 0)] < 1.0
    assert rewards["sorting"][(1, 1), (1, 1)] == 1.0
    assert {problem.space.end for problem in found.values()} == {True, False}
    for problem in found.values():
        assert problem.rewards.min() == 0.0
        assert (problem.rewards.max(axis=1) == 1.0).all()


# Policies.


@pytest.mark.parametrize("on", ON)
def test_a_policy_is_improved_up_to_a_return_and_not_far_beyond(on):
    problem = tasks()["sums"]
    policy = initial(on, problem, 20260311)
    assert improved(problem, policy, 0.0) is policy, "good enough is left as it is"
    start = problem.bandit(policy).objective()
    better = improved(problem, policy, 0.7)
    reached = problem.bandit(better).objective()
    assert start < 0.6 < 0.7 <= reached < 0.9
    assert np.array_equal(better.theta, better.theta.round(6))
    # Along the gradient: the first step is 0.3 long.
    first = improved(problem, policy, np.nextafter(start, 1))
    gradient = problem.bandit(policy).gradient()
    step = first.theta - policy.theta
    assert np.linalg.norm(step) == pytest.approx(0.3, abs=1e-4)
    assert step @ gradient == pytest.approx(0.3 * np.linalg.norm(gradient), rel=1e-4)


# The problems that claims run on.


def bandits(*arguments, **words):
    """Name, origin and problem of each."""
    return ((e.name, e.origin, e.problem) for e in tokens.bandits(*arguments, **words))


@pytest.mark.parametrize("seed", range(2))
def test_a_drawn_problem_is_followed_by_what_its_policy_is_improved_to(seed):
    climbs = {}
    for name, _, bandit in bandits("tokens", 2, seed):
        start, _, value = name.partition(" at ")
        if value:
            # The name says the return itself.
            assert bandit.objective() == pytest.approx(float(value), abs=5.001e-4)
            climbs.setdefault(start, []).append(bandit)
    assert len(climbs) == 2
    for path in climbs.values():
        assert 2 <= len(path) <= 3
        first, last = path[0], path[-1]
        # The first is as it was drawn; in the end no prompt's reward is rare any more.
        assert 0.1 < min(likely_reward(first, x) for x in range(first.contexts)) < 0.35
        best = float(last.context_probs @ last.mean_rewards.max(axis=1))
        returns = [bandit.objective() for bandit in path]
        assert returns == sorted(set(returns))
        assert returns[-1] >= 0.6 * best
        for bandit in path:
            assert np.array_equal(bandit.mean_rewards, first.mean_rewards)
            assert np.array_equal(bandit.context_probs, first.context_probs)


@needs_torch
def test_dense_bandits_keep_their_parameters_and_the_same_moments():
    found = [list(islice(bandits("transformer", 0, dense=dense), 4)) for dense in (False, True)]
    for (name, _, short), (name2, _, dense) in zip(*found, strict=True):
        assert name == name2
        assert isinstance(short, TokenBandit)
        assert isinstance(dense, TokenBandit)
        assert isinstance(short.policy, TabulatedPolicy)
        assert dense.d > 500 > 30 > short.d
        one, other = short.moments(), dense.moments()
        for what in ("value", "fisher_trace", "gradient_sq", "norm_advantage"):
            assert getattr(one, what) == pytest.approx(getattr(other, what), rel=1e-8, abs=1e-12)
        # Draws of the one are draws of the other; names say which is which.
        assert np.array_equal(short.policy.probs, dense.policy.probs)
        assert short.digest != dense.digest
