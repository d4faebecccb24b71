"""Cells of one turn's part of a group's gradient, for episodes of several turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ustat_pg.engines.base import Draws, Estimator
from ustat_pg.engines.gradients.cell import GradientCell, Projection
from ustat_pg.estimators import turns
from ustat_pg.policies import TabulatedPolicy
from ustat_pg.problems import Episodes, SoftmaxBandit
from ustat_pg.rounding import DERIVED
from ustat_pg.validation import Array

_BLOCK = 8192
"""Replications in a block; few, because NumPy draws the groups."""


@dataclass(frozen=True)
class OfTurn:
    """The advantages that a scheme gives one turn of the drawn episodes.

    Arguments:
        scheme: one of :data:`~ustat_pg.estimators.TURN_SCHEMES`.
        turn: t, from 0.
        by_state: whether to compare equal states instead of equal turns.
        lone: the rule if no other episode reaches the turn.
        episodes: the arms.
    """

    scheme: str
    turn: int
    by_state: bool
    lone: str
    episodes: Any = field(compare=False, repr=False)

    def __call__(self, rewards: Array, draws: Draws) -> Array:
        known = self.episodes
        groups = draws.arms.reshape(-1, draws.arms.shape[-1])
        found = turns(
            known.rewards[groups],
            known.reached[groups],
            self.scheme,
            states=known.states[groups] if self.by_state else None,
            lone=self.lone,
        )
        return np.asarray(found[..., self.turn]).reshape(draws.arms.shape)


@dataclass(frozen=True, eq=False)
class TurnCell(GradientCell):
    """A cell that measures ĝₜ = (1/G) Σᵢ sᵢₜ Aᵢₜ: arms are episodes of one prompt, with scores of turn t.

    The bandit's own gradient is gₜ = E[sₜ R₁] = E[sₜ Rₜ].

    Arguments:
        episodes: the arms.
        turn: t, from 0.
    """

    episodes: Any = None
    turn: int = 0

    block = _BLOCK
    engines = ("exact", "reference")

    @classmethod
    def of(cls, episodes: Episodes, turn: int, group_size: int) -> TurnCell:
        """The cell of a turn."""
        policy = TabulatedPolicy(np.log(episodes.probs)[None], episodes.scores[None, :, turn])
        returns = episodes.to_go[None, :, :1]
        problem = SoftmaxBandit(policy, [1.0], returns, np.ones_like(returns))  # type: ignore[arg-type]
        return cls(problem, group_size, episodes=episodes, turn=turn)

    def estimator(self, scheme: str, *, by_state: bool = False, lone: str = "reward") -> Estimator:
        """A scheme over turns; its name shows options that differ from the defaults."""
        words = [scheme, *["by state"] * by_state, *["lone turns dropped"] * (lone == "zero")]
        function = OfTurn(scheme, self.turn, by_state, lone, self.episodes)
        return Estimator(", ".join(words), function=function)

    def range(self, quantity: Any) -> tuple[float, float]:
        # No baseline is larger than the sum of the turns' largest rewards.
        largest = 2 * float(np.abs(self.episodes.rewards).max(axis=0).sum())
        norm = float(np.sqrt(self.problem.policy.squared_norms.max()))
        bound = norm * largest + float(np.linalg.norm(self.problem.gradient()))
        return (-bound, bound) if isinstance(quantity, Projection) else (0.0, bound**2)

    def rounding(self, quantity: Any) -> float:
        return DERIVED * max(abs(end) for end in self.range(quantity))
