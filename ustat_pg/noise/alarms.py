"""Faults of a training that its outputs betray, each with a rate of false alarms (:class:`Alarms`)."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..validation import InputError, integer

Array = NDArray[np.float64]

SENTENCES = {
    "silent": "Half of the groups and more have equal rewards: they cost outputs and give no gradient.",
    "spikes": "More than 5% of groups have nearly equal rewards: divided, their advantages are noise.",
    "clipped": "A fifth of the tokens and more are clipped: rollouts are not of this policy.",
    "lost": "The signal is lost in noise: a whole window does not tell it from 0.",
    "groups": "Groups are cut or mixed: advantages of one prompt do not belong together.",
    "survivors": "Outputs are dropped by their reward or length: those that are left are biased.",
    "rollouts": "Rollouts are not of this policy: temperature, truncated sampling, or an older policy.",
}
TOLERANCE = 4e-3
"""How far a group's advantages may be from summing to 0, over the largest: that of half precision."""
_ERRORS = 4.0
"""Standard errors beyond which chance is ruled out: 1 window in 15,000 by the normal law."""
_APART = 0.05
"""Nats an output that rollouts of this policy may be away from it, by the rounding of another engine."""


class Alarms:
    """Watch the outputs of a training, in any loop.

    ::

        alarms = Alarms(group_size=8)
        alarms.generation(prompts, rewards=rewards, advantages=advantages, lengths=lengths, kept=kept)
        alarms.tokens(log_probs, mask, entropies)
        alarms.standing()

    ``silent``, more than half of the groups have equal rewards, and ``spikes``, more than 5% differ by less
    than 1% of the usual deviation (of interest where advantages are divided by it), both by three binomial
    errors. ``groups``, the outputs of a prompt are no whole number of groups, or their advantages do not
    sum to 0 or do not rise with the rewards, which no chance does. ``survivors``, outputs that are left out
    have other rewards or lengths than the rest of their group: by ranks, beyond four standard errors of a
    drop at random. ``rollouts``, tokens surprise by more or less than the policy's entropy, beyond four
    standard errors; or recorded log-probabilities put an output .05 nats and more from the policy, by three.

    Arguments:
        window: latest calls of each method that count.
        group_size: G; None where groups may have any size.

    Raises:
        InputError: numbers out of range.
    """

    def __init__(self, window: int = 50, group_size: int | None = None) -> None:
        self.window = integer("window", window)
        self.group_size = None if group_size is None else integer("group size", group_size)
        self._deviations, self._broken, self._survivors, self._tokens, self._apart = (
            deque[Array](maxlen=self.window) for _ in range(5)
        )

    def generation(
        self,
        prompts: ArrayLike,
        rewards: ArrayLike | None = None,
        advantages: ArrayLike | None = None,
        lengths: ArrayLike | None = None,
        kept: ArrayLike | None = None,
    ) -> None:
        """Look at the outputs of one generation.

        Arguments:
            prompts: which group each output is of, (n,).
            rewards: NaN where there is none.
            advantages: centred ones of these rewards, as they are trained on.
            lengths: tokens.
            kept: whether it is trained on.

        Raises:
            InputError: lengths of these differ.
        """
        places = np.unique(np.asarray(prompts), return_inverse=True)[1]
        rows = [
            None if given is None else np.asarray(given, dtype=float)
            for given in (rewards, advantages, lengths, kept)
        ]
        if any(row is not None and row.shape != places.shape for row in rows):
            raise InputError(f"there are {len(places)} prompts: give one of each for an output")
        z, a, size, left = rows
        if z is not None:
            groups = (z[places == group] for group in range(places.max() + 1))
            # Equal rewards may differ from their mean by a rounding.
            spreads = [spread.std() if np.ptp(spread) else 0.0 for spread in groups]
            self._deviations.append(
                np.array([spread for spread in spreads if math.isfinite(spread)])
            )
        if a is not None:
            sums, top = np.bincount(places, a), np.zeros(places.max() + 1)
            np.maximum.at(top, places, np.abs(a))
            counts = np.bincount(places)
            broken = np.abs(sums) > TOLERANCE * counts * top
            if self.group_size is not None:
                broken |= counts % self.group_size > 0
            if z is not None:
                order = np.lexsort((a, z, places))
                falls = (np.diff(a[order]) < -TOLERANCE * top[places[order][1:]]) & np.isfinite(
                    z[order][:-1] + z[order][1:]
                )
                broken[places[order][1:][falls & (np.diff(places[order]) == 0)]] = True
            self._broken.append(np.array([broken.sum()]))
        if left is not None and not left.all():
            # Ranks of advantages are those of rewards.
            self._survivors.append(
                np.array([_dropped(places, x, left) for x in (a if z is None else z, size)]).ravel()
            )

    def tokens(
        self,
        log_probs: ArrayLike,
        mask: ArrayLike,
        entropies: ArrayLike | None = None,
        recorded: ArrayLike | None = None,
    ) -> None:
        """Look at outputs' tokens before the policy moves.

        Arguments:
            log_probs: of the sampled tokens under the policy that is trained, (n, T).
            mask: which entries are tokens of outputs.
            entropies: of the policy at each of them.
            recorded: log-probabilities that the sampler gave.
        """
        logs, on = np.asarray(log_probs, dtype=float), np.asarray(mask).astype(bool)
        if entropies is not None:
            # A martingale's differences if the tokens are of this policy.
            surprise = np.where(on, -logs - np.asarray(entropies, dtype=float), 0.0)
            self._tokens.append(np.array([surprise.sum(), np.square(surprise).sum()]))
        if recorded is not None:
            log_ratio = np.where(on, logs - np.asarray(recorded, dtype=float), 0.0)
            log_ratio = np.nan_to_num(log_ratio)
            self._apart.append((np.expm1(log_ratio) - log_ratio).sum(axis=1))

    def standing(self) -> set[str]:
        """The names of the alarms that stand."""
        deviations = np.concatenate([*self._deviations, []])
        usual = math.sqrt(np.square(deviations).sum() / max(len(deviations), 1))
        near = (deviations > 0) & (deviations < 0.01 * usual)
        surprise, square = np.sum([*self._tokens, np.zeros(2)], axis=0)
        apart = np.concatenate([*self._apart, []])
        error = apart.std() / math.sqrt(len(apart)) if len(apart) else 0.0
        dropped = np.sum([*self._survivors, np.zeros(4)], axis=0).reshape(2, 2)
        alarms = {
            "silent": _more(deviations == 0, 0.5),
            "spikes": _more(near, 0.05),
            "groups": any(cut.any() for cut in self._broken),
            "survivors": bool((np.abs(dropped[:, 0]) > _ERRORS * np.sqrt(dropped[:, 1])).any()),
            "rollouts": abs(surprise) > _ERRORS * math.sqrt(square)
            or (len(apart) > 1 and apart.mean() > _APART + 3 * error),
        }
        return {name for name, on in alarms.items() if on}


def _more(those: NDArray[np.bool_], share: float) -> bool:
    """Whether a larger share of all groups are like those, by three binomial errors."""
    error = math.sqrt(share * (1 - share) * len(those))
    return bool(those.sum() > share * len(those) + 3 * error)


def _dropped(places: NDArray[np.int64], values: Any, kept: Array) -> tuple[float, float]:
    """Σ of centred ranks of the dropped within their groups, and its variance had chance dropped them."""
    total = variance = 0.0
    if values is None:
        return total, variance
    for group in range(places.max() + 1):
        rows = np.flatnonzero(places == group)
        x, out = values[rows], kept[rows] == 0
        count, gone = len(rows), int(out.sum())
        if not 0 < gone < count or not np.isfinite(x).all():
            continue
        # Equal values share their rank.
        ranks = np.sign(x[:, None] - x).sum(axis=1) / 2
        total += float(ranks[out].sum())
        variance += gone * (count - gone) / (count * (count - 1)) * float(ranks @ ranks)
    return total, variance
