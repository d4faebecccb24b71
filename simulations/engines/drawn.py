"""Draws as tensors: the same integers as in the other engines, made on the device that uses them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ustat_pg.engines.gradients.cell import GradientCell
from ustat_pg.policies.models import Model
from ustat_pg.problems import SoftmaxBandit
from ustat_pg.sampling import rng

APART = 2**33
"""The offset between the words of one prompt's outcomes and the next; it exceeds the largest word."""


class Drawn(NamedTuple):
    """Minibatches: prompts (r, B); outputs, numbered prompt by prompt, and rewards (r, B, G)."""

    contexts: Tensor
    places: Tensor
    rewards: Tensor


class Outcomes:
    """The possible outputs of a problem, in one row (X M,) ordered by prompt: the words at which each
    ends, the index of its output, and its reward.
    """

    def __init__(self, problem: SoftmaxBandit, model: Model) -> None:
        self.device = model.device
        outcomes, rows = problem.outcomes, np.arange(problem.contexts)[:, None]
        self.ends = model.integers(rng.thresholds(outcomes.probs) + rows * APART).flatten()
        self.places = model.integers(rows * problem.arms + outcomes.arms).flatten()
        self.rewards = model.floats(outcomes.rewards).flatten()
        self.context_ends = model.integers(rng.thresholds(problem.context_probs))

    def draw(self, cell: GradientCell, seed: int, first: int, count: int) -> Drawn:
        """Replications ``first`` onwards."""
        key = rng.cell_key(seed, cell.name).tolist()
        numbers = first + torch.arange(count, device=self.device)
        slots = torch.arange(cell.batch_size, device=self.device)
        contexts = self._contexts(cell, key, numbers)
        words = _words(key, numbers[:, None], slots, cell.group_size)
        chosen = torch.searchsorted(self.ends, words + contexts[..., None] * APART, right=True)
        return Drawn(contexts, self.places[chosen], self.rewards[chosen])

    def _contexts(self, cell: GradientCell, key: list[int], numbers: Tensor) -> Tensor:
        total, batch = cell.problem.contexts, cell.batch_size
        order = torch.arange(total, device=self.device).repeat(len(numbers), 1)
        if cell.design == "fixed":
            return order
        slot = torch.full_like(numbers, rng.CONTEXT_SLOT)
        words = _words(key, numbers, slot, batch)
        if cell.design == "iid":
            return torch.searchsorted(self.context_ends, words, right=True)
        for place in range(batch):
            # In a step of the shuffle, a place swaps with itself or a later place.
            here = order[:, place, None].clone()
            other = place + ((words[:, place, None] * (total - place)) >> 32)
            order[:, place, None] = order.gather(1, other)
            order.scatter_(1, other, here)
        return order[:, :batch]


def _words(key: list[int], numbers: Tensor, slots: Tensor, count: int) -> Tensor:
    """The first words at each (replication, slot), numbers that broadcast to a shape S: S + (count,)."""
    blocks = torch.arange(-(-count // 4), device=numbers.device)
    numbers = numbers[..., None]
    halves = numbers & rng.MASK, (numbers >> 32) & rng.MASK
    four = rng.philox(blocks, slots[..., None], *halves, *key)
    return torch.stack(four, dim=-1).flatten(-2)[..., :count].contiguous()
