"""Planted mutants on networks: wrong predictions, estimators and training runs, each refuted by the
decider on a token problem under a prefix softmax and under a transformer.
"""

from __future__ import annotations

from importlib.util import find_spec
from itertools import islice

import pytest

from simulations import Suite, claim
from simulations.networks import group_size, learners, suboptimality
from simulations.problems.tokens import bandits
from tests.support.gradient_mutants import BODIES, ENDINGS, ESTIMATORS, MUTANTS
from tests.support.mutants import mutated, mutated_function
from ustat_pg.checks import RivalVerdict, Verdict
from ustat_pg.experiment import Claim, Options, Store, options, run_claims
from ustat_pg.experiment.options import BUDGETS
from ustat_pg.predictions import one_step_gap

pytestmark = pytest.mark.slow

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


def pairs(mutants, on_transformers):
    """Every mutant, by name, under a prefix softmax, and some under a transformer."""
    return [
        pytest.param(on, name, id=f"{on}-{name}", marks=marks)
        for on, marks in (("tokens", ()), ("transformer", needs_torch))
        for name in mutants
        if on == "tokens" or name in on_transformers
    ]


PLANTED = {
    mutant.name: mutant
    for mutant in MUTANTS
    if mutant.file != BODIES and "optimality" not in mutant.stems
}


def suite_on(on: str) -> Suite:
    """A suite of two problems: sums of two tokens, and addition."""
    suite = Suite("smoke", on=on)
    found = list(islice(bandits(on, 0), 3))
    # In place of the whole list, which for transformers takes seconds.
    vars(suite)["stand_ins"] = tuple(entry for entry in found if entry.name in ("sums", "addition"))
    assert len(suite.stand_ins) == 2
    return suite


def results(stems, on, engine, folder):
    """Results of the claims on these, by enumeration and by simulation."""
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
    monkeypatch.setattr(options, "LARGEST_BLOCK", 4_096)
    monkeypatch.setitem(BUDGETS, "smoke", 131_072)


@pytest.mark.parametrize("on", ON)
def test_the_true_program_is_not_refuted(on, tmp_path, quick_blocks):
    for result in results(("mse", "minibatch"), on, "reference", tmp_path):
        assert result.evidence("exact") == Verdict.CONFIRMED
        assert result.evidence("simulation") != Verdict.REFUTED


@pytest.mark.parametrize(("on", "name"), pairs(PLANTED, FEW))
def test_a_wrong_program_is_refuted(name, on, tmp_path, monkeypatch, quick_blocks, record_property):
    mutant = PLANTED[name]
    record_property("mutant", f"{mutant.name} on {on}")
    mutant.plant(monkeypatch)
    engine = "reference" if mutant.file == ESTIMATORS else "cpu"
    for result in results(mutant.stems, on, engine, tmp_path):
        assert result.evidence("exact") == Verdict.REFUTED, result.stem
        assert result.evidence("simulation") == Verdict.REFUTED, result.stem


# Training runs.

RUNS = "ustat_pg/engines/networks/runs.py"

TRAINED = {
    "divided by B only": ("share = weighed / (self.training.batch_size * self.training.group_size)",
           "share = weighed / self.training.batch_size"),
    "group mean for grpo": ("self.estimator.weigh(rewards",
           'Estimator("group-mean").weigh(rewards'),
    "rate times G": ("float(rate) * slope",
           "float(rate) * training.group_size * slope"),
    "descent": ("self.theta + float(rate) * slope", "self.theta - float(rate) * slope"),
    "no step": ("self.theta + float(rate) * slope", "self.theta"),
    "without noise": ("slope = self.slope(t, contexts.long(), own)",
           "slope = torch.tensor(training.at(self.theta[0].detach().numpy()).gradient())"),
    "the rewards of other outputs": ("(contexts, outputs, drawn[..., -1])",
           "(contexts, outputs.roll(1, 0), drawn[..., -1])"),
    "one prompt for all": ("self.slope(t, contexts.long(), own)",
           "self.slope(t, torch.zeros_like(contexts).long(), own)"),
}  # fmt: skip

