"""The bent bandit: logits that curve in θ, so that the noise of an optimum is free of its curvature.

For logits linear in θ, E[s sᵀ a | x] is the Hessian of V(x): at an interior optimum it averages to
-Λ, never to 0, and so Assumption 2 fails there in either form. Here the logits bend,

    logit(x, k) = ⟨φ(x, k), θ⟩ - ½ Σⱼ ψ(x, k)ⱼ θⱼ² + o(x, k),      s = f - E f,   f = φ - ψθ,

(products with θ and θ² entry by entry), so that log π has the second derivative -F - ψ + E ψ, and

    ∇V(x) = E[a f | x],      ∇²V(x) = E[a (s sᵀ - diag ψ) | x].

The curvature of an optimum may come from ψ alone: :func:`ordered_problem` has E[s sᵀ a | x] = 0
there, :func:`norm_only_problem` has only its trace 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logit, softmax

from ..policies import ArmLinearSoftmax
from ..validation import InputError, finite_array, frozen, integer, probabilities
from .interior import InteriorProblem, positive, second_order
from .softmax_bandit import SoftmaxBandit

__all__ = ["BentBandit", "norm_only_problem", "ordered_problem"]

Array = NDArray[np.float64]

_CHUNK = 1 << 21
"""Parameters are taken in lots, so that the (lot, X, K, d) arrays stay below this many entries."""


@dataclass(frozen=True, eq=False)
class BentBandit(InteriorProblem):
    """A contextual bandit whose logits are quadratic in θ, with an interior optimum.

    The compact set Θ is ‖Uᵀθ‖ <= radius in the identifiable directions U and ‖Nᵀθ‖ <= flat_radius
    in the flat ones N. A search finds the maximiser, and that the return on the boundary is less.
    Scores are bounded on Θ only: they grow with θ, so training runs should be projected on it.

    Arguments:
        context_probs: ρ(x), (X,).
        features: φ(x, k), (X, K, d).
        bends: ψ(x, k), (X, K, d), of either sign.
        rewards: the values a reward can take, (X, K, M).
        reward_probs: their probabilities given context and arm, (X, K, M).
        offset: o(x, k), (X, K); None for zero.
        radius, flat_radius: of the compact set.

    Raises:
        InputError: shapes that do not match, entries that are not finite, probabilities that do not
            sum to 1, a radius that is not positive, no direction that the return depends on, or a
            problem with no interior optimum or a flat one.

    >>> problem = BentBandit([1.0], [[[0.5], [0.0]]], [[[1.0], [0.0]]], [[[1.0], [0.0]]],
    ...     [[[1.0], [1.0]]])
    >>> problem.maximiser, round(problem.maximum, 4), problem.curvatures.round(4)
    (array([0.5]), 0.5312, array([0.249]))
    """

    context_probs: Array
    features: Array
    bends: Array
    rewards: Array
    reward_probs: Array
    offset: Array | None = None
    radius: float = 3.0
    flat_radius: float = 100.0

    _remedy: ClassVar[str] = "the arms that are rewarded bend more"
    _draws_anew: ClassVar[bool] = False
    _noise: ClassVar[float] = 1e-15

    def __post_init__(self) -> None:
        arrays = {
            "context_probs": probabilities("context_probs", self.context_probs, 1),
            "features": finite_array("features", self.features, 3),
            "bends": finite_array("bends", self.bends, 3),
            "rewards": finite_array("rewards", self.rewards, 3),
            "reward_probs": probabilities("reward_probs", self.reward_probs, 3),
        }
        if self.offset is not None:
            arrays["offset"] = finite_array("offset", self.offset, 2)
        for name, array in arrays.items():
            object.__setattr__(self, name, frozen(array))
        for name in ("radius", "flat_radius"):
            object.__setattr__(self, name, positive(name, getattr(self, name)))
        if self.bends.shape != self.features.shape:
            raise InputError(
                f"bends has shape {self.bends.shape}: it must be that of the features, "
                f"{self.features.shape}"
            )
        if self.offset is not None and self.offset.shape != self.features.shape[:2]:
            raise InputError(
                f"offset has shape {self.offset.shape}: it must be contexts and arms, "
                f"{self.features.shape[:2]}"
            )
        # The bandit itself refuses all other shapes; the search, problems with no interior optimum.
        _ = self.at(np.zeros(self.d)), self.certificate

    @property
    def contexts(self) -> int:
        """X, the number of contexts."""
        return len(self.context_probs)

    @property
    def d(self) -> int:
        """The number of parameters."""
        return self.features.shape[2]

    @cached_property
    def mean_rewards(self) -> Array:
        """r(x, k) = E[z | x, k], (X, K)."""
        return frozen((self.rewards * self.reward_probs).sum(axis=-1))

    def at(self, theta: ArrayLike) -> SoftmaxBandit:
        """The softmax bandit at parameters (d,): moments, outcomes, engines.

        Its policy is the tangent there, with features φ - ψθ: probabilities and scores are those of
        the bent policy at θ, and only there. So is the gradient; for the Hessian and for other
        parameters ask the bent problem. A :class:`~ustat_pg.engines.runs.trajectory.Trajectory` takes
        this bandit together with ``bends``.
        """
        vector = self._parameters(finite_array("theta", theta, 1))
        offset = (self.bends * vector**2).sum(axis=-1) / 2
        if self.offset is not None:
            offset = offset + self.offset
        policy = ArmLinearSoftmax(self.features - self.bends * vector, vector, offset)
        return SoftmaxBandit(policy, self.context_probs, self.rewards, self.reward_probs)

    def _policy(self, theta: Array) -> tuple[Array, Array, Array]:
        """π, V and π a at parameters (n, d): (n, X, K), (n, X), (n, X, K)."""
        logits = np.einsum("xkd,nd->nxk", self.features, theta)
        logits -= np.einsum("xkd,nd->nxk", self.bends, theta**2) / 2
        if self.offset is not None:
            logits += self.offset
        probs = np.asarray(softmax(logits, axis=-1))
        value = (probs * self.mean_rewards).sum(axis=-1)
        return probs, value, probs * (self.mean_rewards - value[..., None])

    def _lots(self, theta: ArrayLike) -> Iterator[tuple[slice, Array]]:
        """The parameters (..., d) as (n, d), lot by lot."""
        flat = np.reshape(theta, (-1, self.d))
        size = max(1, _CHUNK // self.features.size)
        for start in range(0, len(flat), size):
            yield slice(start, start + size), flat[start : start + size]

    def _out(self, theta: Array, order: int) -> Array:
        return np.empty((theta.size // self.d, *(self.d,) * order))

    def objective(self, theta: ArrayLike) -> Array:
        """J(θ) = Σ_x ρ(x) V(x) for parameters (..., d): (...)."""
        vector = self._parameters(theta)
        out = self._out(vector, 0)
        for rows, lot in self._lots(vector):
            out[rows] = self._policy(lot)[1] @ self.context_probs
        return out.reshape(vector.shape[:-1])

    def gradient(self, theta: ArrayLike) -> Array:
        """∇J(θ) = Σ_x ρ(x) E[a (φ - ψθ) | x] for parameters (..., d): (..., d)."""
        vector = self._parameters(theta)
        out = self._out(vector, 1)
        for rows, lot in self._lots(vector):
            weights = self._policy(lot)[2] * self.context_probs[:, None]
            out[rows] = np.einsum("nxk,xkd->nd", weights, self.features)
            out[rows] -= np.einsum("nxk,xkd->nd", weights, self.bends) * lot
        return out.reshape(vector.shape)

    def hessian(self, theta: ArrayLike) -> Array:
        """∇²J(θ) = Σ_x ρ(x) E[a (s sᵀ - diag ψ) | x] for parameters (..., d): (..., d, d)."""
        vector = self._parameters(theta)
        out = self._out(vector, 2)
        for rows, lot in self._lots(vector):
            probs, _, weights = self._policy(lot)
            weights = weights * self.context_probs[:, None]
            own = self.features - self.bends * lot[:, None, None, :]
            scores = own - np.einsum("nxk,nxkd->nxd", probs, own)[:, :, None, :]
            out[rows] = np.einsum("nxk,nxki,nxkj->nij", weights, scores, scores)
            bent = np.einsum("nxk,xkd->nd", weights, self.bends)
            out[rows] -= bent[:, :, None] * np.eye(self.d)
        return out.reshape(*vector.shape, self.d)

    @cached_property
    def _row_space(self) -> tuple[Array, Array]:
        """Orthonormal bases of what the return depends on and of the rest, (d, r) and (d, d - r).

        No logit gains on another along w, wherever one starts, if and only if the differences of
        features are orthogonal to w and those of bends are 0 in every entry where w is not.
        """
        mean = self.mean_rewards
        spread = np.ptp(mean, axis=1)
        seen = (self.context_probs > 0) & (spread > 1e-13 * (1 + np.abs(mean).max()))
        features, bends = (
            (array - array[:, :1])[seen].reshape(-1, self.d)
            for array in (self.features, self.bends)
        )
        rows = np.concatenate([features, np.diag(np.abs(bends).max(axis=0, initial=0.0))])
        if not rows.any():
            raise InputError(
                "the return does not depend on theta: within every context all mean rewards are "
                "the same, or all features and bends are"
            )
        # R has the row space of the rows, and as many rows as there are parameters.
        _, singular, right = np.linalg.svd(np.linalg.qr(rows, mode="r"))
        rank = int((singular > singular[0] * max(rows.shape) * 1e-14).sum())
        return right[:rank].T, right[rank:].T

    @property
    def _steepest(self) -> float:
        """How large a curvature could be if no two arms cancelled: a scale for rounding noise."""
        features, bends = (np.ptp(array, axis=1) for array in (self.features, self.bends))
        lengths = (features**2).sum(axis=1) + bends.max(axis=1)
        return float(self.context_probs @ (lengths * np.ptp(self.mean_rewards, axis=1)))

    def gap(self, theta: ArrayLike) -> Array:
        """J* - J(θ) for parameters (..., d): (...), to nearly full *relative* precision near Θ*.

        With δ = θ - θ*, expectations at θ*, w = ⟨f, δ⟩ - ½⟨ψ, δ²⟩ less its mean, q(y) = e^y - 1 - y
        and Q = E[q(w)],

            V(θ) - V(θ*) - ⟨g, δ⟩ = (E[a q(w)] - ½⟨E[a ψ], δ²⟩ - ⟨g, δ⟩ Q) / (1 + Q),

        and the terms ⟨g(x), δ⟩ add up to 0 at the maximiser. A difference of two returns would
        lose every digit at a gap of 1e-16.
        """
        vector = self._parameters(theta)
        out = self._out(vector, 0)
        for rows, lot in self._lots(vector):
            away = (lot - self.maximiser) @ self.identifiable @ self.identifiable.T
            out[rows] = -(self._beyond_first_order(away) @ self.context_probs)
        return out.reshape(vector.shape[:-1])

    def _beyond_first_order(self, away: Array) -> Array:
        """V(θ* + δ) - V(θ*) - ⟨g, δ⟩ of every context, for steps δ (n, d): (n, X)."""
        probs, value, weights = (array[0] for array in self._policy(self.maximiser[None, :]))
        tilt = self.features - self.bends * self.maximiser
        tilt = tilt - np.einsum("xk,xkd->xd", probs, tilt)[:, None, :]
        bends = self.bends - np.einsum("xk,xkd->xd", probs, self.bends)[:, None, :]
        exponents = np.einsum("xkd,nd->nxk", tilt, away)
        exponents -= np.einsum("xkd,nd->nxk", bends, away**2) / 2
        along = away @ np.einsum("xk,xkd->xd", weights, tilt).T
        bent = away**2 @ np.einsum("xk,xkd->xd", weights, bends).T / 2
        near = np.abs(exponents).max(axis=-1) <= 1.0
        # Far steps take the plain difference below; 0 here keeps the series from overflowing.
        excess = second_order(np.where(near[..., None], exponents, 0.0))
        mass = (probs * excess).sum(axis=-1)
        close = ((weights * excess).sum(axis=-1) - bent - along * mass) / (1 + mass)
        far = self._policy(self.maximiser + away)[1] - value - along
        return np.where(near, close, far)


def _signed_units(dimensions: int) -> Array:
    """e₁, -e₁, e₂, -e₂, …, (2 d, d)."""
    return np.asarray(np.kron(np.eye(dimensions), [[1.0], [-1.0]]), dtype=np.float64)


def ordered_problem(
    dimensions: int = 2, *, bend: ArrayLike = 1.0, value: float = 0.5, radius: float = 3.0
) -> BentBandit:
    """One prompt with E[s sᵀ a] = 0 at its optimum: Corollary 10 (optimal_policy) has to hold.

    Every ±eⱼ is the feature of two arms. One does not bend and earns 0; the other bends by β in
    every direction, has the offset log(p/(1 - p)), and earns 1. So

        V(θ) = sigmoid(log(p/(1 - p)) - ½ Σⱼ βⱼ θⱼ²),

    whose only maximiser, anywhere, is 0, with V = p and Λ = p (1 - p) diag β. There the score is
    the feature, whichever of the two arms it is, so that score and reward are independent:
    E[s sᵀ (z - b)²] = (1/d) E(z - b)² I.

    Arguments:
        dimensions: d.
        bend: β > 0, a number or (d,).
        value: p, between 0 and 1.
        radius: of the compact set.

    Raises:
        InputError: what does not fit the above.

    >>> problem = ordered_problem(bend=[1.0, 2.0])
    >>> problem.maximum, problem.curvatures
    (0.5, array([0.25, 0.5 ]))
    >>> next(problem.at(problem.maximiser).moments().matrices()).advantage
    array([[0., 0.], [0., 0.]])
    """
    d = integer("dimensions", dimensions)
    beta = finite_array("bend", bend)
    if beta.shape not in ((), (d,)) or (beta <= 0).any():
        raise InputError(f"bend is {beta.tolist()}: it must be a number or ({d},), positive")
    p = float(finite_array("value", value, 0))
    if not 0 < p < 1:
        raise InputError(f"value is {p:g}: it must lie between 0 and 1")
    units = _signed_units(d)
    earns = np.repeat([0.0, 1.0], len(units))
    return BentBandit(
        context_probs=np.ones(1),
        features=np.concatenate([units, units])[None],
        bends=(earns[:, None] * np.broadcast_to(beta, d))[None],
        rewards=earns[None, :, None],
        reward_probs=np.ones((1, len(earns), 1)),
        offset=(earns * logit(p))[None],
        radius=radius,
    )


def norm_only_problem(*, radius: float = 3.0) -> BentBandit:
    """One prompt with E[‖s‖² a] = 0 at its optimum, but not E[s sᵀ a]: Corollary 10 fails.

    The scores are ±e₁ and ±e₂, equally likely; ±e₁ earn 1 and bend by (3, 1). Then E[s sᵀ a] is
    diag(1, -1)/4 and E[a ψ] is (3, 1)/4, so that Λ = I/2. The log odds of a reward are
    log cosh θ₁ - log cosh θ₂ - (3 θ₁² + θ₂²)/2 <= -θ₁² - θ₂²/2: the only maximiser, anywhere, is 0.
    The value V = ½ is the best baseline in the sum of the variances, but not in each direction.

    Arguments:
        radius: of the compact set.

    >>> problem = norm_only_problem()
    >>> problem.curvatures
    array([0.5, 0.5])
    >>> from ustat_pg import gradient_covariance
    >>> moments = problem.at(problem.maximiser).moments()
    >>> for b in (0.5, 0.4):
    ...     np.linalg.eigvalsh(gradient_covariance(moments, "constant", 1, constant=b)).round(12)
    array([0.125, 0.125])
    array([0.08, 0.18])
    """
    units = _signed_units(2)
    earns = np.array([1.0, 1.0, 0.0, 0.0])
    return BentBandit(
        context_probs=np.ones(1),
        features=units[None],
        bends=(earns[:, None] * [3.0, 1.0])[None],
        rewards=earns[None, :, None],
        reward_probs=np.ones((1, 4, 1)),
        radius=radius,
    )
