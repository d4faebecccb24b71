"""Softmax policies over K arms: tabular, linear in features of the arm, linear in the context.

With logits linear in the parameters, logit(x, k) = ⟨φ(x, k), θ⟩, the score of arm k is

    s(x, k) = φ(x, k) - Σⱼ π(j | x) φ(x, j).

The three parametrisations differ only in φ. Tabular is φ(x, k) = e_{(x, k)}; the shared form is φ(x, k) =
φ(x) ⊗ e_k, one weight vector per arm; both are stored as products, so d may be in the thousands although an
inner product of scores costs K multiplications.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from ..validation import Array, InputError, field, finite_array, frozen, record
from .outputs import OutputSpace

GRAM_BYTES = 2**30
"""The largest size of the inner products of all pairs of outputs."""


def require_gram_size(outputs: int) -> None:
    """Raise an error with the size if a table of all pairs of outputs does not fit in memory."""
    if 8 * outputs**2 > GRAM_BYTES:
        raise InputError(
            f"inner products of all pairs of {outputs} outputs need {8 * outputs**2 / 2**30:.1f} "
            f"GiB: at most {GRAM_BYTES / 2**30:g} GiB is allowed; take fewer outputs"
        )


def require_scores_size(outputs: int, parameters: int, limit: int = GRAM_BYTES) -> None:
    """Raise an error with the size if a table of all scores does not fit in memory."""
    if 8 * outputs * parameters > limit:
        raise InputError(
            f"scores of {outputs} outputs in {parameters} parameters need "
            f"{8 * outputs * parameters / 2**30:.1f} GiB: at most {limit / 2**30:.3g} GiB is allowed; "
            "take a smaller policy, or moments alone, which need no table"
        )


def _largest_distance(gram: Array, possible: NDArray[np.bool_]) -> float:
    """max ‖s_k - s_l‖ over possible arms (K,), from one context's ⟨s_k, s_l⟩ (K, K)."""
    inside = gram[np.ix_(possible, possible)]
    norms = np.diagonal(inside)
    squares = norms[:, None] + norms - 2 * inside
    return float(np.sqrt(max(squares.max(initial=0.0), 0.0)))


def _arm_gram(first: Array, second: Array) -> Array:
    """⟨e_k - p, e_l - q⟩ = 1{k = l} - q_k - p_l + ⟨p, q⟩, (K, K)."""
    return np.eye(len(first)) - second[:, None] - first + first @ second


