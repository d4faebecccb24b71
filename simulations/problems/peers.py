"""What every claim about gradients asks of: the baselines with a closed form, each with its predictions,
and numbers of a problem that owe nothing to them.

Scales, and whether there is anything to ask, come from :func:`noise` and :func:`slope`: they read a
problem's outcomes and its return, never a prediction that is under test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ustat_pg.checks import equal
from ustat_pg.engines import Estimator, GradientCell, Projection, SquaredError, SquaredProjection
from ustat_pg.engines.gradients.cell import direction
from ustat_pg.experiment import Check, Linear, mean_of
from ustat_pg.predictions import gradient_covariance, gradient_mse
from ustat_pg.problems import SoftmaxBandit

from .bandits import BanditEntry, word

CRITIC = (0.9, 0.2, 0.6)
"""Where a critic's values lie in the range of the rewards, prompt by prompt: not near the values."""

COARSE = 0.2
"""The half-width asked of simulation, as a share of a quantity's size, where enumeration is sharp."""

CONSTANT = 0.35
"""Where the constant baseline lies in it."""


@dataclass(frozen=True)
class Peer:
    """A baseline with a closed form.

    Arguments:
        estimator: as engines run it.
        asked: what predictions take beside its name.
    """

    estimator: Estimator
    asked: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What checks call it."""
        return "critic" if self.estimator.learned else word(self.estimator)

    def squared_error(self, cell: GradientCell) -> float:
        """The predicted MSE."""
        return gradient_mse(
            cell.problem.moments(), self.estimator.baseline, *_design(cell), **self.asked
        ).mse

    def bias(self, cell: GradientCell, unit: np.ndarray) -> float:
        """The predicted E⟨ĝ - g, u⟩."""
        found = gradient_mse(
            cell.problem.moments(), self.estimator.baseline, *_design(cell), **self.asked
        )
        return float(found.mean_factor[0] - 1) * slope(cell.problem, unit)

    def square(self, cell: GradientCell, unit: np.ndarray) -> float:
        """The predicted E⟨ĝ - g, u⟩²."""
        matrix = gradient_covariance(
            cell.problem.moments(), self.estimator.baseline, *_design(cell), **self.asked
        )
        return float(unit @ matrix @ unit) + self.bias(cell, unit) ** 2


def _design(cell: GradientCell) -> tuple[int, int, str]:
    return cell.group_size, cell.batch_size, cell.design


def within(problem: SoftmaxBandit, places: tuple[float, ...]) -> tuple[float, ...]:
    """A number for each prompt, at these places of the range of the rewards in turn."""
    low, high = problem.reward_range
    return tuple(low + (high - low) * places[x % len(places)] for x in range(problem.contexts))


NAMED = ("grpo", "vanilla", "oracle", "minimum-variance", "group-mean")


def peers(problem: SoftmaxBandit, names: tuple[str, ...] = NAMED) -> tuple[Peer, ...]:
    """Every baseline with a closed form, a critic that is not the value among them."""
    constant, values = within(problem, (CONSTANT,))[0], within(problem, CRITIC)
    return (
        *(Peer(Estimator(name)) for name in names),
        Peer(Estimator("constant", constant), {"constant": constant}),
        Peer(Estimator("critic", values=values), {"critic": values}),
    )


def noise(cell: GradientCell, estimator: Estimator, unit: np.ndarray | None = None) -> float:
    """E[‖s‖² (z - b)²] / (B G), or of ⟨s, u⟩², over the outcomes: what the size of an error goes by.

    b is the prompt's baseline, its value for estimators that have none of their own.
    """
    problem, outcomes = cell.problem, cell.problem.outcomes
    policy = problem.policy
    squares = policy.squared_norms if unit is None else policy.inner(unit) ** 2
    of_outcomes = squares[np.arange(problem.contexts)[:, None], outcomes.arms]
    baseline = estimator.baseline_values(problem)
    if baseline is None:
        baseline = (outcomes.probs * outcomes.rewards).sum(axis=1)
    each = (outcomes.probs * of_outcomes * (outcomes.rewards - baseline[:, None]) ** 2).sum(axis=1)
    return float(problem.context_probs @ each) / (cell.group_size * cell.batch_size)


def scale(cell: GradientCell, estimator: Estimator, unit: np.ndarray | None = None) -> float:
    """The size of an error; beside a baseline that leaves none, a tenth of what no baseline leaves.

    Where scores are 0, a millionth of what cancels in them: their rounding is no error.
    """
    problem = cell.problem
    cancels = max(map(abs, problem.reward_range)) * problem.policy.feature_norm
    left = noise(cell, estimator, unit), noise(cell, Estimator("vanilla"), unit) / 10
    return max(*left, 1e-6 * cancels**2)


_STEP = 0.02
_STENCIL = np.array([3 / 4, -3 / 20, 1 / 60]) / _STEP
"""Central differences that err by the seventh derivative times step⁶/140."""


def slope(problem: SoftmaxBandit, unit: np.ndarray) -> float:
    """The derivative of J along u, by differences of J: no score takes part.

    A network's tables hold at their own parameters alone: there it is ⟨∇J, u⟩.
    """
    if getattr(problem.policy, "source", problem.policy) is None:
        return float(problem.gradient() @ unit)
    theta = problem.policy.theta
    return float(
        sum(
            weight
            * (
                problem.objective(theta + k * _STEP * unit)
                - problem.objective(theta - k * _STEP * unit)
            )
            for k, weight in enumerate(_STENCIL, 1)
        )
    )


def along(entry: BanditEntry, cell: GradientCell, peer: Peer, number: int) -> Check:
    """The second moment of a baseline's error along a fixed direction, the matrix's uᵀ M u."""
    unit = direction(cell.problem, number)
    return entry.check(
        f"{label(cell)}: {peer.name} covariance along direction {number}",
        mean_of(cell, SquaredProjection(peer.estimator, number)),
        equal(
            peer.square(cell, unit), scale=scale(cell, peer.estimator, unit), relative_margin=COARSE
        ),
    )


def error(entry: BanditEntry, cell: GradientCell, peer: Peer) -> Check:
    """A baseline's MSE."""
    return entry.check(
        f"{label(cell)}: {peer.name}",
        mean_of(cell, SquaredError(peer.estimator)),
        equal(peer.squared_error(cell), scale=scale(cell, peer.estimator)),
    )


