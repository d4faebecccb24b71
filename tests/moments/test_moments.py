"""The record of moments: its quantities at their edges, and what it refuses."""

import numpy as np
import pytest

from tests.support.moments import record
from tests.support.refusals import refusals, refuses
from ustat_pg.predictions.closed_forms import baseline_square
from ustat_pg.problems import SoftmaxBandit, random_problem


def test_where_no_score_moves_the_optimal_baseline_is_the_value():
    zero = np.array([0.0, 4.0])
    m = record(fisher_trace=zero, norm_advantage=np.array([0.0, -2.0]))
    assert m.optimal_baseline.tolist() == [0.5, 1.5]


@pytest.mark.parametrize("context", [-2, -1, 2, 7])
def test_a_context_that_is_not_there_is_refused(context):
    refuses("context", record().at, context)


SQUARES = ("reward_variance", "fisher_trace", "norm_squared_advantage", "gradient_sq")


test_refused = refusals(
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
    of=lambda name, wrong: record(**{name: wrong}),
)


def test_a_prompt_always_solved_has_no_noise():
    sure = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [1.0]]], [[[1.0], [1.0]]])
    m = sure.moments()
    assert m.reward_variance.tolist() == [0.0]
    assert m.norm_squared_advantage.tolist() == [0.0]
    assert m.optimal_baseline.tolist() == [1.0]


PROBLEM = random_problem(5, "plain")
KNOWN = PROBLEM.moments()


def expected(of):
    """The mean of a function of score and reward at each context, over its outcomes."""
    found, outcomes = [], PROBLEM.outcomes
    for x in range(PROBLEM.contexts):
        scores = PROBLEM.policy.scores(x)[outcomes.arms[x]]
        values = [of(s, z, x) for s, z in zip(scores, outcomes.rewards[x], strict=True)]
        found.append(np.tensordot(outcomes.probs[x], np.array(values), 1))
    return np.array(found)


def test_every_moment_is_the_mean_over_outcomes():
    squares = KNOWN.norm_squared_advantage, KNOWN.norm_advantage, KNOWN.fisher_trace

    def advantage(z, x):
        return z - KNOWN.value[x]

    def about(baseline):
        return baseline_square(*squares, baseline - KNOWN.value)

    for found, of in (
        (KNOWN.value, lambda s, z, x: z),
        (KNOWN.reward_variance, lambda s, z, x: advantage(z, x) ** 2),
        (KNOWN.fisher_trace, lambda s, z, x: s @ s),
        (KNOWN.norm_advantage, lambda s, z, x: s @ s * advantage(z, x)),
        (KNOWN.norm_squared_advantage, lambda s, z, x: s @ s * advantage(z, x) ** 2),
        (KNOWN.norm_reward, lambda s, z, x: s @ s * z),
        (about(0.0), lambda s, z, x: s @ s * z**2),
        (about(0.37), lambda s, z, x: s @ s * (z - 0.37) ** 2),
        (about(KNOWN.value + 1), lambda s, z, x: s @ s * (advantage(z, x) - 1) ** 2),
    ):
        np.testing.assert_allclose(found, expected(of), rtol=1e-12, atol=1e-14)
    gradients = expected(lambda s, z, x: s * z)
    np.testing.assert_allclose(KNOWN.gradient_sq, (gradients**2).sum(axis=1), rtol=1e-12)
    np.testing.assert_allclose(
        KNOWN.optimal_baseline, KNOWN.norm_reward / KNOWN.fisher_trace, rtol=1e-12
    )
    rewards = PROBLEM.outcomes.rewards[PROBLEM.outcomes.probs > 0]
    assert KNOWN.reward_range == (rewards.min(), rewards.max())
    mean = KNOWN.context_probs @ gradients
    assert KNOWN.mean_gradient_sq == pytest.approx(mean @ mean, rel=1e-12)
    for weights in (np.arange(1.0, 1 + PROBLEM.contexts), np.full(PROBLEM.contexts, 0.6)):
        weighted = (KNOWN.context_probs * weights) @ gradients
        np.testing.assert_allclose(KNOWN.weighted_gradient(weights), weighted, rtol=1e-12)
        np.testing.assert_allclose(
            KNOWN.mean_gradient(weights), (weighted @ weighted, weighted @ mean), rtol=1e-12
        )


def test_matrices_are_means_of_outer_products():
    parts = list(KNOWN.matrices())
    for name, of in (
        ("gradient", lambda s, z, x: s * z),
        ("fisher", lambda s, z, x: np.outer(s, s)),
        ("advantage", lambda s, z, x: np.outer(s, s) * (z - KNOWN.value[x])),
        ("squared_advantage", lambda s, z, x: np.outer(s, s) * (z - KNOWN.value[x]) ** 2),
    ):
        found = [getattr(part, name) for part in parts]
        np.testing.assert_allclose(found, expected(of), rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("context", range(PROBLEM.contexts))
def test_one_prompt_alone_has_its_own_moments(context):
    alone, known = KNOWN.at(context), PROBLEM.restrict([context]).moments()
    assert len(alone) == 1
    for name in ("context_probs", "value", "reward_variance", "fisher_trace", "gradient_sq"):
        np.testing.assert_allclose(getattr(alone, name), getattr(known, name), rtol=1e-12)
    assert alone.mean_gradient_sq == pytest.approx(known.mean_gradient_sq, rel=1e-12)
    (own,), wanted = alone.matrices(), list(KNOWN.matrices())[context]
    np.testing.assert_array_equal(own.fisher, wanted.fisher)
