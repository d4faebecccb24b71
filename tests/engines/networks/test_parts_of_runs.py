"""The parts of network runs: tables, draws, forms of a step, norms, refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch.func import vmap

from ustat_pg import rng
from ustat_pg.engines import Constant, Decay, Estimator
from ustat_pg.engines.networks import runs as network_runs
from ustat_pg.engines.networks.cell import NetworkTraining
from ustat_pg.engines.networks.models import model_of
from ustat_pg.engines.networks.runs import Tables, objectives
from ustat_pg.policies import OutputSpace, PrefixSoftmax
from ustat_pg.policies.transformer import TransformerPolicy
from ustat_pg.problems import TokenProblem, modular_sum, random_problem
from ustat_pg.validation import InputError

GRPO = Estimator("grpo")
PROMPTS = [(0,), (1, 2, 0), (), (2, 2)]
SPACES = {
    "one length": OutputSpace(3, 3),
    "end": OutputSpace(3, 2, end=True),
    "one token": OutputSpace(4, 1),
    "one token or none": OutputSpace(3, 1, end=True),
    "one word": OutputSpace(1, 3, end=True),
}
each_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)


def network(space, prompts=PROMPTS, **options):
    return TransformerPolicy.initial(space, prompts, width=4, layers=2, seed=3, **options)


POLICIES = {
    "prompts of several lengths": network,
    "prompts of one length": lambda space: network(space, [(0, 1), (2, 2), (1, 0), (0, 0)]),
    "softmax per prefix": lambda space: PrefixSoftmax.random(space, 4, seed=1),
    "shared": lambda space: PrefixSoftmax.random(space, 4, seed=1, shared=True),
}


def problem_of(space, prompts=PROMPTS):
    return TokenProblem(space, prompts, lambda x, y: (sum(y) + len(y) + 2 * len(x)) % 3 / 2)


def cell(policy, problem=None, **changed):
    own = problem_of(policy.space) if problem is None else problem
    asked = {"group_size": 3, "steps": 3, "schedule": Constant(1.0), "batch_size": 2} | changed
    return NetworkTraining(own, policy, **asked)


def numbers_of(space):
    """Output and prefixes on its way, by the tokens themselves."""
    prefixes = {}
    for k in range(space.count):
        tokens = [int(t) for t in space.outputs[k] if t >= 0]
        for t in range(len(tokens)):
            prefixes.setdefault(tuple(tokens[:t]), int(space.nodes[k, t]))
    return prefixes


# Tables.


@each_space
@pytest.mark.parametrize("most", [0, 10**6], ids=["leaves", "tree"])
@pytest.mark.parametrize("kind", POLICIES)
def test_tables_hold_every_prefix_of_every_prompt(kind, space, most, monkeypatch):
    monkeypatch.setattr(network_runs, "_TREE", most)
    policy = POLICIES[kind](space)
    model = model_of(policy)
    tables = Tables(model, 4)
    if isinstance(policy, TransformerPolicy):
        assert tables._by_tree == bool(most)
    found = tables(model.theta(), torch.tensor([3, 0, 2, 1])).numpy()
    assert found.shape == (4, space.prefixes, space.symbols)
    assert np.exp(found).sum(axis=-1) == pytest.approx(np.ones(found.shape[:2]), abs=1e-12)
    along = [space.along(table) for table in found]
    assert np.stack(along) == pytest.approx(policy.logits[[3, 0, 2, 1]], abs=1e-12)


def test_a_tree_that_shows_a_sibling_is_seen(monkeypatch):
    """Planted: every node sees those before it, as in a text."""
    space = SPACES["one length"]
    policy = network(space)
    model = model_of(policy)
    tables = Tables(model, 4)
    size = tables._hidden.shape[-1]
    tables._hidden = torch.ones(size, size, dtype=torch.bool).triu(1).expand(4, size, size)
    found = tables(model.theta(), torch.arange(4)).numpy()
    assert np.abs(space.along(found[1]) - policy.logits[1]).max() > 1e-3


@each_space
def test_where_a_token_leads(space):
    after, prefixes = network_runs._after(space), numbers_of(space)
    for prefix, node in prefixes.items():
        for token in range(space.symbols):
            way = (*prefix, token)
            if way in prefixes:
                assert after[node, token] == prefixes[way]
            else:
                output = -1 - after[node, token]
                assert tuple(t for t in space.outputs[output].tolist() if t >= 0) == way


# Draws.


@pytest.mark.parametrize("words", [1, 2**18])
@pytest.mark.parametrize(("contexts", "batch"), [(6, 1), (6, 3), (6, 6), (1, 1)])
def test_epochs_take_every_prompt_once(contexts, batch, words, monkeypatch):
    monkeypatch.setattr(network_runs, "_WORDS", words)
    problem = modular_sum(6, 1, prompts=[(x,) for x in range(contexts)])
    policy = PrefixSoftmax.zeros(problem.space, contexts)
    steps = 7 * contexts // batch - (contexts > batch)
    training = cell(policy, problem, steps=steps, batch_size=batch, design="epochs")
    key = rng.cell_key(0, training.address)
    ends = torch.tensor(rng.thresholds(problem.probs))
    found = network_runs._prompts(training, key, 5 + torch.arange(40), ends).numpy()
    assert found.shape == (steps, 40, batch)
    ways = found.transpose(1, 0, 2).reshape(40, -1)[:, : 6 * contexts].reshape(-1, contexts)
    assert (np.sort(ways, axis=1) == np.arange(contexts)).all()
    counts = np.stack([np.bincount(column, minlength=contexts) for column in ways.T])
    expected = len(ways) / contexts
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected)).all()


def test_prompts_are_drawn_by_their_probabilities():
    probs = np.array([0.1, 0.6, 0.0, 0.3])
    problem = TokenProblem(OutputSpace(2, 1), [(0,), (1,), (0, 1), ()], len_of, probs)
    training = cell(PrefixSoftmax.zeros(problem.space, 4), problem, steps=50, batch_size=4)
    ends = torch.tensor(rng.thresholds(probs))
    found = network_runs._prompts(training, rng.cell_key(1, "x"), torch.arange(30), ends)
    share = np.bincount(found.numpy().ravel(), minlength=4) / found.numel()
    assert share[2] == 0
    assert (np.abs(share - probs) <= 5 * np.sqrt(probs * (1 - probs) / found.numel())).all()


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


def len_of(prompt, output):
    return float(len(prompt) + len(output))


def test_stretches_of_words_change_nothing(monkeypatch):
    training = cell(network(SPACES["end"]), steps=5)
    whole = training.train(GRPO, (5,), replications=3)
    monkeypatch.setattr(network_runs, "_WORDS", 1)
    assert np.array_equal(training.train(GRPO, (5,), replications=3), whole)


@each_space
def test_outputs_have_their_probabilities(space):
    """The share of each output among many, drawn in either form."""
    policy = network(space)
    training = cell(policy, group_size=64, batch_size=8, steps=1)
    for by_table in (True, False):
        runs = network_runs._Runs(training, GRPO, 0, 0, 40)
        assert type(runs.by_table) is bool
        contexts = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3]).expand(40, 8)
        drawn = next(network_runs._outputs_words(training, runs.key, runs.numbers, space.length))
        way = runs._by_table if by_table else runs._by_walk
        outputs = way(1, runs.theta.clone().requires_grad_(), contexts, drawn)[2].numpy()
        for x in range(4):
            own = outputs[:, [x, x + 4]].ravel()
            share = np.bincount(own, minlength=space.count) / len(own)
            error = np.sqrt(policy.probs[x] * (1 - policy.probs[x]) / len(own))
            assert (np.abs(share - policy.probs[x]) <= 5 * error + 1e-12).all()


@each_space
def test_both_forms_make_the_same_step(space):
    policy = network(space)
    training = cell(policy, group_size=6)
    for name in ("grpo", "vanilla", "norm-weighted"):
        found = []
        for by_table in (True, False):
            runs = network_runs._Runs(training, Estimator(name), 2, 9, 5)
            runs.by_table = by_table
            found.append(list(runs.states())[-1].numpy())
        assert np.abs(found[0] - found[1]).max() < 1e-12
        assert np.abs(found[0] - policy.theta).max() > 1e-2


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
def test_norms_are_those_of_the_scores(bytes_at_once, monkeypatch):
    monkeypatch.setattr(network_runs, "_BYTES", bytes_at_once)
    policy = network(SPACES["end"])
    for group in (3, 64):
        runs = network_runs._Runs(cell(policy, group_size=group), GRPO, 0, 0, 2)
        theta = runs.theta + torch.tensor([[0.0], [0.1]], dtype=torch.float64)
        generator = np.random.default_rng(0)
        contexts = generator.integers(4, size=(2, 2))
        outputs = generator.integers(policy.space.count, size=(2, 2, group))
        found = runs._norms_of(theta, torch.tensor(contexts), torch.tensor(outputs)).numpy()
        for r in range(2):
            norms = policy.with_theta(policy.theta + 0.1 * r).squared_norms
            expected = norms[contexts[r][:, None], outputs[r]]
            assert found[r] == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("bytes_at_once", [1, 2**27])
def test_returns_are_enumerated(bytes_at_once, monkeypatch):
    monkeypatch.setattr(network_runs, "_BYTES", bytes_at_once)
    generator = np.random.default_rng(0)
    for policy in (network(SPACES["one length"]), PrefixSoftmax.zeros(SPACES["end"], 4)):
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
    policy = network(SPACES["end"])
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
    training = cell(network(SPACES["one length"]), schedule=Decay(0.5))
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
    training = cell(network(SPACES["end"]), start_scale=1e200)
    with pytest.raises(InputError, match=r"run 0 of grpo .* after 0 steps, before any"):
        training.train(GRPO, (1,), replications=2)


def test_gradients_are_taken_whatever_surrounds_them():
    training = cell(network(SPACES["end"]))
    own = training.train(GRPO, (3,), replications=2)
    with torch.no_grad():
        assert np.array_equal(training.train(GRPO, (3,), replications=2), own)


def test_the_gradient_is_that_of_each_run_alone():
    """One backward pass for all, against one for each under vmap."""
    policy = network(SPACES["end"])
    training = cell(policy, start_scale=0.3)
    runs = network_runs._Runs(training, GRPO, 0, 0, 4)
    drawn = next(network_runs._outputs_words(training, runs.key, runs.numbers, 2))
    contexts = torch.tensor([[0, 1], [1, 1], [3, 2], [2, 0]])
    slope = runs.slope(1, contexts, drawn)
    theta = runs.theta.clone().requires_grad_()
    outputs = runs._by_table(1, theta, contexts, drawn)[2]
    z = runs.problem.rewards.reshape(4, -1)[contexts[..., None], outputs]
    advantage = z - (z.sum(-1, keepdim=True) - z) / 2
    tokens = runs.model.outputs()[outputs].flatten(1, 2)
    every = contexts[..., None].expand(4, 2, 3).flatten(1)

    def loss(point, x, y, a):
        return (a * runs.model.log_prob(point, x, y)).sum() / 6

    each = vmap(torch.func.grad(loss))(runs.theta, every, tokens, advantage.flatten(1))
    assert (slope - each).abs().max() < 1e-12
    assert each.abs().max() > 1e-3


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

    training = replace(cell(network(SPACES["end"])), steps=1)
    training.measure("autograd", [Gap(GRPO, 1)], replications=2)
    training.train(GRPO, (1,), replications=2)
    assert seen == [1, 2]
    assert torch.get_num_threads() == 2
