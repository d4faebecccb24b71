"""The catalogue against what the frameworks' own functions answered, as recorded by `tests.conformance`."""

import json
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from tests.conformance.record import BATCHES, DATA, SEVERAL, WEIGHTS, lengths
from tests.support.answers import by_framework
from ustat_pg.catalogue import Meaning, Row, catalogue, resolve
from ustat_pg.estimators import advantages, standardised
from ustat_pg.explanations import explain

RECORDS = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(DATA.glob("*.json"))}
SINGLE = 1e-5
"""Relative accuracy of the recorded numbers, which are single precision."""


@dataclass
class Answer:
    """What a framework's function answered under one choice of options."""

    framework: str
    options: dict[str, str]
    tables: dict[str, list[list[float]]] | None
    batches: dict[str, Any]
    several: Any

    @property
    def written(self) -> str:
        """The options as a user types them."""
        return " ".join(
            [self.framework, *(f"{name}={value}" for name, value in self.options.items())]
        )

    @cached_property
    def row(self) -> Row:
        return self.meaning(4).row

    def meaning(self, size: int) -> Meaning:
        return resolve(self.written, group_size=size)

    def batch(self, label: str) -> Any:
        """Groups of rewards and the framework's advantages, one group where the row pools them; none where
        the framework refuses the batch.
        """
        theirs = self.batches[label]
        if isinstance(theirs, str):
            return ()
        parts = BATCHES[label], theirs
        if label == "unequal groups" and self.row.pooled:
            parts = tuple([[*chain(*groups)]] for groups in parts)
        return zip(*parts, strict=True)


ANSWERS = {
    name: [
        Answer(name, options, run.get("tables"), run["batches"], run.get("several"))
        for run in record["runs"]
        for options in run["options"]
    ]
    for name, record in RECORDS.items()
}
of_each = by_framework(ANSWERS)
with_tables = of_each(lambda answer: answer.tables)


def others_deviations(group):
    """The deviation of the other rewards of each; infinite where they are equal and nothing is divided."""
    others = [np.delete(group, i) for i in range(len(group))]
    return np.array([each.std(ddof=1) if len({*each}) > 1 else np.inf for each in others])


DIVISORS = {
    "maxrl": np.mean,
    "others-std": others_deviations,
    "pass-at-k": lambda group: group.std(ddof=1),
}
"""What an ε is added to, beside the deviation of a group."""


def own(meaning: Meaning, group: np.ndarray) -> np.ndarray:
    """The row's advantages, its ε in them."""
    row = meaning.row
    if row.estimator in ("std", "std-ddof1") and row.epsilon:
        return meaning.factor * standardised(group, ddof=row.ddof, epsilon=row.epsilon)
    result = meaning.factor * advantages(meaning.estimator, group)
    if row.epsilon:
        divisor = DIVISORS[row.estimator.partition(":")[0]](group)
        result = result / (1 + row.epsilon / np.where(divisor == 0, np.inf, divisor))
    return result


def close(ours, theirs):
    """Up to single precision."""
    largest = max(1.0, np.abs(ours).max())
    np.testing.assert_allclose(ours, theirs, rtol=SINGLE, atol=SINGLE * largest)


def test_every_framework_was_run_at_its_commit_or_says_that_it_was_read():
    for framework in catalogue().frameworks.values():
        name = framework.name
        record = RECORDS.get(name)
        if record is None:
            assert not framework.ran, f"{name}: no record of a run"
            assert all(row.read for row in framework.rows), f"{name}: say read = true"
            continue
        assert record["repository"] == framework.repository
        assert record["commit"].startswith(framework.commit), name
        assert record["ran"] == framework.ran, f"{name}: ran is that of the record"
        known = [dict(each) for run in record["runs"] for each in run["options"]]
        again = f"{name}: record again, python -m tests.conformance {name} CHECKOUT"
        assert sorted(map(str, known)) == sorted(map(str, framework.combinations())), again


