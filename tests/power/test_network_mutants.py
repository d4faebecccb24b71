"""Planted mutants of networks' training runs, each refuted by the decider on a token problem under a
prefix softmax and, some of them, under a transformer.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from simulations import Suite
from simulations.networks import group_size, learners, suboptimality
from tests.support.mutants import mutated, mutated_function
from ustat_pg.checks import RivalVerdict, Verdict
from ustat_pg.experiment import Claim, Options, Store, run_claims
from ustat_pg.predictions import one_step_gap

pytestmark = [
    pytest.mark.skipif(find_spec("torch") is None, reason="torch not installed"),
]
RUNS = "ustat_pg/engines/networks/runs.py"

TRAINED = {
    "divided by B only": ("share = weighed / (self.training.batch_size * self.training.group_size)",
           "share = weighed / self.training.batch_size"),
    "group mean for grpo": ("self.weigher.weigh(", 'Estimator("group-mean").weigh('),
    "rate times G": ("step(slope, float(rate))", "step(slope, float(rate) * training.group_size)"),
    "descent": ("step(slope, float(rate))", "step(-slope, float(rate))"),
    "no step": ("step(slope, float(rate))", "step(0 * slope, float(rate))"),
    "without noise": ("slope = self.slope(t, contexts.long(), own)",
           "slope = torch.tensor(training.at(self.theta[0].detach().numpy()).gradient())"),
    "the rewards of other outputs": ("(contexts, outputs, drawn[..., -1])",
           "(contexts, outputs.roll(1, 0), drawn[..., -1])"),
    "one prompt for all": ("self.slope(t, contexts.long(), own)",
           "self.slope(t, torch.zeros_like(contexts).long(), own)"),
}  # fmt: skip

ON_TRANSFORMERS = ("group mean for grpo", "divided by B only", "without noise")
PLANTED = [*(("tokens", name) for name in TRAINED), *(("transformer", n) for n in ON_TRANSFORMERS)]


def step_result(on, folder, engine="cpu"):
    """The result of the made-up problem's checks on one step."""
    found = suboptimality.claim(Suite("smoke", on=on)).checks
    checks = tuple(check for check in found if check.origin == "made-up")
    rivals = suboptimality.RIVALS
    few = Claim("suboptimality", rivals, checks, rivals)
    return run_claims([few], Options("smoke", engine), Store(folder)).claims[0]


@pytest.mark.parametrize("on", ["tokens", "transformer"])
def test_true_steps_are_confirmed_and_their_rivals_refuted(on, tmp_path):
    result = step_result(on, tmp_path)
    assert result.evidence("exact") is None
    assert result.evidence("simulation") == result.verdict == Verdict.CONFIRMED
    assert {rival.name for rival in result.rivals} == set(suboptimality.RIVALS)
    assert {rival.simulation for rival in result.rivals} == {RivalVerdict.REFUTED}


@pytest.mark.parametrize(("on", "mutant"), PLANTED)
def test_wrong_steps_are_refuted(mutant, on, tmp_path, monkeypatch, record_property):
    from ustat_pg.engines.networks import runs as engine

    record_property("mutant", f"{mutant} on {on}")
    monkeypatch.setattr(engine, "run", mutated(RUNS, TRAINED[mutant]).run)
    assert step_result(on, tmp_path).evidence("simulation") == Verdict.REFUTED


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


def test_true_runs_of_two_group_sizes_differ(tmp_path):
    result = sizes_result(tmp_path)
    assert result.verdict == Verdict.CONFIRMED
    (rival,) = result.rivals
    assert rival.simulation == RivalVerdict.REFUTED


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
