"""Planted mutants on networks: wrong predictions, estimators and training runs, each refuted by the
decider on a token problem under a prefix softmax and under a transformer.
"""

from __future__ import annotations

from importlib.util import find_spec
from itertools import islice

import pytest

import simulations.network_runs as network_runs
from simulations import Suite, claim
from simulations.networks import bandits
from simulations.problems import Entry
from ustat_pg.checks import RivalVerdict, Verdict
from ustat_pg.experiment import Claim, Options, Store, run_claims
from ustat_pg.experiment import plan as planning

from .test_mutants import BODIES, ENDINGS, ESTIMATORS, MUTANTS, PLACES, Mutant, mutated

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch not installed")
ON = ["tokens", pytest.param("transformer", marks=needs_torch)]

FEW = (
    "1/G for 1/(G-1)",
    "std-normalised",
    "stale baseline from another context",
    "G^2",
    "missing ||g||^2",
    "prompt term not divided by B",
    "moments: cross term of the centring lost",
)
"""Those that are planted under a transformer too, whose tables are read by the same code."""

PLANTED = [
    mutant for mutant in MUTANTS if mutant.file != BODIES and "optimality" not in mutant.stems
]


def suite_on(on: str) -> Suite:
    """A suite of two problems: sums of two tokens, and addition."""
    suite = Suite("smoke", on=on)
    found = [Entry(*each) for each in islice(bandits(on, 0), 3)]
    # In place of the whole list, which for transformers takes seconds.
    vars(suite)["given"] = tuple(entry for entry in found if entry.name in ("sums", "addition"))
    assert len(suite.given) == 2
    return suite


def results(stems, on, engine, folder):
    """Of the claims on these, by enumeration and by simulation."""
    suite, few = suite_on(on), []
    for stem in stems:
        whole = claim(stem, suite)
        checks = tuple(check for check in whole.checks if check.name.endswith(ENDINGS))
        assert checks
        few.append(Claim(stem, whole.rivals, checks))
    return run_claims(few, Options("smoke", engine=engine, workers=1), Store(folder)).claims


@pytest.fixture
def quick_blocks(monkeypatch):
    """Smaller blocks, and a budget of a few: these mutants are far from the truth."""
    monkeypatch.setattr(planning, "BLOCK", 4_096)
    monkeypatch.setitem(planning.BUDGETS, "smoke", 131_072)


@pytest.mark.parametrize("on", ON)
def test_the_true_program_is_not_refuted(on, tmp_path, quick_blocks):
    for result in results(("mse", "minibatch"), on, "reference", tmp_path):
        assert result.evidence("exact") == Verdict.CONFIRMED
        assert result.evidence("simulation") != Verdict.REFUTED


@pytest.mark.parametrize("on", ON)
@pytest.mark.parametrize("mutant", PLANTED, ids=lambda mutant: mutant.name)
def test_a_wrong_program_is_refuted(
    mutant, on, tmp_path, monkeypatch, quick_blocks, record_property
):
    if on == "transformer" and mutant.name not in FEW:
        pytest.skip("planted under a prefix softmax")
    module = mutated(mutant)
    record_property("mutant", f"{mutant.name} on {on}")
    for place, name in PLACES[mutant.file]:
        monkeypatch.setattr(place, name, getattr(module, name))
    engine = "reference" if mutant.file == ESTIMATORS else "cpu"
    for result in results(mutant.stems, on, engine, tmp_path):
        assert result.evidence("exact") == Verdict.REFUTED, result.claim.stem
        assert result.evidence("simulation") == Verdict.REFUTED, result.claim.stem


# Whole training runs.

RUNS = "ustat_pg/engines/network_runs.py"

TRAINED = [
    Mutant("divided by B only", RUNS,
           "share = weighed / (self.training.batch_size * self.training.group_size)",
           "share = weighed / self.training.batch_size"),
    Mutant("group mean for grpo", RUNS, "advantages(self.estimator.baseline, rewards",
           'advantages("group-mean", rewards'),
    Mutant("rate times G", RUNS, "float(rate) * slope",
           "float(rate) * training.group_size * slope"),
    Mutant("descent", RUNS, "self.theta + float(rate) * slope", "self.theta - float(rate) * slope"),
    Mutant("the same draws at every step", RUNS, "np.arange(first, last)[:, None, None]",
           "np.ones(last - first, dtype=int)[:, None, None]"),
]  # fmt: skip