def mean(entry: BanditEntry, cell: GradientCell, peer: Peer, number: int, *rivals: str) -> Check:
    """A baseline's mean along a fixed direction: the derivative of J, and its bias beside it.

    A rival says that it is (G-1)/G of the derivative, as with the full group's mean.
    """
    unit = direction(cell.problem, number)
    derivative = slope(cell.problem, unit)
    own = float(cell.problem.gradient() @ unit)
    short = dict.fromkeys(rivals, derivative * (1 - 1 / cell.group_size))
    return entry.check(
        f"{label(cell)}: mean of {peer.name} along direction {number}",
        Linear(cell, ((Projection(peer.estimator, number), 1.0),), own),
        equal(
            derivative + peer.bias(cell, unit),
            short,
            scale=(cell.group_size * scale(cell, peer.estimator, unit)) ** 0.5,
        ),
    )


def no_mean_score(entry: BanditEntry, cell: GradientCell, number: int) -> Check:
    """E⟨s, u⟩ = 0, of rewards that are 1 more and the same: what no baseline makes of them."""
    unit = direction(cell.problem, number)
    policy = cell.problem.policy
    spread = float(
        cell.problem.context_probs @ (policy.probs * policy.inner(unit) ** 2).sum(axis=1)
    )
    one, none = Estimator("constant", -1.0), Estimator("vanilla")
    weights = ((Projection(one, number), 1.0), (Projection(none, number), -1.0))
    return entry.check(
        f"{label(cell)}: mean score along direction {number}",
        Linear(cell, weights),
        equal(0.0, scale=spread**0.5),
    )


def label(cell: GradientCell) -> str:
    """The design of a cell as checks name it."""
    batch = "" if cell.batch_size == 1 else f" B={cell.batch_size} {cell.design}"
    return f"G={cell.group_size}{batch}"
