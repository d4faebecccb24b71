"""The autograd engine: gradients of a surrogate loss, as a training loop takes them, on CPU or CUDA.

A replication's estimate is the gradient, in the flat parameters, of

    (1/(BG)) Σ_b Σ_i A_{b,i} log π_θ(y_{b,i} | x_b)

with advantages A held constant, many replications at once under ``vmap``. The target g is the
gradient of the return enumerated over all outputs. Neither reads the policy's own scores, so that
what this engine finds is evidence of its own; only draws and the baselines of the prompt are
shared with the other engines. This module needs torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock

import numpy as np

from ...memory import slices
from ...problems import SoftmaxBandit
from ...validation import InputError
from ..base import Array, Draws, Estimator, MomentSums, Replications
from .cell import (
    GradientCell,
    GradientQuantity,
    columns,
    direction,
    estimators_of,
)
from .reference import draw_outcomes

try:
    import torch
    from torch import Tensor
    from torch.func import grad, vmap
except ImportError:
    raise InputError("the autograd engine needs torch: pip install 'ustat_pg[torch]'") from None

from ...policies.transformer import BYTES, CACHE_BYTES, GRADIENT_COPIES, MEMORY
from .models import Model, model_of

SEPARATE_GRADIENTS = 2
"""Estimators for which a gradient each is cheaper than a gradient of every output drawn."""

NUMBERS_OF_AN_OUTPUT = 32
"""About how many numbers live while an output is drawn."""

KEPT_PROBLEMS = 8
"""Problems whose model and target are kept."""


@dataclass(eq=False)
class Prepared:
    """A problem as tensors on a device."""

    problem: SoftmaxBandit
    model: Model

    def __post_init__(self) -> None:
        self.theta = self.model.theta()
        self._norms = torch.full_like(self.model.floats(self.problem.mean_rewards), torch.nan)

    def allowed(self, numbers: int, gradients: int) -> int:
        """How many fit at once, each of so many numbers beside so many gradients."""
        vectors = BYTES * gradients * self.model.d
        most = MEMORY // (BYTES * numbers + GRADIENT_COPIES * vectors)
        if self.model.device.type == "cpu":
            most = min(most, CACHE_BYTES // max(vectors, 1))
        return max(1, int(most))

    # The target.

    @cached_property
    def target(self) -> Tensor:
        """g, the gradient of the enumerated return, (d,)."""
        model = self.model
        probs = model.floats(self.problem.context_probs)
        rewards = model.floats(self.problem.mean_rewards)
        total = torch.zeros_like(self.theta)
        numbers = 2 * model.activity * model.space.count
        for some in slices(self.problem.contexts, MEMORY // (BYTES * numbers)):
            here = torch.arange(some.start, some.stop, device=model.device)
            with torch.no_grad():
                chances = model.all_log_probs(self.theta, here).exp()
            # A constant changes no gradient of a mean, and the value keeps the most digits.
            values = (chances * rewards[here]).sum(-1, keepdim=True)
            weights = probs[here, None] * (rewards[here] - values)

            def part_of_return(theta: Tensor, x: Tensor = here, w: Tensor = weights) -> Tensor:
                return (w * model.all_log_probs(theta, x).exp()).sum()

            total += grad(part_of_return)(self.theta)
        return total

    # The estimates.

    def squared_norms(self, contexts: Tensor, arms: Tensor) -> Tensor:
        """‖∇ log π‖² of outputs drawn, of the arms' shape."""
        model = self.model
        contexts = contexts.expand_as(arms)
        pairs = (contexts * self.problem.arms + arms).unique()
        pairs = pairs[self._norms.flatten()[pairs].isnan()]
        for rows in slices(len(pairs), self.allowed(model.activity, 1)):
            x, k = pairs[rows] // self.problem.arms, pairs[rows] % self.problem.arms
            scores = vmap(grad(self._log_prob), (None, 0, 0))(self.theta, x, model.outputs[k])
            self._norms[x, k] = scores.square().sum(-1)
        return self._norms[contexts, arms]

    def _log_prob(self, theta: Tensor, context: Tensor, output: Tensor) -> Tensor:
        return self.model.log_prob(theta, context[None], output[None])[0]

    def _surrogate(
        self, theta: Tensor, contexts: Tensor, outputs: Tensor, weights: Tensor
    ) -> Tensor:
        """(1/(BG)) Σ A log π over a minibatch of BG outputs."""
        return (weights * self.model.log_prob(theta, contexts, outputs)).mean()

    def per_replication(self, estimators: int, outputs: int) -> tuple[int, int]:
        """Numbers and gradients that one replication needs at once."""
        if estimators <= SEPARATE_GRADIENTS:
            return outputs * (
                NUMBERS_OF_AN_OUTPUT + self.model.activity * (1 + estimators)
            ), estimators
        return outputs * (NUMBERS_OF_AN_OUTPUT + self.model.activity), outputs + estimators

    def estimates(self, contexts: Tensor, outputs: Tensor, weights: Tensor) -> Tensor:
        """The gradient of each surrogate, (r, E, d).

        A surrogate is linear in its advantages, so that those of many estimators on the same
        outputs are sums of the outputs' own gradients.
        """
        if weights.shape[1] <= SEPARATE_GRADIENTS:
            slope = vmap(grad(self._surrogate), (None, None, None, 0))
            return vmap(slope, (None, 0, 0, 0))(self.theta, contexts, outputs, weights)
        gradient = vmap(vmap(grad(self._log_prob), (None, 0, 0)), (None, 0, 0))
        return weights @ gradient(self.theta, contexts, outputs) / outputs.shape[1]

    def advantages(
        self, estimator: Estimator, contexts: Tensor, arms: Tensor, rewards: Tensor
    ) -> Tensor:
        """Advantages of the drawn outputs (r, B, G)."""
        if estimator.function is not None:
            norms = self.squared_norms(contexts[..., None], arms)
            drawn = (tensor.cpu().numpy() for tensor in (contexts, arms, rewards, norms))
            return self.model.floats(estimator.advantages(self.problem, Draws(*drawn)))

        def of_prompt() -> Tensor:
            values = estimator.baseline_values(self.problem)
            assert values is not None
            return self.model.floats(values)[contexts]

        weighed: Tensor = estimator.weigh(
            rewards,
            value=of_prompt,
            optimal_baseline=of_prompt,
            predicted_value=of_prompt,
            squared_norms=lambda: self.squared_norms(contexts[..., None], arms),
        )
        return weighed

    def values(
        self,
        quantities: Sequence[GradientQuantity],
        contexts: Tensor,
        arms: Tensor,
        rewards: Tensor,
    ) -> Array:
        """The quantities of each replication, (r, Q)."""
        rows = contexts[:, :, None]
        estimators = estimators_of(quantities)
        weights = torch.stack(
            [self.advantages(e, contexts, arms, rewards).flatten(1) for e in estimators], dim=1
        )
        unequal = rewards.amin(-1) < rewards.amax(-1)
        estimates = self.estimates(
            rows.expand_as(arms).flatten(1),
            self.model.outputs[arms.flatten(1)],
            weights,
        )
        values = columns(
            quantities,
            dict(zip(estimators, estimates.unbind(1), strict=True)),
            self.target,
            unequal.double().mean(-1),
            lambda number: self.model.floats(direction(self.problem, number)),
        )
        return torch.stack(list(values), dim=-1).cpu().numpy()


