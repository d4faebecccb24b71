"""The verdict on a claim: what counts where nothing can be enumerated, and what does not."""

from itertools import product
from math import inf

import pytest
from attrs import evolve
from scipy.stats import norm

from simulations.evidence import (
    Check,
    Claim,
    Evidence,
    Interval,
    RivalVerdict,
    Statement,
    Verdict,
    at_most,
    decide,
    equal,
    mean_of,
    positive,
)
from simulations.evidence.findings import CheckResult, Findings
from simulations.evidence.results import ClaimResult
from tests.support.refusals import refuses
from tests.support.runs import NO_CLAIMS
from ustat_pg.engines import Estimator, GradientCell, SquaredError
from ustat_pg.problems import random_problem

CELL = mean_of(GradientCell(random_problem(0), 2), SquaredError(Estimator("grpo")))
RUNS, OTHER = "a wrong run", "a wrong formula"
TRUE, FALSE, FAR = 1.0, 2.0, 1.5
"""A value that agrees with the prediction, the rival's, and one between them."""


def check(name, rival, origin="made-up"):
    return Check(name, origin, CELL, equal(1.0, {rival: FALSE} if rival else None, digits=0.01))


def found(asked, exact=None, simulation=None, wide=0.05):
    """What each kind of evidence finds; None for one that is not to be had."""
    statement, by = asked.statement, {}
    if exact is not None:
        evidence = Evidence.enumerated(exact, statement)
        by["exact"] = Findings.of(evidence, decide(statement, evidence, ()))
    if simulation is not None:
        interval = Interval(simulation - wide, simulation + wide)
        evidence = Evidence(simulation, interval, wide / 4, 1000, 1e-4)
        by["simulation"] = Findings.of(
            evidence, decide(statement, evidence, tuple(statement.rivals))
        )
    reason = None if exact is not None else "whole runs"
    return CheckResult.of(asked.name, asked.origin, statement, by, reason)


def settled(by_simulation, *results, rivals=(RUNS,), simulates=True):
    return ClaimResult.of("mse", rivals, results, by_simulation, simulates=simulates)


def test_of_runs_alone_simulation_settles():
    runs = found(check("runs", RUNS), simulation=TRUE)
    result = settled((RUNS,), runs)
    assert result.verdict == Verdict.CONFIRMED
    (rival,) = result.rivals
    # The row says what was not done.
    assert (rival.exact, rival.simulation) == (RivalVerdict.NOT_TESTED, RivalVerdict.REFUTED)
    assert rival.verdict == RivalVerdict.NOT_TESTED


MADE_UP = check("made-up", RUNS)
SIMULATED = found(MADE_UP, simulation=TRUE)
OFF = found(MADE_UP, simulation=FAR)
WIDE = found(MADE_UP, simulation=TRUE, wide=1.2)
"""An interval that holds the prediction and the rival both."""
GENERATED = found(check("generated", RUNS, "generated"), simulation=TRUE)
UNHEARD = found(check("unheard", None), simulation=TRUE)
ELSEWHERE = found(check("generated", None, "generated"), simulation=TRUE)
FORMULA = check("formula", OTHER)


@pytest.mark.parametrize(
    ("by_simulation", "results", "verdict"),
    [
        ((RUNS,), [SIMULATED], "CONFIRMED"),
        # Without the claim's word what is not enumerated is open.
        ((), [SIMULATED], "INCONCLUSIVE"),
        ((), [OFF], "REFUTED"),
        ((RUNS,), [OFF], "REFUTED"),
        ((RUNS,), [WIDE], "INCONCLUSIVE"),
        # A rival that no check heard, or that one ground leaves out, is open.
        ((RUNS,), [UNHEARD], "INCONCLUSIVE"),
        ((RUNS,), [SIMULATED, ELSEWHERE], "INCONCLUSIVE"),
        ((RUNS,), [SIMULATED, GENERATED], "CONFIRMED"),
        # Enumeration that refutes is heard whatever was left to simulation.
        ((RUNS,), [found(MADE_UP, exact=FAR, simulation=TRUE)], "REFUTED"),
    ],
)
def test_what_is_left_to_simulation_is_settled_by_it_alone(by_simulation, results, verdict):
    assert settled(by_simulation, *results).verdict == verdict


