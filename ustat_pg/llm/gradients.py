"""What hooks see of one backward pass: a sketch of its gradient, and norms of each output's.

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
    """Squared norms of the gradient of each output of a micro-batch, in the matrices that read and write it.

    With inputs a and output gradients d of a linear layer ‖d loss_i/d W‖² is Σ_{t,u} ⟨aₜ, aᵤ⟩⟨dₜ, dᵤ⟩ over
    the output's positions; of an embedding ⟨aₜ, aᵤ⟩ is 1 for equal tokens. Linear layers take turns, one a
    step, in an order drawn anew for each round, and count as often as there are layers; the input embedding
    is in every step. So the mean over a round is the sum over these matrices.
    Not seen is the output embedding: TRL multiplies by its weight without a call that a hook would see.

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
        table = model.get_input_embeddings()
        self._table = (
            table.register_forward_hook(self._read) if table.weight.requires_grad else None
        )
        self._turn: Any = None
        self._step: int | None = None
        self._see: Callable[[torch.Tensor], None] | None = None

    @property
    def empty(self) -> bool:
        """Whether no matrix is trained."""
        return not self.layers and self._table is None

    def begin(self, step: int, see: Callable[[torch.Tensor], None]) -> None:
        """Tell ``see`` the norms, (m,), of the pass that comes; call it before the forward pass.

        It is called for the linear layer and for the embedding, whose norms add up.
        """
        self._see = see
        if step == self._step:
            return
        self._step = step
        if self.layers:
            turn, place = divmod(step, len(self.layers))
            order = np.random.default_rng([self.seed, turn]).permutation(len(self.layers))
            if self._turn is not None:
                self._turn.remove()
            self._turn = self.layers[order[place]].register_forward_hook(self._multiplied)

    def end(self) -> None:
        """No pass is looked at until the next begin."""
        self._see = None

    def remove(self) -> None:
        """Take the hooks away."""
        for hook in (self._turn, self._table):
            if hook is not None:
                hook.remove()
        self._turn = self._table = None

    def _multiplied(self, layer: Any, given: tuple[Any, ...], output: Any) -> None:
        def products() -> torch.Tensor:
            a = inputs.float()
            return (a @ a.mT) * float(len(self.layers))

        inputs = given[0].detach()
        self._tell(output, products)

    def _read(self, layer: Any, given: tuple[Any, ...], output: Any) -> None:
        ids = given[0]
        self._tell(output, lambda: (ids[:, :, None] == ids[:, None, :]).float())

    def _tell(self, output: Any, products: Callable[[], torch.Tensor]) -> None:
        """Tell the norms, with the ⟨aₜ, aᵤ⟩ of its inputs, once the output's gradient is known."""
        see = self._see
        if see is None or not output.requires_grad or output.ndim != 3:
            return

        @torch.no_grad()
        def norms(gradient: torch.Tensor) -> None:
            d = gradient.float()
            see((products() * (d @ d.mT)).sum(dim=(1, 2)))

        output.register_hook(norms)
