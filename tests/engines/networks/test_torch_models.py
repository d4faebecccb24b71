"""Policies as functions of their parameters, against the policies themselves."""

from __future__ import annotations

import numpy as np
import pytest

from ustat_pg.policies import (
    ArmLinearSoftmax,
    OutputSpace,
    PrefixSoftmax,
    SharedLinearSoftmax,
    TabularSoftmax,
    TabulatedPolicy,
)
from ustat_pg.problems import sorting
from ustat_pg.validation import InputError

torch = pytest.importorskip("torch")

from torch.func import grad, vmap  # noqa: E402

from tests.support.networks import backward_loop  # noqa: E402
from ustat_pg.engines.networks.models import device_of, differentiable, model_of  # noqa: E402
from ustat_pg.policies.transformer import TransformerPolicy  # noqa: E402

RNG = np.random.default_rng(0)
ENDED, FIXED = OutputSpace(2, 3, end=True), OutputSpace(3, 2)
RAGGED = [(0,), (1, 2, 3), (), (2, 2)]
"""Prompts of no token to three, in no order."""

POLICIES = {
    "transformer-ragged": TransformerPolicy.initial(ENDED, RAGGED, width=4, seed=1),
    "transformer-even": TransformerPolicy.initial(FIXED, [(1,), (2,)], width=4, layers=2, seed=2),
    "transformer-one-token": TransformerPolicy.initial(OutputSpace(3, 1), RAGGED, width=4, seed=3),
    "transformer-no-prompt": TransformerPolicy.initial(ENDED, [()], width=4, seed=4),
    "prefix": PrefixSoftmax.random(ENDED, 3, seed=1),
    "prefix-shared": PrefixSoftmax.random(FIXED, 3, seed=2, shared=True),
    "prefix-one-word": PrefixSoftmax.random(OutputSpace(1, 3, end=True), 2, seed=3),
    "tabular": TabularSoftmax(RNG.normal(size=(3, 4))),
    "linear": ArmLinearSoftmax(RNG.normal(size=(3, 4, 5)), RNG.normal(size=5)),
    "linear-offset": ArmLinearSoftmax(
        RNG.normal(size=(3, 4, 2)), RNG.normal(size=2), RNG.normal(size=(3, 4))
    ),
    "shared": SharedLinearSoftmax(RNG.normal(size=(3, 2)), RNG.normal(size=(4, 2))),
    "one-arm": TabularSoftmax(RNG.normal(size=(2, 1))),
}
each = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


def batch(policy, count=40):
    """Contexts (n,), output numbers (n,), in no order."""
    contexts, outputs = policy.logits.shape
    rng = np.random.default_rng(7)
    return rng.integers(0, contexts, count), rng.integers(0, outputs, count)


def log_one(model):
    return lambda theta, x, y: model.log_prob(theta, x[None], y[None])[0]


@each
def test_log_probabilities_are_the_policys(policy):
    model, logs = model_of(policy), np.log(policy.probs)
    theta, every = model.theta(), torch.arange(len(logs))
    assert theta.shape == (model.d,) == policy.theta.shape
    assert model.outputs().shape == (logs.shape[1], model.length)
    found = model.all_log_probs(theta, every).numpy()
    assert found == pytest.approx(logs, abs=1e-13)
    contexts, numbers = batch(policy)
    drawn = model.log_prob(theta, torch.tensor(contexts), model.outputs()[torch.tensor(numbers)])
    assert drawn.numpy() == pytest.approx(logs[contexts, numbers], abs=1e-13)
    again = model.all_log_probs(theta, torch.tensor(contexts)).numpy()
    assert again == pytest.approx(logs[contexts], abs=1e-13)


@each
def test_gradients_are_the_policys_scores(policy):
    """Alone, and of many parameters at once."""
    model = model_of(policy)
    contexts, numbers = batch(policy)
    where, drawn = torch.tensor(contexts), model.outputs()[torch.tensor(numbers)]
    own = np.stack([policy.scores(x) for x in range(len(policy.logits))])
    found = vmap(grad(log_one(model)), (None, 0, 0))(model.theta(), where, drawn).numpy()
    assert found == pytest.approx(own[contexts, numbers], abs=1e-12)
    stacked = model.theta() + 0.1 * torch.tensor(RNG.normal(size=(5, model.d)))
    found = vmap(grad(log_one(model)))(stacked, where[:5], drawn[:5]).numpy()
    tables = vmap(lambda theta: model.all_log_probs(theta, where[:3]))(stacked).numpy()
    for i in range(5):
        moved = policy.with_theta(stacked[i].numpy())
        assert found[i] == pytest.approx(moved.scores(contexts[i])[numbers[i]], abs=1e-12)
        assert tables[i] == pytest.approx(np.log(moved.probs)[contexts[:3]], abs=1e-13)


@pytest.mark.parametrize("name", [n for n in POLICIES if n.startswith("transformer")])
def test_padding_changes_nothing(name):
    """Against one output at a time, of its own length, without padding or vmap."""
    policy = POLICIES[name]
    model = model_of(policy)
    every = torch.arange(policy.space.count)
    for x in range(len(policy.prompts)):
        logs, scores = backward_loop(policy, x)
        here = torch.full_like(every, x)
        found = model.log_prob(model.theta(), here, model.outputs())
        assert found.numpy() == pytest.approx(logs, abs=1e-13)
        slopes = vmap(grad(log_one(model)), (None, 0, 0))(model.theta(), here, model.outputs())
        assert slopes.numpy() == pytest.approx(scores, abs=1e-12)


