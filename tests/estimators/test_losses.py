"""The catalogue's fields on the loss against frameworks' own losses, as `tests.conformance` recorded them."""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytest

from tests.conformance.losses import (
    ADVANTAGES,
    GROUPS,
    LENGTHS,
    MASK,
    MICRO_BATCHES,
    TO_REFERENCE,
    asked,
    is_filter,
)
from tests.conformance.record import DATA
from tests.support.answers import by_framework
from tests.test_conformance import RECORDS as ADVANTAGE_RECORDS
from ustat_pg.catalogue import Meaning, catalogue, resolve, short_name
from ustat_pg.catalogue.losses import token_coefficients, token_rewards
from ustat_pg.catalogue.options import LOSS

FOLDER = DATA / "losses"
RECORDS = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))}
SINGLE = 2e-5
"""Accuracy of the recorded numbers, which are single precision."""

SILENT = [len({*group}) == 1 for group in GROUPS]


@dataclass
class Answer:
    """What a framework's loss did under one choice of options."""

    framework: str
    options: dict[str, str]
    answer: dict[str, Any]

    @cached_property
    def meaning(self) -> Meaning:
        """That of the catalogue, for a loss whose KL terms are off unless they are asked for."""
        framework = catalogue().frameworks[self.framework]
        words = [f"{name}={value}" for name, value in self.options.items()]
        sizes = [f"{each.name}=2" for each in framework.of_kind("group size")]
        return resolve(" ".join([framework.name, *sizes, *words]))

    def acts(self, *kinds: str) -> list[str]:
        """The options that were chosen, of these kinds, and are neither as by default nor off."""
        options = self.meaning.framework.options
        off = {word.partition("=")[0] for word in self.meaning.off}
        return [
            name
            for name, value in self.options.items()
            if options[name].kind in kinds
            and value != (options[name].default or "none")
            and short_name(name) not in off
        ]

    @property
    def adding(self) -> tuple[tuple[str, str], ...]:
        """The values of all options that say how tokens add up."""
        framework = self.meaning.framework
        options = [*framework.of_kind("aggregation"), *framework.of_kind("loss")]
        return tuple((each.name, self.meaning.values[each.name]) for each in options)

    @cached_property
    def is_plain(self) -> bool:
        """Whether nothing else was asked."""
        return not self.acts(*LOSS[3:])


def rows(values: Any) -> np.ndarray:
    """Recorded numbers of the tokens of every output, as the rollouts have them."""
    result = 0 * MASK
    for place, row in zip(np.ndindex(4, 2), values, strict=True):
        result[place][: LENGTHS[place[0]][place[1]]] = row
    return result


def close(ours, theirs):
    np.testing.assert_allclose(theirs, ours, rtol=SINGLE, atol=SINGLE * np.abs(ours).max())


ANSWERS = {
    name: [
        Answer(name, options, {key: run[key] for key in run if key != "options"})
        for run in record["runs"]
        for options in run["options"]
    ]
    for name, record in RECORDS.items()
}
of_each = by_framework(ANSWERS)


def plain(name):
    """What is compared with: a framework's losses with nothing aside, by how they add up."""
    return {each.adding: each for each in taken(name) if each.is_plain}


def taken(name):
    """The losses that a framework does not refuse."""
    return [each for each in ANSWERS[name] if "later" in each.answer]


def coefficients(meaning):
    return token_coefficients(
        meaning, np.array(ADVANTAGES), TO_REFERENCE, MASK, micro_batches=MICRO_BATCHES
    )


def test_every_loss_was_run_at_its_commit_or_says_that_it_was_read():
    for name, framework in catalogue().frameworks.items():
        record = RECORDS.get(name)
        if record is None:
            assert not framework.loss_ran, f"{name}: no record of a run"
            continue
        again = f"{name}: record again, python -m tests.conformance {name} CHECKOUT"
        assert record["repository"] == framework.repository
        assert record["commit"].startswith(framework.commit), again
        assert record["ran"] == framework.loss_ran, f"{name}: loss_ran is that of the record"
        numbers = record["tried"]
        known = [options for run in record["runs"] for options in run["options"]]
        assert sorted(map(str, known)) == sorted(map(str, asked(framework, numbers))), again
        assert record["commit"] == ADVANTAGE_RECORDS[name]["commit"]


