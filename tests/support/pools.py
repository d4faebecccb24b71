"""Scored pools compared."""

from dataclasses import fields

import numpy as np

from ustat_pg.llm.pool.scored import ScoredPool

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
