"""Scored pools compared, and made of fewer rollouts."""

from dataclasses import fields, replace

import numpy as np

from ustat_pg.llm.pool import ScoredPool, moment_weights

ARRAYS = tuple(f.name for f in fields(ScoredPool) if f.name not in ("prompts", "config"))


def drawn_tokens(generator, low, high):
    """Random tokens, between ``low`` and ``high`` - 1 of them, none of which ends or pads."""
    return tuple(generator.integers(2, 60, generator.integers(low, high)).tolist())


def same(one, other):
    """Both pools hold equal arrays of the same prompts, made in the same way."""
    for name in ARRAYS:
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert one.prompts == other.prompts
    assert one.config == other.config


def of_rollouts(pool, chosen):
    """The pool of some rollouts of every prompt: sums made anew of its Gram matrix, without sketches."""
    chosen = np.asarray(chosen)
    rewards, gram = pool.rewards[:, chosen], pool.gram[:, chosen[:, None], chosen]
    weights = moment_weights(rewards)
    known = {name: getattr(pool, name) for name in ("squared_norms", "lengths", "token_proxy")}
    return replace(
        pool,
        rewards=rewards,
        gram=gram,
        sums=weights @ gram @ weights.swapaxes(1, 2),
        sketches=None,
        surprise=None,
        surprise_variance=None,
        length_sums=None,
        length_sketches=None,
        **{name: array[:, chosen] for name, array in known.items()},
    )
