"""Advantages of groups sized by their rewards; by all orders in ``tests/test_independent_plans.py``."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from tests.support.arrays import LIBRARIES
from tests.support.refusals import refusals, refuses
from ustat_pg.estimators import balanced, grpo, sequential, two_stage
from ustat_pg.sampling import Plan
from ustat_pg.testing import assert_unbiased

GRADED = np.array([0.2, 0.9, 0.5, 0.4, 1.0])


def test_a_pilot_alone_is_grpo():
    np.testing.assert_allclose(two_stage(GRADED[:3], pilot=3), grpo(GRADED[:3]))
    np.testing.assert_allclose(sequential(GRADED, plan=lambda z: len(z) == 5), grpo(GRADED))


@pytest.mark.parametrize("words", ["3+2 if mixed", "2,3,5 until 2 successes", "2..5 if 0..0.5"])
def test_counts_and_orders_agree(words):
    """A plan by counts has no orders to go through; a function that says the same has."""
    plan = Plan.parse(words)

    def stop(z):
        chances = dict(zip(plan.looks, (*plan.go_on, (0,) * 6), strict=True)).get(len(z))
        return chances is not None and chances[int(z.sum())] == 0

    for n, k in zip(plan.stops.sizes.tolist(), plan.stops.successes.tolist(), strict=True):
        group = next(
            z
            for z in map(np.array, sorted(set(permutations([1.0] * k + [0.0] * (n - k)))))
            if stop(z) and not any(stop(z[:m]) for m in range(1, n))
        )
        np.testing.assert_allclose(
            sequential(group, plan=plan), sequential(group, plan=stop), atol=1e-12
        )


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_library_and_batches(library):
    xp = pytest.importorskip(library)
    rewards = np.array([[[1.0, 0, 0, 1, 0]], [[0, 1, 1, 1, 1]]])
    for function, options in (
        (two_stage, {"pilot": 3}),
        (sequential, {"plan": "3+2 if mixed"}),
        (balanced, {"outputs": 2, "divisor": "std"}),
    ):
        result = function(xp.asarray(rewards), **options)
        assert isinstance(result, type(xp.asarray(rewards)))
        expected = [[function(row[0], **options)] for row in rewards]
        np.testing.assert_allclose(np.asarray(result), expected, atol=1e-12)


def test_balanced_sub_samples_by_hand():
    z = np.array([0.0, 1, 0, 0, 0, 1, 1, 0])
    result = balanced(z, outputs=4, divisor="rate")
    # Two successes, two failures; centred at 3/8 and divided by it, 8/4 times as large.
    success, failure = (1 - 3 / 8) / (3 / 8) * 2, -2
    assert result == pytest.approx([failure, success, failure, 0, 0, success, 0, 0])
    assert balanced(np.zeros(6), outputs=4).tolist() == [0] * 6
    few = balanced(np.array([0.0, 0, 1, 0]), outputs=4)
    assert few == pytest.approx([-1 / 4, -1 / 4, 3 / 4, -1 / 4])


test_refusals = refusals(
    (lambda: two_stage(GRADED, pilot=1), "pilot is 1"),
    (lambda: two_stage(GRADED, pilot=6), "the pilot alone has 6"),
    (lambda: two_stage(np.array([0.0, 0, 1, 1]), pilot=2), "give groups in the order"),
    (lambda: two_stage(GRADED, pilot=2, trigger="lucky"), "'mixed' or a function"),
    (lambda: sequential(GRADED, plan="3+2 if mixed"), "takes 0 and 1"),
    (lambda: sequential(np.zeros(5), plan="3+2 if mixed"), "stops at 3 outputs"),
    (lambda: sequential(np.array([1.0, 0, 0]), plan="3+2 if mixed"), "draws on at 3 outputs"),
    (lambda: sequential(np.ones(2), plan="1..3 until 1 success"), "may stop at one output"),
    (lambda: sequential(GRADED, plan=lambda z: False), "does not stop after"),
    (lambda: sequential(np.arange(12.0), plan=lambda z: len(z) == 12), "orders of its rewards"),
    (lambda: two_stage(np.arange(40.0), pilot=20, trigger=max), "kinds of pilots"),
    (lambda: balanced(np.zeros(3), outputs=4), "4 outputs or more"),
)


def test_unbiased_under_a_plan_and_not_without_the_weights():
    words = "3+2 if mixed"
    assert_unbiased(lambda z: two_stage(z, pilot=3), plan=words)
    assert_unbiased(
        lambda z: two_stage(z, pilot=3),
        plan=lambda z: len(z) == 3 and z.min() == z.max(),
        group_size=5,
    )

    def surprising(z):
        return len(z) == 2 and z[0] >= z[1]

    assert_unbiased(
        lambda z: sequential(z, plan=lambda y: surprising(y) or len(y) == 4),
        plan=surprising,
        group_size=4,
    )
    with pytest.raises(AssertionError, match="grpo is biased"):
        assert_unbiased(grpo, plan=surprising, group_size=4)
    refuses("draws lots", assert_unbiased, grpo, plan="3+2 if mixed 0.5")
    refuses("of rewards alone", assert_unbiased, grpo, plan=words, layout="minibatch")
