"""The record of moments that every problem produces and predictions read.

Bandits enumerate it; other problems may estimate it. Predictions read nothing else, so every problem that
fills this record gets all predictions of the library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import attrs
import numpy as np

from ..files.named import READERS
from ..validation import (
    Array,
    InputError,
    changed,
    field,
    finite_array,
    integer,
    number,
    probabilities,
    record,
)

P = ParamSpec("P")
T = TypeVar("T")


@record()
class ContextMatrices:
    """Matrix moments of one context, which a covariance needs but an MSE does not.

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


def _traces_only() -> Iterator[ContextMatrices]:
    raise InputError("these moments have only traces, but a covariance needs their matrices")


def _no_gradients(weights: Array) -> Array:
    raise InputError("these moments have no gradients of prompts")


def least_baseline(value: Any, cross: Any, fisher: Any) -> Any:
    """b* = V + E[‖s‖² a]/tr F, the baseline of least error (Corollary 5, optimality); of symbols too."""
    return value + cross / fisher


@record()
class Moments:
    """Moments of score and reward in every context, all arrays of shape (X,).

    Rewards enter about their own mean, so that an offset of all rewards costs no precision.

    Arguments:
        context_probs: ρ(x), sums to 1.
        value: V(x) = E[z | x].
        reward_variance: σ²(x) = Var(z | x).
        fisher_trace: tr F(x) = E[‖s‖² | x].
        norm_advantage: E[‖s‖² a | x], a = z - V(x); zero if Assumption 2 holds for this reward.
        norm_squared_advantage: τ(x) = E[‖s‖² a² | x].
        gradient_sq: ‖g(x)‖², g(x) = E[s z | x].
        mean_gradient_sq: ‖g‖², g = E g(X) = ∇J (a number).
        reward_range: the least and the greatest reward possible.
        matrices: function without arguments that yields one :class:`ContextMatrices` per context; an error if
            only traces are known.
        weighted_gradient: function of weights w(x), (X,), that returns E w(X) g(X), (d,); an error if it is
            not known.
    """

    context_probs: Array = field(probabilities, ndim=1)
    value: Array = field(finite_array, ndim=1)
    reward_variance: Array = field(finite_array, ndim=1, minimum=0)
    fisher_trace: Array = field(finite_array, ndim=1, minimum=0)
    norm_advantage: Array = field(finite_array, ndim=1)
    norm_squared_advantage: Array = field(finite_array, ndim=1, minimum=0)
    gradient_sq: Array = field(finite_array, ndim=1, minimum=0)
    mean_gradient_sq: float = field(number, minimum=0)
    reward_range: tuple[float, float]
    # Their text is the whole problem's.
    matrices: Callable[[], Iterator[ContextMatrices]] = attrs.field(
        default=_traces_only, repr=False
    )
    weighted_gradient: Callable[[Array], Array] = attrs.field(default=_no_gradients, repr=False)

    def __attrs_post_init__(self) -> None:
        contexts = len(self.context_probs)
        for name, values in vars(self).items():
            of_contexts = isinstance(values, np.ndarray) and name != "reward_range"
            if of_contexts and len(values) != contexts:
                raise InputError(
                    f"{name} has {len(values)} entries: it must have one per context ({contexts})"
                )
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
    def optimal_baseline(self) -> Array:
        """b*(x) = E[‖s‖² z | x] / E[‖s‖² | x], the minimum-variance baseline, (X,).

        If every score is zero, all baselines are equally good, and V(x) is used.
        """
        moving = self.fisher_trace > 0
        trace = np.where(moving, self.fisher_trace, 1.0)
        return np.where(moving, least_baseline(self.value, self.norm_advantage, trace), self.value)

    def mean_gradient(self, weights: Array) -> tuple[float, float]:
        """‖E w(X) g(X)‖² and ⟨E w(X) g(X), g⟩ for weights of the prompts, (X,)."""
        if np.ptp(weights) == 0:
            return weights[0] ** 2 * self.mean_gradient_sq, weights[0] * self.mean_gradient_sq
        mean = self.weighted_gradient(weights)
        return float(mean @ mean), float(mean @ self.weighted_gradient(np.ones(len(self))))

    def at(self, context: int) -> Moments:
        """The moments of the problem with ``context`` as its only prompt."""
        if integer("context", context, 0) >= len(self):
            raise InputError(f"context {context} does not exist: contexts are 0 to {len(self) - 1}")
        rows = {
            name: values[context : context + 1]
            for name, values in vars(self).items()
            if isinstance(values, np.ndarray) and name != "reward_range"
        }
        return changed(
            self,
            **{**rows, "context_probs": np.ones(1)},
            mean_gradient_sq=float(self.gradient_sq[context]),
            matrices=lambda: islice(self.matrices(), context, context + 1),
        )


