"""The estimators with a closed form, each with its predictions, and numbers of a problem that do not
depend on them. Claims about gradients share these.

Scales, and whether a check is possible, come from :func:`noise` and :func:`slope`. These read a
problem's outcomes and its return, never a prediction that is under test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np
from scipy.special import softmax

from ustat_pg.engines import (
    Estimator,
    GradientCell,
    Projection,
    Quantity,
    SquaredError,
    SquaredProjection,
)
from ustat_pg.engines.gradients.cell import direction
from ustat_pg.predictions import gradient_covariance, gradient_mse
from ustat_pg.problems import SoftmaxBandit

from ..evidence import Check, Linear, Statement, equal, mean_of
from ..evidence.verdict import ROUNDING
from ..problems import BanditEntry, Entry, mse_of, word
from .margins import COARSE
from .numerics import Approximate, derivative

P = TypeVar("P")

Weights = tuple[tuple[Quantity, float], ...]
"""Quantities of a cell with their weights in a sum."""

CRITIC = (0.9, 0.2, 0.6)
"""The positions of a critic's values in the range of the rewards, by prompt; not near the true values."""

CONSTANT = 0.35
"""The position of the constant in that range."""


@dataclass(frozen=True)
class Setting:
    """A problem with a minibatch's design; its cell is created at the first use."""

    entry: BanditEntry
    group_size: int
    batch_size: int = 1
    design: str = "iid"

    @cached_property
    def cell(self) -> GradientCell:
        return GradientCell(self.entry.problem, self.group_size, self.batch_size, self.design)

    @cached_property
    def name(self) -> str:
        return label(self)

    def check(
        self, what: str, terms: Quantity | Weights, statement: Callable[[], Statement]
    ) -> Check:
        """A check of a quantity on the cell, or of a combination of quantities, created at the first use."""
        weights = terms if isinstance(terms, tuple) else ((terms, 1.0),)
        return self.entry.check(
            f"{self.name}: {what}", lambda: Linear(self.cell, weights), statement
        )


@dataclass(frozen=True)
class Peer:
    """An estimator with a closed form, and the values from the closed forms."""

    estimator: Estimator

    @property
    def name(self) -> str:
        return word(self.estimator)

    def _predicted(self, formula: Callable[..., P], cell: GradientCell) -> P:
        return formula(
            *(cell.problem.moments(), self.estimator.name),
            *(cell.group_size, cell.batch_size, cell.design),
            constant=self.estimator.constant,
            critic=self.estimator.values,
        )

    def squared_error(self, cell: GradientCell) -> float:
        return self._predicted(gradient_mse, cell).mse

    def mean(self, cell: GradientCell, unit: np.ndarray) -> Approximate:
        """The predicted E⟨ĝ, u⟩, a multiple of the derivative of J."""
        factor = float(self._predicted(gradient_mse, cell).mean_factor[0])
        value, error = slope(cell.problem, unit)
        return Approximate(factor * value, abs(factor) * error)

    def square(self, cell: GradientCell, unit: np.ndarray) -> Approximate:
        """The predicted E⟨ĝ - g, u⟩²."""
        matrix = self._predicted(gradient_covariance, cell)
        factor = float(self._predicted(gradient_mse, cell).mean_factor[0])
        bias, error = ((factor - 1) * part for part in slope(cell.problem, unit))
        return Approximate(
            float(unit @ matrix @ unit) + bias**2, abs(error) * (2 * abs(bias) + abs(error))
        )


def within(problem: SoftmaxBandit, places: tuple[float, ...]) -> tuple[float, ...]:
    """A number for each prompt, which takes these positions in the range of the rewards in turn."""
    low, high = problem.reward_range
    return tuple(low + (high - low) * places[x % len(places)] for x in range(problem.contexts))


NAMED = ("grpo", "vanilla", "oracle", "minimum-variance", "group-mean")


def peers(problem: SoftmaxBandit, names: tuple[str, ...] = NAMED) -> list[Peer]:
    """Every estimator with a closed form, including a critic that differs from the value."""
    low, high = problem.reward_range
    return [
        *[Peer(Estimator(name)) for name in names],
        Peer(Estimator("constant", low + (high - low) * CONSTANT)),
        # These values lie within the problem's rewards.
        Peer(Estimator("critic", values=within(problem, CRITIC))),
    ]


