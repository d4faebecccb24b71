"""KL penalties against autograd and by hand, in every array library; what is refused."""

from __future__ import annotations

from itertools import product
from math import exp, log

import numpy as np
import pytest

from ustat_pg.estimators import KL_KINDS, KL_PLACES, kl_coefficients, kl_values
from ustat_pg.validation import InputError

VALUES = {
    "k1": lambda x: -x,
    "k2": lambda x: x * x / 2,
    "k3": lambda x: exp(x) - 1 - x,
}
LOG_RATIOS = np.array([[0.3, -1.2, 0.0], [2.0, -0.1, -0.7]])


def test_values_are_those_of_the_formulas():
    for kind, formula in VALUES.items():
        by_hand = [[formula(x) for x in row] for row in LOG_RATIOS.tolist()]
        assert np.allclose(kl_values(LOG_RATIOS, kind), by_hand, rtol=1e-14, atol=1e-16), kind


@pytest.mark.parametrize("kind", KL_KINDS)
@pytest.mark.parametrize("place", KL_PLACES)
def test_coefficients_are_what_autograd_makes_of_the_penalty(kind, place):
    """Ascent on minus the penalty, by the log-probabilities of the drawn tokens."""
    torch = pytest.importorskip("torch")
    own = torch.tensor(LOG_RATIOS - 1.5, requires_grad=True)
    reference = own.detach() + torch.tensor(LOG_RATIOS)
    values = torch.func.vmap(torch.func.vmap(lambda x: _formula(torch, kind, x)))(reference - own)
    if place == "loss":
        loss = values.sum()
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
    found = kl_coefficients(torch.tensor(LOG_RATIOS), kind, place)
    assert torch.allclose(found, gradient, rtol=1e-12, atol=1e-14)


def _formula(torch, kind, x):
    return {"k1": -x, "k2": x**2 / 2, "k3": torch.exp(x) - 1 - x}[kind]


@pytest.mark.parametrize("kind", KL_KINDS)
@pytest.mark.parametrize("place", KL_PLACES)
def test_array_libraries_agree(kind, place):
    torch, strict = pytest.importorskip("torch"), pytest.importorskip("array_api_strict")
    expected = kl_coefficients(LOG_RATIOS, kind, place)
    for array in (torch.tensor(LOG_RATIOS), strict.asarray(LOG_RATIOS)):
        found = kl_coefficients(array, kind, place)
        assert type(found) is type(array)
        assert np.allclose(np.asarray(found), expected, rtol=1e-14, atol=1e-15)
    single = kl_coefficients(torch.tensor(LOG_RATIOS, dtype=torch.float32), kind, place)
    assert single.dtype == torch.float32


def test_both_rewards_have_one_mean():
    """E cₜ sₜ by enumeration of two tokens, in plain loops: earlier penalties have no covariance."""
    first, second = [0.2, 0.8], [[0.5, 0.5], [0.9, 0.1]]
    reference = [0.6, 0.4], [[0.3, 0.7], [0.5, 0.5]]
    means = {place: np.zeros(2) for place in ("reward", "reward-to-go")}
    for a, b in product(range(2), repeat=2):
        chance = first[a] * second[a][b]
        ratios = np.array([reference[0][a] / first[a], reference[1][a][b] / second[a][b]])
        # The scores of the logits of choice 0 at the first token and beside a = 0.
        scores = np.array([(a == 0) - first[0], (a == 0) * ((b == 0) - second[0][0])])
        for place, mean in means.items():
            mean += chance * kl_coefficients(np.log(ratios), "k2", place) * scores
    assert abs(means["reward"][0]) > 0.01
    assert np.allclose(*means.values(), rtol=0, atol=1e-16)


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
        ({"log_ratio": np.array(1.0)}, "the last axis must hold the tokens"),
        ({"log_ratio": np.zeros((2, 0))}, "at least one"),
        ({"log_ratio": ["0.1"]}, "must be an array"),
    ],
)
def test_bad_input_is_refused(options, says):
    with pytest.raises(InputError, match=says):
        kl_coefficients(**{"log_ratio": LOG_RATIOS, **options})
    if "place" not in options:
        with pytest.raises(InputError, match=says):
            kl_values(**{"log_ratio": LOG_RATIOS, **options})
