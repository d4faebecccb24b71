"""Training of the embedded models, on one thread of a CPU.

    python -m simulations.language_models.train_embedded --out DIR [--only NAME]

Every step draws new documents (see :mod:`~ustat_pg.llm.models.embedded`). First come single questions in
one style, without a scratch-pad but with the answer's positions as if it were there. They teach
arithmetic at low cost. Then come whole documents, in all styles, with worked examples and
scratch-pads. The loss is the cross-entropy of the tokens that a model may have to write.

The same machine gives equal weights from equal seeds; another machine rounds differently.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, GenerationConfig, Qwen2Config, Qwen2ForCausalLM

from ustat_pg.llm.models import embedded

SHIPPED = embedded.folder("strong")
"""The folder with the shape of all models and their tokenizer."""
END = "<end>"
TOKENS = {
    symbol: number for number, symbol in enumerate((END, *map(chr, range(32, 127)), "\n"), start=1)
}

STYLES: dict[str, Callable[[int], str]] = {
    "normal": str,
    "padded": lambda answer: f"{answer:0{4 if answer < 0 else 3}d}",
    "decimal": lambda answer: f"{answer}.0",
}
"""The styles of the answers in a document: 12 as 12, 012 or 12.0; only ``normal`` is rewarded."""
STYLE_SHARES = (0.65, 0.175, 0.175)
EXAMPLE_SHARES = (0.4, 0.15, 0.15, 0.15, 0.15)
"""Probabilities of 0, 1, 2, ... worked examples."""
LETTERS, SCRATCH_WEIGHT = "abcdefgh", 0.1
"""The letters of the scratch-pad, and their weight in the loss."""

OPENING, MIXING = 600, 600
"""The steps with single questions only, then the steps in which whole documents replace them at random."""
DOCUMENTS = 64
"""Documents in a step after the opening; an opening step has twice as many."""
RATE, WARM_UP = 4e-3, 50
"""The peak of the learning rate and its step; after it the rate falls as a cosine to a twentieth."""


@dataclass(frozen=True)
class Recipe:
    """The steps of the learning rate's schedule, the step of the saved weights, the scratch-pad's length."""

    steps: int
    stop: int
    scratch: int = embedded.SCRATCH
    seed: int = 1


RECIPES = {
    "base": Recipe(steps=3200, stop=1600),
    "strong": Recipe(steps=3200, stop=2800),
    "short": Recipe(steps=2000, stop=2000, scratch=0),
}
"""Recipes of the shipped weights; ``in-context`` is ``strong`` with examples in its prompts."""


def new_model(seed: int) -> Qwen2ForCausalLM:
    config = Qwen2Config.from_pretrained(SHIPPED, dtype="float32")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)


def batch(recipe: Recipe, generator: np.random.Generator, *, opening: bool) -> list[torch.Tensor]:
    """Documents of one step: tokens, their positions, and their weights as targets.

    Each is (documents, length). Documents of the opening alternate between one question, whose scratch-pad
    is omitted while the positions after it keep their values, and one worked example.
    """
    number = DOCUMENTS * (2 if opening else 1)
    count = 0 if opening else int(generator.choice(len(EXAMPLE_SHARES), p=EXAMPLE_SHARES))
    shares = (1.0, 0.0, 0.0) if opening else STYLE_SHARES
    styles = generator.choice(list(STYLES), size=number, p=shares)
    questions = embedded.draw_questions(generator, number * (count + 1))
    letters = generator.choice(list(LETTERS), size=(number, recipe.scratch))
    columns: tuple[list[torch.Tensor], ...] = ([], [], [])
    for row, style in enumerate(styles):
        *examples, last = questions[row * (count + 1) : (row + 1) * (count + 1)]
        answer, questioned = STYLES[style](last.answer), not (opening and row % 2)
        # Symbols, their weight as targets, and the number of positions omitted before them.
        parts: list[tuple[Sequence[str], float, int]] = []
        for example in examples if questioned else [last]:
            parts += [(f"{example.text}=", 0.0, 0), (f"{STYLES[style](example.answer)}\n", 1.0, 0)]
        if questioned:
            scratch, skipped = ((), recipe.scratch) if opening else (letters[row], 0)
            parts += [(f"{last.text}?", 0.0, 0), (scratch, SCRATCH_WEIGHT, 0)]
            parts += [(["=", *answer, END], 1.0, skipped)]
        tokens, positions, weights = list[int](), list[int](), list[float]()
        for symbols, weight, skipped in parts:
            first = (positions[-1] + 1 if positions else 0) + skipped
            tokens += [TOKENS[symbol] for symbol in symbols]
            positions += range(first, first + len(symbols))
            weights += [weight] * len(symbols)
        for column, values in zip(columns, (tokens, positions, weights), strict=True):
            column.append(torch.tensor(values))
    return [pad_sequence(column, batch_first=True) for column in columns]


def logits(model: Qwen2ForCausalLM, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Logits of documents, (documents, length, vocabulary)."""
    # Without a mask, transformers treats a gap in the positions as the start of another document.
    length = tokens.shape[1]
    causal = torch.ones((1, 1, length, length), dtype=torch.bool).tril()
    output: torch.Tensor = model(
        input_ids=tokens, attention_mask=causal, position_ids=positions, use_cache=False
    ).logits
    return output


def train(recipe: Recipe) -> Qwen2ForCausalLM:
    """The trained model of a recipe, in evaluation mode."""
    generator = np.random.Generator(np.random.PCG64(recipe.seed))
    model = new_model(recipe.seed).train()
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.01},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.98))
    for step in range(recipe.stop):
        for group in optimiser.param_groups:
            group["lr"] = _rate(recipe, step)
        whole = generator.random() * MIXING < step - OPENING
        tokens, positions, weights = batch(recipe, generator, opening=not whole)
        targets, weights = tokens[:, 1:], weights[:, 1:]
        kept = weights > 0
        losses = torch.nn.functional.cross_entropy(
            logits(model, tokens[:, :-1], positions[:, :-1])[kept], targets[kept], reduction="none"
        )
        loss = (losses * weights[kept]).sum() / weights.sum()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return model.eval()


def _rate(recipe: Recipe, step: int) -> float:
    if step < WARM_UP:
        return RATE * (step + 1) / WARM_UP
    share = (step - WARM_UP) / (recipe.steps - WARM_UP)
    return RATE * (0.05 + 0.95 * (1 + np.cos(np.pi * share)) / 2)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train the embedded models.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the models to")
    parser.add_argument("--only", choices=RECIPES, help="train this model only")
    options = parser.parse_args(arguments)
    for name in [options.only] if options.only else RECIPES:
        model = train(RECIPES[name])
        model.generation_config = GenerationConfig.from_pretrained(SHIPPED)
        model.save_pretrained(options.out / name)
        AutoTokenizer.from_pretrained(SHIPPED).save_pretrained(options.out / name)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
