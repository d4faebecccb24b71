"""Estimators side by side: enumerated and drawn errors, their standard errors, what is refused."""

import json

import numpy as np
import pytest

from tests.support.advantages import (
    dr_grpo,
    neighbour,
    normalised,
    rloo,
    signed_wrongly,
    whole_minibatch,
)
from tests.support.refusals import refusals, refuses
from ustat_pg import compare, compare_turns, gradient_mse
from ustat_pg.cli import main
from ustat_pg.engines import Estimator, enumerate_mean, enumerate_mse, enumerate_turns
from ustat_pg.problems import (
    example_problem,
    load_episodes,
    load_problem,
    problem_from_mapping,
    random_problem,
    save_problem,
)

EXAMPLE = problem_from_mapping(example_problem())
NAMED = ["grpo", "oracle", "vanilla", "minimum-variance"]


def half(rewards):
    others = rewards.sum(-1, keepdims=True) - rewards
    return rewards - others / (2 * (rewards.shape[-1] - 1))


def first_alone(rewards):
    """Advantages that depend on the order of a group: the first reward is everyone's baseline."""
    baseline = np.repeat(rewards[..., :1], rewards.shape[-1], axis=-1)
    baseline[..., 0] = rewards[..., 1]
    return rewards - baseline


def test_enumerated_errors_are_the_closed_forms():
    frame = compare(EXAMPLE, NAMED, [2, 3, 4], batch_size=2)
    assert (frame["kind"] == "exact").all()
    assert not frame[["standard_error", "ratio_error", "replications"]].to_numpy().any()
    for row in frame.itertuples():
        known = gradient_mse(EXAMPLE, row.estimator, row.group_size, 2).mse
        assert row.mse == pytest.approx(known, rel=1e-12)
        first = gradient_mse(EXAMPLE, "grpo", row.group_size, 2).mse
        assert row.ratio == pytest.approx(known / first, rel=1e-12)


def test_drawn_errors_have_their_standard_errors():
    frame = compare(EXAMPLE, NAMED, [64], batch_size=4, replications=20_000).set_index("estimator")
    assert (frame["kind"] == "simulation").all()
    assert (frame["replications"] == 20_000).all()
    first = gradient_mse(EXAMPLE, "grpo", 64, 4).mse
    for name, row in frame.iterrows():
        known = gradient_mse(EXAMPLE, name, 64, 4).mse
        assert abs(row["mse"] - known) < 4 * row["standard_error"]
        assert abs(row["ratio"] - known / first) <= 4 * row["ratio_error"]
        assert 0 < row["standard_error"] < 0.05 * known
    assert frame.loc["grpo", ["ratio", "ratio_error"]].tolist() == [1.0, 0.0]
    # On shared draws a ratio is known better than either of its errors.
    relative = frame["standard_error"] / frame["mse"]
    assert frame.loc["oracle", "ratio_error"] < 0.2 * relative["oracle"]


def test_the_error_of_a_ratio_is_that_of_many_runs():
    many = [
        compare(EXAMPLE, ["grpo", "vanilla"], 8, batch_size=3, replications=500, seed=seed).iloc[1]
        for seed in range(200)
    ]
    spread = np.std([row["ratio"] for row in many], ddof=1)
    text = np.mean([row["ratio_error"] for row in many])
    assert text == pytest.approx(spread, rel=0.2)
    scatter = np.std([row["mse"] for row in many], ddof=1)
    assert np.mean([row["standard_error"] for row in many]) == pytest.approx(scatter, rel=0.2)


def test_functions_are_enumerated_in_every_order():
    problem = random_problem(1)
    frame = compare(problem, ["grpo", rloo, first_alone], [2, 3]).set_index("estimator")
    assert (frame["kind"] == "exact").all()
    np.testing.assert_allclose(frame.loc["rloo", "mse"], frame.loc["grpo", "mse"], rtol=1e-12)
    drawn = compare(problem, {"first": first_alone}, [3], batch_size=5, replications=20_000)
    exact = frame.loc["first_alone", "mse"].iloc[1]
    prompt = gradient_mse(problem, "grpo", 3).prompt_term
    known = prompt / 5 + (exact - prompt) / 5
    assert drawn["kind"].item() == "simulation"
    assert abs(drawn["mse"].item() - known) < 4 * drawn["standard_error"].item()


def test_names_estimators_and_files(tmp_path):
    save_problem(EXAMPLE, tmp_path / "mine.json")
    named = {"mine": half, "half a point": Estimator("constant", 0.5)}
    frame = compare(str(tmp_path / "mine.json"), named, 2)
    assert frame["estimator"].tolist() == ["mine", "half a point"]
    known = gradient_mse(EXAMPLE, "constant", 2, constant=0.5).mse
    assert frame["mse"][1] == pytest.approx(known, rel=1e-12)
    assert compare(EXAMPLE, Estimator("constant", 0.5), 2)["estimator"].item() == "constant=0.5"


def test_without_an_error_there_is_no_ratio():
    sure = problem_from_mapping(
        {
            "context_probs": [1.0],
            "logits": [[0.0, 0.0]],
            "reward_values": [[[1.0], [1.0]]],
            "reward_probs": [[[1.0], [1.0]]],
        }
    )
    frame = compare(sure, ["grpo", "vanilla"], 2)
    assert frame["mse"][0] == 0
    assert frame[["ratio", "ratio_error"]].isna().all(axis=None)


