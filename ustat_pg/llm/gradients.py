"""What hooks see of one backward pass: a sketch of its gradient, and norms of each output's in a layer.

Both are drawn anew at each step, from numbers of their own, so that a training is the same with them
and without, and their errors are the step's, which a window averages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from .scores.sums import Sketch, firsts

__all__ = ["LayerNorms", "SketchedGradients"]


class SketchedGradients:
    """A sketch of each backward pass's gradient of all parameters, without ever holding the gradient.

    Arguments:
        parameters: that are trained.
        numbers: of a sketch.
        seed: of the draws, the same on every process.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], numbers: int, seed: int) -> None:
        self.numbers, self.seed = numbers, seed
        self._sizes = [parameter.numel() for parameter in parameters]
        self._hooks = [
            parameter.register_hook(partial(self._add, first))
            for first, parameter in zip(firsts(self._sizes), parameters, strict=True)
        ]
        self._step: int | None = None
        self._table: torch.Tensor | None = None

    def begin(self, step: int, device: torch.device) -> torch.Tensor:
        """The sketch that this backward pass is added to, (numbers,) or fewer."""
        if step != self._step:
            like = torch.zeros((), device=device)
            self._sketch = Sketch(sum(self._sizes), self.numbers, like, [self.seed, step])
            self._step = step
        self._table = torch.zeros(1, 1, self._sketch.numbers, device=device)
        return self._table[0, 0]

    def end(self) -> None:
        """Nothing is added until the next begin."""
        self._table = None

    def remove(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()

    @torch.no_grad()
    def _add(self, first: int, gradient: torch.Tensor) -> None:
        if self._table is not None:
            self._sketch.add(self._table, first, gradient.float().reshape(1, -1))


class LayerNorms:
    """‖d loss_i/d W‖² of each output i of a micro-batch, for a linear layer W drawn anew at each step.

    With inputs a and output gradients d of the layer it is Σ_{t,u} ⟨aₜ, aᵤ⟩⟨dₜ, dᵤ⟩ over the output's
    positions. Every linear layer that is trained is as likely, but for the output embedding.

    Arguments:
        model: that is trained.
        seed: of the draws.
    """

    def __init__(self, model: Any, seed: int) -> None:
        from transformers.pytorch_utils import Conv1D

        self.seed = seed
        self.layers = [
            layer
            for layer in model.modules()
            if isinstance(layer, (torch.nn.Linear, Conv1D))
            and layer.weight.requires_grad
            and layer is not model.get_output_embeddings()
        ]
        self._hook: Any = None
        self._step: int | None = None
        self._see: Callable[[torch.Tensor], None] | None = None

    def begin(self, step: int, see: Callable[[torch.Tensor], None]) -> None:
        """Tell ``see`` the norms, (m,), of the pass that comes; call it before the forward pass."""
        self._see = see
        if step != self._step:
            self.remove()
            chosen = np.random.default_rng([self.seed, step]).integers(len(self.layers))
            self._hook = self.layers[chosen].register_forward_hook(self._forward)
            self._step = step

    def end(self) -> None:
        """No pass is looked at until the next begin."""
        self._see = None

    def remove(self) -> None:
        """Take the hook away."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _forward(self, layer: Any, given: tuple[Any, ...], output: Any) -> None:
        see = self._see
        if see is None or not output.requires_grad or output.ndim != 3:
            return
        inputs = given[0].detach()

        def norms(gradient: torch.Tensor) -> None:
            a, d = inputs.float(), gradient.float()
            see(((a @ a.mT) * (d @ d.mT)).sum(dim=(1, 2)))

        output.register_hook(norms)
