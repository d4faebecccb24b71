"""Records of the baselines, held against the functions that they speak of."""

from __future__ import annotations

from inspect import Parameter, signature

import numpy as np
import pytest

from tests.support.refusals import refuses
from ustat_pg.baselines import ALIASES, BASELINES, baseline, require_group
from ustat_pg.engines import Distance, Estimator, GradientCell
from ustat_pg.engines.base import RUNNABLE
from ustat_pg.estimators import BASELINES as FUNCTIONS
from ustat_pg.predictions import gradient_mse
from ustat_pg.problems import random_problem

each = pytest.mark.parametrize("record", BASELINES.values(), ids=BASELINES)
REWARDS = np.random.default_rng(0).normal(size=(50, 4))
GIVEN = {
    "constant": 0.3,
    "value": np.linspace(-1, 1, 50),
    "optimal_baseline": np.linspace(-1, 1, 50),
    "predicted_value": np.linspace(-1, 1, 50),
    "squared_norms": np.random.default_rng(1).uniform(0, 2, size=(50, 4)),
}


def subtracted(record, rewards):
    """The baselines of outputs, (50, G)."""
    return rewards - FUNCTIONS[record.name](rewards, **{need: GIVEN[need] for need in record.needs})


def test_each_record_has_a_function_and_each_function_a_record():
    assert set(BASELINES) == set(FUNCTIONS)


@each
def test_what_is_needed_is_what_the_function_takes(record):
    parameters = signature(FUNCTIONS[record.name]).parameters.values()
    wanted = [each.name for each in parameters if each.kind == Parameter.KEYWORD_ONLY]
    assert list(record.needs) == wanted


@each
def test_the_least_group_is_the_least_that_the_function_takes(record):
    for size in (1, 2, 3):
        known = {
            need: value[:, :size] if need == "squared_norms" else value
            for need, value in GIVEN.items()
            if need in record.needs
        }
        if size >= record.least_group:
            require_group(record.name, size)
            assert FUNCTIONS[record.name](REWARDS[:, :size], **known).shape == (50, size)
            continue
        words = f"{record.name} needs a group of at least 2"
        refuses(words, require_group, record.name, size)
        said = rf"{words} .*\(50, {size}\), group size {size}"
        refuses(said, FUNCTIONS[record.name], REWARDS[:, :size], **known)


@each
def test_only_a_function_of_the_prompt_ignores_the_rewards(record):
    changed = np.allclose(subtracted(record, REWARDS), subtracted(record, REWARDS[::-1] ** 3))
    assert changed == record.of_prompt


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
    estimator = Estimator(record.name, 0.3 if "constant" in record.needs else None)
    factor = 1.0 if record.name == "group-mean" else 3 / 2
    centred = Estimator("centred", function=lambda z, _: factor * (z - z.mean(-1, keepdims=True)))
    cell = GradientCell(random_problem(0, contexts=2), 3)
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
    if record.closed_form:
        assert gradient_mse(moments, record.name, 3, **known).mse > 0
    else:
        refuses(f"{record.name} has no closed form", gradient_mse, moments, record.name, 3, **known)


def test_aliases_lead_to_their_records():
    assert ALIASES == {"rloo": "grpo", "reinforce": "vanilla"}
    for alias, name in ALIASES.items():
        assert baseline(alias) is baseline(name) is BASELINES[name]
    for unknown in ("RLOO", "", None, 3):
        refuses("is unknown: choose one of vanilla, grpo", baseline, unknown)
