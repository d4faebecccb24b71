"""Layers that hooks know: from what one reads and the gradient of what it writes to its parameters' scores.

The score in a layer's weight is s_i = Σ_t left_i[t] ⊗ right_i[t] over tokens, with gradients on one
side and inputs on the other. A parameter that is used twice, such as an embedding tied to the head,
has the terms of both uses in one sum, so that inner products have the cross terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...validation import InputError

__all__ = [
    "COARSE",
    "TOLERANCE",
    "Hooks",
    "Layer",
    "Use",
    "Uses",
    "frozen",
    "layers",
    "refuse_unseen",
    "selected",
]

TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
"""Relative difference of squared norms, hooks against loop, that is rounding."""

COARSE = 5e-2
"""The same of 16-bit arithmetic."""


@dataclass
class Use:
    """One use of a parameter: scores Σ_t left[t] ⊗ right[t] of n completions.

    ``left`` is (n, t, rows), or (n, t) where it is one-hot and holds the rows' numbers, or None
    where ``right`` (n, size) holds the scores themselves, as for biases and norms.
    """

    left: Tensor | None
    right: Tensor
    rows: int = 1

    @property
    def sparse(self) -> bool:
        return self.left is not None and self.left.ndim == 2

    @property
    def count(self) -> int:
        return len(self.right)


Uses = list[Use]
Sink = Callable[[int, Uses], None]


def selected(
    model: nn.Module, wanted: str | Sequence[str]
) -> tuple[tuple[str, ...], tuple[nn.Parameter, ...]]:
    """Names and parameters asked for; a tied one goes by any of its names, and counts once."""
    patterns = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    if patterns == ("all",):
        patterns = ("*",)
    aliases: dict[int, list[str]] = {}
    known = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(parameter), []).append(name)
        known[id(parameter)] = parameter
    for pattern in patterns:
        if not any(fnmatchcase(n, pattern) for names in aliases.values() for n in names):
            examples = ", ".join(names[0] for names in list(aliases.values())[:3])
            raise InputError(
                f"no parameter is named like {pattern!r}: names are of the form {examples}"
            )
    chosen = {
        names[0]: known[key]
        for key, names in aliases.items()
        if known[key].requires_grad and any(fnmatchcase(n, p) for n in names for p in patterns)
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


# Layers: from what a layer reads and the gradient of what it writes to uses of its parameters.

_Maker = Callable[[Tensor, Tensor], Use]


@dataclass(frozen=True)
class Layer:
    """A module's parameters that are scored, by number, and how each one's use is made."""

    makers: dict[int, _Maker]
    dtype: torch.dtype


def layers(
    model: nn.Module, number: dict[int, int], names: Sequence[str]
) -> list[tuple[nn.Module, Layer]]:
    wide = any(p.dtype == torch.float64 for p in model.parameters() if id(p) in number)
    dtype = torch.float64 if wide else torch.float32
    layers = []
    for module in model.modules():
        own = {n: number[id(p)] for n, p in module._parameters.items() if id(p) in number}
        if not own:
            continue
        known = _known(module, dtype)
        for name, k in own.items():
            if known is None or name not in known:
                raise InputError(
                    f"{names[k]} belongs to a layer of class {type(module).__name__}, which the "
                    "hooks do not know; take method='loop', or parameters= without it"
                )
        if known is not None:
            makers = {k: known[name] for name, k in own.items()}
            layers.append((module, Layer(makers, dtype)))
    return layers


def _known(module: nn.Module, dtype: torch.dtype) -> dict[str, _Maker] | None:
    """How the uses of a layer's parameters are made, by their names in it; None for other layers."""

    def summed(read: Tensor, slope: Tensor) -> Use:
        return Use(None, slope.to(dtype).flatten(1, -2).sum(dim=1))

    forward = type(module).forward
    if forward is nn.Linear.forward:
        return {"weight": lambda read, slope: _outer(slope, read), "bias": summed}
    if _is_conv1d(module):
        return {"weight": lambda read, slope: _outer(read, slope), "bias": summed}
    if forward is nn.Embedding.forward:
        return _embedding(module)
    normalise = _normalisation(module, dtype)
    if normalise is None:
        return None

    def scaled(read: Tensor, slope: Tensor) -> Use:
        return Use(None, (slope.to(dtype) * normalise(read)).flatten(1, -2).sum(dim=1))

    return {"weight": scaled, "bias": summed}


def _outer(left: Tensor, right: Tensor) -> Use:
    return Use(left.flatten(1, -2), right.flatten(1, -2), left.shape[-1])


def _is_conv1d(module: nn.Module) -> bool:
    try:
        from transformers.pytorch_utils import Conv1D
    except ImportError:
        return False
    return type(module).forward is Conv1D.forward


