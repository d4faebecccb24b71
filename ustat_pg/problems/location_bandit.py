"""The location bandit: a policy whose place on a grid of arms is learnt; its optimum is interior.

Softmax over free logits has its optimum at infinity, where the Polyak-Lojasiewicz inequality fails.
Here the arms are places u on a grid, and the parameters move a bump of probability over them,

    π(u | x) ∝ exp(-(u - m)²/(2τ²)),     m = ⟨A(x), θ⟩,

so that J(θ) = Σ_x ρ(x) v_x(⟨A(x), θ⟩) is a sum of functions of one variable. With a = r - v_x(m)
and c = u - E u, r the mean reward of an arm,

    v' = E[a c]/τ²,     v'' = E[a c²]/τ⁴,     v''' = (E[a c³] - 3 E[a c] E[c²])/τ⁶,

each by enumeration over the arms. Directions that no A(x) sees are flat: Θ* is an affine set.

A second action (optional) is drawn from sigmoid(θ_d). It may change the law of the reward but not
its mean, so θ_d is never identified, while the noise of the gradient depends on it: the case of
Assumption 8 in which the limit law is a mixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.fft import dct
from scipy.special import softmax

from ..policies import ArmLinearSoftmax
from ..validation import InputError, finite_array, frozen, integer, probabilities
from .interior import Certificate, InteriorProblem, positive, second_order
from .softmax_bandit import SoftmaxBandit

__all__ = ["Certificate", "LocationBandit", "mixture_problem"]

Array = NDArray[np.float64]

_CHUNK = 1 << 21
"""Parameters are taken in lots, so that the (lot, X, K) arrays stay below this many entries."""


@dataclass(frozen=True, eq=False)
class LocationBandit(InteriorProblem):
    """A contextual bandit whose policy is a bump of probability at m = ⟨A(x), θ⟩ on a grid of arms.

    The compact set Θ is ‖Uᵀθ‖ <= radius in the identifiable directions U and ‖Nᵀθ‖ <= flat_radius
    in the flat ones N. The covariance of a gradient at the optimum is a prediction, of the moments
    there: see the last lines of the example.

    Arguments:
        context_probs: ρ(x), (X,).
        directions: A(x), (X, d); of any rank.
        arms: the places u, (K,), all different.
        tau: τ, the width of the policy.
        rewards: the values a reward can take, (X, K, M).
        reward_probs: their probabilities given context and arm, (X, K, M).
        radius, flat_radius: of the compact set.
        second_rewards, second_probs: the same where the second action is 1, (X, K, M'); both or
            none. Given, θ has one entry more than A(x): the logit of the second action.

    Raises:
        InputError: shapes that do not match, entries that are not finite, probabilities that do not
            sum to 1, equal arms, a width or radius that is not positive, a second action that
            changes a mean reward, no direction that the return depends on, or a problem with no
            interior optimum or a flat one.

    >>> problem = LocationBandit.bump([-1.0, 0.0, 1.0], targets=[-0.7, 0.8, 0.3])
    >>> problem.maximiser.round(4), problem.curvatures.round(3)
    (array([0.1194, 0.5686]), array([0.237, 0.322]))
    >>> from ustat_pg import gradient_covariance
    >>> bandit = problem.at(problem.maximiser)
    >>> gradient_covariance(bandit.moments(), "grpo", group_size=2).diagonal().round(2)
    array([0.42, 0.26])
    """

    context_probs: Array
    directions: Array
    arms: Array
    tau: float
    rewards: Array
    reward_probs: Array
    radius: float = 3.0
    flat_radius: float = 100.0
    second_rewards: Array | None = None
    second_probs: Array | None = None

    _remedy: ClassVar[str] = "the targets lie between the arms"
    _draws_anew: ClassVar[bool] = True
    _noise: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        arrays = {
            "context_probs": probabilities("context_probs", self.context_probs, 1),
            "directions": finite_array("directions", self.directions, 2),
            "arms": finite_array("arms", self.arms, 1),
            "rewards": finite_array("rewards", self.rewards, 3),
            "reward_probs": probabilities("reward_probs", self.reward_probs, 3),
        }
        if (self.second_rewards is None) != (self.second_probs is None):
            raise InputError("second_rewards and second_probs: give both or none")
        if self.second_rewards is not None and self.second_probs is not None:
            arrays["second_rewards"] = finite_array("second_rewards", self.second_rewards, 3)
            arrays["second_probs"] = probabilities("second_probs", self.second_probs, 3)
        for name, array in arrays.items():
            object.__setattr__(self, name, frozen(array))
        for name in ("tau", "radius", "flat_radius"):
            object.__setattr__(self, name, positive(name, getattr(self, name)))
        self._check_shapes(arrays)
        if self.second_mean is not None:
            off = np.abs(self.second_mean - self.mean_rewards)
            if off.max() > 1e-12 * max(1.0, float(np.abs(self.rewards).max())):
                x, k = np.unravel_index(int(off.argmax()), off.shape)
                raise InputError(
                    f"the second action changes the mean reward of context {x}, arm {k} by "
                    f"{off[x, k]:.3g}: it may change the law of the reward, not its mean"
                )
        # The search itself refuses problems with no interior optimum.
        _ = self.certificate

    def _check_shapes(self, arrays: dict[str, Array]) -> None:
        contexts, arms = len(self.context_probs), len(self.arms)
        if len(self.directions) != contexts:
            raise InputError(
                f"directions has {len(self.directions)} rows: it must have one per context "
                f"({contexts})"
            )
        if arms < 2 or len(np.unique(self.arms)) < arms:
            raise InputError(f"arms are {self.arms.tolist()}: they must be different, at least two")
        for name in ("rewards", "reward_probs", "second_rewards", "second_probs"):
            if name in arrays and arrays[name].shape[:2] != (contexts, arms):
                raise InputError(
                    f"{name} has shape {arrays[name].shape}: the first two must be contexts and "
                    f"arms, ({contexts}, {arms})"
                )
        for first, second in (("rewards", "reward_probs"), ("second_rewards", "second_probs")):
            if first in arrays and arrays[first].shape != arrays[second].shape:
                raise InputError(
                    f"{first} has shape {arrays[first].shape} and {second} "
                    f"{arrays[second].shape}: they must be equal"
                )

    @classmethod
    def bump(
        cls,
        features: ArrayLike,
        targets: ArrayLike,
        *,
        context_probs: ArrayLike | None = None,
        arms: ArrayLike | None = None,
        tau: float = 0.8,
        low: float = 0.05,
        height: float = 0.9,
        width: float = 1.28,
        flat_dimensions: int = 0,
        mixing: ArrayLike | None = None,
        radius: float = 3.0,
        flat_radius: float = 100.0,
    ) -> LocationBandit:
        """Binary reward with success probability low + height exp(-(u - t_x)²/width).

        The place is m = ⟨(1, φ(x)), M θ⟩ with the map M = ``mixing``. Without a map of your own it
        is the identity, or, with flat dimensions, orthonormal rows that no coordinate axis is
        aligned with, so that curvatures do not change.

        Arguments:
            features: φ(x), (X,) or (X, p).
            targets: t_x, (X,).
            context_probs: ρ(x), (X,); equal unless given.
            arms: (K,); ``linspace(-2, 2, 9)`` unless given.
            tau: the policy's width.
            low, height, width: of the bump.
            flat_dimensions: by how much d exceeds 1 + p; not together with ``mixing``.
            mixing: M, (1 + p, d).
            radius, flat_radius: of the compact set.

        Raises:
            InputError: as for the class, or success probabilities outside [0, 1].

        >>> LocationBandit.bump([0.0, 1.0], [0.1, 0.4], flat_dimensions=2).flat.shape
        (4, 2)
        """
        phi = finite_array("features", features)
        phi = phi[:, None] if phi.ndim == 1 else phi
        if phi.ndim != 2:
            raise InputError(f"features has shape {phi.shape}: it must have 1 or 2 dimensions")
        places = finite_array("targets", targets, 1)
        if len(places) != len(phi):
            raise InputError(f"targets has {len(places)} entries and features {len(phi)}")
        grid = np.linspace(-2, 2, 9) if arms is None else finite_array("arms", arms, 1)
        design = np.column_stack([np.ones(len(phi)), phi])
        rows, extra = design.shape[1], integer("flat_dimensions", flat_dimensions, 0)
        if mixing is not None:
            if extra:
                raise InputError("flat_dimensions and mixing: give one, not both")
            matrix = finite_array("mixing", mixing, 2)
            if len(matrix) != rows:
                raise InputError(f"mixing has {len(matrix)} rows: it must have {rows} (1 + p)")
        else:
            matrix = np.eye(rows)
            if extra:
                matrix = np.asarray(dct(np.eye(rows + extra), norm="ortho", axis=0))[:rows]
        success = low + height * np.exp(-((grid - places[:, None]) ** 2) / positive("width", width))
        chance = np.stack([success, 1 - success], axis=-1)
        return cls(
            np.full(len(phi), 1 / len(phi))
            if context_probs is None
            else finite_array("context_probs", context_probs, 1),
            design @ matrix,
            grid,
            tau,
            np.broadcast_to([1.0, 0.0], chance.shape),
            chance,
            radius,
            flat_radius,
        )

    @property
    def contexts(self) -> int:
        """X, the number of contexts."""
        return len(self.context_probs)

    @property
    def d(self) -> int:
        """The number of parameters."""
        return self.directions.shape[1] + (self.second_rewards is not None)

    @cached_property
    def mean_rewards(self) -> Array:
        """r(x, u) = E[z | x, u], (X, K)."""
        return frozen((self.rewards * self.reward_probs).sum(axis=-1))

    @cached_property
    def second_mean(self) -> Array | None:
        """Mean rewards where the second action is 1; equal, up to rounding."""
        if self.second_rewards is None or self.second_probs is None:
            return None
        return frozen((self.second_rewards * self.second_probs).sum(axis=-1))

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

    def curve(self, places: Array, order: int = 0) -> tuple[Array, ...]:
        """v_x(m) and its derivatives up to ``order`` (3 at most) at places (..., X)."""
        probs = np.asarray(
            softmax(-((self.arms - places[..., None]) ** 2) / (2 * self.tau**2), axis=-1)
        )
        value = (probs * self.mean_rewards).sum(axis=-1)
        out = [value]
        if order:
            weights = probs * (self.mean_rewards - value[..., None])
            centred = self.arms - (probs @ self.arms)[..., None]
            slope = (weights * centred).sum(axis=-1)
            out.append(slope / self.tau**2)
            if order > 1:
                out.append((weights * centred**2).sum(axis=-1) / self.tau**4)
            if order > 2:
                spread = (probs * centred**2).sum(axis=-1)
                third = (weights * centred**3).sum(axis=-1) - 3 * slope * spread
                out.append(third / self.tau**6)
        return tuple(out)

    def _lots(self, theta: Array) -> Iterator[tuple[slice, Array]]:
        """Places (n, X) of the parameters (N, d), lot by lot."""
        size = max(1, _CHUNK // (self.contexts * len(self.arms)))
        for start in range(0, len(theta), size):
            rows = slice(start, start + size)
            yield rows, theta[rows] @ self.paths.T

    def _summed(self, theta: ArrayLike, order: int) -> Array:
        """Σ_x ρ v_x^(order) A(x)^⊗order, (..., d, ..., d)."""
        vector = self._parameters(theta)
        flat = vector.reshape(-1, self.d)
        out = np.empty((len(flat), *(self.d,) * order))
        spec = ("nx->n", "nx,xi->ni", "nx,xi,xj->nij")[order]
        for rows, places in self._lots(flat):
            weights = self.context_probs * self.curve(places, order)[order]
            out[rows] = np.einsum(spec, weights, *(self.paths,) * order)
        return out.reshape(vector.shape[:-1] + (self.d,) * order)

    def objective(self, theta: ArrayLike) -> Array:
        """J(θ) = Σ_x ρ(x) v_x(⟨A(x), θ⟩) for parameters (..., d): (...)."""
        return self._summed(theta, 0)

    def gradient(self, theta: ArrayLike) -> Array:
        """∇J(θ) = Σ_x ρ(x) v_x' A(x) for parameters (..., d): (..., d)."""
        return self._summed(theta, 1)

    def hessian(self, theta: ArrayLike) -> Array:
        """∇²J(θ) = Σ_x ρ(x) v_x'' A(x) A(x)ᵀ for parameters (..., d): (..., d, d)."""
        return self._summed(theta, 2)

    @cached_property
    def _row_space(self) -> tuple[Array, Array]:
        """Orthonormal bases of what the return depends on and of the rest, (d, r) and (d, d - r)."""
        mean = self.mean_rewards
        spread = np.ptp(mean, axis=1)
        seen = (self.context_probs > 0) & (spread > 1e-13 * (1 + np.abs(mean).max()))
        rows = self.paths[seen]
        if not rows.any():
            raise InputError(
                "the return does not depend on theta: every mean reward is the same within its "
                "context, or every direction is 0"
            )
        _, singular, right = np.linalg.svd(rows)
        rank = int((singular > singular[0] * max(rows.shape) * 1e-14).sum())
        return right[:rank].T, right[rank:].T

    @property
    def _steepest(self) -> float:
        lengths = (self.paths**2).sum(axis=1) * np.ptp(self.mean_rewards, axis=1)
        return float(self.context_probs @ lengths) / self.tau**2

    def gap(self, theta: ArrayLike) -> Array:
        """J* - J(θ) for parameters (..., d): (...), to nearly full *relative* precision near Θ*.

        With t = ⟨A(x), θ - θ*⟩ and expectations at θ*, w = (u - E u)/τ² and q(y) = e^y - 1 - y,

            v_x(m + t) - v_x(m) - t v_x'(m) = (E[a q(tw)] - t v_x'(m) E[q(tw)]) / (1 + E[q(tw)]),

        and the terms t v_x'(m) add up to 0 at the maximiser. A difference of two returns would
        lose every digit at a gap of 1e-16.
        """
        vector = self._parameters(theta)
        flat = (vector.reshape(-1, self.d) - self.maximiser) @ self.identifiable
        steps = flat @ (self.paths @ self.identifiable).T
        out = np.empty(len(steps))
        size = max(1, _CHUNK // (self.contexts * len(self.arms)))
        for start in range(0, len(steps), size):
            rows = slice(start, start + size)
            out[rows] = -(self._beyond_first_order(steps[rows]) @ self.context_probs)
        return out.reshape(vector.shape[:-1])

    def _beyond_first_order(self, steps: Array) -> Array:
        """v_x(m* + t) - v_x(m*) - t v_x'(m*) for steps t (n, X)."""
        places = self.paths @ self.maximiser
        value, slope = self.curve(places, 1)
        probs = np.asarray(
            softmax(-((self.arms - places[:, None]) ** 2) / (2 * self.tau**2), axis=-1)
        )
        tilt = (self.arms - (probs @ self.arms)[:, None]) / self.tau**2
        exponents = steps[..., None] * tilt
        near = np.abs(exponents).max(axis=-1) <= 1.0
        # Far steps take the plain difference below; 0 here keeps the series from overflowing.
        excess = second_order(np.where(near[..., None], exponents, 0.0))
        mass = (probs * excess).sum(axis=-1)
        weighted = (probs * (self.mean_rewards - value[:, None]) * excess).sum(axis=-1)
        close = (weighted - steps * slope * mass) / (1 + mass)
        far = self.curve(places + steps)[0] - value - steps * slope
        return np.where(near, close, far)


def mixture_problem(
    *, target: float = 0.35, amplitude: float = 0.5, noise: float = 0.6, radius: float = 1.5
) -> LocationBandit:
    """One prompt whose noise depends on a parameter that is never identified (Assumption 8).

    The reward is z = amplitude exp(-(u - target)²/1.28) + noise ε y₂, ε = ±1 a fair coin and
    y₂ ~ sigmoid(θ₂): J does not depend on θ₂, the covariance of the gradient does. The reward is
    bounded, but at times negative.

    Arguments:
        target, amplitude: of the mean reward's bump.
        noise: what the second action adds or takes off.
        radius: of the compact set in the identifiable direction.

    >>> problem = mixture_problem()
    >>> problem.maximiser.round(3), problem.curvatures.round(3)
    (array([0.386, 0.   ]), array([0.243]))
    """
    arms = np.linspace(-2, 2, 9)
    mean = amplitude * np.exp(-((arms - target) ** 2) / 1.28)[None, :, None]
    pair = np.concatenate([mean + noise, mean - noise], axis=-1)
    return LocationBandit(
        np.ones(1),
        np.ones((1, 1)),
        arms,
        0.8,
        mean,
        np.ones_like(mean),
        radius,
        second_rewards=pair,
        second_probs=np.full_like(pair, 0.5),
    )
