"""The location bandit: a policy that learns its place on a grid of arms; the optimum is interior.

Softmax over free logits has its optimum at infinity, where the Polyak-Lojasiewicz inequality fails.
Here the arms are places u on a grid, and the parameters move a bump of probability over them,

    π(u | x) ∝ exp(-(u - m)²/(2τ²)),     m = ⟨A(x), θ⟩,

so that J(θ) = Σ_x ρ(x) v_x(⟨A(x), θ⟩) is a sum of functions of one variable. With a = r - v_x(m)
and c = u - E u, where r is the mean reward of an arm,

    v' = E[a c]/τ²,     v'' = E[a c²]/τ⁴,     v''' = (E[a c³] - 3 E[a c] E[c²])/τ⁶,

each by enumeration over the arms. Directions orthogonal to all A(x) are flat: Θ* is an affine set.

A second action (optional) is drawn from sigmoid(θ_d). It may change the law of the reward but not
its mean, so θ_d is never identified, while the noise of the gradient depends on it. This is the case of
Assumption 8 in which the limit law is a mixture.
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.fft import dct
from scipy.special import softmax

from ustat_pg.policies import ArmLinearSoftmax
from ustat_pg.problems.softmax_bandit import SoftmaxBandit
from ustat_pg.rounding import DERIVED
from ustat_pg.validation import (
    Array,
    InputError,
    field,
    finite_array,
    frozen,
    positive,
    probabilities,
    record,
)

from .interior import InteriorProblem, excess_return, row_space


@record()
class LocationBandit(InteriorProblem):
    """A contextual bandit whose policy is a bump of probability at m = ⟨A(x), θ⟩ on a grid of arms.

    The search for the maximiser covers ‖Uᵀθ‖ <= radius in the identifiable directions U. The covariance of a
    gradient at the optimum is a prediction from the moments there: see the end of the example.

    Arguments:
        context_probs: ρ(x), (X,).
        directions: A(x), (X, d); of any rank.
        arms: the places u, (K,), all different.
        tau: τ, the width of the policy.
        rewards: the values a reward can take, (X, K, M).
        reward_probs: their probabilities given context and arm, (X, K, M).
        radius: radius of the search, in the identifiable directions.
        second_rewards, second_probs: the same if the second action is 1, (X, K, M'); both or
            neither. With them, θ has one more entry than A(x): the logit of the second action.

    Raises:
        InputError: arms are equal, the second action changes a mean reward, the return depends on no
            direction, or the optimum is not interior or is flat.

    >>> problem = LocationBandit.bump([-1.0, 0.0, 1.0], targets=[-0.7, 0.8, 0.3])
    >>> problem.maximiser.round(4), problem.curvatures.round(3)
    (array([0.1194, 0.5686]), array([0.237, 0.322]))
    >>> from ustat_pg import gradient_covariance
    >>> bandit = problem.at(problem.maximiser)
    >>> gradient_covariance(bandit.moments(), "grpo", group_size=2).diagonal().round(2)
    array([0.42, 0.26])
    """

    context_probs: Array = field(probabilities, ndim=1)
    directions: Array = field(finite_array, ndim=2)
    arms: Array = field(finite_array, ndim=1)
    tau: float = field(positive)
    rewards: Array = field(finite_array, ndim=3)
    reward_probs: Array = field(probabilities, ndim=3)
    radius: float = field(positive, default=3.0)
    second_rewards: Array | None = field(finite_array, ndim=3, default=None)
    second_probs: Array | None = field(probabilities, ndim=3, default=None)

    _remedy: ClassVar[str] = "the targets lie between the arms"
    _draws_anew: ClassVar[bool] = True
    _noise: ClassVar[float] = 0.0

    def __attrs_post_init__(self) -> None:
        if len(np.unique(self.arms)) < len(self.arms):
            raise InputError(f"arms are {self.arms.tolist()}: they must be different")
        if self.second_rewards is not None and self.second_probs is not None:
            off = (self.second_rewards * self.second_probs).sum(axis=-1) - self.mean_rewards
            if np.abs(off).max() > DERIVED * max(1.0, float(np.abs(self.rewards).max())):
                raise InputError(
                    "the second action changes a mean reward: it may change its law only"
                )
        # The search itself refuses problems without an interior optimum.
        _ = self.maximiser

    @classmethod
    def bump(
        cls,
        features: ArrayLike,
        targets: ArrayLike,
        *,
        arms: ArrayLike | None = None,
        tau: float = 0.8,
        flat_dimensions: int = 0,
        radius: float = 3.0,
    ) -> LocationBandit:
        """Binary reward with success probability 0.05 + 0.9 exp(-(u - t_x)²/1.28), prompts equally likely.

        The place is m = ⟨(1, φ(x)), M θ⟩. M is the identity, or, with flat dimensions, orthonormal
        rows that are not aligned with any axis, so that curvatures do not change.

        Arguments:
            features: φ(x), (X,) or (X, p).
            targets: t_x, (X,).
            arms: (K,); by default ``linspace(-2, 2, 9)``.
            tau: the policy's width.
            flat_dimensions: number by which d exceeds 1 + p.
            radius: radius of the search, in the identifiable directions.

        >>> LocationBandit.bump([0.0, 1.0], [0.1, 0.4], flat_dimensions=2).flat.shape
        (4, 2)
        """
        places = np.asarray(targets, dtype=np.float64)
        grid = np.linspace(-2, 2, 9) if arms is None else np.asarray(arms, dtype=np.float64)
        design = np.column_stack([np.ones(len(places)), features])
        rows = design.shape[1]
        matrix = np.eye(rows)
        if flat_dimensions:
            whole = np.asarray(dct(np.eye(rows + flat_dimensions), norm="ortho", axis=0))
            matrix = whole[:rows]
        success = 0.05 + 0.9 * np.exp(-((grid - places[:, None]) ** 2) / 1.28)
        chance = np.stack([success, 1 - success], axis=-1)
        return cls(
            np.full(len(places), 1 / len(places)),
            design @ matrix,
            grid,
            tau,
            np.broadcast_to([1.0, 0.0], chance.shape),
            chance,
            radius,
        )

    @property
    def d(self) -> int:
        return self.directions.shape[1] + (self.second_rewards is not None)

    @cached_property
    def paths(self) -> Array:
        """A(x) with a 0 for the second action's parameter, (X, d)."""
        extra = self.d - self.directions.shape[1]
        return frozen(np.pad(self.directions, ((0, 0), (0, extra))))

    def at(self, theta: ArrayLike) -> SoftmaxBandit:
        """The softmax bandit at parameters (d,): moments, outcomes, engines.

        Its arms are those of the grid; with a second action y they are (u, y), y = 0 first.
        """
        vector = finite_array("theta", theta, 1)
        self._parameters(vector)
        features = self.arms[:, None] / self.tau**2 * self.paths[:, None, :]
        offset = np.broadcast_to(
            -(self.arms**2) / (2 * self.tau**2), (self.contexts, len(self.arms))
        )
        values, law = self.rewards, self.reward_probs
        if self.second_rewards is not None and self.second_probs is not None:
            second = features.copy()
            second[:, :, -1] = 1.0
            features = np.concatenate([features, second], axis=1)
            offset = np.concatenate([offset, offset], axis=1)
            width = max(values.shape[2], self.second_rewards.shape[2])

            def padded(array: Array) -> Array:
                return np.pad(array, ((0, 0), (0, 0), (0, width - array.shape[2])))

            values = np.concatenate([padded(values), padded(self.second_rewards)], axis=1)
            law = np.concatenate([padded(law), padded(self.second_probs)], axis=1)
        policy = ArmLinearSoftmax(features, vector, offset)
        return SoftmaxBandit(policy, self.context_probs, values, law)

    def _chances(self, places: Array) -> Array:
        """π(u | x) at places (..., X): (..., X, K)."""
        exponents = -((self.arms - places[..., None]) ** 2) / (2 * self.tau**2)
        return np.asarray(softmax(exponents, axis=-1))

    def curve(self, places: Array, order: int = 0) -> tuple[Array, ...]:
        """v_x(m) and its derivatives up to ``order`` (2 at most) at places (..., X)."""
        probs = self._chances(places)
        value = (probs * self.mean_rewards).sum(axis=-1)
        out = [value]
        if order:
            weights = probs * (self.mean_rewards - value[..., None])
            centred = self.arms - (probs @ self.arms)[..., None]
            slope = (weights * centred).sum(axis=-1)
            out.append(slope / self.tau**2)
            if order > 1:
                out.append((weights * centred**2).sum(axis=-1) / self.tau**4)
        return tuple(out)

    @property
    def _entries(self) -> int:
        return self.mean_rewards.size

    def _weighted(self, theta: Array, order: int) -> Array:
        """ρ v_x^(order) at parameters (n, d): (n, X)."""
        return self.context_probs * self.curve(theta @ self.paths.T, order)[order]

    def _objectives(self, theta: Array) -> Array:
        """J(θ) = Σ_x ρ(x) v_x(⟨A(x), θ⟩)."""
        return np.einsum("nx->n", self._weighted(theta, 0))

    def _gradients(self, theta: Array) -> Array:
        """∇J(θ) = Σ_x ρ(x) v_x' A(x)."""
        return np.einsum("nx,xi->ni", self._weighted(theta, 1), self.paths)

    def _hessians(self, theta: Array) -> Array:
        """∇²J(θ) = Σ_x ρ(x) v_x'' A(x) A(x)ᵀ."""
        return np.einsum("nx,xi,xj->nij", self._weighted(theta, 2), self.paths, self.paths)

    @cached_property
    def _row_space(self) -> tuple[Array, Array]:
        rows = self.paths[self._seen]
        if not rows.any():
            raise InputError(
                "the return does not depend on theta: every mean reward is the same within its "
                "context, or every direction is 0"
            )
        return row_space(rows, max(rows.shape))

    @property
    def _steepest(self) -> float:
        lengths = (self.paths**2).sum(axis=1) * np.ptp(self.mean_rewards, axis=1)
        return float(self.context_probs @ lengths) / self.tau**2

    def _beyond_first_order(self, away: Array) -> Array:
        """v_x(m + t) - v_x(m) - t v_x'(m) = (E[a q(tw)] - t v_x'(m) E[q(tw)]) / (1 + E[q(tw)]).

        Expectations are those at θ*, t = ⟨A(x), U away⟩, w = (u - E u)/τ².
        """
        steps = away @ (self.paths @ self.identifiable).T
        places = self.paths @ self.maximiser
        value, slope = self.curve(places, 1)
        probs = self._chances(places)
        tilt = (self.arms - (probs @ self.arms)[:, None]) / self.tau**2
        weights = probs * (self.mean_rewards - value[:, None])

        def far(rows: NDArray[np.intp]) -> Array:
            return self.curve(places + steps[rows])[0] - value - steps[rows] * slope

        return excess_return(steps[..., None] * tilt, probs, weights, steps * slope, 0.0, far)


def mixture_problem(*, target: float = 0.35, noise: float = 0.6) -> LocationBandit:
    """One prompt with noise that depends on a parameter that is never identified (Assumption 8).

    The reward is z = ½ exp(-(u - target)²/1.28) + noise ε y₂, where ε = ±1 is a fair coin and
    y₂ ~ sigmoid(θ₂): J does not depend on θ₂, but the covariance of the gradient does. The reward is
    bounded, but can be negative.

    Arguments:
        target: the place of the mean reward's bump.
        noise: the amount that the second action adds or subtracts.

    >>> problem = mixture_problem()
    >>> problem.maximiser.round(3), problem.curvatures.round(3)
    (array([0.386, 0.   ]), array([0.243]))
    """
    arms = np.linspace(-2, 2, 9)
    mean = 0.5 * np.exp(-((arms - target) ** 2) / 1.28)[None, :, None]
    pair = np.concatenate([mean + noise, mean - noise], axis=-1)
    return LocationBandit(
        np.ones(1),
        np.ones((1, 1)),
        arms,
        0.8,
        mean,
        np.ones_like(mean),
        radius=1.5,
        second_rewards=pair,
        second_probs=np.full_like(pair, 0.5),
    )
