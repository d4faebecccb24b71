"""The parts of network runs: draws, the form of a step, enumerated returns, refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from ustat_pg import rng
from ustat_pg.engines import Constant, Decay, Estimator
from ustat_pg.engines.networks import runs as network_runs
from ustat_pg.engines.networks.cell import NetworkTraining
from ustat_pg.engines.networks.runs import objectives
from ustat_pg.policies import OutputSpace, PrefixSoftmax
from ustat_pg.policies.transformer import TransformerPolicy
from ustat_pg.problems import TokenProblem, modular_sum, random_problem
from ustat_pg.validation import InputError

GRPO = Estimator("grpo")
PROMPTS = [(0,), (1, 2, 0), (), (2, 2)]
ENDED = OutputSpace(3, 2, end=True)


def network(space=ENDED, prompts=PROMPTS, **options):
    return TransformerPolicy.initial(space, prompts, width=4, layers=2, seed=3, **options)


def problem_of(space, prompts=PROMPTS):
    return TokenProblem(space, prompts, lambda x, y: (sum(y) + len(y) + 2 * len(x)) % 3 / 2)


def cell(policy, problem=None, **changed):
    own = problem_of(policy.space) if problem is None else problem
    asked = {"group_size": 3, "steps": 3, "schedule": Constant(1.0), "batch_size": 2} | changed
    return NetworkTraining(own, policy, **asked)


# Draws.


def test_a_word_at_an_end_chooses_what_is_behind_it(monkeypatch):
    """First a with w 2⁻³² C_A < C_a, and the first prompt whose end is above the word."""
    ends = torch.tensor([1.0, 2.0, 2.0, 4.0], dtype=torch.float64)
    drawn = torch.tensor([0, 2**30 - 1, 2**30, 2**31 - 1, 2**31, 2**32 - 1])
    assert network_runs._choose(ends.expand(6, 4), drawn).tolist() == [0, 0, 1, 1, 3, 3]
    monkeypatch.setattr(network_runs, "words", lambda key, numbers, slot, count, first: drawn[None])
    problem = modular_sum(4, 1, probs=[0.25, 0.25, 0.0, 0.5])
    training = cell(PrefixSoftmax.zeros(problem.space, 4), problem, steps=3)
    ends = torch.tensor(rng.thresholds(problem.probs))
    found = network_runs._prompts(training, rng.cell_key(0, "x"), torch.arange(1), ends)
    assert found.flatten().tolist() == [0, 0, 1, 1, 3, 3]


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_running_sums_are_those_of_double_precision(precision):
    logits = torch.randn(50, 9, generator=torch.Generator().manual_seed(0)).to(precision)
    exact = np.exp(logits.numpy().astype(float) - logits.numpy().max(axis=1, keepdims=True))
    found = network_runs._running(logits).numpy()
    assert found == pytest.approx(exact.cumsum(axis=1), rel=1e-14)


def test_stretches_of_words_change_nothing(monkeypatch):
    """Of two epochs and a half."""
    training = cell(network(), steps=5, design="epochs")
    whole = training.train(GRPO, (5,), replications=3)
    monkeypatch.setattr(network_runs, "_WORDS", 1)
    assert np.array_equal(training.train(GRPO, (5,), replications=3), whole)


def test_the_cheaper_form_is_taken():
    problem = modular_sum(4, 4)
    policy = TransformerPolicy.initial(problem.space, problem.prompts, width=4)

    def form(group, estimator=GRPO):
        training = cell(policy, problem, group_size=group, batch_size=1)
        return network_runs._Runs(training, estimator, 0, 0, 1).by_table

    assert (form(2), form(512)) == (False, True)
    assert form(2, Estimator("oracle"))
    assert form(2, Estimator("minimum-variance"))


# Numbers of outputs.


@pytest.mark.parametrize("bytes_at_once", [1, 2**27])
def test_returns_are_enumerated(bytes_at_once, monkeypatch):
    monkeypatch.setattr(network_runs, "_BYTES", bytes_at_once)
    generator = np.random.default_rng(0)
    for policy in (network(OutputSpace(3, 3)), PrefixSoftmax.zeros(ENDED, 4)):
        training = cell(policy, precision="float32")
        theta = policy.theta + generator.normal(size=(5, policy.d))
        expected = [training.at(point).objective() for point in theta]
        assert objectives(training, theta) == pytest.approx(expected, abs=1e-12)
    bandit = random_problem(1)
    training = NetworkTraining(bandit, bandit.policy, 2, 1, Constant(0.1))
    theta = bandit.policy.theta + generator.normal(size=(3, bandit.d))
    expected = [bandit.objective(point) for point in theta]
    assert objectives(training, theta) == pytest.approx(expected, abs=1e-12)


# Parameters that are kept, and refused.


def test_small_steps_are_not_rounded_away():
    """θ stays in float64 where the network is in float32: 1e-12 is below its last place."""
    policy = network()
    training = cell(policy, precision="float32", schedule=Constant(1e-12))
    theta = training.train(GRPO, (0, 1, 3), replications=2)
    assert theta.dtype == np.float64
    assert (theta[:, 0] == policy.theta).all()
    steps = np.abs(theta[:, 2] - theta[:, 1]).max()
    assert 1e-14 < steps < 1e-11


@pytest.mark.parametrize("by_table", [True, False])
def test_runs_that_diverge_are_named(by_table, monkeypatch):
    """Run 6 alone is sent to infinity by its second step."""
    own = network_runs._Runs.slope

    def slope(self, t, contexts, drawn):
        found = own(self, t, contexts, drawn)
        found[self.numbers == 6] *= np.inf if t == 2 else 1.0
        return found

    monkeypatch.setattr(network_runs._Runs, "slope", slope)
    training = cell(network(OutputSpace(3, 3)), schedule=Decay(0.5))
    own_init = network_runs._Runs.__init__

    def init(self, *arguments):
        own_init(self, *arguments)
        self.by_table = by_table

    monkeypatch.setattr(network_runs._Runs, "__init__", init)
    message = r"run 6 of grpo has {} that are not finite after 2 steps, with a rate of 0\.25"
    with pytest.raises(InputError, match=message.format("log-probabilities")):
        training.train(GRPO, (3,), first=4, replications=4)
    with pytest.raises(InputError, match=message.format("parameters")):
        training.train(GRPO, (2,), first=4, replications=4)
    assert np.isfinite(training.train(GRPO, (1,), first=4, replications=4)).all()
    assert np.isfinite(training.train(GRPO, (3,), first=4, replications=2)).all()


def test_a_start_that_is_too_far_is_named():
    training = cell(network(), start_scale=1e200)
    with pytest.raises(InputError, match=r"run 0 of grpo .* after 0 steps, before any"):
        training.train(GRPO, (1,), replications=2)


def test_gradients_are_taken_whatever_surrounds_them():
    training = cell(network())
    own = training.train(GRPO, (3,), replications=2)
    with torch.no_grad():
        assert np.array_equal(training.train(GRPO, (3,), replications=2), own)


def test_threads_are_limited_in_a_block(monkeypatch):
    """Blocks are the only parallel layer; outside of one the caller's threads are used."""
    if torch.get_num_threads() != 1:  # pragma: no cover
        pytest.skip("threads cannot be set here")
    torch.set_num_threads(2)
    seen, own = [], network_runs._Runs.slope

    def slope(self, *arguments):
        seen.append(torch.get_num_threads())
        return own(self, *arguments)

    monkeypatch.setattr(network_runs._Runs, "slope", slope)
    from ustat_pg.engines import Gap

    training = replace(cell(network()), steps=1)
    training.measure("autograd", [Gap(GRPO, 1)], replications=2)
    training.train(GRPO, (1,), replications=2)
    assert seen == [1, 2]
    assert torch.get_num_threads() == 2
