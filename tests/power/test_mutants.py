"""Planted errors on problems of tokens: each wrong program must be refuted by the decider of verdicts.

`python -m simulations mutants` plants them on bandits. Here those of the gradient's claims are planted
where problems are of tokens, under a prefix softmax and under a transformer, and each is refuted by
enumeration and by simulation.
"""

from __future__ import annotations

from importlib.util import find_spec
from itertools import islice

import pytest

import simulations.minibatch
import simulations.mse
import simulations.shared.peers
import ustat_pg.estimators
import ustat_pg.problems.softmax_bandit
from simulations import Suite, claim
from simulations.evidence import Claim, Options, Store, Verdict, options, run_claims
from simulations.evidence.options import SIZES, Size
from simulations.mutants.errors import errors
from simulations.problems.tokens import bandits
from tests.support.mutants import mutated

STEMS = ("mse", "minibatch")
ENDINGS = (": grpo", ": vanilla", ": minimum-variance")
"""The checks that are run."""

ESTIMATORS = "ustat_pg/estimators/linear.py"
PLACES = {
    ESTIMATORS: [(ustat_pg.estimators.FUNCTIONS, "grpo")],
    "ustat_pg/predictions/mse.py": [
        (simulations.mse, "gradient_mse"),
        (simulations.shared.peers, "gradient_mse"),
        (simulations.minibatch, "gradient_mse"),
    ],
    "ustat_pg/moments.py": [(ustat_pg.problems.softmax_bandit, "Moments")],
}
"""Where each file's names are used."""

PLANTED = (
    "grpo: 1/G for 1/(G-1)",
    "no squared gradient in the second-order term",
    "moments: the cross term of the centring once",
)
"""One a file: problems of tokens are read by the same code as bandits."""

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch not installed")
KINDS = ["tokens", pytest.param("transformer", marks=needs_torch)]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """The reference engine is slow, and these errors are far from the truth."""
    monkeypatch.setattr(options, "LARGEST_BLOCK", 4_096)
    monkeypatch.setitem(SIZES, "smoke", Size(131_072, 0.125))


def results(stems, on, engine, folder):
    """Results of the claims on two problems, by enumeration and by simulation."""
    suite, few = Suite("smoke", on=on), []
    # In place of the whole list, which for transformers takes seconds: sums of two tokens, and addition.
    result = islice(bandits(on, 0), 3)
    vars(suite)["token_problems"] = tuple(
        entry for entry in result if entry.name in ("sums", "addition")
    )
    assert len(suite.token_problems) == 2
    for stem in stems:
        whole = claim(stem, suite)
        checks = tuple(check for check in whole.checks if check.name.endswith(ENDINGS))
        assert checks
        few.append(Claim(stem, whole.rivals, checks))
    return run_claims(few, Options("smoke", engine=engine, workers=1), Store(folder)).claims


@pytest.mark.parametrize("on", KINDS)
def test_the_true_program_is_not_refuted(on, tmp_path):
    for result in results(STEMS, on, "reference", tmp_path):
        assert {check.exact.verdict for check in result.checks} == {"CONFIRMED"}
        assert Verdict.REFUTED not in (result.verdict, result.evidence("simulation"))


@pytest.mark.parametrize(
    ("on", "name"),
    [
        *(("tokens", name) for name in PLANTED),
        pytest.param("transformer", PLANTED[1], marks=needs_torch),
    ],
)
def test_mutant_is_refuted(on, name, tmp_path, monkeypatch):
    error = errors()[name]
    module = mutated(error.file, (error.old, error.new))
    for place, used in PLACES[error.file]:
        if isinstance(place, dict):
            monkeypatch.setitem(place, used, getattr(module, used))
        else:
            monkeypatch.setattr(place, used, getattr(module, used))
    engine = "reference" if error.file == ESTIMATORS else "cpu"
    stems = [stem for stem in STEMS if stem in error.stems]
    for result in results(stems, on, engine, tmp_path):
        assert result.evidence("simulation") == Verdict.REFUTED, result.stem
        assert result.evidence("exact") == Verdict.REFUTED, result.stem