class HasMoments(Protocol):
    """A problem with moments, at its current parameters."""

    def moments(self) -> Moments:
        """The record."""


Known = Moments | HasMoments | str | Path | Mapping[str, Any]
"""Moments, a problem that has them, or a problem's name, file or named arrays."""


def moments_of(known: Known) -> Moments:
    """The moments of a problem, also of one in a file or ``ustat:NAME``; moments are returned unchanged.

    >>> moments_of(0.5)
    Traceback (most recent call last):
    ...
    ustat_pg.validation.InputError: moments are a float: they must be Moments, or a problem that has them
    >>> moments_of("ustat:skewed").value
    array([0.8])
    """
    if isinstance(known, str | Path | Mapping):
        known = READERS["moments"](known)
    find: Any = getattr(known, "moments", None)
    moments: Any = find() if callable(find) and not isinstance(known, type) else known
    if not hasattr(moments, "matrices"):
        raise InputError(
            f"moments are a {type(known).__name__}: they must be Moments, or a problem that has them"
        )
    return moments


def takes_problems(
    function: Callable[Concatenate[Moments, P], T],
) -> Callable[Concatenate[Known, P], T]:
    """A function of moments that also accepts a problem."""

    @wraps(function)
    def taking(moments: Known, *args: P.args, **kwargs: P.kwargs) -> T:
        return function(moments_of(moments), *args, **kwargs)

    return taking


@record()
class WeightedOutcomes:
    """All outputs of a problem with weighted scores u, whose mean need not be 0; rewards 0 and 1.

    A penalty v, where there is one, is added to an estimate as (1/G) Σᵢ vᵢ, without an advantage.
    The advantage's sign may choose between two tables: u⁺ of successes and u⁻ of failures.

    Arguments:
        context_probs: ρ(x), (X,).
        probs: probabilities under the sampling policy, (X, K).
        rewards: E[z | x, k], (X, K).
        scores: u⁺, (X, K, d).
        targets: target of the mean estimate of each context, (X, d).
        lost_scores: u⁻, (X, K, d), if it differs.
        penalty: v, (X, K, d) (default: none).
    """

    context_probs: Array = field(probabilities, ndim=1)
    probs: Array = field(finite_array, ndim=2, minimum=0)
    rewards: Array = field(finite_array, ndim=2)
    scores: Array = field(finite_array, ndim=3)
    targets: Array = field(finite_array, ndim=2)
    lost_scores: Array | None = field(finite_array, ndim=3, default=None)
    penalty: Array | None = field(finite_array, ndim=3, default=None)

    @property
    def value(self) -> Array:
        """V(x) = E[z | x], (X,)."""
        return np.asarray((self.probs * self.rewards).sum(axis=1))


@record()
class TokenOutcomes:
    """All outputs of a token problem, token by token, under the sampling policy and the current policy.

    Arguments:
        context_probs: ρ(x), (X,).
        rewards: E[z | x, k], (X, K).
        inside: 1 where an output has a token and 0 past its end, (K, T).
        old, new, reference: log-probabilities of the tokens under π_old, which draws the outputs,
            under π_θ, and under the policy of the KL penalty, (X, K, T), 0 past an output's end.
        scores: sₜ = ∇_θ log π_θ(yₜ | x, y_{<t}), (X, K, T, d), 0 past an output's end.
        binary: whether every possible reward is 0 or 1.
    """

    context_probs: Array = field(probabilities, ndim=1)
    rewards: Array = field(finite_array, ndim=2)
    inside: Array = field(finite_array, ndim=2, minimum=0)
    old: Array = field(finite_array, ndim=3)
    new: Array = field(finite_array, ndim=3)
    reference: Array = field(finite_array, ndim=3)
    scores: Array = field(finite_array, ndim=4)
    binary: bool

    @property
    def value(self) -> Array:
        """V(x) = E[z | x], (X,)."""
        return np.asarray((self.probs * self.rewards).sum(axis=1))

    @property
    def probs(self) -> Array:
        """π_old(k | x), (X, K)."""
        return np.asarray(np.exp(self.old.sum(axis=-1)))

    @property
    def new_probs(self) -> Array:
        """π_θ(k | x), (X, K)."""
        return np.asarray(np.exp(self.new.sum(axis=-1)))


