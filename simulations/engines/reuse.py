"""Cells of batches that are used several times: each pass takes gradient steps on the same outputs.

Outputs are drawn at θ₀. Step j weights them by the ratio of the policy at θ_{j-1} to that at θ₀:

    θ_j = θ_{j-1} + η ĝ_j,      ĝ_j = (1/BG) Σ_b Σ_i A_{b,i} Σₜ wₜ(θ_{j-1}) sₜ(θ_{j-1}).

Every step is inserted into the policy itself, so rates may have any size and either sign. What is linear in
the rate comes from differences of batches with the same outputs at rates ±η, ±2η and ±3η, whose errors are of
order η⁶. Neither engine differentiates a score.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import floor, log2
from typing import Any, ClassVar

import numpy as np

from ustat_pg.engines.base import (
    Cell,
    Draws,
    Estimator,
    InfeasibleError,
    Integers,
    MomentSums,
    Replications,
)
from ustat_pg.engines.gradients.cell import GradientCell, direction
from ustat_pg.engines.gradients.exact import minibatches, require, size
from ustat_pg.engines.gradients.reference import different
from ustat_pg.estimators import clipped_weights, importance_weights
from ustat_pg.files.digests import digest
from ustat_pg.problems import SoftmaxBandit, token_outcomes
from ustat_pg.rounding import DERIVED
from ustat_pg.validation import Array, integer

from .practical import Rule

_BLOCK = 4096
"""Replications in a block; few, because NumPy draws them."""

_MOST = 20_000
"""The most outcomes of a batch that are enumerated; each is inserted at several rates."""

_SMALL = 1 / 128
"""The change of a log-probability by the shortest step of a difference, at most."""

SEQUENCE = Rule("sequence")
"""The rule with the ratio of whole outputs, without clipping."""

_RATES = np.array([1, 2, 3, -1, -2, -3])
"""The rates of a difference, in units of its shortest one."""

_ODD = np.array([45, -9, 1, -45, 9, -1]) / 60
"""The weights of a function at these rates in its derivative at 0."""

_EVEN = np.array([15, -6, 1, 15, -6, 1]) / 20
"""The weights of a function at these rates in its value at 0."""

Batch = tuple[Integers, Integers, Array]
"""The prompts (B,), outputs (B, G) and advantages (B, G) of a batch."""


@dataclass(frozen=True)
class _OfStep:
    """A quantity of step ``step`` of a batch, from 1, along a direction.

    Arguments:
        step: its number, over all passes and minibatches.
        number: the direction's number; None is the direction of ∇J(θ₀).
        rule: the weights of tokens.
    """

    step: int
    number: int | None = 0
    rule: Rule = SEQUENCE
    kind: ClassVar[str]

    @property
    def label(self) -> str:
        return f"{self.kind}[{self.step},{self.number},{self.rule.label}]"


@dataclass(frozen=True)
class StepBias(_OfStep):
    """⟨ĝ_j - ∇J(θ_{j-1}), u⟩ at a rate.

    Arguments:
        rate: η.
    """

    rate: float = 1.0
    kind = "step-bias"

    @property
    def label(self) -> str:
        return f"{super().label}@{self.rate!r}"


@dataclass(frozen=True)
class StepSlope(_OfStep):
    """The derivative of :class:`StepBias` in the rate at 0."""

    kind = "step-slope"


@dataclass(frozen=True)
class SumNoise(_OfStep):
    """⟨ĝ₁ + ... + ĝ_j - j ∇J(θ₀), u⟩² as the rate tends to 0."""

    kind = "sum-noise"


@dataclass(frozen=True, eq=False)
class ReusedBatch(Cell):
    """A batch of outputs on which several passes are taken. Batches with equal definitions are equal.

    Arguments:
        problem: the problem at θ₀, whose policy can take other parameters.
        group_size: G.
        batch_size: B, the prompts of one step.
        minibatches: the number of steps of each pass, on disjoint minibatches of whole groups.
        design: how all prompts of the batch are drawn.
        estimator: the estimator of the advantages.

    >>> coin = SoftmaxBandit.bernoulli([0.8, 0.2], [1, 0])
    >>> second = ReusedBatch(coin, 4).measure("exact", [StepSlope(2), StepBias(2, rate=0.01)])
    >>> second.mean.round(5)
    array([-0.02868, -0.00029])
    """

    problem: SoftmaxBandit
    group_size: int
    batch_size: int = 1
    minibatches: int = 1
    design: str = "iid"
    estimator: Estimator = field(default_factory=lambda: Estimator("grpo"))

    steps = 1
    block = _BLOCK
    engines = ("reference",)
    measures = (StepBias, StepSlope, SumNoise)

    def __post_init__(self) -> None:
        integer("minibatches", self.minibatches)
        self.estimator.require_group(self.group_size)

    @cached_property
    def name(self) -> str:
        words = digest(repr((self.minibatches, self.estimator.label)))
        return f"reuse/{self._drawn.name}/{words}"

    @cached_property
    def _drawn(self) -> GradientCell:
        prompts = self.batch_size * self.minibatches
        return GradientCell(self.problem, self.group_size, prompts, self.design)

    @cached_property
    def _known(self) -> dict[Any, Array]:
        """The vectors in quantities, by quantity and batch."""
        return {}

    @cached_property
    def rate(self) -> float:
        """η of the differences, a power of 2."""
        low, high = self.problem.reward_range
        longest = float(self.problem.score_diameters.max())
        return float(2.0 ** floor(log2(_SMALL / max((high - low) * longest**2, 1e-9))))

    def require_exact(self, quantities: Sequence[Any]) -> None:
        self.require_quantities(quantities)
        ordered = self.minibatches > 1
        if size(self._drawn, tuples=ordered) > _MOST:
            raise InfeasibleError(
                f"enumeration needs {size(self._drawn, tuples=ordered)} outcomes of the batch: at most "
                f"{_MOST} are feasible; take a smaller group or batch"
            )
        require(self._drawn, tuples=ordered)

    def range(self, quantity: Any) -> tuple[float, float]:
        """The least and the greatest value over all outcomes, by enumeration."""
        self.require_exact([quantity])
        ends = [
            (float(values.min()), float(values.max())) for values, _ in self._enumerated([quantity])
        ]
        return min(low for low, _ in ends), max(high for _, high in ends)

    def rounding(self, quantity: Any) -> float:
        # A difference at rate η loses as many digits as its steps are small.
        return DERIVED / _SMALL * max(map(abs, self.ends(quantity)))

    def _enumerated(self, quantities: Sequence[Any]) -> Iterator[tuple[Array, Array]]:
        for draws, chance in minibatches(self._drawn, tuples=self.minibatches > 1):
            yield self._values(quantities, draws), chance

    def _measure(self, engine: str, quantities: Sequence[Any], block: Replications) -> MomentSums:
        if engine == "exact":
            outcomes = self._enumerated(quantities)
            return MomentSums.exact(np.asarray(sum(chance @ values for values, chance in outcomes)))
        numbers = {"seed": block.seed, "first": block.first, "replications": block.count}
        draws, place = different(self._drawn, **numbers)
        return MomentSums.of(self._values(quantities, draws)[place])

    def _values(self, quantities: Sequence[Any], draws: Draws) -> Array:
        """The quantities of each batch, (R, Q); a repeated batch is computed once."""
        order = np.lexsort((draws.rewards, draws.arms), axis=-1)
        arms, rewards = (np.take_along_axis(a, order, -1) for a in (draws.arms, draws.rewards))
        rows = np.concatenate([draws.contexts[..., None], arms, rewards], axis=-1)
        groups, code = np.unique(rows.reshape(-1, rows.shape[-1]), axis=0, return_inverse=True)
        codes = code.reshape(rows.shape[:2])
        if self.minibatches == 1:
            # A step does not depend on the order of its prompts.
            codes = np.sort(codes, axis=1)
        batches, back = np.unique(codes, axis=0, return_inverse=True)
        values = [[self._value(one, groups[batch]) for one in quantities] for batch in batches]
        return np.array(values)[back.ravel()]

    def _value(self, quantity: Any, groups: Array) -> float:
        """A quantity of one batch, whose groups are rows of a prompt, arms and rewards."""
        key = replace(quantity, number=None), groups.tobytes()
        if key not in self._known:
            contexts = groups[:, 0].astype(np.int64)
            arms = groups[:, 1 : 1 + self.group_size].astype(np.int64)
            norms = self.problem.policy.squared_norms[contexts[:, None], arms]
            rewards = groups[:, -self.group_size :]
            draws = Draws(contexts[None], arms[None], rewards[None], norms[None])
            batch = contexts, arms, self.estimator.advantages(self.problem, draws)[0]
            self._known[key] = self._vectors(quantity, batch)
        vectors = self._known[key] @ self._unit(quantity.number)
        return float(vectors if vectors.ndim == 0 else _EVEN @ vectors**2)

    def _unit(self, number: int | None) -> Array:
        """The direction of a quantity, (d,)."""
        if number is not None:
            return direction(self.problem, number)
        gradient = self.problem.gradient()
        return np.asarray(gradient / np.linalg.norm(gradient))

    def _vectors(self, quantity: Any, batch: Batch) -> Array:
        """The bias of the step or its slope, (d,), or the error of the sum at each rate, (6, d)."""

        def bias(rate: float) -> Array:
            *_, (theta, estimate) = self._path(quantity, batch, rate)
            at = self.problem.policy.with_theta(theta)
            won = at.probs * self.problem.mean_rewards
            return np.asarray(estimate - at.mean_combination(won, self.problem.context_probs))

        if isinstance(quantity, StepBias):
            return bias(quantity.rate)
        rates = self.rate * _RATES
        if isinstance(quantity, StepSlope):
            return np.asarray(_ODD @ np.stack([bias(rate) for rate in rates]) / self.rate)
        totals = [sum(ghat for _, ghat in self._path(quantity, batch, rate)) for rate in rates]
        return np.stack(totals) - quantity.step * self.problem.gradient()

    def _path(self, quantity: Any, batch: Batch, rate: float) -> Iterator[tuple[Array, Array]]:
        """θ before each step, and the estimate there."""
        contexts, arms, advantages = batch
        theta, size_ = self.problem.policy.theta, self.batch_size
        for step in range(quantity.step):
            first = step % self.minibatches * size_
            part = slice(first, first + size_)
            vectors = self._weighted(theta, quantity.rule) if step else self._at_first
            chosen = (advantages[part] < 0).astype(np.int64), contexts[part, None], arms[part]
            estimate = np.tensordot(advantages[part], vectors[chosen]) / advantages[part].size
            yield theta, estimate
            theta = theta + rate * estimate

    def _weighted(self, theta: Array, rule: Rule) -> Array:
        """Σₜ wₜ sₜ of all outputs, for a positive and for a negative advantage, (2, X, K, d)."""
        old, policy = self.problem.policy, self.problem.policy.with_theta(theta)
        if rule == SEQUENCE:
            ratios = policy.probs / old.probs
            scores = np.stack([policy.scores(x) for x in range(self.problem.contexts)])
            return np.broadcast_to(ratios[..., None] * scores, (2, *scores.shape))
        tokens = token_outcomes(self.problem, theta)
        inside = np.broadcast_to(tokens.inside, tokens.old.shape)
        weights = importance_weights(tokens.new - tokens.old, inside, ratio=rule.ratio)
        both = [weights, weights]
        if rule.sides is not None:
            (low, high), ones = rule.sides, np.ones(weights.shape[:-1])
            both = [clipped_weights(weights, sign, low=low, high=high) for sign in (ones, -ones)]
        return np.einsum("sxkt,xktd->sxkd", np.stack(both), tokens.scores)

    @cached_property
    def _at_first(self) -> Array:
        """The same at θ₀, where all ratios are 1."""
        return self._weighted(self.problem.policy.theta, SEQUENCE)
