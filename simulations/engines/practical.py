"""Cells of Algorithm 2: a batch of prompts is split into minibatches, one plain gradient step each.

The policy at the start of the batch draws all outputs, so all minibatches except the first have
a policy that did not draw them. A :class:`PracticalCell` takes the steps before one minibatch, or a
given drift instead of them, and measures the gradient there:

    ĝ = (1/B) Σ_b (1/G) Σᵢ Σₜ [ wₜ A_{b,i} + β (π_ref/π_θ - 1) ] sₜ.

``exact`` enumerates every outcome of the steps before and of the minibatch; ``reference`` draws them.
Neither uses a closed form, and both accept any rewards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from ustat_pg.engines.base import (
    Cell,
    Draws,
    Estimator,
    InfeasibleError,
    Integers,
    MomentSums,
    Quantity,
    Replications,
)
from ustat_pg.engines.gradients.cell import GradientCell
from ustat_pg.engines.gradients.exact import minibatches, size
from ustat_pg.engines.gradients.reference import draw
from ustat_pg.estimators import clipped_weights, importance_weights, kl_coefficients
from ustat_pg.files.digests import digest
from ustat_pg.policies import SoftmaxPolicy
from ustat_pg.problems import SoftmaxBandit, token_outcomes
from ustat_pg.rounding import DERIVED
from ustat_pg.validation import Array, changed

_BLOCK_NUMBERS = 2**22
"""The approximate number of gradient entries in a block; a block has 1,024 to 16,384 replications."""

_KEPT_NUMBERS = 2**20
"""The approximate number of entries in the tables that a cell keeps."""

_PATHS = 10_000
"""The most outcomes of the earlier steps that are enumerated."""

_LIMIT = 20_000_000
"""The most outcomes of the earlier steps times those of the minibatch."""


@dataclass(frozen=True)
class Rule:
    """The rule for the weights of token scores.

    Arguments:
        ratio: one of :data:`~ustat_pg.estimators.RATIOS`.
        clip: ε of PPO's clipping, on both sides or (below, above); by default no clipping.
        kl_ratio: the ratio on the penalty.
    """

    ratio: str = "token"
    clip: float | tuple[float, float] | None = None
    kl_ratio: str = "none"

    @property
    def sides(self) -> tuple[float, float] | None:
        """ε below and above, if weights are clipped."""
        if self.clip is None or isinstance(self.clip, tuple):
            return self.clip
        return self.clip, self.clip

    @property
    def label(self) -> str:
        return f"{self.ratio},{self.clip},{self.kl_ratio}"


UNBIASED = Rule("sequence", None, "sequence")
"""The rule whose mean is the gradient at θ."""


@dataclass(frozen=True)
class _OfRule(ABC):
    """A quantity of the gradient under a rule."""

    rule: Rule
    kind: ClassVar[str]

    @property
    def label(self) -> str:
        return f"{self.kind}[{self.rule.label}]"

    @abstractmethod
    def errors(self, estimates: Any, target: Array) -> Array:
        """The vectors in the quantity, (n, d), from the estimates under rules and the target (d,)."""


@dataclass(frozen=True)
class PracticalError(_OfRule):
    """‖ĝ - target‖²."""

    kind = "practical-error"

    def errors(self, estimates: Any, target: Array) -> Array:
        return np.asarray(estimates(self.rule) - target)


@dataclass(frozen=True)
class TargetBias(PracticalError):
    """⟨ĝ - target, ĝ' - target⟩ of two independent minibatches at one θ; the mean is E‖E[ĝ|θ] - target‖²."""

    kind = "target-bias"


@dataclass(frozen=True)
class RatioBias(_OfRule):
    """The same for ĝ minus the estimate with the sequence ratio on the same draws: E‖ratio bias‖²."""

    kind = "ratio-bias"

    def errors(self, estimates: Any, target: Array) -> Array:
        return np.asarray(estimates(self.rule) - estimates(UNBIASED))


PracticalQuantity = PracticalError | TargetBias | RatioBias
"""Quantities of the gradient; a bias is a mean of products of two minibatches."""


