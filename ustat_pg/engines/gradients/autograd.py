"""The autograd engine: gradients of a surrogate loss, as a training loop takes them, on CPU or CUDA.

A replication's estimate is the gradient, in the flat parameters, of

    (1/(BG)) Σ_b Σ_i A_{b,i} log π_θ(y_{b,i} | x_b)

with advantages A held constant. A surrogate is linear in its advantages: where the gradients ∇ log π of
all outputs fit in memory, they are taken once a problem under ``vmap``, and estimates are sums of them. Of
each block a few surrogates are differentiated as they stand, and must agree; where the gradients do not fit,
all are. The target g is the gradient of the return enumerated over all outputs. None reads the policy's own
scores, so that what this engine finds is evidence of its own; only draws and the baselines of the prompt are
shared with the other engines. This module needs torch.

A GPU takes as many replications at once as its free memory holds. A block's values stay there, and their sums
come back in one piece. Threads take turns, since each would count the same memory as free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from threading import Lock

import numpy as np

from ...memory import BYTES, allowance, at_once, in_slices, slices
from ...problems import SoftmaxBandit
from ...validation import InputError
from ..base import Array, Draws, Estimator, Integers, MomentSums, Replications
from .cell import GradientCell, GradientQuantity, columns, direction, estimators_of
from .reference import draw_outcomes

try:
    import torch
    from torch import Tensor
    from torch.func import grad, vmap
    from torch.nn import functional
except ImportError:
    raise InputError("the autograd engine needs torch: pip install 'ustat_pg[torch]'") from None

from .models import Model, model_of

NUMBERS_OF_AN_OUTPUT = 32
"""About how many numbers live while an output is drawn."""

DRAWN_BYTES = 2**30
"""Bytes of this machine's memory that draws on their way to a GPU may take."""

KEPT_PROBLEMS = 16
"""Problems whose model, gradients and target are kept."""

KEPT_SHARE = 1 / 4
"""The share of the memory that the gradients of a problem's outputs may take."""

SURROGATES = 8
"""Replications of a block whose surrogates are differentiated though sums of gradients stand for them."""

ROUNDING = 1e-9
"""The most that a sum of gradients may be off its surrogate's, for an advantage and a gradient of 1."""

_TURN = Lock()
"""Held while a GPU works."""

Drawn = tuple[Integers, Integers, Array]
"""Contexts (r, B), arms and rewards (r, B, G)."""


