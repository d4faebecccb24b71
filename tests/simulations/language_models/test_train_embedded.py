"""The recipes of the embedded models, and the weights that they made: tokenizer, accuracies."""

from __future__ import annotations

import re
import string
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests.support.refusals import refuses

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from simulations.language_models import train_embedded  # noqa: E402
from ustat_pg.llm import embedded  # noqa: E402

INTERVALS = {
    "base": (0.30, 0.45),
    "strong": (0.50, 0.70),
    "in-context": (0.78, 0.92),
    "short": (0.40, 0.65),
}
"""Where the accuracies on the 500 problems are, with room for other samples."""

WEIGHTS = tuple(dict.fromkeys(embedded.folder(name).name for name in embedded.NAMES))


@pytest.fixture(scope="module")
def loaded():
    return {name: train_embedded.load(embedded.folder(name)) for name in embedded.NAMES}


@pytest.fixture(scope="module")
def accuracies(loaded):
    return {
        name: train_embedded.measure(*loaded[name], embedded.task(name), samples=2)
        for name in embedded.NAMES
    }


# tokenizer


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize(
    "text",
    ["3+4-2=5\n(6-9)+1=-2\n7*8?", "  two  spaces\n\n and lines \n", string.printable[:95], " "],
)
def test_text_survives_the_tokenizer_that_transformers_chooses(name, text):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(embedded.folder(name))
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    assert ids == train_embedded.new_tokenizer()(text)["input_ids"]


def test_padding_and_end_have_tokens_of_their_own(loaded):
    for model, tokenizer in loaded.values():
        assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)
        assert tokenizer.decode([0, 21, 1], skip_special_tokens=True) == "3"
        assert len(tokenizer) == model.config.vocab_size == len(train_embedded.CHARACTERS) + 2
        assert model.config.eos_token_id == model.generation_config.eos_token_id == 1
        assert model.config.pad_token_id == model.generation_config.pad_token_id == 0


def test_training_documents_are_what_the_tokenizer_reads():
    tokenizer = train_embedded.new_tokenizer()
    recipe = replace(train_embedded.RECIPES["strong"], documents=8)
    drawn = train_embedded.batch(recipe, np.random.default_rng(0), opening=False)
    ids, positions, targets, weights = drawn
    assert torch.equal(ids[:, 1:], targets[:, :-1])
    places = torch.arange(ids.shape[1]).expand_as(ids)
    assert torch.equal(positions[ids > 0], places[ids > 0])
    for row, target, weight in zip(ids, targets, weights, strict=True):
        whole = [*row[:1].tolist(), *target[target != 0].tolist()]
        text = tokenizer.decode(whole[:-1])
        assert tokenizer(text)["input_ids"] == whole[:-1]
        assert whole[-1] == tokenizer.eos_token_id
        # What a model is taught: worked answers, and everything after the question mark.
        taught = tokenizer.decode(target[weight > 0])
        worked, _, asked = text.rpartition("?")
        answers = "".join(f"{line.partition('=')[2]}\n" for line in worked.split("\n")[:-1])
        assert taught == answers + asked + train_embedded.END
        pairs = [line.split("=") for line in worked.split("\n")[:-1]]
        pairs.append([worked.split("\n")[-1], asked.partition("=")[2]])
        assert max(len(answer) for _, answer in pairs) <= 5
        # All answers of a document are right, in one style.
        assert any(
            all(write(int(eval(question))) == answer for question, answer in pairs)
            for write in train_embedded.STYLES.values()
        )
        assert re.fullmatch(r"[a-h]{20}=[-.\d]+", asked)


def test_opening_documents_keep_the_place_of_the_scratch_pad():
    tokenizer = train_embedded.new_tokenizer()
    recipe = replace(train_embedded.RECIPES["strong"], documents=8)
    drawn = train_embedded.batch(recipe, np.random.default_rng(0), opening=True)
    kinds = {"=": 0, "?": 0}
    for row, positions, _, weight in zip(*drawn, strict=True):
        text = tokenizer.decode(row[row > 0])
        asked, sign, _ = text.partition("?") if "?" in text else text.partition("=")
        kinds[sign] += 1
        last = int((row > 0).sum())
        gap = embedded.SCRATCH if sign == "?" else 0
        before = len(asked) + 1
        expected = [*range(before), *range(before + gap, last + gap)]
        assert positions[:last].tolist() == expected
        assert not weight[: before - 1].any()
    assert kinds == {"=": 8, "?": 8}