def noise(cell: GradientCell, estimator: Estimator, unit: np.ndarray | None = None) -> float:
    """E[‖s‖² (z - b)²] / (B G), or of ⟨s, u⟩², over the outcomes: the scale of an error.

    b is the prompt's baseline, or the value V for estimators without one.
    """
    problem, outcomes = cell.problem, cell.problem.outcomes
    policy = problem.policy
    squares = policy.squared_norms if unit is None else policy.inner(unit) ** 2
    of_outcomes = squares[np.arange(problem.contexts)[:, None], outcomes.arms]
    baseline = estimator.baseline_values(problem)
    if baseline is None:
        baseline = (outcomes.probs * outcomes.rewards).sum(axis=1)
    by_prompt = (outcomes.probs * of_outcomes * (outcomes.rewards - baseline[:, None]) ** 2).sum(
        axis=1
    )
    return float(problem.context_probs @ by_prompt) / (cell.group_size * cell.batch_size)


def scale(cell: GradientCell, estimator: Estimator, unit: np.ndarray | None = None) -> float:
    """The size of an error; if the baseline leaves no error, a tenth of the error without a baseline.

    If scores are 0, it is a millionth of the terms that cancel in them, so that rounding is no error.
    """
    problem = cell.problem
    cancels = max(map(abs, problem.reward_range)) * problem.policy.feature_norm
    left = noise(cell, estimator, unit), noise(cell, Estimator("vanilla"), unit) / 10
    return max(*left, 1e-6 * cancels**2)


KEPT_SLOPES = 64
"""The number of derivatives that are kept, because all estimators of a problem use the same one."""


def slope(problem: SoftmaxBandit, unit: np.ndarray) -> Approximate:
    """The derivative of J along u, from values of J; scores only determine the step.

    A network's tables are valid only at their own parameters, so for these it is ⟨∇J, u⟩.
    """
    return _slope(problem, unit.tobytes())


@lru_cache(KEPT_SLOPES)
def _slope(problem: SoftmaxBandit, vector: bytes) -> Approximate:
    policy, unit = problem.policy, np.frombuffer(vector)
    if getattr(policy, "source", policy) is None:
        return Approximate(float(problem.gradient() @ unit), 0.0)

    def objectives(steps: np.ndarray) -> np.ndarray:
        probs = softmax(policy.logits_at(policy.theta + np.multiply.outer(steps, unit)), axis=-1)
        return np.asarray((probs * problem.mean_rewards).sum(axis=-1) @ problem.context_probs)

    # A softmax whose logits differ by s·t has its nearest poles at |t| = π/s.
    reach = 1 / max(float(np.ptp(policy.inner(unit), axis=1).max()), 1e-3)
    return derivative(objectives, 0.0, reach)


DIRECTIONS = 16
"""The number of random directions; the one along which rivals differ most is used."""


@dataclass(frozen=True)
class Direction:
    """A random direction: its number and its vector."""

    number: int
    unit: np.ndarray

    def along(self, vector: np.ndarray) -> float:
        return float(vector @ self.unit)

    def check(
        self, entry: Entry[Any], what: str, cell: GradientCell, estimator: Estimator,
        mean: np.ndarray, rivals: Mapping[str, np.ndarray] | None = None, **margins: float,
    ) -> Check:  # fmt: skip
        """An estimator's mean, and the vectors that rivals take for it, along the direction."""
        wrong = {rival: self.along(vector) for rival, vector in (rivals or {}).items()}
        says = equal(self.along(mean), wrong, **margins)
        return entry.check(what, mean_in(cell, estimator, self.number), says)


def telling(problem: SoftmaxBandit, differences: Iterable[np.ndarray]) -> Direction:
    """The direction in which all differences are most visible: its least cosine with any is greatest."""
    apart = np.stack([*differences])
    units = np.stack([direction(problem, number) for number in range(DIRECTIONS)])
    lengths = np.linalg.norm(apart, axis=1)
    # A rounding error of 0 has no direction.
    there = lengths > ROUNDING * lengths.max()
    shown = np.abs(units @ apart[there].T) / lengths[there]
    number = int(shown.min(axis=1, initial=1.0).argmax())
    return Direction(number, units[number])


