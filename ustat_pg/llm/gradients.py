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
    """Squared norms of the gradient of each output of a micro-batch, in the weight matrices that it has.

    With inputs a and output gradients d of a layer ‖d loss_i/d W‖² is Σ_{t,u} ⟨aₜ, aᵤ⟩⟨dₜ, dᵤ⟩ over the
    output's positions. Linear layers take turns, a layer a step, in an order drawn anew for each round, and
    count as often as there are layers. The embeddings, which may hold half of the norm, are in every step;
    tied ones are one matrix. Of more than ``width`` tokens their rows are added, with random signs, to that
    many. So the mean over steps is that of the sum over all these matrices, without bias.

    Arguments:
        model: that is trained.
        seed: of the draws.
        width: rows that are kept of an embedding.
    """

    def __init__(self, model: Any, seed: int, width: int = 1024) -> None:
        from transformers.pytorch_utils import Conv1D

        self.seed, self.width = seed, width
        head, table = model.get_output_embeddings(), model.get_input_embeddings()
        self.layers = [
            layer
            for layer in model.modules()
            if isinstance(layer, (torch.nn.Linear, Conv1D))
            and layer.weight.requires_grad
            and layer is not head
        ]
        self._tokens = 0
        self._always = []
        for layer, hook in ((head, self._head), (table, self._table)):
            weight = getattr(layer, "weight", None)
            if weight is not None and weight.requires_grad:
                self._tokens = max(self._tokens, len(weight))
                self._always.append(layer.register_forward_hook(hook))
        self._tied = len(self._always) == 2 and head.weight is table.weight
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._turn: Any = None
        self._step: int | None = None
        self._see: Callable[[torch.Tensor], None] | None = None

    @property
    def empty(self) -> bool:
        """Whether no matrix is trained."""
        return not self.layers and not self._always

    def begin(self, step: int, see: Callable[[torch.Tensor], None]) -> None:
        """Tell ``see`` the norms, (m,), of the pass that comes; call it before the forward pass.

        It is called for the linear layer and for each embedding, whose norms add up.
        """
        self._see = see
        self._kept.clear()
        if step == self._step:
            return
        self._step = step
        rng = np.random.default_rng([self.seed, step])
        self._signs = torch.as_tensor(rng.integers(0, 2, self._tokens) * 2 - 1)
        if self.layers:
            turn, place = divmod(step, len(self.layers))
            order = np.random.default_rng([self.seed, turn]).permutation(len(self.layers))
            if self._turn is not None:
                self._turn.remove()
            self._turn = self.layers[order[place]].register_forward_hook(self._linear)

    def end(self) -> None:
        """No pass is looked at until the next begin."""
        self._see = None
        self._kept.clear()

    def remove(self) -> None:
        """Take the hooks away."""
        for hook in (self._turn, *self._always):
            if hook is not None:
                hook.remove()
        self._turn, self._always = None, []

    def _linear(self, layer: Any, given: tuple[Any, ...], output: Any) -> None:
        count = float(len(self.layers))
        self._hook(output, given[0], lambda d, a: [(d.float(), a.float())], count)

    def _head(self, layer: Any, given: tuple[Any, ...], output: Any) -> None:
        def pairs(d: torch.Tensor, a: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
            pair = self._folded(d), a.float()
            if self._tied:
                # Its rows are also those that the tokens of the input read, whose gradient comes last.
                self._kept.append(pair)
                return []
            return [pair]

        self._hook(output, given[0], pairs)

    def _table(self, layer: Any, given: tuple[Any, ...], output: Any) -> None:
        def pairs(e: torch.Tensor, ids: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
            read = e.new_zeros(*ids.shape, self._rows, dtype=torch.float32)
            read.scatter_(2, (ids % self.width)[..., None], self._flips(e)[ids][..., None])
            found = [*self._kept, (read, e.float())]
            self._kept.clear()
            return found

        self._hook(output, given[0], pairs)

    def _hook(
        self, output: Any, read: torch.Tensor, pairs: Callable[..., Any], count: float = 1.0
    ) -> None:
        """See what the layer's part in this pass is, once the output's gradient is known."""
        see = self._see
        if see is None or not output.requires_grad or output.ndim != 3:
            return
        read = read.detach()

        @torch.no_grad()
        def norms(gradient: torch.Tensor) -> None:
            found = pairs(gradient, read)
            if found:
                left, right = (torch.cat(side, dim=1) for side in zip(*found, strict=True))
                see(count * ((left @ left.mT) * (right @ right.mT)).sum(dim=(1, 2)))

        output.register_hook(norms)

    @property
    def _rows(self) -> int:
        return min(self.width, self._tokens)

    def _flips(self, like: torch.Tensor) -> torch.Tensor:
        return self._signs.to(like.device, torch.float32)

    def _folded(self, gradient: torch.Tensor) -> torch.Tensor:
        """(m, T, tokens) with its last axis folded to the rows that are kept."""
        flips, rows = self._flips(gradient)[: gradient.shape[2]], self._rows
        # An output at a time: the whole may be the largest array of a training.
        signed = (
            torch.nn.functional.pad(one.float() * flips, (0, -len(flips) % rows))
            for one in gradient
        )
        return torch.stack([one.view(len(one), -1, rows).sum(dim=1) for one in signed])
