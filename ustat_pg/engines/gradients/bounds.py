"""Bounds on a gradient estimate, with which an interval is valid at every sample size."""

from __future__ import annotations

import numpy as np

from ...problems import SoftmaxBandit
from ...rounding import SUM
from ...validation import InputError
from ..base import Array, Estimator


def largest_norm(problem: SoftmaxBandit, estimator: Estimator, group_size: int) -> float:
    """A bound on ‖ĝ‖ of one prompt."""
    norms = np.sqrt(problem.policy.squared_norms)
    return _largest(problem, estimator, group_size, norms, problem.score_diameters)


def largest_along(
    problem: SoftmaxBandit, estimator: Estimator, group_size: int, unit: Array
) -> float:
    """A bound on |⟨ĝ - g, u⟩| of one prompt."""
    policy = problem.policy
    along = policy.inner(unit)
    spreads = np.ptp(np.where(policy.probs > 0, along, along[:, :1]), 1)
    largest = _largest(problem, estimator, group_size, np.abs(along), spreads)
    return largest + abs(float(problem.gradient() @ unit))


def reward_rounding(problem: SoftmaxBandit) -> tuple[float, float]:
    """The largest rounding error of a reward minus a baseline, and the largest norm of a score's terms."""
    low, high = problem.reward_range
    # Terms that cancel in a score may be longer than the score: with one arm the score is 0.
    norm = max(float(np.sqrt(problem.policy.squared_norms.max())), problem.policy.feature_norm)
    return SUM * max(abs(low), abs(high)), norm


def _largest(
    problem: SoftmaxBandit, estimator: Estimator, group_size: int, sizes: Array, spreads: Array
) -> float:
    """A bound on |Σ Aᵢ ℓ(sᵢ)| / G where |ℓ(s)| <= sizes (X, K) and |ℓ(s) - ℓ(s')| <= spreads (X,)."""
    if estimator.function is not None and not estimator.within_rewards:
        raise InputError(
            f"no range is known for {estimator.label}: say Estimator(..., within_rewards=True) if its "
            "baseline lies within the group's rewards, or use the engine exact"
        )
    outcomes = problem.outcomes
    possible = outcomes.probs > 0
    rewards = outcomes.rewards
    rows = np.arange(problem.contexts)[:, None]
    highest = np.where(possible, rewards, -np.inf).max(axis=1)
    lowest = np.where(possible, rewards, np.inf).min(axis=1)
    reward_spread = highest - lowest
    values = estimator.baseline_values(problem)
    at_outcomes = np.where(possible, sizes[rows, outcomes.arms], 0.0)
    if values is not None:
        return float((at_outcomes * np.abs(rewards - values[:, None])).max())
    if estimator.record.of_pairs:
        # The estimate is the mean of ½ (s - s')(z - z') over pairs.
        return float((spreads * reward_spread).max() / 2)
    if estimator.record.by_count and problem.binary:
        won, lost = estimator.by_count(group_size)
        n = np.arange(group_size + 1)
        sums = n * np.abs(won) + (group_size - n) * np.abs(lost)
        return float(at_outcomes.max() * sums.max() / group_size)
    if estimator.record.of_thresholds:
        # The sum of tables at thresholds, each times its share of the rewards' spread.
        won, lost = estimator.by_count(group_size)
        n = np.arange(group_size + 1)
        sums = n * np.abs(won) + (group_size - n) * np.abs(lost)
        return float((at_outcomes.max(axis=1) * reward_spread).max() * sums.max() / group_size)
    if estimator.record.standardised:
        return float(at_outcomes.max())
    if not estimator.record.within_rewards:
        raise InputError(f"no range is known for {estimator.label}")
    # The baseline lies within the rewards' range, or it is 0.
    largest = np.maximum(reward_spread, np.abs(np.where(possible, rewards, 0.0)).max(axis=1))
    return float((at_outcomes.max(axis=1) * largest).max())
