"""Training runs in torch against the trajectory engines, and against arithmetic of their own here."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from tests.support.laws import FAR
from tests.support.problems import RUN_ESTIMATORS, smooth
from tests.support.run_laws import TOLERANCE
from ustat_pg import rng
from ustat_pg.engines import Adam, Constant, Decay, Estimator, Gap, Muon
from ustat_pg.engines.networks import runs as network_runs
from ustat_pg.engines.networks.cell import NetworkTraining
from ustat_pg.engines.runs.trajectory import Trajectory
from ustat_pg.policies import (
    ArmLinearSoftmax,
    OutputSpace,
    PrefixSoftmax,
    SharedLinearSoftmax,
    TabularSoftmax,
)
from ustat_pg.policies.transformer import TransformerPolicy
from ustat_pg.problems import SoftmaxBandit, TokenProblem, modular_sum, sorting
from ustat_pg.validation import changed

GRPO = Estimator("grpo")
each_baseline = pytest.mark.parametrize("estimator", RUN_ESTIMATORS, ids=lambda e: e.label)


# Bandits and outputs of one token: the runs of trajectory engines on the same draws.


def by_arm(problem, policy):
    """The problem with a linear policy of the same logits, which the trajectory engines read."""
    contexts, arms = policy.logits.shape
    each = np.eye(contexts * arms).reshape(contexts, arms, -1)
    if isinstance(policy, SharedLinearSoftmax):
        each = np.einsum("xm,kl->xklm", policy.features, np.eye(arms)).reshape(contexts, arms, -1)
    elif policy.d == arms:
        each = np.tile(np.eye(arms), (contexts, 1, 1))
    known = ArmLinearSoftmax(each, policy.theta)
    if isinstance(problem, SoftmaxBandit):
        return changed(problem, policy=known)
    rewards = problem.rewards[:, :, None]
    return SoftmaxBandit(known, problem.probs, rewards, np.ones_like(rewards))


def bandit(policy):
    return changed(smooth(4, 5, 3, 3), policy=policy), policy


def one_token(shared):
    """A softmax per prefix of length 1 is a tabular bandit, each prompt's own table or one for all."""
    problem = modular_sum(4, 1, graded=True)
    return problem, PrefixSoftmax.random(problem.space, 4, seed=2, shared=shared)


GENERATOR = np.random.default_rng(1)
WITHOUT_FEATURES = {
    "tabular": bandit(TabularSoftmax(GENERATOR.normal(size=(4, 5)))),
    "shared linear": bandit(
        SharedLinearSoftmax(GENERATOR.normal(size=(4, 2)), GENERATOR.normal(size=(5, 2)))
    ),
    "one token": one_token(shared=False),
    "one token, shared": one_token(shared=True),
}


@each_baseline
@pytest.mark.parametrize("name", WITHOUT_FEATURES)
def test_policies_without_features_have_the_runs_of_those_with(name, estimator, monkeypatch):
    """Those of the reference engine, on the same draws."""
    problem, policy = WITHOUT_FEATURES[name]
    asked = {"schedule": Constant(0.6), "batch_size": 2, "design": "epochs"}
    training = NetworkTraining(problem, policy, 5, 20, **asked)
    monkeypatch.setattr(Trajectory, "name", training.address)
    snapshots, where = (0, 1, 7, 20), {"seed": 4, "first": FAR, "replications": 12}
    runs = Trajectory(
        by_arm(problem, policy), 5, 20, estimator=estimator, snapshots=snapshots, **asked
    )
    plain = runs.run("reference", **where)
    assert np.abs(plain[:, -1] - plain[:, 0]).max() > 1e-2
    assert np.abs(training.train(estimator, snapshots, **where) - plain).max() < TOLERANCE


# Token problems: a step in NumPy, from tables of scores and the verifier.


