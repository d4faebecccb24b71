"""Noise and mean of estimators over turns, from a pool of logged episodes of one's own policy.

A group S is G of a prompt's n episodes, and ĝ_S the gradient that an estimator makes of it. All is asked of
different episodes, so that each moment is unbiased whatever n is:

    E‖ĝ‖²       mean over S of ‖ĝ_S‖²
    ‖E ĝ‖²      mean of ⟨ĝ_S, ĝ_S'⟩, S and S' without a common episode
    ⟨E ĝ, ∇J⟩   mean of ⟨ĝ_S, h_S'⟩, h the whole episode's leave-one-out gradient, which is unbiased
    ‖∇J‖²       mean of ⟨h_S, h_S'⟩

All groups are taken where they are few, else those of random partitions of the episodes. Where there are
several prompts S and S' are of two of them, since the mean gradient is one over prompts; at one prompt alone
they tell the noise of a group given its prompt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..display.shown import Shown
from ..estimators import TURN_SCHEMES, turns
from ..inference import (
    LIKELY,
    SQUARE,
    Means,
    alignment,
    beside,
    log_ratio,
    means,
    norm_interval,
    pairs,
    product_interval,
    ratio,
    within,
)
from ..inference.constants import Estimates
from ..inference.estimate import Estimate
from ..sampling import rng
from ..validation import Array, InputError, finite_array, integer, record

if TYPE_CHECKING:
    import pandas as pd


LEAST_EPISODES = 4
"""Episodes that every prompt must have."""

GROUPS = 512
"""Groups of a prompt, unless another bound is given: all of them where they are no more."""

_TWO = 64
"""Episodes of one prompt up to which the error of what two make together is counted."""


@record()
class EpisodePool:
    """Logged episodes of a policy, with the score of each turn or a sketch of it.

    Arguments:
        rewards: rₜ of each turn of E episodes, (E, T); what is past an episode's end is not read.
        reached: 1 for a turn of the episode and 0 past its end, (E, T).
        scores: sₜ = ∇ log π(action | all before it), or a sketch with the same inner products, (E, T, k).
        states: whole numbers that name the state a turn is taken in, (E, T); None where none is known.
        prompts: name of each episode's prompt, (E,); one prompt unless given. Prompts may have different
            numbers of episodes.

    Raises:
        InputError: shapes that do not fit, or a number that is not finite.

    >>> pool = EpisodePool([[1.0], [0.0]] * 3, np.ones((6, 1)), [[[0.5]], [[-0.5]]] * 3)
    >>> len(pool), len(pool.numbers)
    (6, 1)
    """

    rewards: Any
    reached: Any
    scores: Any
    states: Any = None
    prompts: Any = None

    def __attrs_post_init__(self) -> None:
        reached = finite_array("reached", self.reached, 2)
        if not np.isin(reached, (0, 1)).all() or (np.diff(reached, axis=1) > 0).any():
            raise InputError(
                "reached must be 1 for a turn and 0 past the end: 1s, then 0s, in each row"
            )
        inside = reached > 0
        found: dict[str, Any] = {"reached": inside}
        for name, ndim in (("rewards", 2), ("scores", 3)):
            values = _array(name, getattr(self, name))
            if values.ndim != ndim or values.shape[:2] != inside.shape:
                wanted = "(E, T)" if ndim == 2 else "(E, T, k)"
                raise InputError(
                    f"{name} have shape {values.shape}: it must be {wanted}, and reached has {inside.shape}"
                )
            mask = inside if ndim == 2 else inside[..., None]
            found[name] = finite_array(name, np.where(mask, values, 0))
        if self.states is not None:
            states = np.asarray(self.states)
            if states.shape != inside.shape or states.dtype.kind not in "iu":
                raise InputError(
                    f"states are {states.dtype} of shape {states.shape}: they must be whole numbers of "
                    f"shape {inside.shape}"
                )
            found["states"] = states
        if self.prompts is not None:
            prompts = np.asarray(self.prompts)
            if prompts.shape != inside.shape[:1]:
                raise InputError(
                    f"prompts have shape {prompts.shape}: give a name to each of {len(inside)} episodes"
                )
            found["prompts"] = prompts
        for name, value in found.items():
            object.__setattr__(self, name, value)
        fewest = min(map(len, self.numbers))
        if fewest < LEAST_EPISODES:
            raise InputError(
                f"a prompt has {fewest} episodes: every prompt needs at least {LEAST_EPISODES}"
            )

    def __len__(self) -> int:
        """The number of episodes."""
        return len(self.rewards)

    @property
    def numbers(self) -> list[NDArray[np.int64]]:
        """The numbers of each prompt's episodes."""
        if self.prompts is None:
            return [np.arange(len(self))]
        _, places = np.unique(self.prompts, return_inverse=True)
        order = np.argsort(places, kind="stable")
        return np.split(order, np.cumsum(np.bincount(places))[:-1])


