"""Token problems of the suite: what is drawn and improved, and that it is the same every time."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from itertools import islice

import numpy as np
import pytest

from simulations.problems import Suite, tokens
from simulations.problems.tokens import drawn, drawn_task, improved, initial, tasks, until
from tests.support.refusals import refuses
from ustat_pg.policies import PrefixSoftmax, TabulatedPolicy
from ustat_pg.problems import TokenBandit, modular_sum
from ustat_pg.validation import InputError

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch not installed")
ON = ["tokens", pytest.param("transformer", marks=needs_torch)]


def generator(seed=0):
    return np.random.default_rng(seed)


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


def test_drawn_tasks_are_of_every_kind_with_and_without_grading_and_end():
    seen = set()
    for seed in range(120):
        problem = drawn_task(generator(seed))
        graded = bool(np.setdiff1d(problem.rewards, [0.0, 1.0]).size)
        seen.add((problem.name, graded, problem.space.end))
        assert len(set(problem.prompts)) == len(problem.prompts) >= 2
        assert problem.space.count <= 10
    assert {name for name, _, _ in seen} == {
        "modular-sum", "sorting", "digit-addition", "brackets"
    }  # fmt: skip
    assert {graded for _, graded, _ in seen} == {True, False}
    assert {end for _, _, end in seen} == {True, False}


def test_a_drawn_problems_hardest_prompt_is_seldom_solved():
    for seed in range(12):
        problem, policy = drawn("tokens", generator(seed))
        bandit = problem.at(policy)
        values = [likely_reward(bandit, x) for x in range(problem.contexts)]
        assert 0.1 < min(values) < 0.35


# Policies.


@pytest.mark.parametrize("on", ON)
def test_initial_policies_follow_their_seed(on):
    problem = tasks()["sums"]
    one, again, other = (initial(on, problem, seed) for seed in (1, 1, 2))
    assert np.array_equal(one.theta, again.theta)
    assert not np.array_equal(one.theta, other.theta)
    if on == "transformer":
        assert 500 < one.d < 1500
    else:
        assert isinstance(one, PrefixSoftmax)
        flat = initial(on, problem, 1, scale=0.1)
        assert np.abs(flat.theta).max() == pytest.approx(0.1 * np.abs(one.theta).max())


def test_a_policy_that_is_not_to_be_had_is_refused(monkeypatch):
    problem = tasks()["sums"]
    refuses("'bandit' has no policy over tokens", initial, "bandit", problem, 0)
    monkeypatch.setattr(tokens, "IMPROVING_STEPS", 20)
    policy = initial("tokens", problem, 0)
    refuses("is not reached in 20 steps", improved, problem, policy, 1.0)
    monkeypatch.setattr(tokens, "find_spec", lambda name: None)
    said = r"transformers need torch: pip install 'ustat_pg\[torch\]'"
    refuses(said, initial, "transformer", problem, 0)
    assert initial("tokens", problem, 0).d > 0


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


def same(one, other):
    return (
        one.digest == other.digest
        and np.array_equal(one.policy.probs, other.policy.probs)
        and np.array_equal(one.mean_rewards, other.mean_rewards)
    )


def same_list(first, again):
    for (name, origin, bandit), (name2, origin2, bandit2) in zip(first, again, strict=True):
        assert (name, origin) == (name2, origin2)
        assert same(bandit, bandit2)


def digests(found, wanted):
    return {name: bandit.digest for name, origin, bandit in found if origin == wanted}


@pytest.mark.parametrize("seed", range(4))
def test_the_list_is_a_function_of_the_seed(seed):
    first, again, other = (list(bandits("tokens", 2, s)) for s in (seed, seed, seed + 1))
    same_list(first, again)
    assert len({name for name, _, _ in first}) == len(first)
    assert digests(first, "made-up") == digests(other, "made-up")
    generated = [set(digests(found, "generated").values()) for found in (first, other)]
    assert not generated[0] & generated[1]
    origins = [origin for _, origin, _ in first]
    assert origins == sorted(origins, key=["made-up", "generated"].index), "made-up ones come first"


@needs_torch
def test_the_list_of_transformers_too():
    first, again = (list(islice(bandits("transformer", 1, 0), 5)) for _ in range(2))
    assert first[-1][0] == "sums-trained"
    same_list(first, again)
    for _, _, bandit in first:
        assert bandit.d <= bandit.policy.probs.size


def test_more_problems_begin_with_the_same_ones():
    few, many = list(bandits("tokens", 1, 3)), list(bandits("tokens", 3, 3))
    assert [name for name, _, _ in many[: len(few)]] == [name for name, _, _ in few]
    assert len(many) > len(few) + 3


def test_passes_of_the_one_token_problem_are_off_a_half():
    found = [b for name, _, b in bandits("tokens", 2, 1) if name.startswith("one-token")]
    for bandit in found:
        assert bandit.policy.probs.shape[1] == 2
        for x in range(bandit.contexts):
            assert 0.1 < abs(likely_reward(bandit, x) - 0.5) < 0.25


def test_what_is_trained_is_trained():
    by = {name: bandit for name, _, bandit in bandits("tokens", 2, 0)}
    assert by["sums-trained"].objective() >= 0.8 > by["sums"].objective()
    assert by["addition-trained"].objective() >= 0.4


@pytest.mark.parametrize("seed", range(4))
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


def test_a_problem_that_is_not_learned_is_drawn_again(monkeypatch):
    own, refused = tokens.improved, []

    def improve(problem, policy, value, times=2):
        if len(refused) < times:
            refused.append(policy)
            raise InputError("not reached")
        return own(problem, policy, value)

    monkeypatch.setattr(tokens, "improved", improve)
    path = tokens._climbs("tokens", generator(1))
    assert len({policy.theta.tobytes() for policy in refused}) == len(refused) == 2
    assert all(policy is not start for start in refused for _, policy in path)
    monkeypatch.setattr(tokens, "DRAWS", 3)
    monkeypatch.setattr(tokens, "drawn", lambda on, rng: path[0])
    monkeypatch.setattr(tokens, "improved", partial(improve, times=np.inf))
    refused.clear()
    said = "no policy that learns among 3: take another seed"
    refuses(said, tokens._climbs, "tokens", generator(1))
    assert len(refused) == 3


def test_until_takes_the_first_of_which_the_property_holds(monkeypatch):
    problem, drawn = tasks()["sums"], []

    def draw():
        drawn.append(initial("tokens", problem, seed=len(drawn)))
        return problem, drawn[-1]

    # A property of the bandit that the policy makes of the problem.
    found, policy = until(draw, lambda bandit: bandit.objective() > 0.6)
    assert found is problem
    assert policy is drawn[-1]
    returns = [problem.bandit(own).objective() for own in drawn]
    assert len(returns) > 1
    assert max(returns[:-1]) <= 0.6 < returns[-1]
    monkeypatch.setattr(tokens, "DRAWS", 7)
    drawn.clear()
    said = "no problem of the kind wanted among 7: take another"
    refuses(said, until, draw, lambda bandit: False)
    assert len(drawn) == 7


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


@pytest.mark.parametrize(("size", "count"), [("smoke", 1), ("quick", 2)])
def test_suites_take_their_problems_from_here(size, count):
    own = Suite(size, 3, on="tokens").token_problems
    assert [entry.name for entry in own] == [name for name, _, _ in bandits("tokens", count, 3)]
    assert {entry.origin for entry in own} == {"made-up", "generated"}


def test_a_prompt_with_one_answer_is_seen_to_be_another_problem():
    # The guard of `same`: two problems that differ in a reward alone.
    one, other = modular_sum(2, 1, prompts=[(0,)]), modular_sum(2, 1, prompts=[(1,)])
    policy = PrefixSoftmax.zeros(one.space, 1)
    assert not same(one.bandit(policy), other.bandit(policy))