def draw(policy, x, drawn):
    """The output that words choose, token by token, by sums of probabilities of outputs."""
    outputs, probs = policy.space.outputs, policy.probs[x]
    left = np.ones(len(outputs), dtype=bool)
    for t, word in enumerate(drawn[:-1]):
        if left.sum() == 1:
            break
        here = [probs[left & (outputs[:, t] == a)].sum() for a in range(policy.space.symbols)]
        ends = np.cumsum(here)
        left &= outputs[:, t] == int((word * 2.0**-32 * ends[-1] >= ends).sum())
    assert left.sum() == 1
    return int(left.argmax())


def weigh(estimator, z, norms, probs, rewards, all_norms):
    """Advantages of one group, by the words of their definitions."""
    size = len(z)
    value = probs @ rewards
    best = (probs * all_norms) @ rewards / (probs @ all_norms)
    out = np.empty(size)
    for i in range(size):
        others = [j for j in range(size) if j != i]
        baseline = {
            "vanilla": 0.0,
            "constant": estimator.constant,
            "group-mean": np.mean(z),
            "grpo": np.mean(z[others]),
            "oracle": value,
            "minimum-variance": best,
            "norm-weighted": (norms[others] * z[others]).sum() / norms[others].sum(),
        }[estimator.baseline]
        out[i] = z[i] - baseline
    return out


def sgd(policy):
    """θ ← θ + η ĝ."""
    theta = policy.theta.copy()

    def step(rate, total):
        np.add(theta, rate * total, out=theta)
        return theta.copy()

    return step


def by_hand(training, estimator, number, seed, steps, stepper=sgd):
    """θ after some steps of one run, (d,)."""
    problem, policy = training.problem, training.policy
    batch, group, width = training.batch_size, training.group_size, problem.space.length + 1
    key = rng.cell_key(seed, training.address)
    choice = rng.words(key, [number], rng.CONTEXT_SLOT, steps * batch)[0]
    ends = rng.thresholds(problem.probs)
    theta, step = policy.theta, stepper(policy)
    for t in range(1, steps + 1):
        policy = policy.with_theta(theta)
        total = np.zeros(len(theta))
        for b in range(batch):
            x = int((choice[(t - 1) * batch + b] >= ends).sum())
            drawn = rng.words(key, [number], rng.step_slots(t, b), group * width)[0]
            chosen = [draw(policy, x, drawn[i * width : (i + 1) * width]) for i in range(group)]
            z = np.array(
                [problem.verifier(problem.prompts[x], problem.space.content(k)) for k in chosen]
            )
            scores = policy.scores(x)
            norms = (scores**2).sum(axis=1)
            advantage = weigh(
                estimator, z, norms[chosen], policy.probs[x], problem.rewards[x], norms
            )
            for k, a in zip(chosen, advantage, strict=True):
                total += a * scores[k] / (batch * group)
        rate = training.schedule.c / (t + training.schedule.t0)
        theta = step(rate, total)
    return theta


LONG = modular_sum(2, 3, end=True, graded=True, probs=[0.3, 0.7])
FIXED = sorting(2, 2, graded=True, prompts=[(1, 0), (1, 1), (0, 0)])


def uneven(space):
    """Prompts of no token to three."""
    return TokenProblem(
        space, [(0,), (1, 2, 0), ()], lambda x, y: (sum(y) + len(y) * (len(x) + 1)) % 3 / 2
    )


UNEVEN = uneven(OutputSpace(3, 2, end=True))
ONE_TOKEN = uneven(OutputSpace(4, 1))
ONE_OR_NONE = uneven(OutputSpace(3, 1, end=True))
ONE_WORD = uneven(OutputSpace(1, 3, end=True))


def network(problem, **options):
    return TransformerPolicy.initial(problem.space, problem.prompts, width=4, seed=6, **options)


def prefix(problem, shared=False):
    return PrefixSoftmax.random(problem.space, problem.contexts, seed=6, shared=shared)


