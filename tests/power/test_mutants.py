"""Planted mutants of the code: each wrong program must be refuted by the decider that verdicts use.

A mutant is one change to one source file. The changed file is loaded in the place of the true one
and the claims are run on a few cells, by enumeration and by simulation, as a user would run them.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

import simulations.minibatch
import simulations.mse
import ustat_pg.engines.base
import ustat_pg.engines.gradients.cpu
import ustat_pg.engines.gradients.reference
import ustat_pg.problems.softmax_bandit
from simulations import Suite, claim
from ustat_pg.checks import Verdict
from ustat_pg.experiment import Claim, Options, Store, run_claims
from ustat_pg.experiment import plan as planning

ROOT = Path(__file__).resolve().parents[2]

PLACES = {
    "ustat_pg/estimators.py": [
        (ustat_pg.engines.base, "advantages"),
        (ustat_pg.engines.gradients.reference, "gradient"),
    ],
    "ustat_pg/predictions/mse.py": [
        (simulations.mse, "gradient_mse"),
        (simulations.mse, "gradient_covariance"),
        (simulations.minibatch, "gradient_mse"),
    ],
    "ustat_pg/engines/gradients/lanes.py": [(ustat_pg.engines.gradients.cpu, "bodies")],
    "ustat_pg/moments.py": [(ustat_pg.problems.softmax_bandit, "Moments")],
}
"""Where each file's names are used."""

GRPO = "    return rewards - others\n"


@dataclass(frozen=True)
class Mutant:
    """One change: in ``file``, ``old`` becomes ``new``; ``engine`` simulates."""

    name: str
    file: str
    old: str
    new: str
    engine: str = "reference"
    stems: tuple[str, ...] = ("mse", "minibatch")


ESTIMATORS, PREDICTIONS, BODIES, MOMENTS = PLACES

MUTANTS = [
    Mutant("1/G for 1/(G-1)", ESTIMATORS, "keepdims=True) - rewards) / (size - 1)",
           "keepdims=True) - rewards) / size"),
    Mutant("own reward in the baseline", ESTIMATORS,
           "(xp.sum(rewards, axis=-1, keepdims=True) - rewards) / (size - 1)",
           "xp.sum(rewards, axis=-1, keepdims=True) / size"),
    Mutant("own reward, divided by G-1", ESTIMATORS,
           "(xp.sum(rewards, axis=-1, keepdims=True) - rewards) / (size - 1)",
           "xp.sum(rewards, axis=-1, keepdims=True) / (size - 1)"),
    Mutant("std-normalised", ESTIMATORS, GRPO,
           "    spread = xp.std(rewards, axis=-1, keepdims=True)\n"
           "    return (rewards - others) / xp.where(spread > 0, spread, xp.ones_like(spread))\n"),
    Mutant("stale baseline from another context", ESTIMATORS, GRPO,
           "    return rewards - xp.roll(xp.mean(rewards, axis=-1, keepdims=True), 1, axis=-2)\n",
           stems=("minibatch",)),
    Mutant("sign of the baseline", ESTIMATORS, GRPO, "    return rewards + others\n"),
    Mutant("G^2", PREDICTIONS, "pairs = size * (size - 1) * prompts", "pairs = size**2 * prompts"),
    Mutant("missing ||g||^2", PREDICTIONS,
           "moments.reward_variance * moments.fisher_trace + moments.gradient_sq\n"
           "        second",
           "moments.reward_variance * moments.fisher_trace\n        second"),
    Mutant("sigma2 dropped", PREDICTIONS,
           "moments.reward_variance * moments.fisher_trace + moments.gradient_sq\n"
           "        second",
           "moments.fisher_trace + moments.gradient_sq\n        second"),
    Mutant("prompt term not divided by B", PREDICTIONS, "        return 1 / batch_size\n",
           "        return 1.0\n", stems=("minibatch",)),
    Mutant("covariance without the pairs", PREDICTIONS, "/ (size * (size - 1))\n",
           "/ (size * size)\n", stems=("mse",)),
    Mutant("compiled: 1/G for 1/(G-1)", BODIES, "-sums[b] / (group - 1.0)", "-sums[b] / group",
           "cpu"),
    Mutant("compiled: group mean for grpo", BODIES, "coef[e, b, 0] = group / (group - 1.0)",
           "coef[e, b, 0] = 1.0", "cpu"),
    Mutant("compiled: mean over prompts not squared", BODIES,
           "_square(coef[asked.first[q]], gram) * per_prompt * per_prompt",
           "_square(coef[asked.first[q]], gram) * per_prompt", "cpu", ("minibatch",)),
    Mutant("compiled: prompts share their outputs' draws", BODIES,
           "np.uint64(start // 4), np.uint64(slot), rep",
           "np.uint64(start // 4), np.uint64(0), rep", "cpu", ("minibatch",)),
    # The record that predictions read, which engines must not.
    Mutant("moments: b* halfway to V", MOMENTS,
           "self.value + np.where(moving, self.norm_advantage / trace, 0.0)",
           "self.value + np.where(moving, self.norm_advantage / trace / 2, 0.0)",
           stems=("optimality",)),
    Mutant("moments: cross term of the centring lost", MOMENTS,
           "- 2 * shift * self.norm_advantage", "- shift * self.norm_advantage",
           stems=("mse",)),
]  # fmt: skip

KEEP = ("several", "features", "skewed")
ENDINGS = (
    ": grpo",
    ": vanilla",
    ": minimum-variance",
    "covariance along a direction",
    "b* -0.5",
    "b* +0.5",
    "by how much",
)


def mutated(mutant: Mutant) -> ModuleType:
    """The module with the one change, under its own name and package."""
    path = ROOT / mutant.file
    source = path.read_text(encoding="utf-8")
    assert source.count(mutant.old) >= 1, f"{mutant.name}: its text is no longer in {mutant.file}"
    # An enumeration of the changed file must not meet the true one's compiled cache.
    source = source.replace(mutant.old, mutant.new).replace("cache=True", "cache=False")
    name = mutant.file.removesuffix(".py").replace("/", ".")
    spec = importlib.util.spec_from_loader(f"{name}_mutant", loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__package__ = name.rpartition(".")[0]
    sys.modules[module.__name__] = module
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


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
    monkeypatch.setattr(planning, "BLOCK", 8_192)


def run(stems, engine, folder):
    """The claims' results on the few cells."""
    options = Options("smoke", engine=engine, workers=1)
    return run_claims([few(stem) for stem in stems], options, Store(folder)).claims


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_the_true_program_is_not_refuted(engine, tmp_path, quick_blocks):
    for result in run(("mse", "minibatch"), engine, tmp_path):
        assert result.verdict != Verdict.REFUTED
        assert {check.found["exact"].decision.verdict for check in result.checks} == {"CONFIRMED"}
        assert {check.found["simulation"].decision.verdict for check in result.checks} == {
            "CONFIRMED"
        }


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_refuted(mutant, tmp_path, monkeypatch, quick_blocks, record_property):
    module = mutated(mutant)
    record_property("mutant", mutant.name)
    for place, name in PLACES[mutant.file]:
        monkeypatch.setattr(place, name, module if name == "bodies" else getattr(module, name))
    for result in run(mutant.stems, mutant.engine, tmp_path):
        assert result.evidence("simulation") == Verdict.REFUTED, result.claim.stem
        if mutant.file != BODIES:
            assert result.evidence("exact") == Verdict.REFUTED, result.claim.stem


def test_mutants_are_pairwise_distinct():
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)
