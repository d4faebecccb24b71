"""Tables of probabilities and scores, a form of any policy with few outputs at fixed parameters.

Engines and moments use only a policy's probabilities and inner products of its scores. So a network, a
program or a file that gives both is a policy here, without a formula for logits.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import polar
from scipy.special import logsumexp

from ..rounding import GIVEN
from ..validation import Array, InputError, field, finite_array, frozen, record
from .softmax import ScoreTable, SoftmaxPolicy


class _Table(ScoreTable):
    """Log-probabilities and a table of vectors, at fixed parameters."""

    log_probs: Array
    origin: Mapping[str, Array] | None

    @property
    def logits(self) -> Array:
        return self.log_probs

    @property
    def d(self) -> int:
        return self.all_scores.shape[2]

    def scores(self, context: int) -> Array:
        return self.all_scores[context]

    def _require_law(self, name: str) -> None:
        """Raise an error if tables have different shapes, or probabilities do not sum to 1."""
        logs, shape = self.log_probs, self.all_scores.shape
        if shape[:2] != logs.shape:
            raise InputError(
                f"{name} have shape {shape}: the first two must be contexts and outputs, {logs.shape}"
            )
        total = logsumexp(logs, axis=1)
        if np.abs(total).max() > GIVEN:
            x = int(np.abs(total).argmax())
            raise InputError(
                f"probabilities of context {x} sum to {float(np.exp(total[x]))!r}: they must sum "
                f"to 1 within {GIVEN:g}"
            )

    def _origin_of(self, contexts: NDArray[np.intp]) -> dict[str, Array] | None:
        """The arrays that identify the table of some contexts."""
        if self.origin is None:
            return None
        chosen = np.append(self.origin.get("contexts", []), [-1, *contexts])
        return {**self.origin, "contexts": chosen}


@record()
class TabulatedPolicy(_Table):
    """A policy at fixed parameters, as tables of log-probabilities and scores.

    Probabilities are corrected to sum exactly to 1, and scores to have mean exactly 0, E[s | x] = 0.

    Arguments:
        log_probs: log π(k | x), (X, K).
        all_scores: s(x, k), (X, K, d).
        parameters: θ (d,) of the tables; None if they have no parameters.
        source: policy from which the tables were made; it is used at other parameters.
        origin: arrays that identify the policy if the last bits of its tables depend on the machine; None to
            use the tables themselves.

    Raises:
        InputError: shapes do not match, entries are not finite, probabilities do not sum to 1, or the mean of
            scores is not 0.

    >>> policy = TabulatedPolicy(np.log([[0.25, 0.75]]), [[[0.75], [-0.25]]])
    >>> policy.probs, policy.squared_norms
    (array([[0.25, 0.75]]), array([[0.5625, 0.0625]]))
    """

    log_probs: Array = field(finite_array, ndim=2)
    all_scores: Array = field(finite_array, name="scores", ndim=3)
    parameters: Array | None = field(finite_array, name="theta", ndim=1, default=None)
    source: SoftmaxPolicy | None = None
    origin: Mapping[str, Array] | None = None

    def __attrs_post_init__(self) -> None:
        self._require_law("scores")
        scores = self.all_scores
        mean = np.einsum("xk,xkd->xd", self.probs, scores)
        longest = np.sqrt(np.einsum("xkd,xkd->xk", scores, scores).max(axis=1))
        # If all scores are rounding noise, so is their mean, and there is nothing to compare it with.
        share = np.linalg.norm(mean, axis=1) / np.maximum(longest, 1e-30)
        if ((share > GIVEN) & (longest > GIVEN)).any():
            x = int((share * (longest > GIVEN)).argmax())
            raise InputError(
                f"scores of context {x} have a mean {share[x]:.3g} times the longest: E[s | x] "
                f"must be 0 within {GIVEN:g}; these are not the scores of these "
                "probabilities"
            )
        scores = scores - mean[:, None, :]
        object.__setattr__(self, "all_scores", frozen(scores))
        if self.parameters is not None and len(self.parameters) != scores.shape[2]:
            raise InputError(
                f"theta has {len(self.parameters)} entries and scores {scores.shape[2]}: they must "
                "have the same number"
            )

    def reduced(self) -> TabulatedPolicy:
        """The policy with at most X K parameters: scores in coordinates of their own span.

        All inner products stay the same up to rounding. A parameter vector has no meaning there. The table is
        the square root of the Gram matrix S Sᵀ of all scores S (X K, d), which alone decides it, whatever the
        rank: rounding moves no coordinate by more than itself.
        """
        contexts, arms, d = self.all_scores.shape
        if contexts * arms >= d:
            return self
        _, root = polar(self.all_scores.reshape(-1, d), side="left")
        origin = None if self.origin is None else {**self.origin, "reduced": np.ones(1)}
        return TabulatedPolicy(
            self.log_probs,
            np.reshape(root, (contexts, arms, -1)),
            origin=origin,
        )

    def arrays(self) -> dict[str, Array]:
        if self.origin is not None:
            return dict(self.origin)
        tables = {"log_probs": self.log_probs, "scores": self.all_scores}
        return tables if self.parameters is None else {**tables, "theta": self.parameters}

    @property
    def theta(self) -> Array:
        if self.parameters is None:
            return np.zeros(self.all_scores.shape[2])
        return self.parameters

    def with_theta(self, theta: Array) -> SoftmaxPolicy:
        """The source of the tables, at other parameters."""
        if self.source is None:
            raise InputError(
                "a table of probabilities and scores is valid only at its own parameters: use "
                "the policy from which it was made"
            )
        return self.source.with_theta(theta)

    def logits_at(self, theta: Array) -> Array:
        return super().logits_at(theta) if self.source is None else self.source.logits_at(theta)

    def restrict(self, contexts: NDArray[np.intp]) -> TabulatedPolicy:
        source = None if self.source is None else self.source.restrict(contexts)
        origin = self._origin_of(contexts)
        if origin is not None and source is not None:
            origin = source.arrays()
        return TabulatedPolicy(
            self.log_probs[contexts],
            self.all_scores[contexts],
            self.parameters,
            source,
            origin,
        )


@record()
class WeightedScores(_Table):
    """Probabilities of a policy with a table of any vectors instead of its scores.

    Estimates may sum vectors that are not scores: ∇ log π times an importance ratio, clipped or not, or times
        a weight by length. The table's mean under the probabilities need not be 0.

    Arguments:
        log_probs: log π(k | x) of the sampling policy, (X, K).
        all_scores: u(x, k), (X, K, d).
        origin: arrays that name the tables where their last bits depend on the machine; None to be
            named by the tables themselves.

    >>> WeightedScores(np.log([[0.25, 0.75]]), [[[1.0], [1.0]]]).squared_norms
    array([[1., 1.]])
    """

    log_probs: Array = field(finite_array, ndim=2)
    all_scores: Array = field(finite_array, name="weighted scores", ndim=3)
    origin: Mapping[str, Array] | None = None

    def __attrs_post_init__(self) -> None:
        self._require_law("weighted scores")

    def arrays(self) -> dict[str, Array]:
        if self.origin is not None:
            return dict(self.origin)
        return {"log_probs": self.log_probs, "weighted_scores": self.all_scores}

    @property
    def theta(self) -> Array:
        return np.zeros(self.d)

    def with_theta(self, theta: Array) -> SoftmaxPolicy:
        """Raise an error, because weighted scores are valid only at their own parameters."""
        raise InputError("weighted scores are valid only at their own parameters")

    def restrict(self, contexts: NDArray[np.intp]) -> WeightedScores:
        origin = self._origin_of(contexts)
        return WeightedScores(self.log_probs[contexts], self.all_scores[contexts], origin)
