"""One completion differentiated at a time: what hooks are checked against, and what knows every model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

__all__ = ["differentiate"]


def differentiate(
    value: Callable[[], Tensor],
    parameters: Sequence[nn.Parameter],
    take: Callable[[int, Tensor], None],
) -> None:
    """Hand over the gradient of a number in each parameter, one at a time in memory.

    Arguments:
        value: makes the number, with its graph.
        parameters: in which to differentiate; what their ``grad`` holds is there again in the end.
        take: is called with a parameter's place and its gradient, (1, size), where there is one.
    """
    before = [p.grad for p in parameters]
    number = {id(p): k for k, p in enumerate(parameters)}

    def pass_on(parameter: Tensor) -> None:
        if parameter.grad is not None:
            slope, parameter.grad = parameter.grad, None
            take(number[id(parameter)], slope.flatten()[None])

    handles = [p.register_post_accumulate_grad_hook(pass_on) for p in parameters]
    try:
        for parameter in parameters:
            parameter.grad = None
        torch.autograd.backward(value(), inputs=list(parameters))
    finally:
        for handle in handles:
            handle.remove()
        for parameter, slope in zip(parameters, before, strict=True):
            parameter.grad = slope
