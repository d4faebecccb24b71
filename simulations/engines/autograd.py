"""The autograd engine: gradients of a surrogate loss, as a training loop takes them, on CPU or CUDA.

A replication's estimate is the gradient, in the flat parameters, of

    (1/(BG)) Σ_b Σ_i A_{b,i} log π_θ(y_{b,i} | x_b)

with constant advantages A. A surrogate is linear in its advantages: if the gradients ∇ log π of
all outputs fit in memory, they are computed once a problem under ``vmap``, and estimates are sums of them, in
coordinates of their span, which has far fewer dimensions than a network has parameters. A few
surrogates of each block are differentiated directly, and must agree; if the gradients do not fit, all
are. The
target g is the gradient of the return enumerated over all outputs. No step reads the policy's own scores, so
this engine gives independent evidence; it shares only the words of draws, their thresholds and the
baselines of the prompt with the other engines. This module needs torch.

A GPU takes as many replications at once as its free memory holds. It draws them itself, and returns only
the sums of a block, in one piece. Inputs that an advantage function would refuse are checked once a problem.
Threads take turns, because each would count the same memory as free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from threading import Lock

import numpy as np

from ustat_pg.engines.base import Draws, Estimator, MomentSums, Replications
from ustat_pg.engines.gradients.cell import (
    GradientCell,
    GradientQuantity,
    columns,
    direction,
    estimators_of,
)
from ustat_pg.estimators.arrays import trusted
from ustat_pg.execution.memory import BYTES, allowance, at_once, in_slices, slices
from ustat_pg.problems import SoftmaxBandit
from ustat_pg.validation import InputError

try:
    import torch
    from torch import Tensor
    from torch.func import grad, vmap
    from torch.nn import functional
except ImportError:
    raise InputError("the autograd engine needs torch: pip install 'ustat_pg[torch]'") from None

from ustat_pg.policies.models import Model, model_of

from .drawn import Drawn, Outcomes

NUMBERS_OF_AN_OUTPUT = 32
"""The approximate number of values in memory while an output is drawn."""

KEPT_PROBLEMS = 16
"""The number of problems for which model, gradients and target are kept."""

KEPT_SHARE = 1 / 4
"""The share of the memory that the gradients of a problem's outputs may use."""

SURROGATES = 8
"""The replications of a block that are also differentiated directly, to check the sums of gradients."""

ROUNDING = 1e-9
"""The largest error of a sum of gradients against its surrogate's, for an advantage and a gradient of 1."""

_TURN = Lock()
"""The lock that a thread holds while its GPU works."""


