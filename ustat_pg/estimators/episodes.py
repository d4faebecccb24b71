"""Credit over turns: the advantage of each turn in episodes of several turns.

An episode has turns 1, 2, ... until it ends. With the reward rₜ of turn t and the discount γ, Rₜ = rₜ + γ
rₜ₊₁ + ... is its return from turn t on. A group is G episodes of one prompt, and the gradient is (1/G) Σᵢ Σₜ
sᵢₜ Aᵢₜ with sᵢₜ the score of turn t. The schemes differ in the baseline of a turn:

    episode        R₁ minus the mean of R₁ of the other episodes (RLOO on the whole episode)
    episode-mean   R₁ minus the mean of R₁ of all episodes
    to-go          Rₜ minus the mean of Rₜ of the other episodes that reach turn t
    to-go-mean     Rₜ minus the mean of Rₜ of all episodes that reach turn t
    summed         Σ_{u≥t} of rᵤ minus the mean of rᵤ of the other episodes that reach turn u
    pooled         R₁ minus the mean over the turns of the other episodes, each a sample of its R₁
    pooled-mean    R₁ minus the mean over all turns of all episodes

:func:`ustat_pg.predictions.turn_mean` gives the objective of each (result turns): episode, to-go and pooled
are unbiased; a baseline that depends on consequences of a turn's decision is biased.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from array_api_compat import array_namespace, device

from ..validation import InputError, number, one_of
from .arrays import Array, beside, floating, listed, require, trusted

Sums = Callable[[Array], Array]
"""A function that gives a number for each turn from the samples in its set, for an array (..., G, T)."""


class _Together(NamedTuple):
    """The sums over all samples of a set and over the own episode's samples, and the largest sample."""

    everyone: Sums
    own: Sums
    largest: Sums


class _Scheme(NamedTuple):
    """The compared samples, whether they include the own episode, and what a sample is."""

    among: str
    own: bool
    whole: bool = False
    summed: bool = False


_SCHEMES = {
    "episode": _Scheme("episodes", own=False, whole=True),
    "episode-mean": _Scheme("episodes", own=True, whole=True),
    "to-go": _Scheme("turn", own=False),
    "to-go-mean": _Scheme("turn", own=True),
    "summed": _Scheme("turn", own=False, summed=True),
    "pooled": _Scheme("turns", own=False, whole=True),
    "pooled-mean": _Scheme("turns", own=True, whole=True),
}

TURN_SCHEMES = tuple(_SCHEMES)
"""Names of schemes."""


def turns(
    rewards: Array,
    reached: Array,
    scheme: str = "episode",
    *,
    discount: float = 1.0,
    states: Array | None = None,
    ddof: int | None = None,
    lone: str = "reward",
) -> Array:
    """Advantages of the turns of groups of episodes.

    Arguments:
        rewards: rₜ of each turn, (..., G, T); entries past an episode's end are ignored.
        reached: 1 for a turn of the episode and 0 past its end, (..., G, T). An episode without turns is
            absent, so groups may be ragged.
        scheme: one of :data:`TURN_SCHEMES`.
        discount: γ, in [0, 1].
        states: whole numbers for the state of each turn, (..., G, T); "to-go" and "to-go-mean" then compare
            visits of equal states, rather than turns with equal numbers (anchor states).
        ddof: 0 or 1; if given, each advantage is divided by the deviation of all samples of its set,
            including its own, with this ddof; advantages are 0 if the deviation is 0.
        lone: for turns without another episode to compare with: "reward" keeps the return with baseline 0,
            and "zero" drops it, which weights turns by the chance that another episode is present.

    Returns:
        (..., G, T), 0 past an episode's end.

    >>> import numpy as np
    >>> rewards, reached = np.array([[0.0, 1.0], [0.5, 9.0]]), np.array([[1, 1], [1, 0]])
    >>> turns(rewards, reached, "episode")
    array([[ 0.5,  0.5],
           [-0.5,  0. ]])
    >>> turns(rewards, reached, "to-go")
    array([[ 0.5,  1. ],
           [-0.5,  0. ]])
    >>> turns(rewards, reached, "summed")
    array([[0.5, 1. ],
           [0.5, 0. ]])
    """
    one_of("scheme", scheme, TURN_SCHEMES)
    one_of("lone", lone, ("reward", "zero"))
    discount = number("discount", discount, minimum=0.0, maximum=1.0)
    if ddof not in (None, 0, 1):
        raise InputError(f"ddof is {ddof!r}: it must be 0, 1 or None")
    how = _SCHEMES[scheme]
    xp, rewards, inside = _episodes(rewards, reached)
    if states is None:
        together = _by_place(xp, how.among)
    elif how.among == "turn" and not how.summed:
        together = _by_state(xp, states, inside)
    else:
        raise InputError(
            f"states: scheme {scheme!r} does not take them; 'to-go' and 'to-go-mean' do"
        )
    kept = xp.astype(inside, rewards.dtype)
    to_go = summed_from(xp, rewards, discount)
    if how.among == "episodes":
        # An episode is one sample, its first turn.
        samples = xp.concat([kept[..., :1], xp.zeros_like(kept[..., 1:])], axis=-1)
    else:
        samples = kept
    values = rewards if how.summed else to_go
    if how.whole:
        values = values[..., :1] * xp.ones_like(kept)

    advantages = values - _mean(xp, values, samples, together, own=how.own)
    if lone == "zero" and not how.own:
        compared = together.everyone(samples) - together.own(samples) > 0.5
        advantages = xp.where(compared, advantages, xp.zeros_like(advantages))
    if ddof is not None:
        # Values that differ only by the rounding of returns count as equal.
        sizes = xp.max(xp.sum(xp.abs(rewards), axis=-1, keepdims=True), axis=-2, keepdims=True)
        rounding = (rewards.shape[-1] - 1) * float(xp.finfo(rewards.dtype).eps) * sizes
        highest, lowest = (
            together.largest(xp.where(samples > 0, signed, -xp.inf)) for signed in (values, -values)
        )
        spread = _deviation(xp, values, samples, together, ddof)
        level = (highest + lowest <= rounding) | (spread == 0)
        safe = xp.where(level, xp.ones_like(spread), spread)
        advantages = xp.where(level, xp.zeros_like(advantages), advantages / safe)
    advantages = xp.where(inside, advantages, xp.zeros_like(advantages))
    return summed_from(xp, advantages, discount) * kept if how.summed else advantages


