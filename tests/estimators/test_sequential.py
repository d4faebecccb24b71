"""Advantages of groups sized by their rewards; by all orders in ``tests/test_independent_plans.py``."""

from itertools import permutations, product

import numpy as np
import pytest

from tests.support.arrays import LIBRARIES
from tests.support.refusals import refusals, refuses
from ustat_pg.estimators import balanced, grpo, sequential, two_stage
from ustat_pg.sampling.plans import Plan
from ustat_pg.testing import assert_unbiased

GRADED = np.array([0.2, 0.9, 0.5, 0.4, 1.0])


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


CLOSE = np.array([0.501, 0.504, 0.2, 0.501, 0.1995, 1 / 3])
"""Rewards that agree to two digits and are not equal."""


def mean_over(rewards, of_order, **options):
    """The mean over the orders of the outputs of what an order gives each output, None those left out."""
    kept = []
    for order in permutations(range(len(rewards))):
        given = of_order(rewards[list(order)], **options)
        if given is not None:
            advantages = np.empty(len(rewards))
            advantages[list(order)] = given
            kept.append(advantages)
    return np.mean(kept, axis=0)


def test_two_stages_average_over_the_pilots_that_ask_for_more():
    def wide(pilot):
        return pilot.max() - pilot.min() > 0.002

    def of_pilot(order, first, trigger):
        pilot = order[:first]
        return np.append(grpo(pilot), [0.0] * (len(order) - first)) if trigger(pilot) else None

    for pilot in (2, 3):
        # Pilots of three outputs too: 0.2 and 0.1995 are two rewards, and a pilot of 0.501 twice stops.
        expected = mean_over(CLOSE, of_pilot, first=pilot, trigger=wide) * len(CLOSE) / pilot
        drawn = CLOSE[[2, 0, 1, 3, 4, 5]]
        result = two_stage(drawn, pilot=pilot, trigger=wide)
        np.testing.assert_allclose(result, expected[[2, 0, 1, 3, 4, 5]], rtol=1e-12)
        mixed = mean_over(CLOSE, of_pilot, first=pilot, trigger=lambda z: z.max() > z.min())
        result = two_stage(CLOSE, pilot=pilot)
        np.testing.assert_allclose(result, mixed * len(CLOSE) / pilot, rtol=1e-12)


@pytest.mark.parametrize("fair", [True, False])
def test_a_plan_by_a_function_averages_over_the_orders_in_which_it_stops(fair):
    """One that stops at two outputs in some orders, and where rewards that agree to two digits differ."""

    def stop(z):
        return len(z) == len(CLOSE) or (not fair and len(z) == 2 and abs(z[0] - z[1]) < 0.002)

    def kernel(order):
        if any(stop(order[:m]) for m in range(2, len(order))):
            return None
        half = (order[0] - order[1]) / 2
        return np.array([half, -half, *[0.0] * (len(order) - 2)]) * len(order)

    expected = mean_over(CLOSE, kernel)
    np.testing.assert_allclose(sequential(CLOSE, plan=stop), expected, rtol=1e-12)
    assert np.allclose(expected, grpo(CLOSE), rtol=1e-12) == fair


@pytest.mark.parametrize("divisor", ["none", "rate", "std"])
@pytest.mark.parametrize("outputs", [2, 4, 6])
def test_balanced_sub_samples_of_every_size(outputs, divisor):
    """All groups of seven: the first successes and failures, half each, filled up by the other kind."""
    groups = np.array(list(product((0.0, 1.0), repeat=7)))
    result = balanced(groups, outputs=outputs, divisor=divisor)
    for group, found in zip(groups, result, strict=True):
        won, lost = int(group.sum()), int(7 - group.sum())
        successes = max(min(won, outputs // 2), outputs - lost)
        chosen = [*np.flatnonzero(group == 1)[:successes]]
        chosen += [*np.flatnonzero(group == 0)[: outputs - successes]]
        expected = np.zeros(7)
        if won and lost:
            by = {"none": 1.0, "rate": group.mean(), "std": group.std(ddof=1)}[divisor]
            expected[chosen] = (group[chosen] - group.mean()) / by * 7 / outputs
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


test_refusals = refusals(
    (lambda: two_stage(GRADED, pilot=1), "pilot is 1"),
    (lambda: two_stage(GRADED, pilot=6), "but the pilot has 6"),
    (lambda: two_stage(np.array([0.0, 0, 1, 1]), pilot=2), "give outputs in the order"),
    (lambda: two_stage(GRADED, pilot=2, trigger="lucky"), "'mixed' or a function"),
    (lambda: sequential(GRADED, plan="3+2 if mixed"), "needs 0 and 1"),
    (lambda: sequential(np.zeros(5), plan="3+2 if mixed"), "stops at 3 outputs"),
    (lambda: sequential(np.array([1.0, 0, 0]), plan="3+2 if mixed"), "draws on at 3 outputs"),
    (lambda: sequential(np.ones(2), plan="1..3 until 1 success"), "may stop at one output"),
    (lambda: sequential(GRADED, plan=lambda z: False), "does not stop after"),
    (lambda: sequential(np.arange(12.0), plan=lambda z: len(z) == 12), "orders of its rewards"),
    (lambda: two_stage(np.arange(40.0), pilot=20, trigger=max), "kinds of pilots"),
    (lambda: balanced(np.zeros(3), outputs=4), "at least 4 outputs"),
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
    refuses("is random", assert_unbiased, grpo, plan="3+2 if mixed 0.5")
    refuses("a function of rewards only", assert_unbiased, grpo, plan=words, layout="minibatch")
