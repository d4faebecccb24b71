"""KL penalties against autograd and by hand, in every array library; what is refused."""

from math import log

import numpy as np
import pytest

from tests.support.refusals import refuses
from ustat_pg.estimators import KL_KINDS, KL_PLACES, kl_coefficients, kl_values
from ustat_pg.predictions import kl_gradient

LOG_RATIOS = np.array([[0.3, -1.2, 0.0], [2.0, -0.1, -0.7]])


@pytest.mark.parametrize("kind", KL_KINDS)
@pytest.mark.parametrize("place", KL_PLACES)
def test_coefficients_are_what_autograd_makes_of_the_penalty(kind, place):
    """Ascent on minus the penalty, by the log-probabilities of the drawn tokens."""
    torch = pytest.importorskip("torch")
    own = torch.tensor(LOG_RATIOS - 1.5, requires_grad=True)
    reference = own.detach() + torch.tensor(LOG_RATIOS)
    x = reference - own
    values = {"k1": -x, "k2": x**2 / 2, "k3": torch.exp(x) - 1 - x}[kind]
    assert torch.allclose(kl_values(x.detach(), kind), values, rtol=1e-12, atol=1e-15)
    if place == "loss":
        loss = values.sum()
    elif place.endswith("ratio"):
        logs = own - own.detach()
        totals = {
            "token-ratio": logs,
            "prefix-ratio": logs.cumsum(-1),
            "sequence-ratio": logs.sum(-1, keepdim=True),
        }
        loss = (torch.exp(totals[place]) * values).sum()
    elif place == "reward":
        loss = (values.sum(-1, keepdim=True).detach() * own).sum()
    else:
        loss = sum(
            values[i, u].detach() * own[i, t]
            for i in range(2)
            for t in range(3)
            for u in range(t, 3)
        )
    (gradient,) = torch.autograd.grad(-loss, own)
    result = kl_coefficients(torch.tensor(LOG_RATIOS), kind, place)
    assert torch.allclose(result, gradient, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", KL_KINDS)
@pytest.mark.parametrize("place", KL_PLACES)
def test_array_libraries_agree(kind, place):
    torch, strict = pytest.importorskip("torch"), pytest.importorskip("array_api_strict")
    expected = kl_coefficients(LOG_RATIOS, kind, place)
    for array in (torch.tensor(LOG_RATIOS), strict.asarray(LOG_RATIOS)):
        result = kl_coefficients(array, kind, place)
        assert type(result) is type(array)
        assert np.allclose(np.asarray(result), expected, rtol=1e-14, atol=1e-15)
    single = kl_coefficients(torch.tensor(LOG_RATIOS, dtype=torch.float32), kind, place)
    assert single.dtype == torch.float32


def test_a_small_log_ratio_keeps_its_digits():
    assert kl_coefficients(np.array([1e-12]), "k3")[0] == pytest.approx(1e-12, rel=1e-11)
    assert kl_values(np.array([log(2)]), "k3")[0] == pytest.approx(1 - log(2), rel=1e-15)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kind": "k4"}, "KL estimator 'k4' is unknown"),
        ({"place": "advantage"}, "place of the penalty 'advantage' is unknown"),
        ({"log_ratio": np.array([np.nan])}, "NaN or infinity"),
        ({"log_ratio": np.array([1j])}, "real numbers"),
        ({"log_ratio": np.array(1.0)}, "the last axis must be the tokens"),
        ({"log_ratio": np.zeros((2, 0))}, "at least one"),
        ({"log_ratio": ["0.1"]}, "must be an array"),
    ],
)
def test_bad_input_is_refused(options, says):
    refuses(says, kl_coefficients, **{"log_ratio": LOG_RATIOS, **options})
    if "place" not in options:
        refuses(says, kl_values, **{"log_ratio": LOG_RATIOS, **options})


def test_a_geometric_mean_of_ratios_is_no_tokens_ratio():
    """TRL's k3 with importance_sampling_level="sequence": two tokens, by autograd where π = π_old."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    logits = torch.tensor(rng.normal(size=(3, 2)), requires_grad=True)
    reference = torch.tensor(rng.dirichlet([1.0, 1.0], size=3))
    outputs = [(0, 0), (0, 1), (1, 0), (1, 1)]
    prefixes = [[0, 1 + first] for first, _ in outputs]
    policy = torch.softmax(logits, -1)
    loss = torch.zeros((), dtype=torch.float64)
    for nodes, output in zip(prefixes, outputs, strict=True):
        own = torch.log(policy[nodes, output])
        far = torch.log(reference[nodes, output]) - own
        ratio = (own - own.detach()).mean().exp()
        loss = loss + own.detach().sum().exp() * ((far.exp() - 1 - far) * ratio).sum()
    found = -torch.autograd.grad(loss, logits)[0].numpy()
    laws = policy.detach().numpy(), reference.numpy()
    plain, token, whole = (
        kl_gradient(*laws, "k3", place, prefixes=prefixes, tokens=outputs)
        for place in ("loss", "token-ratio", "sequence-ratio")
    )
    np.testing.assert_allclose(found, (whole + plain) / 2, atol=1e-12)
    assert np.abs(found - token).max() > 0.01
