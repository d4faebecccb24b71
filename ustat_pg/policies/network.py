"""A small causal transformer in torch: logits of the next token after each position."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..validation import Array, InputError, device_name, field, integer, record


def device_of(name: str) -> torch.device:
    """The torch device of that name.

    >>> device_of("cpu")
    device(type='cpu')
    """
    device = torch.device(device_name(name))
    there = torch.cuda.device_count() if device.type == "cuda" else 1
    if (device.index or 0) >= there:
        count = torch.cuda.device_count()
        raise InputError(f"device {name!r} is not there: this machine has {count} CUDA devices")
    return device


@record(eq=True)
class TransformerShape:
    """The sizes of a :class:`CausalTransformer`.

    Arguments:
        inputs: number of tokens that it can read, without the begin token.
        choices: number of tokens that it can write.
        positions: longest sequence that it reads, including the begin token.
        width: length of a position's vector, a multiple of ``heads``.
        layers: number of attention and feed-forward pairs.
        heads: number of heads of the attention.
    """

    inputs: int = field(integer)
    choices: int = field(integer)
    positions: int = field(integer)
    width: int = field(integer, default=16)
    layers: int = field(integer, default=1)
    heads: int = field(integer, default=2)

    def __attrs_post_init__(self) -> None:
        if self.width % self.heads:
            raise InputError(f"width is {self.width}: it must be a multiple of heads, {self.heads}")

    def sizes(self) -> Array:
        """The numbers themselves, in order."""
        return np.array(list(vars(self).values()), dtype=np.float64)


class Layer(nn.Module):
    """Attention and feed-forward, normalised before each: a layer of ``nn.TransformerEncoder``.

    That one's fused attention has no batching rule under ``vmap``, and its plain form takes about
    twice as long as these lines.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, later: Tensor) -> Tensor:
        """The layer's outputs at every position; ``later`` marks the positions that a position must not
        see.
        """
        width = x.shape[-1] // self.heads
        parts = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, width))
        query, key, value = parts.movedim(-3, 0).transpose(-2, -3).unbind(0)
        match = query @ key.transpose(-1, -2) / math.sqrt(width)
        weights = match.masked_fill(later, -math.inf).softmax(-1)
        x = x + self.out((weights @ value).transpose(-2, -3).flatten(-2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class CausalTransformer(nn.Module):
    """Logits of the next token after each position: tokens (..., n) to (..., n, choices).

    It does not branch on values, so it may be called under ``torch.func`` with stacked parameters of many
    runs.
    """

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.begin = shape.inputs
        self.tokens = nn.Embedding(shape.inputs + 1, shape.width)
        self.places = nn.Embedding(shape.positions, shape.width)
        self.layers = nn.ModuleList(Layer(shape.width, shape.heads) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.choices)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits after each of the tokens (..., n): (..., n, choices)."""
        n = tokens.shape[-1]
        x = self.tokens(tokens) + self.places.weight[:n]
        later = torch.ones(n, n, dtype=torch.bool, device=tokens.device).triu(1)
        for layer in self.layers:
            x = layer(x, later)
        logits: Tensor = self.head(self.norm(x))
        return logits


@cache
def blank(shape: TransformerShape) -> CausalTransformer:
    """The network without parameter values, which are always passed in."""
    with torch.device("meta"):
        return CausalTransformer(shape)
