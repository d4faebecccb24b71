"""The command ``ustat-pg``."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ustat_pg import __version__
from ustat_pg.cli import main
from ustat_pg.predictions import gradient_covariance, gradient_mse
from ustat_pg.problems import example_problem, problem_from_mapping, save_problem

PROBLEM = problem_from_mapping(example_problem())
KEYS = (
    "mse",
    "prompt_term",
    "first_order_term",
    "second_order_term",
    "oracle_mse",
    "vanilla_mse",
    "paper_bound",
)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "problem.json"
    save_problem(PROBLEM, path)
    return str(path)


def out_of(capsys, *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


def test_example_is_a_problem_file(capsys, tmp_path):
    path = tmp_path / "example.json"
    path.write_text(out_of(capsys, "example"))
    assert (
        json.loads(out_of(capsys, "predict", str(path), "--group-size", "2", "--json"))["mse"] > 0
    )


def test_json_has_the_documented_keys_and_the_librarys_numbers(capsys, file):
    words = ("predict", file, "--group-size", "8", "--batch-size", "4", "--json")
    found = json.loads(out_of(capsys, *words))
    expected = gradient_mse(PROBLEM.moments(), "grpo", 8, 4)
    for key in KEYS:
        assert found[key] == getattr(expected, key)
    assert found["mse"] == pytest.approx(
        found["prompt_term"] + found["first_order_term"] + found["second_order_term"]
    )


@pytest.mark.parametrize("baseline", ["oracle", "vanilla", "reinforce", "group-mean"])
def test_the_bound_is_null_for_other_baselines(capsys, file, baseline):
    words = ("predict", file, "--baseline", baseline, "--group-size", "4", "--json")
    assert json.loads(out_of(capsys, *words))["paper_bound"] is None


def test_constant_critic_covariance_and_design(capsys, file, tmp_path):
    words = ("predict", file, "--group-size", "3", "--json", "--covariance")
    found = json.loads(out_of(capsys, *words, "--baseline", "constant", "--constant", "-0.5"))
    expected = gradient_covariance(PROBLEM.moments(), "constant", 3, constant=-0.5)
    np.testing.assert_array_equal(found["covariance"], expected)
    critic = tmp_path / "critic.json"
    critic.write_text("[0.1, 0.2]")
    found = json.loads(out_of(capsys, *words, "--baseline", "critic", "--critic", str(critic)))
    assert found["mse"] == gradient_mse(PROBLEM.moments(), "critic", 3, critic=[0.1, 0.2]).mse


def test_text_names_the_parts(capsys, file):
    text = out_of(capsys, "predict", file, "--group-size", "8")
    for part in ("MSE of the minibatch gradient", "choice of prompts", "over that of the oracle"):
        assert part in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--group-size", "1"), "group size is 1: leave-one-out needs at least 2"),
        (("--group-size", "0"), "group size is 0"),
        (("--group-size", "4", "--batch-size", "-1"), "batch size is -1"),
        (("--group-size", "4", "--baseline", "best"), "baseline 'best' is unknown"),
        (("--group-size", "4", "--baseline", "norm-weighted"), "no closed form"),
        (("--group-size", "4", "--baseline", "constant"), "a constant is given with"),
        (("--group-size", "4", "--constant", "1"), "a constant is given with"),
        (("--group-size", "4", "--baseline", "constant", "--constant", "nan"), "finite"),
        (("--group-size", "4", "--design", "fixed"), "uniform"),
        (("--group-size", "4", "--baseline", "critic"), "predicted values"),
        (
            ("--group-size", "4", "--baseline", "critic", "--critic", "/nowhere/at/all"),
            "No such file",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_2(capsys, file, words, message):
    assert main(("predict", file, *words)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context_probs": [0.6, 0.5]}, "context_probs sums to 1.1"),
        ({"context_probs": [1.6, -0.6]}, "must not be negative"),
        ({"logits": [[1, 2, 3], [1, 2]]}, "ragged"),
        ({"logits": "high"}, "not an array of numbers"),
        ({"logits": [[1, 2, float("nan")], [1, 2, 3]]}, "holds nan"),
        ({"reward_values": [[[1.0, float("inf")]] * 3] * 2}, "holds inf"),
        ({"extra": 1}, "unknown names: extra"),
        ({"reward_probs": None}, "lacks reward_probs"),
    ],
)
def test_bad_files_are_one_line_with_the_files_name(capsys, tmp_path, change, message):
    data = example_problem() | change
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))
    assert main(("predict", str(path), "--group-size", "4")) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert str(path) in error
    assert message in error


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00"])
def test_files_that_are_no_problem(capsys, tmp_path, text):
    path = tmp_path / "bad.json"
    path.write_text(text)
    assert main(("predict", str(path), "--group-size", "4")) == 2
    assert str(path) in capsys.readouterr().err


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(("--version",))
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"ustat-pg {__version__}\n"


def test_usage_is_exit_2(capsys):
    with pytest.raises(SystemExit) as stop:
        main(("predict",))
    assert stop.value.code == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "one list of numbers"),
        ("[1, null]", "not an array of numbers"),
        ("[" * 9999, "not JSON"),
    ],
)
def test_a_critic_that_is_no_list_of_numbers(capsys, file, tmp_path, text, message):
    critic = tmp_path / "critic.json"
    critic.write_text(text)
    words = ("predict", file, "--group-size", "2", "--baseline", "critic", "--critic", str(critic))
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_an_array_file_under_an_archives_name(capsys, tmp_path):
    with (tmp_path / "a.npz").open("wb") as target:
        np.save(target, np.ones(3))
    assert main(("predict", str(tmp_path / "a.npz"), "--group-size", "2")) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("size", ["9" * 400, "1e3", "-2"])
def test_group_sizes_beyond_sense(capsys, file, size):
    try:
        code = main(("predict", file, "--group-size", size))
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    assert "Traceback" not in capsys.readouterr().err
