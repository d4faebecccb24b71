"""The tokens of a prompt's completions, what the softmax says at each, and memory for their passes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...memory import ChunkWarning, free_memory, out_of_memory
from ...validation import InputError, finite_array, integer

__all__ = ["Batch", "Room", "blocks", "forward", "of_tokens"]

_LEAST_LOG = -1e4
"""A logarithm of a probability that is 0 in every precision."""


@dataclass(frozen=True)
class Batch:
    """The different completions of a prompt, shortest first, and which is whose.

    ``weights`` are what multiplies each token's score, one for each token; None for 1.
    """

    prompt: tuple[int, ...]
    completions: list[tuple[int, ...]]
    back: NDArray[np.int64]
    weights: list[tuple[float, ...]] | None = None

    @classmethod
    def of(
        cls,
        prompt: Sequence[int],
        completions: Sequence[Sequence[int]],
        weights: Sequence[Sequence[float]] | None = None,
    ) -> Batch:
        """The batch of some completions, at least one token each."""
        head = _tokens("the prompt", prompt)
        rows = [_tokens(f"completion {i}", c) for i, c in enumerate(completions)]
        if not rows:
            raise InputError("there are no completions: at least one is needed")
        known = [()] * len(rows) if weights is None else _weights(rows, weights)
        pairs = list(zip(rows, known, strict=True))
        different = sorted(set(pairs), key=lambda pair: (len(pair[0]), *pair))
        number = {pair: k for k, pair in enumerate(different)}
        return cls(
            head,
            [row for row, _ in different],
            np.array([number[pair] for pair in pairs]),
            None if weights is None else [own for _, own in different],
        )

    @property
    def count(self) -> int:
        return len(self.completions)

    @property
    def longest(self) -> int:
        return len(self.completions[-1])

    def known_to(self, embeddings: int | None) -> None:
        """Refuse tokens that a model with so many embeddings does not have."""
        ids = {*self.prompt, *(token for c in self.completions for token in c)}
        if embeddings is not None and max(ids) >= embeddings:
            raise InputError(
                f"token {max(ids)} is not one of the model's: they are 0 to {embeddings - 1}"
            )

    def inputs(self, part: slice) -> tuple[Tensor, Tensor]:
        """What the model reads to write some completions, padded on the right, and its mask."""
        rows = [(*self.prompt, *c[:-1]) for c in self.completions[part]]
        return padded(rows)

    def targets(self, part: slice) -> tuple[Tensor, Tensor]:
        """The tokens of some completions, and where there is one."""
        ids, mask = padded(self.completions[part])
        return ids, mask.bool()

    def factors(self, part: slice) -> Tensor:
        """What multiplies the scores of some completions' tokens, 0 where there is none, (n, T)."""
        if self.weights is None:
            return padded(self.completions[part])[1].double()
        return padded(self.weights[part], torch.float64)[0]


def padded(
    rows: Sequence[Sequence[float]], dtype: torch.dtype = torch.long
) -> tuple[Tensor, Tensor]:
    """Rows of tokens, or of numbers of them, padded on the right by 0, and their mask."""
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=dtype)
    mask = torch.zeros(ids.shape, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row, dtype=dtype)
        mask[i, : len(row)] = 1
    return ids, mask


def _weights(
    rows: Sequence[tuple[int, ...]], weights: Sequence[Sequence[float]]
) -> list[tuple[float, ...]]:
    known = [
        tuple(finite_array(f"token weights of completion {i}", w, 1).tolist())
        for i, w in enumerate(weights)
    ]
    if len(known) != len(rows):
        raise InputError(f"there are token weights of {len(known)} completions, and {len(rows)}")
    for i, (row, own) in enumerate(zip(rows, known, strict=True)):
        if len(row) != len(own):
            raise InputError(f"completion {i} has {len(row)} tokens and {len(own)} token weights")
    return known


