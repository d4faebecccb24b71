"""Beyond the paper: credit over turns. If decisions can end episodes, a baseline of the turn's own returns is
unbiased if it comes only from the other episodes. If it is summed over later turns, pooled with own turns, or
includes the own episode, it climbs another objective, which is known exactly.

The checks use episodes that can be listed. They cover the mean of each scheme along a direction, turn by
turn, also if no other episode reaches the turn; the mean by equal states, if an episode returns to a state;
and the noise of a turn's part, with the order of the per-turn baseline and the episode's. On networks a turn
is a token.

Falsified by an enumerated mean that differs by more than rounding, or a simulated one whose interval misses.

Cost: some 10⁵ groups, by the reference engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ustat_pg.engines import Estimator, SquaredError, enumerate_turns
from ustat_pg.predictions import turn_mean, turn_noise
from ustat_pg.problems import Episodes

from .engines.turns import TurnCell
from .evidence import Check, Linear, equal, mean_of, positive
from .problems import Entry, Suite
from .problems.turns import SIZE, episodes, networks
from .shared.margins import COARSE
from .shared.peers import telling

OWN_INSIDE, ONE_OVER_MEAN, NO_CHANCE, SUMMED, OF_ALL, POOLED, DROPPED, OWN_VISITS, PER_TURN = (
    RIVALS
) = (
    "the own episode inside leaves it unbiased",
    "1 - 1/E n for 1 - E[1/n]",
    "survival without the chance that another reaches the turn",
    "summed baselines are unbiased",
    "the mean reward over all episodes for that of those that reach the turn",
    "all turns pooled, the own ones among them, are unbiased",
    "a turn that no other reaches may be dropped",
    "other visits of the own episode leave a state's baseline unbiased",
    "a per-turn baseline is never noisier than the episode's",
)
RIVALS_ON_NETWORKS = RIVALS[:-2]
"""Each token is its own state, and the network determines which baseline is noisier."""

CLEAR, ORDERED = 0.05, 0.12
"""The least relative error of a rival in the mean, and in the noise, for a check; smaller errors need 10⁶
draws.
"""


def checks(suite: Suite) -> Iterator[Check]:
    for entry in episodes(suite):
        yield from on_turns(entry)
        yield from by_state(entry)


def on_networks(suite: Suite) -> Iterator[Check]:
    for entry in networks(suite, suite.on):
        yield from on_turns(entry, denied=())


def on_turns(entry: Entry[Episodes], denied: tuple[str, ...] = (PER_TURN,)) -> Iterator[Check]:
    """The checks of every scheme's mean and noise, turn by turn; an order of noise refutes ``denied``."""
    listed, share = entry.problem, entry.problem.probs @ entry.problem.reached
    for turn, reach in enumerate(share):
        cell = TurnCell.of(listed, turn, SIZE)
        g = cell.problem.gradient()
        if np.linalg.norm(g) < 1e-9:
            continue
        # The loss of later turns' baselines: the score of a turn times the chance to get further.
        survival = np.einsum("e,eu,ed->ud", listed.probs, listed.reached, listed.scores[:, turn])
        survival[: turn + 1] = 0.0
        rewards, company = listed.probs @ listed.rewards, 1 - (1 - share) ** (SIZE - 1)
        for scheme, lone, wrong in (
            ("episode", "reward", {}),
            ("to-go", "reward", {}),
            ("to-go", "zero", {DROPPED: g}),
            ("to-go-mean", "reward", {OWN_INSIDE: g, ONE_OVER_MEAN: (1 - 1 / (SIZE * reach)) * g}),
            ("summed", "reward", {
                SUMMED: g,
                NO_CHANCE: g - (rewards / share) @ survival,
                OF_ALL: g - (rewards * company) @ survival,
            }),
            ("pooled", "reward", {}),
            ("pooled-mean", "reward", {POOLED: g}),
        ):  # fmt: skip
            # If every episode reaches the turn, no episode is alone.
            if lone == "reward" or not listed.reached[:, turn].all():
                mean = turn_mean(listed, scheme, SIZE, lone=lone).by_turn[turn]
                yield mean_along(entry, cell, cell.estimator(scheme, lone=lone), mean, wrong)
        yield from noise(entry, cell, float(g @ g), denied)


