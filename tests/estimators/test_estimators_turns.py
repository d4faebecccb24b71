"""Advantages of turns against a second mind's loops: ragged groups, batches, every array library."""

from fractions import Fraction
from math import sqrt

import array_api_strict as strict
import numpy as np
import pytest

from tests.support import independent_turns as ind
from tests.support.arrays import ROUNDING, WAYS, host, maker
from tests.support.refusals import refusals
from ustat_pg.estimators import TURN_SCHEMES, turns

HALF = Fraction(1, 2)


def drawn(seed, shape):
    """Groups (..., G, T) of episodes of 0 to T turns in three states, with garbage past their ends."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, shape[-1] + 1, shape[:-1])
    lengths[..., 0] = shape[-1]
    reached = (np.arange(shape[-1]) < lengths[..., None]).astype(float)
    rewards = np.where(reached > 0, rng.integers(-6, 7, shape) / 4, 99.0)
    return rewards, reached, rng.integers(0, 3, shape)


def samples(scheme, by_state, g, i, t, but):
    """What stands together with turn t of episode i, without one episode's."""
    if by_state:
        others = [e if j != but else e._replace(states=()) for j, e in enumerate(g)]
        return [e.back(u) for e in others for u, x in enumerate(e.states) if x == g[i].states[t]]
    if scheme == "summed":
        return [e.rewards[t] for e in ind.there(g, t, but)]
    if scheme.startswith("to-go"):
        return [e.back(t) for e in ind.there(g, t, but)]
    kept = ind.there(g, 0, but)
    if scheme.startswith("episode"):
        return [e.back(0) for e in kept]
    return [e.back(0) for e in kept for _ in e.states]


def advantage(scheme, by_state, g, i, t, ddof, lone):
    """That of turn t of episode i, from the definition: exact, but for the root of a variance."""
    if scheme == "summed":
        terms = [
            compared(scheme, by_state, g, i, u, r, ddof, lone) for u, r in enumerate(g[i].rewards)
        ]
        return g[i]._replace(rewards=terms).back(t)
    value = g[i].back(t if scheme.startswith("to-go") else 0)
    return compared(scheme, by_state, g, i, t, value, ddof, lone)


def compared(scheme, by_state, g, i, t, value, ddof, lone):
    """A value less the mean of what it is compared with, over the deviation of all that stand together."""
    everyone = samples(scheme, by_state, g, i, t, None)
    among = everyone if scheme.endswith("-mean") else samples(scheme, by_state, g, i, t, i)
    if lone == "zero" and not among:
        return Fraction(0)
    apart = value - ind.mean(among)
    if ddof is None:
        return apart
    squares = sum((x - ind.mean(everyone)) ** 2 for x in everyone)
    return apart / Fraction(sqrt(squares / (len(everyone) - ddof))) if squares else Fraction(0)


def by_hand(scheme, by_state, given, discount=Fraction(1), ddof=None, lone="reward"):
    """The same advantages, episode by episode, and 0 past the end."""
    rewards, reached, states = given
    found = np.zeros(rewards.shape)
    for at in np.ndindex(rewards.shape[:-2]):
        lengths = reached[at].sum(axis=-1).astype(int)
        present = np.flatnonzero(lengths)
        group = [
            ind.Episode(
                tuple(states[at][j, :n]), [Fraction(r) for r in rewards[at][j, :n]], discount
            )
            for j, n in zip(present, lengths[present], strict=True)
        ]
        for i, j in enumerate(present):
            for t in range(lengths[j]):
                found[(*at, j, t)] = advantage(scheme, by_state, group, i, t, ddof, lone)
    return found


KINDS = [*((scheme, False) for scheme in TURN_SCHEMES), ("to-go", True), ("to-go-mean", True)]
GIVEN = [drawn(1, (2, 3, 5)), drawn(2, (1, 2, 5, 2)), drawn(3, (1, 3))]
"""Fewer episodes than turns, more, and one alone."""


