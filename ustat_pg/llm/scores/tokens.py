"""The tokens of a prompt's completions, and what the softmax at each of them says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...validation import InputError, integer

__all__ = ["Batch", "of_tokens"]

_LEAST_LOG = -1e4
"""A logarithm of a probability that is 0 in every precision."""


@dataclass(frozen=True)
class Batch:
    """The different completions of a prompt, shortest first, and which is whose."""

    prompt: tuple[int, ...]
    completions: list[tuple[int, ...]]
    back: NDArray[np.int64]

    @classmethod
    def of(cls, prompt: Sequence[int], completions: Sequence[Sequence[int]]) -> Batch:
        """The batch of some completions, at least one token each."""
        head = _tokens("the prompt", prompt)
        rows = [_tokens(f"completion {i}", c) for i, c in enumerate(completions)]
        if not rows:
            raise InputError("there are no completions: at least one is needed")
        different = sorted(set(rows), key=lambda row: (len(row), row))
        number = {row: k for k, row in enumerate(different)}
        return cls(head, different, np.array([number[row] for row in rows]))

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


def padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Rows of tokens, padded on the right by 0, and their mask."""
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = 1
    return ids, mask


def of_tokens(log: Tensor, targets: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """What the softmax says of completions, and ∂ log π / ∂ logits.

    With π the probability of the sampled token, H the entropy and Var log π_v the variance of the
    token's own log-probability, sums over tokens of 1 - 2π + Σ_v π_v², of -log π - H, and of the
    variance: the first is verl's stand-in for ‖s‖², the second a martingale with the third as its
    variance if these tokens were drawn from these probabilities.

    Arguments:
        log: log-probabilities, (n, T, v); overwritten.
        targets: sampled tokens, (n, T).
        valid: where there is one, (n, T).

    Returns:
        the three sums, (3, n) in float64; and the gradient, one-hot less probabilities and 0 where
        there is no token, (n, T, v).
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
    return sums, slope.mul_(valid[..., None])


def _tokens(what: str, ids: Sequence[int]) -> tuple[int, ...]:
    row = tuple(integer(f"a token of {what}", token, minimum=0) for token in ids)
    if not row:
        raise InputError(f"{what} has no tokens: at least one is needed")
    return row
