"""Gradients of single completions in the layers of a model, from one pass over several of them.

For a matrix the gradient of a completion is Σₜ lₜ rₜᵀ over its tokens, with a layer's input and the gradient
of its output. With matrices P and Q of random signs divided by √width, Σₜ P lₜ (Q rₜ)ᵀ has width² numbers,
and its inner products are unbiased for those of the gradients. It is P (Σₜ lₜ rₜᵀ) Qᵀ and linear in the
gradient, so uses of one matrix add up. The sum over completions equals the gradient that backward
accumulates, which serves as a check.
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
from .onlooker import Guard
from .uses import Maker, Matrix, Table, Vector, makers

_ALIKE = 0.05
"""The largest relative distance between the sum over completions and a gradient that bfloat16 rounding
explains.
"""
_SLIGHT = 1e-6
"""The share of the squared norm of all gradients below which a gradient is not compared, such as of a key's
bias.
"""

_MOST = 0.9
"""The share of the squared norm that may be left out."""
_PIECE = 2**22
"""The number of half-precision values that are copied into float32 at once."""

Kept = tuple[int, Maker, Any]
"""A parameter's index, the function that makes its use, and the function's part of a layer's input."""


class Layers:
    """Hooks on linear layers, embeddings and norms that separate single completions.

    A layer's input is projected at once, so no activations are kept except the inputs of norms.

    Arguments:
        model: model with layers that read one row for each completion.
        parameters: the trained parameters.
        width: width of the projections; a side of a matrix that is not longer is kept.
        seed: seed of the projections.
        guard: guard for the hooks.

    Raises:
        InputError: a layer's matrix has another shape, because parameters are sharded in an unknown way.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        width: int,
        seed: int,
        guard: Guard,
    ) -> None:
        self._guard = guard
        self.width, self.seed, self._device = width, seed, parameters[0].device
        self._shapes = [p.shape for p in parameters]
        names = {id(p): name for name, p in model.named_parameters()}
        self._names = [names[id(p)] for p in parameters]
        places = {id(p): place for place, p in enumerate(parameters)}
        self._known: set[int] = set()
        for module in model.modules():
            trained = {n: places[id(p)] for n, p in module._parameters.items() if id(p) in places}
            made = makers(module) if trained else {}
            by_place = {place: made[name] for name, place in trained.items() if name in made}
            for place, make in by_place.items():
                if isinstance(make, Matrix | Table) and len(self._shapes[place]) != 2:
                    raise InputError(
                        f"{self._names[place]} is a matrix and has shape {tuple(self._shapes[place])} on "
                        "this process: the only known sharding is that of FSDP2"
                    )
            if by_place:
                register = partial(module.register_forward_hook, with_kwargs=True)
                guard.hang(register, self._read, by_place)
                self._known |= by_place.keys()
        self.left: set[int] | None = None
        self.forget()

    def begin_step(self, count: int) -> None:
        """Draw new projections."""
        sizes = {
            (place, side): self._shapes[place][side]
            for place in sorted(self._known)
            for side in range(2)
            if self.projects(place) and self._shapes[place][side] > self.width
        }
        # NumPy's bits are the same on every process; one call is many times as fast as one call per matrix.
        rng = np.random.default_rng([self.seed, count, 1])
        bits = rng.integers(0, 2, self.width * sum(sizes.values()), dtype=np.int8) * 2 - 1
        signs = torch.as_tensor(bits, device=self._device).float() * self.width**-0.5
        parts = signs.split([self.width * size for size in sizes.values()])
        self._signs: dict[tuple[int, int], Tensor] = {
            key: part.view(self.width, -1) for key, part in zip(sizes, parts, strict=True)
        }

    def begin(self, rows: int | None) -> None:
        """Observe passes over this many completions, or over none."""
        self.rows = rows
        self._gradients: dict[int, Tensor] = {}
        self._real: dict[int, Tensor] = {}

    def forget(self) -> None:
        """Forget a step."""
        self._signs = {}
        self.begin(None)

    def numbers(self, place: int) -> int:
        """The number of values that represent a parameter's gradient."""
        shape = self._shapes[place]
        return math.prod(min(side, self.width) if self.projects(place) else side for side in shape)

    def whole(self, place: int, gradient: Tensor) -> Tensor:
        """The sum over completions, from an accumulated gradient, (1, numbers)."""
        if not self.projects(place):
            return gradient.float().reshape(1, -1)
        step = max(1, _PIECE // gradient.shape[1])
        rights = [self._projected(place, 1, part) for part in gradient.split(step)]
        signs = self._signs.get((place, 0))
        if signs is None:
            return torch.cat(rights).reshape(1, -1)
        lefts = signs.to(gradient.device).split(step, dim=1)
        return sum(a @ b for a, b in zip(lefts, rights, strict=True)).reshape(1, -1)

    def accumulated(self, place: int, gradient: Tensor) -> None:
        """Use a gradient to check the completions, until they are checked."""
        if self.left is not None:
            return
        if place in self._known:
            self._real[place] = self._real.get(place, 0) + self.whole(place, gradient)
        else:
            # No completion's gradient is known, so the norm is enough.
            norm = gradient.norm(dtype=torch.float32).reshape(1, 1)
            self._real[place] = torch.hypot(self._real.get(place, 0 * norm), norm)

    def gradients(self) -> Iterator[tuple[int, Tensor]]:
        """Each parameter's index, with the gradients of completions, (rows, numbers).

        Raises:
            InputError: completions add up to almost nothing of the accumulated gradient.
        """
        total = sum(float(value.square().sum()) for value in self._real.values())
        if self.left is None and total > 0:
            self._check(total)
        elif self.left is None and not self._real and self._gradients:
            self._name_missing()
        left = self.left or set()
        yield from (
            (place, values) for place, values in self._gradients.items() if place not in left
        )

    def _check(self, total: float) -> None:
        shares = {}
        for place, real in self._real.items():
            made = self._gradients.get(place)
            apart = real if made is None else real - made.sum(dim=0)
            size, error = float(real.square().sum()), float(apart.square().sum())
            if error > max(_ALIKE**2 * size, _SLIGHT * total):
                shares[place] = size / total
        if sum(shares.values()) > _MOST:
            raise InputError(
                "layers that read one row for each completion inside the block have "
                f"{100 * (1 - sum(shares.values())):.2g}% of the gradient's squared norm: run the forward "
                "pass inside the block too, without compilation or packing, or "
                "give the meter model.parameters()"
            )
        self.left = set(shares)
        if shares:
            self._warn(
                sorted(shares, key=lambda k: -shares[k]),
                f"{100 * sum(shares.values()):.2g}% of the squared norm: hooks on layers do not see all uses",
            )

    def _name_missing(self) -> None:
        """Warn about parameters without a gradient of a completion, if accumulated gradients are sharded."""
        self.left = set()
        missing = [place for place in range(len(self._shapes)) if place not in self._gradients]
        if missing:
            self._warn(
                missing,
                "because hooks on layers do not see it, or it had no gradient",
            )

    def _warn(self, places: list[int], why: str) -> None:
        names = [self._names[place] for place in places]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        warnings.warn(
            f"gradients of single completions are without {', '.join(names[:3])}{more}, {why}",
            stacklevel=2,
        )

    def projects(self, place: int) -> bool:
        """Whether the parameter's gradient is a matrix that is projected."""
        return place in self._known and len(self._shapes[place]) == 2

    def _projected(self, place: int, side: int, values: Tensor) -> Tensor:
        """The projections of vectors along one side of a matrix, or of numbered unit vectors, in float32."""
        size, units = self._shapes[place][side], not values.is_floating_point()
        if size <= self.width:
            return nn.functional.one_hot(values, size).float() if units else values.float()
        signs = self._signs[place, side].to(values.device)
        if units:
            return signs.T[values]
        step = len(values) and max(1, _PIECE * values.shape[-2] // values.numel())
        parts = [values] if values.dtype == torch.float32 else values.split(step, dim=-2)
        return torch.cat([nn.functional.linear(part.float(), signs) for part in parts], dim=-2)

    @torch.no_grad()
    def _read(
        self, by_place: dict[int, Maker], module: Any, given: Any, named: Any, output: Any
    ) -> None:
        if self.rows is None or not isinstance(output, Tensor) or not output.requires_grad:
            return
        read = (*given, *named.values())[0]
        if len(read) != self.rows or len(output) != self.rows:
            return
        with torch.autocast(output.device.type, enabled=False):
            kept = [
                (place, make, self._taken(place, make, read)) for place, make in by_place.items()
            ]
        output.register_hook(partial(self._guard, self._wrote, kept))

    def _taken(self, place: int, make: Maker, read: Tensor) -> Any:
        """The part of a layer's input that a parameter's use reads, projected for a matrix."""
        if isinstance(make, Matrix):
            return self._projected(place, make.side, read)
        return None if isinstance(make, Vector) and make.factor is None else read.detach()

    @torch.no_grad()
    def _wrote(self, kept: list[Kept], slope: Tensor) -> None:
        with torch.autocast(slope.device.type, enabled=False):
            for place, make, read in kept:
                if isinstance(make, Matrix):
                    use = make(read, self._projected(place, 1 - make.side, slope))
                    left, right = use.left, use.right
                else:
                    use = make(read, slope)
                    left, right = use.left, use.right
                    if left is not None:
                        left = self._projected(place, 0, left)
                        right = self._projected(place, 1, right)
                values = right if left is None else (left.mT @ right).flatten(1)
                self._gradients[place] = self._gradients.get(place, 0) + values


def is_sharded(parameter: torch.Tensor) -> bool:
    """Whether processes have parts of it, as in FSDP2."""
    return hasattr(parameter, "to_local")
