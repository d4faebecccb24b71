"""Labelled tables as bandits: the pass rate asked for, sizes, refusals."""

import numpy as np
import pytest

from tests.support.refusals import refusals, refuses
from ustat_pg.problems import digits_problem, labelled_problem


def table(labels=3, rows=40, seed=0):
    generator = np.random.default_rng(seed)
    names = np.arange(rows) % labels
    return generator.normal(size=(rows, 2)) + 2 * np.eye(labels, 2)[names], names


@pytest.mark.parametrize("rate", [0.4, 0.6, 0.75])
def test_the_pass_rate_is_reached(rate):
    problem = labelled_problem(*table(), pass_rate=rate)
    # Weights are rounded to six places.
    assert problem.objective() == pytest.approx(rate, abs=1e-5)


def test_the_reward_is_one_for_the_label_and_zero_for_others():
    features, names = table()
    problem = labelled_problem(features, names)
    assert (problem.contexts, problem.arms, problem.d) == (40, 3, 9)
    assert np.array_equal(problem.mean_rewards, np.eye(3)[names])
    assert problem.uniform
    right = problem.policy.probs[np.arange(40), names]
    assert np.allclose(problem.moments().value, right, rtol=1e-15)
    assert np.allclose(problem.moments().reward_variance, right * (1 - right), rtol=1e-12)


def test_two_labels_are_two_opposite_arms():
    features, names = table(labels=2)
    problem = labelled_problem(features, names, pass_rate=0.7)
    assert problem.arms == 2
    assert np.array_equal(problem.policy.weights[0], -problem.policy.weights[1])
    assert problem.objective() == pytest.approx(0.7, abs=1e-5)
    # The arm of the second label is the likelier one where that label stands.
    likelier = problem.policy.probs[:, 1] > 0.5
    assert (likelier == names.astype(bool)).mean() > 0.6


def test_labels_may_be_any_values_in_sorted_order():
    features, names = table()
    words = np.array(["a", "b", "c"])[names]
    plain, named = labelled_problem(features, names), labelled_problem(features, words.tolist())
    assert named.digest == plain.digest
    assert labelled_problem(features, 2.5 * names - 7).digest == plain.digest


def test_digits():
    problem = digits_problem()
    assert (problem.contexts, problem.arms, problem.d) == (1797, 10, 650)
    assert problem.objective() == pytest.approx(0.6, abs=1e-5)
    assert problem.uniform
    assert problem.reward_range == (0.0, 1.0)
    # Not all rows alike: some nearly always right, some hardly ever.
    value = problem.moments().value
    assert value.min() < 0.2
    assert value.max() > 0.9
    assert np.unique(np.argmax(problem.mean_rewards, axis=1)).tolist() == list(range(10))


test_refused = refusals(
    ([[0.0], [1.0]], [1, 1], "only one value"),
    ([[0.0], [1.0]], [0, 1, 0], r"labels have shape \(3,\): one per row \(2\)"),
    ([[0.0], [1.0]], [[0], [1]], r"labels have shape \(2, 1\)"),
    of=lambda features, labels: labelled_problem(features, labels),
)


@pytest.mark.parametrize("rate", [0.0, 0.333, 1.0, 1.5, -1.0, float("nan")])
def test_pass_rates_out_of_reach_are_refused(rate):
    said = r"this table allows more than 0\.3333 and less than"
    refuses(said, labelled_problem, *table(rows=42), pass_rate=rate)