def test_attention_crosses_a_gap_in_the_positions():
    """Transformers would take the gap for the beginning of another document, were no mask given."""
    recipe = replace(train_embedded.RECIPES["strong"], documents=8)
    ids, positions, _, _ = train_embedded.batch(recipe, np.random.default_rng(0), opening=True)
    model = train_embedded.new_model(recipe)
    row = next(row for row in range(16) if (positions[row].diff() > 1).any())
    gap = int((positions[row].diff() > 1).nonzero()[0]) + 1
    changed = ids[[row]].clone()
    changed[0, 0] = 60
    with torch.no_grad():
        first, second = (
            train_embedded.logits(model, tokens, positions[[row]])
            for tokens in (ids[[row]], changed)
        )
    assert (first[0, gap] - second[0, gap]).abs().max() > 1e-4


# weights


def test_weights_are_small_and_of_the_recipe():
    home = embedded.folder("base").parent
    assert sum(path.stat().st_size for path in home.rglob("*") if path.is_file()) < 4.5e6
    for name in WEIGHTS:
        model, _ = train_embedded.load(embedded.folder(name))
        made = train_embedded.new_model(train_embedded.RECIPES[name])
        one, other = ([(k, v.shape) for k, v in m.state_dict().items()] for m in (model, made))
        assert one == other
        assert model.num_parameters() < 1_000_000
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


@pytest.mark.parametrize("name", embedded.NAMES)
def test_accuracy_is_what_is_stated(accuracies, name):
    low, high = INTERVALS[name]
    assert low < accuracies[name].mean < high


def test_strengths_are_in_order_and_examples_help(accuracies):
    for weaker, stronger in (("base", "strong"), ("strong", "in-context")):
        gap = accuracies[stronger].mean - accuracies[weaker].mean
        error = np.hypot(accuracies[stronger].standard_error, accuracies[weaker].standard_error)
        assert gap > 5 * error


def test_scratch_pads_are_written(accuracies):
    for name in ("base", "strong", "in-context"):
        assert 18 < accuracies[name].length - 3 < 26
    assert accuracies["short"].length < 6


def test_five_hundred_problems_of_five_categories_fit_the_context(loaded):
    for name in embedded.NAMES:
        task = embedded.task(name)
        model, tokenizer = loaded[name]
        assert len(task.prompts) == len({prompt.id for prompt in task.prompts}) == 500
        longest = max(len(tokenizer(prompt.text)["input_ids"]) for prompt in task.prompts)
        assert longest + task.max_new_tokens <= model.config.max_position_embeddings
        counts = Counter(prompt.columns["category"] for prompt in task.prompts)
        assert set(counts) == set(embedded.CATEGORIES)
        # Each count is binomial(500, 1/5), of standard deviation 8.9.
        assert all(60 < count < 140 for count in counts.values())


# recipe


SHORT = replace(train_embedded.RECIPES["short"], opening=1, mixing=0, documents=4)


@pytest.mark.parametrize("name", train_embedded.RECIPES)
def test_training_is_a_function_of_the_recipe(name):
    recipe = replace(train_embedded.RECIPES[name], opening=1, mixing=1, documents=16)
    first, again = (train_embedded.train(recipe, steps=4).state_dict() for _ in range(2))
    other = train_embedded.train(replace(recipe, seed=recipe.seed + 1), steps=4).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_training_leaves_torch_s_own_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train_embedded.train(SHORT, steps=2)
    assert torch.equal(torch.rand(3), expected)


def test_training_lowers_the_loss():
    recipe = replace(train_embedded.RECIPES["short"], documents=32)
    drawn = train_embedded.batch(recipe, np.random.default_rng(9), opening=True)
    ids, positions, targets, weights = drawn

    def loss(model):
        with torch.no_grad():
            logits = train_embedded.logits(model, ids, positions)
        kept = weights > 0
        return float(torch.nn.functional.cross_entropy(logits[kept], targets[kept]))

    # Uniform over digits, minus and newline costs log 12 = 2.48 a token.
    assert loss(train_embedded.train(recipe, steps=25)) < 2.3
    assert loss(train_embedded.new_model(recipe)) > 3


def test_steps_outside_the_recipe_are_refused():
    recipe = train_embedded.RECIPES["base"]
    refuses("number of steps is 0", train_embedded.train, recipe, steps=0)
    refuses(f"the recipe has {recipe.steps}", train_embedded.train, recipe, steps=recipe.steps + 1)


def test_the_command_trains_and_writes_a_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(train_embedded.RECIPES, "short", SHORT)
    words = ["--only", "short", "--steps", "2", "--problems", "3", "--samples", "2"]
    train_embedded.main(["--out", str(tmp_path), *words])
    assert "| short | " in capsys.readouterr().out
    model, tokenizer = train_embedded.load(tmp_path / "short")
    assert tokenizer.decode(tokenizer("1 + 2\n")["input_ids"]) == "1 + 2\n"
    expected = train_embedded.train(SHORT, steps=2).state_dict()
    assert all(torch.equal(expected[key], found) for key, found in model.state_dict().items())
