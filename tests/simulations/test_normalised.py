"""Lemma 11's experiment: what its checks allow for, and the problems that it asks."""

from __future__ import annotations

import pytest

from simulations import Suite
from simulations.normalised import LARGE, distance, error
from simulations.shared.peers import later_terms
from ustat_pg.predictions import normalised_distance, normalised_limit


@pytest.mark.parametrize("seed", [0, 1, 31337])
def test_what_is_left_beyond_a_limit_is_known_to_a_small_error(seed):
    for entry in Suite("full", seed).lopsided:
        moments = entry.problem.moments()
        for scaled, limit in (
            (lambda size, entry=entry: size * distance(entry, size)[1], normalised_distance),
            (lambda size, entry=entry: error(entry, size)[1], normalised_limit),
        ):
            left, own = later_terms(scaled, LARGE, 4)
            assert abs(scaled(LARGE) - left - limit(moments)[0]) < own, entry.name
            assert own < 1e-2 * normalised_limit(moments)[0], entry.name
