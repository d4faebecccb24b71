"""The bent bandit: its logits curve in θ, so that noise and curvature at an optimum are independent.

For logits linear in θ, E[s sᵀ a | x] is the Hessian of V(x): at an interior optimum it averages to
-Λ, never to 0, so both forms of Assumption 2 fail there. Here the logits bend,

    logit(x, k) = ⟨φ(x, k), θ⟩ - ½ Σⱼ ψ(x, k)ⱼ θⱼ² + o(x, k),      s = f - E f,   f = φ - ψθ,

(products with θ and θ² are entry by entry), so that log π has the second derivative -F - ψ + E ψ, and

    ∇V(x) = E[a f | x],      ∇²V(x) = E[a (s sᵀ - diag ψ) | x].

The curvature of an optimum may come from ψ alone: :func:`ordered_problem` has E[s sᵀ a | x] = 0
there, :func:`norm_only_problem` has only its trace 0.
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logit, softmax

from ustat_pg.policies import ArmLinearSoftmax
from ustat_pg.problems.softmax_bandit import SoftmaxBandit
from ustat_pg.validation import (
    Array,
    InputError,
    field,
    finite_array,
    positive,
    probabilities,
    record,
)

from .interior import InteriorProblem, excess_return, row_space


@record()
class BentBandit(InteriorProblem):
    """A contextual bandit whose logits are quadratic in θ, with an interior optimum.

    A search over ‖Uᵀθ‖ <= radius in the identifiable directions U finds the maximiser, and verifies that the
    return on the boundary is smaller.
    Scores are bounded only on Θ, because they grow with θ, so training runs should be projected on it.

    Arguments:
        context_probs: ρ(x), (X,).
        features: φ(x, k), (X, K, d).
        bends: ψ(x, k), (X, K, d), of either sign.
        rewards: the values a reward can take, (X, K, M).
        reward_probs: their probabilities given context and arm, (X, K, M).
        offset: o(x, k), (X, K); None for zero.
        radius: radius of the search, in the identifiable directions.

    Raises:
        InputError: the return depends on no direction, or the optimum is not interior or is
            flat.

    >>> problem = BentBandit([1.0], [[[0.5], [0.0]]], [[[1.0], [0.0]]], [[[1.0], [0.0]]],
    ...     [[[1.0], [1.0]]])
    >>> problem.maximiser, round(problem.maximum, 4), problem.curvatures.round(4)
    (array([0.5]), 0.5312, array([0.249]))
    """

    context_probs: Array = field(probabilities, ndim=1)
    features: Array = field(finite_array, ndim=3)
    bends: Array = field(finite_array, ndim=3)
    rewards: Array = field(finite_array, ndim=3)
    reward_probs: Array = field(probabilities, ndim=3)
    offset: Array | None = field(finite_array, ndim=2, default=None)
    radius: float = field(positive, default=3.0)

    _remedy: ClassVar[str] = "the arms that are rewarded bend more"
    _draws_anew: ClassVar[bool] = False
    _noise: ClassVar[float] = 1e-15

    def __attrs_post_init__(self) -> None:
        # The bandit refuses shapes that do not match, the search a missing interior optimum.
        _ = self.at(np.zeros(self.d)), self.maximiser

    @property
    def d(self) -> int:
        return self.features.shape[2]

    @cached_property
    def _origin(self) -> ArmLinearSoftmax:
        """The policy at 0."""
        return ArmLinearSoftmax(self.features, np.zeros(self.d), self.offset, self.bends)

    def at(self, theta: ArrayLike) -> SoftmaxBandit:
        policy = self._origin.with_theta(self._parameters(finite_array("theta", theta, 1)))
        return SoftmaxBandit(policy, self.context_probs, self.rewards, self.reward_probs)

    @property
    def _entries(self) -> int:
        return self.features.size

    def _responses(self, theta: Array) -> tuple[Array, Array, Array]:
        """π, V and π a at parameters (n, d): (n, X, K), (n, X), (n, X, K)."""
        probs = np.asarray(softmax(self._origin.logits_at(theta), axis=-1))
        value = (probs * self.mean_rewards).sum(axis=-1)
        return probs, value, probs * (self.mean_rewards - value[..., None])

    def _objectives(self, theta: Array) -> Array:
        """J(θ) = Σ_x ρ(x) V(x)."""
        return self._responses(theta)[1] @ self.context_probs

    def _gradients(self, theta: Array) -> Array:
        """∇J(θ) = Σ_x ρ(x) E[a (φ - ψθ) | x]."""
        weights = self._responses(theta)[2] * self.context_probs[:, None]
        bent = np.einsum("nxk,xkd->nd", weights, self.bends) * theta
        return np.asarray(np.einsum("nxk,xkd->nd", weights, self.features) - bent)

    def _hessians(self, theta: Array) -> Array:
        """∇²J(θ) = Σ_x ρ(x) E[a (s sᵀ - diag ψ) | x]."""
        probs, _, weights = self._responses(theta)
        weights = weights * self.context_probs[:, None]
        features = self._origin.features_at(theta)
        scores = features - np.einsum("nxk,nxkd->nxd", probs, features)[:, :, None, :]
        bent = np.einsum("nxk,xkd->nd", weights, self.bends)
        products = np.einsum("nxk,nxki,nxkj->nij", weights, scores, scores)
        return np.asarray(products - bent[:, :, None] * np.eye(self.d))

    @cached_property
    def _row_space(self) -> tuple[Array, Array]:
        """Orthonormal bases of directions that the return depends on, (d, r), and of others, (d, d - r).

        No logit gains on another along w from any start, if and only if the differences of
        features are orthogonal to w and those of bends are 0 in every entry where w is not.
        """
        both = (self.features, self.bends)
        features, bends = ((a - a[:, :1])[self._seen].reshape(-1, self.d) for a in both)
        rows = np.concatenate([features, np.diag(np.abs(bends).max(axis=0, initial=0.0))])
        if not rows.any():
            raise InputError(
                "the return does not depend on theta: within every context all mean rewards are "
                "the same, or all features and bends are"
            )
        # R has the row space of the rows, and as many rows as there are parameters.
        return row_space(np.asarray(np.linalg.qr(rows, mode="r")), max(rows.shape))

    @property
    def _steepest(self) -> float:
        """The largest curvature if no two arms cancelled, which is a scale for rounding noise."""
        features, bends = (np.ptp(array, axis=1) for array in (self.features, self.bends))
        lengths = (features**2).sum(axis=1) + bends.max(axis=1)
        return float(self.context_probs @ (lengths * np.ptp(self.mean_rewards, axis=1)))

    def _beyond_first_order(self, away: Array) -> Array:
        """V(θ* + δ) - V(θ*) - ⟨g, δ⟩ = (E[a q(w)] - ½⟨E[a ψ], δ²⟩ - ⟨g, δ⟩ Q) / (1 + Q), δ = U away.

        Expectations are those at θ*, w = ⟨f, δ⟩ - ½⟨ψ, δ²⟩ minus its mean.
        """
        steps = away @ self.identifiable.T
        probs, value, weights = (array[0] for array in self._responses(self.maximiser[None, :]))
        tilt = self._origin.with_theta(self.maximiser).all_scores
        bends = self.bends - np.einsum("xk,xkd->xd", probs, self.bends)[:, None, :]
        exponents = np.einsum("xkd,nd->nxk", tilt, steps)
        exponents -= np.einsum("xkd,nd->nxk", bends, steps**2) / 2
        along = steps @ np.einsum("xk,xkd->xd", weights, tilt).T
        bent = steps**2 @ np.einsum("xk,xkd->xd", weights, bends).T / 2

        def far(rows: NDArray[np.intp]) -> Array:
            return self._responses(self.maximiser + steps[rows])[1] - value - along[rows]

        return excess_return(exponents, probs, weights, along, bent, far)


def _signed_units(dimensions: int) -> Array:
    """e₁, -e₁, e₂, -e₂, …, (2 d, d)."""
    return np.asarray(np.kron(np.eye(dimensions), [[1.0], [-1.0]]), dtype=np.float64)


def ordered_problem(
    dimensions: int = 2, *, bend: ArrayLike = 1.0, value: float = 0.5
) -> BentBandit:
    """One prompt with E[s sᵀ a] = 0 at its optimum: Corollary 10 (optimal_policy) holds.

    Every ±eⱼ is the feature of two arms. One has no bend and earns 0; the other bends by β in
    every direction, has the offset log(p/(1 - p)), and earns 1. So

        V(θ) = sigmoid(log(p/(1 - p)) - ½ Σⱼ βⱼ θⱼ²),

    whose only maximiser, anywhere, is 0, with V = p and Λ = p (1 - p) diag β. There, the score is
    the feature for both arms, so score and reward are independent:
    E[s sᵀ (z - b)²] = (1/d) E(z - b)² I.

    Arguments:
        dimensions: d.
        bend: β > 0, a number or (d,).
        value: p, between 0 and 1.

    >>> problem = ordered_problem(bend=[1.0, 2.0])
    >>> problem.maximum, problem.curvatures
    (0.5, array([0.25, 0.5 ]))
    >>> next(problem.at(problem.maximiser).moments().matrices()).advantage
    array([[0., 0.], [0., 0.]])
    """
    units = _signed_units(dimensions)
    earns = np.repeat([0.0, 1.0], len(units))
    return BentBandit(
        context_probs=np.ones(1),
        features=np.concatenate([units, units])[None],
        bends=(earns[:, None] * np.broadcast_to(bend, dimensions))[None],
        rewards=earns[None, :, None],
        reward_probs=np.ones((1, len(earns), 1)),
        offset=(earns * logit(value))[None],
    )


def norm_only_problem() -> BentBandit:
    """One prompt with E[‖s‖² a] = 0 at its optimum, but not E[s sᵀ a]: Corollary 10 fails.

    The scores are ±e₁ and ±e₂, equally likely; ±e₁ earn 1 and bend by (3, 1). Then E[s sᵀ a] is
    diag(1, -1)/4 and E[a ψ] is (3, 1)/4, so that Λ = I/2. The log odds of a reward are
    log cosh θ₁ - log cosh θ₂ - (3 θ₁² + θ₂²)/2 <= -θ₁² - θ₂²/2: the only maximiser, anywhere, is 0.
    The value V = ½ is the best baseline in the sum of the variances, but not in each direction.

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
    )
