"""The record of moments: its quantities at their edges, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.moments import record
from tests.support.refusals import refuses
from ustat_pg.problems import SoftmaxBandit


def test_a_centred_moment_is_not_negative_for_rounding():
    m = record(norm_squared_advantage=np.array([np.nextafter(0.125, 0.0), 12.0]))
    assert m.centred(m.optimal_baseline).tolist() == [0.0, 11.0]


def test_where_no_score_moves_the_optimal_baseline_is_the_value():
    zero = np.array([0.0, 4.0])
    m = record(fisher_trace=zero, norm_advantage=np.array([0.0, -2.0]))
    assert m.optimal_baseline.tolist() == [0.5, 1.5]


@pytest.mark.parametrize("context", [-2, -1, 2, 7])
def test_a_context_that_is_not_there_is_refused(context):
    refuses("context", record().at, context)


SQUARES = ("reward_variance", "fisher_trace", "norm_squared_advantage", "gradient_sq")


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        *(
            (name, wrong, f"{name} {words}")
            for name in ("value", "norm_advantage", *SQUARES)
            for wrong, words in (
                (np.ones(3), "has 3 entries: it must have one per context"),
                (np.array([1.0, np.nan]), "holds nan at"),
            )
        ),
        *(
            (name, np.array([1.0, -1e-3]), f"{name} holds -0.001: all entries must be at least 0")
            for name in SQUARES
        ),
        ("context_probs", np.array([0.25, 0.5]), "context_probs sums to"),
        *(("reward_range", wrong, "reward_range") for wrong in ((1, 0), (np.nan, 1), (0, np.nan))),
        *(("mean_gradient_sq", wrong, "mean_gradient_sq") for wrong in (np.nan, np.inf, -1.0)),
    ],
)
def test_refused(name, wrong, message):
    refuses(message, record, **{name: wrong})


def test_a_prompt_always_solved_has_no_noise():
    sure = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [1.0]]], [[[1.0], [1.0]]])
    m = sure.moments()
    assert m.reward_variance.tolist() == [0.0]
    assert m.norm_squared_advantage.tolist() == [0.0]
    assert m.optimal_baseline.tolist() == [1.0]
