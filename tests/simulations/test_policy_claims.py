"""Claims on whole training runs: what is enumerated, planted errors seen, designs sound."""

from __future__ import annotations

import pytest
from attrs import evolve

from tests.support.claims import claim_of_runs
from ustat_pg.checks import Verdict
from ustat_pg.experiment import Options, Store, options, run_claims
from ustat_pg.experiment.runner import check_alone


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(options, "LARGEST_BLOCK", 2048)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(options, "LARGEST_BLOCK", 2048)
        return run_claims(
            [claim_of_runs()], Options("smoke"), Store(tmp_path_factory.mktemp("whole"))
        )


# Runs.


def test_which_checks_have_which_evidence(whole):
    exact = [c.name for c in whole.claims[0].checks if "exact" in c.found]
    assert exact == ["transform", "order", "growth", "ratio across cells"]
    for check in whole.claims[0].checks:
        assert check.simulation.replications >= 2 * options.LARGEST_BLOCK, "several blocks"
        said = check.not_enumerated
        assert (said is None) == (check.name in exact)
        assert said is None or "compared by simulation" in said


# Planted errors.


def test_a_wrong_law_is_refuted_by_simulation(tmp_path):
    run = run_claims([claim_of_runs(law=1.4)], Options("smoke"), Store(tmp_path))
    found = {c.name: c.found for c in run.claims[0].checks}
    for name in ("distribution", "share"):
        assert found[name]["simulation"].verdict == Verdict.REFUTED
    # The law sets the edges alone of where two samples are compared.
    assert found["excess"]["simulation"].verdict == Verdict.CONFIRMED
    assert run.claims[0].verdict == Verdict.REFUTED


# One check alone.


@pytest.mark.parametrize("place", range(7))
def test_a_check_alone_is_the_runs_to_the_last_bit(place, whole):
    claim = claim_of_runs()
    (plan,) = whole.plans
    name = claim.checks[place].name
    cells = dict.fromkeys(cell.name for cell in claim.checks[place].functional.cells)
    drawn = [plan.replications[cell] for cell in cells]
    alone = check_alone(claim, name, Options("smoke", workers=2), drawn, plan.required[name])
    stored = whole.claims[0].checks[place]
    assert alone.exact == stored.exact
    # Only the run's own pilots know what the check needs.
    assert alone.simulation == evolve(stored.simulation, replications_needed=0)
    assert alone.not_enumerated == stored.not_enumerated