def _episodes(rewards: Any, reached: Any) -> tuple[Any, Array, Array]:
    """The rewards' namespace, the rewards with 0 past the end, and the reached turns."""
    with trusted():
        xp, rewards = floating("rewards", rewards)
    reached = beside("reached", reached, rewards, xp)
    shape = tuple(rewards.shape)
    if len(shape) < 2 or 0 in shape[-2:]:
        raise InputError(f"rewards have shape {shape}: it must be (..., G, T), G and T at least 1")
    if tuple(reached.shape) != shape:
        raise InputError(
            f"reached has shape {tuple(reached.shape)}: it must have the rewards' shape {shape}"
        )
    require(
        lambda: xp.all((reached == 0) | (reached == 1)),
        "reached must be 1 for a turn, 0 past the end",
    )
    inside = reached > 0
    require(
        lambda: xp.all(inside[..., :-1] | ~inside[..., 1:]),
        "reached has a turn after the end of its episode: each row must be 1s, then 0s",
    )
    return *floating("rewards", xp.where(inside, rewards, xp.zeros_like(rewards))), inside


def summed_from(xp: Any, values: Array, discount: float) -> Array:
    """Each turn's value plus the discounted values after it."""
    sums = [values[..., -1]]
    for turn in range(values.shape[-1] - 2, -1, -1):
        sums.append(values[..., turn] + discount * sums[-1])
    return xp.stack(sums[::-1], axis=-1)


def _by_place(xp: Any, among: str) -> _Together:
    """Samples of a turn's place, or of all places."""
    axes = (-2,) if among == "turn" else (-2, -1)

    def everyone(values: Array) -> Array:
        return xp.sum(values, axis=axes, keepdims=True) + xp.zeros_like(values)

    def own(values: Array) -> Array:
        if among == "turn":
            return values
        return xp.sum(values, axis=-1, keepdims=True) + xp.zeros_like(values)

    def largest(values: Array) -> Array:
        return xp.max(values, axis=axes, keepdims=True)

    return _Together(everyone, own, largest)


def _by_state(xp: Any, states: Any, inside: Array) -> _Together:
    """Samples that are visits of a turn's state."""
    shape, place = tuple(inside.shape), device(inside)
    try:
        library = array_namespace(states)
    except TypeError:
        library, states = xp, xp.asarray(listed("states", states)[1].tolist(), device=place)
    if library is not xp:
        raise InputError(
            f"rewards and states must be arrays of one library, not of {xp.__name__} and {library.__name__}"
        )
    if tuple(states.shape) != shape:
        raise InputError(f"states have shape {tuple(states.shape)}: it must be {shape}")
    visits = (*shape[:-2], shape[-2] * shape[-1])
    flat = xp.reshape(states, visits)
    equal = flat[..., :, None] == flat[..., None, :]
    episode = xp.arange(visits[-1], device=place) // shape[-1]
    same = equal & (episode[:, None] == episode[None, :])

    def of(pairs: Array) -> Sums:
        def sums(values: Array) -> Array:
            column = xp.reshape(values, (*visits, 1))
            return xp.reshape(xp.matmul(xp.astype(pairs, values.dtype), column), shape)

        return sums

    def largest(values: Array) -> Array:
        row = xp.reshape(values, (*visits[:-1], 1, visits[-1]))
        return xp.reshape(xp.max(xp.where(equal, row, -xp.inf), axis=-1), shape)

    return _Together(of(equal), of(same), largest)


def _mean(xp: Any, values: Array, samples: Array, together: _Together, *, own: bool) -> Array:
    """The mean of the samples in a set, with or without those of the own episode; 0 if the set is empty."""
    total, count = together.everyone(values * samples), together.everyone(samples)
    if not own:
        total, count = total - together.own(values * samples), count - together.own(samples)
    present = count > 0.5
    mean = total / xp.where(present, count, xp.ones_like(count))
    return xp.where(present, mean, xp.zeros_like(mean))


def _deviation(xp: Any, values: Array, samples: Array, together: _Together, ddof: int) -> Array:
    """The deviation of the samples in a set; 0 if there are too few."""
    mean = _mean(xp, values, samples, together, own=True)
    count = together.everyone(samples) - ddof
    squares = together.everyone(samples * (values - mean) ** 2)
    enough = count > 0
    variance = squares / xp.where(enough, count, xp.ones_like(count))
    return xp.sqrt(xp.where(enough, variance, xp.zeros_like(variance)))
