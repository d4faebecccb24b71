"""The commands on language models, as a user gives them."""

import itertools
import json
import math
import re
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from tests.support import commands
from tests.support.commands import strict
from ustat_pg.cli import main
from ustat_pg.llm.models.loading import load_model, machine_device
from ustat_pg.llm.pool import estimates
from ustat_pg.llm.pool.scored import ScoredPool
from ustat_pg.predictions import group_size_advice
from ustat_pg.problems import example_problem

VERIFIER = """
def digits(prompts, completions, **columns):
    return [float(any(c.isdigit() for c in completion)) for completion in completions]

"""
ANSWER = {"g_star_paper", "g_star_exact", "group_size", "g_interval", "table"}
ANSWER |= {"c1", "c2", "c3", "gradient_sq", "k_crit"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Prompts and a verifier."""
    folder = tmp_path_factory.mktemp("commands")
    prompts = ({"prompt": f"{a}+{b}="} for a in (1, 2) for b in (3, 4))
    commands.jsonl(folder / "prompts.jsonl", *prompts)
    (folder / "verifier.py").write_text(VERIFIER)
    return folder


@pytest.fixture(scope="module")
def model(place, tiny_folder):
    """The words that say which model, prompts and rollouts."""
    prompts, verifier = place / "prompts.jsonl", place / "verifier.py"
    return (
        "--model", str(tiny_folder), "--prompts", str(prompts), "--verifier", f"{verifier}:digits",
        "--max-new-tokens", "4", "--samples", "8",
    )  # fmt: skip


@pytest.fixture(scope="module")
def kept(place, model):
    """A folder that ``llm mse`` has filled."""
    folder = place / "kept"
    assert main(["llm", "mse", *model, "--out", str(folder)]) == 0
    return folder


def out_of(capsys, *words) -> str:
    return commands.out_of(capsys, main, *words)


def refused(capsys, *words) -> str:
    return commands.refusal_of(capsys, main, *words)


# llm mse.


def test_the_table_fits_and_the_folder_holds_what_it_says(capsys, kept, model):
    text = out_of(capsys, "llm", "mse", *model, "--out", kept)
    # The folders are the test's own, and as long as they come.
    told = text.replace(str(kept), "KEPT").replace(model[1], "MODEL")
    assert max(map(len, told.splitlines())) <= 110
    for words in (
        "4 prompts with 8 rollouts each",
        "vanilla",
        "c1",
        "G*, exact",
        "no",
        "Noise over signal",
    ):
        assert words in text
    for name in (
        "rollouts.jsonl",
        "scored.npz",
        "curves.csv",
        "summary.csv",
        "noise_to_signal.csv",
    ):
        assert (kept / name).is_file()
        assert name in text


def test_json_is_strict_and_holds_the_librarys_numbers(capsys, kept, model, rows):
    result = strict(out_of(capsys, "llm", "mse", *model, "--out", kept, "--json"))
    # What the folder holds is not sampled again.
    assert rows == []
    pool = ScoredPool.load(kept / "scored.npz")
    own = estimates.curves(pool, [2, 4, 8], estimates.OF_POOLS)
    errors = [row["mse"] for row in result["curves"]]
    np.testing.assert_allclose(errors, own["mse"], rtol=1e-9, atol=1e-12)
    names = ["grpo", "vanilla", "oracle", "minimum-variance", *estimates.TABLES]
    noise = estimates.noise_to_signal(pool, [2, 4], names)
    assert [row["estimator"] for row in result["noise_to_signal"]] == noise["estimator"].tolist()
    text = [row["noise"] for row in result["noise_to_signal"]]
    np.testing.assert_allclose(text, noise["noise"], rtol=1e-9, atol=1e-12)
    known = estimates.constants(pool)
    by_name = {row["name"]: row["value"] for row in result["constants"]}
    for name in ("c1", "c2", "c3"):
        assert by_name[name] == pytest.approx(getattr(known, name).value)
    assert (result["prompts"], result["rollouts"]) == (4, 8)
    alone = strict(out_of(capsys, "llm", "mse", "--scored", kept / "scored.npz", "--json"))
    assert alone["curves"] == result["curves"]
    facts = {
        "prompts",
        "groups",
        "rollouts",
        "config",
        "on_policy_z",
        "summary",
        "constants",
        "not_known",
        "dominant",
    }
    tables = {
        "curves",
        "frac_reward_zero_std",
        "ordering",
        "noise_to_signal",
        "noise_to_signal_by_length",
    }
    assert set(result) == facts | tables


@pytest.fixture(scope="module")
def stepped(place, tiny_folder):
    """The folder of a policy a step away from the one that drew."""
    import torch

    other = load_model(str(tiny_folder))
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter *= 1.05
    other.model.save_pretrained(place / "stepped")
    other.tokenizer.save_pretrained(place / "stepped")
    return place / "stepped"


def test_rollouts_of_an_older_policy_are_weighted_by_ratio(kept, stepped, tmp_path, capsys):
    words = ["llm", "mse", "--model", stepped, "--rollouts", kept / "rollouts.jsonl"]
    words += ["--group-sizes", "2,4"]
    assert "score them with the model that drew" in refused(capsys, *words)
    words += ["--ratio", "token", "--out", tmp_path]
    result = strict(out_of(capsys, *words, "--clip", "0.1,0.2", "--json"))
    assert result["config"]["token_weights"]["clip_high"] == 0.2
    assert 0 < result["bound_share"] < 1
    k1, _, k3 = (each["value"] for each in result["divergence"])
    assert k3 > 0
    assert k1 != k3
    for name in ("noise_to_signal", "noise_to_signal_by_length"):
        assert {row["group_size"] for row in result[name]} == {2, 4}
        assert (tmp_path / f"{name}.csv").exists()
    text = out_of(capsys, *words, "--truncate", "1.1")
    assert "weights of tokens: ratio token, truncate 1.1" in text
    assert "KL of the older policy to this one" in text
    assert "1/|o|" in text
    text = out_of(capsys, "llm", "mse", "--scored", tmp_path / "scored.npz")
    assert "truncate 1.1" in text
    said = refused(capsys, "advise", "--scored", tmp_path / "scored.npz", "--budget", "8")
    assert "weighted by token" in said


@pytest.mark.parametrize(
    ("words", "prompts"),
    [
        ("--limit 2 --seed 3 --dtype float64 --lora 2 --pad-token <eos> --device cpu", 2),
        ("--parameters *mlp* --parameters *norm* --method loop --memory 64MB --batch 3", 4),
        ("--autocast --group-sizes 2,3", 4),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_option_is_taken(words, prompts, capsys, model):
    result = strict(out_of(capsys, "llm", "mse", *model, *words.split(), "--json"))
    assert result["prompts"] == prompts
    assert all(row["mse"] is None or math.isfinite(row["mse"]) for row in result["curves"])


# group-size.


def test_the_answer_has_the_form_that_bandits_get(capsys, kept, tmp_path):
    problem = tmp_path / "problem.json"
    problem.write_text(json.dumps(example_problem()))
    words = ("--budget", "24", "--json")
    bandit = strict(out_of(capsys, "group-size", problem, *words))
    result = strict(out_of(capsys, "group-size", "--scored", kept / "scored.npz", *words))
    assert set(bandit) == ANSWER
    assert set(bandit) <= set(result)
    assert set(result["table"][0]) == set(bandit["table"][0])
    pool = ScoredPool.load(kept / "scored.npz")
    known = estimates.constants(pool)
    advice = group_size_advice(known.predictions(), 24)
    assert result["group_size_at_estimates"] == advice.group_size
    assert [row["mse"] for row in result["table"]] == [row.mse for row in advice.table]
    # Nothing is known of groups of 12 and 24 from 8 rollouts.
    shares = [row["frac_reward_zero_std"] for row in result["table"]]
    assert (
        shares[:-2]
        == estimates.frac_reward_zero_std(pool, [2, 3, 4, 6, 8])["frac_reward_zero_std"].tolist()
    )
    assert shares[-2:] == [None, None]
    assert 24 % result["group_size"] == 0
    assert result["critic_cost"]["group_size"] == result["group_size"]
    for name in ("c1", "c2", "c3", "signal"):
        json_name = "gradient_sq" if name == "signal" else name
        assert result[json_name] == pytest.approx(getattr(known, name).value)
    assert result["on_policy_z"] == pytest.approx(pool.on_policy_z)
    assert result["pool"]["dtype"] == "float32"


def test_the_advice_is_the_least_worst_case(capsys, tmp_path):
    """Of c1/c3, and what it loses is whatever the constants are within their intervals."""
    rng = np.random.default_rng(5)
    rewards = rng.integers(0, 2, (60, 8)).astype(float)
    scores = rng.normal(size=(60, 8, 3)) * 0.5 + 2 * (2 * rewards[..., None] - 1)
    file = ScoredPool.from_scores(rewards, scores).save(tmp_path / "scored.npz")
    known = estimates.constants(ScoredPool.load(file))
    words = ("advise", "--scored", file, "--budget")
    result = strict(out_of(capsys, *words, "96", "--json"))
    sizes = np.array([row["group_size"] for row in result["table"]])
    worst = np.zeros(len(sizes))
    grids = (np.linspace(*getattr(known, name).interval, 9).clip(0) for name in ("c1", "c2", "c3"))
    for c1, c2, c3 in itertools.product(*grids):
        noise = c1 * sizes + c2 + c3 / (sizes - 1)
        worst = np.maximum(worst, noise / noise.min())
    spread = np.linspace(*((end - 1) ** -2.0 for end in known.g_star.interval), 999)
    noise = spread[:, None] * sizes + known.c2.value / known.c3.value + 1 / (sizes - 1)
    assert (
        result["group_size"]
        == sizes[(noise / noise.min(axis=1, keepdims=True)).max(axis=0).argmin()]
    )
    assert result["worst_ratio"] == pytest.approx(worst[sizes == result["group_size"]][0])
    assert result["ends_known"]
    least = result["c1"] + result["c2"] + 2 * math.sqrt(result["c1"] * result["c3"])
    assert result["k_crit"] == pytest.approx(least / result["gradient_sq"])
    low, high = result["k_crit_interval"]
    assert low < result["k_crit"] < (high or math.inf)
    text = out_of(capsys, *words, "96")
    assert f"Use G = {result['group_size']}: its error is at most" in text
    assert f"num_generations = {result['group_size']}," in text
    assert "Critical budget" in text
    # 97 is prime: its only group is one of all outputs.
    budget, size = strict(out_of(capsys, *words, "97", "--json"))["better_budget"]
    assert budget != 97
    assert budget % size == 0
    assert f"take a budget of {budget} with G = {size}, or" in out_of(capsys, *words, "97")


def test_the_device_is_the_machines(monkeypatch):
    accelerator = "torch.accelerator.current_accelerator"
    for kind, device in ((None, "cpu"), ("cuda", "cuda"), ("mps", "cpu")):
        current = None if kind is None else SimpleNamespace(type=kind)
        monkeypatch.setattr(accelerator, lambda check_available, current=current: current)
        assert machine_device() == device


@pytest.mark.parametrize(
    ("z", "said"), [(0.5, ""), (-5.0, "warning: .* less surprising"), (9.0, "more surprising")]
)
def test_rollouts_of_another_policy_are_doubted_and_refused(capsys, tmp_path, z, said):
    pool = ScoredPool.load(pool_of(tmp_path, TWO))
    each = np.full(pool.rewards.shape, z / math.sqrt(pool.rewards.size))
    given = replace(pool, surprise=each, surprise_variance=np.ones_like(each))
    words = ("llm", "mse", "--scored", given.save(tmp_path / "given.npz"))
    if abs(z) > 8:
        text = refused(capsys, *words)
        assert "z = +9.0, but chance explains at most 8" in text
        assert "--off-policy" in text
        words += ("--off-policy",)
    assert main([str(word) for word in words]) == 0
    caught = capsys.readouterr()
    assert re.search(said, caught.err)
    assert bool(caught.err) == (abs(z) > 4)
    assert f"on-policy test: z = {z:+.1f}" in caught.out
    assert main([str(word) for word in (*words, "--json")]) == 0
    assert json.loads(capsys.readouterr().out)["on_policy_z"] == pytest.approx(z)


TWO = [[1.0, 0.0, 0.0, 1.0]] * 3


@pytest.mark.parametrize(
    ("command", "ignored"),
    [
        ("advise --budget 8 --model m", "--group-by x --reward r"),
        (
            "advise --budget 8 --model m --rollouts r.jsonl",
            "--samples 8 --max-new-tokens 4 --batch 2",
        ),
        (
            "advise --budget 8 --scored s.npz",
            "--verifier a:b --limit 2 --until all --seed 1 --device cpu --dtype x --lora 2 --out o",
        ),
        (
            "advise --budget 8 p.json",
            "--parameters * --method loop --autocast --memory 1GB --off-policy --pad-token x",
        ),
        ("llm mse --model m", "--ratio none --clip 1"),
        ("llm mse --model m --rollouts r.jsonl", "--samples 8"),
        ("llm mse --scored s.npz", "--model m --ratio token --truncate 2"),
    ],
)
def test_options_that_are_not_read_are_refused_by_their_names(command, ignored, capsys):
    flags = ", ".join(word for word in ignored.split() if word.startswith("--"))
    assert f"leave out {flags}, which" in refused(capsys, *command.split(), *ignored.split())


@pytest.mark.parametrize("share", ["5", "1.5", "0", "-1%", "some"])
def test_a_share_above_1_is_written_in_percent(share, capsys):
    words = ("advise", "--budget", "8", "--model", "m", f"--until={share}")
    assert "write all, or a positive share such as 5% or 0.05" in refused(capsys, *words)


def test_graded_rewards_have_no_weights_by_ratio_and_nothing_is_scored(capsys, model, tmp_path):
    row = {"prompt": "1+3=", "completion_ids": [[4, 5]] * 4, "rewards": [0, 0.5, 1, 1]}
    row |= {"prompt_ids": [3], "completions": ["x"] * 4, "log_probs": [[-2.0, -3.0]] * 4}
    file, kept = commands.jsonl(tmp_path / "graded.jsonl", row), tmp_path / "out"
    words = ("llm", "mse", *model[:2], "--rollouts", file, "--out", kept)
    words += ("--ratio", "token")
    assert "take these alone" in refused(capsys, *words)
    assert not list(kept.iterdir())


def test_a_model_and_rollouts_of_ones_own_get_the_advice_of_their_pool(capsys, model, kept, rows):
    words = ("--budget", "16", "--json")
    sampled = strict(out_of(capsys, "group-size", *model, "--until", "all", *words))
    scored = strict(out_of(capsys, "group-size", "--scored", kept / "scored.npz", *words))
    rows.clear()
    own = (*model[:6], "--rollouts", kept / "rollouts.jsonl")
    rolled = strict(out_of(capsys, "group-size", *own, *words))
    assert sampled["table"] == scored["table"] == rolled["table"]
    assert rows == []


@pytest.mark.parametrize(
    ("rows", "rate"),
    [
        ([[-1, 1, 1, -1], [-1] * 4], 0.25),
        ([[2.5] * 4, [2.5] * 4], 1.0),
        ([[-1] * 4, [-1] * 4], 0.0),
        ([[0, 0.5, 1, 0], [0] * 4], None),
    ],
)
def test_two_values_are_failure_and_success_whatever_they_are(capsys, tmp_path, rows, rate):
    file = commands.jsonl(tmp_path / "rewards.jsonl", *({"rewards": row} for row in rows))
    result = strict(out_of(capsys, "rewards", file, "--json"))
    assert result["pass_rate"] == rate
    assert result["mean_reward"] == pytest.approx(np.mean(rows))
    words = ("explain", "trl", "num_generations=4", "--rollouts", file)
    if rate is None:
        assert result["pass_rates"] is None
        assert "rewards have 3 values, 0 to 1: a pass rate needs two" in refused(capsys, *words)
    else:
        rates = strict(out_of(capsys, *words, "--json"))["pass_rates"]
        assert np.mean(rates) == pytest.approx(rate)


def test_rewards_alone_say_what_is_missing(capsys, tmp_path):
    rewards = [[1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]]
    file = commands.jsonl(tmp_path / "rewards.jsonl", *({"rewards": row} for row in rewards))
    words = ("rewards", file, "--group-sizes", "2,4,8")
    text = out_of(capsys, *words)
    assert "Advice on a group size needs the scores" in text
    assert "at most the share at 4" in text
    result = strict(out_of(capsys, *words, "--json"))
    parts = [result[name] for name in ("pass_rate", "all_lowest", "all_highest")]
    assert parts == pytest.approx([5 / 12, 1 / 3, 1 / 3])
    shares = {
        row["group_size"]: row["frac_reward_zero_std"] for row in result["frac_reward_zero_std"]
    }
    assert (shares[2], shares[4]) == pytest.approx(((0.5 + 1 + 1) / 3, (0 + 1 + 1) / 3))
    assert shares[8] is None
    table = pd.read_csv(StringIO(out_of(capsys, "rewards", file, "--csv")))
    assert table["group_size"].tolist() == [2, 4]
    assert "group size is 1" in refused(capsys, "rewards", file, "--group-sizes", "1")
    assert not ANSWER & set(result)


# Refusals.


@pytest.fixture
def spelled(model, kept, tiny_folder):
    """A command's words, its places in capitals replaced by those of the test."""
    names = {
        "MODEL": (tiny_folder,),
        "POOL": (kept / "scored.npz",),
        "ALL": model,
        "MODEL_ALONE": model[:6],
    }
    return lambda words: [each for word in words for each in names.get(word, (word,))]


MSE, ADVICE = ("llm", "mse"), ("group-size",)
RATIO = ("MODEL_ALONE", "--rollouts", "a.jsonl", "--ratio", "token")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*MSE, "--model", "MODEL"), "which prompts: write --prompts PROMPTS"),
        ((*MSE, "--scored", "POOL", "--model", "MODEL"), "--scored does not need a model"),
        ((*MSE, "--scored", "no.npz"), "no.npz: No such file"),
        ((*MSE, "MODEL_ALONE", "--rollouts", "no.jsonl"), "no.jsonl"),
        ((*MSE, "ALL", "--max-new-tokens", "300"), "more than the context"),
        ((*MSE, "ALL", "--group-sizes", "1,2"), "group size is 1"),
        ((*MSE, "ALL", "--shots", "2"), "shots are for tasks reasoning-gym:NAME"),
        ((*MSE, "ALL", "--memory", "100KB"), "memory is 100000 bytes"),
        ((*MSE, *RATIO[:-2], "--clip", "0.2"), "without --ratio: leave out --clip"),
        ((*ADVICE, "p.json", "--model", "m", "--budget", "16"), "a PROBLEM"),
        ((*ADVICE, "ALL", "--budget", "1"), "budget is"),
        ((*ADVICE, "ALL", "--budget", "1000000000"), "at most 1,000,000"),
        ((*ADVICE, "ALL", "--budget", "16", "--prompt-cost", "nan"), "prompt cost holds nan"),
        (
            (*MSE, "ALL", "--samples", "1000000000"),
            "4,000,000,000 completions take at least 640 GB",
        ),
        ((*MSE, "ALL", "--lora", "9" * 300), "File name too long"),
    ],
)
def test_impossible_questions_are_refused_before_anything_is_sampled(
    words, message, capsys, spelled, rows
):
    assert message in refused(capsys, *spelled(words))
    assert rows == []


@pytest.mark.parametrize(
    "words",
    ["llm", "llm mse --group-sizes two", "llm mse --memory much", "llm mse --method guess",
     "llm sweep --config table2", "group-size --model embedded:short",
     "advise --budget 16", "advise --rollouts a.jsonl --budget 16", "llm mse --prompts gsm8k"],
)  # fmt: skip
def test_usage_errors(words, capsys):
    assert "; see ustat-pg " in refused(capsys, *words.split())


def pool_of(folder, rewards, scale=1.0):
    """The file of a pool of these rewards and of random scores."""
    scores = scale * np.random.default_rng(0).normal(size=(*np.shape(rewards), 3))
    return ScoredPool.from_scores(rewards, scores).save(folder / "scored.npz")


def test_without_a_signal_there_is_no_advice(capsys, tmp_path):
    file = pool_of(tmp_path, np.repeat([[1.0], [0.0], [1.0]], 8, axis=1))
    text = refused(capsys, "group-size", "--scored", file, "--budget", "64")
    assert "no group of this pool has a signal" in text
    assert "tie above" not in out_of(capsys, "llm", "mse", "--scored", file)
