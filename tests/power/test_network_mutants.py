"""Planted mutants of the one step of a network, each refuted by the decider on a token problem under a
prefix softmax and, some of them, under a transformer.
"""

from importlib.util import find_spec

import pytest

from simulations import Suite
from simulations.engines import OneStep
from simulations.evidence import Claim, Options, RivalVerdict, Store, Verdict, run_claims
from simulations.parts import one_step
from tests.support.mutants import mutated_function
from ustat_pg.predictions import one_step_gap

pytestmark = [
    pytest.mark.skipif(find_spec("torch") is None, reason="torch not installed"),
]

WRONG = {
    "divided by B only": (".mean(axis=0)", ".mean(axis=0) * self.group_size"),
    "group mean for grpo": ("estimator.advantages(", 'Estimator("group-mean").advantages('),
    "descent": ("self.rate * estimate", "-self.rate * estimate"),
    "no step": ("self.rate * estimate", "0 * estimate"),
    "without noise": ("self.rate * estimate", "self.rate * problem.gradient()"),
    "the rewards of other outputs": ("mean_rewards[contexts, arms]", "mean_rewards[contexts, arms[:, ::-1]]"),
    "one prompt for all": ("outcome[:, :1], outcome[:, 1:]", "0 * outcome[:, :1], outcome[:, 1:]"),
}  # fmt: skip

ON_TRANSFORMERS = ("group mean for grpo",)
PLANTED = [*(("tokens", name) for name in WRONG), *(("transformer", n) for n in ON_TRANSFORMERS)]


def step_result(on, folder, engine="cpu"):
    """The result of the made-up problem's checks on one step."""
    result = one_step.on_networks(Suite("smoke", on=on))
    checks = tuple(check for check in result if check.origin == "made-up")
    rivals = one_step.RIVALS
    few = Claim("suboptimality", rivals, checks)
    return run_claims([few], Options("smoke", engine), Store(folder)).claims[0]


@pytest.mark.parametrize("on", ["tokens", "transformer"])
def test_true_steps_are_confirmed_and_their_rivals_refuted(on, tmp_path):
    result = step_result(on, tmp_path)
    assert result.evidence("exact") == result.evidence("simulation") == Verdict.CONFIRMED
    assert {rival.name for rival in result.rivals} == set(one_step.RIVALS)
    seen = {found for rival in result.rivals for found in (rival.exact, rival.simulation)}
    assert seen == {RivalVerdict.REFUTED}


@pytest.mark.parametrize(("on", "mutant"), PLANTED)
def test_wrong_steps_are_refuted(mutant, on, tmp_path, monkeypatch):
    wrong = mutated_function(OneStep._gap_after, *WRONG[mutant])
    monkeypatch.setattr(OneStep, "_gap_after", wrong)
    result = step_result(on, tmp_path)
    assert result.evidence("exact") == result.evidence("simulation") == Verdict.REFUTED


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(1 + (i < j))", "1"),
        ("(values[i] - values[j]) / 2", "(values[i] - values[j]) / 4"),
        ("probs[i] * probs[j]", "probs[i] * probs[i]"),
    ],
    ids=["pairs once", "half the step", "pairs of the same output"],
)
def test_a_wrong_enumeration_is_refuted(old, new, tmp_path, monkeypatch):
    monkeypatch.setattr(one_step, "one_step_gap", mutated_function(one_step_gap, old, new))
    assert step_result("tokens", tmp_path).evidence("simulation") == Verdict.REFUTED
