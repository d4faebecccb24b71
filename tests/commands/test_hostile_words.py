"""Words that no command can take, at every option of every command: one line and exit code 2, at once."""

import json
import signal

import pytest

from simulations.__main__ import _parser as of_simulations
from simulations.__main__ import main as simulate
from simulations.evidence.runner import MOST_REPLICATIONS
from tests.support.commands import jsonl, refusal_of
from tests.support.hostile import NO_COUNTS, NO_NUMBERS, NUL, is_number, valued, with_value
from ustat_pg.cli import LONGEST, main
from ustat_pg.cli import _parser as of_words
from ustat_pg.predictions import count_table, gradient_mse
from ustat_pg.problems import named_problem

MODEL = "--model embedded:short --prompts embedded:short:problems=4 --samples 4"
COMMANDS = (
    "predict ustat:uneven --group-size 4",
    "predict ustat:uneven --group-size 4 --estimator std",
    "predict ustat:uneven --group-size 4 --estimator constant --constant 1",
    "explain std --group-size 4 --pass-rate .2",
    "advise ustat:uneven --budget 64",
    "advise ustat:uneven --budget 64 --adaptive",
    f"advise {MODEL} --budget 64 --adaptive",
    "advise --model embedded:short --rollouts ROLLOUTS --budget 64 --adaptive",
    "advise --scored no.npz --budget 64",
    "rewards ROLLOUTS",
    f"llm mse {MODEL}",
    "llm mse --model embedded:short --rollouts ROLLOUTS --ratio token",
    "llm mse --scored no.npz",
    "llm sweep --out FOLDER",
    "problems",
)
SIMULATIONS = (
    "plan mse --out FOLDER",
    "verify mse --out FOLDER",
    "check mse x",
    "mutants mse --sample 1/1000",
)


@pytest.fixture(autouse=True)
def at_once():
    """Nothing here waits, whatever a slow machine adds."""

    def late(*_):
        raise AssertionError("not at once")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def cases():
    """Each command with one option of a value that it cannot have."""
    for commands, program in ((COMMANDS, main), (SIMULATIONS, simulate)):
        for command in commands:
            words = command.split()
            parser = of_words() if program is main else of_simulations()
            for action in valued(parser, words):
                yield program, command, action, NUL
                if action.choices:
                    yield program, command, action, "\udc80"
                if is_number(action):
                    hostile = NO_COUNTS if action.type is int else NO_NUMBERS
                    for value in hostile:
                        yield program, command, action, value


def names():
    for program, command, action, value in CASES:
        door = "ustat-pg" if program is main else "simulations"
        shown = value.encode("unicode_escape").decode()[:12]
        yield f"{door} {command} {action.dest} {shown}"


CASES = list(cases())


def test_every_kind_of_option_is_asked():
    """All commands have their options here: hundreds of pairs of an option and a value."""
    asked = {(command.split()[0], action.dest) for _, command, action, _ in CASES}
    assert {("llm", "samples"), ("predict", "group_size"), ("plan", "workers")} <= asked
    assert len(asked) > 80
    assert len(CASES) > 500


@pytest.mark.parametrize(("program", "command", "action", "value"), CASES, ids=list(names()))
def test_a_hostile_word_is_one_line(capsys, tmp_path, program, command, action, value):
    rows = [{"prompt": "1+1=", "completions": ["2"] * 4, "rewards": [1, 0, 0, 1]}] * 2
    rollouts = jsonl(tmp_path / "own.jsonl", *({"id": str(i), **r} for i, r in enumerate(rows)))
    places = {"ROLLOUTS": str(rollouts), "FOLDER": str(tmp_path / "out")}
    words = [places.get(word, word) for word in command.split()]
    text = refusal_of(capsys, program, *with_value(words, action, value))
    assert len(text) < LONGEST + 100
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("predict ustat:uneven --estimator std --group-size 1000000000", "at most 1,000,000"),
        ("explain trl --pass-rate .2 --group-size 1000000000", "at most 1,000,000"),
        ("advise ustat:uneven --budget 1000000000", "at most 1,000,000"),
        (f"advise {MODEL} --budget 1000000000", "at most 1,000,000"),
        (f"llm mse {MODEL} --limit -5", "limit is -5"),
        (f"advise {MODEL} --budget 64 --prompt-cost -1", "prompt cost is -1.0"),
        (
            "predict ustat:uneven --group-size 4 --estimator constant --constant 1e160",
            "beyond 1e+50",
        ),
        ("predict ustat:uneven --group-size 4 --estimator shrinkage:.5,1e160", "beyond 1e+50"),
    ],
)
def test_numbers_beyond_what_can_be_done(capsys, words, message):
    assert message in refusal_of(capsys, main, *words.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("verify mse --workers 1000000000", "workers is 1000000000"),
        ("mutants mse --workers 0 --sample 1/1000", "workers is 0"),
        (
            f"check mse skewed_G=2:_grpo --size smoke --replications {10**15}",
            f"{MOST_REPLICATIONS:,}",
        ),
    ],
)
def test_simulations_that_would_not_end(capsys, tmp_path, words, message):
    words = [word.replace("_", " ") if "=" in word else word for word in words.split()]
    where = ["--out", str(tmp_path)] * (words[0] == "verify")
    assert message in refusal_of(capsys, simulate, *words, *where)