TOKENS = {
    "prefix": (LONG, prefix(LONG), 2, 6),
    "prefix, shared": (FIXED, prefix(FIXED, shared=True), 1, 4),
    "transformer": (LONG, network(LONG), 2, 4),
    "transformer, fixed length": (FIXED, network(FIXED), 3, 2),
    "transformer, prompts of several lengths": (UNEVEN, network(UNEVEN), 2, 3),
    # As many outputs are drawn as there are: norms of all of them are cheaper.
    "transformer, one token": (ONE_TOKEN, network(ONE_TOKEN), 3, 4),
    "transformer, one token or none": (ONE_OR_NONE, network(ONE_OR_NONE), 1, 4),
    "transformer, one word": (ONE_WORD, network(ONE_WORD), 2, 5),
}
each_problem = pytest.mark.parametrize("which", TOKENS.values(), ids=TOKENS)


def token_cell(which, **changed):
    problem, policy, batch, group = which
    asked = {"schedule": Decay(4.0, 1.0), "batch_size": batch} | changed
    return NetworkTraining(problem, policy, group, 3, **asked)


def from_hand(training, estimator, runs=3, steps=2, stepper=sgd):
    """θ of some runs by the arithmetic above, (R, d)."""
    return np.stack([by_hand(training, estimator, FAR + r, 5, steps, stepper) for r in range(runs)])


def in_torch(training, estimator, runs=3, steps=2):
    """θ of the same runs, (R, d)."""
    return training.train(estimator, (steps,), seed=5, first=FAR, replications=runs)[:, 0]


FORMS = {
    "tree": {"by_table": True},
    "leaves, in pieces": {"by_table": True, "_TREE": 0, "_BYTES": 1, "_WORDS": 1},
    "walk": {"by_table": False},
}
"""How the probabilities of outputs are found: of every prefix, in two ways, or of those drawn."""


def force(patch, by_table, **limits):
    """Take the one form or the other, whatever they cost."""
    patch.setattr(
        network_runs._Runs, "by_table", property(lambda self: by_table, lambda self, _: None),
        raising=False,
    )  # fmt: skip
    for name, limit in limits.items():
        patch.setattr(network_runs, name, limit)


@each_problem
@each_baseline
def test_steps_are_what_scores_and_verifier_make(which, estimator):
    training, runs, steps = token_cell(which), 3, 2
    hand = from_hand(training, estimator, runs, steps)
    assert np.abs(hand - training.policy.theta).max() > 1e-2
    for form in FORMS.values():
        with pytest.MonkeyPatch.context() as patch:
            if form["by_table"] or estimator.baseline not in ("oracle", "minimum-variance"):
                force(patch, **form)
            found = in_torch(training, estimator, runs, steps)
        assert np.abs(found - hand).max() < 1e-9


# Other optimizers: torch's own on the parameters of one run, as a training loop calls them.


def stepped_by(*makers):
    """A stepper of optimizers, each made of the parameters (by name) that are its own."""

    def stepper(policy):
        if isinstance(policy, TransformerPolicy):
            parameters = {
                name: torch.nn.Parameter(size.clone()) for name, size in policy.state.items()
            }
        else:
            parameters = {"tables": torch.nn.Parameter(torch.tensor(policy.theta.copy()))}
        optimizers = [make(parameters) for make in makers]

        def step(rate, total):
            pieces = torch.tensor(total).split([each.numel() for each in parameters.values()])
            for each, piece in zip(parameters.values(), pieces, strict=True):
                each.grad = -piece.reshape(each.shape)
            for optimizer in optimizers:
                optimizer.param_groups[0]["lr"] = rate
                optimizer.step()
            return torch.cat([each.detach().flatten() for each in parameters.values()]).numpy()

        return step

    return stepper


def hidden(name, tensor):
    return name.startswith("layers.") and tensor.ndim == 2


