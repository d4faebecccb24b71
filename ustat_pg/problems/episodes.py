"""Problems with turns: small episodes that can be listed, with a policy that decides when they end.

A problem has states, the actions of each with logits, and the outcomes of each action: rewards, and the next
    state or the end. Different paths may lead to the same state. At fixed parameters such a problem is a
    softmax bandit with the episodes as outputs and a score for each turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..files.reading import read_json
from ..moments.episodes import Episodes as Episodes
from ..moments.episodes import episodes_of as episodes_of
from ..validation import (
    Array,
    InputError,
    finite_array,
    integer,
    nearest,
    number,
    probabilities,
    record,
)
from .named import PREFIX
from .softmax_bandit import SoftmaxBandit

MOST_EPISODES = 100_000
"""The largest number of episodes of a problem."""

MOST_BYTES = 2 * 10**9
"""The largest size of the dense scores (E, T, d) of a problem's episodes, in bytes."""

_NEVER = -1e4
"""The logit of an arm that pads the rows of a bandit; its probability is 0."""


class Move(NamedTuple):
    """A possible outcome of an action.

    Arguments:
        prob: its probability given state and action.
        reward: reward of the turn.
        to: number of the next state; None at the end of the episode.
    """

    prob: float
    reward: float
    to: int | None


class Action(NamedTuple):
    """An action of a state: its name, its logit and its possible outcomes."""

    name: str
    logit: float
    moves: tuple[Move, ...]


