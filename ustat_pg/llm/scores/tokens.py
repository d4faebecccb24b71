"""The tokens of a prompt's completions, the softmax at each, and memory for their passes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ...execution.memory import ChunkWarning, free_memory, out_of_memory
from ...validation import InputError, integer

_LEAST_LOG = -1e4
"""A logarithm of a probability that is 0 in every precision."""


@dataclass(frozen=True)
class Batch:
    """Different completions of prompts, each prompt's shortest first, and which is whose.

    ``prompts`` are the completions' own, ``groups`` which completions are of one prompt, and ``back`` each
    group's places of those that were given. ``weights`` are factors of the scores, one for each token;
    None for 1.
    """

    prompts: list[tuple[int, ...]]
    completions: list[tuple[int, ...]]
    groups: list[slice]
    back: list[NDArray[np.int64]]
    weights: list[tuple[float, ...]] | None = None

    @classmethod
    def of(
        cls,
        prompt: Sequence[int],
        completions: Sequence[Sequence[int]],
        weights: Sequence[Sequence[float]] | None = None,
    ) -> Batch:
        """The batch of some completions of a prompt, at least one token each."""
        rows = [tuple(completion) for completion in completions]
        factors = [()] * len(rows) if weights is None else [tuple(w) for w in weights]
        pairs = list(zip(rows, factors, strict=True))
        different = sorted(set(pairs), key=lambda pair: (len(pair[0]), *pair))
        number = {pair: k for k, pair in enumerate(different)}
        return cls(
            [tuple(prompt)] * len(different),
            [row for row, _ in different],
            [slice(0, len(different))],
            [np.array([number[pair] for pair in pairs])],
            None if weights is None else [factor for _, factor in different],
        )

    @classmethod
    def joined(cls, batches: Sequence[Batch]) -> Batch:
        """The batch of several prompts' completions."""
        if len(batches) == 1:
            return batches[0]
        ends = np.cumsum([batch.count for batch in batches]).tolist()
        factors = None
        if any(batch.weights is not None for batch in batches):
            factors = [
                factor
                for batch in batches
                for factor in batch.weights or [(1.0,) * len(c) for c in batch.completions]
            ]
        return cls(
            [prompt for batch in batches for prompt in batch.prompts],
            [completion for batch in batches for completion in batch.completions],
            [slice(end - batch.count, end) for end, batch in zip(ends, batches, strict=True)],
            [back for batch in batches for back in batch.back],
            factors,
        )

    @property
    def count(self) -> int:
        return len(self.completions)

    @property
    def shortest(self) -> int:
        """Tokens of the shortest prompt: logits begin at the last of these."""
        return min(map(len, self.prompts))

    @property
    def longest(self) -> int:
        """Positions from there to the end."""
        pairs = zip(self.prompts, self.completions, strict=True)
        return max(len(prompt) + len(completion) for prompt, completion in pairs) - self.shortest

    def some(self, part: slice) -> Batch:
        """A block of one prompt's completions."""
        factors = None if self.weights is None else self.weights[part]
        return replace(
            self, prompts=self.prompts[part], completions=self.completions[part], weights=factors
        )

    def inputs(self) -> tuple[Tensor, Tensor]:
        """Tokens from which the model writes the completions, padded on the right, and their mask."""
        pairs = zip(self.prompts, self.completions, strict=True)
        return padded([(*prompt, *completion[:-1]) for prompt, completion in pairs])

    def targets(self) -> tuple[Tensor, Tensor]:
        """The tokens of completions at the places of their logits, and where there is one, (n, T)."""
        ones = [(1,) * len(completion) for completion in self.completions]
        return self._placed(self.completions), self._placed(ones).bool()

    def factors(self) -> Tensor:
        """Factors of the scores of completions' tokens, 0 where there is none, (n, T)."""
        ones = [(1.0,) * len(completion) for completion in self.completions]
        return self._placed(self.weights or ones, torch.float64)

    def _placed(self, rows: Sequence[Sequence[float]], dtype: torch.dtype = torch.long) -> Tensor:
        least = self.shortest
        before = [(0,) * (len(prompt) - least) for prompt in self.prompts]
        return padded([(*zeros, *row) for zeros, row in zip(before, rows, strict=True)], dtype)[0]


def padded(
    rows: Sequence[Sequence[float]], dtype: torch.dtype = torch.long
) -> tuple[Tensor, Tensor]:
    """Rows of tokens, or of numbers of them, padded on the right by 0, and their mask."""
    ids = pad_sequence([torch.tensor(row, dtype=dtype) for row in rows], batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    return ids, (torch.arange(ids.shape[1]) < lengths[:, None]).long()


def of_tokens(
    log: Tensor, targets: Tensor, valid: Tensor, factors: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sums over the tokens of completions, (3, n), and ∂ Σ_t w_t log π_t / ∂ logits, (n, T, v).

    With π the probability of the sampled token, H the entropy and Var log π_v the variance of the
    token's own log-probability, sums over tokens of 1 - 2π + Σ_v π_v², of -log π - H, and of the
    variance: the first is verl's stand-in for ‖s‖², the second a martingale with the third as its
    variance if these tokens were drawn from these probabilities. ``log`` (n, T, v) is overwritten.
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


def forward(
    model: Any, accepted: Collection[str], ids: Tensor, mask: Tensor | None, keep: int
) -> Tensor:
    """Logits of tokens (n, T), with a mask of padding, at the last ``keep`` positions; at all where 0.

    ``accepted`` are the names that the model's forward pass takes.
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

_CACHED = 2**23
"""Bytes of one layer's scores at a time on a CPU: more would leave its cache without a gain."""


class Room:
    """Bytes to hold besides a model, most of those free now unless given, and completions' shares of them."""

    def __init__(self, device: torch.device, memory: int | None) -> None:
        self.device = device
        self.memory = free_memory(device) if memory is None else integer("memory", memory)
        self.most: int | None = None
        self.bounds: dict[tuple[int, int], int] = {}
        self._tried = 1

    @property
    def working(self) -> int:
        """Bytes for one layer's scores at a time."""
        share = max(self.memory // 8, 2**16)
        return share if self.device.type == "cuda" else min(share, _CACHED)

    def taken(self, count: int, prompt: int, longest: int, measured: Callable[[], int]) -> int:
        """Bytes that each of ``count`` completions takes, of a length that fits or of just this one."""
        for (p, t), bound in self.bounds.items():
            fits = count * bound <= self.memory - self.working
            if p >= prompt and t >= longest and fits:
                return bound
        if (prompt, longest) not in self.bounds:
            self.bounds[prompt, longest] = measured()
        return self.bounds[prompt, longest]

    def plan(self, lengths: tuple[int, int], each: int, held: int, most: int) -> int:
        """How many completions at once, ``most`` at most.

        ``lengths`` are tokens of prompt and completion, ``each`` bytes of a completion's pass, and ``held``
        those of all sketches.
        """
        fit = max(self.memory - self.working - held, 0) // each
        if not fit:
            raise InputError(
                f"memory is {self.memory} bytes: completions of {lengths[1]} tokens after a prompt "
                f"of {lengths[0]} take {held + each + self.working} at least; raise memory=, "
                "score fewer parameters, or take shorter completions"
            )
        self._tried = min(fit, most, self.most or most)
        return self._tried

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
            torch.cuda.empty_cache()
            warnings.warn(
                f"out of memory with {tried} completions at once: going on with {self.most}",
                ChunkWarning,
                stacklevel=3,
            )