def adam(parameters, **numbers):
    return torch.optim.Adam(parameters.values(), **numbers)


def muon(parameters, **numbers):
    own = [each for name, each in parameters.items() if hidden(name, each)]
    return torch.optim.Muon(
        own, weight_decay=0.0, **({"adjust_lr_fn": "match_rms_adamw"} | numbers)
    )


def muons_adam(parameters, **numbers):
    rest = [each for name, each in parameters.items() if not hidden(name, each)]
    return torch.optim.Adam(rest, **numbers)


OTHERS = {
    "adam": ("adam", stepped_by(adam)),
    "adam, other numbers": (
        Adam(0.5, 0.9, 1e-2),
        stepped_by(partial(adam, betas=(0.5, 0.9), eps=1e-2)),
    ),
    "muon": ("muon", stepped_by(muon, muons_adam)),
    "muon, other numbers": (
        Muon(0.5, 3, "original", Adam(0.0, 0.5)),
        stepped_by(
            partial(muon, momentum=0.5, ns_steps=3, adjust_lr_fn="original"),
            partial(muons_adam, betas=(0.0, 0.5)),
        ),
    ),
}


@pytest.mark.parametrize(
    ("which", "name"),
    [
        *(("prefix", name) for name in OTHERS if name.startswith("adam")),
        *product(["transformer", "transformer, two layers"], OTHERS),
    ],
)
def test_each_run_steps_as_torchs_own_optimizer_on_it_alone(which, name):
    optimizer, stepper = OTHERS[name]
    own = TOKENS.get(which) or (FIXED, network(FIXED, layers=2), 2, 3)
    training = token_cell(own, optimizer=optimizer, schedule=Decay(0.3, 1.0))
    hand = from_hand(training, GRPO, steps=3, stepper=stepper)
    assert np.abs(hand[0] - hand[1]).max() > 1e-2, "runs differ"
    assert np.abs(in_torch(training, GRPO, steps=3) - hand).max() < 1e-9
    # A chunk of one run is that run, and what was kept of a step stays as it was.
    alone = replace(training, chunk=1)
    kept = alone.train(GRPO, (0, 2, 3), seed=5, first=FAR, replications=3)
    assert np.abs(kept[:, 2] - hand).max() < 1e-9
    assert np.array_equal(kept[:, 0], np.tile(training.policy.theta, (3, 1)))
    two = from_hand(training, GRPO, steps=2, stepper=stepper)
    assert np.abs(kept[:, 1] - two).max() < 1e-9


def test_hidden_matrices_are_torchs_own_of_two_dimensions():
    policy = network(FIXED, layers=2)
    wanted = [each for name, each in policy.state.items() if hidden(name, each)]
    assert len(policy.hidden_matrices) == len(wanted) == 8
    for (begin, shape), tensor in zip(policy.hidden_matrices, wanted, strict=True):
        assert shape == tuple(tensor.shape)
        found = policy.theta[begin : begin + tensor.numel()].reshape(shape)
        assert np.array_equal(found, tensor.numpy())


# Planted errors: each must be seen.


def group_for_both(patch):
    """1/G for 1/(BG)."""
    own = network_runs._Runs.slope
    patch.setattr(
        network_runs._Runs,
        "slope",
        lambda self, *a: own(self, *a) * self.training.batch_size,
    )


def next_prompts_baseline(patch):
    """zᵢ less the baseline of the group beside."""
    own = network_runs._Runs._weighed

    def beside(self, theta, contexts, outputs, rewards, tabulated):
        weighed = own(self, theta, contexts, outputs, rewards, tabulated)
        return rewards - (rewards - weighed).roll(1, dims=1)

    patch.setattr(network_runs._Runs, "_weighed", beside)


