"""Problems with turns: those that ship, random walks, a flower that may be looked at again, and token
problems whose turns are tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ustat_pg.problems import (
    Episodes,
    SoftmaxBandit,
    episode_problem,
    episode_problems,
    load_episodes,
    token_outcomes,
)

from .bandits import Bandits
from .entry import Entry

_TURNS = 3
"""The most turns of generated problems and of flowers."""

_DRAWS = 1000
"""Draws among which a telling problem is looked for."""


def episodes(suite: Bandits) -> Iterator[Entry[Episodes]]:
    """The episodes of one prompt of each problem."""
    for name in episode_problems():
        yield Entry(name, "made-up", load_episodes(f"ustat:{name}").episodes)
    for number in range(suite.generated):
        rng = np.random.default_rng([suite.seed, number, 42])
        listed = next(filter(_telling, (_walk(rng) for _ in range(_DRAWS))))
        yield Entry(f"walk#{suite.seed}.{number}", "generated", listed)
    yield Entry("iris, looked at again", "real", _flower(suite))


def _telling(listed: Episodes) -> bool:
    """Whether turns are reached by some episodes only, and come back to a state."""
    reach = listed.probs @ listed.reached
    again = (listed.states[:, 1:] == listed.states[:, :1]) & listed.reached[:, 1:]
    return 0.1 < reach[1] < 0.6 and float(listed.probs @ again.any(axis=1)) > 0.1


def _walk(rng: np.random.Generator) -> Episodes:
    """A random walk over two states: an episode stops, or goes on to one of them."""

    def state() -> dict[str, Any]:
        moves = [
            {"prob": float(chance), "reward": float(rng.normal()), "to": name}
            for name, chance in zip("ab", rng.dirichlet([2.0, 2.0]), strict=True)
        ]
        stop = {"prob": 1, "reward": float(1 + rng.normal())}
        return {
            "stop": {"logit": float(rng.normal()), "moves": [stop]},
            "on": {"logit": float(rng.normal()), "moves": moves},
        }

    states = {name: state() for name in "ab"}
    return episode_problem({"start": {"a": 1}, "states": states, "max_turns": _TURNS}).episodes


def _flower(suite: Bandits) -> Episodes:
    """An iris flower that a fitted policy names, or looks at again, which costs a turn and a tenth."""
    problem = suite.iris.problem
    x = int(problem.policy.probs.max(axis=1).argmin())
    logits, rewards = np.log(problem.policy.probs[x]), problem.mean_rewards[x]
    actions: dict[str, Any] = {
        f"species {k}": {
            "logit": float(logit),
            "moves": [{"prob": 1, "reward": float(reward)}],
        }
        for k, (logit, reward) in enumerate(zip(logits, rewards, strict=True))
    }
    actions["look"] = {"logit": -0.5, "moves": [{"prob": 1, "reward": -0.1, "to": "flower"}]}
    data = {"start": {"flower": 1}, "states": {"flower": actions}, "max_turns": _TURNS}
    return episode_problem(data).episodes


def tokens(entries: Iterable[Entry[SoftmaxBandit]]) -> Iterator[Entry[Episodes]]:
    """Outputs of policies over tokens as episodes whose turns are tokens: an end token is a decision."""
    for entry in entries:
        outcomes = token_outcomes(entry.problem)
        # Only ends that come early make a turn that not all reach.
        if (outcomes.inside == 0).any():
            yield Entry(entry.name, entry.origin, Episodes.of_tokens(outcomes))
