"""The example that trains with two stages: a small study, going on, and the mean of its steps."""

import runpy
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch not installed")

FILE = Path(__file__).resolve().parents[2] / "examples" / "train_two_stages.py"


@pytest.fixture(scope="module")
def names():
    return runpy.run_path(str(FILE))


def test_a_small_study_is_written_drawn_and_gone_on_with(names, tmp_path, capsys):
    words = ["--steps", "2", "--seeds", "2", "--tuning", "1", "--out", str(tmp_path)]
    file = tmp_path / "train_two_stages.csv"
    names["main"](words)
    assert capsys.readouterr().out.count("±") == 16
    rows = pd.read_csv(file)
    assert len(rows) == 5 * sum(map(len, names["RATES"].values())) + 2 * 5 * 4
    assert rows["value"].between(0, 1).all()
    assert (tmp_path / "train_two_stages.svg").read_text().count("<path") > 40
    # What an interruption left out is trained, and nothing else.
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-3]))
    names["main"](words)
    assert sorted(file.read_text().splitlines()) == sorted("".join(lines).splitlines())


def test_steps_are_unbiased_but_the_uncorrected_and_draw_alike(names):
    """Many first steps of SGD in one: the mean change is along the exact gradient at its length."""
    start, rate, seeds = names["start"]("half trained"), 1e-4, 240
    gradient = names["PROBLEM"].bandit(start).gradient()
    along = {}
    for method in ("fixed 4", "4+12", "4+12 uncorrected"):
        runs = [names["Run"]("half trained", "sgd", method, rate, 1, seed) for seed in range(seeds)]
        steps = np.array([theta - start.theta for theta, _ in names["train"](runs)]) / rate
        along[method] = steps @ gradient / (gradient @ gradient)
    error = {method: values.std() / seeds**0.5 for method, values in along.items()}
    for method in ("fixed 4", "4+12"):
        assert abs(along[method].mean() - 1) < 4 * error[method], method
    paired = along["4+12"] - along["4+12 uncorrected"]
    assert paired.mean() > 4 * paired.std() / seeds**0.5


def test_a_run_draws_its_budget(names):
    runs = [names["Run"]("half trained", "sgd", "4+12", 0.02, 12, seed) for seed in range(4)]
    for _, drawn in names["train"](runs):
        assert drawn == pytest.approx(12 * names["BUDGET"], rel=0.1)
