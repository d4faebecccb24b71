"""Training of the embedded models, from a fixed seed, on one thread of a CPU.

    python -m simulations.language_models.train_embedded --out DIR [--only NAME] [--steps N]
    python -m simulations.language_models.train_embedded --measure

The first trains the models of :data:`RECIPES` and writes each as a folder in Hugging Face format. The
second samples the shipped models at temperature 1 and prints their accuracies with standard errors.

Every step draws new documents (see :mod:`~ustat_pg.llm.embedded`). First come single questions in
one style, without a scratch-pad but with the positions that it would give to the answer: they teach
the arithmetic at little cost. Then come whole documents, in all styles, with worked examples and
scratch-pads. The loss is the cross-entropy of what a model may be asked to write: answers,
scratch-pad, end token.

Recipes were chosen by sampled accuracies alone. The same machine gives equal weights from equal
seeds; another processor or version of torch rounds differently, and the difference grows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from ustat_pg.llm import embedded
from ustat_pg.llm.prompts import Task
from ustat_pg.validation import InputError, integer

__all__ = [
    "RECIPES",
    "Accuracy",
    "Recipe",
    "batch",
    "measure",
    "new_model",
    "new_tokenizer",
    "train",
]

PAD, END = "<pad>", "<end>"
CONTEXT = 256

CHARACTERS = (*map(chr, range(32, 127)), "\n")
"""What the tokenizer has a token for: printable ASCII and the newline; it drops all else."""

LETTERS = "abcdefgh"
"""The letters of the scratch-pad."""

STYLES: dict[str, Callable[[int], str]] = {
    "normal": str,
    "padded": lambda answer: f"{answer:0{4 if answer < 0 else 3}d}",
    "decimal": lambda answer: f"{answer}.0",
}
"""How the answers of a document are written: 12 as 12, 012 or 12.0; only ``normal`` is rewarded."""


@dataclass(frozen=True)
class Recipe:
    """How a model is made; two runs of one recipe on one machine give equal weights.

    Arguments:
        layers, width, heads, key_heads, feedforward: the shape of the Qwen2 model.
        steps: of AdamW.
        stop: the step whose weights are kept, where that is not the last.
        opening: steps at the start with single questions only, in the first style.
        mixing: steps after the opening in which whole documents replace those of the opening, their
            probability in a step rising from 0 to 1.
        documents: in a step after the opening; an opening step has twice as many.
        scratch: length of the scratch-pad.
        rate: peak of the learning rate, after 50 steps; from there a cosine to a twentieth.
        styles: probabilities of :data:`STYLES` after the opening.
        examples: probabilities of 0, 1, 2, ... worked examples.
        scratch_weight: weight of the scratch-pad's tokens in the loss.
        init: standard deviation of the initial weights.
        seed: of weights and documents.
    """

    layers: int = 2
    width: int = 64
    heads: int = 4
    key_heads: int = 2
    feedforward: int = 192
    steps: int = 2000
    stop: int | None = None
    opening: int = 600
    mixing: int = 600
    documents: int = 64
    scratch: int = embedded.SCRATCH
    rate: float = 4e-3
    styles: tuple[float, ...] = (0.65, 0.175, 0.175)
    examples: tuple[float, ...] = (0.4, 0.15, 0.15, 0.15, 0.15)
    scratch_weight: float = 0.1
    init: float = 0.06
    seed: int = 1


RECIPES: dict[str, Recipe] = {
    "base": Recipe(steps=3200, stop=1600),
    "strong": Recipe(steps=3200, stop=2800),
    "short": Recipe(steps=2000, scratch=0),
}
"""The recipes of the shipped weights: ``base`` is an earlier step of ``strong``, and ``in-context``
is ``strong`` with examples in its prompts."""


def new_tokenizer() -> Qwen2Tokenizer:
    """One token for each of :data:`CHARACTERS`, padding and end tokens.

    A byte-level BPE without merges. ``AutoTokenizer`` makes a byte-level tokenizer of any that lies
    beside a Qwen2 model, so a word-level one would come back without its spaces. Other characters
    have no token and are left out.
    """
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    symbol = bytes_to_unicode()
    vocabulary = {PAD: 0, END: 1}
    for character in CHARACTERS:
        vocabulary[symbol[ord(character)]] = len(vocabulary)
    options: dict[str, Any] = {"unk_token": None, "clean_up_tokenization_spaces": False}
    return Qwen2Tokenizer(
        vocab=vocabulary,
        merges=[],
        eos_token=END,
        pad_token=PAD,
        model_max_length=CONTEXT,
        padding_side="left",
        **options,
    )


_TOKEN = {character: number for number, character in enumerate(CHARACTERS, start=2)}


def new_model(recipe: Recipe) -> Qwen2ForCausalLM:
    """The model of a recipe before its first step, in float32; the head is the embedding."""
    config = Qwen2Config(
        vocab_size=len(_TOKEN) + 2,
        hidden_size=recipe.width,
        intermediate_size=recipe.feedforward,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.key_heads,
        max_position_embeddings=CONTEXT,
        initializer_range=recipe.init,
        tie_word_embeddings=True,
        attention_dropout=0.0,
        use_sliding_window=False,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return Qwen2ForCausalLM(config)


def batch(
    recipe: Recipe, generator: np.random.Generator, *, opening: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Documents of one step: tokens, their positions, targets and weights of the targets.

    Each is (documents, length). All documents of a step have equally many worked examples; those of
    the opening are one example, or one question without examples whose scratch-pad is left out, while
    the positions after it stay what they would be. Questions are never a target.
    """
    number = recipe.documents * (2 if opening else 1)
    examples = 0 if opening else int(generator.choice(len(recipe.examples), p=recipe.examples))
    probabilities = (1.0, 0.0, 0.0) if opening else recipe.styles
    styles = generator.choice(len(probabilities), size=number, p=probabilities)
    names = tuple(STYLES)
    drawn = embedded.draw_questions(generator, number * (examples + 1))
    letters = generator.integers(len(LETTERS), size=(number, recipe.scratch))
    rows: list[tuple[list[int], list[int], list[float]]] = []
    for row in range(number):
        *worked, last = drawn[row * (examples + 1) : (row + 1) * (examples + 1)]
        style = names[styles[row]]
        asked = not (opening and row % 2)
        if not asked:
            worked = [last]
        tokens: list[int] = []
        weights: list[float] = []
        for each in worked:
            answer = STYLES[style](each.answer) + "\n"
            tokens += [_TOKEN[c] for c in f"{each.text}={answer}"]
            weights += [0.0] * (len(each.text) + 1) + [1.0] * len(answer)
        positions = list(range(len(tokens)))
        if asked:
            answer = STYLES[style](last.answer)
            scratch = "".join(LETTERS[i] for i in letters[row])
            if opening:
                scratch = ""
            tokens += [_TOKEN[c] for c in f"{last.text}?{scratch}={answer}"] + [1]
            weights += [0.0] * (len(last.text) + 1) + [recipe.scratch_weight] * len(scratch)
            weights += [1.0] * (len(answer) + 2)
            left = len(last.text) + 1 + len(scratch)
            first = positions[-1] + 1 if positions else 0
            skipped = recipe.scratch - len(scratch)
            positions += range(first, first + left)
            positions += range(first + left + skipped, first + left + skipped + len(answer) + 2)
        rows.append((tokens, positions, weights))
    length = max(len(tokens) for tokens, _, _ in rows)
    ids = torch.zeros((number, length), dtype=torch.long)
    places = torch.zeros((number, length), dtype=torch.long)
    weight = torch.zeros((number, length))
    for row, (tokens, positions, weights) in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        places[row, : len(tokens)] = torch.tensor(positions)
        weight[row, : len(tokens)] = torch.tensor(weights)
    return ids[:, :-1], places[:, :-1], ids[:, 1:], weight[:, 1:]


