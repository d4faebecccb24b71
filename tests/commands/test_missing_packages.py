"""Commands and imports where packages of an extra are not installed: one line that says what to install."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.support.commands import ROOT, jsonl
from tests.support.hidden import hidden
from ustat_pg.cli import EXTRAS
from ustat_pg.llm.pool import ScoredPool

EXTRA = "pip install 'ustat_pg[{}]'"


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Of processes that find no package of an extra."""
    path = hidden(tmp_path_factory.mktemp("without"), *EXTRAS)
    return os.environ | {"PYTHONPATH": path}


def run(environment, *words):
    line = [sys.executable, *map(str, words)]
    return subprocess.run(
        line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )


MODEL = "advise --model embedded:short --budget 64"


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (MODEL, "llm"),
        (f"{MODEL} --rollouts {{rollouts}}", "llm"),
        ("llm mse --model embedded:short", "llm"),
        ("llm mse --model embedded:short --rollouts {rollouts}", "llm"),
        ("llm sweep --config embedded --out {out}", "llm"),
        ("explain {options}", "llm"),
        ("advise ustat:uneven --budget 64 --plot {out}.png", "figures"),
        ("explain --name std --group-size 4 --pass-rate .2 --plot {out}.png", "figures"),
    ],
)
def test_a_command_says_in_one_line_what_to_install(environment, tmp_path, words, extra):
    rollouts = jsonl(tmp_path / "rollouts.jsonl", {"prompt": "1+1?", "completions": ["2"] * 4})
    options = tmp_path / "run.yaml"
    options.write_text("num_generations: 8\n", "utf-8")
    words = words.format(rollouts=rollouts, options=options, out=tmp_path / "out")
    done = run(environment, "-m", "ustat_pg.cli", *words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert EXTRA.format(extra) in done.stderr


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("verify mse --engine autograd", "torch"),
        ("verify mse --on transformer", "torch"),
        ("verify --on language-model", "llm"),
        ("verify mse --dask tcp://localhost:1", "dask"),
        ("verify mse --engine autograd --device cuda", "torch"),
    ],
)
def test_simulations_say_in_one_line_what_to_install(environment, tmp_path, words, extra):
    where = ("--size", "smoke", "--out", tmp_path)
    done = run(environment, "-m", "simulations", *words.split(), *where)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert EXTRA.format(extra) in done.stderr


@pytest.mark.parametrize(
    ("program", "extra"),
    [
        ("from ustat_pg.noise import NoiseMeter", "torch"),
        ("from ustat_pg.llm import NoiseMonitor", "llm"),
        ("from ustat_pg.llm import BaselineTrainer", "llm"),
        ("from ustat_pg.llm import TwoStageTrainer", "llm"),
        ("from ustat_pg.llm.scores import Scores", "llm"),
    ],
)
def test_an_import_says_what_to_install_and_is_an_import_error(environment, program, extra):
    done = run(environment, "-c", program)
    assert EXTRA.format(extra) in done.stderr.splitlines()[-1]
    quiet = f"try:\n    {program}\nexcept ImportError as error:\n    print(error.name)"
    done = run(environment, "-c", quiet)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() in EXTRAS


def test_a_run_of_training_says_what_to_install(environment):
    done = run(environment, "-m", "ustat_pg.llm.training", "--config", "run.yaml")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert EXTRA.format("llm") in done.stderr


def test_what_needs_no_extra_runs_without(environment, tmp_path):
    """A scored pool and rewards are numbers alone; so are alarms."""
    generator = np.random.default_rng(0)
    rewards, scores = generator.integers(0, 2, (8, 6)), generator.normal(size=(8, 6, 3))
    ScoredPool.from_scores(rewards.astype(float), scores).save(tmp_path / "pool.npz")
    for words in (
        ("-m", "ustat_pg.cli", "advise", "--scored", tmp_path / "pool.npz", "--budget", 64),
        ("-m", "ustat_pg.cli", "llm", "mse", "--scored", tmp_path / "pool.npz"),
        ("-c", "from ustat_pg.noise import Alarms, Alternative, NoiseEstimate"),
        ("-m", "ustat_pg.cli", "llm", "sweep", "--help"),
    ):
        done = run(environment, *words)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_extras_are_those_of_the_package():
    """What a command says to install is there to be installed, and brings the package."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    names = {"math_verify": "math-verify", "yaml": "pyyaml"}
    for package, extra in EXTRAS.items():
        (listed,) = re.findall(rf"^{extra} = \[(.*?)\]$", text, re.S | re.M)
        if package == "torch":
            assert '"ustat_pg[torch]"' in listed
        else:
            assert f'"{names.get(package, package)}' in listed
