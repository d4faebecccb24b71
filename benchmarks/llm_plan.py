"""What scoring takes of a device at real widths, on paper: ``python -m benchmarks.llm_plan``.

No weights are downloaded and no model is whole. Two models of each width, of one and of two layers, go
through the forward pass in bfloat16 on this CPU, and the bytes that a completion holds until its
backward pass are counted, tensor by tensor; the difference is a layer's, and what a vocabulary entry
adds is told by a third. The plan is then the planner's own, for a device whose memory, less the
weights, is free. Blocks never meet: every completion goes through the model once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from tabulate import tabulate

from benchmarks.ustatistics import machine
from ustat_pg.llm.scores import SKETCH, Scores
from ustat_pg.llm.scores.room import blocks

PROMPT = 150
DEVICE = 80 * 10**9
SUMS = 2
"""Of rewards 0 and 1."""


@dataclass(frozen=True)
class Width:
    """A Qwen2 model's shape."""

    hidden: int
    inner: int
    layers: int
    heads: int
    groups: int
    vocabulary: int
    tied: bool

    def model(self) -> Any:
        """In bfloat16, its weights zeros: what a pass holds does not depend on them."""
        from transformers import Qwen2Config, Qwen2ForCausalLM

        config = Qwen2Config(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.inner,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.groups,
            max_position_embeddings=4096,
            tie_word_embeddings=self.tied,
        )
        with torch.device("meta"):
            model = Qwen2ForCausalLM(config).to(torch.bfloat16).eval()
        model = model.to_empty(device="cpu")
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data.zero_()
        return model

    def parameters(self) -> int:
        """How many the whole model has."""
        layer = replace(self, layers=1, vocabulary=8)
        one, two = (
            sum(p.numel() for p in w.model().parameters())
            for w in (layer, replace(layer, layers=2))
        )
        symbols = (1 if self.tied else 2) * self.hidden * (self.vocabulary - 8)
        return one + (two - one) * (self.layers - 1) + symbols


WIDTHS = {
    "Qwen2.5-0.5B": Width(896, 4864, 24, 14, 2, 151_936, True),
    "Qwen2.5-1.5B": Width(1536, 8960, 28, 12, 2, 151_936, True),
    "Qwen2.5-7B": Width(3584, 18944, 28, 28, 4, 152_064, False),
}
TINY = {"tiny": Width(32, 64, 3, 2, 1, 500, True)}


def bytes_of(width: Width, length: int) -> int:
    """Bytes that a completion of so many tokens holds."""
    scores = Scores(width.model(), memory=2**40)
    # Weights that are zeros have nothing to check.
    scores._checked = True
    scores.require(PROMPT, length)
    (found,) = scores.room.found.values()
    return found


def row(name: str, width: Width, length: int, device: int, count: int) -> list[object]:
    """One line of the table.

    Raises:
        SystemExit: no completion fits.
    """
    few = replace(width, layers=1, vocabulary=256)
    one = bytes_of(few, length)
    layer = bytes_of(replace(few, layers=2), length) - one
    symbol = (bytes_of(replace(few, vocabulary=512), length) - one) / 256
    each = int(one + layer * (width.layers - 1) + symbol * (width.vocabulary - 256))
    d = width.parameters()
    # As Scores: four fifths of what is free, of which an eighth is for one layer's scores.
    room = int(0.8 * (device - 2 * d) * 7 / 8)
    fit, table, _ = blocks(room, each, 4 * SUMS, d, SKETCH)
    if not fit:
        raise SystemExit(f"{name}: a completion of {each} bytes does not fit beside its sums")
    sums = "whole" if table is None else f"{table * SKETCH:.2g} numbers"
    held = 4 * SUMS * (d if table is None else table * SKETCH)
    passes = -(-count // min(fit, count))
    # Gradients of vmap are as many as completions, each as large as the weights; a loop holds one.
    by_vmap = int(0.8 * (device - 2 * d)) // (each + 2 * d)
    return [
        name, f"{d / 1e9:.2f}", f"{layer / 1e6:.0f}", f"{each / 1e9:.2f}", f"{2 * d / 1e9:.1f}",
        f"{held / 1e9:.1f}", sums, min(fit, count), passes, min(by_vmap, count),
    ]  # fmt: skip


HEAD = [
    "model", "10⁹ parameters", "MB a layer", "GB a completion", "GB weights", "GB sums", "sums",
    "completions a block", "blocks", "at once by vmap, no sums",
]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, plan and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tiny width, to see that it runs")
    parser.add_argument("--models", nargs="+", choices=list(WIDTHS), default=list(WIDTHS))
    parser.add_argument("--length", type=int, default=512, help="tokens of a completion")
    parser.add_argument("--count", type=int, default=64, help="completions of a prompt")
    parser.add_argument("--device-bytes", type=int, default=DEVICE)
    options = parser.parse_args(arguments)
    length = 8 if options.quick else options.length
    widths = TINY if options.quick else {name: WIDTHS[name] for name in options.models}
    rows = [
        row(name, width, length, options.device_bytes, options.count)
        for name, width in widths.items()
    ]
    print("# Scoring at real widths, on paper\n")
    print(
        f"{machine('torch', 'transformers')}; bfloat16; {length} tokens after a prompt of {PROMPT}; "
        f"{options.count} completions; a device of {options.device_bytes / 1e9:.0f} GB; two sums\n"
    )
    print(tabulate(rows, HEAD, tablefmt="github", disable_numparse=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
