"""The verdicts' error rates, over seeds that nobody chose (2,000 seeds: benchmarks/false_alarms.md)."""

from __future__ import annotations

import pytest
from scipy.stats import binomtest

from simulations.mse import rivals
from simulations.problems import Suite, mse_of, two_valued
from simulations.problems.landscapes import bowl, plane
from ustat_pg.checks import RivalVerdict, Verdict, decide, equal
from ustat_pg.engines import Constant, Estimator, GradientCell, Training
from ustat_pg.experiment import LawDistance, Pit, mean_of
from ustat_pg.predictions import gradient_mse

SEEDS = 2000
QUANTITY = mse_of("grpo")
PROBLEMS = {
    "skewed": Suite().skewed.problem,
    "rarely-solved": two_valued([0.97, 0.01, 0.01, 0.01], [0, 1, 0, 0]),
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
        found = functional.evidence({cell.name: ((QUANTITY,), block)}, alpha, pilots)
        yield decide(statement, found)


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
    found = list(verdicts(problem, alpha, planned))
    missed = sum(decision.rivals["G^2"] != RivalVerdict.REFUTED for decision in found)
    assert binomtest(missed, SEEDS, 1e-3, "greater").pvalue > 1e-3
    confirmed = sum(decision.verdict == Verdict.CONFIRMED for decision in found)
    assert confirmed >= 0.95 * SEEDS


def started(landscape):
    """The law of the gap at the start, on no step at all, and its weights ½ λₖ times the variance."""
    spread = 1e-3  # the third derivative moves the law by about .001 of it
    weights = tuple((0.5 * spread**2 * landscape.curvatures).tolist())
    runs = Training(landscape, 2, 1, Constant(0.1), start_scale=spread)
    return LawDistance(runs, Pit(Estimator("grpo"), 0, weights)), weights


def law_verdicts(functional, alpha, replications, seeds):
    """The decider's verdicts on a law, seed by seed."""
    statement = equal(0.0, scale=1.0, relative_margin=1.0)
    for seed in range(seeds):
        block = functional.cell.measure(
            "cpu", functional.quantities, seed=seed, replications=replications
        )
        sums = {functional.cell.name: (functional.quantities, block)}
        yield decide(statement, functional.evidence(sums, alpha, {}))


@pytest.mark.parametrize("landscape", [bowl(), plane()], ids=["one direction", "two directions"])
class TestLaws:
    def test_false_alarms_stay_at_their_rate(self, landscape):
        functional, _ = started(landscape)
        alarms = sum(
            decision.verdict == Verdict.REFUTED
            for decision in law_verdicts(functional, 0.05, 200, 1000)
        )
        assert binomtest(alarms, 1000, 0.05, "greater").pvalue > 1e-3
        # The band has no reserve, so that a smaller one would be seen.
        assert binomtest(alarms, 1000, 0.02, "greater").pvalue < 1e-3

    def test_weights_wrong_by_a_third_are_refuted_every_time(self, landscape):
        functional, weights = started(landscape)
        wrong = Pit(functional.pit.estimator, 0, tuple(1.33 * weight for weight in weights))
        found = law_verdicts(LawDistance(functional.cell, wrong), 0.01, 4000, 50)
        assert all(decision.verdict == Verdict.REFUTED for decision in found)
