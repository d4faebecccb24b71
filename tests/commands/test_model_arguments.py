"""Which options a command takes of what it is asked of, and how their values are read."""

from __future__ import annotations

import argparse
from argparse import ArgumentTypeError

import pytest

from tests.support.refusals import refuses
from ustat_pg.commands import model_arguments
from ustat_pg.commands.model_arguments import (
    advise_arguments,
    mse_arguments,
    quantity,
    refuse_unknown,
    sizes,
    source,
)

MODEL = {"model", "prompts", "shots", "verifier", "limit", "seed", "off-policy"} | {
    *("device", "dtype", "lora", "pad-token", "parameters", "method", "autocast", "memory"),
}
DRAWN = {"samples", "max-new-tokens", "batch"}
LOG = {"rollouts", "group-by", "reward"}
ADVICE = {
    "budget",
    "prompt-cost",
    "output-cost",
    "population",
    "estimator",
    "json",
    "csv",
    "plot",
} | {
    *("adaptive", "stage-cost"),
}
TAKEN = {
    (advise_arguments, "problem"): ADVICE,
    (advise_arguments, "model"): ADVICE | MODEL | DRAWN | {"out", "until"},
    (advise_arguments, "rollouts"): ADVICE | MODEL | LOG | {"out", "until"},
    (advise_arguments, "scored"): ADVICE | {"scored", "off-policy"},
    (mse_arguments, "problem"): MODEL | DRAWN | {"group-sizes", "out", "json"},
    (mse_arguments, "model"): MODEL | DRAWN | {"group-sizes", "out", "json"},
    (mse_arguments, "rollouts"): MODEL
    | LOG
    | {"group-sizes", "out", "json", "ratio", "clip", "truncate"},
    (mse_arguments, "scored"): {"scored", "off-policy", "group-sizes", "out", "json"},
}
"""The options of each command by subject."""


@pytest.mark.parametrize(
    ("add", "subject"), TAKEN, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_command_takes_these_options_of_its_subject(add, subject):
    command = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    add(command, subject)
    found = {flag for action in command._actions for flag in action.option_strings}
    assert found == {"-h", "--help"} | {f"--{name}" for name in TAKEN[add, subject]}
    takes_file = any(action.dest == "problem" for action in command._actions)
    assert takes_file == (add is advise_arguments and subject == "problem")
    needed = {action.dest for action in command._actions if action.required}
    own = {"scored": {"scored"}, "problem": {"problem"}}.get(subject, {"model"})
    if add is advise_arguments:
        assert needed == own | {"budget"}
    else:
        assert needed == ({"scored"} if subject == "scored" else {"model"})


@pytest.mark.parametrize(
    ("words", "subject"),
    [
        ("mine.json", "problem"),
        ("--model m", "model"),
        ("--prompts=p", "model"),
        ("--model m --rollouts r", "rollouts"),
        ("--rollouts=r", "rollouts"),
        ("--scored=s --model m --rollouts r", "scored"),
        ("--budget 3 model", "problem"),
    ],
)
def test_the_subject_is_read_from_the_flags(words, subject):
    assert source(words.split()) == subject


def test_words_that_are_unknown_are_named_by_what_they_are():
    refuses("--scored takes no model: leave out --lora, --seed", refuse_unknown,
            ["--scored", "s"], ["--lora", "x", "--seed"])  # fmt: skip
    refuses("^mine.json: a problem file", refuse_unknown, ["--model", "m"], ["mine.json"])
    assert refuse_unknown(["--model", "m"], []) is None


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (quantity, "1e3", 1000),
        (quantity, "0.5", 0.5),
        (sizes, "2,16", [2, 16]),
        (model_arguments._until, "all", "all"),
        (model_arguments._until, "5%", 0.05),
        (model_arguments._until, "0.05", 0.05),
        (model_arguments._clip, "0.2", (0.2, None)),
        (model_arguments._clip, "0.2,0.28", (0.2, 0.28)),
        (model_arguments._bytes, "12", 12),
        (model_arguments._bytes, "1.5KB", 1500),
        (model_arguments._bytes, "800M", 800 * 10**6),
        (model_arguments._bytes, "3gb", 3 * 10**9),
        (model_arguments._bytes, "2KiB", 2048),
        (model_arguments._bytes, "2MiB", 2 * 2**20),
        (model_arguments._bytes, "2GiB", 2 * 2**30),
    ],
)
def test_values_are_read(read, text, value):
    assert read(text) == value
    assert type(read(text)) is type(value)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *((quantity, "x"), (sizes, "2,,3"), (sizes, "2.5")),
        *((model_arguments._until, text) for text in ("0", "-1%", "nan", "inf", "some")),
        *((model_arguments._clip, text) for text in ("", "0.2,", "a,b")),
        *((model_arguments._bytes, text) for text in ("", "1TB", "x", "1.5.2GB")),
    ],
)
def test_values_that_are_refused(read, text):
    with pytest.raises(ArgumentTypeError):
        read(text)
