"""Scores of completions on a CUDA device: ``python -m benchmarks.device_scores [--quick]``.

Models in Qwen2's form with random weights, 16 completions a prompt, and norms and sketches of all scores.
A plain forward and backward pass of the same tokens is timed beside them, in turn. On the first call Scores
compares its hooks with one backward pass per completion, and stops if they differ. At most four minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.measuring import in_turn, machine, options_of, show

WIDTHS: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 300,
        "tie_word_embeddings": True,
    },
    "0.5B": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
    },
    "7.6B": {
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152_064,
        "tie_word_embeddings": False,
    },
}
"""Configurations of models by name."""

CASES = [
    ("0.5B", "float32", 64),
    ("0.5B", "bfloat16", 64),
    ("0.5B", "bfloat16", 512),
    ("7.6B", "bfloat16", 64),
    ("7.6B", "bfloat16", 512),
]
"""Models, their precision, and the tokens of a completion."""

PROMPT, COMPLETIONS, PROMPTS = 24, 16, 2


def model_of(size: str, precision: str, device: str) -> Any:
    """A model with random weights."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    torch.manual_seed(0)
    config = Qwen2Config(**WIDTHS[size], max_position_embeddings=4096)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, precision))
    return model.eval()


def programs_of(model: Any, tokens: int) -> list[Any]:
    """Scores of some prompts' completions, and a plain pass of the same tokens."""
    import torch

    from ustat_pg.llm.scores import Asked, Scores

    draw = partial(np.random.default_rng(0).integers, 1, model.config.vocab_size)
    asked = [
        Asked(draw(size=PROMPT).tolist(), draw(size=(COMPLETIONS, tokens)).tolist())
        for _ in range(PROMPTS)
    ]
    scores = Scores(model)

    def wait() -> None:
        if model.device.type == "cuda":
            torch.cuda.synchronize()

    def ours() -> None:
        for _ in scores.many(asked):
            pass
        wait()

    def plain() -> None:
        for one in asked:
            rows = [[*one.prompt_ids, *completion] for completion in one.completion_ids]
            ids = torch.tensor(rows, device=model.device)
            model(input_ids=ids, labels=ids).loss.backward()
            model.zero_grad()
        wait()

    return [ours, plain]


def rows(cases: Sequence[tuple[str, str, int]], rounds: int) -> list[list[str]]:
    """Seconds a prompt, how many times those of the plain pass they are, and the memory."""
    import torch

    there = torch.cuda.is_available()
    table = []
    for size, precision, tokens in cases:
        if there:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        programs = programs_of(model_of(size, precision, "cuda" if there else "cpu"), tokens)
        for program in programs:
            program()
        ours, plain = np.median(in_turn(programs, rounds), axis=0) / PROMPTS
        memory = f"{torch.cuda.max_memory_allocated() / 2**30:.1f}" if there else "-"
        table.append(
            [f"{size}, {precision}", str(tokens), f"{ours:.4f}", f"{ours / plain:.2f}", memory]
        )
        del programs
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(__doc__, arguments, rounds=3)
    cases, rounds = ([("tiny", "float32", 8)], 1) if options.quick else (CASES, options.rounds)
    header = ["model", "tokens", "s a prompt", "times a plain pass", "GiB"]
    show("Scores on a device", [machine("torch", "transformers")], rows(cases, rounds), header)
    return 0


if __name__ == "__main__":
    sys.exit(main())
