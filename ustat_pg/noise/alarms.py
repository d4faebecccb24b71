"""Alarms for faults of a training that its outputs show, each with a rate of false alarms (:class:`Alarms`).

If chance can imitate a fault, its test is a series of bets. If nothing is wrong, let the bet at each look
have a mean of at most 1, given everything before. Then their product also has a mean of at most 1 at every
time. By Ville's inequality it ever exceeds 1/α in at most a share α of runs, for any length and any number of
looks.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..validation import Array, InputError, integer

SENTENCES = {
    "silent": "At least half of the groups have equal rewards: they use outputs but give no gradient.",
    "spikes": "More than 5% of groups have nearly equal rewards: after the division their "
    "advantages are noise.",
    "clipped": "At least a fifth of the tokens are clipped: this policy did not draw the rollouts.",
    "capped": "The cap on ratios is below 1 (epsilon_high): it even caps tokens that this policy drew.",
    "lost": "The signal is lost in the noise: for a whole window no estimate distinguishes it from 0.",
    "groups": "Groups are split or mixed: the advantages of a prompt do not fit together.",
    "survivors": "Outputs are dropped by their reward or length: the remaining ones are biased.",
    "rollouts": "This policy did not draw the rollouts: check temperature, truncated sampling, "
    "or an older policy.",
}
TOLERANCE = 4e-3
"""The largest allowed sum of a group's advantages, relative to the largest of them, for half precision."""
_FALSE = 0.01
"""The largest share of sound runs in which an alarm is ever raised."""
ROUNDING = 5e-7
"""The relative difference of rewards that is explained by rounding in single precision."""
NEAR = 0.01
"""The share of the usual deviation below which a group's rewards count as nearly equal."""
LEVELS = {"silent": 0.5, "spikes": 0.05}
"""The largest shares of groups that are not a fault."""
_STAKES = np.array([0.05, 0.2, 0.6])
"""The stakes of bets that a share or a mean is above its level, relative to the largest loss."""
_SHIFTS = np.array([-1.0, -0.4, -0.15, -0.05, 0.05, 0.15, 0.4, 1.0])
"""The stakes of bets on the ranks of dropped outputs, per standard deviation."""
_HOT, _COLD = np.array([0.01, 0.05, 0.25]), np.array([0.005, 0.015, 0.042])
"""The stakes of bets on more, or less, surprise than the entropy, per nat."""
_MOST_SURPRISE = 23.0
"""The nats at which a token's surprise is clipped; with 10⁶ tokens this changes the mean by at most e⁻⁹
nats.
"""
_BLUR, _LEAST_BLUR = 0.02, 2e-4
"""The allowed distance of mean surprise from the entropy, relative and in nats, for rounding in two
engines.
"""
_APART = 0.05
"""The allowed distance of rollouts from this policy, in nats per output, for rounding in another engine."""
_MOST_APART = 20 * _APART
"""The nats at which the count of one output is clipped."""


class _Evidence:
    """The wealth of bets since the starts of the latest two windows.

    The k-th window gets the share 1/(k (k + 1)) of the whole stake, so the sum over all windows is at most 1.
    """

    def __init__(self, bets: int, window: int) -> None:
        self._bets, self._window = bets, window
        self._since: deque[tuple[int, Array]] = deque(maxlen=2)

    def add(self, age: int, gains: Array) -> None:
        """Add the logarithms of the factors by which each bet changed its stake at a look."""
        number = age // self._window + 1
        if not self._since or number > self._since[-1][0]:
            self._since.append((number, np.zeros(self._bets)))
        for _, won in self._since:
            won += gains

    @property
    def conclusive(self) -> bool:
        """Whether chance wins this much in at most a share ``_FALSE`` of runs."""
        logs = [won - math.log(k * (k + 1) * self._bets) for k, won in self._since]
        return bool(len(logs) and np.logaddexp.reduce(np.ravel(logs)) >= -math.log(_FALSE))

    def state(self) -> list[Any]:
        return [[number, won.tolist()] for number, won in self._since]

    def load(self, state: list[Any]) -> None:
        self._since.clear()
        self._since.extend((int(number), np.array(won, dtype=float)) for number, won in state)


