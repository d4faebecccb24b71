"""Plans of sampling at the command line: predict, explain and advise."""

import json

import pytest

from ustat_pg.cli import main
from ustat_pg.predictions import plan_mse
from ustat_pg.problems import load_problem
from ustat_pg.sampling.plans import SCHEMES


def answer(capsys, *words):
    assert main([*words]) == 0
    return capsys.readouterr().out


def test_a_prediction_under_a_plan(capsys):
    words = ("predict", "ustat:uneven", "--plan", "3+2 if mixed", "--estimator", "grpo")
    result = json.loads(answer(capsys, *words, "--json"))
    expected = plan_mse(load_problem("ustat:uneven"), "3+2 if mixed", "grpo")
    assert result["mse"] == pytest.approx(expected.mse)
    assert result["mean_factor"] == pytest.approx(expected.mean_factor)
    assert result["sequential"]["mean_factor"] == pytest.approx([1, 1, 1])
    enumerated = json.loads(answer(capsys, *words, "--json", "--enumerate"))
    assert enumerated["mse"] == pytest.approx(expected.mse)
    assert enumerated["squared_bias"] == pytest.approx(expected.squared_bias)
    assert "outputs drawn for one used prompt" in answer(capsys, *words)


def test_two_stages_of_graded_rewards_are_enumerated(capsys):
    words = ("predict", "ustat:several", "--plan", "3+2 if mixed", "--enumerate", "--json")
    words += ("--estimator", "two-stage")
    assert json.loads(answer(capsys, *words))["squared_bias"] == 0
    assert json.loads(answer(capsys, *words, "--estimator", "grpo"))["squared_bias"] > 0


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_is_explained(capsys, name):
    result = json.loads(answer(capsys, "explain", name, "--pass-rate", ".1,.5", "--json"))
    assert len(result["mean_factor"]) == 2
    text = answer(capsys, "explain", name)
    assert "What it climbs" in text
    assert max(map(len, text.splitlines())) <= 100


def test_advice_on_two_stages(capsys):
    words = ("advise", "ustat:uneven", "--budget", "63", "--adaptive", "--json")
    free, costly = (
        json.loads(answer(capsys, *words, "--stage-cost", cost))["adaptive"] for cost in ("0", "2")
    )
    assert free["bound_ratio"] <= 1
    assert costly["plan_ratio"] > free["plan_ratio"]
    pool = ("advise", "--scored", "tests/data/pools/scored.npz", "--budget", "64", "--adaptive")
    assert "two stages" in answer(capsys, *pool)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("predict", "ustat:uneven", "--plan", "3+2 if lucky"), "lucky"),
        (("predict", "ustat:several", "--plan", "3+2 if lucky"), "lucky"),
        (("predict", "ustat:several", "--plan", "3+2 if mixed"), "rewards that are 0 or 1"),
        (
            ("predict", "ustat:several", "--plan", "2,3 if silent", "--enumerate"),
            "counts successes",
        ),
        (("predict", "ustat:uneven", "--plan", "4", "--design", "fixed"), "independent prompts"),
        (("advise", "ustat:several", "--budget", "64", "--adaptive"), "rewards that are 0 or 1"),
    ],
)
def test_refusals(capsys, words, said):
    assert main([*words]) == 2
    assert said in capsys.readouterr().err
