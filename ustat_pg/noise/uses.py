"""The gradients for the parameters of a layer, from the layer's input and the gradient of its output.

For a weight the gradient is Σ_t left_i[t] ⊗ right_i[t] over completion i's tokens, with gradients on one
side and inputs on the other. A parameter that is used twice, such as an embedding tied to the head,
has the terms of both uses in one sum, so inner products include the cross terms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..rounding import SINGLE_GIVEN


@dataclass
class Use:
    """One use of a parameter: gradients Σ_t left[t] ⊗ right[t] of n completions.

    ``left`` is (n, t, rows), or (n, t) row numbers if it is one-hot, or None
    if ``right`` (n, size) contains the gradients themselves, as for biases and norms.
    """

    left: Tensor | None
    right: Tensor
    rows: int = 1


@dataclass(frozen=True)
class Matrix:
    """Creates the use of a matrix whose left side (0) or right side (1) is read."""

    side: int

    def __call__(self, read: Tensor, slope: Tensor) -> Use:
        left, right = (read, slope) if self.side == 0 else (slope, read)
        return Use(of_tokens(left), of_tokens(right), left.shape[-1])


@dataclass(frozen=True)
class Table:
    """Creates the use of an embedding."""

    padding: int | None
    rows: int

    def __call__(self, read: Tensor, slope: Tensor) -> Use:
        # Autograd gives the padding row no gradient, so training does not change that row.
        slope = slope if self.padding is None else slope * (read != self.padding)[..., None]
        return Use(read.reshape(len(read), -1), of_tokens(slope), self.rows)


@dataclass(frozen=True)
class Vector:
    """Creates the use of a bias, or of a norm's weight, which multiplies ``factor`` of the input."""

    dtype: torch.dtype
    factor: Callable[[Tensor], Tensor] | None = None

    def __call__(self, read: Tensor, slope: Tensor) -> Use:
        slope = slope.to(self.dtype)
        slopes = slope if self.factor is None else slope * self.factor(read)
        return Use(None, of_tokens(slopes).sum(dim=1))


Maker = Matrix | Table | Vector


def of_tokens(values: Tensor) -> Tensor:
    """The values (n, ..., size) in the shape (n, tokens, size)."""
    return values.unsqueeze(1).flatten(1, -2)


def makers(module: nn.Module, dtype: torch.dtype = torch.float32) -> dict[str, Maker]:
    """The functions that create the uses of a layer's parameters, by name; empty for unknown layers."""
    forward = type(module).forward
    if forward is nn.Linear.forward:
        return {"weight": Matrix(1), "bias": Vector(dtype)}
    if type(module).__name__ == "Conv1D":
        return {"weight": Matrix(0), "bias": Vector(dtype)}
    if isinstance(module, nn.Embedding) and forward is nn.Embedding.forward:
        whole = module.max_norm is None and not module.scale_grad_by_freq
        return {"weight": Table(module.padding_idx, module.num_embeddings)} if whole else {}
    factor = _normalisation(module, dtype)
    return {"weight": Vector(dtype, factor), "bias": Vector(dtype)} if factor else {}


def _normalisation(module: nn.Module, dtype: torch.dtype) -> Callable[[Tensor], Tensor] | None:
    """The factor of a norm's weight, for LayerNorm and for classes named RMSNorm."""
    weight = getattr(module, "weight", None)
    if weight is None or weight.ndim != 1:
        return None
    if isinstance(module, nn.LayerNorm) and type(module).forward is nn.LayerNorm.forward:
        eps = module.eps

        def centred(read: Tensor) -> Tensor:
            x = read.to(dtype)
            variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
            return (x - mean) * torch.rsqrt(variance + eps)

        return centred
    if not type(module).__name__.endswith("RMSNorm") or set(module._parameters) != {"weight"}:
        return None
    # This runs the class itself with other weights, because it may use another precision. It skips hooks,
    # such as those of FSDP2, which forbid a call of a part before a call of the whole model.
    forward = getattr(module.forward, "__func__", None)
    if forward is None:
        return None
    one, zero, other = (
        torch.linspace(*ends, len(weight), dtype=dtype, device=weight.device)
        for ends in ((1, 1), (0, 0), (-1, 2))
    )

    def with_weight(value: Tensor, read: Tensor) -> Tensor:
        bare = object.__new__(type(module))
        bare.__dict__ = module.__dict__ | {"_parameters": {"weight": value}}
        result: Tensor = forward(bare, read.to(dtype))
        return result.to(dtype)

    def scaled(read: Tensor) -> Tensor:
        # The second is zero, except for classes that multiply by 1 + weight.
        return with_weight(one, read) - with_weight(zero, read)

    # Classes of that name differ, so this compares outputs and not names.
    with torch.no_grad():
        probe = torch.linspace(-2, 3, 2 * len(weight), dtype=dtype, device=weight.device)
        probe = probe.view(1, 2, -1)
        affine = with_weight(zero, probe) + other * scaled(probe)
        alike = torch.allclose(
            with_weight(other, probe), affine, rtol=SINGLE_GIVEN, atol=SINGLE_GIVEN
        )
    return scaled if alike else None