test_what_is_refused = refusals(
    ({"estimators": ["grpo", "gpro"]}, "estimator 'gpro' is unknown"),
    ({"estimators": []}, r"estimators are \[\]: give at least one"),
    ({"estimators": ["grpo", "rloo"]}, "two estimators are called 'grpo': name them"),
    ({"group_sizes": 1}, "grpo needs a group of at least 2"),
    ({"group_sizes": []}, "group size is empty"),
    ({"batch_size": 0}, "batch size is 0"),
    ({"design": "fixed"}, "fixed"),
    ({"replications": 1}, "replications is 1: it must be a whole number of at least 2"),
    ({"seed": -1}, "seed is -1"),
    ({"problem": 3}, "problem is 3: it must be a SoftmaxBandit"),
    ({"problem": "mine.toml"}, "mine.toml"),
    ({"estimators": [lambda z: z[..., :1]]}, "returned shape"),
    ({"estimators": [lambda z: z / 0]}, "is not finite"),
    of=lambda words: compare(
        **{"problem": EXAMPLE, "estimators": ["grpo"], "group_sizes": 2} | words
    ),
)


@pytest.mark.parametrize("function", [rloo, dr_grpo, normalised, neighbour, signed_wrongly])
def test_errors_of_functions_are_those_of_their_estimators(function):
    """Loops over outcomes find what enumeration finds in ``tests/engines/test_enumeration.py``."""
    problem = random_problem(3, "linear", contexts=2)
    target, row = problem.gradient(), compare(problem, [function], 2).iloc[0]
    found = enumerate_mse(problem, Estimator("own", function=lambda z, draws: function(z)), 2)
    assert row["mse"] == pytest.approx(found.mse, rel=1e-12)
    off = np.linalg.norm(found.mean - target) / np.linalg.norm(target)
    assert row["bias"] == pytest.approx(off, rel=1e-9, abs=1e-11)
    factor = found.mean @ target / (target @ target)
    if factor > 0:
        rescaled = Estimator("own", function=lambda z, draws: function(z) / factor)
        expected = enumerate_mse(problem, rescaled, 2).mse
        assert row["rescaled"] == pytest.approx(expected, rel=1e-11)
    else:
        assert np.isnan(row["rescaled"])


def test_the_bias_stands_beside_the_error():
    """The group mean's own output takes one part in G; halves of it stay, and RLOO has none."""
    half = {"half": lambda z: z / 2, "mean": "group-mean", "grpo": "grpo"}
    frame = compare("ustat:skewed", half, [2, 5])
    result = frame.pivot(index="estimator", columns="group_size", values="bias")
    np.testing.assert_allclose(result.loc["half"], 0.5, rtol=1e-12)
    np.testing.assert_allclose(result.loc["mean"], [1 / 2, 1 / 5], rtol=1e-12)
    np.testing.assert_array_equal(result.loc["grpo"], 0.0)


def test_the_bias_of_a_function_of_the_minibatch_is_that_of_its_prompts_together():
    problem = random_problem(3, "linear", contexts=2)
    frame = compare(problem, [whole_minibatch], 2, batch_size=2, layout="minibatch")
    row, gradient = frame.iloc[0], problem.gradient()
    mine = Estimator("mine", function=lambda z, draws: z - z.mean(axis=(-2, -1), keepdims=True))
    off = np.linalg.norm(enumerate_mean(problem, mine, 2, 2) - gradient) / np.linalg.norm(gradient)
    assert row["bias"] == pytest.approx(off, rel=1e-9)
    assert row["bias"] == pytest.approx(1 / 4, rel=1e-9)
    # Too many to enumerate together, and of one prompt alone it is another function.
    drawn = compare(
        problem, [whole_minibatch], 2, batch_size=8, layout="minibatch", replications=100
    ).iloc[0]
    assert drawn["kind"] == "simulation"
    assert np.isnan(drawn["bias"])


def test_ranks_are_those_of_errors_at_each_group_size():
    mine = {"grpo": "grpo", "again": rloo, "half": half, "vanilla": "vanilla"}
    frame = compare(EXAMPLE, mine, [2, 4])
    for _, rows in frame.groupby("group_size"):
        by_error = rows.sort_values("mse")
        assert by_error["rank"].is_monotonic_increasing
        ranks = rows.set_index("estimator")["rank"]
        assert ranks["grpo"] == ranks["again"]
        assert ranks.min() == 1


@pytest.mark.parametrize("size", [2, 3])
def test_schemes_over_turns_are_compared(size, capsys):
    frame = compare_turns("ustat:weather", size)
    problem = load_episodes("ustat:weather")
    for row in frame.itertuples():
        found = enumerate_turns(problem, row.scheme, size)
        assert row.mse == pytest.approx(found.mse, rel=1e-12)
        length = np.linalg.norm(problem.gradient())
        assert row.bias == pytest.approx(found.squared_bias**0.5 / length, abs=1e-10)
    assert frame.set_index("scheme").multiple["episode-mean"] == pytest.approx((size - 1) / size)
    words = ["predict", "ustat:weather", "--group-size", str(size)]
    assert main(words) == 0
    assert "summed: it climbs the sum over turns of the mean reward" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["mse"] for row in rows] == pytest.approx(frame.mse.tolist())
    assert main([*words, "--estimator", "std"]) == 2
    assert "compares schemes on a problem with turns" in capsys.readouterr().err


def test_a_problem_with_turns_is_sent_to_its_own_reader():
    refuses("use load_episodes", load_problem, "ustat:tool")
    refuses("it must be a problem with turns", load_episodes, 3)
    many = compare_turns("ustat:walk", 64, ["episode"])
    assert np.isnan(many.mse[0])
    assert many.bias[0] == 0