@dataclass(eq=False)
class Prepared:
    """A problem as tensors on a device."""

    problem: SoftmaxBandit
    model: Model

    def __post_init__(self) -> None:
        self.theta = self.model.theta()
        self.turn = nullcontext() if self.model.device.type == "cpu" else _TURN
        self._allowed: set[tuple[Estimator, int]] = set()
        self._of_prompts: dict[Estimator, Tensor] = {}
        self._directions: dict[int, Tensor] = {}

    @cached_property
    def outcomes(self) -> Outcomes:
        return Outcomes(self.problem, self.model)

    def direction(self, number: int) -> Tensor:
        """The unit vector with that number, in the frame."""
        if number not in self._directions:
            unit = self.model.floats(direction(self.problem, number))
            self._directions[number] = self.framed(unit)
        return self._directions[number]

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
            # A constant does not change the gradient of a mean; this one, the value, loses the fewest digits.
            values = (chances * rewards[here]).sum(-1, keepdim=True)
            weights = probs[here, None] * (rewards[here] - values)

            def part_of_return(theta: Tensor, x: Tensor = here, w: Tensor = weights) -> Tensor:
                return (w * model.all_log_probs(theta, x).exp()).sum()

            total += grad(part_of_return)(self.theta)
        return total

    # The estimates.

    @cached_property
    def gradients(self) -> Tensor | None:
        """∇ log π of every output, prompt by prompt, (X K, d); None if they are too many to keep."""
        numbers = self.problem.contexts * self.problem.arms * self.model.d
        if BYTES * numbers > KEPT_SHARE * allowance(self.model.device):
            return None
        return torch.cat([*self._gradients()])

    @cached_property
    def frame(self) -> Tensor | None:
        """Orthonormal columns, (d, m), that span the gradients and the target, and so all errors; None if
        gradients are not kept, or span as many dimensions as there are parameters.
        """
        if self.gradients is None or len(self.gradients) + 1 >= self.model.d:
            return None
        return torch.linalg.qr(torch.cat([self.gradients, self.target[None]]).T).Q

    def framed(self, vectors: Tensor) -> Tensor:
        """Vectors (..., d), projected on the span, as coordinates in the frame's columns, (..., m)."""
        return vectors if self.frame is None else vectors @ self.frame

    @cached_property
    def _framed_gradients(self) -> Tensor | None:
        return None if self.gradients is None else self.framed(self.gradients)

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

    def _log_prob(self, theta: Tensor, context: Tensor, output: Tensor) -> Tensor:
        return self.model.log_prob(theta, context[None], output[None])[0]

    def _surrogate(
        self, theta: Tensor, contexts: Tensor, outputs: Tensor, weights: Tensor
    ) -> Tensor:
        """(1/(BG)) Σ A log π over a minibatch of BG outputs."""
        return (weights * self.model.log_prob(theta, contexts, outputs)).mean()

    def at_once(self, estimators: int, outputs: int, *, differentiated: bool) -> int:
        """The replications that fit in memory together, with surrogates or with sums of gradients."""
        numbers, entries = NUMBERS_OF_AN_OUTPUT + 3 * estimators, self.model.d
        if differentiated:
            numbers += self.model.activity * (1 + estimators)
        elif self.frame is not None:
            entries = self.frame.shape[1]
        return at_once(self.model.device, outputs * numbers, estimators * entries)

    def surrogates(self, places: Tensor, weights: Tensor) -> Tensor:
        """The gradient of each surrogate, (r, E, d); see :meth:`estimates`."""
        slope = vmap(grad(self._surrogate), (None, None, None, 0))
        contexts, arms = places // self.problem.arms, places % self.problem.arms
        outputs = self.model.outputs[arms]
        return vmap(slope, (None, 0, 0, 0))(self.theta, contexts, outputs, weights)

    def estimates(self, places: Tensor, weights: Tensor) -> Tensor:
        """Estimates in the frame, (r, E, m).

        Arguments:
            places: the outputs drawn, numbered prompt by prompt, (r, BG).
            weights: their advantages by each estimator, (r, E, BG).
        """
        gradients = self._framed_gradients
        if gradients is None:
            return self.surrogates(places, weights)
        bags = places[:, None].expand_as(weights).flatten(0, 1)
        shares = weights.flatten(0, 1) / places.shape[1]
        sums = functional.embedding_bag(bags, gradients, mode="sum", per_sample_weights=shares)
        return sums.unflatten(0, weights.shape[:2])

    def require(self, estimators: Sequence[Estimator], group_size: int) -> None:
        """Refuse, once, rewards or norms of the problem that an advantage function refuses."""
        for estimator in estimators:
            if estimator.function is None and (estimator, group_size) not in self._allowed:
                (possible,) = self.problem.outcomes.probs.ravel().nonzero()
                some = self.model.integers(
                    np.resize(possible, (-(-len(possible) // group_size), 1, group_size))
                )
                places = self.outcomes.places[some]
                contexts = places[..., 0] // self.problem.arms
                self._weighed(estimator, Drawn(contexts, places, self.outcomes.rewards[some]))
                self._allowed.add((estimator, group_size))

    def _weighed(self, estimator: Estimator, drawn: Drawn) -> Tensor:
        """Advantages of drawn outputs, (r, B, G), for an estimator with a name."""

        def of_prompt() -> Tensor:
            if estimator not in self._of_prompts:
                values = estimator.baseline_values(self.problem)
                assert values is not None
                self._of_prompts[estimator] = self.model.floats(values)
            return self._of_prompts[estimator][drawn.contexts]

        weighed: Tensor = estimator.weigh(
            drawn.rewards,
            value=of_prompt,
            optimal_baseline=of_prompt,
            predicted_value=of_prompt,
            squared_norms=lambda: self.squared_norms.flatten()[drawn.places],
        )
        return weighed

    def weighed(self, estimators: Sequence[Estimator], drawn: Drawn) -> tuple[Tensor, Tensor]:
        """Outputs and advantages of the draws, in the form for :meth:`estimates`."""
        shown: Draws | None = None
        weights = []
        for estimator in estimators:
            if estimator.function is None:
                with trusted():
                    weights.append(self._weighed(estimator, drawn).flatten(1))
                continue
            shown = shown or self._shown(drawn)
            weights.append(self.model.floats(estimator.advantages(self.problem, shown)).flatten(1))
        return drawn.places.flatten(1), torch.stack(weights, dim=1)

    def _shown(self, drawn: Drawn) -> Draws:
        """The draws, in the form for a user's advantage function."""
        norms = self.squared_norms.flatten()[drawn.places]
        arms = drawn.places % self.problem.arms
        parts = (drawn.contexts, arms, drawn.rewards, norms)
        return Draws(*(part.cpu().numpy() for part in parts))

    def values(self, quantities: Sequence[GradientQuantity], drawn: Drawn) -> Tensor:
        """The values of the quantities in each replication, (r, Q)."""
        estimators = estimators_of(quantities)
        places, weights = self.weighed(estimators, drawn)
        unequal = drawn.rewards.amin(-1) < drawn.rewards.amax(-1)
        values = columns(
            quantities,
            dict(zip(estimators, self.estimates(places, weights).unbind(1), strict=True)),
            self.framed(self.target),
            unequal.double().mean(-1),
            self.direction,
        )
        return torch.stack(list(values), dim=-1)

    def differences(self, quantities: Sequence[GradientQuantity], drawn: Drawn) -> Tensor:
        """The largest error of an estimate against its surrogate's gradient, relative to its terms, (r,)."""
        places, weights = self.weighed(estimators_of(quantities), drawn)
        sums = self.estimates(places, weights)
        sums = sums if self.frame is None else sums @ self.frame.T
        off = (self.surrogates(places, weights) - sums).abs()
        # If all gradients cancel, the rounding error of numbers of about 1 remains.
        longest = 1 + self.squared_norms.amax().sqrt()
        largest = longest * weights.abs().amax((1, 2))
        return off.amax((1, 2)) / (largest + (largest == 0))

    def sums(
        self, cell: GradientCell, quantities: Sequence[GradientQuantity], block: Replications
    ) -> Tensor:
        """The largest of a block's :meth:`differences`, then the means and centred products of its values,
        (1 + Q + Q²,).
        """
        estimators = estimators_of(quantities)
        self.require(estimators, cell.group_size)
        size, kept = (len(estimators), cell.outputs), self.gradients is not None
        most = self.at_once(*size, differentiated=not kept)
        few = min(SURROGATES, block.count, self.at_once(*size, differentiated=True))

        def run(what: Callable[..., Tensor], rows: slice) -> Tensor:
            first, count = block.first + rows.start, rows.stop - rows.start
            return what(quantities, self.outcomes.draw(cell, block.seed, first, count))

        off = run(self.differences, slice(0, few)).amax() if kept else self.theta.new_zeros(())
        some = partial(run, self.values)
        values = torch.cat([part for _, part in in_slices(block.count, most, "replications", some)])
        mean = values.mean(0)
        centred = values - mean
        return torch.cat([off[None], mean, (centred.T @ centred).flatten()])


_KEPT: dict[tuple[str, str], Prepared] = {}
_LOCK = Lock()


def prepared(problem: SoftmaxBandit, device: str) -> Prepared:
    """The problem on a device; it is built once."""
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
    """The sums of a block, from the reference engine's draws and gradients of surrogates.

    Raises:
        InputError: the problem has only tables, or the device is missing.
        ArithmeticError: sums of gradients differ from the gradients of surrogates.
    """
    here = prepared(cell.problem, cell.device or "cpu")
    with here.turn:
        sums = here.sums(cell, quantities, block)
    # The complete result of a block, in one piece.
    off, *rest = sums.cpu().numpy()
    if not off <= ROUNDING:
        raise ArithmeticError(
            f"{cell.name}: sums of outputs' gradients are {off:.3g} off the gradients of surrogates"
        )
    means, products = np.split(np.array(rest), [len(quantities)])
    return MomentSums(block.count, means, products.reshape(len(means), -1))