SEEN_ON_TRANSFORMERS = ("group mean for grpo",)


@pytest.fixture
def short_runs(monkeypatch):
    """Fewer and longer steps, smaller blocks."""
    monkeypatch.setattr(network_runs, "PATH", 20)
    monkeypatch.setattr(network_runs, "LONG", 60)
    monkeypatch.setattr(planning, "BLOCK", 64)


def path_result(on, folder, names=("grpo on the path",)):
    """Of the made-up problem's checks on the path of exact ascent."""
    if on == "transformer":
        # What is asked of them ends with the path, and its steps take a while.
        network_runs.LONG = network_runs.PATH + 1
    found = network_runs.paths(Suite("smoke", on=on))
    # Made-up problems come first; the others' paths are not wanted.
    made_up = (check for check in found if any(name in check.name for name in names))
    checks = tuple(islice(made_up, len(names)))
    assert {check.group for check in checks} == {"made-up"}
    assert len(checks) == len(names)
    few = Claim("suboptimality", network_runs.PATH_RIVALS, checks, network_runs.PATH_RIVALS)
    return run_claims([few], Options("smoke"), Store(folder)).claims[0]


@needs_torch
@pytest.mark.parametrize("on", ON)
def test_true_runs_are_on_the_path_and_their_rivals_are_refuted(on, tmp_path, short_runs):
    names = ("grpo on the path", "group-mean on the path", "above what PL")
    result = path_result(on, tmp_path, names if on == "tokens" else names[:1])
    assert result.evidence("exact") is None
    assert result.evidence("simulation") == Verdict.CONFIRMED
    refuted = {rival.name for rival in result.rivals if rival.simulation == RivalVerdict.REFUTED}
    asked = {name for check in result.checks for name in check.check.statement.rivals}
    assert refuted == asked
    if on == "tokens":
        assert asked == set(network_runs.PATH_RIVALS)
        assert result.verdict == Verdict.CONFIRMED


@needs_torch
@pytest.mark.parametrize("on", ON)
@pytest.mark.parametrize("mutant", TRAINED, ids=lambda mutant: mutant.name)
def test_wrong_runs_are_refuted(mutant, on, tmp_path, monkeypatch, short_runs, record_property):
    if on == "transformer" and mutant.name not in SEEN_ON_TRANSFORMERS:
        pytest.skip("planted under a prefix softmax")
    import ustat_pg.engines.network_runs as engine

    record_property("mutant", f"{mutant.name} on {on}")
    monkeypatch.setattr(engine, "run", mutated(mutant).run)
    assert path_result(on, tmp_path).evidence("simulation") == Verdict.REFUTED


@needs_torch
def test_a_wrong_path_is_refuted(tmp_path, monkeypatch, short_runs, record_property):
    """A prediction of the mean gap at half the rate: as if group-mean's were grpo's."""
    record_property("mutant", "ascent at half the rate")
    own = network_runs.Study.ascent
    monkeypatch.setattr(
        network_runs.Study, "ascent", lambda self, rate, steps: own(self, rate / 2, steps)
    )
    assert path_result("tokens", tmp_path).evidence("simulation") == Verdict.REFUTED


@needs_torch
def test_the_group_sizes_claim_does_not_take_equal_runs_for_different(
    tmp_path, monkeypatch, record_property
):
    """Were the large group's runs those of the small one, no more gap would be seen there."""
    record_property("mutant", "the group size makes no difference")
    own = network_runs.Study.runs

    def alike(self, group_size, budget, steps, rate, block):
        return own(self, 4, budget, steps, rate + 1e-9 * group_size, block)

    monkeypatch.setattr(network_runs.Study, "runs", alike)
    monkeypatch.setattr(planning, "BLOCK", 64)
    monkeypatch.setitem(planning.BUDGETS, "smoke", 1_000)
    check = next(iter(network_runs.group_sizes(Suite("smoke", on="tokens"))))
    few = Claim(
        "group_size", network_runs.GROUP_SIZE_RIVALS, (check,), network_runs.GROUP_SIZE_RIVALS
    )
    result = run_claims([few], Options("smoke"), Store(tmp_path)).claims[0]
    assert result.verdict != Verdict.CONFIRMED
