"""A verifier that errs, against the bandit whose rewards it gives."""

import numpy as np
import pytest

from tests.support.refusals import refusals
from ustat_pg.engines import enumerate_mse
from ustat_pg.predictions import (
    gradient_covariance,
    gradient_mse,
    verified_moments,
    verifier_effect,
)
from ustat_pg.problems import SoftmaxBandit, load_problem, verified

PROBLEM = SoftmaxBandit.bernoulli(
    [[0.6, 0.3, 0.1], [0.2, 0.5, 0.3]], [[0, 1, 0.5], [1, 0.2, 0]], [0.7, 0.3]
)
RATES = [(1.0, 0.0), (0.9, 0.05), (0.6, 0.6), (0.2, 0.7), (1.0, 0.3)]


@pytest.mark.parametrize("rates", RATES)
@pytest.mark.parametrize("estimator", ["grpo", "std", "vanilla", "oracle"])
def test_closed_forms_are_those_of_the_bandit_that_is_seen(estimator, rates):
    seen, known = verified(PROBLEM, *rates), verified_moments(PROBLEM, *rates)
    found = enumerate_mse(seen, estimator, 3, 2) if estimator != "oracle" else None
    predicted = gradient_mse(known, estimator, 3, 2)
    assert predicted.mse == pytest.approx(gradient_mse(seen, estimator, 3, 2).mse, rel=1e-12)
    if found is not None:
        assert predicted.mse == pytest.approx(found.mse, rel=1e-10)
    covariance = [gradient_covariance(one, estimator, 3, 2) for one in (known, seen)]
    assert np.allclose(*covariance, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize(("estimator", "size", "batch"), [("grpo", 3, 2), ("std", 4, 1)])
def test_noise_over_signal_is_that_of_every_outcome(estimator, size, batch):
    effect = verifier_effect(PROBLEM, 0.9, 0.2, estimator, size, batch)
    assert (effect.estimator, effect.group_size, effect.batch_size) == (estimator, size, batch)
    assert (effect.true_positive_rate, effect.false_positive_rate) == (0.9, 0.2)
    assert effect.signal == pytest.approx(0.7)
    assert np.allclose(effect.pass_rates, 0.2 + 0.7 * PROBLEM.moments().value, rtol=1e-14)
    seen = {"noise_to_signal": verified(PROBLEM, 0.9, 0.2), "without_errors": PROBLEM}
    for name, problem in seen.items():
        found = enumerate_mse(problem, estimator, size, batch)
        wanted = (found.mse - found.squared_bias) / (found.mean @ found.mean)
        assert getattr(effect, name) == pytest.approx(wanted, rel=1e-9), name


def test_a_verifier_that_never_errs_changes_nothing():
    effect = verifier_effect(PROBLEM, 1.0, 0.0)
    assert effect.noise_to_signal == pytest.approx(effect.without_errors, rel=1e-13)
    assert effect.best_group_size == pytest.approx(effect.best_without_errors, rel=1e-13)


@pytest.mark.parametrize(
    ("rates", "says"),
    [
        ((0.9, 0.05), "0.85 times as long"),
        ((0.5, 0.5), "the mean gradient is 0"),
        ((0.1, 0.6), "points in the wrong direction"),
    ],
)
def test_what_is_printed_says_where_it_points(rates, says):
    assert says in str(verifier_effect(PROBLEM, *rates))


test_bad_rates_and_graded_rewards_are_refused = refusals(
    ((PROBLEM, 1.2, 0.0), "true_positive_rate is 1.2: it must be at least 0 and at most 1"),
    ((PROBLEM, 1.0, -0.1), "false_positive_rate is -0.1: it must be at least 0"),
    ((load_problem("ustat:rare"), 0.9, 0.1), "rewards that are 0 or 1"),
    of=lambda arguments: verified_moments(*arguments),
)