def _array(name: str, value: Any) -> Array:
    """An array that may hold anything past an episode's end."""
    try:
        return np.asarray(value)
    except ValueError:
        raise InputError(f"{name} are ragged: pad them past each episode's end") from None


@dataclass(frozen=True)
class PooledTurns(Estimates):
    """The noise and the mean of an estimator over turns, estimated from a pool.

    Arguments:
        scheme: its name.
        group_size: G.
        noise: tr Cov of one group's ĝ given its prompt.
        signal: ‖E ĝ‖².
        along: ⟨E ĝ, ∇J⟩.
        gradient_sq: ‖∇J‖².
        mse: E‖ĝ - ∇J‖² of one group of a prompt drawn at random.
        noise_to_signal: tr Cov ĝ/‖E ĝ‖² of one such group: how many groups a step takes until its noise is
            its signal. No learning rate changes it.
        over_first: that over the first scheme's at the same G, from the same groups.
        multiple: ⟨E ĝ, ∇J⟩/‖∇J‖²; c where E ĝ is c ∇J.
        cosine: of the angle between E ĝ and ∇J.
    """

    scheme: str
    group_size: int
    noise: Estimate
    signal: Estimate
    along: Estimate
    gradient_sq: Estimate
    mse: Estimate
    noise_to_signal: Estimate
    over_first: Estimate
    multiple: Estimate
    cosine: Estimate


@dataclass(frozen=True)
class TurnsOfPool(Shown):
    """Estimators over turns side by side, on a pool of logged episodes.

    Arguments:
        prompts, episodes: how many there are.
        rows: of each group size and scheme.
    """

    prompts: int
    episodes: int
    rows: tuple[PooledTurns, ...]

    def __str__(self) -> str:
        from tabulate import tabulate

        shown = "noise", "noise_to_signal", "over_first", "multiple", "cosine"
        head = ["G", "scheme", *(name.replace("_", " ") for name in shown)]
        lines = [
            [str(row.group_size), row.scheme, *(str(getattr(row, name)) for name in shown)]
            for row in self.rows
        ]
        parts = "prompt" if self.prompts == 1 else "prompts"
        table = tabulate(lines, head, disable_numparse=True)
        return f"{self.episodes} episodes of {self.prompts} {parts}\n\n{table}"

    def to_frame(self) -> pd.DataFrame:
        """A row for each group size, scheme and estimate: name, value, se, low, high and reason."""
        import pandas as pd

        return pd.concat(
            [
                row.to_frame().assign(group_size=row.group_size, scheme=row.scheme)
                for row in self.rows
            ],
            ignore_index=True,
        )


def turns_of_pool(
    pool: EpisodePool,
    group_sizes: int | Iterable[int],
    schemes: str | Callable[..., Any] | Sequence[str | Callable[..., Any]] = TURN_SCHEMES,
    *,
    by_state: bool = False,
    groups: int = GROUPS,
    seed: int = 0,
    **options: Any,
) -> TurnsOfPool:
    """The noise of estimators over turns on a policy of one's own, and where their means point.

    Each moment is unbiased; ratios are of unbiased moments. Errors are those of a jackknife over prompts, or
    over episodes where there is one prompt.

    Arguments:
        pool: the episodes.
        group_sizes: G, one or several.
        schemes: names of :data:`~ustat_pg.estimators.TURN_SCHEMES`, or functions of rewards and reached turns
            (n, G, T) that give advantages of that shape.
        by_state: whether schemes are given the states of turns.
        groups: how many groups of a prompt are taken at most, at least 16; all where there are no more.
        seed: of the random groups.
        options: of :func:`~ustat_pg.estimators.turns`, or of the function.

    Raises:
        InputError: a prompt has fewer than 2 G episodes, or advantages are not finite numbers.

    >>> from ustat_pg.problems import load_episodes
    >>> listed = load_episodes("ustat:tool").episodes
    >>> drawn = np.random.default_rng(0).choice(len(listed.probs), 400, p=listed.probs)
    >>> pool = EpisodePool(listed.rewards[drawn], listed.reached[drawn], listed.scores[drawn])
    >>> to_go, summed = turns_of_pool(pool, 4, ["to-go", "summed"]).rows
    >>> print(to_go.cosine, summed.cosine, sep="; ")
    1 [0.999, 1]; -0.324 [-0.742, 0.0483]
    """
    several = [schemes] if isinstance(schemes, str) or callable(schemes) else list(schemes)
    named = [
        (each, partial(turns, scheme=each)) if isinstance(each, str) else (_name(each), each)
        for each in several
    ]
    sizes = [
        integer("group size", size) for size in np.atleast_1d(np.asarray(group_sizes)).tolist()
    ]
    if not named or not sizes:
        raise InputError("schemes or group sizes are empty: give at least one of each")
    if by_state and pool.states is None:
        raise InputError("by_state: the pool has no states")
    bound, seed = integer("groups", groups, 16), integer("seed", seed, 0)
    # A group's gradient is linear in scores: all lengths are those of a prompt's own coordinates.
    numbers = pool.numbers
    prompts = [_Prompt(pool, own) for own in numbers]
    rows = []
    for size in sizes:
        fewest = min(map(len, numbers))
        if fewest < 2 * size:
            raise InputError(
                f"group size is {size}, and a prompt has {fewest} episodes: two groups without a common "
                f"episode need {2 * size}; log more, or take groups of at most {fewest // 2}"
            )
        drawn = [_Groups(len(own), size, bound, seed, x) for x, own in enumerate(numbers)]
        together = list(zip(prompts, drawn, strict=True))
        unbiased = [one.gradients("episode", turns, some, False) for one, some in together]
        first: _Moments | None = None
        for name, function in named:
            made = [
                one.gradients(name, function, some, by_state, **options) for one, some in together
            ]
            parts = _moments(drawn, made, unbiased)
            first = first or parts
            rows.append(_row(name, size, parts, first))
    return TurnsOfPool(len(prompts), len(pool), tuple(rows))