@dataclass(frozen=True, eq=False)
class PracticalCell(Cell):
    """A minibatch of Algorithm 2. Cells with equal definitions are equal.

    Arguments:
        problem: the problem at θ_old, where the batch begins.
        group_size: G.
        learning_rate: η of the earlier steps.
        batch_size: B, the prompts of a minibatch, drawn independently.
        minibatch: its number m in the batch, from 1; m - 1 steps come before it.
        drift: a direction (d,) that replaces the sum of the earlier gradients; then minibatch is 1.
        estimator: the estimator of the advantages.
        beta: β of the KL penalty, k3 in the loss.
        reference: the policy in that penalty; by default π_old.
        weights: factors on each prompt's gradient of V_θ in the target, (X,); by default 1.

    >>> from ustat_pg.policies import PrefixSoftmax
    >>> from ustat_pg.problems import modular_sum
    >>> task = modular_sum(2, 2, prompts=[(1,)])
    >>> problem = task.at(PrefixSoftmax.random(task.space, 1, seed=1))
    >>> cell = PracticalCell(problem, group_size=2, learning_rate=0.5)
    >>> round(float(cell.measure("exact", [RatioBias(Rule("token"))]).mean[0]), 8)
    0.00078098
    """

    problem: SoftmaxBandit
    group_size: int
    learning_rate: float
    batch_size: int = 1
    minibatch: int = 2
    drift: Array | None = None
    estimator: Estimator = field(default_factory=lambda: Estimator("std"))
    beta: float = 0.0
    reference: SoftmaxPolicy | None = None
    weights: tuple[float, ...] | None = None

    engines = ("reference",)
    measures = (PracticalError, RatioBias)

    @cached_property
    def name(self) -> str:
        words = [
            *(self.learning_rate, self.minibatch, self.estimator.label, self.beta),
            *(self.weights or ()),
        ]
        arrays = {} if self.drift is None else {"drift": np.asarray(self.drift)}
        if self.reference is not None:
            named = self.reference.arrays()
            arrays |= {f"reference_{key}": value for key, value in named.items()}
        return f"practical/{self._drawn(1).name}/{digest(repr(words), arrays)}"

    def _drawn(self, count: int) -> GradientCell:
        """A cell with that number of minibatches, all drawn at θ_old."""
        return GradientCell(self.problem, self.group_size, count * self.batch_size)

    @property
    def steps(self) -> int:  # type: ignore[override]
        """The number of minibatches in one replication: the earlier steps, this one and its twin."""
        return self.minibatch + 1

    @property
    def block(self) -> int:
        return int(2 ** np.clip(np.floor(np.log2(_BLOCK_NUMBERS / self.problem.d)), 10, 14))

    @property
    def reserve(self) -> float:  # type: ignore[override]
        """1.5 after sampled steps, because rare steps matter and a pilot may miss them."""
        return 1.5 if self.minibatch > 1 else 1.0

    def require_exact(self, quantities: Sequence[Quantity]) -> None:
        self.require_quantities(quantities)
        before = self.minibatch - 1
        paths = size(self._drawn(before)) if before else 1
        if paths > _PATHS or paths * size(self._drawn(1)) > _LIMIT:
            raise InfeasibleError(
                f"enumeration needs {paths} outcomes of the steps before, and {size(self._drawn(1))} "
                f"of the minibatch after each: at most {_PATHS}, and {_LIMIT:.0e} together, are "
                "feasible; take a smaller group or batch"
            )

    def range(self, quantity: Quantity) -> tuple[float, float]:
        """The least and the greatest value over all outcomes, by enumeration."""
        largest = self._enumerated(quantity)[1]
        return (0.0 if type(quantity) is PracticalError else -largest), largest

    def rounding(self, quantity: Quantity) -> float:
        return DERIVED * self._enumerated(quantity)[1]

    # The code for both engines.

    def _advantages(self, draws: Draws) -> Array:
        """The factors on vectors from the draws of minibatches: positive and negative advantages, and the
        penalty, (3, n, X K).
        """
        values = self.estimator.advantages(self.problem, draws)
        outputs = values[0].size
        places = draws.contexts[..., None] * self.problem.arms + draws.arms

        def table(of_outputs: Array) -> Array:
            count, width = len(values), self.problem.contexts * self.problem.arms
            rows = (np.arange(count)[:, None, None] * width + places).ravel()
            total = np.bincount(rows, of_outputs.ravel() / outputs, count * width)
            return np.asarray(total.reshape(count, width), dtype=np.float64)

        return np.stack(
            [table(np.maximum(values, 0)), table(np.minimum(values, 0)), table(0 * values + 1)]
        )

    def _at(self, theta: Array) -> Any:
        """The result of :meth:`_made_at`, stored if the earlier steps lead to few parameters."""
        key = theta.tobytes()
        if key not in self._tables:
            if len(self._tables) * self.problem.arms * self.problem.d > _KEPT_NUMBERS:
                self._tables.clear()
            self._tables[key] = self._made_at(theta)
        return self._tables[key]

    @cached_property
    def _tables(self) -> dict[bytes, Any]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        # Another process creates its functions of tables again.
        return {key: value for key, value in vars(self).items() if key != "_tables"}

    @cached_property
    def _reference_logs(self) -> Array:
        """Log-probabilities of the tokens under the reference, as for a sampling policy, (X, K, T)."""
        policy = self.reference or self.problem.policy
        return token_outcomes(changed(self.problem, policy=policy)).old

    def _made_at(self, theta: Array) -> Any:
        """The estimates of minibatches under a rule at π_θ, the target there, and the frame (d, m) of both.

        All lie in the span of the tokens' scores and of the target, which has far fewer dimensions than
        a network has parameters.
        """
        outcomes = token_outcomes(self.problem, theta)
        inside = np.broadcast_to(outcomes.inside, outcomes.old.shape)
        logs, d = outcomes.new - outcomes.old, self.problem.d
        pull = self.beta * kl_coefficients(self._reference_logs - outcomes.new, "k3", "loss")

        # Computed from the policy's own tables, not from the parts of estimates.
        policy = self.problem.policy.with_theta(theta)
        chance = self.problem.context_probs[:, None] * policy.probs
        scale = np.ones(len(chance)) if self.weights is None else np.array(self.weights)
        won = policy.probs * self.problem.mean_rewards
        target = policy.mean_combination(won, self.problem.context_probs * scale)
        spanning = np.vstack([outcomes.scores.reshape(-1, d), target])
        frame = np.linalg.qr(spanning.T)[0] if len(spanning) < d else np.eye(d)
        scores = outcomes.scores @ frame

        def vectors(weights: Array) -> Array:
            return np.einsum("xkt,xktm->xkm", weights, scores).reshape(-1, frame.shape[1])

        known: dict[Rule, tuple[Array, Array, Array]] = {}

        def tables(rule: Rule) -> tuple[Array, Array, Array]:
            if rule not in known:
                weights = importance_weights(logs, inside, ratio=rule.ratio)
                both = [weights, weights]
                if rule.sides is not None:
                    (low, high), ones = rule.sides, np.ones(weights.shape[:-1])
                    both = [
                        clipped_weights(weights, sign, low=low, high=high) for sign in (ones, -ones)
                    ]
                added = pull * importance_weights(logs, inside, ratio=rule.kl_ratio)
                known[rule] = vectors(both[0]), vectors(both[1]), vectors(added)
            return known[rule]

        def estimates(rule: Rule, chosen: Array) -> Array:
            rising, falling, added = tables(rule)
            return chosen[0] @ rising + chosen[1] @ falling + chosen[2] @ added

        return estimates, target @ frame + chance.ravel() @ vectors(pull), frame

    def _moved(self, thetas: Array, draws: Draws) -> Array:
        """The parameters after a step on a minibatch, for parameters (n, d)."""
        coefficients = self._advantages(draws)
        moved = np.empty_like(thetas)
        for theta, rows in _alike(thetas):
            weights = coefficients[:, rows]
            # Few outcomes differ, so each is moved once, with the same bits at every place.
            first, back = _distinct(np.hstack([*weights]))
            estimates, _, frame = self._at(theta)
            steps = estimates(Rule(), weights[:, first]) @ frame.T
            moved[rows] = theta + self.learning_rate * steps[back]
        return moved

    def _start(self, count: int) -> Array:
        theta = self.problem.policy.theta
        if self.drift is not None:
            theta = theta + self.learning_rate * np.asarray(self.drift)
        return np.tile(theta, (count, 1))

    # The exact engine.

    @cached_property
    def _outcomes(self) -> tuple[Array, Array]:
        """Every outcome of a minibatch, with its probability."""
        parts = [(self._advantages(draws), p) for draws, p in minibatches(self._drawn(1))]
        coefficients, chances = zip(*parts, strict=True)
        return np.concatenate(coefficients, axis=1), np.concatenate(chances)

    @cached_property
    def _paths(self) -> tuple[Array, Array]:
        """Every θ that the earlier steps can reach, (n, d), with its probability."""
        if self.minibatch == 1:
            return self._start(1), np.ones(1)
        ends, chances = [], []
        for draws, probability in minibatches(self._drawn(self.minibatch - 1)):
            thetas = self._start(len(probability))
            for part in _split(draws, self.minibatch - 1):
                thetas = self._moved(thetas, part)
            ends.append(thetas)
            chances.append(probability)
        thetas, back = np.unique(np.concatenate(ends), axis=0, return_inverse=True)
        return thetas, np.asarray(np.bincount(back.ravel(), np.concatenate(chances)), np.float64)

    @cached_property
    def _known(self) -> dict[str, tuple[float, float]]:
        return {}

    def _enumerated(self, quantity: Any) -> tuple[float, float]:
        """The mean of a quantity, and its greatest absolute value."""
        if quantity.label not in self._known:
            self.require_exact([quantity])
            coefficients, chances = self._outcomes
            total = largest = 0.0
            for theta, probability in zip(*self._paths, strict=True):
                errors = quantity.errors(*_bound(self._at(theta), coefficients))
                squares = (errors**2).sum(axis=1)
                mean = chances @ errors
                plain = type(quantity) is PracticalError
                total += probability * float(chances @ squares if plain else mean @ mean)
                largest = max(largest, float(squares.max()))
            self._known[quantity.label] = total, largest
        return self._known[quantity.label]

    def _measure(
        self, engine: str, quantities: Sequence[PracticalQuantity], block: Replications
    ) -> MomentSums:
        if engine == "exact":
            return MomentSums.exact(np.array([self._enumerated(one)[0] for one in quantities]))
        numbers = {"seed": block.seed, "first": block.first, "replications": block.count}
        *before, this, twin = _split(draw(self._drawn(self.steps), **numbers), self.steps)
        thetas = self._start(block.count)
        for part in before:
            thetas = self._moved(thetas, part)
        here, there = self._advantages(this), self._advantages(twin)
        values = np.empty((block.count, len(quantities)))
        for theta, rows in _alike(thetas):
            outcomes = self._at(theta)
            first, second = (_bound(outcomes, of_loss[:, rows]) for of_loss in (here, there))
            for column, quantity in enumerate(quantities):
                errors = quantity.errors(*first)
                other = errors if type(quantity) is PracticalError else quantity.errors(*second)
                values[rows, column] = (errors * other).sum(axis=1)
        return MomentSums.of(values)


