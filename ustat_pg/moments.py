"""The record that every problem produces and that predictions read.

Bandits enumerate it; a later problem may estimate it. Predictions take nothing else, so whatever
can fill this record gets every prediction of the library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .validation import InputError, finite_array, probabilities

__all__ = ["ContextMatrices", "Moments"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ContextMatrices:
    """Matrix moments of one context: what a covariance needs and an MSE does not.

    Arguments:
        fisher: F(x) = E[s sᵀ | x], (d, d).
        reward_weighted: E[s sᵀ z | x], (d, d).
        squared_reward_weighted: E[s sᵀ z² | x], (d, d).
        gradient: g(x) = E[s z | x], (d,).
    """

    fisher: Array
    reward_weighted: Array
    squared_reward_weighted: Array
    gradient: Array


@dataclass(frozen=True, eq=False)
class Moments:
    """Moments of score and reward in every context (THEORY section 1), all arrays of shape (X,).

    Arguments:
        context_probs: ρ(x), sums to 1.
        value: V(x) = E[z | x].
        reward_variance: σ²(x) = Var(z | x).
        fisher_trace: tr F(x) = E[‖s‖² | x].
        norm_reward: E[‖s‖² z | x].
        norm_squared_reward: E[‖s‖² z² | x].
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
    norm_reward: Array
    norm_squared_reward: Array
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
            "norm_reward",
            "norm_squared_reward",
            "gradient_sq",
        ):
            array = finite_array(name, getattr(self, name), 1)
            if len(array) != len(probs):
                raise InputError(
                    f"{name} has {len(array)} entries: it must have one per context ({len(probs)})"
                )
            object.__setattr__(self, name, array)
        for name in ("reward_variance", "fisher_trace", "norm_squared_reward", "gradient_sq"):
            if (getattr(self, name) < 0).any():
                raise InputError(f"{name} holds a negative entry: it is a mean of squares")
        low, high = self.reward_range
        if not low <= high:
            raise InputError(f"reward_range is {self.reward_range}: the least must come first")

    def __len__(self) -> int:
        return len(self.context_probs)

    @property
    def norm_advantage(self) -> Array:
        """E[‖s‖² a | x], zero where Assumption 2 holds for this reward, (X,)."""
        return self.norm_reward - self.value * self.fisher_trace

    @property
    def norm_squared_advantage(self) -> Array:
        """τ(x) = E[‖s‖² a² | x], (X,)."""
        return self.centred(self.value)

    @property
    def optimal_baseline(self) -> Array:
        """b*(x) = E[‖s‖² z | x] / E[‖s‖² | x], the minimum-variance baseline, (X,).

        Where every score is zero any baseline is as good: V(x) is taken.
        """
        moving = self.fisher_trace > 0
        return np.where(
            moving, self.norm_reward / np.where(moving, self.fisher_trace, 1.0), self.value
        )

    def centred(self, baseline: float | Array) -> Array:
        """E[‖s‖² (z - b)² | x] for a baseline b(x), (X,)."""
        centred = (
            self.norm_squared_reward
            - 2 * baseline * self.norm_reward
            + baseline**2 * self.fisher_trace
        )
        return np.maximum(centred, 0.0)

    def at(self, context: int) -> Moments:
        """Moments of the problem that asks the one prompt ``context`` and no other."""
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
            norm_reward=self.norm_reward[row],
            norm_squared_reward=self.norm_squared_reward[row],
            gradient_sq=self.gradient_sq[row],
            mean_gradient_sq=float(self.gradient_sq[context]),
            reward_range=self.reward_range,
            matrices=None if matrices is None else only,
        )
