"""The command ``ustat-pg``."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.support import commands
from ustat_pg import __version__
from ustat_pg.cli import main
from ustat_pg.predictions import gradient_covariance, gradient_mse, group_size_advice, mse_constants
from ustat_pg.problems import example_problem, problem_from_mapping, random_problem, save_problem

PROBLEM = problem_from_mapping(example_problem())
KEYS = ("mse", "prompt_term", "first_order_term", "second_order_term", "oracle_mse", "vanilla_mse")
KEYS += ("paper_bound",)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "problem.json"
    save_problem(PROBLEM, path)
    return str(path)


def out_of(capsys, *words: str) -> str:
    return commands.out_of(capsys, main, *words)


def test_json_has_the_documented_keys_and_the_librarys_numbers(capsys, file):
    words = ("predict", file, "--group-size", "8", "--batch-size", "4", "--json")
    result = json.loads(out_of(capsys, *words))
    expected = gradient_mse(PROBLEM.moments(), "grpo", 8, 4)
    for key in KEYS:
        assert result[key] == getattr(expected, key)
    assert result["mse"] == pytest.approx(
        result["prompt_term"] + result["first_order_term"] + result["second_order_term"]
    )


def test_constant_critic_covariance_and_design(capsys, file, tmp_path):
    words = ("predict", file, "--group-size", "3", "--json", "--covariance")
    result = json.loads(out_of(capsys, *words, "--estimator", "constant", "--constant", "-0.5"))
    expected = gradient_covariance(PROBLEM.moments(), "constant", 3, constant=-0.5)
    np.testing.assert_array_equal(result["covariance"], expected)
    critic = tmp_path / "critic.json"
    critic.write_text("[0.1, 0.2]")
    result = json.loads(out_of(capsys, *words, "--estimator", "critic", "--critic", str(critic)))
    assert result["mse"] == gradient_mse(PROBLEM.moments(), "critic", 3, critic=[0.1, 0.2]).mse


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--group-size", "4", "--constant", "1"), "constant is given, which the estimator grpo"),
        (("--group-size", "4", "--estimator", "critic", "--critic", "/no/file"), "No such file"),
        (("--budget", "1e13"), "at most 1,000,000"),
        (("--budget", "5", "--prompt-cost", "4"), "one prompt with two outputs costs 6"),
        (("--budget", "64", "--samples", "8"), "give one of the two: leave out --samples"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(capsys, file, words, message):
    command = "group-size" if "--budget" in words else "predict"
    assert message in commands.refusal_of(capsys, main, command, file, *words)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context_probs": [0.6, 0.5]}, "context_probs sums to 1.1"),
        ({"reward_probs": None}, "lacks reward_probs"),
    ],
)
def test_bad_files_are_one_line_with_the_files_name(capsys, tmp_path, change, message):
    data = example_problem() | change
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))
    error = commands.refusal_of(capsys, main, "predict", path, "--group-size", "4")
    assert str(path) in error
    assert message in error


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(("--version",))
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"ustat-pg {__version__}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("group-size", "FILE"), "--budget"),
        (("group-size", "FILE", "--budget", "many"), "'many' is not a number"),
    ],
)
def test_usage_is_exit_2(capsys, file, words, message):
    words = [file if word == "FILE" else word for word in words]
    text = commands.refusal_of(capsys, main, *words)
    assert message in text
    assert "see ustat-pg advise --help" in text


def advice_of(capsys, *words: str) -> dict:
    """What ``group-size --json`` prints, in one line."""
    text = out_of(capsys, "group-size", *words, "--json")
    assert text.count("\n") == 1
    return commands.strict(text)


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (("--budget", "1024"), {}),
        (("--budget", "1e3"), {}),
        (("--budget", "2"), {}),
        (("--budget", "1024", "--population", "40"), {"population": 40}),
        (("--budget", "1000", "--prompt-cost", "3"), {"prompt_cost": 3}),
        (
            ("--budget", "100.5", "--prompt-cost", "3", "--output-cost", "0.25"),
            {"prompt_cost": 3, "output_cost": 0.25},
        ),
    ],
)
def test_group_sizes_in_json_have_the_documented_keys_and_the_librarys_numbers(
    capsys, file, words, arguments
):
    result = advice_of(capsys, file, *words)
    own = ["g_star_paper", "g_star_exact", "group_size", "g_interval", "table"]
    assert list(result) == [*own, "c1", "c2", "c3", "gradient_sq", "k_crit"]
    moments = PROBLEM.moments()
    known = mse_constants(moments)
    assert [result[name] for name in ("c1", "c2", "c3")] == [known.c1, known.c2, known.c3]
    assert result["k_crit"] * moments.mean_gradient_sq == pytest.approx(known.least_mse(1.0))
    number = float(words[1])
    expected = group_size_advice(
        moments,
        int(number) if number.is_integer() else number,
        frac_reward_zero_std=PROBLEM.frac_reward_zero_std,
        **arguments,
    )
    for key in ("g_star_paper", "g_star_exact", "group_size"):
        assert result[key] == getattr(expected, key)
    assert result["g_interval"] == list(expected.g_interval)
    assert all(type(end) is int for end in result["g_interval"])
    for row, own in zip(result["table"], expected.table, strict=True):
        assert list(row) == ["group_size", "mse", "ratio_to_best", "frac_reward_zero_std"]
        assert all(row[key] == getattr(own, key) for key in row)


def test_one_prompt_has_no_best_group_size(capsys, tmp_path):
    path = tmp_path / "one.json"
    save_problem(random_problem(0, "one-context"), path)
    result = advice_of(capsys, str(path), "--budget", "64")
    assert result["g_star_exact"] is result["g_star_paper"] is None
    assert result["group_size"] == result["g_interval"][1] == 64
    text = out_of(capsys, "group-size", str(path), "--budget", "64")
    assert "does not exist: more prompts gain nothing" in text
    assert text.splitlines()[-1].startswith("Use one prompt with G = 64, or nearly")


def test_advise_is_the_entry_and_group_size_its_alias(capsys, file):
    words = (file, "--budget", "60")
    assert out_of(capsys, "advise", *words) == out_of(capsys, "group-size", *words)


def test_marks_are_of_what_whole_prompts_give(capsys, file):
    """With 0.6 to spend at 0.1 each, G = 4 leaves a third of it, and is not close to the best."""
    words = ("--budget", "0.6", "--output-cost", "0.1")
    assert advice_of(capsys, file, *words)["g_interval"] == [3, 5]
    lines = out_of(capsys, "group-size", file, *words).splitlines()
    assert [line.split()[0] for line in lines if line.endswith("  best")] == ["3"]
    assert not any(line.endswith("within 5%") for line in lines)


def test_advice_is_drawn_into_a_file(capsys, file, tmp_path):
    pytest.importorskip("matplotlib")
    words = ("advise", file, "--budget", "24")
    plain = out_of(capsys, *words)
    assert out_of(capsys, *words, "--plot", tmp_path / "g.svg") == plain
    text = (tmp_path / "g.svg").read_text()
    assert text.startswith("<?xml")
    assert "svg" in text
    said = commands.refusal_of(capsys, main, *words, "--plot", tmp_path / "g.nothing")
    assert "must end in one of" in said


def test_advice_as_csv_is_the_table(capsys, file):
    from io import StringIO

    import pandas as pd

    text = out_of(capsys, "advise", file, "--budget", "24", "--csv")
    expected = group_size_advice(PROBLEM, 24).to_frame()
    pd.testing.assert_frame_equal(pd.read_csv(StringIO(text)), expected)
    both = ("advise", file, "--budget", "24", "--csv", "--json")
    assert "--json: not allowed with argument --csv" in commands.refusal_of(capsys, main, *both)
