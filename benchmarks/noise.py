"""The cost of the monitor of the gradient's noise: steps of one training, with it and without in turns.

    python -m benchmarks.noise                    a random model of 27 million parameters; 10 min on one core
    python -m benchmarks.noise --model FOLDER     a model of yours
    python -m benchmarks.noise --both             both metrics against the plain one alone
    python -m benchmarks.noise --order            how far its order of outputs moves weights; 1 min

Two steps make a pair, and pairs begin with the one and with the other in turns, so that what else the
machine does falls on both alike. Times are processor seconds of whole steps, generation included; all
completions have the same length. The interval is that of the mean over pairs.
"""

from __future__ import annotations

import argparse
import os
import string
import tempfile
import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from statsmodels.stats.weightstats import DescrStatsW
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.nn.utils import parameters_to_vector
from transformers import (
    PreTrainedTokenizerFast,
    PrinterCallback,
    Qwen2Config,
    Qwen2ForCausalLM,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from ustat_pg.llm import NoiseMonitor
from ustat_pg.llm.models.loading import LanguageModel, load_model
from ustat_pg.llm.prompts import Prompt, Task
from ustat_pg.llm.tasks.named import load_task
from ustat_pg.llm.trl.training import PLAIN, dataset
from ustat_pg.noise import meter

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
    return [float(text[:1].islower()) for text in completions]


class InTurns(TrainerCallback):
    """Processor seconds of each step; a monitor sees the steps of ``watched`` alone, and another the rest."""

    def __init__(
        self, monitor: NoiseMonitor, watched: Sequence[bool], other: NoiseMonitor | None = None
    ) -> None:
        self.monitors, self.watched = {True: monitor, False: other}, watched
        self.seconds: list[float] = []
        self.monitor: NoiseMonitor | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Switch, which no training does and is not counted."""
        if self.monitor is not None:
            self.monitor.on_train_end(args, state, control)
        self.monitor = self.monitors[self.watched[state.global_step]]
        if self.monitor is not None:
            self.monitor.on_train_begin(args, state, control, **given)
        self.since = time.process_time()

    def on_substep_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self.monitor is not None:
            self.monitor.on_substep_end(args, state, control)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self.monitor is not None:
            self.monitor.on_pre_optimizer_step(args, state, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """The monitor's work at the end of a step is the step's."""
        measuring = None if self.monitor is None else self.monitor._meter
        if measuring is not None:
            measuring.metrics()
        self.seconds.append(time.process_time() - self.since)


def seconds(
    model: LanguageModel,
    watched: Sequence[bool],
    tokens: int,
    monitor: NoiseMonitor,
    other: NoiseMonitor | None = None,
) -> list[float]:
    prompts = tuple(
        Prompt(str(i), "".join(np.random.default_rng(i).choice([*string.ascii_letters], PROMPT)))
        for i in range(MICRO_BATCH * MICRO_BATCHES // GROUP)
    )
    task = Task("letters", prompts, vowels, tokens)
    settings = {
        **PLAIN, "optim": "adamw_torch", "eval_strategy": "no", "eval_on_start": False, "use_cpu": True,
        "num_generations": GROUP, "per_device_train_batch_size": MICRO_BATCH,
        "gradient_accumulation_steps": MICRO_BATCHES, "max_steps": len(watched),
        "learning_rate": 1e-9, "max_completion_length": tokens,
        "generation_kwargs": {"min_new_tokens": tokens},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trainer = RLOOTrainer(
            model.model,
            task.verifier,
            RLOOConfig(folder, **settings),
            dataset(task),
            processing_class=model.tokenizer,
        )
        trainer.remove_callback(PrinterCallback)
        clock = InTurns(monitor, watched, other)
        trainer.add_callback(clock)
        trainer.train()
    return clock.seconds


def weights(bf16: bool, callbacks: list[TrainerCallback], steps: int = 8) -> list[torch.Tensor]:
    """Weights of the embedded model short after some steps of SGD, all in one, and before them."""
    model, task = load_model("embedded:short"), load_task("embedded:short", limit=40)
    before = parameters_to_vector(model.model.parameters()).detach().double()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            folder, optim="sgd", learning_rate=0.01, max_steps=steps, num_generations=4,
            per_device_train_batch_size=4, gradient_accumulation_steps=8, bf16=bf16, use_cpu=True,
            max_completion_length=task.max_new_tokens, save_strategy="no", report_to=[],
            gradient_checkpointing=False, disable_tqdm=True,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model.model, task.verifier, settings, dataset(task),
            processing_class=model.tokenizer, callbacks=callbacks,
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return [parameters_to_vector(trainer.model.parameters()).detach().double(), before]


def order() -> None:
    """Print how far weights with the monitor are from those without it, over what these moved."""
    for bf16 in (True, False):
        (alone, before), (with_it, _) = weights(bf16, []), weights(bf16, [NoiseMonitor(4)])
        apart = float((with_it - alone).norm() / (alone - before).norm())
        print(f"{'bf16 autocast' if bf16 else 'float32'}: {apart:.2g} of the update after 8 steps")


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--per-completion", action="store_true")
    parser.add_argument("--detail", action="store_true")
    parser.add_argument("--model", metavar="FOLDER", help="in place of the random one")
    parser.add_argument("--both", action="store_true")
    parser.add_argument("--order", action="store_true")
    arguments = parser.parse_args(given)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if arguments.order:
        order()
        return
    model = load_model(arguments.model) if arguments.model else language_model()
    count = sum(p.numel() for p in model.model.parameters())
    batches = f"{MICRO_BATCHES} micro-batches of {MICRO_BATCH} completions"
    print(f"{count:,} parameters, {batches}, {arguments.tokens} tokens after a prompt of {PROMPT}")
    # The monitor estimates from its second step on; two pairs before are left out.
    pairs = [(True, False), (False, True)] * (arguments.pairs // 2 + 1)
    watched = [step for pair in pairs for step in pair]
    settings = {"detail": arguments.detail, "per_completion": arguments.per_completion}
    # Adam's metric is measured from its second step on, and not from the 23rd.
    meter._SEEN = 1
    monitor, other = NoiseMonitor(10, **settings), None
    if arguments.both:
        other = NoiseMonitor(10, metric="euclidean", **settings)
    times = np.array(seconds(model, watched, arguments.tokens, monitor, other))
    times = times.reshape(-1, 2)[2:]
    in_adam = 0 if monitor.adam is None else monitor.adam.steps
    print(f"steps of the window in Adam's metric: {in_adam}")
    turned = np.array([pair[0] for pair in pairs])[2:, None]
    times = np.where(turned, times, times[:, ::-1])
    with_it, without = np.median(times, axis=0)
    print(f"seconds a step, medians: {with_it:.3f} with, {without:.3f} without")
    ratios = DescrStatsW(times[:, 0] / times[:, 1])
    low, high = ratios.tconfint_mean()
    print(f"ratio of medians {with_it / without:.4f}, mean of {len(times)} ratios of pairs "
          f"{ratios.mean:.4f} [{low:.4f}, {high:.4f}]; load {os.getloadavg()[0]:.1f}")  # fmt: skip


if __name__ == "__main__":
    main()
