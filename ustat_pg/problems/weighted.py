"""Bandits with estimates that sum weighted scores: by length, by an importance ratio, clipped or not.

With outputs drawn at fixed parameters such an estimator is

    ĝ = (1/G) Σᵢ Aᵢ uᵢ,    uᵢ = Σₜ wₜ sₜ(yᵢ),

and u is a table, like scores. Engines measure it like any bandit. But E u need not be 0: a baseline may bias
such an estimate, and closed forms that assume E s = 0 do not apply.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax

from ..moments.record import Moments, WeightedOutcomes
from ..policies import WeightedScores
from ..validation import Array, InputError, field, finite_array, frozen, record
from .softmax_bandit import SoftmaxBandit


@record()
class WeightedBandit(SoftmaxBandit):
    """A bandit with weighted scores instead of scores; :meth:`of` makes it.

    Arguments:
        targets: targets of the estimates of each context, (X, d); errors are measured from their mean.

    >>> bandit = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    >>> halved = WeightedBandit.of(bandit, [[0.5, 1.0]])
    >>> halved.policy.scores(0), halved.gradient()
    (array([[ 0.25, -0.25],
           [-0.5 ,  0.5 ]]), array([ 0.25, -0.25]))
    """

    targets: Array = field(finite_array, ndim=2)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.targets.shape != (self.contexts, self.d):
            raise InputError(
                f"targets have shape {self.targets.shape}: it must be contexts and parameters, "
                f"{(self.contexts, self.d)}"
            )

    @classmethod
    def of(
        cls, problem: SoftmaxBandit, weights: ArrayLike, targets: ArrayLike | None = None
    ) -> WeightedBandit:
        """The problem with weights on its scores, or with other vectors instead of scores.

        Arguments:
            problem: problem with the policy that draws the outputs.
            weights: factors w(x, k) of the scores, (X, K); or the vectors u(x, k), (X, K, d').
            targets: (X, d') (default: the gradients g(x) of the problem's own expected reward).
        """
        given, policy = finite_array("weights", weights), problem.policy
        shape = (problem.contexts, problem.arms)
        if given.shape[:2] != shape or given.ndim not in (2, 3):
            raise InputError(
                f"weights have shape {given.shape}: they must be one number, or one vector, for each "
                f"context and arm, {shape}"
            )
        # The digest uses the given arrays, because last bits of products depend on the machine.
        origin = {**policy.arrays(), "weights": given}
        if given.ndim == 2:
            given = np.stack([policy.scores(x) * given[x, :, None] for x in range(shape[0])])
        if targets is None:
            targets = [policy.combine(x, problem._advantage_weights[x]) for x in range(shape[0])]
        else:
            origin["targets"] = finite_array("targets", targets, 2)
        return cls(
            WeightedScores(log_softmax(policy.logits, axis=-1), given, origin),
            problem.context_probs,
            problem.reward_values,
            problem.reward_probs,
            np.asarray(targets),
        )

    def _rows(self, chosen: NDArray[np.intp]) -> dict[str, Any]:
        return {**super()._rows(chosen), "targets": self.targets[chosen]}

    @cached_property
    def _gradient(self) -> Array:
        return frozen(self.context_probs @ self.targets)

    def gradient(self) -> Array:
        """The target of estimates: the mean of the targets, (d,)."""
        return self._gradient

    def moments(self) -> Moments:
        """Raise an error, because closed forms of moments assume E s = 0."""
        raise InputError("weighted scores have no moments of scores: use weighted_outcomes()")

    def weighted_outcomes(self) -> WeightedOutcomes:
        """All outputs with their weighted scores, for predictions; rewards 0 and 1."""
        if not self.binary:
            raise InputError("rewards are not all 0 or 1: use enumeration instead")
        tables = np.stack([self.policy.scores(x) for x in range(self.contexts)])
        return WeightedOutcomes(
            self.context_probs, self.policy.probs, self.mean_rewards, tables, self.targets
        )

    def arrays(self) -> dict[str, Array]:
        named = super().arrays()
        if getattr(self.policy, "origin", None) is None:
            named["targets"] = self.targets
        return named
