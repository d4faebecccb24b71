"""The record that every problem produces and that predictions read.

Bandits enumerate it; a later problem may estimate it. Predictions take nothing else, so whatever
can fill this record gets every prediction of the library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .validation import InputError, finite_array, integer, probabilities

__all__ = ["ContextMatrices", "Moments"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ContextMatrices:
    """Matrix moments of one context: what a covariance needs and an MSE does not.

    Arguments:
        fisher: F(x) = E[s sᵀ | x], (d, d).
        advantage: E[s sᵀ a | x], a = z - V(x), (d, d).
        squared_advantage: E[s sᵀ a² | x], (d, d).
        gradient: g(x) = E[s z | x], (d,).
    """

    fisher: Array
    advantage: Array
    squared_advantage: Array
    gradient: Array


@dataclass(frozen=True, eq=False)
class Moments:
    """Moments of score and reward in every context, all arrays of shape (X,).

    Rewards enter about their own mean, so that an offset of all rewards costs no precision.

    Arguments:
        context_probs: ρ(x), sums to 1.
        value: V(x) = E[z | x].
        reward_variance: σ²(x) = Var(z | x).
        fisher_trace: tr F(x) = E[‖s‖² | x].
        norm_advantage: E[‖s‖² a | x], a = z - V(x): zero where Assumption 2 holds for this reward.
        norm_squared_advantage: τ(x) = E[‖s‖² a² | x].
        gradient_sq: ‖g(x)‖², g(x) = E[s z | x].
        mean_gradient_sq: ‖g‖², g = E g(X) = ∇J (a number).
        reward_range: the least and the greatest reward possible.
        matrices: called without arguments, yields one :class:`ContextMatrices` per context;
            None where only traces are known.

    Raises:
        InputError: arrays of different lengths, not finite, or impossible as moments.
    """

    context_probs: Array
    value: Array
    reward_variance: Array
    fisher_trace: Array
    norm_advantage: Array
    norm_squared_advantage: Array
    gradient_sq: Array
    mean_gradient_sq: float
    reward_range: tuple[float, float]
    matrices: Callable[[], Iterator[ContextMatrices]] | None = None

    def __post_init__(self) -> None:
        probs = probabilities("context_probs", self.context_probs, 1)
        object.__setattr__(self, "context_probs", probs)
        for name in (
            "value",
            "reward_variance",
            "fisher_trace",
            "norm_advantage",
            "norm_squared_advantage",
            "gradient_sq",
        ):
            array = finite_array(name, getattr(self, name), 1)
            if len(array) != len(probs):
                raise InputError(
                    f"{name} has {len(array)} entries: it must have one per context ({len(probs)})"
                )
            object.__setattr__(self, name, array)
        for name in ("reward_variance", "fisher_trace", "norm_squared_advantage", "gradient_sq"):
            if (getattr(self, name) < 0).any():
                raise InputError(f"{name} holds a negative entry: it is a mean of squares")
        if not 0 <= self.mean_gradient_sq < np.inf:
            raise InputError(f"mean_gradient_sq is {self.mean_gradient_sq}: it is a square")
        low, high = finite_array("reward_range", self.reward_range, 1)
        if not low <= high:
            raise InputError(f"reward_range is {self.reward_range}: the least must come first")

    def __len__(self) -> int:
        return len(self.context_probs)

    @property
    def norm_reward(self) -> Array:
        """E[‖s‖² z | x], (X,)."""
        return self.norm_advantage + self.value * self.fisher_trace

    @property
    def norm_squared_reward(self) -> Array:
        """E[‖s‖² z² | x], (X,)."""
        return self.centred(0.0)

    @property
    def optimal_baseline(self) -> Array:
        """b*(x) = E[‖s‖² z | x] / E[‖s‖² | x], the minimum-variance baseline, (X,).

        Where every score is zero any baseline is as good: V(x) is taken.
        """
        moving = self.fisher_trace > 0
        trace = np.where(moving, self.fisher_trace, 1.0)
        return self.value + np.where(moving, self.norm_advantage / trace, 0.0)

    def centred(self, baseline: float | Array) -> Array:
        """E[‖s‖² (z - b)² | x] for a baseline b(x), (X,)."""
        shift = baseline - self.value
        return np.maximum(
            self.norm_squared_advantage
            - 2 * shift * self.norm_advantage
            + shift**2 * self.fisher_trace,
            0.0,
        )

    def at(self, context: int) -> Moments:
        """Moments of the problem that asks the one prompt ``context`` and no other."""
        if integer("context", context, 0) >= len(self):
            raise InputError(f"context {context} is not there: contexts are 0 to {len(self) - 1}")
        matrices = self.matrices

        def only() -> Iterator[ContextMatrices]:
            assert matrices is not None
            for index, record in enumerate(matrices()):
                if index == context:
                    yield record
                    return

        row = slice(context, context + 1)
        return Moments(
            context_probs=np.ones(1),
            value=self.value[row],
            reward_variance=self.reward_variance[row],
            fisher_trace=self.fisher_trace[row],
            norm_advantage=self.norm_advantage[row],
            norm_squared_advantage=self.norm_squared_advantage[row],
            gradient_sq=self.gradient_sq[row],
            mean_gradient_sq=float(self.gradient_sq[context]),
            reward_range=self.reward_range,
            matrices=None if matrices is None else only,
        )
