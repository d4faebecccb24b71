"""The gap after one training step, θ₁ = θ₀ + η ĝ: for policies without a prediction for whole runs.

A network has no reachable optimum and no PL constant, but one step of it has few outcomes. Each is
inserted into the policy itself, so the step may have any length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ustat_pg.engines.base import (
    Cell,
    Draws,
    Estimator,
    Integers,
    MomentSums,
    Quantity,
    Replications,
)
from ustat_pg.engines.gradients.cell import GradientCell
from ustat_pg.engines.gradients.exact import effort, minibatches, require
from ustat_pg.engines.gradients.reference import draw
from ustat_pg.estimators import gradient
from ustat_pg.files.digests import digest
from ustat_pg.problems import SoftmaxBandit
from ustat_pg.validation import Array, InputError

_BLOCK = 4096
"""Replications in a block; few, because NumPy draws a step."""

_EXACTNESS = 1e-9
"""The rounding error of an enumerated gap, as a share of its range."""


@dataclass(frozen=True)
class GapAfterStep:
    """J* - J(θ₁) after a step of an estimator, where J* is the return of the best answers."""

    estimator: Estimator

    @property
    def label(self) -> str:
        return f"gap-after-step[{self.estimator.label}]"


@dataclass(frozen=True, eq=False)
class OneStep(Cell):
    """One gradient step from a problem's parameters. Steps with equal definitions are equal.

    Arguments:
        problem: the problem at θ₀; rewards are deterministic, and its policy can take other parameters.
        group_size: G.
        rate: η.
        batch_size: B, prompts drawn independently.

    Raises:
        InputError: the rewards are random.

    >>> from ustat_pg.policies import PrefixSoftmax
    >>> from ustat_pg.problems import modular_sum
    >>> task = modular_sum(2, 1, prompts=[(1,)])
    >>> problem = task.at(PrefixSoftmax.random(task.space, 1, seed=1))
    >>> after = GapAfterStep(Estimator("grpo"))
    >>> found = OneStep(problem, group_size=2, rate=0.5).measure("exact", [after])
    >>> round(task.gap(problem) - float(found.mean[0]), 6)
    0.051766
    """

    problem: SoftmaxBandit
    group_size: int
    rate: float
    batch_size: int = 1

    steps = 1
    block = _BLOCK
    engines = ("reference",)
    measures = (GapAfterStep,)

    def __post_init__(self) -> None:
        if self.problem.reward_probs.max(axis=2).min() < 1:
            raise InputError("one step needs deterministic rewards: these are random")

    @cached_property
    def name(self) -> str:
        return f"one-step/{self._minibatch.name}/{digest(repr(self.rate))}"

    @cached_property
    def _minibatch(self) -> GradientCell:
        return GradientCell(self.problem, self.group_size, self.batch_size)

    @cached_property
    def _scores(self) -> Array:
        """The scores of all outputs, (X, K, d)."""
        return np.stack([self.problem.policy.scores(x) for x in range(self.problem.contexts)])

    @cached_property
    def _known(self) -> dict[tuple[Estimator, bytes], float]:
        """The gaps after minibatches, by minibatch."""
        return {}

    @cached_property
    def _best(self) -> float:
        """The return if each prompt gets its best answer."""
        return float(self.problem.context_probs @ self.problem.mean_rewards.max(axis=1))

    def range(self, quantity: Quantity) -> tuple[float, float]:
        worst = float(self.problem.context_probs @ self.problem.mean_rewards.min(axis=1))
        return 0.0, self._best - worst

    def rounding(self, quantity: Quantity) -> float:
        return _EXACTNESS * self.range(quantity)[1]

    def require_quantity(self, quantity: Quantity) -> None:
        """Refuse unknown quantities, functions, and leave-one-out in a group of one."""
        super().require_quantity(quantity)
        assert isinstance(quantity, GapAfterStep)
        quantity.estimator.require_name("one step")
        quantity.estimator.require_group(self.group_size)

    def require_exact(self, quantities: Sequence[Quantity]) -> None:
        self.require_quantities(quantities)
        require(self._minibatch)

    def effort(self, quantities: Sequence[Quantity]) -> float:
        return effort(self._minibatch, len(quantities))

    def _measure(
        self, engine: str, quantities: Sequence[GapAfterStep], block: Replications
    ) -> MomentSums:
        if engine == "exact":
            means = sum(
                chance @ self._gaps(quantities, draws)
                for draws, chance in minibatches(self._minibatch)
            )
            return MomentSums.exact(np.asarray(means))
        draws = draw(self._minibatch, seed=block.seed, first=block.first, replications=block.count)
        return MomentSums.of(self._gaps(quantities, draws))

    def _gaps(self, quantities: Sequence[GapAfterStep], draws: Draws) -> Array:
        """The quantities of each minibatch, (R, Q); a repeated minibatch is computed once."""
        # No named estimator depends on the order of a group.
        outcomes = np.concatenate([draws.contexts[:, :, None], np.sort(draws.arms)], axis=2)
        distinct, back = np.unique(outcomes, axis=0, return_inverse=True)
        gaps = [[self._gap_after(one.estimator, row) for one in quantities] for row in distinct]
        return np.array(gaps)[back.ravel()]

    def _gap_after(self, estimator: Estimator, outcome: Integers) -> float:
        """The gap after the step of one minibatch (B, 1 + G): its prompts and their outputs."""
        key = estimator, outcome.tobytes()
        if key not in self._known:
            problem, contexts, arms = self.problem, outcome[:, :1], outcome[:, 1:]
            rewards = problem.mean_rewards[contexts, arms]
            norms = problem.policy.squared_norms[contexts, arms]
            advantages = estimator.advantages(problem, Draws(contexts[:, 0], arms, rewards, norms))
            estimate = gradient(self._scores[contexts, arms], advantages).mean(axis=0)
            after = problem.with_theta(problem.policy.theta + self.rate * estimate)
            self._known[key] = self._best - after.objective()
        return self._known[key]