def mean_along(
    entry: Entry[Episodes], cell: TurnCell, estimator: Estimator, mean: np.ndarray,
    wrong: Mapping[str, np.ndarray],
) -> Check:  # fmt: skip
    """The check of a turn's part of a mean, along the direction that shows wrong rivals best."""
    size = float(np.linalg.norm(cell.problem.gradient()))
    far = {name: w for name, w in wrong.items() if np.linalg.norm(w - mean) > CLEAR * size}
    along = telling(cell.problem, [*(w - mean for w in far.values()), mean])
    what = f"turn {cell.turn + 1}: mean of {estimator.label}"
    return along.check(entry, what, cell, estimator, mean, far, scale=size, relative_margin=COARSE)


def noise(
    entry: Entry[Episodes], cell: TurnCell, square: float, denied: tuple[str, ...]
) -> Iterator[Check]:
    """The checks of the error of a turn's part under two baselines, and of their order if the per-turn
    baseline has the larger error.
    """
    turn, measured, errors, sizes = cell.turn, {}, {}, {}
    for scheme, first in (("to-go", turn), ("episode", 0)):
        measured[scheme] = SquaredError(cell.estimator(scheme))
        errors[scheme] = float(turn_noise(entry.problem, scheme, SIZE)[turn]) - square
        sizes[scheme] = size_by_outcomes(entry.problem, turn, first)
        says = equal(errors[scheme], scale=sizes[scheme], relative_margin=COARSE)
        yield entry.check(
            f"turn {turn + 1}: error of {scheme}", mean_of(cell, measured[scheme]), says
        )
    gap, size = errors["to-go"] - errors["episode"], sizes["episode"]
    if gap > ORDERED * size:
        more = Linear(cell, ((measured["to-go"], 1.0), (measured["episode"], -1.0)))
        what = f"turn {turn + 1}: to-go has the larger error"
        yield entry.check(what, more, positive(gap, denied, scale=size))


def size_by_outcomes(listed: Episodes, turn: int, first: int) -> float:
    """The size of a turn's error with returns from the turn ``first`` on, computed only from outcomes.

    It is E‖sₜ‖²(R - ER)² / G, plus E‖sₜ‖² / G times the variance of one other episode's return, or times
    (ER)² if there is no other episode. So no prediction sets its own tolerance.
    """
    there, returns = listed.probs * listed.reached[:, first], listed.to_go[:, first]
    share = there.sum()
    mean = there @ returns / share
    own, squares = (returns - mean) ** 2, listed.probs * (listed.scores[:, turn] ** 2).sum(axis=1)
    others = there @ own / share + (1 - share) ** (SIZE - 1) * mean**2
    return float(squares @ own + squares.sum() * others) / SIZE


def by_state(entry: Entry[Episodes]) -> Iterator[Check]:
    """Checks for episodes that return to a state: equal states, not turns, by the other episodes' visits."""
    listed = entry.problem
    if not ((listed.states[:, 1:] == listed.states[:, :1]) & listed.reached[:, 1:]).any():
        return

    def other_visits(rewards: np.ndarray, reached: np.ndarray, states: np.ndarray) -> np.ndarray:
        """The return minus the mean over all other visits of the state, including the own episode's."""
        flat = states.reshape(len(states), -1)
        to_go = np.cumsum(rewards[..., ::-1], axis=-1)[..., ::-1].reshape(flat.shape)
        same = (flat[:, :, None] == flat[:, None]) & (flat >= 0)[:, None]
        same &= ~np.eye(flat.shape[1], dtype=bool)
        means = (same @ to_go[..., None])[..., 0] / np.maximum(same.sum(axis=2), 1)
        return (to_go - means).reshape(rewards.shape) * reached

    wrong = enumerate_turns(listed, other_visits, SIZE, by_state=True).by_turn
    for turn, mean in enumerate(turn_mean(listed, "to-go", SIZE).by_turn):
        cell = TurnCell.of(listed, turn, SIZE)
        estimator = cell.estimator("to-go", by_state=True)
        yield mean_along(entry, cell, estimator, mean, {OWN_VISITS: wrong[turn]})