SEEN_ON_TRANSFORMERS = ("group mean for grpo", "divided by B only", "without noise")


def step_result(on, folder, engine="cpu"):
    """The result of the made-up problem's checks on one step."""
    found = suboptimality.claim(Suite("smoke", on=on)).checks
    checks = tuple(check for check in found if check.origin == "made-up")
    rivals = suboptimality.RIVALS
    few = Claim("suboptimality", rivals, checks, rivals)
    return run_claims([few], Options("smoke", engine), Store(folder)).claims[0]


@needs_torch
@pytest.mark.parametrize("on", ON)
def test_true_steps_are_confirmed_and_their_rivals_refuted(on, tmp_path):
    result = step_result(on, tmp_path)
    assert result.evidence("exact") is None
    assert result.evidence("simulation") == result.verdict == Verdict.CONFIRMED
    assert {rival.name for rival in result.rivals} == set(suboptimality.RIVALS)
    assert {rival.simulation for rival in result.rivals} == {RivalVerdict.REFUTED}


@needs_torch
@pytest.mark.parametrize(("on", "mutant"), pairs(TRAINED, SEEN_ON_TRANSFORMERS))
def test_wrong_steps_are_refuted(mutant, on, tmp_path, monkeypatch, record_property):
    import ustat_pg.engines.networks.runs as engine

    record_property("mutant", f"{mutant} on {on}")
    monkeypatch.setattr(engine, "run", mutated(RUNS, TRAINED[mutant]).run)
    assert step_result(on, tmp_path).evidence("simulation") == Verdict.REFUTED


@needs_torch
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("pairs once", "(1 + (i < j))", "1"),
        ("half the step", "(values[i] - values[j]) / 2", "(values[i] - values[j]) / 4"),
        ("pairs of the same output", "probs[i] * probs[j]", "probs[i] * probs[i]"),
    ],
)
def test_a_wrong_enumeration_is_refuted(name, old, new, tmp_path, monkeypatch, record_property):
    record_property("mutant", f"one step: {name}")
    monkeypatch.setattr(learners, "one_step_gap", mutated_function(one_step_gap, old, new))
    assert step_result("tokens", tmp_path).evidence("simulation") == Verdict.REFUTED


def sizes_result(folder):
    """The result of the made-up problem's check on group sizes."""
    check = next(iter(group_size.trained(Suite("smoke", on="tokens"))))
    assert check.origin == "made-up"
    rivals = group_size.TRAINED_RIVALS
    few = Claim("group_size", rivals, (check,), rivals)
    return run_claims([few], Options("smoke"), Store(folder)).claims[0]


@needs_torch
def test_true_runs_of_two_group_sizes_differ(tmp_path):
    result = sizes_result(tmp_path)
    assert result.verdict == Verdict.CONFIRMED
    (rival,) = result.rivals
    assert rival.simulation == RivalVerdict.REFUTED


@needs_torch
@pytest.mark.parametrize(("best", "worst"), [(4, 4), (16, 4)], ids=["alike", "exchanged"])
def test_the_group_sizes_claim_does_not_take_equal_runs_for_different(
    best, worst, tmp_path, monkeypatch, record_property
):
    """Were the large group's runs those of the small one, no more gap would be seen there; were they
    exchanged, less.
    """
    record_property("mutant", f"group sizes {best} and {worst} for 4 and 16")
    own = learners.Learner.runs

    def planted(self, group_size, budget, steps, rate, block):
        size = {4: best, 16: worst}[group_size]
        return own(self, size, budget, steps, rate + 1e-9 * group_size, block)

    monkeypatch.setattr(learners.Learner, "runs", planted)
    result = sizes_result(tmp_path)
    if best == worst:
        assert result.verdict != Verdict.CONFIRMED
    else:
        assert result.verdict == Verdict.REFUTED
