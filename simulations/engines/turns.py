"""Cells of one turn's part of a group's gradient, where episodes take several turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ustat_pg.engines.base import Array, Draws, Estimator
from ustat_pg.engines.gradients.cell import GradientCell, Projection
from ustat_pg.policies import TabulatedPolicy
from ustat_pg.problems import Episodes, SoftmaxBandit

Advantages = Callable[[Array, Array, Any], Array]
"""Advantages of the rewards, reached turns and states of groups of episodes, (n, G, T) all."""


@dataclass(frozen=True, eq=False)
class TurnCell(GradientCell):
    """A cell that measures ĝₜ = (1/G) Σᵢ sᵢₜ Aᵢₜ: arms are episodes of one prompt, scores those of turn t.

    The bandit's own gradient is gₜ = E[sₜ R₁] = E[sₜ Rₜ].

    Arguments:
        episodes: the arms.
        turn: t, from 0.
    """

    episodes: Any = None
    turn: int = 0

    engines = ("exact", "reference")

    @classmethod
    def of(cls, episodes: Episodes, turn: int, group_size: int) -> TurnCell:
        """The cell of a turn."""
        policy = TabulatedPolicy(np.log(episodes.probs)[None], episodes.scores[None, :, turn])
        returns = episodes.to_go[None, :, :1]
        problem = SoftmaxBandit(policy, [1.0], returns, np.ones_like(returns))  # type: ignore[arg-type]
        return cls(problem, group_size, episodes=episodes, turn=turn)

    def estimator(self, name: str, advantages: Advantages) -> Estimator:
        """Advantages over turns, by a name."""

        def of_turn(_: Array, draws: Draws) -> Array:
            arms = draws.arms
            groups = arms.reshape(-1, arms.shape[-1])
            known = self.episodes
            found = advantages(known.rewards[groups], known.reached[groups], known.states[groups])
            return np.asarray(found[..., self.turn]).reshape(arms.shape)

        return Estimator(name, function=of_turn)

    def range(self, quantity: Any) -> tuple[float, float]:
        # No baseline is larger than the sum of the turns' largest rewards.
        largest = 2 * float(np.abs(self.episodes.rewards).max(axis=0).sum())
        norm = float(np.sqrt(self.problem.policy.squared_norms.max()))
        bound = norm * largest + float(np.linalg.norm(self.problem.gradient()))
        return (-bound, bound) if isinstance(quantity, Projection) else (0.0, bound**2)

    def rounding(self, quantity: Any) -> float:
        return 1e-13 * max(abs(end) for end in self.range(quantity))
