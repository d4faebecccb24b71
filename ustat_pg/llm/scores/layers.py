"""Hooks on the layers of a model, which give every parameter's scores by completion as soon as they are
known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from ...noise import uses
from ...noise.uses import Maker, Use
from ...validation import InputError, argument

TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
"""The relative difference of squared norms between hooks and loop that rounding explains."""

COARSE = 5e-2
"""The same for 16-bit arithmetic."""

CLOSE = 1e-3
"""The relative difference of logits that rounding explains; some models always compute softmax in float32."""


Uses = list[Use]
Sink = Callable[[int, Uses], None]


def selected(
    model: nn.Module, names: str | Sequence[str]
) -> tuple[tuple[str, ...], tuple[nn.Parameter, ...]]:
    """Names and parameters that match some patterns; a tied one matches by any name and counts once."""
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
            f"parameters {list(patterns)} all have requires_grad=False, so there is nothing to score"
        )
    return tuple(chosen), tuple(chosen.values())


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """A context without ``requires_grad`` on parameters, so autograd keeps and computes only activations."""
    trained = [p for p in model.parameters() if p.requires_grad]
    try:
        for parameter in trained:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


Layer = dict[int, Maker]
"""The functions that form the use of each scored parameter of a module, by number."""


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
                f"{names[unknown[0]]} belongs to a layer of class {type(module).__name__}, which the hooks "
                f"do not support; take {argument('method', repr('loop'))}, or parameters without it"
            )
        if scored:
            layers.append((module, {k: makers[name] for name, k in scored.items()}))
    return layers


class Hooks:
    """Hooks on the layers of one pass, active during the forward pass.

    Arguments:
        layers: the scored layers.
        number: number of each parameter.
        count: number of completions of the pass.
        sink: function that is called with a parameter's number and all its uses as soon as the last one is
            known.
    """

    def __init__(
        self,
        layers: list[tuple[nn.Module, Layer]],
        number: dict[int, int],
        count: int,
        sink: Sink,
    ) -> None:
        self._layers, self._count, self._sink = layers, count, sink
        self._all = set(number.values())
        self._open: dict[int, int] = {}
        self._uses: dict[int, Uses] = {}
        self._reads: dict[int, tuple[Layer, Tensor, int]] = {}
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
                f"cannot separate completions; take {argument('method', repr('loop'))}"
            )
        if not output.requires_grad:
            # The graph starts at the first scored layer.
            output = output.detach().requires_grad_(True)
        key = len(self._reads)
        self._reads[key] = (layer, read.detach(), output.numel() * output.element_size())
        for k in layer:
            self._open[k] = self._open.get(k, 0) + 1
        output.register_hook(lambda slope: self._backward(key, slope))
        return output

    def _backward(self, key: int, slope: Tensor) -> None:
        layer, read, _ = self._reads.pop(key)
        for k, make in layer.items():
            self._uses.setdefault(k, []).append(make(read, slope))
            self._open[k] -= 1
            if not self._open[k]:
                self._sink(k, self._uses.pop(k))

    def finish(self) -> None:
        """Pass on the remaining parameters, for which some use has no gradient."""
        for k in list(self._uses):
            self._sink(k, self._uses.pop(k))

    def held(self) -> Iterator[tuple[Tensor, int]]:
        """The input of each layer, and the bytes of its output."""
        for _, read, written in self._reads.values():
            yield read, written

    def uncalled(self, names: Sequence[str]) -> str | None:
        """A parameter of layers that were not called."""
        return next((names[k] for k in sorted(self._all - set(self._open))), None)
