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

__all__ = ["LayerNorms", "Sketch"]


def _source(seed: int, step: int) -> torch.Generator:
    """The same on every process."""
    state = np.random.SeedSequence([seed, step]).generate_state(1)
    return torch.Generator().manual_seed(int(state[0]))


class Sketch:
    """Sums of gradients with random signs, whose inner products have those of gradients as their mean.

    Rows of each parameter's matrix go to random rows of a square with random signs, then columns to
    columns (a CountSketch of each side): one pass over the gradient, whatever the width.

    Arguments:
        parameters: that are trained; vectors are rows, what has more axes keeps the first.
        width: of the square.
        seed: of the draws.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], width: int, seed: int) -> None:
        self.width, self.seed = width, seed
        self._shapes = [_matrix(parameter).shape for parameter in parameters]
        self._hooks = [
            parameter.register_hook(partial(self._add, place))
            for place, parameter in enumerate(parameters)
        ]
        self._step: int | None = None
        self._buckets: list[list[torch.Tensor]] = []
        self._square: torch.Tensor | None = None

    def begin(self, step: int, device: torch.device) -> torch.Tensor:
        """The square that this backward pass is added to, (width, width)."""
        if step != self._step:
            source, self._step = _source(self.seed, step), step
            self._buckets = [
                [
                    torch.randint(2 * self.width, (length,), generator=source).to(device)
                    for length in shape
                ]
                for shape in self._shapes
            ]
        self._square = torch.zeros(self.width, self.width, device=device)
        return self._square

    def end(self) -> None:
        """Nothing is added until the next begin."""
        self._square = None

    def remove(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()

    @torch.no_grad()
    def _add(self, place: int, gradient: torch.Tensor) -> None:
        if self._square is not None:
            rows, columns = self._buckets[place]
            once = _signed_sums(_matrix(gradient).float(), rows, self.width)
            self._square += _signed_sums(once.T, columns, self.width).T


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
            chosen = torch.randint(len(self.layers), (1,), generator=_source(self.seed, step))
            self._hook = self.layers[int(chosen)].register_forward_hook(self._forward)
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


def _matrix(values: torch.Tensor) -> torch.Tensor:
    return values.reshape(len(values), -1) if values.ndim > 1 else values.reshape(1, -1)


def _signed_sums(values: torch.Tensor, buckets: torch.Tensor, width: int) -> torch.Tensor:
    """Rows added up by bucket, those of the second half with a minus: (n, q) to (width, q)."""
    found = values.new_zeros(2 * width, values.shape[1]).index_add_(0, buckets, values)
    return found[:width] - found[width:]