@record()
class EpisodeProblem:
    """States and actions of small episodes, with a softmax over each state's actions.

    The parameters are the logits of all actions, in order: ∂ log π(a | x)/∂θ_{x,b} = 1{a = b} - π(b | x).

    Arguments:
        names: names of the states, (S,).
        start_probs: probability that an episode, or a prompt's group, starts in each state, (S,).
        actions: actions of each state, at least one.
        max_turns: largest number of turns of an episode; needed if a path can return to a state.

    >>> problem = episode_problem({
    ...     "start": {"ask": 1},
    ...     "states": {"ask": {"answer": {"moves": [{"prob": 1, "reward": 0.5}]},
    ...                        "look": {"moves": [{"prob": 1, "to": "found"}]}},
    ...                "found": {"answer": {"moves": [{"prob": 1, "reward": 1}]}}},
    ... })
    >>> problem.objective(), problem.gradient()
    (0.75, array([-0.125,  0.125,  0.   ]))
    """

    names: tuple[str, ...]
    start_probs: Array
    actions: tuple[tuple[Action, ...], ...]
    max_turns: int | None = None

    @cached_property
    def logits(self) -> Array:
        """θ, (d,)."""
        return np.array([action.logit for row in self.actions for action in row])

    @property
    def d(self) -> int:
        """The number of parameters."""
        return len(self.logits)

    @cached_property
    def _first(self) -> NDArray[np.int64]:
        """The number of each state's first parameter, (S + 1,)."""
        return np.cumsum([0, *map(len, self.actions)])

    def parameters(self, state: str) -> slice:
        """The slice of a state's parameters."""
        if state not in self.names:
            raise InputError(
                f"state {state!r} is unknown: it must be one of {', '.join(self.names)}"
            )
        x = self.names.index(state)
        return slice(int(self._first[x]), int(self._first[x + 1]))

    def with_logits(self, logits: Any) -> EpisodeProblem:
        """The problem at other parameters, (d,)."""
        theta = finite_array("logits", logits, 1)
        if len(theta) != self.d:
            raise InputError(
                f"logits have {len(theta)} entries: the problem has {self.d} parameters"
            )
        rows = [
            tuple(
                action._replace(logit=float(logit))
                for action, logit in zip(row, theta[first:], strict=False)
            )
            for row, first in zip(self.actions, self._first, strict=False)
        ]
        return EpisodeProblem(self.names, self.start_probs, tuple(rows), self.max_turns)

    @cached_property
    def policy(self) -> tuple[Array, ...]:
        """π(a | x) of each state's actions."""
        laws = []
        for row in self.actions:
            logits = np.array([action.logit for action in row])
            weights = np.exp(logits - logits.max())
            laws.append(weights / weights.sum())
        return tuple(laws)

    @cached_property
    def episodes(self) -> Episodes:
        """All episodes of positive probability.

        Raises:
            InputError: there are more than :data:`MOST_EPISODES`, or their scores take more than
                :data:`MOST_BYTES`.
        """
        listed = []
        for start in map(int, np.flatnonzero(self.start_probs)):
            for episode in self._from(start):
                listed.append((start, *episode))
                if len(listed) > MOST_EPISODES:
                    raise InputError(
                        f"there are more than {MOST_EPISODES} episodes: take a smaller problem, "
                        f"or a smaller max_turns if a path can return to a state"
                    )
        turns = max(len(steps) for _, _, steps in listed)
        shape = len(listed), turns
        if (size := 8 * len(listed) * turns * self.d) > MOST_BYTES:
            raise InputError(
                f"{len(listed):,} episodes of {turns} turns with {self.d:,} parameters have scores of "
                f"{size / 1e9:.1f} GB, and {MOST_BYTES / 1e9:g} are allowed: take fewer turns, states or "
                "actions"
            )
        rewards, states = np.zeros(shape), np.full(shape, -1)
        taken = np.full(shape, self.d)
        for e, (_, _, steps) in enumerate(listed):
            inside = slice(len(steps))
            states[e, inside], taken[e, inside], rewards[e, inside] = zip(*steps, strict=True)
        reached = states >= 0
        taken[reached] += self._first[states[reached]]
        # The score of each action; there is no action past the end.
        table = np.zeros((self.d + 1, self.d))
        for first, law in zip(self._first, self.policy, strict=False):
            own = slice(first, first + len(law))
            table[own, own] = np.eye(len(law)) - law
        scores = table[taken]
        chances = np.array([self.start_probs[start] * chance for start, chance, _ in listed])
        starts = np.array([start for start, _, _ in listed])
        return Episodes(chances, starts, rewards, reached, states, scores)

    def _from(self, start: int) -> Iterator[tuple[float, tuple[tuple[int, int, float], ...]]]:
        """The episodes that start in a state: the probability, and (state, action, reward) of each turn."""
        open_: list[tuple[float, int, tuple[tuple[int, int, float], ...]]] = [(1.0, start, ())]
        while open_:
            chance, state, steps = open_.pop()
            last = self.max_turns is not None and len(steps) + 1 == self.max_turns
            for a, (action, law) in enumerate(
                zip(self.actions[state], self.policy[state], strict=True)
            ):
                for move in action.moves:
                    likely = chance * float(law) * move.prob
                    after = (*steps, (state, a, move.reward))
                    if likely == 0:
                        continue
                    if move.to is None or last:
                        yield likely, after
                    else:
                        open_.append((likely, move.to, after))
                if len(open_) > MOST_EPISODES or len(steps) > MOST_EPISODES:
                    raise InputError(
                        f"there are more than {MOST_EPISODES} episodes: take a smaller problem, "
                        f"or give max_turns if a path can return to a state"
                    )

    def objective(self) -> float:
        """The expected return, J = E R₁."""
        return self.episodes.objective()

    def gradient(self) -> Array:
        """∇J = Σₜ E[sₜ Rₜ], (d,)."""
        return self.episodes.gradient()

    def bandit(self) -> SoftmaxBandit:
        """The softmax bandit with the episodes as outputs and their returns as rewards.

        Its scores are Σₜ sₜ, so its moments and predictions are those of whole episodes.
        """
        chances, parts = zip(*self.episodes.prompts(), strict=True)
        most = max(len(part.probs) for part in parts)
        features = np.zeros((len(parts), most, self.d))
        offset = np.full((len(parts), most), _NEVER)
        returns = np.zeros((len(parts), most, 1))
        for x, part in enumerate(parts):
            count = len(part.probs)
            features[x, :count] = part.scores.sum(axis=1)
            offset[x, :count] = np.log(part.probs)
            returns[x, :count, 0] = part.to_go[:, 0]
        return SoftmaxBandit.linear(
            chances, features, np.zeros(self.d), returns, np.ones_like(returns), offset
        )


def episode_problem(data: Mapping[str, Any]) -> EpisodeProblem:
    """A problem with turns from nested mappings, in the form of its files.

    Arguments:
        data: ``start``, the chances of states by name; ``states``, the actions of each by name, with a
            ``logit`` (default: 0) and ``moves``, each with ``prob``, ``reward`` (default: 0) and ``to``, a
            state (default: the end); and ``max_turns``, if a path can return to a state.

    Raises:
        InputError: the data have another form; the message says where.
    """
    _only("a problem with turns", data, {"start", "states"}, {"max_turns", "title"})
    states, start = _mapping("states", data["states"]), _mapping("start", data["start"])
    names = tuple(states)
    for name in start:
        _state(name, names, "start")
    chances = probabilities("start", [number(f"start.{x}", start.get(x, 0.0)) for x in names], 1)
    rows = tuple(
        tuple(
            _action(f"states.{x}", name, found, names) for name, found in _mapping(x, row).items()
        )
        for x, row in states.items()
    )
    turns = data.get("max_turns")
    if turns is None:
        _ends(names, rows)
    else:
        turns = integer("max_turns", turns, minimum=1)
    return EpisodeProblem(names, chances, rows, turns)