def _embedding(module: Any) -> dict[str, _Maker] | None:
    if module.max_norm is not None or module.scale_grad_by_freq or module.sparse:
        return None
    padding, rows = module.padding_idx, module.num_embeddings

    def looked_up(read: Tensor, slope: Tensor) -> Use:
        # Autograd gives the padding row no gradient, so neither does training.
        slope = slope if padding is None else slope * (read != padding)[..., None]
        return Use(read.flatten(1), slope.flatten(1, -2), rows)

    return {"weight": looked_up}


def _normalisation(module: Any, dtype: torch.dtype) -> Callable[[Tensor], Tensor] | None:
    """What a norm multiplies by its weight, for LayerNorm and for classes named RMSNorm."""
    weight = getattr(module, "weight", None)
    if weight is None or weight.ndim != 1:
        return None
    if type(module).forward is nn.LayerNorm.forward:
        eps = module.eps

        def centred(read: Tensor) -> Tensor:
            x = read.to(dtype)
            variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
            return (x - mean) * torch.rsqrt(variance + eps)

        return centred
    if not type(module).__name__.endswith("RMSNorm") or set(module._parameters) != {"weight"}:
        return None
    # The class itself is asked, with other weights: it may well compute in another precision.
    one, zero = torch.ones_like(weight, dtype=dtype), torch.zeros_like(weight, dtype=dtype)

    def with_weight(value: Tensor, read: Tensor) -> Tensor:
        return torch.func.functional_call(module, {"weight": value}, (read,)).to(dtype)

    def scaled(read: Tensor) -> Tensor:
        # The second is zero, but for classes that multiply by 1 + weight.
        return with_weight(one, read) - with_weight(zero, read)

    # Classes of that name differ: what they compute is looked at, not what they are called.
    with torch.no_grad():
        probe = torch.linspace(-2, 3, 2 * len(weight), device=weight.device).view(1, 2, -1)
        probe = probe.to(weight.dtype)
        other = torch.linspace(-1, 2, len(weight), device=weight.device).to(dtype)
        written = with_weight(other, probe)
        slack = 1e-4 if weight.dtype in TOLERANCE else COARSE
        affine = with_weight(zero, probe) + other * scaled(probe)
    return scaled if torch.allclose(written, affine, rtol=slack, atol=slack) else None


class Hooks:
    """Hooks on the layers of one pass, in place while the forward pass runs.

    ``sink`` is called with a parameter's number and all its uses as soon as the last is known.
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
                "cannot tell completions apart; take method='loop'"
            )
        if not output.requires_grad:
            # The graph begins at the first layer that is scored.
            output = output.detach().requires_grad_(True)
        key = len(self._reads)
        self._reads[key] = (layer, read.detach(), output.numel() * output.element_size())
        for k in layer.makers:
            self._open[k] = self._open.get(k, 0) + 1
        output.register_hook(lambda slope: self._backward(key, slope))
        return output

    def _backward(self, key: int, slope: Tensor) -> None:
        layer, read, _ = self._reads.pop(key)
        for k, make in layer.makers.items():
            self._uses.setdefault(k, []).append(make(read, slope))
            self._open[k] -= 1
            if not self._open[k]:
                self._sink(k, self._uses.pop(k))

    def finish(self) -> None:
        """Hand over what is left: parameters of which some use has no gradient."""
        for k in list(self._uses):
            self._sink(k, self._uses.pop(k))

    def held(self) -> Iterator[tuple[Tensor, int]]:
        """What each layer read, and the bytes that it wrote."""
        for _, read, written in self._reads.values():
            yield read, written

    def uncalled(self, names: Sequence[str]) -> str | None:
        """A parameter whose layers were not called."""
        return next((names[k] for k in sorted(self._all - set(self._open))), None)


def refuse_unseen(
    names: Sequence[str], found: NDArray[np.float64], right: NDArray[np.float64], tolerance: float
) -> None:
    """Refuse a model of which hooks see another squared norm than differentiation gives.

    Arguments:
        names: of the parameters.
        found: the squared norm of a score in each, through hooks.
        right: the same, by differentiation.
        tolerance: relative.

    Raises:
        InputError: they differ in a parameter; it is named.
    """
    for name, ours, theirs in zip(names, found, right, strict=True):
        # Some gradients are zero but for rounding: of a key's bias, say.
        slack = tolerance * (max(ours, theirs) + tolerance * 1e-2 * right.sum())
        if not abs(ours - theirs) <= slack:
            raise InputError(
                f"the squared norm of a score in {name} is {ours:.6g} through hooks and "
                f"{theirs:.6g} by differentiation: this model uses the parameter in a way that "
                "the hooks do not see; take method='loop'"
            )
