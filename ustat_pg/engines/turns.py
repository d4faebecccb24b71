"""Exact means and errors of estimators over turns: by enumeration of every group of episodes.

Groups are enumerated as multisets, because no scheme depends on the order of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..estimators.episodes import turns
from ..execution.memory import slices
from ..moments.episodes import Episodes, HasEpisodes, episodes_of
from ..validation import integer, record
from .base import Array, InfeasibleError
from .gradients.exact import LIMIT, groups_of

_NUMBERS = 4_000_000
"""The most numbers in one array of a chunk of groups."""


@record()
class EnumeratedTurns:
    """The mean and the error of one group's gradient, by enumeration.

    Arguments:
        mean: E ĝ, (d,).
        by_turn: its parts E ĝₜ, (T, d).
        squared_bias: ‖E ĝ - ∇J‖².
        mse: E‖ĝ - ∇J‖².
        turn_squares: E‖ĝₜ‖² of each turn's part ĝₜ = (1/G) Σᵢ sᵢₜ Aᵢₜ, (T,).
    """

    mean: Array
    by_turn: Array
    squared_bias: float
    mse: float
    turn_squares: Array


Advantage = Callable[..., Any]
"""Advantages (n, G, T) from rewards, reached turns and ``states``, all (n, G, T)."""


def enumerate_turns(
    problem: Episodes | HasEpisodes,
    scheme: str | Advantage,
    group_size: int,
    *,
    by_state: bool = False,
    **options: Any,
) -> EnumeratedTurns:
    """The exact mean and error of an estimator over turns, at one prompt's group.

    Arguments:
        problem: the training problem, or its list of episodes.
        scheme: one of :data:`~ustat_pg.estimators.TURN_SCHEMES`, or a function of rewards and reached
            turns (n, G, T) that returns advantages of that shape and ignores the order of a group.
        group_size: G >= 1.
        by_state: whether the scheme is given the states of turns.
        options: options of :func:`~ustat_pg.estimators.turns`, or of the function.

    Raises:
        InfeasibleError: there are more than a million groups.

    >>> from ustat_pg.problems import load_episodes
    >>> problem = load_episodes("ustat:tool")
    >>> found = enumerate_turns(problem, "to-go", 3)
    >>> bool(found.squared_bias < 1e-30), enumerate_turns(problem, "summed", 3).squared_bias > 0.01
    (True, True)
    """
    group_size = integer("group_size", group_size, minimum=1)
    function = partial(turns, scheme=scheme) if isinstance(scheme, str) else scheme
    episodes = episodes_of(problem)
    target = episodes.gradient()
    means, square = np.zeros(episodes.scores.shape[1:]), 0.0
    parts = np.zeros(len(means))
    for chance, part in episodes.prompts():
        for chances, rows in _groups(part, group_size):
            given = {"states": part.states[rows]} if by_state else {}
            arrays = part.rewards[rows], part.reached[rows]
            advantages = np.asarray(function(*arrays, **given, **options))
            by_turn = np.einsum("ngt,ngtd->ntd", advantages, part.scores[rows]) / group_size
            whole = by_turn.sum(axis=1)
            weights = chance * chances
            means += np.einsum("n,ntd->td", weights, by_turn)
            square += float(weights @ ((whole - target) ** 2).sum(axis=1))
            parts += weights @ (by_turn**2).sum(axis=2)
    mean = means.sum(axis=0)
    return EnumeratedTurns(mean, means, float(((mean - target) ** 2).sum()), square, parts)


def _groups(part: Episodes, size: int) -> Iterator[tuple[Array, NDArray[np.int64]]]:
    """The groups of a prompt's episodes: their probabilities, and the indices of their episodes, (n, G)."""
    count = len(part.probs)
    if (groups := comb(count + size - 1, size)) > LIMIT:
        raise InfeasibleError(
            f"{count} episodes make {groups:.3g} groups of {size}, more than {LIMIT:,}: "
            "take a smaller group or problem"
        )
    members, chances = groups_of(part.probs, size, tuples=False)
    for some in slices(len(members), max(1, _NUMBERS // (size * part.scores[0].size))):
        yield chances[some], members[some]
