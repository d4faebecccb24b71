"""Hooks on the layers of a model: every parameter's scores, by completions, as soon as they are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...noise import uses
from ...noise.uses import Maker, Matrix, Use
from ...validation import InputError, argument

TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
"""Relative difference of squared norms, hooks against loop, that is rounding."""

COARSE = 5e-2
"""The same of 16-bit arithmetic."""


Uses = list[Use]
Sink = Callable[[int, Uses], None]


def selected(
    model: nn.Module, names: str | Sequence[str]
) -> tuple[tuple[str, ...], tuple[nn.Parameter, ...]]:
    """Names and parameters of some patterns; a tied one has any of its names, and counts once."""
    patterns = (names,) if isinstance(names, str) else tuple(names)
    if patterns == ("all",):
        patterns = ("*",)
    aliases: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        aliases.setdefault(parameter, []).append(name)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for group in aliases.values() for name in group):
            examples = ", ".join(group[0] for group in list(aliases.values())[:3])
            raise InputError(f"no parameter is named like {pattern!r}: names look like {examples}")
    chosen = {
        group[0]: parameter
        for parameter, group in aliases.items()
        if parameter.requires_grad and any(fnmatchcase(n, p) for n in group for p in patterns)
    }
    if not chosen:
        raise InputError(
            f"parameters {list(patterns)} all have requires_grad=False: nothing is left to score"
        )
    return tuple(chosen), tuple(chosen.values())


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Without ``requires_grad`` on any parameter: autograd then keeps and computes activations only."""
    trained = [p for p in model.parameters() if p.requires_grad]
    try:
        for parameter in trained:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


Layer = dict[int, Maker]
"""How the use of each parameter that is scored, by its number, is made in a module."""


def layers(
    model: nn.Module, number: dict[int, int], names: Sequence[str]
) -> list[tuple[nn.Module, Layer]]:
    wide = any(p.dtype == torch.float64 for p in model.parameters() if id(p) in number)
    dtype = torch.float64 if wide else torch.float32
    layers = []
    for module in model.modules():
        scored = {n: number[id(p)] for n, p in module._parameters.items() if id(p) in number}
        makers = uses.makers(module, dtype) if scored else {}
        if unknown := [k for name, k in scored.items() if name not in makers]:
            raise InputError(
                f"{names[unknown[0]]} belongs to a layer of class {type(module).__name__}, which the "
                f"hooks do not know; take {argument('method', repr('loop'))}, or parameters without it"
            )
        if scored:
            layers.append((module, {k: makers[name] for name, k in scored.items()}))
    return layers


class _Once(torch.autograd.Function):
    """A product with a matrix, made once of what all completions begin with; slopes are each one's own."""

    @staticmethod
    def forward(ctx: Any, read: Tensor, shared: int, side: int, module: nn.Module) -> Tensor:
        ctx.weight = module.weight if side else module.weight.T
        ctx.dtype = read.dtype
        apply = partial(type(module).forward, module)
        first, rest = (apply(part.contiguous()) for part in (read[:1, :shared], read[:, shared:]))
        return torch.cat([first.expand(len(read), -1, -1), rest], dim=1)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None, None]:
        return (slope @ ctx.weight.to(slope.dtype)).to(ctx.dtype), None, None, None


@contextmanager
def made_once(model: nn.Module, length: int, shared: int) -> Iterator[None]:
    """Layers that multiply the first ``shared`` of ``length`` tokens once for all completions.

    In a causal model what the same tokens become does not depend on those that follow.
    """

    def forward(module: nn.Module, side: int, read: Tensor) -> Tensor:
        if read.ndim == 3 and read.shape[1] == length:
            made: Tensor = _Once.apply(read, shared, side, module)
        else:
            # A part of all tokens, such as the head's, takes one product, not one for each completion.
            made = type(module).forward(module, read.contiguous())
        return made

    changed: list[nn.Module] = []
    try:
        for module in model.modules() if shared else ():
            maker = uses.makers(module).get("weight")
            # What another package has put in a layer's place stays there.
            if isinstance(maker, Matrix) and "forward" not in vars(module):
                module.forward = partial(forward, module, maker.side)
                changed.append(module)
        yield
    finally:
        for module in changed:
            del module.forward


class Hooks:
    """Hooks on the layers of one pass, in place while the forward pass runs.

    Arguments:
        layers: those that are scored.
        number: of each parameter.
        count: completions of the pass.
        sink: called with a parameter's number and all its uses as soon as the last is there.
        length: tokens of the pass.
        shared: how many of them, from the first, all completions share. What a layer
            reads for these a use has once: one side with a single row.
    """

    def __init__(
        self,
        layers: list[tuple[nn.Module, Layer]],
        number: dict[int, int],
        count: int,
        sink: Sink,
        length: int = 0,
        shared: int = 0,
    ) -> None:
        self._layers, self._count, self._sink = layers, count, sink
        self._length, self._shared = length, shared
        self._all = set(number.values())
        self._open: dict[int, int] = {}
        self._uses: dict[int, Uses] = {}
        self._reads: dict[int, tuple[Layer, list[Tensor], int]] = {}
        self._handles: list[Any] = []

    def __enter__(self) -> None:
        for module, layer in self._layers:

            def after(
                module: nn.Module, args: Any, kwargs: Any, output: Tensor, layer: Layer = layer
            ) -> Tensor:
                return self._forward(module, layer, (*args, *kwargs.values())[0], output)

            self._handles.append(module.register_forward_hook(after, with_kwargs=True))

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _forward(self, module: nn.Module, layer: Layer, read: Tensor, output: Tensor) -> Tensor:
        if len(read) != self._count or len(output) != self._count or output.ndim < 3:
            raise InputError(
                f"a layer of class {type(module).__name__} reads an array of shape "
                f"{tuple(read.shape)} where {self._count} completions were expected first: hooks "
                f"cannot tell completions apart; take {argument('method', repr('loop'))}"
            )
        if not output.requires_grad:
            # The graph begins at the first layer that is scored.
            output = output.detach().requires_grad_(True)
        key, parts = len(self._reads), [read.detach()]
        if self._shared and read.ndim < 4 and read.shape[1] == self._length:
            # Copies, so that what many completions read of the same tokens is not held.
            parts = [parts[0][:1, : self._shared].clone(), parts[0][:, self._shared :].clone()]
        self._reads[key] = (layer, parts, output.numel() * output.element_size())
        for k in layer:
            self._open[k] = self._open.get(k, 0) + 1
        output.register_hook(lambda slope: self._backward(key, slope))
        return output

    def _backward(self, key: int, slope: Tensor) -> None:
        layer, parts, _ = self._reads.pop(key)
        slopes = [slope]
        if len(parts) > 1:
            slopes = [slope[:, : self._shared], slope[:, self._shared :]]
        for k, make in layer.items():
            made = [make(*both) for both in zip(parts, slopes, strict=True) if both[1].shape[1]]
            self._uses.setdefault(k, []).extend(made)
            self._open[k] -= 1
            if not self._open[k]:
                self._sink(k, self._uses.pop(k))

    def finish(self) -> None:
        """Hand over the rest: parameters some use of which has no gradient."""
        for k in list(self._uses):
            self._sink(k, self._uses.pop(k))

    def held(self) -> Iterator[tuple[Tensor, int]]:
        """The input of each layer, and the bytes of its output."""
        for _, (read,), written in self._reads.values():
            yield read, written

    def uncalled(self, names: Sequence[str]) -> str | None:
        """A parameter whose layers were not called."""
        return next((names[k] for k in sorted(self._all - set(self._open))), None)
