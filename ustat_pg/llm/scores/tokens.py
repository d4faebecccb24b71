"""The tokens of a prompt's completions, and what the softmax at each of them says."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...validation import InputError, finite_array, integer

__all__ = ["Batch", "forward", "of_tokens"]

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
