"""A result has the form that its command prints: ``str``, ``to_dict``, a notebook's cell."""

import json
from html import escape

import numpy as np
import pytest

from ustat_pg import ScoredPool, advise, explain, gradient_mse, load_problem
from ustat_pg.cli import main
from ustat_pg.engines import enumerate_mse
from ustat_pg.explanations import Differences, explain_scheme
from ustat_pg.llm.advice.commands import errors_of_pool
from ustat_pg.llm.rollouts.rewards import summarise_rewards
from ustat_pg.predictions import count_table, limit_law, mse_constants, plan_mse
from ustat_pg.validation import typed

POOL, LOG = "tests/data/pools/scored.npz", "tests/data/pools/rollouts.jsonl"
PROBLEM = load_problem("ustat:uneven")

COMMANDS = {
    "predict ustat:uneven --group-size 4 --estimator best": lambda: gradient_mse(
        PROBLEM, "best", 4
    ),
    "explain trl --group-size 4": lambda: explain("trl", group_size=4),
    "explain trl --against verl": lambda: Differences(explain("trl"), explain("verl")),
    "explain dapo": lambda: explain_scheme("dapo"),
    "advise ustat:uneven --budget 64 --adaptive": lambda: advise("ustat:uneven", 64, adaptive=True),
    f"advise --scored {POOL} --budget 64": lambda: advise(POOL, 64),
    f"llm mse --scored {POOL}": lambda: errors_of_pool(ScoredPool.load(POOL)),
    f"rewards {LOG}": lambda: summarise_rewards(LOG),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_prints_its_record(capsys, command):
    result = COMMANDS[command]()
    assert main(command.split()) == 0
    with typed():
        assert capsys.readouterr().out == f"{result}\n"
    assert main([*command.split(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(
        json.dumps(result.to_dict(), allow_nan=False)
    )
    assert result._repr_html_() == f"<pre>{escape(str(result))}</pre>"


RECORDS = {
    "a law": (
        lambda: limit_law([1.0, 2.0], [[0.5, 0], [0, 0.6]], c=1.0),
        "mean 0.45, variance 0.205",
    ),
    "constants": (lambda: mse_constants(PROBLEM), "c3                   0.2595740079\n"),
    "a table": (lambda: count_table("grpo", 3), "failures             0 -0.5 -1 0"),
    "an enumerated error": (
        lambda: enumerate_mse(PROBLEM, "std", 3),
        "mean_factor          1.414 1.414",
    ),
    "a minibatch": (
        lambda: PROBLEM.sample(np.random.default_rng(0), 32),
        "rewards              1 x 32 numbers",
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_without_a_command_prints_its_fields(name):
    make, line = RECORDS[name]
    result = make()
    assert line in str(result)
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert result._repr_html_() == f"<pre>{escape(str(result))}</pre>"


def test_a_plan_prints_its_record_and_the_unbiased_one_beside(capsys):
    command = ["predict", "ustat:uneven", "--plan", "3+2 if mixed", "--estimator", "grpo"]
    result = plan_mse(PROBLEM, "3+2 if mixed", "grpo")
    assert main(command) == 0
    assert capsys.readouterr().out.startswith(f"{result}\n")
    assert main([*command, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed.pop("sequential") == plan_mse(PROBLEM, "3+2 if mixed").to_dict()
    assert printed == result.to_dict()


def test_pictures_are_drawn_on_axes_that_are_given():
    axes = pytest.importorskip("matplotlib.figure").Figure().add_subplot()
    for result in (explain("trl"), explain_scheme("dapo"), advise("ustat:uneven", 64)):
        assert result.plot(axes) is axes


def test_the_answer_of_advice_is_its_group_size():
    problem, pool = advise("ustat:uneven", 64, adaptive=True), advise(POOL, 64)
    assert problem.group_size == problem.to_dict()["group_size"] == problem.sizes.group_size
    assert problem.adaptive.group_size == problem.to_dict()["adaptive"]["group_size"]
    assert pool.group_size == pool.to_dict()["group_size"]
    assert pool.sizes.group_size == pool.to_dict()["group_size_at_estimates"]
