"""Lists of episodes with turns, which problems with turns produce and predictions read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..files.named import READERS
from ..validation import Array, InputError, record
from .record import TokenOutcomes


@record()
class Episodes:
    """The list of all possible episodes: E episodes of at most T turns, with d parameters.

    Arguments:
        probs: probability of each, (E,); they sum to 1.
        starts: number of each episode's first state, its prompt, (E,).
        rewards: rₜ, (E, T), 0 past the end.
        reached: whether the episode has turn t, (E, T).
        states: state of turn t, (E, T), -1 past the end.
        scores: sₜ = ∇ log π(action | state), (E, T, d), 0 past the end.
    """

    probs: Array
    starts: NDArray[np.int64]
    rewards: Array
    reached: NDArray[np.bool_]
    states: NDArray[np.int64]
    scores: Array

    @cached_property
    def to_go(self) -> Array:
        """Rₜ = Σ_{u≥t} rᵤ, (E, T)."""
        return np.cumsum(self.rewards[:, ::-1], axis=1)[:, ::-1] * self.reached

    @property
    def d(self) -> int:
        """The number of parameters."""
        return self.scores.shape[2]

    def prompts(self) -> Iterator[tuple[float, Episodes]]:
        """The probability of each prompt, and its episodes with their conditional probabilities."""
        kinds = np.unique(self.starts)
        if len(kinds) == 1:
            # Scores may be large: no copy.
            yield 1.0, self
            return
        for start in kinds:
            rows = self.starts == start
            chance = float(self.probs[rows].sum())
            arrays = self.starts, self.rewards, self.reached, self.states, self.scores
            yield chance, Episodes(self.probs[rows] / chance, *(array[rows] for array in arrays))

    def objective(self) -> float:
        """J = E R₁, the expected return."""
        return float(self.probs @ self.to_go[:, 0])

    def gradient(self) -> Array:
        """∇J = Σₜ E[sₜ Rₜ], (d,)."""
        weights = self.probs[:, None] * self.to_go
        gradient: Array = weights.ravel() @ self.scores.reshape(-1, self.d)
        return gradient

    @classmethod
    def of_tokens(cls, outcomes: TokenOutcomes) -> Episodes:
        """Outputs as episodes with tokens as turns, and the reward at the last token.

        Arguments:
            outcomes: all outputs of a problem, of :func:`~ustat_pg.problems.token_outcomes`.

        >>> from ustat_pg.problems import load_problem, token_outcomes
        >>> problem = load_problem("ustat:skewed")
        >>> np.allclose(Episodes.of_tokens(token_outcomes(problem)).gradient(), problem.gradient())
        True
        """
        prompts, outputs = outcomes.rewards.shape
        reached = np.tile(outcomes.inside > 0, (prompts, 1))
        last = np.tile(outcomes.inside.sum(axis=1).astype(np.int64) - 1, prompts)
        rewards = np.zeros(reached.shape)
        rewards[np.arange(len(rewards)), last] = outcomes.rewards.ravel()
        probs = (outcomes.context_probs[:, None] * outcomes.probs).ravel()
        return cls(
            probs / probs.sum(),
            np.repeat(np.arange(prompts), outputs),
            rewards,
            reached,
            np.where(reached, np.arange(reached.shape[1]), -1),
            outcomes.scores.reshape(prompts * outputs, *outcomes.scores.shape[2:]),
        )


class HasEpisodes(Protocol):
    """A problem that can list its episodes, at its current parameters."""

    @property
    def episodes(self) -> Episodes:
        """The list."""


def episodes_of(problem: Episodes | HasEpisodes | str | Path | Mapping[str, Any]) -> Episodes:
    """The episodes of a problem, also of one in a file or ``ustat:NAME``; a list of episodes is returned
    unchanged.

    >>> episodes_of(0.5)
    Traceback (most recent call last):
    ...
    ustat_pg.validation.InputError: problem is a float: it must be an EpisodeProblem, or Episodes
    """
    if isinstance(problem, str | Path | Mapping):
        problem = READERS["episodes"](problem)
    listed: Any = getattr(problem, "episodes", problem)
    if not isinstance(listed, Episodes):
        raise InputError(
            f"problem is a {type(problem).__name__}: it must be an EpisodeProblem, or Episodes"
        )
    return listed
