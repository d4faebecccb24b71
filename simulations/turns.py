"""Beyond the paper: credit over turns. Where decisions end episodes, a baseline of the turn's own returns
is unbiased if it is made of the other episodes alone. Summed over later turns, pooled with own turns,
or with the own one inside, it climbs something else, and what it climbs is exact.

Checked on episodes that can be listed: turn by turn, the mean of each scheme along a direction, where no
other episode reaches the turn too; by equal states in place of turns, where an episode comes back to one; and
the noise of a turn's part, with the order of the per-turn baseline and the episode's. On networks a turn is a
token.

Falsified by an enumerated mean that differs by more than rounding, or a simulated one whose interval misses.

Cost: some 10⁵ groups, by the reference engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ustat_pg.engines import Estimator, SquaredError, enumerate_turns
from ustat_pg.predictions import turn_mean, turn_noise
from ustat_pg.problems import Episodes
from ustat_pg.validation import Array

from .engines.turns import TurnCell
from .evidence import Check, Linear, equal, mean_of, positive
from .problems import Entry, Suite
from .problems.turns import SIZE, episodes, networks
from .shared.margins import COARSE
from .shared.peers import telling

OWN_INSIDE = "the own episode inside leaves it unbiased"
ONE_OVER_MEAN = "1 - 1/E n for 1 - E[1/n]"
NO_CHANCE = "survival without the chance that another reaches the turn"
SUMMED = "summed baselines are unbiased"
OF_ALL = "the mean reward over all episodes for that of those that reach the turn"
POOLED = "all turns pooled, the own ones among them, are unbiased"
DROPPED = "a turn that no other reaches may be dropped"
OWN_VISITS = "other visits of the own episode leave a state's baseline unbiased"
PER_TURN = "a per-turn baseline is never noisier than the episode's"
RIVALS = (
    OWN_INSIDE, ONE_OVER_MEAN, NO_CHANCE, SUMMED, OF_ALL, POOLED, DROPPED, OWN_VISITS, PER_TURN,
)  # fmt: skip

CLEAR = 0.05
"""Share of a mean by which a rival differs where it is asked."""

ORDERED = 0.12
"""Share of the noise by which the per-turn baseline is worse where it is asked; less takes 10⁶ draws."""


def checks(suite: Suite) -> Iterator[Check]:
    """Each scheme on every problem, turn by turn; states on a walk that comes back."""
    for entry in episodes(suite):
        yield from _of(entry)
        yield from _by_state(entry)


RIVALS_ON_NETWORKS = tuple(rival for rival in RIVALS if rival not in (OWN_VISITS, PER_TURN))
"""Each token is a state of its own, and which baseline is the noisier goes by the network."""


def on_networks(suite: Suite) -> Iterator[Check]:
    """Each scheme where a turn is a token of a network's output."""
    for entry in networks(suite, suite.on):
        yield from _of(entry, denied=())


def _of(entry: Entry[Episodes], denied: tuple[str, ...] = (PER_TURN,)) -> Iterator[Check]:
    """Every scheme, turn by turn; ``denied`` is what an order of noise refutes."""
    listed = entry.problem
    reach, always = listed.probs @ listed.reached, np.all(listed.reached, axis=0)
    for turn in range(listed.rewards.shape[1]):
        cell = TurnCell.of(listed, turn, SIZE)
        gradient = cell.problem.gradient()
        if np.linalg.norm(gradient) < 1e-9:
            continue
        for scheme, lone, rivals in (
            ("episode", "reward", {}),
            ("to-go", "reward", {}),
            ("to-go", "zero", {DROPPED: gradient}),
            ("to-go-mean", "reward", {
                OWN_INSIDE: gradient, ONE_OVER_MEAN: (1 - 1 / (SIZE * reach[turn])) * gradient,
            }),
            ("summed", "reward", _summed(listed, turn, gradient)),
            ("pooled", "reward", {}),
            ("pooled-mean", "reward", {POOLED: gradient}),
        ):  # fmt: skip
            if lone == "zero" and always[turn]:
                # No episode is ever alone there.
                continue
            mean = turn_mean(listed, scheme, SIZE, lone=lone).by_turn[turn]
            estimator = cell.estimator(scheme, lone=lone)
            what = f"turn {turn + 1}: mean of {estimator.label}"
            yield _mean(entry, what, cell, estimator, mean, rivals)
        yield from _noise(entry, turn, cell, gradient, denied)


