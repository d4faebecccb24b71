"""Policies as functions of their parameters, against the policies themselves."""

import numpy as np
import pytest

from tests.support.policies import FORMS, dense, policy_of, transformer
from tests.support.refusals import refusals
from ustat_pg.policies import TabulatedPolicy

torch = pytest.importorskip("torch")

from torch.func import grad, vmap  # noqa: E402

from ustat_pg.policies.models import device_of, differentiable, model_of  # noqa: E402

RNG = np.random.default_rng(0)
WITHOUT_MODEL = ("bent", "bent-plain", "tables-reduced")
each = pytest.mark.parametrize("name", [name for name in FORMS if name not in WITHOUT_MODEL])


def batch(name, count=40):
    """Contexts (n,), output numbers (n,), in no order."""
    contexts, outputs = dense(name)[0].shape
    rng = np.random.default_rng(7)
    return rng.integers(0, contexts, count), rng.integers(0, outputs, count)


def log_one(model):
    return lambda theta, x, y: model.log_prob(theta, x[None], y[None])[0]


def near(logs, digits=13):
    """Log-probabilities, the very small ones to their digits."""
    return pytest.approx(logs, rel=10.0**-digits, abs=10.0**-digits)


@each
def test_log_probabilities_are_those_found_in_another_way(name):
    """For networks without padding or vmap, one output at a time, of its own length."""
    model, logs = model_of(policy_of(name)), dense(name)[0]
    theta, every = model.theta(), torch.arange(len(logs))
    assert theta.shape == (model.d,) == policy_of(name).theta.shape
    assert model.outputs.shape == (logs.shape[1], model.space.length)
    assert model.all_log_probs(theta, every).numpy() == near(logs)
    contexts, numbers = batch(name)
    drawn = model.log_prob(theta, torch.tensor(contexts), model.outputs[torch.tensor(numbers)])
    assert drawn.numpy() == near(logs[contexts, numbers])
    again = model.all_log_probs(theta, torch.tensor(contexts)).numpy()
    assert again == near(logs[contexts])


@each
def test_gradients_are_the_scores_found_in_another_way(name):
    """Alone, of a weighted sum, and of many parameters at once."""
    policy, scores = policy_of(name), dense(name)[1]
    model = model_of(policy)
    contexts, numbers = batch(name)
    where, drawn = torch.tensor(contexts), model.outputs[torch.tensor(numbers)]
    result = vmap(grad(log_one(model)), (None, 0, 0))(model.theta(), where, drawn).numpy()
    assert result == pytest.approx(scores[contexts, numbers], abs=1e-12)
    weights, every = RNG.normal(size=scores.shape[:2]), torch.arange(len(scores))
    total = grad(lambda theta: (torch.tensor(weights) * model.all_log_probs(theta, every)).sum())
    assert total(model.theta()).numpy() == pytest.approx(
        np.einsum("xk,xkd->d", weights, scores), abs=1e-11
    )
    if isinstance(policy, TabulatedPolicy):
        return
    stacked = model.theta() + 0.1 * torch.tensor(RNG.normal(size=(5, model.d)))
    result = vmap(grad(log_one(model)))(stacked, where[:5], drawn[:5]).numpy()
    tables = vmap(lambda theta: model.all_log_probs(theta, where[:3]))(stacked).numpy()
    for i in range(5):
        moved = policy.with_theta(stacked[i].numpy())
        assert result[i] == pytest.approx(moved.scores(contexts[i])[numbers[i]], abs=1e-12)
        assert tables[i] == near(np.log(moved.probs)[contexts[:3]])


def test_tables_are_read_through_their_source():
    policy = transformer()
    assert differentiable(policy.tabulated()).theta.tolist() == policy.theta.tolist()
    # Tables at other parameters than their source's hold at their own.
    moved = policy.with_theta(policy.theta + 0.1).tabulated()
    mixed = TabulatedPolicy(moved.log_probs, moved.all_scores, moved.parameters, policy)
    result = (
        model_of(mixed)
        .all_log_probs(model_of(mixed).theta(), torch.arange(len(moved.log_probs)))
        .numpy()
    )
    assert result == pytest.approx(moved.log_probs, abs=1e-12)


test_what_has_no_model_is_refused = refusals(
    (
        lambda: model_of(TabulatedPolicy(np.log([[0.5, 0.5]]), [[[1.0], [-1.0]]])),
        "has no parameters to differentiate",
    ),
    (lambda: model_of("grpo"), "no torch model of a str: there is one of TransformerPolicy"),
    (lambda: model_of(policy_of("tabular"), "cuda:99"), "device 'cuda:99' is not there"),
    (lambda: device_of("gpu"), "device is 'gpu': choose cpu, cuda or cuda:N"),
)
