"""Cells of networks' training runs: names, addresses, refusals, ranges, quantities, memory."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import combinations

import numpy as np
import pytest

from ustat_pg.engines import (
    Adam,
    Constant,
    Decay,
    Estimator,
    Gap,
    GapTransform,
    InfeasibleError,
    Muon,
    Pit,
    SquaredError,
)
from ustat_pg.engines.networks.cell import NetworkTraining, OutOfMemory, PolicyQuantity
from ustat_pg.memory import out_of_memory
from ustat_pg.policies import OutputSpace, PrefixSoftmax
from ustat_pg.problems import SoftmaxBandit, modular_sum, random_problem
from ustat_pg.validation import InputError, changed

GRPO, ORACLE, VANILLA = Estimator("grpo"), Estimator("oracle"), Estimator("vanilla")
PROBLEM = modular_sum(3, 2, end=True)
POLICY = PrefixSoftmax.random(PROBLEM.space, 3, seed=1)
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch not installed")


def cell(**changed):
    """A small cell, some things changed."""
    asked = {
        "problem": PROBLEM,
        "policy": POLICY,
        "group_size": 3,
        "steps": 4,
        "schedule": Constant(0.5),
        "block": 8,
    }
    return NetworkTraining(**(asked | changed))


@dataclass(frozen=True)
class Length(PolicyQuantity):
    """‖g‖² at a step."""

    estimator: Estimator
    step: int
    range: tuple[float, float] = (0.0, 4.0)

    @property
    def label(self):
        return f"length[{self.estimator.label},{self.step}]"

    def of(self, bandit):
        return bandit.moments().mean_gradient_sq


# Names.

CHANGES = {
    "nothing": {},
    "group size": {"group_size": 4},
    "batch size": {"batch_size": 3},
    "design": {"batch_size": 3, "design": "epochs"},
    "problem": {"problem": modular_sum(3, 2, end=True, prompts=[(0,), (2,), (1,)])},
    "verifier": {"problem": changed(PROBLEM, verifier=lambda x, y: float(len(y)))},
    "prompt probabilities": {"problem": modular_sum(3, 2, end=True, probs=[0.2, 0.3, 0.5])},
    "policy": {"policy": PrefixSoftmax.random(PROBLEM.space, 3, seed=2)},
    "shared policy": {"policy": PrefixSoftmax.random(PROBLEM.space, 3, seed=1, shared=True)},
    "steps": {"steps": 5},
    "rate": {"schedule": Constant(0.6)},
    "schedule": {"schedule": Decay(0.5)},
    "spread": {"start_scale": 0.1},
    "device": {"device": "cuda"},
    "precision": {"precision": "float32"},
    "chunk": {"chunk": 4},
    "optimizer": {"optimizer": "adam"},
    "optimizer's numbers": {"optimizer": Adam(beta1=0.5)},
}
NAME = "network/0594abdeed6565fe/G3/B1/iid/44f506b3707fa0ab"
"""Of the cell above, before there were other optimizers than plain SGD."""

IN_ADDRESS = (
    "group size",
    "batch size",
    "design",
    "problem",
    "verifier",
    "prompt probabilities",
)


def test_every_change_has_a_name_of_its_own():
    names = {what: cell(**changed).name for what, changed in CHANGES.items()}
    for (one, first), (two, second) in combinations(names.items(), 2):
        assert first != second, (one, two)
    assert all(name.startswith("network/") for name in names.values())
    assert cell() == cell()
    assert hash(cell()) == hash(cell())
    assert cell() != cell(steps=5)
    assert cell() != "a cell"


def test_the_address_holds_what_is_drawn_and_no_more():
    own = cell().address
    for what, change in CHANGES.items():
        assert (cell(**change).address != own) == (what in IN_ADDRESS), what
    assert cell(device="cuda:1").name == cell(device="cuda").name


def test_plain_sgd_keeps_the_name_that_it_had():
    """Blocks stored before there were other optimizers are found."""
    assert cell().name == cell(optimizer="sgd").name == NAME
    assert cell(optimizer="adam").name == cell(optimizer=Adam()).name


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Adam(beta1=1.0), "beta1 is 1.0: it must lie between 0 and 1"),
        (lambda: Adam(beta2=-0.1), "beta2 is -0.1: it must lie between 0 and 1"),
        (lambda: Adam(eps=0.0), "eps is 0.0: it must be positive"),
        (lambda: Muon(momentum=np.nan), "momentum"),
        (lambda: Muon(ns_steps=0), "ns_steps is 0"),
        (lambda: Muon(ns_steps=100), "ns_steps is 100: it must be below 100"),
        (lambda: Muon(adjust_lr_fn="rms"), "adjust_lr_fn 'rms' is unknown"),
        (lambda: Muon(adam="adam"), "adam is 'adam': it must be an Adam"),
    ],
)
def test_numbers_of_optimizers_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_a_cell_survives_being_sent():
    assert pickle.loads(pickle.dumps(cell())) == cell()


# Refusals.


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"problem": POLICY}, "must be a TokenProblem or a SoftmaxBandit"),
        ({"problem": PROBLEM.at(POLICY)}, "give the TokenProblem and the policy apart"),
        ({"problem": random_problem(0)}, "must be the bandit's own"),
        ({"policy": PrefixSoftmax.zeros(OutputSpace(3, 2), 3)}, "the policy's outputs are"),
        ({"policy": random_problem(0).policy}, "the policy's outputs are None"),
        (
            {"policy": PrefixSoftmax.zeros(PROBLEM.space, 2)},
            "has 2 prompts and 13 outputs: the problem has 3 and 13",
        ),
        ({"group_size": 0}, "group size is 0"),
        ({"steps": 0}, "steps is 0"),
        ({"steps": 2**20 + 1}, "it can be at most 1048576"),
        ({"batch_size": 2**10 + 1}, "it can be at most 1024"),
        ({"design": "fixed"}, "design 'fixed' is unknown"),
        ({"design": "epochs", "batch_size": 2}, "must divide the number of contexts, 3"),
        (
            CHANGES["prompt probabilities"] | {"design": "epochs"},
            "needs uniform context probabilities",
        ),
        ({"schedule": 0.1}, "it must be a Constant or a Decay"),
        ({"start_scale": -1.0}, "not negative"),
        ({"start_scale": [1.0, 2.0]}, r"a number or \(48,\)"),
        ({"device": "tpu"}, "choose cpu, cuda or cuda:N"),
        ({"precision": "float16"}, "choose one of float64, float32"),
        ({"chunk": 0}, "chunk is 0"),
        ({"block": 0}, "block is 0"),
        ({"optimizer": "lion"}, "optimizer 'lion' is unknown: choose one of sgd, adam, muon"),
        ({"optimizer": None}, "optimizer None is unknown"),
        ({"optimizer": "muon"}, "hidden layers: a PrefixSoftmax has none, choose sgd or adam"),
    ],
)
def test_what_does_not_fit_is_refused(changed, message):
    with pytest.raises(InputError, match=message):
        cell(**changed)


def test_a_bandit_of_another_policy_is_refused():
    tabulated = SoftmaxBandit(
        POLICY, np.full(3, 1 / 3), PROBLEM.rewards[:, :, None], np.ones((3, 13, 1))
    )
    with pytest.raises(InputError, match="the bandit's policy is a PrefixSoftmax"):
        NetworkTraining(tabulated, POLICY, 3, 4, Constant(0.5))


@pytest.mark.parametrize(
    ("quantities", "message"),
    [
        ([], "at least one quantity"),
        ([SquaredError(GRPO)], "is no quantity of a network's training run"),
        ([Pit(GRPO, 2, (1.0,))], "is no quantity of a network's training run"),
        ([GapTransform(GRPO, 2, 1.0)], "is no quantity of a network's training run"),
        ([Gap(GRPO, 5)], "step is 5: the runs take 4"),
        ([Length(GRPO, -1)], "step is -1"),
        ([Gap("grpo", 2)], "estimator is 'grpo'"),
        ([Gap(Estimator("mine", function=lambda z, draws: z), 2)], "runs cannot take mine"),
    ],
)
def test_quantities_that_are_none_are_refused(quantities, message):
    with pytest.raises(InputError, match=message):
        cell().require_quantities(quantities)


@pytest.mark.parametrize("name", ["grpo", "norm-weighted"])
def test_a_group_of_one_leaves_no_other(name):
    with pytest.raises(InputError, match="needs a group of at least 2: group size is 1"):
        cell(group_size=1).require_quantities([Gap(Estimator(name), 1)])
    cell(group_size=1).require_quantities([Gap(VANILLA, 1)])


def test_scores_of_all_outputs_are_refused_with_their_size():
    problem = modular_sum(11, 4)
    policy = PrefixSoftmax.zeros(problem.space, 11, shared=True)
    large = cell(problem=problem, policy=policy, batch_size=2)
    size = 8 * 2 * 11**4 * policy.d / 2**30
    with pytest.raises(InputError, match=rf"29282 outputs in 16104 parameters .* {size:.1f} GiB"):
        large.require_quantities([Gap(Estimator("minimum-variance"), 1)])
    large.require_quantities([Gap(ORACLE, 1)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"snapshots": []}, "must be increasing steps from 0 to 4"),
        ({"snapshots": [2, 1]}, "must be increasing steps"),
        ({"snapshots": [5]}, "must be increasing steps"),
    ],
)
def test_runs_that_cannot_be_asked_for_are_refused(arguments, message):
    asked = {"snapshots": [1], "first": 0, "replications": 1} | arguments
    with pytest.raises(InputError, match=message):
        cell().train(GRPO, asked.pop("snapshots"), **asked)


# What plans and blocks ask.


def test_what_the_experiment_layer_asks():
    own = cell(batch_size=2)
    assert (own.outputs, own.block) == (4 * 2 * 3, 8)
    assert own.engine("cpu") == own.engine("cuda") == "autograd"
    with pytest.raises(InfeasibleError, match="simulated"):
        own.require_exact([Gap(GRPO, 1)])
    with pytest.raises(InfeasibleError):
        own.measure("exact", [Gap(GRPO, 1)])
    with pytest.raises(
        InputError, match="engine 'cpu' cannot run a NetworkTraining: choose one of autograd"
    ):
        own.measure("cpu", [Gap(GRPO, 1)], replications=1)


def test_ranges():
    own = cell()
    worst = PROBLEM.optimum - PROBLEM.rewards.min(axis=1).mean()
    assert own.range(Gap(GRPO, 1, 3.0)) == (0.0, pytest.approx(3 * worst))
    assert own.range(Length(GRPO, 1)) == (0.0, 4.0)
    assert 0 < own.rounding(Gap(GRPO, 1)) < 1e-8


@pytest.mark.parametrize(("chunk", "halves"), [(None, [4, 2, 1]), (3, [1]), (100, [4, 2, 1])])
def test_chunks_halve_down_to_one(chunk, halves):
    found, own = [], cell(chunk=chunk)
    while (own := own.halved()) is not None:
        found.append(own.chunk)
        assert own.address == cell().address
    assert found == halves


# Measures.


@needs_torch
def test_quantities_are_those_of_the_bandit_on_the_way():
    own, steps = cell(batch_size=2, start_scale=0.2), (0, 2, 4)
    quantities = [Gap(GRPO, 4, 2.0), Length(ORACLE, 2), Gap(ORACLE, 2)]
    quantities += [Length(GRPO, 4), Gap(GRPO, 0), Length(GRPO, 0)]
    sums = own.measure("autograd", quantities, seed=3, first=11, replications=6)
    values = np.empty((6, len(quantities)))
    for column, quantity in enumerate(quantities):
        theta = own.train(quantity.estimator, steps, seed=3, first=11, replications=6)
        for run in range(6):
            bandit = PROBLEM.bandit(POLICY.with_theta(theta[run, steps.index(quantity.step)]))
            if isinstance(quantity, Gap):
                values[run, column] = quantity.scale * PROBLEM.gap(bandit)
            else:
                values[run, column] = quantity.of(bandit)
    assert sums.n == 6
    assert sums.mean == pytest.approx(values.mean(axis=0), abs=1e-12)
    assert sums.covariance == pytest.approx(np.cov(values.T), abs=1e-12)
    # Paired: estimators share their draws, so that gaps of two of them go together.
    assert sums.covariance[2, 2] > 0


@needs_torch
def test_a_bandits_runs_are_measured():
    bandit = random_problem(0)
    own = NetworkTraining(bandit, bandit.policy, 3, 4, Constant(0.5))
    sums = own.measure("autograd", [Gap(GRPO, 0), Length(GRPO, 0)], replications=2)
    best = bandit.context_probs @ bandit.mean_rewards.max(axis=1)
    gradient = bandit.gradient()
    assert sums.mean == pytest.approx([best - bandit.objective(), gradient @ gradient], rel=1e-10)


@needs_torch
def test_a_probe_that_is_not_finite_is_refused():
    class Wrong(Length):
        def of(self, bandit):
            return np.nan

    with pytest.raises(InputError, match=r"length\[grpo,1\] is nan"):
        cell().measure("autograd", [Wrong(GRPO, 1)], replications=2)


@needs_torch
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="is not there"):
        cell(device="cuda:99").measure("autograd", [Gap(GRPO, 1)], replications=2)


# Memory.


def plant(monkeypatch, slope):
    """Have runs take another slope, made of the runs and their own."""
    from ustat_pg.engines.networks.runs import _Runs

    own = _Runs.slope
    monkeypatch.setattr(_Runs, "slope", lambda runs, *a: slope(runs, lambda: own(runs, *a)))


@needs_torch
@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("[enforce fail] . DefaultCPUAllocator: can't allocate memory")],
)
def test_running_out_of_memory_says_how_many_runs_there_were(monkeypatch, error):
    def small(runs, own):
        if runs.count > 2:
            raise error
        return own()

    plant(monkeypatch, small)
    training, refused = cell(), []
    while True:
        try:
            sums = training.measure("autograd", [Gap(GRPO, 4)], replications=8)
        except OutOfMemory as caught:
            refused.append((caught.chunk, out_of_memory(caught)))
            training = training.halved()
        else:
            break
    assert (refused, training.chunk) == ([(8, True), (4, True)], 2)
    monkeypatch.undo()
    whole = cell().measure("autograd", [Gap(GRPO, 4)], replications=8)
    assert sums.mean == pytest.approx(whole.mean, rel=1e-12)


@needs_torch
def test_other_errors_stay_what_they_are(monkeypatch):
    def wrong(runs, own):
        raise RuntimeError("shapes do not match")

    plant(monkeypatch, wrong)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        cell().train(GRPO, [1])


def test_an_out_of_memory_survives_being_sent():
    again = pickle.loads(pickle.dumps(OutOfMemory(16)))
    assert (type(again), again.chunk, str(again)) == (
        OutOfMemory,
        16,
        "out of memory with 16 runs at once",
    )


@needs_torch
def test_more_than_memory_is_told(monkeypatch):
    """The allocator's own words, asked for 2⁵⁰ bytes."""
    import torch

    plant(monkeypatch, lambda runs, own: torch.empty(2**47, dtype=torch.float64))
    with pytest.raises(OutOfMemory, match="with 2 runs at once"):
        replace(cell(), chunk=2).train(GRPO, [1], replications=3)