def _mean(
    entry: Entry[Episodes], what: str, cell: TurnCell, estimator: Estimator, mean: Array,
    rivals: Mapping[str, Array],
) -> Check:  # fmt: skip
    """A turn's part of a mean, along the direction in which rivals show best."""
    size = float(np.linalg.norm(cell.problem.gradient()))
    far = {
        name: wrong for name, wrong in rivals.items() if np.linalg.norm(wrong - mean) > CLEAR * size
    }
    direction = telling(cell.problem, [*(wrong - mean for wrong in far.values()), mean])
    return direction.check(
        entry, what, cell, estimator, mean, far, scale=size, relative_margin=COARSE
    )


def _summed(listed: Episodes, turn: int, gradient: Array) -> dict[str, Array]:
    """The rivals' mean of summed baselines, from the list itself."""
    reach = listed.probs @ listed.reached
    survival = np.einsum("e,eu,ed->ud", listed.probs, listed.reached, listed.scores[:, turn])
    survival[: turn + 1] = 0.0
    rewards = listed.probs @ listed.rewards
    chance = 1 - (1 - reach) ** (SIZE - 1)
    return {
        SUMMED: gradient,
        NO_CHANCE: gradient - (rewards / reach) @ survival,
        OF_ALL: gradient - (rewards * chance) @ survival,
    }


def _noise(
    entry: Entry[Episodes], turn: int, cell: TurnCell, gradient: Array, denied: tuple[str, ...]
) -> Iterator[Check]:
    """The error of a turn's part under two baselines; where the per-turn one has the larger, their order."""
    square = float(gradient @ gradient)
    errors = {
        scheme: float(turn_noise(entry.problem, scheme, SIZE)[turn]) - square
        for scheme in ("to-go", "episode")
    }
    measured = {scheme: SquaredError(cell.estimator(scheme)) for scheme in errors}
    sizes = {"to-go": _size(entry.problem, turn, turn), "episode": _size(entry.problem, turn, 0)}
    for scheme, error in errors.items():
        what = f"turn {turn + 1}: error of {scheme}"
        says = equal(error, scale=sizes[scheme], relative_margin=COARSE)
        yield entry.check(what, mean_of(cell, measured[scheme]), says)
    gap, size = errors["to-go"] - errors["episode"], sizes["episode"]
    if gap > ORDERED * size:
        difference = Linear(cell, ((measured["to-go"], 1.0), (measured["episode"], -1.0)))
        statement = positive(gap, denied, scale=size)
        yield entry.check(f"turn {turn + 1}: to-go has the larger error", difference, statement)


def _size(listed: Episodes, turn: int, first: int) -> float:
    """The size of a turn's error with returns from the turn ``first`` on, by the outcomes alone.

    E‖sₜ‖²(R - ER)² / G, and E‖sₜ‖² / G of what one other episode's return varies by, or of (ER)² where
    none is there: no prediction sets its own allowance.
    """
    there = listed.probs * listed.reached[:, first]
    share, returns = there.sum(), listed.to_go[:, first]
    squares = listed.probs * (listed.scores[:, turn] ** 2).sum(axis=1)
    mean = there @ returns / share
    own = (returns - mean) ** 2
    others = there @ own / share + (1 - share) ** (SIZE - 1) * mean**2
    return float(squares @ own + squares.sum() * others) / SIZE


def _by_state(entry: Entry[Episodes]) -> Iterator[Check]:
    """Where an episode comes back: equal states in place of turns, by the other episodes' visits."""
    listed = entry.problem
    if not ((listed.states[:, 1:] == listed.states[:, :1]) & listed.reached[:, 1:]).any():
        return

    def other_visits(rewards: Array, reached: Array, states: Array) -> Array:
        """Less the mean over all visits of the state but this one, those of the own episode too."""
        flat = states.reshape(len(states), -1)
        to_go = np.cumsum(rewards[..., ::-1], axis=-1)[..., ::-1].reshape(flat.shape)
        same = (flat[:, :, None] == flat[:, None]) & (flat >= 0)[:, None]
        same &= ~np.eye(flat.shape[1], dtype=bool)
        count = same.sum(axis=2)
        means = (same @ to_go[..., None])[..., 0] / np.maximum(count, 1)
        return (to_go - means).reshape(rewards.shape) * reached

    wrong = enumerate_turns(listed, other_visits, SIZE, by_state=True).by_turn
    right = turn_mean(listed, "to-go", SIZE).by_turn
    for turn, mean in enumerate(right):
        cell = TurnCell.of(listed, turn, SIZE)
        estimator, rivals = cell.estimator("to-go", by_state=True), {OWN_VISITS: wrong[turn]}
        what = f"turn {turn + 1}: mean of {estimator.label}"
        yield _mean(entry, what, cell, estimator, mean, rivals)