def shifted(prompts):
    """Every word of the prompts, or of the outputs, one place on."""

    def plant(patch):
        own = network_runs.words

        def later(key, numbers, slots, count, first=0):
            these = (int(slots.max()) == rng.CONTEXT_SLOT) == prompts
            return own(key, numbers, slots, count, first + these)

        patch.setattr(network_runs, "words", later)

    return plant


def early_rate(patch):
    """ηₜ₋₁ for ηₜ."""
    own = Decay.rates
    patch.setattr(Decay, "rates", lambda self, steps: np.roll(own(self, steps), 1))


def upper_arm(patch):
    """w 2⁻³² C_A <= C_a with the running sum one place on."""
    own = network_runs._choose
    patch.setattr(network_runs, "_choose", lambda ends, w: (own(ends, w) + 1) % ends.shape[-1])


def as_in_a_text(patch):
    """Every node of the tree of tokens sees all those before it, its siblings too."""
    own = network_runs.Tables._plant

    def plant(self, policy, longest):
        own(self, policy, longest)
        later = torch.ones(self._hidden.shape[-2:], dtype=torch.bool).triu(1)
        self._hidden = later.expand(self._hidden.shape)

    patch.setattr(network_runs.Tables, "_plant", plant)


MUTANTS = {
    "1/G for 1/(BG)": group_for_both,
    "next prompt's baseline": next_prompts_baseline,
    "shifted words": shifted(prompts=False),
    "shifted prompts": shifted(prompts=True),
    "upper arm": upper_arm,
    "early rate": early_rate,
    "siblings are seen": as_in_a_text,
}


@pytest.mark.parametrize("plant", MUTANTS.values(), ids=MUTANTS)
def test_a_planted_error_is_seen(plant, monkeypatch):
    training = token_cell(TOKENS["transformer, fixed length"])
    hand = from_hand(training, GRPO)
    force(monkeypatch, by_table=True)
    assert np.abs(in_torch(training, GRPO) - hand).max() < 1e-9
    plant(monkeypatch)
    assert np.abs(in_torch(training, GRPO) - hand).max() > 1e-4


# Chunks, order, offsets.


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_chunks_and_order_change_no_more_than_rounding(precision):
    """At this size nothing at all; the limits are what sums in another order may do at others."""
    limit = {"float64": 1e-13, "float32": 1e-5}[precision]
    training = token_cell(TOKENS["transformer"], precision=precision, batch_size=3)
    estimator, where = GRPO, {"seed": 1, "first": FAR, "replications": 7}
    whole = training.train(estimator, (1, 3), **where)
    for chunk in (1, 2, 3):
        parts = replace(training, chunk=chunk).train(estimator, (1, 3), **where)
        assert np.abs(parts - whole).max() < limit
    later = training.train(estimator, (1, 3), seed=1, first=FAR + 5, replications=2)
    assert np.abs(later - whole[5:]).max() < limit
    assert np.abs(whole[5] - whole[6]).max() > 1e-2
    again = training.train(estimator, (1, 3), **where)
    assert np.array_equal(again, whole)


def test_single_precision_is_near_double():
    which = TOKENS["transformer"]
    double, single = (
        token_cell(which, precision=name).train(GRPO, (3,), replications=8)
        for name in ("float64", "float32")
    )
    assert 0 < np.abs(double - single).max() < 1e-4


# The truth.


def test_a_transformer_learns():
    problem = modular_sum(3, 2)
    policy = TransformerPolicy.initial(problem.space, problem.prompts, width=8, seed=0)
    training = NetworkTraining(
        problem, policy, 32, 100, Constant(0.1), 3, "epochs", precision="float32", block=4
    )
    gaps = [Gap(Estimator(name), step) for name in ("grpo", "oracle") for step in (0, 100)]
    mean = training.measure("autograd", gaps, seed=2, replications=4).mean
    assert mean[0] == pytest.approx(problem.gap(problem.bandit(policy)), abs=1e-12)
    assert mean[0] == mean[2] > 0.5
    assert max(mean[1], mean[3]) < 0.1
