"""The saving from drawing prompts by the pass rates of earlier rollouts, from a pool or from rewards alone.

A law that is made of the rollouts on which it is measured looks too good. So the law comes from one half of
each prompt's rollouts, and moments from the other half, which are unbiased and independent of it; then the
halves change places. Errors come from a jackknife over prompts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...inference import Means, beside, pairs, ratio_interval
from ...predictions import rate_law
from ...predictions.closed_forms import grpo_error
from ...predictions.drawing_advice import SHARE, DrawingAdvice
from ...predictions.prompt_sampling import weights_of
from ...validation import Array, InputError, finite_array, integer
from .moments import gradients, prompt_moments
from .scored import LEAST_ROLLOUTS, ScoredPool

Halves = tuple[NDArray[np.intp], NDArray[np.intp]]


def pool_drawing_advice(
    pool: ScoredPool, group_size: int, *, share: float = SHARE
) -> DrawingAdvice:
    """The law of a pool's prompts by their pass rates, and its saving at a group size.

    Arguments:
        pool: a pool with rewards 0 and 1 and at least eight rollouts per prompt.
        group_size: G.
        share: share of the data's law.

    Raises:
        InputError: the pool has other rewards, fewer rollouts, one prompt, or no noise.
    """
    size = integer("group size", group_size, 2)
    halves = halves_of(pool.rewards)
    seconds = []
    for half in halves:
        m = prompt_moments(pool.select_rollouts(half)).by_prompt(pool)
        single = m.norm_squared_advantage - m.gradient_sq
        noise = grpo_error(size, single, m.variance_trace + m.gradient_sq)
        seconds.append(m.gradient_sq + noise)
    first = {place: row for row, place in reversed([*enumerate(pool.places.tolist())])}
    names = [pool.prompts[first[place]] for place in range(pool.distinct)]
    signal = pairs(pool.by_prompt(gradients(pool)), looks=pool.looks)
    rewards = [pool.by_prompt(pool.rewards[:, half].mean(axis=1)) for half in halves]
    return _crossed(names, rewards, seconds, halves, signal, size, share)


def reward_drawing_advice(
    rewards: Array, names: Sequence[str] = (), *, share: float = SHARE
) -> DrawingAdvice:
    """The same from rewards alone: as if scores had equal norms and gradients were small against their noise.

    Then the second moment of a prompt is proportional to p (1-p), at every group size.

    Arguments:
        rewards: 0 and 1, (P, N), with N >= 8.
        names: of the prompts (default: their numbers).
        share: share of the data's law.

    >>> solved, open_ = [1.0] * 8, [1.0, 1.0, 0.0, 0.0] * 2
    >>> reward_drawing_advice([solved, open_] * 20).ratio.__round__(3)
    0.833
    """
    values = finite_array("rewards", rewards, 2)
    halves = halves_of(values)
    seconds = [values[:, half].var(axis=1, ddof=1) for half in halves]
    rates = [values[:, half].mean(axis=1) for half in halves]
    count = len(values)
    signal = Means(np.zeros(1), np.zeros((count, 1)))
    every = tuple(names) or tuple(map(str, range(count)))
    return _crossed(every, rates, seconds, halves, signal, None, share)


def halves_of(rewards: Array) -> Halves:
    """The numbers of the rollouts in each half; an error if no law can be made of these rewards, (P, N)."""
    count = rewards.shape[1]
    if not np.isin(rewards, (0.0, 1.0)).all():
        raise InputError("a law of prompts by pass rates needs rewards that are 0 or 1")
    if len(rewards) < 2:
        raise InputError("there is 1 prompt: a law of prompts needs at least 2")
    if count < 2 * LEAST_ROLLOUTS:
        raise InputError(
            f"there are {count} rollouts per prompt: a law from one half that is measured on the other needs "
            f"at least {2 * LEAST_ROLLOUTS}"
        )
    places = np.arange(count)
    return places[::2], places[1::2]


def _crossed(
    names: Sequence[str], rates: Sequence[Array], seconds: Sequence[Array], halves: Halves,
    signal: Means, size: int | None, share: float,
) -> DrawingAdvice:  # fmt: skip
    """The advice; the law of each half is measured by the second moments of the other."""
    count, both = len(names), []
    for half, rate, second in zip(halves, rates, reversed(seconds), strict=True):
        tried = len(half)
        # Without a share of the data the law is a root over its mean.
        root = count * rate_law(rate * tried, tried, share=0.0)
        ones = np.ones(count)
        full = np.array([np.mean(second / ((1 - share) * root + share)), second.mean()])
        left = (count - ones) / (count - root)
        without = np.empty((count, 2))
        for x in range(count):
            terms = second / ((1 - share) * root * left[x] + share)
            without[x] = terms.sum() - terms[x], second.sum() - second[x]
        both.append(Means(full, without / (count - 1), signal.looks))
    joined = beside(*both, signal)

    def costs(values: Array) -> Array:
        law = (values[..., 0] + values[..., 2]) / 2 - values[..., 4]
        data = (values[..., 1] + values[..., 3]) / 2 - values[..., 4]
        return np.stack([law, data], axis=-1)

    found = joined.apply(costs)
    if not found.full[1] > 0:
        raise InputError(
            "the noise of these rollouts is not distinguishable from 0: take more prompts"
        )
    total = sum(map(len, halves))
    successes = sum(rate * len(half) for rate, half in zip(rates, halves, strict=True))
    law = rate_law(np.clip(successes, 0, total), total, share=share)
    return DrawingAdvice(
        names=tuple(names),
        law=law,
        weights=weights_of(np.full(count, 1 / count), law),
        group_size=size,
        ratio=float(found.full[0] / found.full[1]),
        interval=ratio_interval(found),
        basis=f"their pass rates in {total} rollouts"
        + ("" if size else ", as if scores had equal norms"),
    )
