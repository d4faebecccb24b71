"""Planted mutants of the code: each wrong program must be refuted by the decider that verdicts use.

A mutant is one change to one source file. The changed file is loaded in the place of the true one
and the claims are run on a few cells, by enumeration and by simulation, as a user would run them: on
bandits, and on token problems under a prefix softmax and under a transformer.
"""

from __future__ import annotations

from importlib.util import find_spec
from itertools import islice

import pytest

from simulations import Suite, claim
from simulations.problems.tokens import bandits
from tests.support.gradient_mutants import BODIES, ENDINGS, ESTIMATORS, MUTANTS
from ustat_pg.checks import Verdict
from ustat_pg.experiment import Claim, Options, Store, options, run_claims
from ustat_pg.experiment.options import BUDGETS

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch not installed")
KEEP = {
    "bandits": (
        *("several", "features", "skewed", "uneven", "ends G=", "rare", "counting to 4"),
        "up to three tokens: ",
    )
}
"""The made-up problems that checks are kept of, where there are more."""

GRADIENTS = ("mse", "minibatch")
"""The results that run on token problems too."""

UNDER_TRANSFORMERS = (
    "1/G for 1/(G-1)",
    "std-normalised",
    "stale baseline from another context",
    "G^2",
    "missing ||g||^2",
    "prompt term not divided by B",
    "moments: cross term of the centring lost",
)
"""Those that are planted under a transformer too, whose tables are read by the same code."""


def suite_on(on: str) -> Suite:
    """The suite; of tokens two problems: sums of two tokens, and addition."""
    if on == "bandits":
        return Suite("smoke")
    suite = Suite("smoke", on=on)
    found = list(islice(bandits(on, 0), 3))
    # In place of the whole list, which for transformers takes seconds.
    vars(suite)["stand_ins"] = tuple(entry for entry in found if entry.name in ("sums", "addition"))
    assert len(suite.stand_ins) == 2
    return suite


def results(stems, on, engine, folder):
    """Results of the claims on few cells, by enumeration and by simulation."""
    suite, few = suite_on(on), []
    for stem in stems:
        whole = claim(stem, suite)
        checks = tuple(
            check
            for check in whole.checks
            if check.name.startswith(KEEP.get(on, "")) and check.name.endswith(ENDINGS)
        )
        assert checks
        few.append(Claim(stem, whole.rivals, checks))
    return run_claims(few, Options("smoke", engine=engine, workers=1), Store(folder)).claims


@pytest.fixture
def quick_blocks(on, monkeypatch):
    """Smaller blocks: the reference engine is slow, and these mutants are far from the truth."""
    monkeypatch.setattr(options, "LARGEST_BLOCK", 8_192 if on == "bandits" else 4_096)
    if on != "bandits":
        monkeypatch.setitem(BUDGETS, "smoke", 131_072)


@pytest.mark.parametrize(
    ("on", "engine", "stems"),
    [
        ("bandits", "reference", GRADIENTS),
        (
            "bandits",
            "cpu",
            (
                *GRADIENTS,
                *("count_advantages", "best_baseline", "normalised", "length_weights", "arcsine"),
                "practical_mse",
            ),
        ),
        ("tokens", "reference", GRADIENTS),
        pytest.param("transformer", "reference", GRADIENTS, marks=needs_torch),
    ],
)
def test_the_true_program_is_not_refuted(on, engine, stems, tmp_path, quick_blocks):
    for result in results(stems, on, engine, tmp_path):
        assert {check.found["exact"].verdict for check in result.checks} == {"CONFIRMED"}
        assert Verdict.REFUTED not in (result.verdict, result.evidence("simulation"))
        if on == "bandits":
            assert {check.found["simulation"].verdict for check in result.checks} == {"CONFIRMED"}


def planted():
    """Every mutant on bandits, all but the compiled ones on tokens, some under a transformer."""
    for mutant in MUTANTS:
        yield pytest.param("bandits", mutant, id=mutant.name)
        if mutant.file != BODIES and set(mutant.stems) <= set(GRADIENTS):
            yield pytest.param("tokens", mutant, id=f"tokens-{mutant.name}")
            if mutant.name in UNDER_TRANSFORMERS:
                name = f"transformer-{mutant.name}"
                yield pytest.param("transformer", mutant, id=name, marks=needs_torch)


@pytest.mark.parametrize(("on", "mutant"), list(planted()))
def test_mutant_is_refuted(on, mutant, tmp_path, monkeypatch, quick_blocks, record_property):
    record_property("mutant", f"{mutant.name} on {on}")
    mutant.plant(monkeypatch)
    engine = mutant.engine
    if on != "bandits" and mutant.file != ESTIMATORS:
        engine = "cpu"
    for result in results(mutant.stems, on, engine, tmp_path):
        assert result.evidence("simulation") == Verdict.REFUTED, result.stem
        if mutant.file != BODIES:
            assert result.evidence("exact") == Verdict.REFUTED, result.stem


def test_mutants_are_pairwise_distinct():
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)