@pytest.mark.parametrize("name", RECORDS)
def test_every_value_that_is_not_said_to_be_read_was_run(name):
    framework = catalogue().frameworks[name]
    runs = [each for each in ANSWERS[name] if "refused" not in each.answer]
    for option in filter(lambda each: each.of_loss, framework.options.values()):
        given = {each.options[option.name] for each in runs if option.name in each.options}
        given |= {option.default or "none"} if option.kind != "length" and option.values else set()
        for value in option.ran:
            assert given if value == "number" else value in given, f"{name}: {option.name}={value}"


CHOOSING = "survival", "entropy", "sampler"
"""Kinds that no formula here has: what is held is that they do what their kind says."""


@of_each(lambda each: "first" in each.answer and not each.acts(*CHOOSING))
def test_the_first_step_has_the_gradient_that_is_said(answer):
    close(coefficients(answer.meaning), rows(answer.answer["first"]))
    assert not answer.answer.get("entropies")


@of_each(lambda each: "rewards" in each.answer)
def test_a_kl_in_the_reward_is_the_one_that_is_said(answer):
    ours, theirs = token_rewards(answer.meaning, TO_REFERENCE), answer.answer["rewards"]
    if isinstance(theirs[0], list):
        close(ours, rows(theirs))
    else:
        close(ours.sum(-1).ravel(), theirs)


@of_each(lambda each: is_filter(each.meaning.framework, each.options))
def test_a_filter_drops_silent_groups_and_no_others(answer):
    on = any(value not in ("false", "none") for value in answer.options.values())
    assert answer.answer["kept"] == [not (on and silent) for silent in SILENT]


@pytest.mark.parametrize("name", RECORDS)
def test_what_acts_on_the_ratio_acts_in_later_steps(name):
    """An option of this kind that changed nothing there would be of another."""
    others, moved = plain(name), {}
    for each in taken(name):
        for option in each.acts("ratio"):
            changed = each.answer["later"] != others[each.adding].answer["later"]
            moved[option] = moved.get(option, False) or changed
    assert all(moved.values()), moved


@of_each(lambda each: each.acts("survival"))
def test_what_chooses_rollouts_leaves_the_others_as_they_are(answer):
    other, dropped = plain(answer.framework)[answer.adding], False
    for step in ("first", "later"):
        ours, theirs = rows(answer.answer[step]), rows(other.answer[step])
        gone = ~ours.any(-1) & theirs.any(-1)
        dropped = dropped or gone.any()
        assert not gone.all()
        stay = theirs * ~gone[..., None]
        # What divides may count those that stay alone.
        for part in np.split(np.arange(4), MICRO_BATCHES):
            factor = ours[part][stay[part] != 0] / stay[part][stay[part] != 0]
            np.testing.assert_allclose(factor, factor[:1] + 0 * factor, rtol=SINGLE * 10)
    assert dropped


@of_each(lambda each: each.acts("entropy"))
def test_an_entropy_term_stands_beside_the_advantage_or_chooses_tokens(answer):
    ours, theirs = rows(answer.answer["first"]), coefficients(answer.meaning)
    chosen = ours != 0
    close(theirs * chosen, ours)
    assert answer.answer.get("entropies") or 0 < chosen.sum() < (theirs != 0).sum()


@of_each(lambda each: each.acts("sampler"))
def test_what_corrects_for_the_sampler_acts_in_the_first_step_too(answer):
    ours, theirs = coefficients(answer.meaning), rows(answer.answer["first"])
    assert np.abs(ours - theirs).max() > 0.1 * np.abs(ours).max()
    assert not theirs[ours == 0].any()
