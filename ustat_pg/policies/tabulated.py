"""Tables of probabilities and scores: what any policy with few enough outputs is at fixed parameters.

Engines and moments read a policy through its probabilities and through inner products of its
scores. A network, a program or a file that yields the two is a policy here, with no formula for its
logits needed.
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
        """Refuse tables of other shapes than one another's, and probabilities that do not sum to 1."""
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
        """What names the table of some contexts."""
        if self.origin is None:
            return None
        chosen = np.append(self.origin.get("contexts", []), [-1, *contexts])
        return {**self.origin, "contexts": chosen}


@record()
class TabulatedPolicy(_Table):
    """A policy at fixed parameters, as tables of log-probabilities and scores.

    Probabilities are made to sum to 1 and scores to have mean 0, E[s | x] = 0, exactly.

    Arguments:
        log_probs: log π(k | x), (X, K).
        all_scores: s(x, k), (X, K, d).
        parameters: θ (d,) at which the tables hold; None where they have no parameters of their own.
        source: the policy that the tables were made of; it serves other parameters.
        origin: arrays that name the policy where the last bits of its tables depend on the
            machine that made them; None to be named by the tables themselves.

    Raises:
        InputError: shapes that do not match, entries that are not finite, probabilities that do
            not sum to 1, or scores whose mean is not 0.

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
        # Where every score is rounding, so is their mean: there is nothing to compare it with.
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

        All inner products are kept to rounding. A parameter vector has no meaning there. The table is the
        square root of the Gram matrix S Sᵀ of all scores S (X K, d), which alone decides it, whatever the
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
        """The policy that the tables were made of, at other parameters."""
        if self.source is None:
            raise InputError(
                "a table of probabilities and scores holds at its own parameters only: ask the "
                "policy that it was made of"
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
    """Probabilities of a policy with a table of any vectors in place of its scores.

    What estimates sum may be no score: ∇ log π times an importance ratio, clipped or not, or times a
    weight by length. The table's mean under the probabilities need not be 0.

    Arguments:
        log_probs: log π(k | x) of the policy that draws, (X, K).
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
        """Refused: weighted scores hold at their own parameters only."""
        raise InputError("weighted scores hold at their own parameters only")

    def restrict(self, contexts: NDArray[np.intp]) -> WeightedScores:
        origin = self._origin_of(contexts)
        return WeightedScores(self.log_probs[contexts], self.all_scores[contexts], origin)
