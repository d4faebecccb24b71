"""Planted mutants of the code: each wrong program must be refuted by the decider that verdicts use.

A mutant is one change to one source file. The changed file is loaded in the place of the true one
and the claims are run on a few cells, by enumeration and by simulation, as a user would run them.
"""

from __future__ import annotations

import pytest

from simulations import Suite, claim
from tests.support.gradient_mutants import BODIES, ENDINGS, MUTANTS
from ustat_pg.checks import Verdict
from ustat_pg.experiment import Claim, Options, Store, options, run_claims

pytestmark = pytest.mark.slow

KEEP = ("several", "features", "skewed")


def few(stem: str) -> Claim:
    """The claim on three made-up problems at the smallest sizes."""
    whole = claim(stem, Suite("smoke"))
    checks = tuple(
        check
        for check in whole.checks
        if check.name.startswith(KEEP) and check.name.endswith(ENDINGS)
    )
    assert checks
    return Claim(stem, whole.rivals, checks)


@pytest.fixture
def quick_blocks(monkeypatch):
    """Smaller blocks: the reference engine is slow, and these mutants are far from the truth."""
    monkeypatch.setattr(options, "LARGEST_BLOCK", 8_192)


def run(stems, engine, folder):
    """The claims' results on the few cells."""
    options = Options("smoke", engine=engine, workers=1)
    return run_claims([few(stem) for stem in stems], options, Store(folder)).claims


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_the_true_program_is_not_refuted(engine, tmp_path, quick_blocks):
    for result in run(("mse", "minibatch"), engine, tmp_path):
        assert result.verdict != Verdict.REFUTED
        assert {check.found["exact"].verdict for check in result.checks} == {"CONFIRMED"}
        assert {check.found["simulation"].verdict for check in result.checks} == {"CONFIRMED"}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_refuted(mutant, tmp_path, monkeypatch, quick_blocks, record_property):
    record_property("mutant", mutant.name)
    mutant.plant(monkeypatch)
    for result in run(mutant.stems, mutant.engine, tmp_path):
        assert result.evidence("simulation") == Verdict.REFUTED, result.stem
        if mutant.file != BODIES:
            assert result.evidence("exact") == Verdict.REFUTED, result.stem


def test_mutants_are_pairwise_distinct():
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)
