"""Ranges of quantities: every outcome of a minibatch lies inside."""

import numpy as np
import pytest

from tests.support.estimators import WITH_RANGE
from ustat_pg.engines import (
    Distance,
    Estimator,
    GradientCell,
    Projection,
    SquaredError,
    SquaredProjection,
)
from ustat_pg.engines.gradients import exact, reference
from ustat_pg.engines.gradients.cell import memory_of
from ustat_pg.problems import KINDS, SoftmaxBandit, random_problem
from ustat_pg.validation import InputError

MEDIAN = Estimator(
    "median",
    function=lambda z, _: z - np.median(z, axis=-1, keepdims=True),
    within_rewards=True,
)
ESTIMATORS = [
    *(each for each in WITH_RANGE if not each.memory),
    Estimator("constant", constant=-5.0),
    MEDIAN,
]
MEMORIES = [SquaredError(each) for each in WITH_RANGE if each.memory]
GRPO = Estimator("grpo")
QUANTITIES = [
    *(SquaredError(e) for e in ESTIMATORS),
    *(Distance(e, GRPO) for e in ESTIMATORS),
    *(Projection(e, j) for e in ESTIMATORS for j in range(2)),
    *(SquaredProjection(e, j) for e in ESTIMATORS for j in range(2)),
]


def check(problem, size, batch, quantities=QUANTITIES):
    cell = GradientCell(problem, size, batch)
    lowest, highest = np.inf, -np.inf
    for draws, _ in exact.minibatches(cell, memory=memory_of(quantities)):
        values = reference.values_of(cell, quantities, draws)
        lowest = np.minimum(lowest, values.min(axis=0))
        highest = np.maximum(highest, values.max(axis=0))
    share = {}
    scale = np.sqrt(problem.policy.squared_norms.max()) * np.abs(problem.outcomes.rewards).max()
    for quantity, low, high in zip(quantities, lowest, highest, strict=True):
        least, greatest = cell.range(quantity)
        assert np.isfinite([least, greatest]).all()
        power = 1 if isinstance(quantity, Projection) else 2
        slack = 1e-12 * max(abs(least), abs(greatest)) + (1e-15 * scale) ** power
        assert least - slack <= low <= high <= greatest + slack, quantity.label
        share[quantity.label] = max(abs(low), abs(high)) / greatest if greatest else 1.0
    return share


@pytest.mark.parametrize("kind", KINDS)
def test_every_outcome_lies_in_the_range(kind):
    for seed in range(3):
        check(random_problem(seed, kind, contexts=2), 2, 1)
        check(random_problem(seed, kind, contexts=2), 3, 1)
    check(random_problem(3, kind, contexts=2), 2, 2)


def test_the_best_of_k_with_graded_rewards():
    """Two arms with opposite scores and a third without one: an error comes to a third of its bound."""
    names = ("pass-at-k:2", "gain-at-k:2", "gain-at-k:3")
    quantities = [SquaredError(Estimator(name)) for name in names]
    features, rewards = [[[1.0], [-1.0], [0.0]]], [[[3.0], [-2.0], [0.5]]]
    problem = SoftmaxBandit.linear([1.0], features, [0.0], rewards, np.ones((1, 3, 1)))
    assert min(check(problem, 3, 1, quantities).values()) > 1 / 9.1


def test_one_output_a_prompt():
    alone = [q for q in QUANTITIES if all(e.record.least_group == 1 for e in q.estimators)]
    for kind in ("plain", "linear", "negative-rewards"):
        check(random_problem(0, kind), 1, 2, alone)


@pytest.mark.parametrize("size", [1, 2])
def test_groups_with_a_memory(size):
    usable = [q for q in MEMORIES if q.estimator.record.least_group <= size]
    for kind in ("plain", "negative-rewards"):
        check(random_problem(1, kind), size, 1, usable)


def test_larger_groups_of_few_outcomes():
    check(random_problem(0, "two-arms", contexts=2), 7, 1)


@pytest.mark.parametrize(
    "rewards",
    [
        [[[1.0], [0.0], [0.0]]],
        [[[-3.0], [-1.0], [-2.0]]],
        [[[100.0], [101.0], [100.0]]],
        [[[0.0], [0.0], [7.0]]],
    ],
)
def test_corners_of_rewards_and_of_zero_scores(rewards):
    """Features alike in two arms and far off in the third; scores that vanish."""
    law = np.ones((1, 3, 1))
    check(SoftmaxBandit.linear([1.0], [[[1.0], [1.0], [9.0]]], [0.2], rewards, law), 3, 1)
    check(SoftmaxBandit.linear([1.0], [[[0.0], [0.0], [0.0]]], [0.2], rewards, law), 3, 1)
    check(SoftmaxBandit.tabular([1.0], [[9.0, 0.0, -9.0]], rewards, law), 3, 1)


@pytest.mark.parametrize("rewards", [[100.0, 101.0, 100.0], [0.0, 1.0, -1.0]])
def test_the_norm_weighted_range_covers_no_baseline_and_the_farthest_one(rewards):
    """The first arm's score is zero: beside it alone the baseline is 0, not a mean of rewards."""
    problem = SoftmaxBandit.linear(
        [1.0], [[[0.0], [1.0], [-1.0]]], [0.0], np.reshape(rewards, (1, 3, 1)), np.ones((1, 3, 1))
    )
    assert problem.policy.squared_norms.tolist() == [[0.0, 1.0, 1.0]]
    quantities = [SquaredError(Estimator("norm-weighted")), Projection(Estimator("norm-weighted"))]
    check(problem, 2, 1, quantities)
    check(problem, 3, 1, quantities)


def test_an_arm_that_is_never_taken_does_not_widen_the_range():
    one = SoftmaxBandit.tabular([1.0], [[0.0, 1.0]], [[[1.0], [0.0]]], np.ones((1, 2, 1)))
    two = SoftmaxBandit.tabular(
        [1.0], [[0.0, 1.0, -1e4]], [[[1.0], [0.0], [1e6]]], np.ones((1, 3, 1))
    )
    for name in ("grpo", "vanilla", "oracle", "norm-weighted"):
        quantity = SquaredError(Estimator(name))
        assert GradientCell(two, 2).range(quantity) == pytest.approx(
            GradientCell(one, 2).range(quantity)
        )


def test_the_range_is_not_idle():
    """Within a factor of what occurs; a range of twice the width doubles a claim's cost."""
    share = check(random_problem(0, "two-arms", contexts=2), 2, 1)
    # For a function only the range of its baseline is known.
    tight = [
        part
        for label, part in share.items()
        if not label.startswith("distance") and "median" not in label
    ]
    assert tight
    assert min(tight) > 0.05


@pytest.mark.parametrize("name", ["own", "grpo"])
def test_a_function_has_no_range_whatever_its_name(name):
    big = Estimator(name, function=lambda z, _: 1e6 * z)
    with pytest.raises(InputError, match=f"no range is known for {name}: .* within_rewards=True"):
        GradientCell(random_problem(0), 2).range(SquaredError(big))