def _name(function: Callable[..., Any]) -> str:
    inner = getattr(function, "func", function)
    return getattr(inner, "__name__", type(inner).__name__)


class _Groups:
    """Groups of a prompt's episodes, and which of them have no episode in common.

    Arguments:
        count: n.
        size: G.
        bound: how many groups at most, but for the rest of a partition.
        seed, prompt: the address of random groups.
    """

    def __init__(self, count: int, size: int, bound: int, seed: int, prompt: int) -> None:
        if math.comb(count, size) <= bound:
            members = np.array(list(combinations(range(count), size)))
        else:
            # Groups of one partition are disjoint, and hold each episode once at most.
            partitions = -(-bound // (count // size))
            order = np.tile(np.arange(count), (partitions, 1))
            key = rng.cell_key(seed, f"turns_of_pool {size}")
            rng.shuffle(order, rng.words(key, np.arange(partitions), prompt, count - 1))
            members = order[:, : count // size * size].reshape(-1, size)
        self.members = members
        inside = np.zeros((len(members), count))
        inside[np.arange(len(members))[:, None], members] = 1
        self.apart = (inside @ inside.T == 0).astype(np.float64)
        self.without = 1 - inside.T
        """For each episode the groups that it is not in, (n, C)."""


class _Prompt:
    """A prompt's episodes."""

    def __init__(self, pool: EpisodePool, own: NDArray[np.int64]) -> None:
        self.rewards, self.reached = pool.rewards[own], pool.reached[own]
        self.states = None if pool.states is None else pool.states[own]
        self.scores = pool.scores[own].reshape(self.rewards.size, -1)
        self.own = self.scores
        if self.scores.shape[1] > len(self.scores):
            # Few vectors of many numbers span few dimensions.
            self.own = np.asarray(np.linalg.qr(self.scores.T, mode="r")).T

    def gradients(
        self, name: str, function: Callable[..., Any], some: _Groups, by_state: bool, **options: Any
    ) -> tuple[Array, Array]:
        """ĝ of each group in coordinates of the prompt's own, (C, r), and the mean over groups, (k,)."""
        rewards, reached = self.rewards[some.members], self.reached[some.members]
        if by_state and self.states is not None:
            options["states"] = self.states[some.members]
        found = np.asarray(function(rewards, reached.astype(np.float64), **options))
        if found.shape != rewards.shape or not np.isfinite(found).all():
            raise InputError(
                f"{name} gave an array of shape {found.shape} to rewards of shape {rewards.shape}: it must "
                "be finite numbers of their shape"
            )
        count, size, _ = rewards.shape
        weights = np.zeros((count, *self.rewards.shape))
        weights[np.arange(count)[:, None], some.members] = found * reached / size
        flat = weights.reshape(count, -1)
        return flat @ self.own, flat.mean(axis=0) @ self.scores


Made = tuple[Array, Array]
"""The gradients of a prompt's groups: in its own coordinates, and their mean."""


@dataclass(frozen=True)
class _Moments:
    """E‖ĝ‖², E‖E[ĝ | prompt]‖², ‖E ĝ‖², ⟨E ĝ, ∇J⟩ and ‖∇J‖², and what their lengths are of.

    Arguments:
        means: the five, with a jackknife.
        vectors: prompts' vectors whose means are E ĝ and ∇J, (P, k) each; None of one prompt.
    """

    means: Means
    vectors: tuple[Array, Array] | None = None


def _moments(drawn: Sequence[_Groups], made: Sequence[Made], unbiased: Sequence[Made]) -> _Moments:
    if len(drawn) == 1:
        (some,), ((own, _),), ((others, _),) = drawn, made, unbiased
        # All groups, then those without each episode, then those without two.
        count, one = len(some.without), some.without
        enough = 2 * some.members.shape[1] + 2 <= count <= _TWO
        i, j = np.triu_indices(count, 1)
        two = one[i] * one[j] if enough else one[:0]
        kept = np.concatenate([np.ones((1, len(some.members))), one, two])
        second, squared = _within(some, kept, own, own)
        along, gradient = (_within(some, kept, each, others)[1] for each in (own, others))
        columns = np.stack([second, squared, squared, along, gradient], axis=1)
        without_two = None
        if enough:
            without_two = np.zeros((count, count, 5))
            without_two[i, j] = without_two[j, i] = columns[1 + count :]
        return _Moments(Means(columns[0], columns[1 : 1 + count], 1, "episodes", without_two))
    parts = [
        _within(some, np.ones((1, len(some.members))), own, own)
        for some, (own, _) in zip(drawn, made, strict=True)
    ]
    mean, target = (np.stack([each for _, each in one]) for one in (made, unbiased))
    lengths = (pairs(*two) for two in ((mean, mean), (mean, target), (target, target)))
    return _Moments(beside(means(np.array(parts)[..., 0]), *lengths), (mean, target))


def _within(some: _Groups, kept: Array, first: Array, second: Array) -> tuple[Array, Array]:
    """The mean of ‖u_S‖² and that of ⟨u_S, v_S'⟩ over disjoint groups, of each row of kept groups."""
    with np.errstate(invalid="ignore"):
        alone = kept @ np.square(first).sum(axis=1) / kept.sum(axis=1)
        products = ((kept @ (some.apart * (first @ second.T))) * kept).sum(axis=1)
        return alone, products / ((kept @ some.apart) * kept).sum(axis=1)


def _row(name: str, size: int, found: _Moments, first: _Moments) -> PooledTurns:
    """The estimates that moments make."""
    parts = found.means

    def of(*weights: Sequence[float]) -> Means:
        return parts.apply(lambda columns: columns @ np.transpose(weights))

    both = of(*_NOISE_AND_SIGNAL)
    signal, along, target = _lengths(found)
    three = parts.apply(lambda columns: columns[..., 2:])
    # By the interval of the signal as a mean's or as a squared length's, whichever is farther.
    known, other = ratio(both), ratio(both, signal.interval)
    low, high = min(known.low, other.low), max(known.high, other.high)
    multiple, cosine = alignment(three, signal.low > 0, target.low > 0)
    return PooledTurns(
        scheme=name,
        group_size=size,
        noise=of([1.0, -1, 0, 0, 0]).estimate(0),
        signal=signal,
        along=along,
        gradient_sq=target,
        mse=of([1.0, 0, 0, -2, 1]).estimate(0),
        noise_to_signal=replace(known, low=low, high=high),
        over_first=_over(found, first),
        multiple=multiple,
        cosine=cosine,
    )


_NOISE_AND_SIGNAL = [1.0, 0, -1, 0, 0], [0.0, 0, 1, 0, 0]


def _over(found: _Moments, first: _Moments) -> Estimate:
    """Noise over signal to that of the first; ends are known where both signals are likely."""
    one, other = (
        each.means.apply(lambda columns: columns @ np.transpose(_NOISE_AND_SIGNAL))
        for each in (found, first)
    )
    ratio = log_ratio(one, other)
    if ratio.low == ratio.high or min(_lengths(each, LIKELY)[0].low for each in (found, first)) > 0:
        return ratio
    return replace(ratio, low=0.0, high=math.inf, reason="a signal is not distinguishable from 0")


def _lengths(found: _Moments, looks: float = 1) -> list[Estimate]:
    """‖E ĝ‖², ⟨E ĝ, ∇J⟩ and ‖∇J‖²."""
    if found.vectors is None:
        parts = replace(found.means, looks=looks)
        return [parts.estimate(place, SQUARE if place != 3 else -math.inf) for place in (2, 3, 4)]
    own, whole = found.vectors
    ends = (
        norm_interval(own, looks),
        product_interval(own, whole, looks),
        norm_interval(whole, looks),
    )
    return [
        within(found.means.estimate(place), (low, high))
        for place, (low, high) in enumerate(ends, 2)
    ]