def _ends(names: tuple[str, ...], rows: tuple[tuple[Action, ...], ...]) -> None:
    """Raise an error if a path can return to a state."""
    after = {
        x: {move.to for action in row for move in action.moves if move.to is not None}
        for x, row in enumerate(rows)
    }
    try:
        TopologicalSorter(after).prepare()
    except CycleError as error:
        way = " to ".join(names[x] for x in reversed(error.args[1]))
        raise InputError(
            f"a path returns to its state, {way}: give max_turns to end episodes"
        ) from None


def _action(where: str, name: str, data: Any, names: tuple[str, ...]) -> Action:
    where = f"{where}.{name}"
    _only(where, data, {"moves"}, {"logit"})
    if not isinstance(data["moves"], list) or not data["moves"]:
        raise InputError(f"{where}.moves must be a list of at least one move")
    moves = []
    for move in data["moves"]:
        _only(f"{where}.moves", move, {"prob"}, {"reward", "to"})
        to = None if move.get("to") is None else _state(move["to"], names, f"{where}.moves")
        reward = number(f"{where}: reward", move.get("reward", 0.0))
        moves.append(Move(number(f"{where}: prob", move["prob"]), reward, to))
    law = probabilities(f"{where}: the probs of its moves", [move.prob for move in moves], 1)
    kept = tuple(move._replace(prob=float(p)) for move, p in zip(moves, law, strict=True))
    return Action(name, number(f"{where}.logit", data.get("logit", 0.0)), kept)


def _mapping(what: str, data: Any) -> Mapping[str, Any]:
    if not isinstance(data, Mapping) or not data:
        raise InputError(f"{what} is {data!r}: it must be an object with at least one entry")
    return data


def _only(what: str, data: Any, needed: set[str], others: set[str]) -> None:
    """Raise an error if a mapping lacks a key or has an unknown key."""
    if not isinstance(data, Mapping):
        raise InputError(f"{what} is {data!r}: it must be an object")
    if missing := needed - set(data):
        raise InputError(f"{what}: {min(missing)} is missing")
    if unknown := set(data) - needed - others:
        allowed = ", ".join(sorted(needed | others))
        raise InputError(f"{what}: {min(map(str, unknown))} is unknown; it may hold {allowed}")


def _state(name: Any, names: tuple[str, ...], where: str) -> int:
    if name not in names:
        near = "".join(f", did you mean {one!r}?" for one in nearest(str(name), names))
        raise InputError(f"{where}: no state is called {name!r}{near}")
    return names.index(name)


def _shipped() -> Any:
    return files(__package__) / "turns"


def episode_problems() -> tuple[str, ...]:
    """The names of the problems with turns that ship with the library, each after ``ustat:``."""
    names = (file.name for file in _shipped().iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in names if name.endswith(".json")))


def holds_turns(problem: Any) -> bool:
    """Whether a file, a name after ``ustat:`` or a mapping is a problem with turns."""
    if isinstance(problem, Mapping):
        return "states" in problem
    name = str(problem)
    if name.startswith(PREFIX):
        return name.removeprefix(PREFIX) in episode_problems()
    path = Path(name)
    return path.suffix == ".json" and path.is_file() and holds_turns(read_json(path))


def load_episodes(
    source: EpisodeProblem | Mapping[str, Any] | str | Path,
) -> EpisodeProblem:
    """Read a problem with turns: a ``.json`` file, its mapping, or one that ships with the library.

    Arguments:
        source: file, a name of :func:`episode_problems` after ``ustat:``, or a mapping as for
            :func:`episode_problem`; a problem is returned unchanged.

    Raises:
        InputError: the file cannot be read, or its problem is invalid; the message begins with its name.

    >>> load_episodes("ustat:tool").objective()
    0.54
    """
    if isinstance(source, EpisodeProblem):
        return source
    if isinstance(source, Mapping):
        return episode_problem(source)
    if not isinstance(source, str | Path):
        raise InputError(
            f"problem is {source!r:.80}: it must be a problem with turns, its mapping, a file or ustat:NAME"
        )
    name = str(source)
    if name.startswith(PREFIX):
        stem = name.removeprefix(PREFIX)
        if stem not in episode_problems():
            raise InputError(f"{name}: there are {', '.join(episode_problems())}")
        data = json.loads((_shipped() / f"{stem}.json").read_text(encoding="utf-8"))
    else:
        data = read_json(Path(source))
    try:
        return episode_problem(data)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
