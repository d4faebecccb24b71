"""Controls of every run: a sound program passes, one that fails leaves nothing confirmed.

That they notice what is wrong is in ``simulations/mutants/errors.toml``: errors that controls refute.
"""

import pytest

from simulations.evidence import Options, Store, Verdict, plan, run_claims, runner
from simulations.evidence.planted import run_controls
from simulations.evidence.provenance import document
from simulations.evidence.report import exit_code, html, markdown, remarks, verdict_table
from simulations.evidence.results import load_run
from simulations.proof import Proof
from tests.support.claims import claim_of_runs, small_claim
from ustat_pg.sampling import rng

CLAIMS = (small_claim(), claim_of_runs())
OPTIONS = Options("smoke")


@pytest.mark.parametrize("seed", [0, 31337])
def test_a_sound_program_passes_its_controls(seed):
    result = run_controls(CLAIMS, Options("smoke", seed=seed, workers=2))
    assert [control.said for control in result] == [""] * 5


def test_a_control_that_cannot_be_asked_has_not_held(monkeypatch):
    def shapes(*_):
        raise ValueError("all input arrays must have the same shape")

    monkeypatch.setattr(rng, "words", shapes)
    text = {control.name: control.said for control in run_controls(CLAIMS, OPTIONS)}
    assert text["draws and sums"] == "ValueError: all input arrays must have the same shape"
    assert not text["intervals"]


@pytest.mark.parametrize("proof", [None, *Proof])
def test_a_formula_that_is_not_proved_is_refuted(tmp_path, monkeypatch, proof):
    monkeypatch.setattr(runner, "proof_of", lambda stem: proof)
    run = run_claims([small_claim()], OPTIONS, Store(tmp_path)).with_proofs()
    refuted = proof is Proof.REFUTED
    assert [claim.verdict == Verdict.REFUTED for claim in run.claims] == [refuted]
    assert exit_code(run.claims) == refuted
    assert (proof or "-") in verdict_table(run.claims)
    assert bool(remarks(run.claims)) == refuted
    results = document(run, OPTIONS)
    (tmp_path / "verdicts.json").write_text(results.json())
    assert load_run(tmp_path) == results


def test_a_failed_control_leaves_nothing_confirmed(tmp_path, monkeypatch):
    run = run_claims([small_claim()], OPTIONS, Store(tmp_path))
    assert exit_code(run.claims) == 0
    sound = run.controlled(run_controls(CLAIMS, OPTIONS))
    assert sound.claims == run.claims
    assert exit_code(sound.claims, sound.controls) == 0
    assert "5 of 5 held" in verdict_table(sound.claims, controls=sound.controls)
    with monkeypatch.context() as patch:
        patch.setattr(plan, "allotted_alpha", lambda checks, results: 0.5)
        doubted = run.controlled(run_controls(CLAIMS, OPTIONS))
    assert [claim.verdict for claim in doubted.claims] == [Verdict.INCONCLUSIVE]
    assert exit_code(doubted.claims, doubted.controls) == 1
    assert "FAILED" in verdict_table(doubted.claims, controls=doubted.controls)
    (remark,) = remarks(doubted.claims, (), doubted.controls)
    assert remark.startswith("control of false alarms FAILED, so that this run confirms nothing")
    for result, words in ((sound, "draws and sums held."), (doubted, "false alarms FAILED")):
        results = document(result, OPTIONS)
        (tmp_path / "verdicts.json").write_text(results.json())
        assert load_run(tmp_path) == results
        assert words in markdown(results)
        assert words in html(results)
