"""The running table: by hand, unbiased by enumeration, and what it refuses."""

from copy import deepcopy
from itertools import product

import numpy as np
import pytest

from simulations import Suite
from tests.support.arrays import ROUNDING, WAYS, host, maker
from tests.support.refusals import refuses
from ustat_pg.engines import Estimator, GradientCell, Projection
from ustat_pg.engines.gradients.reference import draw
from ustat_pg.estimators import RunningTable, bayes

FIRST, SECOND = [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]], [[0.0, 0.0, 0.0]]
NORMS, LATER = [[1.0, 2.0, 3.0], [4.0, 0.0, 2.0]], [[2.0, 1.0, 5.0]]


@pytest.fixture(scope="module")
def uneven():
    """Prompts of pass rates .08, .4 and .9."""
    return Suite("smoke").uneven.problem


def estimator_of(running):
    return "loo-table:" + ",".join(repr(float(value)) for value in running.table)


@pytest.mark.parametrize(("library", "dtype", "device"), WAYS)
def test_two_steps_by_hand(library, dtype, device):
    make = maker(library, dtype, device)
    running = RunningTable(3, prior=(1.0, 2.0), keep=0.5)
    rewards = make(FIRST)
    result = running.advantages(rewards, make(NORMS))
    assert type(result) is type(rewards)
    assert (result.dtype, result.device) == (rewards.dtype, rewards.device)
    # Bayes: (k + 1)/5 beside k successes.
    expected = [[0.8, -0.4, -0.4], [0.6, 0.6, -0.6]]
    np.testing.assert_allclose(host(result), expected, rtol=0, atol=ROUNDING[dtype])
    # The mean norm is 2. Beside 0: norm 1, won; beside 1: 2 and 3, lost, 4 and 0, won; beside 2: 2, lost.
    expected = [(2 * 1 + 1) / (2 * 5 + 1), (2 * 2 + 4) / (2 * 5 + 9), 2 * 3 / (2 * 5 + 2)]
    np.testing.assert_allclose(running.table, expected, rtol=1e-15)
    running.update(make(SECOND), make(LATER))
    # Half of that, and 8 beside 0, lost; the mean norm is (6 + 8)/(3 + 3).
    unit = 14 / 6
    expected = [
        (unit * 1 + 0.5) / (unit * 5 + 8.5), (unit * 2 + 2) / (unit * 5 + 4.5),
        unit * 3 / (unit * 5 + 1),
    ]  # fmt: skip
    np.testing.assert_allclose(running.table, expected, rtol=1e-15)


def test_at_the_start_it_is_bayes_and_without_norms_all_weigh_1():
    rewards = np.array(list(product([0.0, 1.0], repeat=4)))
    running = RunningTable(4, prior=(0.5, 3))
    result = deepcopy(running).advantages(rewards)
    np.testing.assert_allclose(
        result, bayes(rewards, successes=0.5, failures=3), rtol=0, atol=1e-15
    )
    by_norms = deepcopy(running)
    for _ in range(2):
        running.update(rewards)
        by_norms.update(rewards, 7e9 * np.ones_like(rewards))
    np.testing.assert_allclose(running.table, by_norms.table, rtol=1e-14)


def test_batches_of_any_shape_teach_what_their_groups_do_and_no_group_teaches_itself():
    rng = np.random.default_rng(5)
    rewards, norms = rng.integers(0, 2, (3, 2, 4)) * 1.0, rng.random((3, 2, 4))
    whole, one_by_one, forgetful = RunningTable(4), RunningTable(4), RunningTable(4, keep=0.9)
    before = whole.table
    result = whole.advantages(rewards, norms)
    others = (rewards.sum(axis=-1, keepdims=True) - rewards).astype(int)
    np.testing.assert_allclose(result, rewards - before[others], rtol=0, atol=1e-15)
    for group, own in zip(rewards.reshape(-1, 4), norms.reshape(-1, 4), strict=True):
        one_by_one.update(group, own)
        forgetful.update(group, own)
    np.testing.assert_allclose(whole.table, one_by_one.table, rtol=1e-14)
    assert np.abs(whole.table - forgetful.table).max() > 0.01
    # Nothing to learn, or scores of 0: Bayes still.
    for empty in (np.zeros((0, 4)), np.zeros((2, 4))):
        idle = RunningTable(4)
        idle.update(empty, np.zeros_like(empty))
        np.testing.assert_allclose(idle.table, before, rtol=1e-15)