def logits(model: Any, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Logits of documents padded on the right, (documents, length, vocabulary).

    Arguments:
        model: of transformers.
        tokens, positions: as :func:`batch` gives them; positions may have gaps.
    """
    # Given no mask, transformers takes a gap in the positions for the beginning of another document.
    length = tokens.shape[1]
    causal = torch.ones((1, 1, length, length), dtype=torch.bool).tril()
    found: torch.Tensor = model(
        input_ids=tokens, attention_mask=causal, position_ids=positions, use_cache=False
    ).logits
    return found


def train(recipe: Recipe, steps: int | None = None, report: Any = None) -> Qwen2ForCausalLM:
    """Train a model, and return it in evaluation mode.

    Arguments:
        recipe: what to train.
        steps: stop after so many (the schedule stays that of the recipe), to look at a few only.
        report: called with the step and the model before each step, and after the last.

    Raises:
        InputError: a number of steps below 1 or above the recipe's.
    """
    last = recipe.stop or recipe.steps
    if steps is not None:
        last = integer("number of steps", steps)
        if last > recipe.steps:
            raise InputError(f"number of steps is {steps}: the recipe has {recipe.steps}")
    generator = np.random.Generator(np.random.PCG64(recipe.seed))
    model = new_model(recipe).train()
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    optimiser = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}],
        lr=recipe.rate,
        betas=(0.9, 0.98),
    )
    for step in range(last):
        if report is not None:
            report(step, model)
        for group in optimiser.param_groups:
            group["lr"] = _rate(recipe, step)
        whole = generator.random() * recipe.mixing < step - recipe.opening
        ids, places, targets, weights = batch(recipe, generator, opening=not whole)
        kept = weights > 0
        losses = torch.nn.functional.cross_entropy(
            logits(model, ids, places)[kept], targets[kept], reduction="none"
        )
        loss = (losses * weights[kept]).sum() / weights.sum()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    if report is not None:
        report(last, model)
    return model.eval()


def _rate(recipe: Recipe, step: int, warm: int = 50, least: float = 0.05) -> float:
    if step < warm:
        return recipe.rate * (step + 1) / warm
    share = (step - warm) / max(1, recipe.steps - warm)
    return recipe.rate * (least + (1 - least) * (1 + np.cos(np.pi * share)) / 2)


@dataclass(frozen=True)
class Accuracy:
    """Sampled accuracy of a model on a task.

    Attributes:
        mean: over prompts and samples.
        standard_error: of the mean for these prompts, over samples.
        solved: share of prompts with every sample right, and ``unsolved`` with none.
        length: mean number of sampled tokens.
    """

    mean: float
    standard_error: float
    solved: float
    unsolved: float
    length: float


def measure(model: Any, tokenizer: Any, task: Task, samples: int = 8, *, seed: int = 0) -> Accuracy:
    """Sample a task's answers at temperature 1, and the share that its verifier rewards.

    Raises:
        InputError: fewer than two samples a prompt.
    """
    samples = integer("number of samples", samples, 2)
    prompts = [prompt for prompt in task.prompts for _ in range(samples)]
    rewards: list[float] = []
    lengths: list[int] = []
    settings = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=task.max_new_tokens,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        for start in range(0, len(prompts), 1000):
            part = prompts[start : start + 1000]
            inputs = tokenizer(
                [prompt.text for prompt in part],
                return_tensors="pt",
                padding=True,
                padding_side="left",
            )
            written = model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                generation_config=settings,
            )[:, inputs["input_ids"].shape[1] :]
            texts = tokenizer.batch_decode(written, skip_special_tokens=True)
            lengths += (written != tokenizer.pad_token_id).sum(1).tolist()
            columns = {key: [p.columns[key] for p in part] for key in part[0].columns}
            rewards += list(
                task.verifier(prompts=[p.text for p in part], completions=texts, **columns)
            )
    table = np.reshape(np.asarray(rewards, dtype=float), (len(task.prompts), samples))
    rate: NDArray[np.float64] = table.mean(axis=1)
    error = np.sqrt(np.mean(rate * (1 - rate) / (samples - 1)) / len(rate))
    return Accuracy(
        mean=float(rate.mean()),
        standard_error=float(error),
        solved=float(np.mean(rate == 1)),
        unsolved=float(np.mean(rate == 0)),
        length=float(np.mean(lengths)),
    )


def save(model: Qwen2ForCausalLM, path: Path) -> None:
    """Write weights, configurations and the tokenizer to a folder in Hugging Face format."""
    model.generation_config = GenerationConfig(
        do_sample=True, eos_token_id=1, pad_token_id=0, temperature=1.0, top_k=0, top_p=1.0
    )
    model.save_pretrained(path)
    new_tokenizer().save_pretrained(path)


def load(path: Path) -> tuple[Any, Any]:
    """The model and the tokenizer of a folder, as transformers' own automatic classes load them."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(path, local_files_only=True).eval()
    return model, AutoTokenizer.from_pretrained(path, local_files_only=True)


def table(folders: dict[str, Path], problems: int = 500, samples: int = 8, seed: int = 0) -> str:
    """Accuracies of models, one line each, as Markdown.

    Arguments:
        folders: of the weights, by the name of the task.
        problems, samples, seed: of the task, and answers to each of its problems.
    """
    lines = [
        "| model | parameters | accuracy | standard error | always right | never right | tokens |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, path in folders.items():
        model, tokenizer = load(path)
        found = measure(
            model, tokenizer, embedded.task(name, problems=problems), samples, seed=seed
        )
        lines.append(
            f"| {name} | {model.num_parameters():,} | {found.mean:.3f} | {found.standard_error:.4f} "
            f"| {found.solved:.3f} | {found.unsolved:.3f} | {found.length:.1f} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the embedded models, or measure the shipped ones."""
    parser = argparse.ArgumentParser(
        prog="python -m simulations.language_models.train_embedded", description=main.__doc__
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, help="folder to write the trained models to")
    what.add_argument("--measure", action="store_true", help="accuracies of the shipped models")
    parser.add_argument("--only", choices=sorted(RECIPES), help="train this model only")
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    parser.add_argument("--problems", type=int, default=500)
    parser.add_argument("--samples", type=int, default=8, help="answers to each problem")
    given = parser.parse_args(arguments)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        folders = {name: embedded.folder(name) for name in embedded.NAMES}
        if not given.measure:
            made = [given.only] if given.only else list(RECIPES)
            for name in made:
                began = time.process_time()
                save(train(RECIPES[name], given.steps), given.out / name)
                print(f"{name}: {time.process_time() - began:.0f} CPU seconds", flush=True)
            folders = {
                name: given.out / path.name for name, path in folders.items() if path.name in made
            }
        print(table(folders, given.problems, given.samples))
    except InputError as error:
        parser.error(str(error))
    finally:
        torch.set_num_threads(threads)


if __name__ == "__main__":
    main()