@pytest.mark.parametrize("name", RECORDS)
def test_a_row_that_was_not_read_alone_was_run(name):
    ran = [
        each.row
        for each in ANSWERS[name]
        if each.tables or any(isinstance(v, list) for v in (each.several, *each.batches.values()))
    ]
    for row in catalogue().frameworks[name].rows:
        assert row.read != (row in ran), row.name


@with_tables
def test_a_row_is_the_frameworks_own_function_on_every_binary_group(answer):
    for size, (ones, zeros) in answer.tables.items():
        meaning = answer.meaning(int(size))
        for successes in range(meaning.group_size + 1):
            group = np.repeat([1.0, 0.0], [successes, meaning.group_size - successes])
            theirs = [ones[successes - 1] if reward else zeros[successes] for reward in group]
            close(own(meaning, group), theirs)


@with_tables
def test_a_row_climbs_what_is_said(answer):
    """E ĝ by the framework's own numbers."""
    rates, size = [0.1, 0.35, 0.8], 4
    result = explain(answer.written, group_size=size, pass_rates=rates)
    ones, zeros = (np.array(side) for side in answer.tables[str(size)])
    counts = np.arange(size + 1)
    for p, w in zip(rates, result.mean_factor, strict=True):
        # The score of p itself is (r - p)/(p (1-p)): its mean with the advantages is dV/dp w.
        pushes = counts * (1 - p) * np.append(0, ones) - (size - counts) * p * np.append(zeros, 0)
        climbed = binom.pmf(counts, size, p) @ pushes / size / (p * (1 - p))
        assert w == pytest.approx(climbed, rel=10 * SINGLE + 6 * answer.meaning(size).row.epsilon)


@with_tables
def test_a_row_is_the_frameworks_own_function_on_a_batch(answer):
    graded = () if answer.row.binary else ("graded", "negative")
    for label in ("mixed", "equal rewards", "unequal groups", *graded):
        for group, values in answer.batch(label):
            close(own(answer.meaning(len(group)), np.array(group, dtype=float)), values)


@with_tables
def test_groups_of_one_and_of_equal_rewards_are_as_the_row_says(answer):
    theirs = answer.batches["one output"]
    if isinstance(theirs, str):
        assert not answer.meaning(1).row.one_output.startswith(("0", "its reward")), theirs
    else:
        expected = {"0": [0.0, 0.0], "its reward": [1.0, 0.0], "NaN": [np.nan, np.nan]}
        text = answer.meaning(1).row.one_output.partition(":")[0]
        np.testing.assert_allclose([theirs[0][0], theirs[1][0]], expected[text], atol=1e-4)
    equal = answer.batches["equal rewards"]
    text = answer.meaning(4).row.equal_rewards.partition(";")[0]
    expected = {"0": [0.0] * 8, "the reward": [0.0] * 4 + [1.0] * 4}[text]
    np.testing.assert_allclose([*equal[0], *equal[1]], expected, atol=1e-4)


def of_several(each):
    """Whether a row says what becomes of several rewards, and its framework was asked for it."""
    row = each.row
    return isinstance(each.several, list) and (row.each or (row.estimator and not row.binary))


@of_each(of_several)
def test_several_rewards_are_summed_or_normalised_apart_as_the_row_says(answer):
    meaning = answer.meaning(4)
    groups, theirs = np.array(SEVERAL, dtype=float), np.array(answer.several)
    if meaning.row.each is None:
        for rewards, values in zip(groups @ WEIGHTS, theirs, strict=True):
            close(own(meaning, rewards), values)
        return
    summed = advantages(meaning.row.each, np.swapaxes(groups, 1, 2)).swapaxes(1, 2) @ WEIGHTS
    slope, height = np.polyfit(summed.ravel(), theirs.ravel(), 1)
    # Whitened over the outputs, or over their tokens.
    assert slope * summed.std() == pytest.approx(1, abs=0.1)
    np.testing.assert_allclose(slope * summed + height, theirs, atol=1e-4)