def of_tokens(
    log: Tensor, targets: Tensor, valid: Tensor, factors: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """What the softmax says of completions, and ∂ Σ_t w_t log π_t / ∂ logits.

    With π the probability of the sampled token, H the entropy and Var log π_v the variance of the
    token's own log-probability, sums over tokens of 1 - 2π + Σ_v π_v², of -log π - H, and of the
    variance: the first is verl's stand-in for ‖s‖², the second a martingale with the third as its
    variance if these tokens were drawn from these probabilities.

    Arguments:
        log: log-probabilities, (n, T, v); overwritten.
        targets: sampled tokens, (n, T).
        valid: where there is one, (n, T).
        factors: w, 0 where there is none, (n, T); 1 for each token unless given.

    Returns:
        the three sums, (3, n) in float64; and the gradient, w times one-hot less probabilities,
        (n, T, v).
    """
    chosen = targets[..., None]
    taken = log.gather(2, chosen)[..., 0]
    probs = log.exp()
    # So that 0 log 0 is 0.
    entropies = log.clamp_(min=_LEAST_LOG).mul(probs)
    second = (entropies * log).sum(dim=-1)
    entropy = -entropies.sum(dim=-1)
    sums = torch.stack(
        [
            1 - 2 * taken.exp() + probs.square().sum(dim=-1),
            -taken - entropy,
            (second - entropy**2).clamp(min=0),
        ]
    )
    slope = probs.neg_().scatter_add_(2, chosen, torch.ones_like(taken)[..., None])
    sums = torch.where(valid, sums, 0.0).sum(dim=2, dtype=torch.float64)
    return sums, slope.mul_((valid if factors is None else factors)[..., None])


def _tokens(what: str, ids: Sequence[int]) -> tuple[int, ...]:
    row = tuple(integer(f"a token of {what}", token, minimum=0) for token in ids)
    if not row:
        raise InputError(f"{what} has no tokens: at least one is needed")
    return row


def forward(
    model: Any, accepted: Collection[str], ids: Tensor, mask: Tensor | None, keep: int
) -> Tensor:
    """Logits at the last ``keep`` positions, or at all where it is 0.

    Arguments:
        model: of transformers.
        accepted: the names that its forward pass takes.
        ids: of tokens, (n, T).
        mask: of padding, (n, T); None where there is none.
        keep: positions.
    """
    options: dict[str, Any] = {"use_cache": False}
    if mask is not None:
        options["attention_mask"] = mask
    if "position_ids" in accepted:
        # One row for each completion: an embedding of positions shared by all would sum them.
        options["position_ids"] = torch.arange(ids.shape[1], device=ids.device).repeat(len(ids), 1)
    if keep and "logits_to_keep" in accepted:
        options["logits_to_keep"] = keep
    logits: Tensor = model(input_ids=ids, **options).logits
    return logits[:, -keep:] if keep else logits


T = TypeVar("T")

_LEAST = 2**22
"""Numbers of a sum that is not held whole, at least: its norm is off by 0.07%, one standard deviation."""

_CACHED = 2**25
"""Bytes of one layer's scores at a time on a CPU: more would leave its cache without a gain."""


def blocks(room: int, each: int, entry: int, d: int, numbers: int) -> tuple[int, int | None, int]:
    """How many completions fit into memory at once beside their sums.

    Arguments:
        room: bytes.
        each: of a completion's pass.
        entry: of one entry of all sums together.
        d: entries of a sum.
        numbers: of a sketch.

    Returns:
        completions, 0 where none fits; rows of tables of ``numbers`` for each sum, None where sums
        are held whole; bytes of the sums and one completion.

    >>> blocks(100, 10, 4, 15, 8)
    (4, None, 70)
    >>> blocks(10**9, 10, 12, 10**8, 2**23)
    (89933670, 1, 100663306)
    """
    taken, table = entry * d, None
    if taken + each > room and d > _LEAST:
        # An eighth of what is left is enough for sums, and blocks are the larger.
        table = max(1, max((room - each) // 8, entry * _LEAST) // (entry * numbers))
        taken = entry * numbers * table
    return max(room - taken, 0) // each, table, taken + each


class Room:
    """Bytes to hold besides a model, and what completions were found to take of them.

    Arguments:
        device: the model's.
        memory: bytes; None for most of what is free now.
    """

    def __init__(self, device: torch.device, memory: int | None) -> None:
        self.device = device
        self.memory = free_memory(device) if memory is None else integer("memory", memory)
        self.most: int | None = None
        self.found: dict[tuple[int, int], int] = {}
        self._tried = 1

    @property
    def working(self) -> int:
        """Bytes for one layer's scores at a time."""
        share = max(self.memory // 8, 2**16)
        return share if self.device.type == "cuda" else min(share, _CACHED)

    def taken(self, batch: Batch, measured: Callable[[], int]) -> int:
        """Bytes that a completion of a batch takes, of a length that fits or of just this one."""
        length, longest = len(batch.prompt), batch.longest
        for (p, t), bound in self.found.items():
            fits = batch.count * bound <= self.memory - self.working
            if p >= length and t >= longest and fits:
                return bound
        if (length, longest) not in self.found:
            self.found[length, longest] = measured()
        return self.found[length, longest]

    def plan(
        self, batch: Batch, each: int, entry: int, d: int, numbers: int, most: int
    ) -> tuple[int, int | None]:
        """How many completions at once, and rows of the tables for sums that cannot be held whole.

        Arguments:
            batch: the completions.
            each, entry, d, numbers: as for :func:`blocks`.
            most: completions that may be taken at once.
        """
        fit, table, least = blocks(self.memory - self.working, each, entry, d, numbers)
        if not fit:
            raise InputError(
                f"memory is {self.memory} bytes: completions of {batch.longest} tokens after a prompt "
                f"of {len(batch.prompt)} take {least + self.working} at least; raise memory=, score "
                "fewer parameters, or take shorter completions"
            )
        self._tried = min(fit, most, self.most or most)
        return self._tried, table

    def within(self, run: Callable[[], T], d: int) -> T:
        """``run``, again in smaller blocks where memory runs out; ``d`` parameters are scored."""
        while True:
            self._tried = 1
            try:
                return run()
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
                tried = self._tried
                if tried == 1:
                    raise InputError(
                        f"out of memory with one completion of a model with {d} parameters scored: "
                        "take shorter completions, fewer parameters (parameters=, LoRA), or a larger "
                        "machine"
                    ) from None
            # Out here the error no longer keeps the arrays alive that it was raised among.
            self.most = max(tried // 2, 1)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            warnings.warn(
                f"out of memory with {tried} completions at once: going on with {self.most}",
                ChunkWarning,
                stacklevel=3,
            )
