"""Controls: an error planted in what draws, merges, measures or decides is noticed by every run."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import pytest

from tests.support.claims import claim_of_runs, small_claim
from ustat_pg import rng
from ustat_pg.checks import Decision, Evidence, Interval, Verdict, equal
from ustat_pg.engines import GradientCell, MomentSums, Training
from ustat_pg.engines.base import Replications
from ustat_pg.experiment import (
    Options,
    Store,
    functionals,
    plan,
    planted,
    run_claims,
    runner,
)
from ustat_pg.experiment.planted import run_controls
from ustat_pg.experiment.provenance import document
from ustat_pg.report import exit_code, html, markdown, remarks, verdict_table
from ustat_pg.results import load_run

CLAIMS = (small_claim(), claim_of_runs())
OPTIONS = Options("smoke")


def failed(options=OPTIONS):
    return {control.name for control in run_controls(CLAIMS, options) if not control.held}


@pytest.mark.parametrize("seed", [0, 1, 2, 31337])
def test_a_sound_program_passes_its_controls(seed):
    found = run_controls(CLAIMS, Options("smoke", seed=seed, workers=2))
    assert [control.said for control in found] == [""] * 5


def drawn(kind, stride):
    """Replications that come again after so many."""
    true = kind._measure

    def measure(self, engine, quantities, block):
        if engine == "exact":
            return true(self, engine, quantities, block)
        parts, first, left = [], block.first % stride, block.count
        while left:
            count = min(left, stride - first)
            parts.append(true(self, engine, quantities, Replications(block.seed, first, count)))
            first, left = 0, left - count
        return reduce(MomentSums.merge, parts)

    return kind, "_measure", measure


def evidence(functional, change):
    """Evidence of a functional, changed."""
    true = functional.evidence

    def changed(self, sums, alpha, pilots):
        found = true(self, sums, alpha, pilots)
        return replace(found, **change(found))

    return functional, "evidence", changed


def narrower(share):
    def change(found):
        off = found.interval.half_width * share
        return {"interval": Interval(found.estimate - off, found.estimate + off)}

    return change


merge, decide = MomentSums.merge, runner.decide


def forgets(self, other):
    found = merge(self, other)
    return replace(found, products=0.999 * found.products)


def never_refuted(statement, evidence, required=None):
    found = decide(statement, evidence, required)
    kind = Verdict.CONFIRMED if found.verdict == Verdict.REFUTED else found.verdict
    return Decision(kind, found.rivals)


def always_confirmed(statement, evidence, required=None):
    return Decision(Verdict.CONFIRMED, decide(statement, evidence, required).rivals)


# Many more are planted by `python -m simulations mutants`, each in one line of the program.
ERRORS = {
    "what is between blocks forgotten": (MomentSums, "merge", forgets),
    "every 1024th replication again": drawn(GradientCell, 1024),
    "every 8192nd run again": drawn(Training, 8192),
    "a mean's interval half as wide": evidence(functionals.Linear, narrower(0.5)),
    "an eigenvalue's interval narrower": evidence(functionals.Eigenvalue, narrower(0.75)),
    "a standard error too small": evidence(
        functionals.Linear, lambda found: {"standard_error": 0.9 * found.standard_error}
    ),
    "never REFUTED": (runner, "decide", never_refuted),
    "always CONFIRMED": (planted, "decide", always_confirmed),
}


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_of_the_machinery_is_noticed(error, monkeypatch):
    monkeypatch.setattr(*ERRORS[error])
    assert failed()


def test_a_control_that_cannot_be_asked_has_not_held(monkeypatch):
    def shapes(*_):
        raise ValueError("all input arrays must have the same shape")

    monkeypatch.setattr(rng, "words", shapes)
    said = {control.name: control.said for control in run_controls(CLAIMS, OPTIONS)}
    assert said["draws and sums"] == "ValueError: all input arrays must have the same shape"
    assert not said["intervals"]


def test_a_failed_control_leaves_nothing_confirmed(tmp_path, monkeypatch):
    run = run_claims([small_claim()], OPTIONS, Store(tmp_path))
    assert exit_code(run.claims) == 0
    sound = run.controlled(run_controls(CLAIMS, OPTIONS))
    assert sound.claims == run.claims
    assert exit_code(sound.claims, sound.controls) == 0
    assert "5 of 5 held" in verdict_table(sound.claims, controls=sound.controls)
    with monkeypatch.context() as patch:
        patch.setattr(plan, "allotted_alpha", lambda stem, checks: 0.5)
        doubted = run.controlled(run_controls(CLAIMS, OPTIONS))
    assert [claim.verdict for claim in doubted.claims] == [Verdict.INCONCLUSIVE]
    assert exit_code(doubted.claims, doubted.controls) == 1
    assert "FAILED" in verdict_table(doubted.claims, controls=doubted.controls)
    (remark,) = remarks(doubted.claims, (), doubted.controls)
    assert remark.startswith("control of false alarms FAILED, so that this run confirms nothing")
    for found, words in ((sound, "draws and sums held."), (doubted, "false alarms FAILED")):
        results = document(found, OPTIONS)
        (tmp_path / "verdicts.json").write_text(results.json())
        assert load_run(tmp_path) == results
        assert words in markdown(results)
        assert words in html(results)


def test_evidence_without_a_number_confirms_nothing():
    none = Evidence(float("nan"), Interval(-float("inf"), float("inf")))
    assert decide(equal(1.0), none).verdict == Verdict.INCONCLUSIVE