class SoftmaxPolicy(ABC):
    """A softmax policy at fixed parameters, over X contexts and K arms."""

    in_files: ClassVar[bool] = False
    """Whether a problem file can store the policy, as its :meth:`arrays`."""
    bends: Array | None = None
    """ψ(x, k), (X, K, d), if logits are quadratic in θ; None if they are linear."""
    space: OutputSpace | None = None
    """The outputs of a policy over token sequences."""
    prompts: tuple[tuple[int, ...], ...] | None = None
    """The prompts that a policy reads, if any."""

    @abstractmethod
    def arrays(self) -> dict[str, Array]:
        """The arrays that identify this policy."""

    @property
    @abstractmethod
    def logits(self) -> Array:
        """The logits of every context and arm, (X, K)."""

    @property
    @abstractmethod
    def theta(self) -> Array:
        """The parameters, (d,)."""

    def tabulated(self, memory: int | None = None) -> SoftmaxPolicy:
        """The policy for engines that read scores one by one: itself, or tables of at most ``memory`` bytes
        if a score takes long to compute.
        """
        return self

    def reduced(self) -> SoftmaxPolicy:
        """The policy with scores in coordinates of their span, if they are a table."""
        return self

    def curvature(self, weights: Array, context_probs: Array) -> Array:
        """Σ_x ρ(x) Σ_k w(x, k) ∇² logit(x, k) for weights (X, K) and ρ (X,), on the diagonal: (d,)."""
        raise InputError(
            f"the second derivatives of a {type(self).__name__} are not known, and so not the "
            "Hessian of its return: difference the gradient instead"
        )

    def score_derivative(self, context: int, directions: Array) -> Array:
        """∇s(x, k) v_k, the derivative of each arm's score along its own direction (K, d): (K, d)."""
        raise InputError(
            f"the second derivatives of a {type(self).__name__} are not known, and so not the bias of "
            "steps on outputs that are used again: take a tabular, linear or prefix softmax"
        )

    def _linear_derivative(self, context: int, directions: Array) -> Array:
        """The same if logits are linear: -F(x) v_k."""
        scores = self.scores(context)
        return -(directions @ scores.T * self.probs[context]) @ scores

    @abstractmethod
    def with_theta(self, theta: Array) -> SoftmaxPolicy:
        """The policy at other parameters (d,)."""

    def logits_at(self, theta: Array) -> Array:
        """The logits at parameters (n, d): (n, X, K)."""
        return np.stack([self.with_theta(row).logits for row in theta])

    @abstractmethod
    def restrict(self, contexts: NDArray[np.intp]) -> SoftmaxPolicy:
        """The policy on some of the contexts only, in the given order."""

    @abstractmethod
    def combine(self, context: int, weights: Array) -> Array:
        """Σ_k w_k s(x, k) for weights (..., K): (..., d)."""

    @abstractmethod
    def inner(self, vector: Array) -> Array:
        """⟨s(x, k), v⟩ for every context and arm, (X, K)."""

    @abstractmethod
    def gram(self, first: int, second: int) -> Array:
        """⟨s(x, k), s(y, l)⟩ for the contexts x = first, y = second, (K, K)."""

    def mean_combination(self, weights: Array, context_probs: Array) -> Array:
        """Σ_x ρ(x) Σ_k w(x, k) s(x, k) for weights (X, K) and ρ (X,): (d,)."""
        return np.asarray(
            sum(context_probs[x] * self.combine(x, row) for x, row in enumerate(weights))
        )

    def squared_combinations(self, weights: Array) -> Array:
        """‖Σ_k w(x, k) s(x, k)‖² for weights (X, K): (X,)."""
        sums = [self.combine(x, row) for x, row in enumerate(weights)]
        return np.array([float(total @ total) for total in sums])

    def diameters(self, possible: NDArray[np.bool_]) -> Array:
        """The greatest distance of two scores of possible arms (X, K), or a bound: (X,).

        If all pairs do not fit in memory, it is twice the longest score.
        """
        out = np.zeros(len(possible))
        for x, arms in enumerate(possible):
            if 8 * len(arms) ** 2 > GRAM_BYTES:
                longest = np.sqrt(self.squared_norms[x][arms].max(initial=0.0))
                out[x] = 2 * longest * (arms.sum() > 1)
            else:
                out[x] = _largest_distance(self.gram(x, x), arms)
        return out

    @cached_property
    def probs(self) -> Array:
        """π(k | x), (X, K)."""
        return frozen(np.asarray(softmax(self.logits, axis=-1)))

    def _centred(self, weights: Array) -> Array:
        """w - (Σ_j w_j) π in every context, for weights (X, K)."""
        return weights - weights.sum(axis=-1, keepdims=True) * self.probs

    @property
    def d(self) -> int:
        """Number of parameters."""
        return len(self.theta)

    def scores(self, context: int) -> Array:
        """s(x, k) = ∇_θ log π(k | x) of every arm, (K, d)."""
        return self.combine(context, np.eye(self.probs.shape[1]))

    @property
    @abstractmethod
    def squared_norms(self) -> Array:
        """‖s(x, k)‖², (X, K)."""

    @property
    def feature_norm(self) -> float:
        """The longest feature vector, because scores are differences of features; for a table or a network,
        the longest score.
        """
        return float(np.sqrt(self.squared_norms.max())) or 1.0


class _OneVectorAnArm(SoftmaxPolicy):
    """A policy with features φ(x) ⊗ e_k: inner products of scores are those of K-vectors times ⟨φ, φ⟩."""

    in_files = True

    def curvature(self, weights: Array, context_probs: Array) -> Array:
        return np.zeros(self.d)

    def score_derivative(self, context: int, directions: Array) -> Array:
        return self._linear_derivative(context, directions)

    @property
    @abstractmethod
    def _lengths(self) -> Array:
        """‖φ(x)‖², (X,)."""

    @abstractmethod
    def _per_arm(self, vector: Array) -> Array:
        """⟨φ(x) ⊗ e_k, v⟩, (X, K)."""

    def inner(self, vector: Array) -> Array:
        per_arm = self._per_arm(vector)
        return per_arm - (self.probs * per_arm).sum(axis=-1, keepdims=True)

    def squared_combinations(self, weights: Array) -> Array:
        return np.asarray(self._lengths * (self._centred(weights) ** 2).sum(axis=1))

    def diameters(self, possible: NDArray[np.bool_]) -> Array:
        return np.sqrt(2 * self._lengths) * (possible.sum(axis=1) > 1)

    @cached_property
    def squared_norms(self) -> Array:
        squares = (self.probs**2).sum(axis=-1, keepdims=True)
        return self._lengths[:, None] * (1 - 2 * self.probs + squares)

    @property
    def feature_norm(self) -> float:
        return float(np.sqrt(self._lengths.max()))


