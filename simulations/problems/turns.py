"""Problems with turns: made-up ones, generated ones, flowers that may be looked at twice, and token problems
whose turns are tokens.
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

_WIDTH, _DEPTH = 2, 3
"""States of a generated problem at each turn, and its turns."""


def episodes(suite: Bandits) -> Iterator[Entry[Episodes]]:
    """The episodes of one prompt of each problem."""
    for name in episode_problems():
        yield Entry(name, "made-up", load_episodes(f"ustat:{name}").episodes)
    for number in range(suite.generated):
        rng = np.random.default_rng([suite.seed, number, 42])
        yield Entry(f"episodes#{suite.seed}.{number}", "generated", drawn(rng).episodes)
    yield Entry("iris, looked at twice", "real", flowers(suite))


def drawn(rng: np.random.Generator) -> Any:
    """A random problem: at each turn an episode stops, or goes on to one of the next turn's states."""

    def state(turn: int) -> dict[str, Any]:
        stop = {"logit": float(rng.normal()), "moves": [{"prob": 1, "reward": float(rng.normal())}]}
        if turn == _DEPTH - 1:
            other = {"logit": 0.0, "moves": [{"prob": 1, "reward": float(rng.normal())}]}
            return {"stop": stop, "other": other}
        chances = rng.dirichlet([2.0] * _WIDTH)
        moves = [
            {"prob": float(chance), "reward": float(rng.normal()), "to": f"{turn + 1}.{x}"}
            for x, chance in enumerate(chances)
        ]
        return {"stop": stop, "on": {"logit": float(rng.normal()) + 0.5, "moves": moves}}

    states = {
        f"{turn}.{x}": state(turn) for turn in range(_DEPTH) for x in range(_WIDTH if turn else 1)
    }
    return episode_problem({"start": {"0.0": 1}, "states": states})


def flowers(suite: Bandits) -> Episodes:
    """An iris flower that a fitted policy names at once, or after a second look that doubles its logits."""
    problem = suite.iris.problem
    x = int(problem.policy.probs.max(axis=1).argmin())
    rewards, logits = problem.mean_rewards[x], np.log(problem.policy.probs[x])
    answers = [
        {
            f"species {k}": {
                "logit": float(factor * logit),
                "moves": [{"prob": 1, "reward": float(reward)}],
            }
            for k, (logit, reward) in enumerate(zip(logits, rewards, strict=True))
        }
        for factor in (1.0, 2.0)
    ]
    look = {"logit": -0.5, "moves": [{"prob": 1, "reward": -0.1, "to": "second"}]}
    states = {"first": answers[0] | {"look": look}, "second": answers[1]}
    return episode_problem({"start": {"first": 1}, "states": states}).episodes


def tokens(entries: Iterable[Entry[SoftmaxBandit]]) -> Iterator[Entry[Episodes]]:
    """Outputs of policies over tokens as episodes whose turns are tokens: an end token is a decision."""
    for entry in entries:
        outcomes = token_outcomes(entry.problem)
        # Only ends that come early make a turn that not all reach.
        if (outcomes.inside == 0).any():
            yield Entry(entry.name, entry.origin, Episodes.of_tokens(outcomes))
