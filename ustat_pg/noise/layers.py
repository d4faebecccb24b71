"""Gradients of single completions in the layers of a model, from one pass over several of them.

In a matrix the gradient of a completion is Σₜ lₜ rₜᵀ over its tokens, of what a layer reads and the gradient
of what it writes. With matrices P and Q of random signs over √width, Σₜ P lₜ (Q rₜ)ᵀ has width² numbers, and
inner products that are unbiased for those of the gradients. It is P (Σₜ lₜ rₜᵀ) Qᵀ, linear in the gradient:
uses of one matrix add up, and completions add up to what backward accumulates, by which they are checked.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..validation import InputError

_ALIKE = 0.05
"""Distance of the sum over completions from a gradient, over its norm, that is rounding of bfloat16."""
_SLIGHT = 1e-6
"""Share of the squared norm of all gradients below which nothing is compared: such as of a key's bias."""

Kept = tuple[int, int | None, Any]
"""A parameter's place, the side of a matrix that was read, and its vectors; of a norm how to make them."""


class Layers:
    """Hooks on linear layers, embeddings and norms that take single completions apart.

    What a layer reads is projected at once, so no activation is kept, but the inputs of norms.

    Arguments:
        model: whose layers read one row for each completion.
        parameters: those that are trained.
        width: of the projections; a side of a matrix that is no longer is kept as it is.
        seed: of the projections.
    """

    def __init__(
        self, model: nn.Module, parameters: Sequence[nn.Parameter], width: int, seed: int
    ) -> None:
        self.width, self.seed, self._device = width, seed, parameters[0].device
        self._shapes = [p.shape for p in parameters]
        names = {id(p): name for name, p in model.named_parameters()}
        self._names = [names[id(p)] for p in parameters]
        places = {id(p): place for place, p in enumerate(parameters)}
        self._known: set[int] = set()
        self._hooks = []
        for module in model.modules():
            makers = _makers(module)
            own = {
                places[id(p)]: makers[name]
                for name, p in module.named_parameters(recurse=False)
                if id(p) in places and name in makers
            }
            if own:
                hook = module.register_forward_hook(partial(self._read, own), with_kwargs=True)
                self._hooks.append(hook)
                self._known |= own.keys()
        self.left: set[int] | None = None
        self.begin(None)

    def begin_step(self, count: int) -> None:
        """Draw projections anew."""
        sizes = {
            (place, side): self._shapes[place][side]
            for place in sorted(self._known)
            for side in range(2)
            if self._projects(place) and self._shapes[place][side] > self.width
        }
        # NumPy's bits are the same on every process; one call is many times as fast as one for each.
        rng = np.random.default_rng([self.seed, count, 1])
        bits = rng.integers(0, 2, self.width * sum(sizes.values()), dtype=np.int8) * 2 - 1
        signs = torch.as_tensor(bits, device=self._device).float() * self.width**-0.5
        parts = signs.split([self.width * size for size in sizes.values()])
        self._signs = {
            key: part.view(self.width, -1) for key, part in zip(sizes, parts, strict=True)
        }

    def begin(self, rows: int | None) -> None:
        """Look at passes over so many completions, or at none."""
        self.rows = rows
        self._found: dict[int, Tensor] = {}
        self._real: dict[int, Tensor] = {}

    def remove(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()

    def numbers(self, place: int) -> int:
        """How many numbers a parameter's gradient comes to."""
        shape = self._shapes[place]
        return math.prod(min(side, self.width) if self._projects(place) else side for side in shape)

    def whole(self, place: int, gradient: Tensor) -> Tensor:
        """What completions add up to, from a gradient that was accumulated, (1, numbers)."""
        if self._projects(place):
            right = self._projected(place, 1, gradient)
            gradient = self._projected(place, 0, right.mT).mT
        return gradient.float().reshape(1, -1)

    def accumulated(self, place: int, gradient: Tensor) -> None:
        """Take a gradient to check completions by, until they are checked."""
        if self.left is None:
            self._real[place] = self._real.get(place, 0) + self.whole(place, gradient)

    def found(self) -> Iterator[tuple[int, Tensor]]:
        """Each parameter's place and gradients of completions, (rows, numbers).

        Raises:
            InputError: no parameter's completions add up to the gradient that was accumulated.
        """
        total = sum(float(value.square().sum()) for value in self._real.values())
        if self.left is None and total > 0:
            self._check(total)
        left = self.left or set()
        yield from ((place, each) for place, each in self._found.items() if place not in left)

    def _check(self, total: float) -> None:
        shares = {}
        for place, real in self._real.items():
            made = self._found.get(place)
            apart = real if made is None else real - made.sum(dim=0)
            size, error = float(real.square().sum()), float(apart.square().sum())
            if error > max(_ALIKE**2 * size, _SLIGHT * total):
                shares[place] = size / total
        if len(shares) == len(self._real):
            raise InputError(
                "no layer reads one row for each completion inside the block: run the forward pass in it "
                "too, over completions that are not packed, or give the meter model.parameters()"
            )
        self.left = set(shares)
        if shares:
            names = [self._names[place] for place in sorted(shares, key=lambda k: -shares[k])]
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            warnings.warn(
                f"gradients of single completions are without {', '.join(names[:3])}{more}, "
                f"{100 * sum(shares.values()):.2g}% of the squared norm: hooks on layers do not see all uses",
                stacklevel=2,
            )

    def _projects(self, place: int) -> bool:
        return place in self._known and len(self._shapes[place]) == 2

    def _projected(self, place: int, side: int, values: Tensor) -> Tensor:
        """Vectors along one side of a matrix, or the numbers of unit vectors, in float32."""
        size, units = self._shapes[place][side], not values.is_floating_point()
        if size <= self.width:
            return nn.functional.one_hot(values, size).float() if units else values.float()
        signs = self._signs[place, side].to(values.device)
        return signs.T[values] if units else nn.functional.linear(values.float(), signs)

    @torch.no_grad()
    def _read(self, own: dict[int, Any], module: Any, given: Any, named: Any, output: Any) -> None:
        if self.rows is None or not isinstance(output, Tensor) or not output.requires_grad:
            return
        read = (*given, *named.values())[0]
        if len(read) != self.rows or len(output) != self.rows:
            return
        with torch.autocast(output.device.type, enabled=False):
            kept = [make(self, place, module, read) for place, make in own.items()]
        output.register_hook(partial(self._wrote, kept))

    @torch.no_grad()
    def _wrote(self, kept: list[Kept], slope: Tensor) -> None:
        slope = _tokens(slope)
        with torch.autocast(slope.device.type, enabled=False):
            for place, side, read in kept:
                if side is None:
                    each = (slope.float() if read is None else slope.float() * read()).sum(dim=1)
                else:
                    sides = [read, self._projected(place, 1 - side, slope)]
                    left, right = sides[::-1] if side else sides
                    each = (left.mT @ right).flatten(1)
                self._found[place] = self._found.get(place, 0) + each


def _tokens(values: Tensor) -> Tensor:
    """(rows, ..., size) as (rows, tokens, size)."""
    return values.unsqueeze(1).flatten(1, -2)


def _normalised(module: Any, read: Tensor) -> Tensor:
    """What the weight of a norm multiplies."""
    x = _tokens(read.float())
    eps: Any = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if isinstance(module, nn.LayerNorm):
        return nn.functional.layer_norm(x, x.shape[-1:], eps=eps)
    return nn.functional.rms_norm(x, x.shape[-1:], eps=eps)


def _makers(module: nn.Module) -> dict[str, Any]:
    """What is kept of a layer's input for each of its parameters, by name."""

    def bias(layers: Layers, place: int, module: Any, read: Tensor) -> Kept:
        return place, None, None

    def matrix(side: int, layers: Layers, place: int, module: Any, read: Tensor) -> Kept:
        return place, side, layers._projected(place, side, _tokens(read))

    def table(layers: Layers, place: int, module: Any, read: Tensor) -> Kept:
        vectors = layers._projected(place, 0, read.flatten(1) if read.ndim > 1 else read[:, None])
        if module.padding_idx is not None:
            # Autograd gives this row no gradient.
            vectors = vectors * (read != module.padding_idx).reshape(*vectors.shape[:2], 1)
        return place, 0, vectors

    def scale(layers: Layers, place: int, module: Any, read: Tensor) -> Kept:
        return place, None, partial(_normalised, module, read.detach())

    if isinstance(module, nn.Linear):
        return {"weight": partial(matrix, 1), "bias": bias}
    if isinstance(module, nn.Embedding):
        return {"weight": table}
    if type(module).__name__ == "Conv1D":
        return {"weight": partial(matrix, 0), "bias": bias}
    norm = isinstance(module, nn.LayerNorm) or type(module).__name__.endswith("RMSNorm")
    if norm and getattr(getattr(module, "weight", None), "ndim", 0) == 1:
        return {"weight": scale, "bias": bias}
    return {}
