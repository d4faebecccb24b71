"""Problems with turns: shipped ones, random walks, a flower that can be viewed again, and token
problems whose turns are tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np

from ustat_pg.engines import enumerate_turns
from ustat_pg.problems import (
    Episodes,
    episode_problem,
    episode_problems,
    load_episodes,
    token_outcomes,
)

from .bandits import Bandits
from .entry import Entry, streams
from .lengths import counting
from .tokens import initial

_TURNS = 3
"""The most turns of generated problems and of flowers."""

SIZE = 3
"""The group size for turns; it is small, so that turns that no other episode reaches matter."""

SHOWN = 0.1
"""The least relative error of wrong formulas on a generated problem: twice the need of a check."""

_DRAWS = 10_000
"""The number of draws in the search for a suitable problem."""


def episodes(suite: Bandits) -> Iterator[Entry[Episodes]]:
    """The episodes of one prompt of each problem."""
    for name in episode_problems():
        yield Entry(name, "made-up", load_episodes(f"ustat:{name}").episodes)
    for name, origin, rng in streams("walk", suite.seed, suite.generated, 42):
        listed = next(filter(_telling, (_walk(rng) for _ in range(_DRAWS))))
        yield Entry(name, origin, listed)
    yield Entry("iris, looked at again", "real", _flower(suite))


def _telling(listed: Episodes) -> bool:
    """Whether a walk returns to a state, and the loss and noise of summed baselines are visible.

    It uses the list and enumeration, in groups of :data:`SIZE`, without a closed form.
    """
    again = (listed.states[:, 1:] == listed.states[:, :1]) & listed.reached[:, 1:]
    if not (float(listed.probs @ again.any(axis=1)) > 0.1 and _lossy(listed)):
        return False
    by_turn, whole = (enumerate_turns(listed, name, SIZE) for name in ("to-go", "episode"))
    signal = (by_turn.by_turn**2).sum(axis=1)
    noise, least_noise = by_turn.turn_squares - signal, whole.turn_squares - signal
    return bool((noise > (1 + 2 * SHOWN) * least_noise).any())


def _lossy(listed: Episodes) -> bool:
    """Whether the loss of summed baselines at the first turn is visible, also against three wrong factors."""
    reach = listed.probs @ listed.reached
    if not 0.1 < reach[1] < 0.6:
        return False
    first = listed.probs[:, None] * listed.scores[:, 0]
    lost = (listed.probs @ listed.rewards[:, 1]) / reach[1] * (listed.reached[:, 1] @ first)
    company = 1 - (1 - reach[1]) ** (SIZE - 1)
    least = min(company, 1 - company, company * (1 - reach[1])) * np.linalg.norm(lost)
    known = np.linalg.norm(listed.to_go[:, 0] @ first) + np.linalg.norm(lost)
    return bool(least > SHOWN * known)


def _walk(rng: np.random.Generator) -> Episodes:
    """A random walk over two states: an episode stops or moves to one of them."""

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
    """An iris flower that a fitted policy names or views again, at the cost of a turn and 0.1."""
    problem = suite.iris.problem
    x = int(problem.policy.probs.max(axis=1).round(9).argmin())
    logits, rewards = np.log(problem.policy.probs[x]), problem.mean_rewards[x]
    actions: dict[str, Any] = {
        f"species {k}": {"logit": float(logit), "moves": [{"prob": 1, "reward": float(reward)}]}
        for k, (logit, reward) in enumerate(zip(logits, rewards, strict=True))
    }
    actions["look"] = {"logit": -0.5, "moves": [{"prob": 1, "reward": -0.1, "to": "flower"}]}
    data = {"start": {"flower": 1}, "states": {"flower": actions}, "max_turns": _TURNS}
    return episode_problem(data).episodes


def networks(suite: Bandits, on: str) -> Iterator[Entry[Episodes]]:
    """Outputs of token policies as episodes whose turns are tokens; the end token is a decision."""

    def drawn(longest: int, seed: int) -> Episodes:
        task = counting(longest)
        problem = task.at(initial(on, task, seed=seed, scale=2.0))
        return Episodes.of_tokens(token_outcomes(problem.restrict([0])))

    first = next(filter(_lossy, (drawn(3, seed) for seed in count())))
    yield Entry("counting to 3", "made-up", first)
    for name, origin, rng in streams("counting", suite.seed, suite.generated, 43):
        draws = (drawn(int(rng.integers(2, 5)), int(rng.integers(2**31))) for _ in range(_DRAWS))
        yield Entry(name, origin, next(filter(_lossy, draws)))