def test_half_precision_tensors_add_up_without_loss():
    torch = pytest.importorskip("torch")
    running, rewards = RunningTable(2), torch.zeros((3000, 2), dtype=torch.bfloat16)
    rewards[:1001, 0] = 1.0
    assert running.advantages(rewards).dtype == torch.bfloat16
    # Beside a failure: 1001 won and 3998 lost. Beside a success: 1001 lost.
    np.testing.assert_allclose(running.table, [1002 / (4999 + 3), 2 / (1001 + 3)], rtol=1e-12)


@pytest.mark.parametrize("by_norms", [False, True])
@pytest.mark.parametrize(("group_size", "past"), [(1, 5), (2, 0), (2, 9), (3, 40)])
def test_whatever_the_past_the_mean_of_the_next_estimate_is_the_gradient(
    uneven, group_size, past, by_norms
):
    running = RunningTable(group_size, keep=0.9)
    drawn = draw(GradientCell(uneven, group_size), seed=past, first=0, replications=max(past, 1))
    for step in range(past):
        norms = drawn.squared_norms[step] if by_norms else None
        running.update(drawn.rewards[step], norms)
    cell = GradientCell(uneven, group_size)
    itself = Estimator("running", function=next_estimate(running, by_norms, late=False))
    asked = [Projection(each, 0) for each in (itself, Estimator(estimator_of(running)))]
    off = cell.measure("exact", asked).mean
    np.testing.assert_allclose(off, 0, atol=1e-14)
    if group_size > 1:
        learned_first = Estimator("late", function=next_estimate(running, by_norms, late=True))
        assert abs(cell.measure("exact", [Projection(learned_first, 0)]).mean[0]) > 1e-4


def next_estimate(running, by_norms, late):
    """The advantages of one more group, by a copy; late: after the table has learned from it."""

    def function(rewards, draws):
        norms = np.broadcast_to(draws.squared_norms, rewards.shape)
        size, rows = rewards.shape[-1], []
        for group, own in zip(rewards.reshape(-1, size), norms.reshape(-1, size), strict=True):
            own, table = (own if by_norms else None), deepcopy(running)
            if late:
                table.update(group, own)
            rows.append(table.advantages(group, own))
        return np.reshape(rows, rewards.shape)

    return function


@pytest.mark.parametrize(
    ("said", "rewards", "norms"),
    [
        ("rewards that are 0 or 1", [[0.5, 1.0]], None),
        ("has 3 rewards: the running table is for groups of 2", [[0.0, 1.0, 1.0]], None),
        ("NaN or infinity", [[np.nan, 1.0]], None),
        ("at every step or at no step", [[0.0, 1.0]], None),
        (r"shape \(2,\)", [[0.0, 1.0]], [1.0, 1.0]),
        ("must not be negative", [[0.0, 1.0]], [[-1.0, 1.0]]),
        ("NaN or infinity", [[0.0, 1.0]], [[np.inf, 1.0]]),
    ],
)
def test_what_a_step_refuses_leaves_the_table_as_it_was(said, rewards, norms):
    running = RunningTable(2, keep=0.5)
    running.update(np.array([1.0, 0.0]), np.array([1.0, 2.0]))
    before = running.table
    norms = norms if norms is None else np.array(norms)
    for method in (running.advantages, running.update):
        refuses(said, method, np.array(rewards), norms)
    np.testing.assert_array_equal(running.table, before)