class Alarms:
    """A watch on the outputs of a training, in any loop.

    ::

        alarms = Alarms(group_size=8)
        alarms.generation(prompts, rewards=rewards, advantages=advantages, lengths=lengths, kept=kept)
        alarms.tokens(log_probs, mask, entropies)
        alarms.standing()

    ``silent``: more than half of the groups have equal rewards. ``spikes``: in more than 5% of groups the
    rewards differ by less than 1% of the usual deviation, which matters if advantages are divided by it.
    ``survivors``: outputs that are left out have other rewards or lengths than the rest of their group, by
    ranks. ``rollouts``: the tokens' surprise differs from the policy's entropy by 2% of it, or recorded
    log-probabilities put an output at least .05 nats from the policy. Each of these four is ever raised in at
    most 1% of sound runs, for any length. ``groups``: the outputs of a prompt are not a whole number of
    groups, or an output of positive advantage has a smaller reward than one of negative advantage (without
    rewards: advantages do not sum to 0); chance cannot cause this.

    Arguments:
        window: number of latest generations that count, up to twice as many; or of calls of :meth:`tokens` if
            no generation is shown.
        group_size: G; None if groups may have any size.

    Raises:
        InputError: a number is out of range.
    """

    def __init__(self, window: int = 50, group_size: int | None = None) -> None:
        self.window = integer("window", window)
        self.group_size = None if group_size is None else integer("group size", group_size)
        self._age, self._generations = 0, False
        self._broken: deque[bool] = deque(maxlen=self.window)
        self._squares: deque[tuple[float, int]] = deque(maxlen=self.window)
        sizes = {"silent": len(_STAKES), "spikes": len(_STAKES), "survivors": 2 * len(_SHIFTS)}
        sizes["rollouts"] = len(_HOT) + len(_COLD) + len(_STAKES)
        self._evidence = {name: _Evidence(bets, self.window) for name, bets in sizes.items()}

    def generation(
        self,
        prompts: ArrayLike,
        rewards: ArrayLike | None = None,
        advantages: ArrayLike | None = None,
        lengths: ArrayLike | None = None,
        kept: ArrayLike | None = None,
        ranked: bool = True,
    ) -> None:
        """Check the outputs of one generation.

        Arguments:
            prompts: group of each output, (n,).
            rewards: reward of each output; NaN if there is none.
            advantages: advantages in the training. An output with advantage 0 counts as dropped if its reward
                equals, or lies beyond, that of others with an advantage.
            lengths: number of tokens.
            kept: whether the output is trained on.
            ranked: whether advantages rise with the rewards of a group; if not, or without rewards, they sum
                to 0 in each group.

        Raises:
            InputError: the arrays have different lengths.
        """
        places = np.unique(np.asarray(prompts), return_inverse=True)[1]
        rows = [
            None if given is None else np.asarray(given, dtype=float)
            for given in (rewards, advantages, lengths, kept)
        ]
        if any(row is not None and row.shape != places.shape for row in rows):
            raise InputError(
                f"there are {len(places)} prompts: give one entry of each array per output"
            )
        z, a, size, left = rows
        if z is not None:
            self._shares(places, z)
        gone = np.zeros(len(places), dtype=bool) if left is None else left == 0
        unused, broken = np.zeros_like(gone), False
        if a is not None:
            broken, unused = _judged(places, a, z if ranked else None)
            cut = self.group_size is not None and (np.bincount(places) % self.group_size).any()
            broken = bool(broken or cut)
        self._broken.append(broken)
        if (gone | unused).any():
            # Advantages have the same ranks as rewards.
            values = (a if z is None else z, size)
            gains = [_dropped(places, x, gone | unused, z, unused) for x in values]
            self._evidence["survivors"].add(self._age, np.concatenate(gains))
        self._age, self._generations = self._age + 1, True

    def _shares(self, places: NDArray[np.int64], z: Array) -> None:
        """Bet that too many groups have equal or nearly equal rewards."""
        counts = np.bincount(places)
        means = np.bincount(places, z) / counts
        deviations = np.sqrt(np.bincount(places, np.square(z - means[places])) / counts)
        # Groups with an unknown reward are skipped.
        with np.errstate(invalid="ignore"):
            low, high = _ends(places, z)
        deviations[high - low <= ROUNDING * np.maximum(np.abs(low), np.abs(high))] = 0.0
        deviations = deviations[np.isfinite(deviations)]
        self._squares.append((float(np.square(deviations).sum()), len(deviations)))
        total, groups = np.sum(self._squares, axis=0)
        usual = math.sqrt(total / max(groups, 1))
        near = (deviations > 0) & (deviations < NEAR * usual)
        for name, hits in (("silent", deviations == 0), ("spikes", near)):
            level, stakes = LEVELS[name], _STAKES
            gains = hits.sum() * np.log1p(stakes * (1 - level) / level)
            gains += (~hits).sum() * np.log1p(-stakes)
            self._evidence[name].add(self._age, gains)

    def tokens(
        self,
        log_probs: ArrayLike,
        mask: ArrayLike,
        entropies: ArrayLike | None = None,
        recorded: ArrayLike | None = None,
    ) -> None:
        """Check outputs' tokens before the policy changes.

        Arguments:
            log_probs: log-probabilities of the sampled tokens under the trained policy, (n, T).
            mask: whether an entry is a token of an output.
            entropies: the policy's entropy at each token; None if some sampled outputs are left out, because
                the remaining tokens then depend on what came later.
            recorded: log-probabilities that the sampler recorded.
        """
        logs, on = np.asarray(log_probs, dtype=float), np.asarray(mask).astype(bool)
        hot, cold, apart = np.zeros(len(_HOT)), np.zeros(len(_COLD)), np.zeros(len(_STAKES))
        if entropies is not None:
            surprise, entropy = -logs[on], np.asarray(entropies, dtype=float)[on]
            blur = _BLUR * entropy + _LEAST_BLUR
            above = surprise - entropy - blur
            below = entropy - blur - np.minimum(surprise, _MOST_SURPRISE)
            # The stake is limited by the largest loss: above is at least -(entropy + blur).
            stakes = np.minimum(_HOT[:, None], 0.5 / (entropy + blur))
            hot = np.log1p(stakes * above).sum(axis=1)
            cold = np.log1p(_COLD[:, None] * below).sum(axis=1)
        if recorded is not None:
            log_ratio = np.where(on, logs - np.asarray(recorded, dtype=float), 0.0)
            log_ratio = np.nan_to_num(log_ratio)
            distance = (np.expm1(log_ratio) - log_ratio).sum(axis=1)
            over = np.minimum(distance, _MOST_APART) / _APART - 1
            apart = np.log1p(_STAKES[:, None] * over).sum(axis=1)
        gains = np.concatenate([hot, cold, apart])
        self._evidence["rollouts"].add(self._age, gains)
        self._age += not self._generations

    def standing(self) -> set[str]:
        """The names of the raised alarms."""
        raised = {name for name, evidence in self._evidence.items() if evidence.conclusive}
        return raised | ({"groups"} if any(self._broken) else set())

    def state_dict(self) -> dict[str, Any]:
        """The state of the watch, for JSON."""
        return {
            "age": self._age,
            "generations": self._generations,
            "broken": list(self._broken),
            "squares": [list(row) for row in self._squares],
            "evidence": {name: evidence.state() for name, evidence in self._evidence.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from :meth:`state_dict`."""
        self._age, self._generations = int(state["age"]), bool(state["generations"])
        self._broken.clear()
        self._broken.extend(map(bool, state["broken"]))
        self._squares.clear()
        self._squares.extend((float(total), int(count)) for total, count in state["squares"])
        for name, evidence in self._evidence.items():
            evidence.load(state["evidence"][name])


def _ends(
    places: NDArray[np.int64], x: Array, those: NDArray[np.bool_] | None = None
) -> tuple[Array, Array]:
    """The least and largest value in each group; infinite if the group is empty."""
    count = places.max() + 1
    those = np.ones(len(x), dtype=bool) if those is None else those
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(low, places[those], x[those])
    np.maximum.at(high, places[those], x[those])
    return low, high


def _judged(places: NDArray[np.int64], a: Array, z: Array | None) -> tuple[bool, NDArray[np.bool_]]:
    """Whether the advantages of a group do not fit together, and the outputs that they leave out."""
    none = np.zeros(len(a), dtype=bool)
    low, high = _ends(places, a)
    # Equal rewards may have advantages of one sign, because their mean is rounded.
    least = TOLERANCE * np.maximum(-low, high)[(low < 0) & (high > 0)].max(initial=0.0)
    if not least:
        return False, none
    if z is None:
        counts = np.bincount(places)
        return bool((np.abs(np.bincount(places, a)) > least * counts).any()), none
    known = np.isfinite(z)
    won, _ = _ends(places, z, known & (a > least))
    _, lost = _ends(places, z, known & (a < -least))
    rounding = ROUNDING * np.abs(z[known]).max(initial=0.0)
    unused = known & (a == 0) & ((z >= won[places]) | (z <= lost[places]))
    return bool((won < lost - rounding).any()), unused


def _dropped(
    places: NDArray[np.int64],
    values: Array | None,
    gone: NDArray[np.bool_],
    z: Array | None,
    unused: NDArray[np.bool_],
) -> Array:
    """The gains of bets that the dropped outputs have other ranks in their group than a random draw.

    Given the number of dropped outputs, chance takes every subset with equal probability. A bet gains exp(θ
    S) divided by its mean, where S is the sum of their ranks r. The mean is an elementary symmetric
    polynomial of all exp(θ r), divided by the number of subsets. Outputs that are recognised by advantages of
    0 count only if the remaining rewards differ.
    """
    total = np.zeros(len(_SHIFTS))
    if values is None:
        return total
    touched = np.flatnonzero((np.bincount(places, gone) > 0) & (np.bincount(places, ~gone) > 0))
    for group in touched:
        rows = np.flatnonzero(places == group)
        x, out = values[rows], gone[rows]
        if not np.isfinite(x).all():
            continue
        # Equal values have the same rank.
        ranks = np.sign(x[:, None] - x).sum(axis=1) / 2
        count, away = len(rows), int(out.sum())
        variance = away * (count - away) / (count * (count - 1)) * float(ranks @ ranks)
        if not variance:
            continue
        rates = _SHIFTS / math.sqrt(variance)
        powers = np.exp(np.outer(ranks, rates))
        mean, ways = _polynomial(powers, away), math.comb(count, away)
        if z is not None and unused[rows].any() and np.ptp(z[rows][~out]) > 0:
            for reward in np.unique(z[rows]):
                alike = z[rows] == reward
                more = away - int((~alike).sum())
                if more >= 0:
                    others = powers[~alike].prod(axis=0)
                    mean = mean - others * _polynomial(powers[alike], more)
                    ways -= math.comb(int(alike.sum()), more)
        total += rates * ranks[out].sum() - np.log(mean / ways)
    return total


def _polynomial(powers: Array, degree: int) -> Array:
    """The sum over all subsets of ``degree`` rows of their product, (L,) from (n, L)."""
    sums = np.zeros((degree + 1, powers.shape[1]))
    sums[0] = 1.0
    for row in powers:
        sums[1:] += sums[:-1] * row
    return sums[degree]