def test_enumeration_alone_settles_what_it_reached_and_no_runs():
    for result, verdict in (
        (found(MADE_UP), "INCONCLUSIVE"),
        (found(MADE_UP, exact=TRUE), "CONFIRMED"),
    ):
        assert settled((RUNS,), result, simulates=False).verdict == verdict


# A claim of two halves: formulas that are enumerated, and runs that are not.


@pytest.mark.parametrize(
    ("exact", "simulation", "runs"),
    list(product((TRUE, FAR, None), (TRUE, FAR), (TRUE, FAR))),
)
def test_both_halves_count(exact, simulation, runs):
    halves = [found(FORMULA, exact, simulation), found(MADE_UP, simulation=runs)]
    verdict = settled((RUNS,), *halves, rivals=(OTHER, RUNS)).verdict
    if FAR in (exact, simulation, runs):
        assert verdict == Verdict.REFUTED
    else:
        # A formula must still be enumerated: only the runs were left to simulation.
        assert verdict == (Verdict.INCONCLUSIVE if exact is None else Verdict.CONFIRMED)


def test_a_formula_must_be_refuted_by_both_kinds_though_runs_need_not():
    halves = [found(FORMULA, TRUE, TRUE, wide=1.2), SIMULATED]
    assert settled((RUNS,), *halves, rivals=(OTHER, RUNS)).verdict == Verdict.INCONCLUSIVE


def test_what_is_left_to_simulation_must_be_listed():
    text = r"rivals \['unheard of'\] are not listed"
    refuses(text, Claim("mse", (RUNS,), (MADE_UP,), ("unheard of",)).made)


SAME = Check("same", "made-up", CELL, equal(1.0, {RUNS: 1.0}))
NEVER = Check("never", "made-up", CELL, equal(1.0))


@pytest.mark.parametrize(
    ("asked", "rivals", "verdict"),
    [
        # A rival that coincides wherever it is tested, one that is never tested, none at all.
        (SAME, (RUNS,), "INCONCLUSIVE"),
        (NEVER, (RUNS,), "INCONCLUSIVE"),
        (NEVER, (), "INCONCLUSIVE"),
    ],
)
@pytest.mark.parametrize("simulates", [True, False])
def test_a_rival_that_cannot_lose_is_no_rival(asked, rivals, verdict, simulates):
    result = found(asked, TRUE, TRUE if simulates else None)
    assert settled((), result, rivals=rivals, simulates=simulates).verdict == verdict


def test_one_problem_that_tells_a_rival_apart_is_enough():
    apart = found(check("apart", RUNS, "generated"), TRUE, TRUE)
    assert settled((), found(SAME, TRUE, TRUE), apart).verdict == Verdict.CONFIRMED


def test_each_kind_of_evidence_must_tell_a_rival_apart_itself():
    drawn = found(check("drawn", RUNS), simulation=TRUE)
    listed = found(SAME, TRUE, TRUE)
    assert settled((), listed, drawn).verdict == Verdict.INCONCLUSIVE
    assert settled((RUNS,), listed, drawn).verdict == Verdict.CONFIRMED


def test_the_power_is_what_the_statement_and_the_interval_let_through():
    asked = Check("sharp", "made-up", CELL, equal(2.0, {RUNS: 3.0}, digits=0.01))
    sharp = found(asked, 2.0, 2.0, wide=0.05)
    # 2% of 2 less the region's 0.01 and the half-width: what is left, in standard errors of 0.0125.
    for effect in (0.01, 0.02, 0.05):
        expected = norm.cdf((2 * effect - 0.01 - 0.05) / 0.0125)
        assert sharp.detects("simulation", effect) == pytest.approx(expected, rel=1e-9)
    assert [sharp.detects("exact", effect) for effect in (0.004, 0.006)] == [0.0, 1.0]
    # An order sees what turns it round, and no more.
    order = Check("order", "made-up", CELL, positive(1.0, [RUNS], scale=1.0))
    turned = found(order, 1.0, 1.0)
    assert turned.detects("exact", 0.5) == 0.0
    assert turned.detects("exact", 1.5) == 1.0
    by = {(p.kind, p.effect): p for p in settled((), sharp, turned).power}
    assert (by["exact", 0.1].share, by["exact", 0.1].best) == (0.5, 1.0)
    assert by["simulation", 0.05].share == pytest.approx(norm.cdf(0.04 / 0.0125) / 2, abs=1e-6)
    # What nobody knows the error of sees nothing.
    blind = found(asked, None, 2.0, wide=float("inf"))
    assert blind.detects("simulation", 0.1) == 0.0


