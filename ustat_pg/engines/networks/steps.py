"""Steps of torch's own optimizers on the stacked parameters of many runs. This module needs torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import Optimizer as TorchOptimizer

from ...policies import SoftmaxPolicy
from .optimizers import Adam, Muon, Optimizer, Sgd

__all__ = ["steps_of"]

_Step = Callable[[Tensor, float], Tensor]
"""A slope (R, d) and a rate to θ after that step, a new tensor (R, d)."""


def steps_of(optimizer: Optimizer, policy: SoftmaxPolicy, theta: Tensor) -> _Step:
    """The steps of an optimizer from θ₀ (R, d) on.

    Arguments:
        optimizer: which, with its numbers.
        policy: whose parameters they are.
        theta: θ₀ of the runs, none of which sees another's gradients, (R, d), float64.
    """
    if isinstance(optimizer, Sgd):
        return _Plain(theta)
    return _Torch(optimizer, policy, theta)


class _Plain:
    def __init__(self, theta: Tensor) -> None:
        self._theta = theta

    def __call__(self, slope: Tensor, rate: float) -> Tensor:
        self._theta = self._theta + rate * slope
        return self._theta


class _Torch:
    """One of torch's own.

    Adam works entry by entry, so that one of torch's serves all runs. Muon does not: each run's
    matrices are parameters of their own to it. All are views of one tensor.
    """

    def __init__(self, optimizer: Adam | Muon, policy: SoftmaxPolicy, theta: Tensor) -> None:
        self._theta, self._descent = theta.clone(), torch.zeros_like(theta)
        self._optimizers: list[TorchOptimizer] = []
        if isinstance(optimizer, Adam):
            self._optimizers.append(_adam(optimizer, [self._view(slice(0, theta.shape[1]))]))
        if isinstance(optimizer, Muon):
            hidden = policy.hidden_matrices
            ends = [0, *(end for at, shape in hidden for end in (at, at + shape[0] * shape[1]))]
            rest = zip(ends[::2], [*ends[1::2], theta.shape[1]], strict=True)
            self._optimizers += [
                _muon(
                    optimizer,
                    [
                        self._view(slice(at, at + rows * columns), run, (rows, columns))
                        for run in range(len(theta))
                        for at, (rows, columns) in hidden
                    ],
                ),
                _adam(optimizer.adam, [self._view(slice(*each)) for each in rest]),
            ]

    def _view(
        self, place: slice, run: int | slice = slice(None), shape: tuple[int, ...] | None = None
    ) -> Tensor:
        """A part of θ as a parameter, whose gradient is that part of the descent."""
        view = self._theta[run, place]
        gradient = self._descent[run, place]
        view = view if shape is None else view.view(shape)
        view.grad = gradient.view(view.shape)
        return view

    def __call__(self, slope: Tensor, rate: float) -> Tensor:
        torch.neg(slope, out=self._descent)
        for each in self._optimizers:
            each.param_groups[0]["lr"] = rate
            each.step()
        return self._theta.clone()


def _adam(asked: Adam, parameters: list[Tensor]) -> TorchOptimizer:
    return torch.optim.Adam(parameters, betas=(asked.beta1, asked.beta2), eps=asked.eps)


def _muon(asked: Muon, parameters: list[Tensor]) -> TorchOptimizer:
    return torch.optim.Muon(
        parameters,
        weight_decay=0.0,
        momentum=asked.momentum,
        ns_steps=asked.ns_steps,
        adjust_lr_fn=asked.adjust_lr_fn,
    )