@pytest.mark.parametrize(("scheme", "by_state"), KINDS)
@pytest.mark.parametrize("lone", ["reward", "zero"])
@pytest.mark.parametrize("ddof", [None, 0, 1])
def test_advantages_are_the_definitions(scheme, by_state, lone, ddof):
    """Every option with every other, on groups of every shape."""
    for given in GIVEN:
        for discount in (Fraction(1), HALF, Fraction(0)):
            wanted = by_hand(scheme, by_state, given, discount, ddof, lone)
            rewards, reached, states = given
            options = {"discount": float(discount), "ddof": ddof, "lone": lone}
            if by_state:
                options["states"] = states
            found = turns(rewards, reached, scheme, **options)
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("library", "dtype", "device"), WAYS)
def test_every_array_library_has_the_same_advantages(library, dtype, device):
    rewards, reached, states = drawn(4, (2, 3, 3))
    make = maker(library, dtype, device)
    for scheme, options in [*((name, {}) for name in TURN_SCHEMES), ("to-go", {"states": states})]:
        wanted = turns(rewards, reached, scheme, **options)
        given = {name: make(array.tolist()) for name, array in options.items()}
        found = turns(make(rewards.tolist()), make(reached.tolist()), scheme, **given)
        assert type(found) is type(make([0.0]))
        np.testing.assert_allclose(host(found), wanted, rtol=0, atol=6 * ROUNDING[dtype])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scheme", TURN_SCHEMES)
def test_equal_returns_have_no_deviation_whatever_rounding_says(scheme, dtype):
    for size in range(2, 14):
        rewards = np.zeros((size, 3), dtype)
        rewards[:, 1] = 0.1
        rewards[:, 2] = 0.2
        if scheme not in ("summed", "to-go", "to-go-mean"):
            rewards[0] = 0, 0, 0.3
        assert not turns(rewards, np.ones((size, 3)), scheme, ddof=1).any()
    tiny = turns(np.array([[0.0], [1e-9]], dtype), np.ones((2, 1)), scheme, ddof=0)
    np.testing.assert_allclose(abs(tiny), 1 if scheme.endswith("mean") else 2, rtol=1e-6)


def test_nothing_past_an_end_is_read():
    rewards, reached, states = drawn(5, (4, 3, 3))
    other = np.where(reached > 0, rewards, np.nan)
    for scheme in TURN_SCHEMES:
        assert np.array_equal(turns(other, reached, scheme), turns(rewards, reached, scheme))
    moved = np.where(reached > 0, states, 0)
    found, wanted = (turns(rewards, reached, "to-go", states=x) for x in (moved, states))
    assert np.array_equal(found, wanted)


def test_whoever_is_alone_keeps_the_return_and_nobody_is_0():
    rewards, reached = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [[1, 1], [1, 0], [0, 0]]
    assert turns(rewards, reached, "to-go").tolist() == [[0.0, 2.0], [0.0, 0.0], [0.0, 0.0]]
    assert turns([[1.0, 2.0]], [[True, True]], "episode").tolist() == [[3.0, 3.0]]
    assert not turns(rewards, np.zeros((3, 2)), "pooled").any()
    assert turns(rewards, reached, "to-go", ddof=1).tolist()[0] == [0.0, 0.0]


R, HERE = np.ones((2, 2)), np.ones((2, 2))
test_what_has_no_turns_is_refused = refusals(
    (lambda: turns(R, HERE, "togo"), "scheme 'togo' is unknown, did you mean to-go"),
    (lambda: turns(R, HERE, discount=1.1), "discount is 1.1: it must be at least 0 and at most 1"),
    (lambda: turns(R, HERE, ddof=2), "ddof is 2: it must be 0, 1 or None"),
    (lambda: turns(R[0], HERE[0]), r"rewards have shape \(2,\): it must be \(..., G, T\)"),
    (lambda: turns(np.ones((0, 2)), np.ones((0, 2))), r"rewards have shape \(0, 2\)"),
    (lambda: turns(R, HERE[:1]), r"reached has shape \(1, 2\): it must have the rewards' shape"),
    (lambda: turns(R, HERE / 2), "reached must be 1 for a turn, 0 past the end"),
    (lambda: turns(R, [[0, 1], [1, 1]]), "reached has a turn after the end of its episode"),
    (lambda: turns(R * np.nan, HERE), "rewards contain NaN or infinity"),
    (lambda: turns(R, HERE, "pooled", states=R), "states: scheme 'pooled' does not take them"),
    (
        lambda: turns(R, HERE, "to-go", states=[["a", "b"]] * 2),
        "states is a list: it must be an array",
    ),
    (
        lambda: turns(R, HERE, "to-go", states=strict.ones((2, 2))),
        "rewards and states must be arrays of one",
    ),
    (
        lambda: turns(R, HERE, "to-go", states=R[0]),
        r"states have shape \(2,\): it must be \(2, 2\)",
    ),
)
