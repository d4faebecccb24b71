"""Real argument lists of scripts: two scripts of our own, run in a sandbox where one can be made."""

import json

import pytest

from benchmarks import arguments
from benchmarks.arguments import Counts, Run, compare, compare_answers, same_words
from ustat_pg.catalogue.records import catalogue

SCRIPT = """
set -e
N=${N:-4}
ARGS=(--num_generations $((N * 2)) --beta "0.04")
source .venv/bin/activate
/opt/conda/bin/python prepare.py --num_generations 2
for rate in 1e-6 1e-5; do
  .venv/bin/python -m trl grpo "${ARGS[@]}" --run_name "$(basename $0 .sh) $rate"
done
unknown-program 'two words' ''
cat /etc/passwd ../../../../etc/passwd || curl http://127.0.0.1 || true
echo written > written.txt
"""

ENDLESS = "trl grpo --num_generations 4\nwhile true; do :; done\n"

needs_a_sandbox = pytest.mark.skipif(
    not arguments.can_be_made(), reason="no namespace can be made here"
)


@needs_a_sandbox
def test_a_script_runs_where_nothing_but_names_can_be_computed(tmp_path):
    repository = tmp_path / "of+mine"
    repository.mkdir()
    (repository / "run.sh").write_text(SCRIPT)
    (repository / "endless.sh").write_text(ENDLESS)
    runs = dict(
        arguments.recorded(tmp_path, ["of+mine/run.sh", "of+mine/endless.sh", "of+mine/no.sh"])
    )
    assert [*runs] == ["of+mine/run.sh", "of+mine/endless.sh"]
    run = runs["of+mine/run.sh"]
    assert run.ended
    passed = ["-m", "trl", "grpo", "--num_generations", "8", "--beta", "0.04", "--run_name"]
    assert run.commands == [
        ["/opt/conda/bin/python", "prepare.py", "--num_generations", "2"],
        [".venv/bin/python", *passed, "run 1e-6"],
        [".venv/bin/python", *passed, "run 1e-5"],
        ["unknown-program", "two words", ""],
        ["/usr/bin/curl", "http://127.0.0.1"],
    ]
    assert not (repository / "written.txt").exists()
    assert runs["of+mine/endless.sh"] == Run(
        [["/usr/bin/trl", "grpo", "--num_generations", "4"]], False
    )


REAL = ["/usr/bin/trl", "grpo", "--num_generations", "8", "--beta", "0.04"]


@pytest.mark.parametrize(
    ("text", "different"),
    [
        ("trl grpo --num_generations 8 --beta 0.04\n", []),
        ("trl grpo --num_generations 8 --beta $(cat beta)\n", []),
        ("trl grpo --num_generations 2 --beta 0.04\n", [("num_generations", "8", "2")]),
        ("trl grpo --num_generations 8\n", [("beta", "0.04", "0.0")]),
    ],
)
def test_a_value_that_we_read_in_another_way_is_a_difference(tmp_path, text, different):
    path = tmp_path / "run.sh"
    path.write_text(text)
    framework, run = catalogue().frameworks["trl"], Run([REAL], True)
    ours = [text.replace("$(cat beta)", "$(cat_beta)").split()]
    words, answers = Counts(), Counts()
    compare("run.sh", framework, run, ours, words)
    compare_answers("run.sh", path, framework, run, ours, answers)
    found = [(each.option, each.real, each.ours) for each in answers.different]
    assert found == different
    assert [each.option.lstrip("-") for each in words.different] == [name for name, *_ in different]
    assert (words.scripts, words.commands, words.values) == (1, 1, 2)
    assert answers.answers == ("$" not in text)  # Such a KL is refused.
    assert words.lists == (not different)
    assert words.open == text.count("$")


def test_a_command_that_we_miss_is_a_difference():
    counts = Counts()
    compare("run.sh", catalogue().frameworks["trl"], Run([REAL], True), [["echo"]], counts)
    assert [each.option for each in counts.different] == ["the command"]


@pytest.mark.parametrize(
    ("ours", "same"),
    [
        (["trl", "a", "b"], True),
        (["trl", "a"], False),
        (["trl", "a", "b", "c"], False),
        (["trl", "$MORE"], True),
        (["trl", "$NONE", "a", "$NONE", "b", "$NONE"], True),
        (["trl", "$A", "c"], False),
        (["swift", "a", "b"], False),
    ],
)
def test_words_of_which_only_the_run_knows_some(ours, same):
    assert same_words(["/usr/bin/trl", "a", "b"], ours) == same


def test_nothing_runs_unless_it_is_asked_for(tmp_path, capsys):
    with pytest.raises(SystemExit):
        arguments.main([str(tmp_path)])
    assert "only with --sandbox" in capsys.readouterr().err


def test_what_was_recorded_is_compared_again(tmp_path, capsys):
    (tmp_path / "of+mine").mkdir()
    (tmp_path / "of+mine/run.sh").write_text("trl grpo --num_generations 2 --beta 0.04\n")
    expected, record = tmp_path / "list.jsonl", tmp_path / "real.json"
    expected.write_text(json.dumps({"path": "of+mine/run.sh", "framework": "trl"}))
    record.write_text(json.dumps({"of+mine/run.sh": {"commands": [REAL], "ended": True}}))
    differences = tmp_path / "differences.txt"
    given = ["--list", expected, "--record", record, "--differences", differences]
    assert arguments.main([str(tmp_path), *map(str, given)]) == 1
    assert "'num_generations'\t'8'\t'2'" in differences.read_text()
    assert "| trl" in capsys.readouterr().out
