"""Softmax policies over K arms: tabular, linear in features of the arm, linear in the context.

With logits linear in the parameters, logit(x, k) = ⟨φ(x, k), θ⟩, the score of arm k is

    s(x, k) = φ(x, k) - Σⱼ π(j | x) φ(x, j).

The three parametrisations differ in φ alone. Tabular is φ(x, k) = e_{(x, k)}; the shared form is
φ(x, k) = φ(x) ⊗ e_k, one weight vector per arm; both are kept as products, so that d may be in the
thousands while an inner product of scores costs K multiplications.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from ..validation import InputError, finite_array, frozen

__all__ = ["ArmLinearSoftmax", "SharedLinearSoftmax", "SoftmaxPolicy", "TabularSoftmax"]

Array = NDArray[np.float64]


def _arm_gram(first: Array, second: Array) -> Array:
    """⟨e_k - p, e_l - q⟩ = 1{k = l} - q_k - p_l + ⟨p, q⟩, (K, K)."""
    return np.eye(len(first)) - second[:, None] - first + first @ second


class SoftmaxPolicy(ABC):
    """A softmax policy at fixed parameters, over X contexts and K arms."""

    @property
    @abstractmethod
    def logits(self) -> Array:
        """(X, K)."""

    @property
    @abstractmethod
    def theta(self) -> Array:
        """The parameters, (d,)."""

    @abstractmethod
    def with_theta(self, theta: Array) -> SoftmaxPolicy:
        """The same policy at other parameters (d,)."""

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

    @abstractmethod
    def mean_combination(self, weights: Array, context_probs: Array) -> Array:
        """Σ_x ρ(x) Σ_k w(x, k) s(x, k) for weights (X, K) and ρ (X,): (d,)."""

    @abstractmethod
    def squared_combinations(self, weights: Array) -> Array:
        """‖Σ_k w(x, k) s(x, k)‖² for weights (X, K): (X,)."""

    @abstractmethod
    def diameters(self, possible: NDArray[np.bool_]) -> Array:
        """The greatest distance of two scores of possible arms (X, K): (X,)."""

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

    @cached_property
    def squared_norms(self) -> Array:
        """‖s(x, k)‖², (X, K)."""
        return np.stack([np.diagonal(self.gram(x, x)) for x in range(len(self.probs))])

    @property
    @abstractmethod
    def feature_norm(self) -> float:
        """The longest feature vector: what a score is a difference of."""


@dataclass(frozen=True, eq=False)
class SharedLinearSoftmax(SoftmaxPolicy):
    """One weight vector per arm on features of the context: logit(x, k) = ⟨φ(x), W_k⟩.

    Arguments:
        features: φ(x), (X, m).
        weights: W, (K, m); θ is W row by row, d = K m.
    """

    features: Array
    weights: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", finite_array("features", self.features, 2))
        object.__setattr__(self, "weights", finite_array("weights", self.weights, 2))
        if self.features.shape[1] != self.weights.shape[1]:
            raise InputError(
                f"features have {self.features.shape[1]} columns and weights "
                f"{self.weights.shape[1]}: they must have the same number"
            )

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

    def inner(self, vector: Array) -> Array:
        per_arm = np.einsum("xm,km->xk", self.features, vector.reshape(self.weights.shape))
        return per_arm - (self.probs * per_arm).sum(axis=-1, keepdims=True)

    def gram(self, first: int, second: int) -> Array:
        contexts = self.features[first] @ self.features[second]
        return np.asarray(contexts * _arm_gram(self.probs[first], self.probs[second]))

    def mean_combination(self, weights: Array, context_probs: Array) -> Array:
        return ((self._centred(weights) * context_probs[:, None]).T @ self.features).ravel()

    def squared_combinations(self, weights: Array) -> Array:
        return np.asarray(
            (self.features**2).sum(axis=1) * (self._centred(weights) ** 2).sum(axis=1)
        )

    def diameters(self, possible: NDArray[np.bool_]) -> Array:
        return np.sqrt(2 * (self.features**2).sum(axis=1)) * (possible.sum(axis=1) > 1)

    @cached_property
    def squared_norms(self) -> Array:
        contexts = (self.features**2).sum(axis=1)[:, None]
        return contexts * (1 - 2 * self.probs + (self.probs**2).sum(axis=-1, keepdims=True))

    @property
    def feature_norm(self) -> float:
        return float(np.linalg.norm(self.features, axis=1).max())


@dataclass(frozen=True, eq=False)
class TabularSoftmax(SoftmaxPolicy):
    """The parameters are the logits themselves, context by context: d = X K.

    Arguments:
        table: logits, (X, K).
    """

    table: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "table", finite_array("logits", self.table, 2))

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

    def inner(self, vector: Array) -> Array:
        per_arm = vector.reshape(self.table.shape)
        return per_arm - (self.probs * per_arm).sum(axis=-1, keepdims=True)

    def gram(self, first: int, second: int) -> Array:
        if first != second:
            return np.zeros((self.table.shape[1],) * 2)
        return _arm_gram(self.probs[first], self.probs[first])

    def mean_combination(self, weights: Array, context_probs: Array) -> Array:
        return (self._centred(weights) * context_probs[:, None]).ravel()

    def squared_combinations(self, weights: Array) -> Array:
        return np.asarray((self._centred(weights) ** 2).sum(axis=1))

    def diameters(self, possible: NDArray[np.bool_]) -> Array:
        return np.sqrt(2.0) * (possible.sum(axis=1) > 1)

    @cached_property
    def squared_norms(self) -> Array:
        return 1 - 2 * self.probs + (self.probs**2).sum(axis=-1, keepdims=True)

    @property
    def feature_norm(self) -> float:
        return 1.0


@dataclass(frozen=True, eq=False)
class ArmLinearSoftmax(SoftmaxPolicy):
    """One parameter vector on features of context and arm: logit(x, k) = ⟨φ(x, k), θ⟩ + o(x, k).

    The offset o does not depend on θ, so scores have the same form with it as without. With arms
    u on a grid, φ(x, k) = (u_k/τ²) A(x) and o(x, k) = -u_k²/(2τ²), the logits are those of
    -(u_k - m)²/(2τ²) with m = ⟨A(x), θ⟩: a policy whose place on the grid is learnt.

    Arguments:
        features: φ(x, k), (X, K, d).
        parameters: θ, (d,).
        offset: o(x, k), (X, K); None for zero.

    Raises:
        InputError: shapes that do not match, or entries that are not finite.

    >>> ArmLinearSoftmax(np.ones((1, 2, 1)), np.ones(1), [[0.0, np.log(3.0)]]).probs
    array([[0.25, 0.75]])
    """

    features: Array
    parameters: Array
    offset: Array | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", finite_array("features", self.features, 3))
        object.__setattr__(self, "parameters", finite_array("theta", self.parameters, 1))
        if self.features.shape[2] != len(self.parameters):
            raise InputError(
                f"features have {self.features.shape[2]} entries per arm and theta "
                f"{len(self.parameters)}: they must have the same number"
            )
        if self.offset is not None:
            offset = finite_array("offset", self.offset, 2)
            if offset.shape != self.features.shape[:2]:
                raise InputError(
                    f"offset has shape {offset.shape}: it must be contexts and arms, "
                    f"{self.features.shape[:2]}"
                )
            object.__setattr__(self, "offset", offset)

    @cached_property
    def logits(self) -> Array:
        linear = np.einsum("xkd,d->xk", self.features, self.parameters)
        return linear if self.offset is None else linear + self.offset

    @property
    def theta(self) -> Array:
        return self.parameters

    def with_theta(self, theta: Array) -> ArmLinearSoftmax:
        return ArmLinearSoftmax(self.features, theta, self.offset)

    def restrict(self, contexts: NDArray[np.intp]) -> ArmLinearSoftmax:
        offset = None if self.offset is None else self.offset[contexts]
        return ArmLinearSoftmax(self.features[contexts], self.parameters, offset)

    @cached_property
    def all_scores(self) -> Array:
        """s(x, k), (X, K, d)."""
        mean = np.einsum("xk,xkd->xd", self.probs, self.features)
        return self.features - mean[:, None, :]

    def combine(self, context: int, weights: Array) -> Array:
        return weights @ self.all_scores[context]

    def inner(self, vector: Array) -> Array:
        return np.einsum("xkd,d->xk", self.all_scores, vector)

    def gram(self, first: int, second: int) -> Array:
        return self.all_scores[first] @ self.all_scores[second].T

    def mean_combination(self, weights: Array, context_probs: Array) -> Array:
        return np.einsum("xk,xkd->d", weights * context_probs[:, None], self.all_scores)

    def squared_combinations(self, weights: Array) -> Array:
        return (np.einsum("xk,xkd->xd", weights, self.all_scores) ** 2).sum(axis=1)

    def diameters(self, possible: NDArray[np.bool_]) -> Array:
        out = np.zeros(len(possible))
        for x, arms in enumerate(possible):
            gram = self.gram(x, x)[np.ix_(arms, arms)]
            norms = np.diagonal(gram)
            out[x] = np.sqrt(max((norms[:, None] + norms - 2 * gram).max(), 0.0))
        return out

    @cached_property
    def squared_norms(self) -> Array:
        return np.einsum("xkd,xkd->xk", self.all_scores, self.all_scores)

    @property
    def feature_norm(self) -> float:
        return float(np.linalg.norm(self.features, axis=2).max())
