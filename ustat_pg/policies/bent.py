"""The bent softmax policy: logits that are quadratic in θ, and the linear policy that touches it.

    logit(x, k) = ⟨φ(x, k), θ⟩ - ½ Σⱼ ψ(x, k)ⱼ θⱼ² + o(x, k),      s = f - E f,   f = φ - ψθ

(products with θ and θ² entry by entry). At its parameters the policy has the probabilities and
scores of its *tangent*, the policy with features φ - ψθ and offset o + ½ Σⱼ ψⱼ θⱼ².
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..validation import InputError, field, finite_array, record
from .softmax import ArmLinearSoftmax, Array, ScoreTable, require_arms


@record()
class BentSoftmax(ScoreTable):
    """One parameter vector on features of context and arm, with bends.

    Arguments:
        features: φ(x, k), (X, K, d).
        bends: ψ(x, k), (X, K, d), of either sign.
        parameters: θ, (d,).
        offset: o(x, k), (X, K); None for zero.

    >>> policy = BentSoftmax([[[1.0], [0.0]]], [[[2.0], [0.0]]], [1.0])
    >>> policy.probs, policy.with_theta(np.zeros(1)).scores(0)
    (array([[0.5, 0.5]]), array([[ 0.5], [-0.5]]))
    """

    features: Array = field(finite_array, ndim=3)
    bends: Array = field(finite_array, ndim=3)
    parameters: Array = field(finite_array, name="theta", ndim=1)
    offset: Array | None = field(finite_array, ndim=2, default=None)

    in_files = True

    def __attrs_post_init__(self) -> None:
        require_arms(self.features, self.parameters, self.offset)
        if self.bends.shape != self.features.shape:
            raise InputError(
                f"bends has shape {self.bends.shape}: it must be that of the features, "
                f"{self.features.shape}"
            )

    @cached_property
    def tangent(self) -> ArmLinearSoftmax:
        """The policy without bends that has the same probabilities and scores at these parameters."""
        offset = (self.bends * self.parameters**2).sum(axis=-1) / 2
        if self.offset is not None:
            offset = offset + self.offset
        return ArmLinearSoftmax(
            self.features - self.bends * self.parameters, self.parameters, offset
        )

    def arrays(self) -> dict[str, Array]:
        """The arrays of the tangent: they name a gradient at these parameters, and are what a file
        holds. Of runs that leave the parameters, :attr:`bends` are named beside them.
        """
        return self.tangent.arrays()

    @property
    def logits(self) -> Array:
        return self.tangent.logits

    @property
    def theta(self) -> Array:
        return self.parameters

    @property
    def all_scores(self) -> Array:
        return self.tangent.all_scores

    @property
    def feature_norm(self) -> float:
        return self.tangent.feature_norm

    def with_theta(self, theta: Array) -> BentSoftmax:
        return BentSoftmax(self.features, self.bends, theta, self.offset)

    def restrict(self, contexts: NDArray[np.intp]) -> BentSoftmax:
        offset = None if self.offset is None else self.offset[contexts]
        return BentSoftmax(self.features[contexts], self.bends[contexts], self.parameters, offset)

    def curvature(self, weights: Array, context_probs: Array) -> Array:
        return -np.einsum("xk,xkd->d", weights * context_probs[:, None], self.bends)

    def logits_at(self, theta: Array) -> Array:
        """The logits at parameters (n, d): (n, X, K)."""
        logits = np.einsum("xkd,nd->nxk", self.features, theta)
        logits -= np.einsum("xkd,nd->nxk", self.bends, theta**2) / 2
        return logits if self.offset is None else logits + self.offset

    def features_at(self, theta: Array) -> Array:
        """φ - ψθ at parameters (n, d): (n, X, K, d)."""
        return np.asarray(self.features - self.bends * theta[:, None, None, :])
