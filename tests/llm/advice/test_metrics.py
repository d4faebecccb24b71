"""Advice in Adam's metric, as a user asks for it."""

import json
import math
import re
import shutil

import pytest
import torch

from tests.support.adam import saved
from tests.support.commands import out_of, refusal_of, strict
from ustat_pg.cli import main
from ustat_pg.llm.advice.model_pool import ModelPool
from ustat_pg.llm.models.embedded import folder
from ustat_pg.llm.models.loading import load_model
from ustat_pg.llm.pool.constants import constants
from ustat_pg.llm.pool.scored import ScoredPool
from ustat_pg.validation import InputError

FEW = ("--prompts", "embedded:base", "--limit", "10", "--samples", "8", "--budget", "64")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A folder as a trainer leaves it: the model, and the state of its optimizer."""
    place = tmp_path_factory.mktemp("checkpoint")
    shutil.copytree(folder("base"), place, dirs_exist_ok=True)
    path, _ = saved(load_model("embedded:base").model, place / "optimizer.pt")
    state = torch.load(path)
    for entry in state["state"].values():
        entry["exp_avg_sq"].view(-1)[::20] *= 1e-8
    torch.save(state, path)
    return place


@pytest.fixture(scope="module")
def kept(checkpoint):
    """A folder that ``advise`` has filled in Adam's metric."""
    out = checkpoint / "pool"
    words = ("--model", checkpoint, *FEW, "--metric", "adam", "--out", out)
    assert main(["advise", *map(str, words)]) == 0
    return out


def advice(capsys, *words):
    return out_of(capsys, main, "advise", *words)


def test_the_words(capsys, checkpoint, kept):
    text = advice(capsys, "--scored", kept / "scored.npz", "--budget", "64")
    assert f"metric: Adam's step, P = 1/(√v + ε), v from {checkpoint}\n" in text
    for name in ("adam", "plain", "floored"):
        assert f"\n{name} " in text
    assert re.search(
        r"floored: .* \d\.\d% of coordinates have less; they give \d+% of E‖s‖², ", text
    )
    assert "so the metric is not fixed there: rely on the floored one." in text
    plain = advice(capsys, "--scored", kept / "scored.npz", "--budget", "64", "--metric", "plain")
    assert "metric" not in plain
    floored = ("--scored", kept / "scored.npz", "--budget", "64", "--metric", "floored")
    assert "v of at least a thousandth of its median, v from" in advice(capsys, *floored)
    errors = out_of(capsys, main, "llm", "mse", "--scored", kept / "scored.npz")
    assert "metric: Adam's step" in errors
    assert "floored: with v of at least" in errors


def test_numbers_of_each_metric(capsys, kept):
    """JSON has the constants of each metric, and the advice those of its own."""
    words = ("--scored", kept / "scored.npz", "--budget", "64", "--json")
    own = strict(advice(capsys, *words))
    pool = ScoredPool.load(kept / "scored.npz")
    by_metric = {"adam": pool, **pool.metrics}
    assert own["pool"]["metric"] == "adam"
    assert {row["metric"] for row in own["metrics"]} == {"adam", "plain", "floored"}
    for row in own["metrics"]:
        expected = getattr(constants(by_metric[row["metric"]]), row["name"]).value
        assert row["value"] == (pytest.approx(expected) if math.isfinite(expected) else None)
    assert own["c2"] == pytest.approx(constants(pool).c2.value)
    assert own["small_v"]["coordinates"] == pool.config["metric"]["small_share"]
    for name in ("plain", "floored"):
        other = strict(advice(capsys, *words, "--metric", name))
        assert other["pool"]["metric"] == name
        assert other["c2"] == pytest.approx(constants(pool.metrics[name]).c2.value)
        assert "metrics" not in other


def test_the_plain_numbers_are_those_without_a_metric(capsys, checkpoint, kept):
    """With one seed both sample the same rollouts."""
    without = [line for line in _printed(capsys, "--model", checkpoint, *FEW) if line != "\n"]
    scored = ("--scored", kept / "scored.npz", "--budget", "64", "--metric", "plain")
    assert without == [line for line in _printed(capsys, *scored) if line != "\n"]


def _printed(capsys, *words):
    capsys.readouterr()
    assert main(["advise", *map(str, words)]) == 0
    return capsys.readouterr().out.splitlines()


def test_refusals(capsys, checkpoint, kept, tmp_path):
    def refused(*words):
        return refusal_of(capsys, main, "advise", *words)

    shared = ("--model", "embedded:base", *FEW)
    assert "the plain metric has no optimizer: write --metric adam too" in refused(
        *shared, "--optimizer", checkpoint
    )
    assert "has no state of an optimizer" in refused(*shared, "--metric", "adam")
    assert "metric 'floored' is unknown: choose one of plain, adam" in refused(
        *shared, "--metric", "floored"
    )
    lora = ("--metric", "adam", "--lora", "2")
    assert "which state of Adam: write --optimizer FILE" in refused(*shared, *lora)
    pool = ScoredPool.load(kept / "scored.npz").metrics["plain"].save(tmp_path / "plain.npz")
    assert "metric of this pool 'adam' is unknown: choose one of plain" in refused(
        "--scored", pool, "--budget", "64", "--metric", "adam"
    )


def test_a_pool_needs_a_known_metric():
    with pytest.raises(InputError, match="metric 'sgd' is unknown"):
        ModelPool(model="embedded:base", metric="sgd")
    assert json.dumps(ModelPool(model="embedded:base").metric) == '"plain"'
