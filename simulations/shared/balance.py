"""Numbers of a prompt from its outcomes. Designs use them, independently of predictions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ustat_pg.problems import SoftmaxBandit


@dataclass(frozen=True)
class Balance:
    """Numbers of one prompt from its outcomes, for the choice of a design.

    Arguments:
        value, trace: V and tr F.
        gain, cost: V² tr F + 2 V E[‖s‖² a] and σ² tr F + ‖g‖².
        best: b*.
    """

    value: float
    trace: float
    gain: float
    cost: float
    best: float

    @classmethod
    def of(cls, problem: SoftmaxBandit) -> Balance:
        """The numbers of a problem's first prompt."""
        outcomes = problem.outcomes
        probs, rewards, scores = outcomes.probs[0], outcomes.rewards[0], problem.policy.scores(0)
        norms = problem.policy.squared_norms[0][outcomes.arms[0]]
        value, trace = float(probs @ rewards), float(probs @ norms)
        crossed = float((probs * norms) @ (rewards - value))
        gradient = (probs * (rewards - value)) @ scores[outcomes.arms[0]]
        cost = float(probs @ (rewards - value) ** 2) * trace + float(gradient @ gradient)
        best = value + (crossed / trace if trace > 0 else 0.0)
        return cls(value, trace, value**2 * trace + 2 * value * crossed, cost, best)


def values_of(problem: SoftmaxBandit) -> np.ndarray:
    """V(x), by outcomes."""
    return np.array([Balance.of(problem.restrict([x])).value for x in range(problem.contexts)])
