"""Between which values a quantity can lie: what makes an interval hold at every sample size."""

from __future__ import annotations

import numpy as np

from ...validation import InputError
from ..base import (
    Array,
    Cell,
    Distance,
    Estimator,
    Projection,
    Quantity,
    SquaredError,
    direction,
)
from ..networks.cell import Probe
from ..runs.cell import Labelled, Runs, TrainingQuantity

__all__ = ["quantity_range", "quantity_rounding"]

_FEW_BITS = 1e-14
"""Relative rounding error of a sum of products, some 50 times that of one operation."""


def quantity_range(
    cell: Cell | Runs, quantity: Quantity | TrainingQuantity | Probe | Labelled
) -> tuple[float, float]:
    """The least and greatest value of a quantity in one replication, or numbers beyond them.

    A minibatch's gradient is a mean of its prompts', so that the bound of one prompt serves.
    """
    if isinstance(cell, Runs):
        return cell.range(quantity)
    assert isinstance(quantity, Quantity)
    problem = cell.problem
    if isinstance(quantity, Distance):
        reach = _norm(cell, quantity.first) + _norm(cell, quantity.second)
        return 0.0, reach**2
    if isinstance(quantity, SquaredError):
        reach = _norm(cell, quantity.estimator) + float(np.linalg.norm(problem.gradient()))
        return 0.0, reach**2
    unit = direction(problem, quantity.number)
    table = problem.policy.inner(unit)
    own, spread = np.abs(table), np.ptp(np.where(problem.policy.probs > 0, table, table[:, :1]), 1)
    reach = _reach(cell, quantity.estimator, own, spread) + abs(float(problem.gradient() @ unit))
    return (-reach, reach) if isinstance(quantity, Projection) else (0.0, reach**2)


def quantity_rounding(
    cell: Cell | Runs, quantity: Quantity | TrainingQuantity | Probe | Labelled
) -> float:
    """What the enumerated mean of a quantity may be off by.

    A reward less a baseline is off by a few bits of the reward, which an error's square multiplies
    by the rewards' spread.
    """
    if isinstance(cell, Runs):
        return cell.rounding(quantity)
    policy = cell.problem.policy
    low, high = cell.problem.reward_range
    off = _FEW_BITS * max(abs(low), abs(high))
    # What cancels in a score may be longer than the score: with one arm the score is 0.
    norm = max(float(np.sqrt(policy.squared_norms.max())), policy.feature_norm)
    if isinstance(quantity, Projection):
        return off * norm
    return off * (high - low + off) * norm**2


def _norm(cell: Cell, estimator: Estimator) -> float:
    """A bound on the norm of one prompt's gradient estimate."""
    policy = cell.problem.policy
    return _reach(cell, estimator, np.sqrt(policy.squared_norms), cell.problem.score_diameters)


def _reach(cell: Cell, estimator: Estimator, sizes: Array, spreads: Array) -> float:
    """A bound on |Σ Aᵢ ℓ(sᵢ)| / G where |ℓ(s)| <= sizes (X, K) and |ℓ(s) - ℓ(s')| <= spreads (X,)."""
    if estimator.function is not None:
        raise InputError(f"no range is known for {estimator.label}")
    outcomes = cell.problem.outcomes
    possible = outcomes.probs > 0
    rewards = outcomes.rewards
    rows = np.arange(cell.problem.contexts)[:, None]
    highest = np.where(possible, rewards, -np.inf).max(axis=1)
    lowest = np.where(possible, rewards, np.inf).min(axis=1)
    reward_spread = highest - lowest
    values = estimator.baseline_values(cell.problem)
    at_outcomes = np.where(possible, sizes[rows, outcomes.arms], 0.0)
    if values is not None:
        return float((at_outcomes * np.abs(rewards - values[:, None])).max())
    if estimator.baseline in ("grpo", "group-mean"):
        # The estimate is a mean of ½ (s - s')(z - z') over pairs.
        return float((spreads * reward_spread).max() / 2)
    if estimator.baseline != "norm-weighted":
        raise InputError(f"no range is known for {estimator.label}")
    # A baseline within the rewards' range; norm-weighted takes 0 where the others' scores are 0.
    largest = np.maximum(reward_spread, np.abs(np.where(possible, rewards, 0.0)).max(axis=1))
    return float((at_outcomes.max(axis=1) * largest).max())
