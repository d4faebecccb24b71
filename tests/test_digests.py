"""Digests are the addresses of draws: their bytes must never change."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from ustat_pg.digests import digest


def test_the_bytes_are_text_then_names_shapes_and_entries():
    arrays = {"theta": [1.0, 2.0], "rewards": np.ones((1, 2))}
    written = b"words" + b"theta(2,)" + np.array([1.0, 2.0], "<f8").tobytes()
    written += b"rewards(1, 2)" + np.ones(2, "<f8").tobytes()
    assert digest("words", arrays) == hashlib.sha256(written).hexdigest()[:16]


def test_an_array_without_a_name_is_its_entries():
    array = np.arange(6.0).reshape(2, 3)
    assert digest(array) == hashlib.sha256(array.tobytes()).hexdigest()[:16]


@pytest.mark.parametrize("array", [np.arange(6).reshape(2, 3), np.arange(6.0).reshape(3, 2).T.T])
def test_types_and_strides_do_not_matter(array):
    assert digest({"a": array}) == digest({"a": np.ascontiguousarray(array, dtype=float)})


def test_shapes_names_and_order_do():
    ones = np.ones(2)
    kinds = [
        {"a": ones, "b": ones},
        {"b": ones, "a": ones},
        {"a": ones},
        {"a": ones[None]},
        {"a": 2 * ones},
    ]
    assert len({digest(kind) for kind in kinds}) == len(kinds)