@each
def test_token_by_token_is_teacher_forcing(policy):
    model = model_of(policy)
    contexts, numbers = batch(policy)
    where, drawn = torch.tensor(contexts), model.outputs()[torch.tensor(numbers)]
    forced = model.choice_log_probs(model.theta(), where, drawn)
    assert forced.shape == (len(contexts), model.length, model.choices)
    total = torch.zeros(len(contexts), dtype=torch.float64)
    for t in range(model.length):
        # What stands later is not read.
        hidden = torch.where(torch.arange(model.length) < t, drawn, -1)
        found = model.next_log_probs(model.theta(), where, hidden, t)
        assert found.exp().sum(-1).numpy() == pytest.approx(np.ones(len(contexts)), abs=1e-12)
        inside = drawn[:, t] >= 0
        assert torch.allclose(found[inside], forced[inside, t], rtol=0, atol=1e-13)
        taken = found.gather(1, drawn[:, t : t + 1].clamp(min=0))[:, 0]
        total += torch.where(inside, taken, 0.0)
    assert total.numpy() == pytest.approx(np.log(policy.probs)[contexts, numbers], abs=1e-13)


@each
@pytest.mark.parametrize("most", [1, 3, 10_000])
def test_parts_are_all_outputs_once(policy, most):
    model = model_of(policy)
    parts = list(model.parts(most))
    assert sorted(torch.cat(parts).tolist()) == list(range(policy.logits.shape[1]))
    every = torch.arange(len(policy.logits))
    for part in parts:
        found = model.all_log_probs(model.theta(), every, part).numpy()
        assert found == pytest.approx(np.log(policy.probs)[:, part.numpy()], abs=1e-13)
    if most == 10_000:
        assert len(parts) == 1


@each
def test_single_precision(policy):
    model = model_of(policy, precision="float32")
    every = torch.arange(len(policy.logits))
    assert model.theta().dtype == torch.float32
    found = model.all_log_probs(model.theta(), every)
    assert found.dtype == torch.float32
    assert found.numpy() == pytest.approx(np.log(policy.probs), abs=1e-5)


@each
def test_the_slope_of_a_weighted_sum_is_its_difference_quotient(policy):
    model, rng = model_of(policy), np.random.default_rng(1)
    weights, step = rng.normal(size=policy.logits.shape), rng.normal(size=policy.d)
    every = torch.arange(len(weights))
    slope = grad(lambda theta: (torch.tensor(weights) * model.all_log_probs(theta, every)).sum())
    along = float(slope(model.theta()) @ torch.tensor(step))
    ends = [
        (weights * np.log(policy.with_theta(policy.theta + h * step).probs)).sum()
        for h in (1e-5, -1e-5)
    ]
    assert along == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6, abs=1e-6)


@each
def test_nothing_is_made_on_another_device(policy):
    """A tensor made without a device would land on the default one and fail."""
    model = model_of(policy)
    contexts, numbers = (torch.tensor(a) for a in batch(policy))
    with torch.device("meta"):
        model = model_of(policy)
        theta = model.theta()
        drawn = model.outputs()[numbers]
        model.all_log_probs(theta, contexts, next(model.parts(2)))
        model.next_log_probs(theta, contexts, drawn, model.length - 1)
        found = vmap(grad(log_one(model)), (None, 0, 0))(theta, contexts, drawn)
    assert found.device.type == "cpu"
    assert torch.isfinite(found).all()


def test_tables_are_read_through_their_source():
    policy = POLICIES["transformer-ragged"]
    table = policy.tabulated()
    assert differentiable(table).theta.tolist() == policy.theta.tolist()
    found = model_of(table).all_log_probs(model_of(table).theta(), torch.tensor([1, 3])).numpy()
    assert found == pytest.approx(policy.logits[[1, 3]], abs=1e-13)
    # Tables at other parameters than their source's hold at their own.
    moved = policy.with_theta(policy.theta + 0.1).tabulated()
    mixed = TabulatedPolicy(moved.log_probs, moved.all_scores, moved.parameters, policy)
    found = model_of(mixed).all_log_probs(model_of(mixed).theta(), torch.arange(4)).numpy()
    assert found == pytest.approx(moved.log_probs, abs=1e-12)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda: model_of(TabulatedPolicy(np.log([[0.5, 0.5]]), [[[1.0], [-1.0]]])),
            "has no parameters to differentiate",
        ),
        (
            lambda: model_of(
                TabulatedPolicy.from_gram(np.log([[0.5, 0.5]]), [[1.0, -1.0], [-1.0, 1.0]])
            ),
            "has no parameters to differentiate",
        ),
        (lambda: model_of("grpo"), "no torch model of a str: there is one of TransformerPolicy"),
        (lambda: model_of(POLICIES["tabular"], precision="half"), "precision is 'half'"),
        (lambda: model_of(POLICIES["tabular"], "cuda:99"), "device 'cuda:99' is not there"),
        (lambda: device_of("meta"), "device is 'meta': choose cpu, cuda or cuda:N"),
        (lambda: device_of("gpu"), "device is 'gpu': choose cpu, cuda or cuda:N"),
        (lambda: device_of(None), "device is None"),
    ],
)
def test_what_has_no_model_is_refused(ask, message):
    with pytest.raises(InputError, match=message):
        ask()


def test_a_short_table_of_a_network_is_refused():
    """Where scores did not fit, only inner products were kept."""
    problem = sorting(2, 2)
    policy = TransformerPolicy.initial(problem.space, problem.prompts, width=4)
    short = problem.at(policy, memory=24 * 16**2).policy
    with pytest.raises(InputError, match="give the policy itself, or memory enough"):
        model_of(short)