def mean_in(cell: GradientCell, estimator: Estimator, number: int) -> Linear:
    """E ⟨ĝ, u⟩ along a fixed direction: the mean of the error plus that of the gradient."""
    slope = float(cell.problem.gradient() @ direction(cell.problem, number))
    return Linear(cell, ((Projection(estimator, number), 1.0),), slope)


def weight_in(cell: GradientCell, estimator: Estimator, number: int = 0) -> Linear:
    """E ⟨ĝ, u⟩ divided by ⟨g, u⟩."""
    slope = mean_in(cell, estimator, number).constant
    return Linear(cell, ((Projection(estimator, number), 1 / slope),), 1.0)


def along(at: Setting, peer: Peer, number: int) -> Check:
    """The second moment of an estimator's error along a fixed direction, uᵀ M u for its matrix M."""

    def statement() -> Statement:
        unit = direction(at.entry.problem, number)
        size = scale(at.cell, peer.estimator, unit)
        value, error = peer.square(at.cell, unit)
        return equal(value, scale=size, relative_margin=COARSE, digits=error)

    what = f"{peer.name} covariance along direction {number}"
    return at.check(what, SquaredProjection(peer.estimator, number), statement)


def error(at: Setting, peer: Peer) -> Check:
    def statement() -> Statement:
        return equal(peer.squared_error(at.cell), scale=scale(at.cell, peer.estimator))

    return at.check(peer.name, SquaredError(peer.estimator), statement)


def error_of(
    entry: BanditEntry,
    what: str,
    cell: GradientCell,
    name: str,
    rivals: Mapping[str, float] | None = None,
    **margins: float,
) -> Check:
    """The MSE of an estimator that its name determines, from its closed form."""
    sizes = cell.group_size, cell.batch_size, cell.design
    value = gradient_mse(entry.problem.moments(), name, *sizes).mse
    return entry.check(what, mean_of(cell, mse_of(name)), equal(value, rivals, **margins))


def mean(at: Setting, peer: Peer, number: int, *rivals: str) -> Check:
    """An estimator's mean along a fixed direction: the derivative of J, plus the bias.

    A rival says that it is (G-1)/G of the derivative, as with the full group's mean.
    """

    def statement() -> Statement:
        unit = direction(at.entry.problem, number)
        value, error = peer.mean(at.cell, unit)
        return equal(
            value,
            dict.fromkeys(rivals, slope(at.entry.problem, unit).value * (1 - 1 / at.group_size)),
            scale=(at.group_size * scale(at.cell, peer.estimator, unit)) ** 0.5,
            digits=error,
        )

    what = f"{at.name}: mean of {peer.name} along direction {number}"
    return at.entry.check(what, lambda: mean_in(at.cell, peer.estimator, number), statement)


def no_mean_score(at: Setting, number: int) -> Check:
    """E⟨s, u⟩ = 0: the difference of the estimates without a baseline for rewards plus 1 and rewards."""
    one, none = (
        Projection(estimator, number)
        for estimator in (Estimator("constant", -1.0), Estimator("vanilla"))
    )

    def statement() -> Statement:
        policy, unit = at.entry.problem.policy, direction(at.entry.problem, number)
        squares = (policy.probs * policy.inner(unit) ** 2).sum(axis=1)
        return equal(0.0, scale=float(at.entry.problem.context_probs @ squares) ** 0.5)

    what = f"mean score along direction {number}"
    return at.check(what, ((one, 1.0), (none, -1.0)), statement)


def saving(cell: GradientCell, better: Estimator, worse: Estimator) -> Linear:
    """MSE(worse) - MSE(better), on the same draws."""
    return Linear(cell, ((SquaredError(worse), 1.0), (SquaredError(better), -1.0)))


def label(cell: GradientCell | Setting) -> str:
    batch = "" if cell.batch_size == 1 else f" B={cell.batch_size} {cell.design}"
    return f"G={cell.group_size}{batch}"
