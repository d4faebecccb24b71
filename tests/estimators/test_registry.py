"""Records of the estimators, held against the functions that they speak of."""

from inspect import Parameter, signature

import numpy as np
import pytest

from tests.support.estimators import spelled
from tests.support.refusals import refusals, refuses
from ustat_pg.engines import Distance, Estimator, GradientCell
from ustat_pg.engines.base import RUNNABLE
from ustat_pg.estimators import FUNCTIONS, advantages
from ustat_pg.predictions import gradient_mse
from ustat_pg.problems import SoftmaxBandit, random_problem
from ustat_pg.registry import ALIASES, ESTIMATORS, parse, record_of, require_group

BINARY = SoftmaxBandit.bernoulli([0.7, 0.2, 0.1], [1, 0, 0])

each = pytest.mark.parametrize("record", ESTIMATORS.values(), ids=ESTIMATORS)
REWARDS = np.random.default_rng(0).normal(size=(50, 4))
GIVEN = {
    "constant": 0.3,
    "value": np.linspace(-1, 1, 50),
    "optimal_baseline": np.linspace(-1, 1, 50),
    "predicted_value": np.linspace(-1, 1, 50),
    "squared_norms": np.random.default_rng(1).uniform(0, 2, size=(50, 4)),
    "best_table": np.linspace(0.2, 0.7, 4),
}
OF_OUTPUTS = ("squared_norms", "best_table")
"""What is given output by output."""
TABLES = ("best", "count-table", "loo-table")
"""Estimators that are made of a table, and take rewards 0 and 1 alone."""


def rewards_for(record):
    return (REWARDS > 0).astype(np.float64) if record.name in TABLES else REWARDS


def weighed(record, rewards):
    """Advantages of the outputs, (50, G)."""
    size = rewards.shape[-1]
    # Earlier rewards within the range of the group's.
    given = GIVEN | {"earlier": np.repeat(rewards[:, :1], 3, axis=-1)}
    known = {
        need: given[need][..., :size] if need in OF_OUTPUTS else given[need]
        for need in record.needs
    }
    return advantages(spelled(record.name, size), rewards, **known)


def subtracted(record, rewards):
    """The baselines of outputs, (50, G)."""
    return rewards - weighed(record, rewards)


def test_each_record_has_a_function_and_each_function_a_record():
    assert set(ESTIMATORS) == set(FUNCTIONS)


@each
def test_what_is_needed_is_what_the_function_takes(record):
    parameters = signature(FUNCTIONS[record.name]).parameters.values()
    wanted = [
        each.name
        for each in parameters
        if each.kind == Parameter.KEYWORD_ONLY and each.default is Parameter.empty
    ]
    assert [*record.needs, *(each for each in record.parameters if each != "...")] == wanted


@each
def test_the_least_group_is_the_least_that_the_function_takes(record):
    for size in (1, 2, 3):
        rewards = rewards_for(record)[:, :size]
        if size >= record.least_group:
            require_group(spelled(record.name, size), size)
            assert weighed(record, rewards).shape == (50, size)
            continue
        words = f"{record.name}.* needs a group of at least 2"
        refuses(words, require_group, spelled(record.name, size), size)
        refuses(words, weighed, record, rewards)


@each
def test_only_a_function_of_the_prompt_ignores_the_rewards(record):
    rewards = rewards_for(record)
    same = np.allclose(subtracted(record, rewards), subtracted(record, rewards[::-1] ** 3))
    assert same == record.of_prompt


@each
def test_a_baseline_within_the_rewards_is(record):
    if not record.within_rewards:
        return
    values = subtracted(record, REWARDS)
    low, high = REWARDS.min(axis=-1, keepdims=True), REWARDS.max(axis=-1, keepdims=True)
    assert ((low - 1e-12 <= values) & (values <= high + 1e-12)).all()
    # All other scores 0: the baseline may be 0 then, and nothing else outside.
    assert not subtracted(record, 0 * REWARDS).any()


@each
def test_an_estimate_of_pairs_centres_the_rewards_up_to_a_factor(record):
    if record.name not in RUNNABLE:
        return
    # Of 4 outputs: of three, the others' median is their mean.
    estimator = Estimator(spelled(record.name, 4), 0.3 if "constant" in record.needs else None)
    factor = 1.0 if record.whole_group else 4 / 3
    centred = Estimator("centred", function=lambda z, _: factor * (z - z.mean(-1, keepdims=True)))
    problem = BINARY if record.name in TABLES else random_problem(0, contexts=2)
    cell = GradientCell(problem, 4)
    distance = cell.measure("exact", [Distance(estimator, centred)]).mean[0]
    assert (distance < 1e-25) == record.of_pairs


@each
def test_a_closed_form_is_there_or_refused(record):
    moments = random_problem(0).moments()
    known = {}
    if "constant" in record.needs:
        known["constant"] = 0.3
    if "predicted_value" in record.needs:
        known["critic"] = np.zeros(len(moments))
    name = spelled(record.name, 3)
    if record.closed_form:
        assert gradient_mse(moments, name, 3, **known).mse > 0
        return
    message = f"{record.name} has no closed form"
    if record.by_count:
        assert gradient_mse(BINARY.moments(), name, 3).mse > 0
        message = f"{record.name} has a closed form for rewards that are 0 or 1"
    refuses(message, gradient_mse, moments, name, 3, **known)


def test_aliases_lead_to_their_records():
    assert ALIASES == {
        "rloo": "grpo",
        "reinforce": "vanilla",
        "dr-grpo": "group-mean",
        "nemo": "others-std",
        "max-at-k": "pass-at-k",
    }
    for alias, name in ALIASES.items():
        numbers = spelled(name).removeprefix(name)
        assert record_of(alias + numbers) is record_of(name + numbers) is ESTIMATORS[name]
    for unknown in ("RLOO", "", None, 3):
        refuses("is unknown.* choose one of vanilla, grpo", record_of, unknown)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("std", {}),
        ("bayes:1,.5", {"successes": 1, "failures": 0.5}),
        ("pass-at-k:2", {"k": 2}),
        ("loo-table:.2,.7", {"values": (0.2, 0.7)}),
        ("loo-table:1e-7,1e22", {"values": (1e-7, 1e22)}),
    ],
)
def test_a_name_carries_numbers(name, numbers):
    assert parse(name) == (ESTIMATORS[name.partition(":")[0]], numbers)
    assert record_of(name) is parse(name)[0]


test_numbers_that_are_refused = refusals(
    ("bayes", "it is written bayes:successes,failures"),
    ("bayes:1", "it is written bayes:successes,failures"),
    ("bayes:1,2,3", "it is written bayes:successes,failures"),
    ("bayes:1,x", "'x' is not a number"),
    ("loo-table", "it is written loo-table:values,..."),
    ("grpo:1", "it is written grpo$"),
    ("bayse:1,2", "unknown.* choose one of vanilla, grpo"),
    of=lambda name: parse(name),
)
