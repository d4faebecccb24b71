"""Cells and estimators: their names, and what is refused."""

import numpy as np
import pytest

from tests.support.refusals import refusals, refuses
from ustat_pg.engines import (
    Distance,
    Draws,
    Estimator,
    GradientCell,
    MomentSums,
    PlanCell,
    SquaredError,
)
from ustat_pg.engines.gradients.cell import estimators_of
from ustat_pg.problems import random_problem
from ustat_pg.validation import InputError


def test_enumerated_means_have_no_error_and_are_not_merged():
    exact = MomentSums.exact(np.array([1.0, 2.0]))
    assert exact.n == 0
    assert not exact.covariance.any()
    assert exact.covariance.shape == (2, 2)
    drawn = MomentSums.of(np.arange(6.0).reshape(3, 2))
    for one, other in ((exact, drawn), (drawn, exact)):
        with pytest.raises(ValueError, match="cannot be merged"):
            one.merge(other)


UNEVEN = random_problem(0, "plain")
EVEN = random_problem(0, "uniform-contexts")


test_cells_that_are_refused = refusals(
    ((None, 2), "problem is None: it must be a SoftmaxBandit"),
    ((UNEVEN, 0), "group size is 0"),
    ((UNEVEN, 2, 0), "batch size is 0"),
    ((UNEVEN, 2, 1, "random"), "design 'random' is unknown"),
    ((UNEVEN, 2, 3, "fixed"), "needs uniform context probabilities"),
    ((UNEVEN, 2, 2, "without-replacement"), "needs uniform context probabilities"),
    ((EVEN, 2, 2, "fixed"), "batch size is 2: design fixed uses .* it must be 3"),
    (
        (EVEN, 2, 4, "without-replacement"),
        "batch size is 4: .* at most the number of contexts, 3",
    ),
    of=lambda arguments: GradientCell(*arguments),
)


def test_a_cells_name_is_its_address():
    assert GradientCell(EVEN, 2).name == f"{EVEN.digest}/G2/B1/iid"


test_estimators_that_are_refused = refusals(
    ({"name": "ppo"}, "estimator 'ppo' is unknown"),
    ({"name": "critic"}, "engines have no critic"),
    ({"name": "constant"}, "requires estimator 'constant'"),
    ({"name": "grpo", "constant": 0.5}, "requires estimator 'constant'"),
    ({"name": "constant", "constant": "half"}, "constant is not an array of numbers"),
    of=lambda arguments: Estimator(**arguments),
)


def draws():
    contexts = np.array([[0, 2], [1, 1]])
    rewards = np.random.default_rng(0).normal(size=(2, 2, 4))
    return Draws(contexts, np.zeros((2, 2, 4), int), rewards, np.ones((2, 2, 4)))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda r, _: r[..., 0], r"own returned shape \(2, 2\) for rewards \(2, 2, 4\)"),
        (lambda r, _: r.mean(), r"own returned shape \(\)"),
        (lambda r, _: r * np.nan, "advantages of own holds nan"),
        (lambda r, _: r / 0.0, "advantages of own holds"),
    ],
)
def test_functions_that_are_refused(function, message):
    with np.errstate(divide="ignore"), pytest.raises(InputError, match=message):
        Estimator("own", function=function).advantages(UNEVEN, draws())


def test_two_functions_are_two_estimators():
    """A user's grpo compared with the library's must not be the library's compared with itself."""

    def wrong(rewards, _):
        return 2 * rewards

    ours, theirs = Estimator("grpo"), Estimator("grpo", function=wrong)
    assert len(estimators_of([Distance(ours, theirs)])) == 2
    other = Estimator("own", function=lambda r, _: r)
    assert (
        len(estimators_of([SquaredError(other), SquaredError(Estimator("own", function=wrong))]))
        == 2
    )


def test_engines_by_name():
    cell, quantity = GradientCell(UNEVEN, 2), SquaredError(Estimator("grpo"))
    for name in ("exact", "reference", "cpu"):
        sums = cell.measure(name, [quantity], replications=10)
        assert sums.n == (0 if name == "exact" else 10)
    # Where one engine alone draws, it takes the place of any other.
    names = ("exact", "reference", "cpu")
    plan = PlanCell.of(random_problem(0, "binary"), "2+1 if mixed")
    assert [cell.engine(name) for name in names] == [*names]
    assert {plan.engine(name) for name in names} == {"reference"}
    for name in ("gpu", "base", "", "Exact"):
        refuses("choose one of exact, reference, cpu", cell.measure, name, [quantity])