_KEPT: dict[tuple[str, str], Prepared] = {}
_LOCK = Lock()


def prepared(problem: SoftmaxBandit, device: str) -> Prepared:
    """The problem on a device, made once."""
    place = problem.digest, device
    with _LOCK:
        if place not in _KEPT:
            while len(_KEPT) >= KEPT_PROBLEMS:
                del _KEPT[next(iter(_KEPT))]
            _KEPT[place] = Prepared(problem, model_of(problem.policy, device))
        return _KEPT[place]


def measure(
    cell: GradientCell, quantities: Sequence[GradientQuantity], block: Replications
) -> MomentSums:
    """The sums of a block: the reference engine's draws, and surrogates differentiated.

    Raises:
        InputError: tables, and a device that is not there.
    """
    here = prepared(cell.problem, cell.device or "cpu")
    model, parts = here.model, []
    needed = here.per_replication(len(estimators_of(quantities)), cell.outputs)
    for rows in slices(block.count, here.allowed(*needed)):
        first, count = block.first + rows.start, rows.stop - rows.start
        contexts, arms, rewards = draw_outcomes(
            cell, seed=block.seed, first=first, replications=count
        )
        drawn = model.integers(contexts), model.integers(arms), model.floats(rewards)
        parts.append(here.values(quantities, *drawn))
    return MomentSums.of(np.concatenate(parts))
