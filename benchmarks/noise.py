"""What the monitor of the gradient's noise costs: steps of one training with and without it, in turns.

    python -m benchmarks.noise            a model of 25 million parameters; 10 min on one core

Both trainers have the same model, seed and completions. Times are processor seconds of whole steps,
generation included; the ratio is that of their medians, and its interval that of the paired ratios.
"""

from __future__ import annotations

import argparse
import string
import tempfile
import time
import warnings
from typing import Any

import numpy as np
import torch
from statsmodels.stats.weightstats import DescrStatsW
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    PrinterCallback,
    Qwen2Config,
    Qwen2ForCausalLM,
    TrainerCallback,
)

from ustat_pg.llm import NoiseMonitor
from ustat_pg.llm.models import LanguageModel
from ustat_pg.llm.prompts import Prompt, Task
from ustat_pg.llm.trainers import build_trainer
from ustat_pg.llm.training import Training

PROMPT, GROUP, MICRO_BATCH, MICRO_BATCHES = 32, 8, 8, 2


def language_model() -> LanguageModel:
    """A random Qwen2 of 25 million parameters, 8 layers of 512, over characters."""
    symbols = ["<pad>", "<eos>", *string.ascii_letters, *string.digits]
    characters = Tokenizer(models.BPE({s: i for i, s in enumerate(symbols)}, merges=[]))
    characters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    characters.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=characters, pad_token="<pad>", eos_token="<eos>"
    )
    torch.manual_seed(0)
    made = Qwen2Config(
        vocab_size=len(symbols), hidden_size=512, intermediate_size=1536, num_hidden_layers=8,
        num_attention_heads=8, num_key_value_heads=8, tie_word_embeddings=True,
        pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    return LanguageModel(Qwen2ForCausalLM(made).eval(), tokenizer, "random", "cpu", 4096)


def vowels(*, completions: list[str], **_: Any) -> list[float]:
    """Whether a completion begins with a small letter."""
    return [float(text[:1].islower()) for text in completions]


class Steps(TrainerCallback):
    """Processor seconds of each step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.since = time.process_time()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(time.process_time() - self.since)


def steps(model: LanguageModel, watched: bool, count: int, tokens: int, seed: int) -> list[float]:
    """Seconds of the steps of one training, the first left out."""
    prompts = tuple(
        Prompt(str(i), "".join(np.random.default_rng(i).choice([*string.ascii_letters], PROMPT)))
        for i in range(MICRO_BATCH * MICRO_BATCHES // GROUP)
    )
    task, clock = Task("letters", prompts, vowels, tokens), Steps()
    training = Training(
        GROUP, MICRO_BATCH * MICRO_BATCHES, count + 1, 1e-9, micro_batch=MICRO_BATCH,
        max_new_tokens=tokens, seed=seed,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trainer = build_trainer(training, model, task, folder)
        trainer.remove_callback(PrinterCallback)
        if watched:
            NoiseMonitor(10, blocks=2).watch(trainer)
        # Behind the monitor, whose work at the end of a step is the step's.
        trainer.add_callback(clock)
        trainer.train()
    return clock.seconds[1:]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=32)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    model = language_model()
    count = sum(p.numel() for p in model.model.parameters())
    batches = f"{MICRO_BATCHES} micro-batches of {MICRO_BATCH} completions"
    print(f"{count:,} parameters, {batches}, {arguments.tokens} tokens after a prompt of {PROMPT}")
    with_it, without = [], []
    for turn in range(arguments.rounds):
        order = (True, False) if turn % 2 else (False, True)
        for watched in order:
            found = steps(model, watched, arguments.steps, arguments.tokens, turn)
            (with_it if watched else without).extend(found)
    ratios = np.array(with_it) / np.array(without)
    low, high = DescrStatsW(ratios).tconfint_mean()
    print(
        f"seconds a step, medians: {np.median(with_it):.2f} with, {np.median(without):.2f} without"
    )
    print(f"ratio of medians {np.median(with_it) / np.median(without):.4f}, "
          f"mean of {len(ratios)} paired ratios {ratios.mean():.4f} [{low:.4f}, {high:.4f}]")  # fmt: skip


if __name__ == "__main__":
    main()
