"""The verdicts' error rates, over seeds that nobody chose (2,000 seeds: benchmarks/false_alarms.md)."""

import pytest
from scipy.stats import binomtest

from simulations.evidence import RivalVerdict, Verdict, decide, equal, mean_of
from simulations.mse import rivals
from simulations.problems import Suite, mse_of
from ustat_pg.engines import GradientCell
from ustat_pg.predictions import gradient_mse
from ustat_pg.problems import SoftmaxBandit

SEEDS = 2000
QUANTITY = mse_of("grpo")
PROBLEMS = {
    "skewed": Suite().skewed.problem,
    "rarely-solved": SoftmaxBandit.bernoulli([0.97, 0.01, 0.01, 0.01], [0, 1, 0, 0]),
}


def pilots_of(cell):
    """The sums of other draws."""
    pilot = cell.measure("cpu", (QUANTITY,), seed=10**9, replications=8192)
    return {cell.name: ((QUANTITY,), pilot)}


def verdicts(problem, alpha, replications, truth=1.0, seeds=SEEDS):
    """The decider's verdicts on grpo's MSE times ``truth``, seed by seed."""
    cell, moments = GradientCell(problem, 2), problem.moments()
    value = gradient_mse(moments, "grpo", 2).mse
    statement = equal(truth * value, {"G^2": rivals(moments, 2)["G^2 for G(G-1)"]}, scale=value)
    functional, pilots = mean_of(cell, QUANTITY), pilots_of(cell)
    for seed in range(seeds):
        block = cell.measure("cpu", (QUANTITY,), seed=seed, replications=replications)
        result = functional.evidence({cell.name: ((QUANTITY,), block)}, alpha, pilots)
        yield decide(statement, result)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_false_alarms_stay_below_their_rate(problem, alpha):
    alarms = sum(
        decision.verdict == Verdict.REFUTED for decision in verdicts(PROBLEMS[problem], alpha, 300)
    )
    assert binomtest(alarms, SEEDS, alpha, "greater").pvalue > 1e-3


def test_a_claim_wrong_by_a_third_is_refuted_every_time():
    wrong = list(verdicts(PROBLEMS["skewed"], 0.01, 4000, truth=1.33, seeds=200))
    assert all(decision.verdict == Verdict.REFUTED for decision in wrong)


def test_at_the_planned_number_the_rival_is_missed_at_most_once_in_a_thousand():
    problem, alpha = PROBLEMS["skewed"], 0.05
    cell, moments = GradientCell(problem, 2), problem.moments()
    value = gradient_mse(moments, "grpo", 2).mse
    statement = equal(value, {"G^2": rivals(moments, 2)["G^2 for G(G-1)"]}, scale=value)
    functional = mean_of(cell, QUANTITY)
    margin = statement.margin_for(["G^2"])
    planned = functional.needed(pilots_of(cell), margin, alpha, value)
    result = list(verdicts(problem, alpha, planned))
    missed = sum(decision.rivals["G^2"] != RivalVerdict.REFUTED for decision in result)
    assert binomtest(missed, SEEDS, 1e-3, "greater").pvalue > 1e-3
    confirmed = sum(decision.verdict == Verdict.CONFIRMED for decision in result)
    assert confirmed >= 0.95 * SEEDS