@record()
class LengthMoments:
    """Moments of score and reward by the length of an output, in tokens.

    Arguments:
        context_probs: ρ(x), (X,).
        lengths: lengths that occur, at least 1, (L,).
        probs: P(|y| = l | x), (X, L).
        rewards: E[z 1{|y| = l} | x], (X, L).
        scores: E[s 1{|y| = l} | x], (X, L, d).
        products: E[s z 1{|y| = l} | x], (X, L, d).
    """

    context_probs: Array = field(probabilities, ndim=1)
    lengths: Array = field(finite_array, ndim=1, minimum=1)
    probs: Array = field(probabilities, ndim=2)
    rewards: Array = field(finite_array, ndim=2)
    scores: Array = field(finite_array, ndim=3)
    products: Array = field(finite_array, ndim=3)


@record()
class RewardLevels:
    """Moments of the score for each value of the reward.

    Arguments:
        context_probs: ρ(x), (X,).
        values: rewards that occur, increasing, (L,).
        probs: P(z = l | x), (X, L).
        squares: E[‖s‖² 1{z = l} | x], (X, L).
        scores: E[s 1{z = l} | x], (X, L, d).
    """

    context_probs: Array = field(probabilities, ndim=1)
    values: Array = field(finite_array, ndim=1)
    probs: Array = field(probabilities, ndim=2)
    squares: Array = field(finite_array, ndim=2, minimum=0)
    scores: Array = field(finite_array, ndim=3)

    def __attrs_post_init__(self) -> None:
        shape = len(self.context_probs), len(self.values)
        for name in ("probs", "squares", "scores"):
            if getattr(self, name).shape[:2] != shape:
                raise InputError(
                    f"{name} have shape {getattr(self, name).shape}: they must start with {shape}, "
                    "prompts and rewards"
                )
        if (np.diff(self.values) <= 0).any():
            raise InputError("values must increase")


@record()
class SurvivorMoments:
    """Moments of the surviving outputs, if each survives with its own probability.

    Arguments:
        moments: moments of the survivors' law, with scores centred at their mean.
        kept: probability that an output survives, E h, (X,).
        lone_means: E[s z] of survivors with uncentred scores, (X, d), the part of a raw reward.
        lone_squares: E[‖s‖² z²] of survivors, (X,).
        target: ∇J of all outputs, (d,).
    """

    moments: Moments
    kept: Array = field(finite_array, ndim=1, minimum=0)
    lone_means: Array = field(finite_array, ndim=2)
    lone_squares: Array = field(finite_array, ndim=1, minimum=0)
    target: Array = field(finite_array, ndim=1)


@record()
class ReuseMoments:
    """Moments behind the bias of steps on outputs that are used again, M = s sᵀ + ∇s.

    With the token's ratio M is Σₜ sₜ sₜᵀ + ∇s over the tokens of an output.

    Arguments:
        moments: moments of score and reward at the parameters of the sampling policy.
        square: E[M s a² | x], a = z - V(x), (X, d).
        score: E[M s | x], (X, d).
        product: Q(x) g(x), Q(x) = E[M a | x], (X, d).
        between: Cov_X(Q, g) = E[Q(X) g(X)] - E[Q(X)] g, (d,).
        ratio_slope: slope of the ratio's own bias, (E[Q(X)] - ∇²J) g, which fresh outputs of an older policy
            have too; 0 for the ratio of whole outputs, (d,).
    """

    moments: Moments
    square: Array = field(finite_array, ndim=2)
    score: Array = field(finite_array, ndim=2)
    product: Array = field(finite_array, ndim=2)
    between: Array = field(finite_array, ndim=1)
    ratio_slope: Array = field(finite_array, ndim=1)