def test_effects_whose_detection_is_reported():
    power = settled((), found(check("one", RUNS), TRUE, TRUE)).power
    kinds = ("exact", "simulation")
    effects = (0.01, 0.02, 0.05, 0.1)
    assert [(one.kind, one.effect) for one in power] == list(product(kinds, effects))
    none = settled((), rivals=()).power
    assert {(one.share, one.best) for one in none} == {(0.0, 0.0)}


@pytest.mark.parametrize(
    ("statement", "effect", "half", "error", "chance"),
    [
        # Relative to the prediction, or to the scale where that is 0; towards the nearer end.
        (equal(2.0, digits=0.1), 0.1, 0.05, 0.01, norm.cdf(5.0)),
        (equal(-2.0, digits=0.1), 0.1, 0.09, 0.01, norm.cdf(1.0)),
        (equal(0.0, scale=4.0), 0.1, 0.4, 0.1, norm.cdf(-4e-8)),
        (at_most(1.0, 0.6), 0.5, 0.01, 0.1, norm.cdf(-1.1)),
        (positive(0.6, [], scale=1.0), 1.5, 0.1, 0.1, norm.cdf(2.0)),
        (equal(2.0, digits=0.1), 0.05, 0.0, 0.0, 0.0),
        (equal(2.0, digits=0.1), 0.051, 0.0, 0.0, 1.0),
        (equal(2.0, digits=0.1), 0.1, 0.05, inf, 1.0),
        (equal(2.0, digits=0.1), 0.1, inf, 0.01, 0.0),
        (Statement(2.0, Interval(-inf, inf)), 0.1, 0.05, 0.01, 0.0),
    ],
)
def test_an_effect_is_seen_with_the_chance_that_an_interval_leaves_the_region(
    statement, effect, half, error, chance
):
    place = statement.prediction
    evidence = Evidence(place, Interval(place - half, place + half), error, 9, 0.1)
    decision = decide(statement, evidence)
    by = {"simulation": Findings.of(evidence, decision, 7)}
    result = CheckResult.of("one", "made-up", statement, by, "whole runs")
    assert result.detects("simulation", effect) == pytest.approx(chance, abs=1e-6)
    assert result.simulation.replications_needed == 7
    assert Findings.of(evidence, decision).replications_needed == 0


def test_the_end_of_what_a_rival_allows():
    ends = {
        "point": Interval(1.5, 1.5), "between": Interval(1.5, 2.0), "above": Interval(3.0, inf),
        "below": Interval(-inf, 0.0), "anything": Interval(-inf, inf), "other": None,
    }  # fmt: skip
    result = evolve(found(check("one", RUNS), TRUE), rivals=ends)
    assert [result.rival_end(name) for name in ends] == [1.5, 1.5, 3.0, 0.0, None, None]


@pytest.mark.parametrize("off", [0.0, 0.9e-9, 1.1e-9])
@pytest.mark.parametrize("side", [-1, 1])
def test_a_prediction_is_in_its_region_to_rounding(off, side):
    result = found(check("one", RUNS), TRUE)
    beyond = result.region.high if side > 0 else result.region.low
    assert evolve(result, prediction=beyond + side * off, rounding=1e-9).coherent == (off < 1e-9)


def test_the_verdict_of_a_check_is_its_worst_kinds():
    verdicts = [
        found(MADE_UP, exact, drawn).verdict
        for exact, drawn in ((TRUE, TRUE), (TRUE, FAR), (FAR, TRUE), (None, TRUE), (None, None))
    ]
    assert verdicts == ["CONFIRMED", "REFUTED", "REFUTED", "CONFIRMED", None]


def test_a_claim_that_is_run_again_has_its_new_verdict_and_draws():
    before, now = (
        evolve(NO_CLAIMS, claims=(settled((), result),), draws={"mse": {"made-up": (number,)}})
        for result, number in ((found(FORMULA, FAR, FAR), 1), (found(FORMULA, TRUE, TRUE), 2))
    )
    assert [run.claims[0].verdict for run in (before, now)] == ["REFUTED", "INCONCLUSIVE"]
    for earlier, later in ((before, now), (now, before)):
        whole = later.with_earlier(earlier, "verify mse")
        assert (whole.claims, whole.draws) == (later.claims, later.draws)
