"""Lemma 11's experiment: what its checks allow for, and the problems that it asks."""

from __future__ import annotations

import numpy as np
import pytest

from simulations import Suite, claim, curves
from simulations.normalised import LARGE, distance, error
from simulations.problems.limits import later_terms
from ustat_pg.predictions import normalised_distance, normalised_limit
from ustat_pg.problems import SoftmaxBandit


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


def prompts(rates, rewards=(1.0, 0.0, 0.0)):
    """Equally likely prompts of three arms, the first with these probabilities."""
    rates = np.array(rates)
    probs = np.column_stack([rates, 0.7 * (1 - rates), 0.3 * (1 - rates)])
    values = np.tile(rewards, (len(rates), 1))[..., None]
    uniform = np.full(len(rates), 1 / len(rates))
    return SoftmaxBandit.tabular(uniform, np.log(probs), values, np.ones_like(values))


@pytest.mark.parametrize(
    ("problem", "asked"),
    [
        (prompts([0.2, 0.5, 0.8]), {"problem[0]", "problem[2]"}),
        (prompts([0.25]), {"problem"}),
        (prompts([0.01, 0.45, 0.97]), set()),
        (prompts([0.2, 0.8], (1.0, 0.5, 0.0)), set()),
        # Equal rewards of 1: no gradient, and pass rates of 1.
        (prompts([0.2, 0.8], (1.0, 1.0, 1.0)), set()),
    ],
)
def test_ones_own_problem_is_asked_at_prompts_whose_limits_show(problem, asked):
    suite = Suite("smoke", user=problem)
    checks = claim("normalised", suite).checks
    assert {check.name.split()[0] for check in checks} == asked
    assert {check.origin for check in checks} <= {"user"}
    assert {point.at["problem"] for point in curves("normalised", suite)} == asked