@dataclass(eq=False)
class Prepared:
    """A problem as tensors on a device."""

    problem: SoftmaxBandit
    model: Model

    def __post_init__(self) -> None:
        self.theta = self.model.theta()
        self.turn = nullcontext() if self.model.device.type == "cpu" else _TURN

    # The target.

    @cached_property
    def target(self) -> Tensor:
        """g, the gradient of the enumerated return, (d,)."""
        model = self.model
        probs = model.floats(self.problem.context_probs)
        rewards = model.floats(self.problem.mean_rewards)
        total = torch.zeros_like(self.theta)
        numbers = 2 * model.activity * model.space.count
        for some in slices(self.problem.contexts, at_once(model.device, numbers)):
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

    @cached_property
    def gradients(self) -> Tensor | None:
        """∇ log π of every output, prompt by prompt, (X K, d); None where they are too many to keep."""
        numbers = self.problem.contexts * self.problem.arms * self.model.d
        if BYTES * numbers > KEPT_SHARE * allowance(self.model.device):
            return None
        return torch.cat([*self._gradients()])

    def _gradients(self) -> Iterator[Tensor]:
        model, contexts = self.model, self.problem.contexts
        x = torch.arange(contexts, device=model.device).repeat_interleave(self.problem.arms)
        outputs = model.outputs.repeat(contexts, 1)
        gradient = vmap(grad(self._log_prob), (None, 0, 0))
        for rows in slices(len(x), at_once(model.device, model.activity, model.d)):
            yield gradient(self.theta, x[rows], outputs[rows])

    @cached_property
    def squared_norms(self) -> Tensor:
        """‖∇ log π‖² of every output, (X, K)."""
        parts = self._gradients() if self.gradients is None else [self.gradients]
        return torch.cat([part.square().sum(-1) for part in parts]).reshape(-1, self.problem.arms)

    @cached_property
    def _norms_on_host(self) -> Array:
        return np.asarray(self.squared_norms.cpu())

    def _log_prob(self, theta: Tensor, context: Tensor, output: Tensor) -> Tensor:
        return self.model.log_prob(theta, context[None], output[None])[0]

    def _surrogate(
        self, theta: Tensor, contexts: Tensor, outputs: Tensor, weights: Tensor
    ) -> Tensor:
        """(1/(BG)) Σ A log π over a minibatch of BG outputs."""
        return (weights * self.model.log_prob(theta, contexts, outputs)).mean()

    def at_once(self, estimators: int, outputs: int, *, differentiated: bool) -> int:
        """The replications that fit at once, by their surrogates or by sums of gradients."""
        device, numbers = self.model.device, NUMBERS_OF_AN_OUTPUT + 3 * estimators
        if differentiated:
            numbers += self.model.activity * (1 + estimators)
        most = at_once(device, outputs * numbers, estimators * self.model.d)
        if device.type == "cpu":
            return most
        return max(1, min(most, DRAWN_BYTES // (BYTES * NUMBERS_OF_AN_OUTPUT * outputs)))

    def surrogates(self, places: Tensor, weights: Tensor) -> Tensor:
        """The gradient of each surrogate, (r, E, d); see :meth:`estimates`."""
        slope = vmap(grad(self._surrogate), (None, None, None, 0))
        contexts, arms = places // self.problem.arms, places % self.problem.arms
        outputs = self.model.outputs[arms]
        return vmap(slope, (None, 0, 0, 0))(self.theta, contexts, outputs, weights)

    def estimates(self, places: Tensor, weights: Tensor) -> Tensor:
        """Estimates, (r, E, d).

        Arguments:
            places: the outputs drawn, numbered prompt by prompt, (r, BG).
            weights: their advantages by each estimator, (r, E, BG).
        """
        if self.gradients is None:
            return self.surrogates(places, weights)
        bags = places[:, None].expand_as(weights).flatten(0, 1)
        shares = weights.flatten(0, 1) / places.shape[1]
        sums = functional.embedding_bag(bags, self.gradients, mode="sum", per_sample_weights=shares)
        return sums.unflatten(0, weights.shape[:2])

    def advantages(
        self, estimator: Estimator, draws: Draws, places: Tensor, rewards: Tensor
    ) -> Tensor:
        """Advantages of the drawn outputs (r, B, G)."""
        if estimator.function is not None:
            return self.model.floats(estimator.advantages(self.problem, draws))

        def of_prompt() -> Tensor:
            values = estimator.baseline_values(self.problem)
            assert values is not None
            return self.model.floats(values)[places[..., 0] // self.problem.arms]

        weighed: Tensor = estimator.weigh(
            rewards,
            value=of_prompt,
            optimal_baseline=of_prompt,
            predicted_value=of_prompt,
            squared_norms=lambda: self.squared_norms.flatten()[places],
        )
        return weighed

    def weighed(
        self, estimators: Sequence[Estimator], drawn: Drawn
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rewards (r, B, G), outputs and advantages as :meth:`estimates` takes them, of what was drawn."""
        contexts, arms, rewards = drawn
        rows, norms = contexts[..., None], rewards
        if any(estimator.function for estimator in estimators):
            norms = self._norms_on_host[rows, arms]
        draws = Draws(contexts, arms, rewards, norms)
        places = self.model.integers(rows * self.problem.arms + arms)
        there = self.model.floats(rewards)
        weights = [self.advantages(each, draws, places, there).flatten(1) for each in estimators]
        return there, places.flatten(1), torch.stack(weights, dim=1)

    def values(self, quantities: Sequence[GradientQuantity], drawn: Drawn) -> Tensor:
        """The quantities of each replication, (r, Q)."""
        estimators = estimators_of(quantities)
        rewards, places, weights = self.weighed(estimators, drawn)
        unequal = rewards.amin(-1) < rewards.amax(-1)
        values = columns(
            quantities,
            dict(zip(estimators, self.estimates(places, weights).unbind(1), strict=True)),
            self.target,
            unequal.double().mean(-1),
            lambda number: self.model.floats(direction(self.problem, number)),
        )
        return torch.stack(list(values), dim=-1)

    def differences(self, quantities: Sequence[GradientQuantity], drawn: Drawn) -> Tensor:
        """The most that an estimate is off its surrogate's gradient, against what it is made of, (r,)."""
        _, places, weights = self.weighed(estimators_of(quantities), drawn)
        off = (self.surrogates(places, weights) - self.estimates(places, weights)).abs()
        # Where all gradients cancel to rounding, that of numbers of about 1 is left.
        longest = 1 + self.squared_norms.amax().sqrt()
        largest = longest * weights.abs().amax((1, 2))
        return off.amax((1, 2)) / (largest + (largest == 0))


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
        ArithmeticError: sums of gradients that are not the gradients of surrogates.
    """
    here = prepared(cell.problem, cell.device or "cpu")
    size = len(estimators_of(quantities)), cell.outputs

    def run(what: Callable[..., Tensor], rows: slice) -> Tensor:
        first, count = block.first + rows.start, rows.stop - rows.start
        drawn = draw_outcomes(cell, seed=block.seed, first=first, replications=count)
        with here.turn:
            return what(quantities, drawn)

    with here.turn:
        kept = here.gradients is not None
        most = here.at_once(*size, differentiated=not kept)
        few = min(SURROGATES, block.count, here.at_once(*size, differentiated=True))
    off = run(here.differences, slice(0, few)).amax() if kept else here.theta.new_zeros(())
    some = partial(run, here.values)
    values = torch.cat([part for _, part in in_slices(block.count, most, "replications", some)])
    mean = values.mean(0)
    centred = values - mean
    # All that a block leaves behind, in one piece.
    sums = torch.cat([off[None], mean, (centred.T @ centred).flatten()]).cpu().numpy()
    if not sums[0] <= ROUNDING:
        raise ArithmeticError(
            f"{cell.name}: sums of outputs' gradients are {sums[0]:.3g} off the gradients of surrogates"
        )
    means, products = np.split(sums[1:], [len(mean)])
    return MomentSums(block.count, means, products.reshape(len(mean), -1))
