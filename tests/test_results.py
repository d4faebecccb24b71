"""The verdict on a claim: what counts where nothing can be enumerated, and what does not."""

from __future__ import annotations

from itertools import product

import pytest

from ustat_pg.checks import Evidence, Interval, RivalVerdict, Verdict, decide, equal
from ustat_pg.engines import Estimator, GradientCell, SquaredError
from ustat_pg.experiment import Check, Claim, mean_of
from ustat_pg.problems import random_problem
from ustat_pg.results import CheckResult, ClaimResult, Findings
from ustat_pg.validation import InputError

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


def test_without_the_claims_word_what_is_not_enumerated_is_open():
    assert settled((), found(check("runs", RUNS), simulation=TRUE)).verdict == Verdict.INCONCLUSIVE


def test_enumeration_alone_settles_no_runs():
    result = settled((RUNS,), found(check("runs", RUNS)), simulates=False)
    assert result.verdict == Verdict.INCONCLUSIVE


def test_enumeration_alone_settles_what_it_reached():
    reached = found(check("reached", RUNS), exact=TRUE)
    assert settled((RUNS,), reached, simulates=False).verdict == Verdict.CONFIRMED


@pytest.mark.parametrize("by_simulation", [(), (RUNS,)])
def test_a_run_that_is_off_is_refuted(by_simulation):
    off = found(check("runs", RUNS), simulation=FAR)
    assert settled(by_simulation, off).verdict == Verdict.REFUTED


def test_a_rival_that_survives_simulation_is_open():
    # An interval that holds the prediction and the rival both.
    runs = found(check("runs", RUNS), simulation=TRUE, wide=1.2)
    assert settled((RUNS,), runs).verdict == Verdict.INCONCLUSIVE


def test_a_rival_that_no_check_heard_is_open_on_the_suites_own_problems():
    runs = found(check("runs", None), simulation=TRUE)
    assert settled((RUNS,), runs).verdict == Verdict.INCONCLUSIVE


def test_a_rival_that_one_ground_leaves_out_is_open():
    one = found(check("made-up", RUNS), simulation=TRUE)
    two = found(check("generated", None, "generated"), simulation=TRUE)
    assert settled((RUNS,), one, two).verdict == Verdict.INCONCLUSIVE
    both = found(check("generated", RUNS, "generated"), simulation=TRUE)
    assert settled((RUNS,), one, both).verdict == Verdict.CONFIRMED


# A claim of two halves: formulas that are enumerated, and runs that are not.


@pytest.mark.parametrize(
    ("exact", "simulation", "runs"),
    list(product((TRUE, FAR, None), (TRUE, FAR), (TRUE, FAR))),
)
def test_both_halves_count(exact, simulation, runs):
    results = (
        found(check("formula", OTHER), exact=exact, simulation=simulation),
        found(check("runs", RUNS), simulation=runs),
    )
    verdict = settled((RUNS,), *results, rivals=(OTHER, RUNS)).verdict
    if FAR in (exact, simulation, runs):
        assert verdict == Verdict.REFUTED
    elif exact is None:
        # A formula must still be enumerated: only the runs were left to simulation.
        assert verdict == Verdict.INCONCLUSIVE
    else:
        assert verdict == Verdict.CONFIRMED


def test_a_formula_must_be_refuted_by_both_kinds_though_runs_need_not():
    results = (
        found(check("formula", OTHER), exact=TRUE, simulation=TRUE, wide=1.2),
        found(check("runs", RUNS), simulation=TRUE),
    )
    assert settled((RUNS,), *results, rivals=(OTHER, RUNS)).verdict == Verdict.INCONCLUSIVE


def test_enumeration_that_refutes_is_heard_whatever_was_left_to_simulation():
    both = found(check("both", RUNS), exact=FAR, simulation=TRUE)
    assert settled((RUNS,), both).verdict == Verdict.REFUTED


def test_what_is_left_to_simulation_must_be_listed():
    with pytest.raises(InputError, match=r"rivals \['unheard of'\] are not listed"):
        Claim("mse", (RUNS,), (check("runs", RUNS),), ("unheard of",))