def test_a_table_of_many_prompts_and_outputs_is_refused():
    from ustat_pg.predictions.count_tables import binomial
    from ustat_pg.validation import InputError

    assert gradient_mse(named_problem("uneven").problem, "std", 10**5).mse > 0
    with pytest.raises(InputError, match="groups of 100001 at 1000 prompts are too many"):
        binomial(10**5, [0.5] * 1000)
    with pytest.raises(InputError, match="at most 1,000,000"):
        count_table("std", 10**6 + 1)


@pytest.mark.parametrize(
    "value", ["[1, 2]", "{a: 1}", "null", '"\\0"', '"\\ud800"', "0x" + "f" * 5000, "9" * 5000,
              "../../up", "a/b", "x" * 200, "1.5"]
)  # fmt: skip
def test_a_grid_whose_values_name_no_folder(capsys, tmp_path, value):
    config = tmp_path / "sweep.yaml"
    config.write_text(f"model: x\ngrid:\n  num_generations: [{value}]\n", "utf-8")
    words = ("llm", "sweep", "--config", config, "--out", tmp_path / "out", "--print")
    assert str(config) in refusal_of(capsys, main, *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["{}", "[]", "null", '{"run": 1, "trl": {}, "budget": 8}'])
def test_a_record_of_no_run_is_named(capsys, tmp_path, text):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "finished.json").write_text(text, "utf-8")
    text = refusal_of(capsys, main, "llm", "sweep", "--out", tmp_path)
    assert "finished.json is not a record of a finished run" in text


HALF = "\ud800"
LINE = {"id": "a", "prompt": "1+1=", "completions": ["1", "2", "3", "4"], "rewards": [1, 0, 1, 0]}


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": HALF},
        {"completions": ["1", f"2{HALF}", "3", "4"]},
        {"id": HALF},
        {"prompt": [{"role": "user", "content": HALF}]},
        {HALF: 1},
        {"rewards": [1, 0, 1, -(10**400)]},
    ],
)
@pytest.mark.parametrize(
    "command", ["rewards FILE", "explain std --group-size 2 --pass-rates FILE"]
)
def test_text_that_is_no_unicode_and_numbers_that_no_float_holds(capsys, tmp_path, change, command):
    file = jsonl(tmp_path / "own.jsonl", LINE | change)
    text = refusal_of(capsys, main, *command.replace("FILE", str(file)).split())
    assert "line 1: " in text
    assert "half a character" in text or "beyond double precision" in text


def test_pairs_of_surrogates_and_long_runs_of_digits_are_text(tmp_path):
    from ustat_pg.files.reading import read_json

    file = tmp_path / "a.json"
    file.write_text(json.dumps(["\U0001f600", "7" * 5000, 10**300]), "utf-8")
    assert read_json(file) == ["\U0001f600", "7" * 5000, 10**300]


def test_python_numbers_of_thousands_of_digits_are_refused_by_name():
    from ustat_pg.validation import InputError

    with pytest.raises(InputError, match="group size is a number of thousands of digits"):
        gradient_mse(named_problem("uneven").problem, "grpo", 10**5000)
