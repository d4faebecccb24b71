"""The text of ``predict`` and ``explain`` has the numbers that their JSON has."""

import json

import numpy as np
import pytest

from tests.support.commands import out_of
from ustat_pg.cli import main
from ustat_pg.problems import SoftmaxBandit, save_problem

SUCCESS = np.array([[0.1, 0.65], [0.8, 0.3]])
NAMES = ("vanilla", "oracle", "grpo", "std", "maxrl", "norm-weighted", "best")


@pytest.fixture
def file(tmp_path):
    problem = SoftmaxBandit.tabular(
        [0.4, 0.6],
        [[0.0, 0.7], [0.0, -0.4]],
        np.broadcast_to([0.0, 1.0], (2, 2, 2)),
        np.stack([1 - SUCCESS, SUCCESS], -1),
    )
    save_problem(problem, tmp_path / "problem.json")
    return str(tmp_path / "problem.json")


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_predict_prints_its_numbers(capsys, file, name, batch):
    words = ["predict", file, "--estimator", name, "--group-size", "4", "--batch-size", batch]
    words += ["--enumerate"] * (name == "norm-weighted")
    text, known = out_of(capsys, main, *words), json.loads(out_of(capsys, main, *words, "--json"))
    printed = {
        line[:42].strip(): [float(word) for word in line[42:].split()] for line in text.splitlines()
    }
    expected = {
        "MSE of the minibatch gradient": known["mse"],
        "from the choice of prompts": known["prompt_term"],
        "from single outputs, order 1/G": known["first_order_term"],
        "from pairs and more, order 1/G²": known["second_order_term"],
        "squared bias": known["squared_bias"],
        "MSE of the oracle": known["oracle_mse"],
        "MSE of vanilla": known["vanilla_mse"],
        "noise to signal, tr Cov ĝ/‖E ĝ‖²": known["noise_to_signal"],
        "cosine of E ĝ to the gradient": known["cosine"],
        "MSE over that of the oracle": known["mse"] / known["oracle_mse"],
        "MSE over that of vanilla": known["mse"] / known["vanilla_mse"],
    }
    if name in ("std", "maxrl"):
        expected["mean estimate over gradient, by prompt"] = known["mean_factor"]
    if name == "best":
        expected["table b(0) ... b(G-1)"] = known["table"]
    if known["paper_bound"] is not None:
        expected["MSE with the explicit bound"] = known["paper_bound"]
    assert set(printed) == set(expected)
    for label, value in expected.items():
        # As many digits as are printed.
        digits = 5e-4 if np.ndim(value) else 1e-5
        assert printed[label] == pytest.approx(np.atleast_1d(value), rel=digits, abs=1e-12), label


@pytest.mark.parametrize("source", ["problem", "pass rates"])
@pytest.mark.parametrize("name", ["vanilla", "grpo", "std", "maxrl", "best"])
def test_explain_prints_its_numbers(capsys, file, name, source):
    if source == "pass rates" and name == "best":
        return
    where = ("--problem", file) if source == "problem" else ("--pass-rate", "0.2,0.7")
    words = ("explain", name, "--group-size", "4", *where)
    known = json.loads(out_of(capsys, main, *words, "--json"))
    text = " ".join(out_of(capsys, main, *words).split())
    ratios = ("noise_to_rloo", "noise_to_oracle", "best_noise_to_rloo")
    shown = [f"MSE {known['mse']:.4g}, ", f"noise over signal {known['noise_to_signal']:.4g}"]
    # What is 1 times RLOO's is said to be RLOO's.
    shown += [f"{known[key]:.4g} times" for key in ratios if f"{known[key]:.4g}" != "1"]
    shown += [f"{known['frac_reward_zero_std']:.1%} of groups"]
    if not known["unbiased"]:
        pairs = zip(known["mean_factor"], known["pass_rates"], strict=True)
        shown += [f"{w:.4g} at p = {p:.4g}" for w, p in pairs]
        shown += [f"cosine to the gradient is {known['cosine']:.4f}"]
    assert [part for part in shown if part not in text] == []
