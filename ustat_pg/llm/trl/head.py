"""The part of one completion in the output embedding, where TRL multiplies by its weight without a call."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ...noise.onlooker import Guard

_LOGITS = 2**24
"""Logits that are made at once where the output embedding is seen again."""


class Head:
    """The output embedding as a layer again, where TRL multiplies by its weight without a call.

    Since 1.16 TRL makes log-probabilities from hidden states by a function of its own, in which no hook sees
    what a completion does. Their gradients come first in the backward pass; logits are made again then, a
    quarter of what this function takes, and the hook of the layer sees their gradients.
    """

    def __init__(self, trainer: Any, model: Any, guard: Guard) -> None:
        self._guard = guard
        self._trainer, self._head = trainer, model.get_output_embeddings()
        model = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._hidden: Any = None
        if any(p.requires_grad for p in self._head.parameters()):
            guard.hang(model.base_model.register_forward_hook, self._read)
            guard.hang(self._head.register_forward_hook, self._called)

    def _read(self, layer: Any, given: Any, output: Any) -> None:
        self._hidden = output[0].detach()

    def _called(self, layer: Any, given: Any, output: Any) -> None:
        self._hidden = None

    def written(self, log_probs: torch.Tensor, ids: torch.Tensor) -> None:
        """Show the layer the gradients of these log-probabilities, of the last tokens, once they come."""
        hidden, self._hidden = self._hidden, None
        if hidden is not None and len(hidden) == len(ids):
            kept = log_probs.shape[1]
            parts = hidden[:, -kept - 1 : -1], ids[:, -kept:]
            log_probs.register_hook(partial(self._guard, self._again, *parts))

    def _again(self, *parts: torch.Tensor) -> None:
        step = max(1, _LOGITS // (len(parts[0]) * len(self._head.weight)))
        pieces = zip(*(part.split(step, dim=1) for part in parts), strict=True)
        for hidden, ids, slopes in pieces:
            with torch.enable_grad(), self._trainer.accelerator.autocast():
                logits = self._head(hidden)
                logs = (logits.float() / self._trainer.temperature).log_softmax(dim=-1)
                chosen = logs.gather(-1, ids[..., None])[..., 0]
            torch.autograd.grad(chosen, logits, slopes.to(chosen))
