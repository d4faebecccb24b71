"""The memory of each prompt: by hand, unbiased by enumeration, resumed, and what it refuses."""

import json
from copy import deepcopy

import numpy as np
import pytest

from tests.support.arrays import ROUNDING, WAYS, host, maker
from tests.support.refusals import refuses
from ustat_pg.engines import Estimator, enumerate_mean
from ustat_pg.estimators import PromptMemory, grpo, memory
from ustat_pg.problems import random_problem


@pytest.mark.parametrize(("library", "dtype", "device"), WAYS)
def test_three_steps_by_hand(library, dtype, device):
    make = maker(library, dtype, device)
    kept = PromptMemory(3, keep=0.5)
    first = make([[1.0, 0.0], [0.0, 0.0]])
    result = kept.advantages(["a", "b"], first)
    assert type(result) is type(first)
    assert (result.dtype, result.device) == (first.dtype, first.device)
    np.testing.assert_allclose(host(result), [[1, -1], [0, 0]], atol=ROUNDING[dtype])
    # a: weights 1, 1 for 1, 0. The others bring 1 and 1.
    result = kept.advantages(["a"], make([[1.0, 1.0]]))
    np.testing.assert_allclose(host(result), [[1 / 3, 1 / 3]], atol=ROUNDING[dtype])
    # a: 0, 1, 1 with weights 1/2, 1, 1; the oldest is forgotten.
    result = kept.advantages(["a"], make([[0.0, 1.0]]))
    np.testing.assert_allclose(host(result), [[-3 / 3.5, 1 - 2 / 3.5]], atol=ROUNDING[dtype])
    assert len(kept) == 2


def test_it_is_the_memory_estimator_if_nothing_is_forgotten():
    rng = np.random.default_rng(0)
    earlier, rewards = rng.random((2, 5)), rng.random((2, 3))
    kept = PromptMemory(5)
    kept.update([0, 1], earlier)
    found = kept.advantages([0, 1], rewards)
    np.testing.assert_allclose(found, memory(rewards, earlier=earlier, memory=5), atol=1e-15)
    np.testing.assert_allclose(PromptMemory(5).advantages([0, 1], rewards), grpo(rewards))


def test_new_prompts_in_groups_of_one_get_the_mean_of_others():
    kept = PromptMemory(2)
    assert kept.advantages(["a"], [[1.0]]).tolist() == [[1.0]]
    kept.update(["a"], [[0.0]])
    assert kept.advantages(["b"], [[1.0]]).tolist() == [[0.5]]


def test_a_prompt_twice_in_a_batch_does_not_see_itself():
    kept = PromptMemory(8)
    kept.update(["a"], [[1.0]])
    assert kept.advantages(["a", "a"], [[0.0], [1.0]]).tolist() == [[-1.0], [0.0]]
    assert kept.advantages(["a"], [[1.0]]).tolist() == [[1 - 2 / 3]]


@pytest.mark.parametrize("group_size", [1, 2])
def test_it_is_unbiased_on_groups_that_it_has_not_seen(group_size):
    problem = random_problem(2, contexts=2)
    kept = PromptMemory(4, keep=0.7)
    rng = np.random.default_rng(1)
    kept.update([0, 1], rng.random((2, 3)))
    kept.update([1, 0], rng.random((2, 3)))

    def used(rewards, draws):
        flat = rewards.reshape(-1, group_size)
        # Each outcome is used on the same memory.
        return deepcopy(kept).advantages(draws.contexts.ravel(), flat).reshape(rewards.shape)

    found = enumerate_mean(problem, Estimator("mine", function=used), group_size)
    np.testing.assert_allclose(found, problem.gradient(), atol=1e-13)


def test_a_resumed_run_equals_an_uninterrupted_one():
    rng = np.random.default_rng(3)
    steps = [(rng.choice(6, 4).tolist(), rng.random((4, 2))) for _ in range(12)]
    whole = PromptMemory(5, keep=0.9)
    expected = [whole.advantages(*step) for step in steps]
    begun = PromptMemory(5, keep=0.9)
    found = [begun.advantages(*step) for step in steps[:5]]
    resumed = PromptMemory(5, keep=0.9)
    resumed.load_state_dict(json.loads(json.dumps(begun.state_dict())))
    found += [resumed.advantages(*step) for step in steps[5:]]
    assert all((a == b).all() for a, b in zip(found, expected, strict=True))
    assert resumed.state_dict() == whole.state_dict()


@pytest.mark.parametrize("prompts", [np.array([1, 2]), [np.int64(1), np.int64(2)], [1, 2]])
def test_numbers_of_an_array_are_the_same_prompts(prompts):
    kept = PromptMemory(2)
    kept.advantages(prompts, [[1.0], [0.0]])
    resumed = PromptMemory(2)
    resumed.load_state_dict(json.loads(json.dumps(kept.state_dict())))
    assert resumed.advantages([2, 1], [[1.0], [1.0]]).tolist() == [[1.0], [0.0]]


def test_pairs_are_prompts():
    kept = PromptMemory(2)
    kept.update([("a", 1), ("b", 2)], [[1.0], [0.0]])
    assert kept.advantages([("b", 2)], [[1.0]]).tolist() == [[1.0]]


@pytest.mark.parametrize(
    "broken",
    [
        {"prompts": None},
        {"prompts": [["a", [1.0]]]},
        {"prompts": [["a", [1.0], [1.0, 1.0]]]},
        {"prompts": [["a", [float("nan")], [1.0]]]},
        {"prompts": [[["a"], [1.0], [1.0]]]},
        {"all": [1.0]},
    ],
)
def test_a_broken_state_is_refused_and_changes_nothing(broken):
    kept = PromptMemory(2)
    kept.update(["a"], [[1.0]])
    before = kept.state_dict()
    refuses("not one of a memory", kept.load_state_dict, before | broken)
    assert kept.state_dict() == before


def test_what_it_refuses():
    kept = PromptMemory(2)
    refuses("memory is 0", PromptMemory, 0)
    refuses("keep is 0", PromptMemory, 2, keep=0.0)
    refuses(r"they must be \(B, G\)", kept.advantages, ["a"], [1.0, 0.0])
    refuses(r"they must be \(B, G\)", kept.advantages, ["a", "b"], [[1.0]])
    refuses(r"they must be \(B, G\)", kept.advantages, "ab", [[1.0], [0.0]])
    refuses("rewards contain NaN", kept.update, ["a"], [[float("nan")]])
    refuses("the state has memory = 3", kept.load_state_dict, PromptMemory(3).state_dict())
    refuses("a memory's has", kept.load_state_dict, {})
    refuses("the state has NoneType", kept.load_state_dict, None)
    refuses(r"they must be \(B, G\)", kept.advantages, [], np.zeros((0, 2)))
    refuses("write messages as text", kept.advantages, [[{"role": "user"}]], [[1.0]])