TERMS = {
    "batch": lambda r, m, w, z: [r, 1 + 0 * r],
    "batch-std": lambda r, m, w, z: [r - m],
    "group-then-batch": lambda r, m, w, z: [r - m, 1 + 0 * r],
    "per-reward": lambda r, m, w, z: [z, 1 + 0 * r],
    "std-then-batch": lambda r, m, w, z: [z, 1 + 0 * r],
    "batch-factor": lambda r, m, w, z: [r - m],
    "greedy": lambda r, m, w, z: [r, 1 + 0 * r],
    "running-mean": lambda r, m, w, z: [r, earlier(r)],
    "length-weighted": lambda r, m, w, z: [r - w],
    "token-weighted": lambda r, m, w, z: [r - m],
    "shifted": lambda r, m, w, z: [r - m, 1 + 0 * r],
}
"""What the advantages of a batch are a sum of, with factors that all its outputs share: of the rewards, the
mean of each output's group, that mean weighted by lengths, and the rewards standardised in their group."""


def left(row, group):
    """Which rollouts stay: all, or those whose others do not all have one reward."""
    others = [set(group[:i] + group[i + 1 :]) for i in range(len(group))]
    return np.array([not row.dropped or len(each) > 1 for each in others])


def earlier(rewards, decay=0.9):
    """The moving average before each reward, from 0 on."""
    averages = accumulate(
        rewards, lambda last, each: decay * last + (1 - decay) * each, initial=0.0
    )
    return np.array([*averages][:-1])


def by_group(function, *columns):
    """One number an output from each group's columns."""
    return np.concatenate(
        [function(*group) + 0 * group[0] for group in zip(*columns, strict=True) if len(group[0])]
    )


BY_GROUP = {
    "group-tokens": None,
    "group-scale": None,
    "log-mean-exp": lambda group: -np.log(np.exp(group).mean()),
}
"""What is a line of the rewards in each group, with a slope of the group's own, and its height if known."""


@of_each(lambda answer: not answer.tables)
def test_what_is_no_table_has_the_form_that_is_said(answer):
    for label in ("mixed", "graded", "unequal groups"):
        if parts := [*answer.batch(label)]:
            has_its_form(answer.row, *zip(*parts, strict=True))


def has_its_form(row, batch, theirs):
    """The advantages of a batch are a sum of the terms of the row."""
    kept = [left(row, group) for group in batch]
    groups = [np.array(group, dtype=float)[stays] for group, stays in zip(batch, kept, strict=True)]
    tokens = [np.array(many)[stays] for many, stays in zip(lengths(batch), kept, strict=True)]
    rewards = np.concatenate(groups)
    means = by_group(np.mean, groups)
    weighted = by_group(lambda group, many: np.average(group, weights=many), groups, tokens)
    scaled = by_group(lambda group: standardised(group, ddof=1), groups)
    if row.other in BY_GROUP:
        for group, values in zip(groups, theirs, strict=True):
            slope, height = np.polyfit(group, values, 1)
            assert slope > 0
            if BY_GROUP[row.other]:
                assert height == pytest.approx(BY_GROUP[row.other](group), abs=SINGLE)
            np.testing.assert_allclose(slope * group + height, values, atol=2 * SINGLE)
        return
    term = TERMS[row.other]
    terms = np.array(term(rewards, means, weighted, scaled)).T
    stays = np.concatenate(kept)
    values = np.concatenate([np.array(group, dtype=float) for group in theirs])
    assert not values[~stays].any()
    values = values[stays]
    factors, *_ = np.linalg.lstsq(terms, values, rcond=None)
    assert factors[0] > 0
    off = SINGLE * 2 + 6 * row.epsilon
    np.testing.assert_allclose(terms @ factors, values, atol=off)