class ScoreTable(SoftmaxPolicy):
    """A policy with a table of all arms' scores, which answers from it."""

    # A property in some classes and a field in others, which attrs could not set over a property.
    if TYPE_CHECKING:

        @property
        def all_scores(self) -> Array:
            """s(x, k), (X, K, d)."""

    def combine(self, context: int, weights: Array) -> Array:
        return weights @ self.all_scores[context]

    def inner(self, vector: Array) -> Array:
        return self.all_scores @ vector

    def gram(self, first: int, second: int) -> Array:
        return self.all_scores[first] @ self.all_scores[second].T

    def mean_combination(self, weights: Array, context_probs: Array) -> Array:
        flat = self.all_scores.reshape(-1, self.all_scores.shape[2])
        return (weights * context_probs[:, None]).ravel() @ flat

    def squared_combinations(self, weights: Array) -> Array:
        sums = (weights[:, None, :] @ self.all_scores)[:, 0]
        return np.asarray((sums**2).sum(axis=1))

    @cached_property
    def squared_norms(self) -> Array:
        return np.einsum("xkd,xkd->xk", self.all_scores, self.all_scores)


@record()
class SharedLinearSoftmax(_OneVectorAnArm):
    """One weight vector per arm on features of the context: logit(x, k) = ⟨φ(x), W_k⟩.

    Arguments:
        features: φ(x), (X, m).
        weights: W, (K, m); θ is W row by row, d = K m.
    """

    features: Array = field(finite_array, ndim=2)
    weights: Array = field(finite_array, ndim=2)

    def __attrs_post_init__(self) -> None:
        if self.features.shape[1] != self.weights.shape[1]:
            raise InputError(
                f"features have {self.features.shape[1]} columns and weights "
                f"{self.weights.shape[1]}: they must have the same number"
            )

    def arrays(self) -> dict[str, Array]:
        return {"context_features": self.features, "weights": self.weights}

    @cached_property
    def logits(self) -> Array:
        return np.einsum("xm,km->xk", self.features, self.weights)

    @property
    def theta(self) -> Array:
        return self.weights.ravel()

    def with_theta(self, theta: Array) -> SharedLinearSoftmax:
        return SharedLinearSoftmax(self.features, np.reshape(theta, self.weights.shape))

    def restrict(self, contexts: NDArray[np.intp]) -> SharedLinearSoftmax:
        return SharedLinearSoftmax(self.features[contexts], self.weights)

    def combine(self, context: int, weights: Array) -> Array:
        centred = weights - weights.sum(axis=-1, keepdims=True) * self.probs[context]
        return (centred[..., :, None] * self.features[context]).reshape(*centred.shape[:-1], -1)

    @cached_property
    def _lengths(self) -> Array:
        return (self.features**2).sum(axis=1)

    def _per_arm(self, vector: Array) -> Array:
        return np.einsum("xm,km->xk", self.features, vector.reshape(self.weights.shape))

    def gram(self, first: int, second: int) -> Array:
        contexts = self.features[first] @ self.features[second]
        return np.asarray(contexts * _arm_gram(self.probs[first], self.probs[second]))

    def mean_combination(self, weights: Array, context_probs: Array) -> Array:
        return ((self._centred(weights) * context_probs[:, None]).T @ self.features).ravel()


@record()
class TabularSoftmax(_OneVectorAnArm):
    """The parameters are the logits themselves, context by context: d = X K."""

    table: Array = field(finite_array, name="logits", ndim=2)

    def arrays(self) -> dict[str, Array]:
        return {"logits": self.table}

    @property
    def logits(self) -> Array:
        return self.table

    @property
    def theta(self) -> Array:
        return self.table.ravel()

    def with_theta(self, theta: Array) -> TabularSoftmax:
        return TabularSoftmax(np.reshape(theta, self.table.shape))

    def restrict(self, contexts: NDArray[np.intp]) -> TabularSoftmax:
        return TabularSoftmax(self.table[contexts])

    def combine(self, context: int, weights: Array) -> Array:
        out = np.zeros((*weights.shape[:-1], *self.table.shape))
        out[..., context, :] = weights - weights.sum(axis=-1, keepdims=True) * self.probs[context]
        return out.reshape(*weights.shape[:-1], -1)

    @property
    def _lengths(self) -> Array:
        return np.ones(len(self.table))

    def _per_arm(self, vector: Array) -> Array:
        return vector.reshape(self.table.shape)

    def gram(self, first: int, second: int) -> Array:
        if first != second:
            return np.zeros((self.table.shape[1],) * 2)
        return _arm_gram(self.probs[first], self.probs[first])

    def mean_combination(self, weights: Array, context_probs: Array) -> Array:
        return (self._centred(weights) * context_probs[:, None]).ravel()


