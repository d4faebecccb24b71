"""Comparison of scored pools."""

from __future__ import annotations

import numpy as np

ARRAYS = (
    "rewards",
    "squared_norms",
    "sums",
    "lengths",
    "token_proxy",
    "sketches",
    "surprise",
    "surprise_variance",
    "gram",
)


def same(one, other):
    """Both pools hold equal arrays of the same prompts, made in the same way."""
    for name in ARRAYS:
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert one.prompts == other.prompts
    assert one.config == other.config