def _bound(outcomes: Any, coefficients: Array) -> Any:
    """The estimates of some minibatches as a function of the rule alone, and the target."""
    estimates, target, _ = outcomes
    return lambda rule: estimates(rule, coefficients), target


def _split(draws: Draws, parts: int) -> Iterator[Draws]:
    """The draws of a batch, minibatch by minibatch."""
    size = draws.contexts.shape[1] // parts
    for number_ in range(parts):
        part = slice(number_ * size, (number_ + 1) * size)
        yield Draws(*(of[:, part] for of in vars(draws).values() if of is not None))


def _distinct(rows: Array) -> tuple[Integers, Integers]:
    """The first place of each distinct row of (n, m), and the distinct row's index for each row, (n,)."""
    # Sorting one number per row is faster than sorting rows.
    sums = (rows * np.sqrt(np.arange(2.0, rows.shape[1] + 2))).sum(axis=1)
    _, first, back = np.unique(sums, return_index=True, return_inverse=True)
    if (rows[first][back] != rows).any():
        _, first, back = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, back.ravel()


def _alike(thetas: Array) -> Iterator[tuple[Array, Integers]]:
    """The distinct ones of some parameters (n, d), and the index of each."""
    first, back = _distinct(thetas)
    ends = np.cumsum(np.bincount(back))
    yield from zip(thetas[first], np.split(np.argsort(back, kind="stable"), ends[:-1]), strict=True)
