"""Planted mutants behind the claims on whole training runs: each must be refuted by the decider, by
backward induction and by simulation, or by the one of them that the wrong line does not touch.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import pytest

import simulations.limit_law
import simulations.problems.basins
import simulations.problems.runs
import simulations.suboptimality
import ustat_pg.engines.runs.cpu
from simulations import Suite
from tests.support.mutants import mutated
from ustat_pg.checks import Verdict
from ustat_pg.experiment import Claim, Options, Store, options, run_claims

LAW = "ustat_pg/predictions/limit_law.py"
BOUND = "ustat_pg/predictions/suboptimality.py"
BODIES = "ustat_pg/engines/runs/lanes.py"

PLACES = {
    LAW: [
        (simulations.problems.runs, "finite_weights"),
        (simulations.limit_law, "limit_weights"),
    ],
    BOUND: [(simulations.problems.basins, "bound_curve")],
    BODIES: [(ustat_pg.engines.runs.cpu, "bodies")],
}

TRANSFORM = "disagreement G=2 c=11.3 T=800: transform at 1/mean"
DISTANCE = "disagreement G=2: distance to the limit against T"
STEP = "bowl G=8: one step"
FLOOR = "bowl G=2: constant rate, attained"


@dataclass(frozen=True)
class Mutant:
    """One change: in ``file``, ``old`` becomes ``new``; the ``check`` (of a claim) that meets it."""

    name: str
    file: str
    old: str
    new: str
    claim: ModuleType
    check: str


LIMIT, LEMMA = simulations.limit_law, simulations.suboptimality

MUTANTS = [
    Mutant("missing 1/2", LAW, "0.5 * root[:, None]", "root[:, None]", LIMIT, TRANSFORM),
    Mutant("rate not squared", LAW, "rates**2, kept", "rates, kept", LIMIT, TRANSFORM),
    Mutant("shrunk once", LAW, "shrink[:, :, None] * shrink[:, None, :]",
            "shrink[:, :, None] * np.ones_like(shrink)[:, None, :]", LIMIT, TRANSFORM),
    Mutant("Hessian of the wrong sign", LAW, "1 - rates[:, None] * curvatures",
            "1 + rates[:, None] * curvatures", LIMIT, TRANSFORM),
    Mutant("root of Λ on one side only", LAW, "0.5 * root[:, None] * gamma * root",
            "0.5 * root[:, None] * gamma", LIMIT, TRANSFORM),
    Mutant("no -1 in the Lyapunov denominator", LAW, "exponents[:, None] + exponents - 1",
            "exponents[:, None] + exponents", LIMIT, DISTANCE),
    Mutant("c^2 dropped", LAW, "rate**2 * covariance", "covariance", LIMIT, DISTANCE),
    Mutant("half the contraction", BOUND, "1 - 2 * low * steps", "1 - low * steps", LEMMA, STEP),
    Mutant("noise term not halved", BOUND, "high * steps**2 * noise / 2",
            "high * steps**2 * noise", LEMMA, FLOOR),
    # Backward induction does not call the compiled body.
    Mutant("schedule forgets t0", BODIES, "rates[t - 1] / (group * batch)",
            "rates[0] * rates.size / (t + rates.size) / (group * batch)", LIMIT, TRANSFORM),
    Mutant("constant step", BODIES, "rates[t - 1] / (group * batch)",
            "rates[0] / (group * batch)", LIMIT, TRANSFORM),
]  # fmt: skip


def verdicts(claim, check, folder):
    """By each kind of evidence, on that check alone."""
    whole = claim.claim(Suite("smoke"))
    kept = tuple(c for c in whole.checks if c.name.startswith(check))
    assert kept
    few = Claim(whole.stem, whole.rivals, kept)
    result = run_claims([few], Options("smoke", workers=2), Store(folder)).claims[0]
    return result.evidence("exact"), result.evidence("simulation")


@pytest.fixture
def small_blocks(monkeypatch):
    """What is far from the truth shows in few runs."""
    monkeypatch.setattr(options, "LARGEST_BLOCK", 4_096)


@pytest.mark.parametrize("check", [TRANSFORM, STEP, FLOOR])
def test_the_true_program_is_confirmed(check, tmp_path):
    claim = LIMIT if check == TRANSFORM else LEMMA
    assert verdicts(claim, check, tmp_path) == (Verdict.CONFIRMED, Verdict.CONFIRMED)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("case", MUTANTS, ids=lambda case: case.name)
def test_a_wrong_program_is_refuted(case, tmp_path, monkeypatch, small_blocks, record_property):
    module = mutated(case.file, (case.old, case.new))
    record_property("mutant", case.name)
    for place, name in PLACES[case.file]:
        monkeypatch.setattr(place, name, getattr(module, name, module))
    exact = Verdict.CONFIRMED if case.file == BODIES else Verdict.REFUTED
    assert verdicts(case.claim, case.check, tmp_path) == (exact, Verdict.REFUTED)
