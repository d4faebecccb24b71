"""Which options a command takes of what it is asked of, and how their values are read."""

import re
from argparse import ArgumentTypeError

import pytest

from tests.support.refusals import refuses
from ustat_pg.commands import model_arguments
from ustat_pg.commands.model_arguments import (
    ADVISE,
    MSE,
    advise_arguments,
    mse_arguments,
    quantity,
    sizes,
)
from ustat_pg.commands.parser import Parser

MODEL = {"model", "prompts", "shots", "verifier", "limit", "seed", "off-policy"} | {
    *("device", "dtype", "lora", "pad-token", "parameters", "method", "autocast", "memory"),
    *("metric", "optimizer"),
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
    *("adaptive", "stage-cost", "draw", "law", "remember"),
}
TAKEN = {
    ("advise", "problem"): ADVICE,
    ("advise", "model"): ADVICE | MODEL | DRAWN | {"out", "until"},
    ("advise", "rollouts"): ADVICE | MODEL | LOG | {"out", "until"},
    ("advise", "scored"): ADVICE | {"scored", "off-policy", "metric"},
    ("mse", "model"): MODEL | DRAWN | {"group-sizes", "out", "json"},
    ("mse", "rollouts"): MODEL | LOG | {"group-sizes", "out", "json", "ratio", "clip", "truncate"},
    ("mse", "scored"): {"scored", "off-policy", "metric", "group-sizes", "out", "json"},
}
"""The options of each command by subject."""
GIVEN = {
    "problem": "mine.json",
    "model": "--model m",
    "rollouts": "--model m --rollouts r",
    "scored": "--scored s",
}
"""The words that say what a command is asked of."""
FLAG = re.compile(r"^ +(?:-h, )?--([a-z-]+)", re.M)


def parser_of(command: str) -> Parser:
    subjects, add = {"advise": (ADVISE, advise_arguments), "mse": (MSE, mse_arguments)}[command]
    parser = Parser(prog=command, subjects=subjects)
    add(parser)
    return parser


@pytest.mark.parametrize(("command", "subject"), TAKEN)
def test_a_command_takes_these_options_of_its_subject(command, subject, capsys):
    parser, taken = parser_of(command), TAKEN[command, subject]
    assert {*parser.flags(subject)} == {"-h", "--help"} | {f"--{name}" for name in taken}
    for words in (f"{GIVEN[subject]} --help", f"--help {GIVEN[subject]}"):
        with pytest.raises(SystemExit) as stop:
            parser_of(command).parse_args(words.split())
        assert stop.value.code == 0
        text = capsys.readouterr().out
        assert {*FLAG.findall(text)} == {"help"} | taken
        needed = " --budget K" * (command == "advise")
        written = parser.subjects[subject].written
        assert text.startswith(f"usage: {command} {written}{needed} [options]\n")
        assert ("  PROBLEM " in text) == (subject == "problem")


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        ("advise", "mine.json", "required: --budget; see advise --help"),
        ("advise", "--scored s", "required: --budget; see"),
        ("advise", "--rollouts r", "required: --budget, --model; see"),
        ("advise", "--budget 8 --prompts p", "one of these is required: PROBLEM, --model M, --model M"),
        ("mse", "--group-sizes 2", "one of these is required: --model M, --model M --rollouts"),
        ("mse", "--rollouts r", "required: --model; see mse --help"),
        ("advise", "mine.json --budgte 8", r"--budgte 8 \(did you mean --budget\?\); see"),
        ("advise", "mine.json a.json --budget 8", "unrecognized arguments: a.json; see"),
        ("mse", "--model m --until 5%", "unrecognized arguments: --until 5%; see"),
        ("mse", "mine.json", "unrecognized arguments: mine.json; see"),
        ("mse", "--model m --rollouts r --ratio sequnce",
         "--ratio 'sequnce' is unknown, did you mean sequence"),
        ("advise", "--scored s --model m --rollouts r --budget 8",
         "--scored does not need a model: leave out --model, --rollouts, which"),
        ("advise", "--model m mine.json --budget 8", "a PROBLEM, .*: leave out mine.json, which"),
        ("advise", "--rollouts r mine.json --budget 8", "again: leave out mine.json, which"),
    ],
)  # fmt: skip
def test_what_is_missing_unknown_or_of_another_subject_is_named(command, words, message):
    refuses(message, parser_of(command).parse_args, words.split())


def test_options_that_are_not_given_are_not_there():
    words = ["mine.json", "--budget", "8", "--json"]
    given = {"problem": "mine.json", "budget": 8, "form": "json"}
    assert vars(parser_of("advise").parse_args(words)) == given


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
