"""The gradient of single completions in the output embedding, if TRL uses its weight without calling the
layer.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ...noise.onlooker import Guard

_LOGITS = 2**24
"""The number of logits that are computed at once when the output embedding is called again."""


class Head:
    """The output embedding, called as a layer again, if TRL uses its weight without calling the layer.

    Since 1.16 TRL computes log-probabilities from hidden states by its own function, in which no hook sees a
    completion's part. Their gradients come first in the backward pass. Then logits are computed again, which
    takes a quarter of the time of this function, and the hook of the layer sees their gradients.
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
        """Pass the gradients of the last tokens' log-probabilities to the layer when they are computed."""
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