@record()
class ArmLinearSoftmax(ScoreTable):
    """One parameter vector on features of context and arm: logit(x, k) = ⟨φ(x, k), θ⟩ + o(x, k).

    The offset o does not depend on θ, so scores have the same form with it as without. With arms
    u on a grid, φ(x, k) = (u_k/τ²) A(x) and o(x, k) = -u_k²/(2τ²), the logits are those of
    -(u_k - m)²/(2τ²) with m = ⟨A(x), θ⟩: a policy whose place on the grid is learnt.

    Logits may bend, by - ½ Σⱼ ψ(x, k)ⱼ θⱼ². At its parameters such a policy has the probabilities and
    scores of its tangent, with features φ - ψθ and offset o + ½ Σⱼ ψⱼ θⱼ².

    Arguments:
        features: φ(x, k), (X, K, d).
        parameters: θ, (d,).
        offset: o(x, k), (X, K); None for zero.
        bends: ψ(x, k), (X, K, d), of either sign; None for none.

    >>> ArmLinearSoftmax(np.ones((1, 2, 1)), np.ones(1), [[0.0, np.log(3.0)]]).probs
    array([[0.25, 0.75]])
    >>> bent = ArmLinearSoftmax([[[1.0], [0.0]]], [1.0], bends=[[[2.0], [0.0]]])
    >>> bent.probs, bent.with_theta(np.zeros(1)).scores(0)
    (array([[0.5, 0.5]]), array([[ 0.5], [-0.5]]))
    """

    features: Array = field(finite_array, ndim=3)
    parameters: Array = field(finite_array, name="theta", ndim=1)
    offset: Array | None = field(finite_array, ndim=2, default=None)
    bends: Array | None = field(finite_array, ndim=3, default=None)

    in_files = True

    def __attrs_post_init__(self) -> None:
        if self.features.shape[2] != len(self.parameters):
            raise InputError(
                f"features have {self.features.shape[2]} entries per arm and theta "
                f"{len(self.parameters)}: they must have the same number"
            )
        if self.offset is not None and self.offset.shape != self.features.shape[:2]:
            raise InputError(
                f"offset has shape {self.offset.shape}: it must be contexts and arms, "
                f"{self.features.shape[:2]}"
            )
        if self.bends is not None and self.bends.shape != self.features.shape:
            raise InputError(
                f"bends has shape {self.bends.shape}: it must be that of the features, "
                f"{self.features.shape}"
            )

    @cached_property
    def _tangent(self) -> tuple[Array, Array | None]:
        """The features and the offset of the tangent."""
        if self.bends is None:
            return self.features, self.offset
        offset = (self.bends * self.parameters**2).sum(axis=-1) / 2
        features = self.features - self.bends * self.parameters
        return features, offset if self.offset is None else offset + self.offset

    def arrays(self) -> dict[str, Array]:
        """The arrays of the tangent: they name a gradient at these parameters, and are what a file
        holds. For runs that leave the parameters, :attr:`bends` are named beside them.
        """
        features, offset = self._tangent
        named = {"features": features, "theta": self.parameters}
        # Only where there is one, so that policies without keep their name.
        return named if offset is None else {**named, "offset": offset}

    @cached_property
    def logits(self) -> Array:
        features, offset = self._tangent
        linear = np.einsum("xkd,d->xk", features, self.parameters)
        return linear if offset is None else linear + offset

    @property
    def theta(self) -> Array:
        return self.parameters

    def with_theta(self, theta: Array) -> ArmLinearSoftmax:
        return ArmLinearSoftmax(self.features, theta, self.offset, self.bends)

    def restrict(self, contexts: NDArray[np.intp]) -> ArmLinearSoftmax:
        offset, bends = (None if a is None else a[contexts] for a in (self.offset, self.bends))
        return ArmLinearSoftmax(self.features[contexts], self.parameters, offset, bends)

    @cached_property
    def all_scores(self) -> Array:
        """s(x, k), (X, K, d)."""
        features = self._tangent[0]
        mean = np.einsum("xk,xkd->xd", self.probs, features)
        return features - mean[:, None, :]

    @property
    def feature_norm(self) -> float:
        return float(np.linalg.norm(self._tangent[0], axis=2).max())

    def curvature(self, weights: Array, context_probs: Array) -> Array:
        if self.bends is None:
            return np.zeros(self.d)
        return -np.einsum("xk,xkd->d", weights * context_probs[:, None], self.bends)

    def score_derivative(self, context: int, directions: Array) -> Array:
        linear = self._linear_derivative(context, directions)
        if self.bends is None:
            return linear
        bends = self.bends[context]
        return linear - (bends - self.probs[context] @ bends) * directions

    def logits_at(self, theta: Array) -> Array:
        logits = np.einsum("xkd,nd->nxk", self.features, theta)
        if self.bends is not None:
            logits -= np.einsum("xkd,nd->nxk", self.bends, theta**2) / 2
        return logits if self.offset is None else logits + self.offset

    def features_at(self, theta: Array) -> Array:
        """The tangent's features at parameters (n, d): (n, X, K, d)."""
        if self.bends is None:
            return np.broadcast_to(self.features, (len(theta), *self.features.shape))
        return np.asarray(self.features - self.bends * theta[:, None, None, :])
