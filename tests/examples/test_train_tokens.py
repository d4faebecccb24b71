"""The example that trains: a few steps of every cell, its file, its figure, and going on."""

import runpy
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch not installed")

FILE = Path(__file__).resolve().parents[2] / "examples" / "train_tokens.py"


@pytest.fixture(scope="module")
def names():
    return runpy.run_path(str(FILE))


def test_a_small_study_is_written_drawn_and_gone_on_with(names, tmp_path):
    words = ["--steps", "2", "--seeds", "1", "--out", str(tmp_path)]
    file = tmp_path / "train_tokens.csv"
    names["main"](words)
    whole = file.read_text()
    rows = pd.read_csv(file)
    last = rows[rows["step"] == 2]
    assert last.groupby("optimizer").size().to_dict() == dict.fromkeys(("adam", "muon", "sgd"), 9)
    assert last["value"].between(0, 1).all()
    assert rows["correlation"].between(-1, 1).sum() == 6
    # No run is like another, but for a reward that no baseline changes.
    assert last["value"].nunique() > 15
    assert (tmp_path / "train_tokens.svg").read_text().count("<path") > 50
    # What an interruption left out is trained, and nothing else.
    lines = whole.splitlines(keepends=True)
    file.write_text("".join(lines[:-2]))
    names["main"](words)
    assert file.read_text() == whole
    names["main"](words)
    assert file.read_text() == whole


def test_a_step_of_sgd_is_along_the_mean_of_its_draws(names):
    """In the mean over seeds, one step of grpo goes along the exact gradient."""
    start, problem, rate = names["START"], names["PROBLEM"], 1e-3
    gradient = problem.bandit(start).gradient()
    steps = []
    for seed in range(60):
        run = names["Run"]("sgd", "grpo", 4, rate, 1, seed)
        (_, before), (_, after) = names["train"](run)
        assert np.array_equal(before, start.theta)
        steps.append((after - before) / rate)
    along = np.array(steps) @ gradient / (gradient @ gradient)
    assert abs(along.mean() - 1) < 4 * along.std() / len(along) ** 0.5
    assert along.std() / len(along) ** 0.5 < 0.15
