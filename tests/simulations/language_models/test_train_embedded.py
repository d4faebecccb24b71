"""The recipe of the embedded models, and the weights that it made."""

import string
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from simulations.language_models import train_embedded  # noqa: E402
from simulations.language_models.train_embedded import RECIPES  # noqa: E402
from ustat_pg.llm.models import embedded  # noqa: E402
from ustat_pg.llm.models.loading import load_model  # noqa: E402
from ustat_pg.llm.rollouts.stored import sample  # noqa: E402

ACCURACIES = {
    "base": (0.30, 0.45),
    "strong": (0.50, 0.70),
    "in-context": (0.78, 0.92),
    "short": (0.40, 0.65),
}
"""Intervals of the accuracies on the 500 problems, with room for other samples."""


@pytest.mark.parametrize("name", ACCURACIES)
def test_shipped_weights_are_as_accurate_as_stated_and_of_the_recipe(name):
    model = load_model(embedded.folder(name))
    assert (
        model.model.config.to_dict() | {"_name_or_path": ""}
        == train_embedded.new_model(1).config.to_dict()
    )
    text = string.printable[:95] + "\n  3+4\n"
    ids = model.tokenizer(text)["input_ids"]
    assert ids == [train_embedded.TOKENS[character] for character in text]
    assert model.tokenizer.decode(ids) == text
    low, high = ACCURACIES[name]
    result = sample(model, embedded.task(name, problems=200), 4)
    assert low < np.mean([each.rewards for each in result]) < high


def test_the_command_writes_what_the_recipe_trains(tmp_path, monkeypatch):
    recipe = replace(RECIPES["short"], stop=3)
    monkeypatch.setitem(train_embedded.RECIPES, "short", recipe)
    monkeypatch.setattr(train_embedded, "OPENING", 1)
    train_embedded.main(["--out", str(tmp_path), "--only", "short"])
    result, again = load_model(tmp_path / "short").model, train_embedded.train(recipe)
    other = train_embedded.train(replace(recipe, seed=2))
    for name, each in again.named_parameters():
        assert torch.equal(result.get_parameter(name), each)
    assert not torch.equal(other.lm_head.weight, again.lm_head.weight)
