"""Functions of verl's and SkyRL's signature, as functions of groups."""

import functools

import numpy as np
import pytest

from ustat_pg.estimators import advantages
from ustat_pg.testing import assert_unbiased, registered
from ustat_pg.validation import InputError

torch = pytest.importorskip("torch")


def of_groups(weigh):
    """A registered function that weighs the rewards (G,) of each group apart, by its name."""

    def function(token_level_rewards, response_mask, index):
        scores = token_level_rewards.sum(-1)
        out = torch.empty_like(scores)
        for name in dict.fromkeys(index):
            members = torch.as_tensor(index == name)
            out[members] = weigh(scores[members])
        result = out[:, None] * response_mask
        return result, result

    return function


def leave_one_out(scores):
    return (scores - scores.mean()) * len(scores) / (len(scores) - 1)


def test_a_right_function_passes_and_a_biased_one_does_not():
    assert_unbiased(registered(of_groups(leave_one_out)))
    with pytest.raises(AssertionError, match="function is biased"):
        assert_unbiased(registered(of_groups(lambda scores: scores - scores.mean())))


def test_advantages_use_the_rewards():
    rewards = np.random.default_rng(0).normal(size=(5, 4))
    result = registered(of_groups(leave_one_out))(rewards)
    assert np.allclose(result, advantages("grpo", rewards), rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("weigh", "said"),
    [
        (lambda z, n: leave_one_out(z) / n, "divides an output's advantage by its length"),
        (lambda z, n: leave_one_out(z) * n, "multiplies an output's advantage by its length"),
        (lambda z, n: leave_one_out(z / n), "divides an output's reward by its length"),
        (lambda z, n: leave_one_out(z) / n.sum(), "depends on the lengths of outputs"),
        (lambda z, n: leave_one_out(z) - 0.1 * n, "depends on the lengths of outputs"),
    ],
)
@pytest.mark.parametrize("size", [2, 4])
def test_division_by_length_is_named(weigh, said, size):
    """The commonest slip of a plugin; groups are not mixed by it, whatever its batch."""

    def mine(token_level_rewards, response_mask, index):
        scores, lengths = token_level_rewards.sum(-1), response_mask.sum(-1)
        out = torch.empty_like(scores)
        for name in dict.fromkeys(index):
            members = torch.as_tensor(index == name)
            out[members] = weigh(scores[members], lengths[members])
        result = out[:, None] * response_mask
        return result, result

    with pytest.raises(AssertionError, match=said) as caught:
        assert_unbiased(registered(mine), group_size=size)
    assert "mixes the groups" not in str(caught.value)
    assert_unbiased(registered(of_groups(leave_one_out)), group_size=size)


def test_other_arguments_are_bound():
    def scaled(token_level_rewards, response_mask, index, factor):
        return factor * token_level_rewards.sum(-1, keepdim=True) * response_mask

    result = registered(functools.partial(scaled, factor=2.0), tokens=1)(np.array([[1.0, 3.0]]))
    assert result.tolist() == [[2.0, 6.0]]


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (3, InputError, "it must be callable"),
        (lambda **given: given["token_level_rewards"].sum(-1), AssertionError, "shape"),
        (
            lambda **given: given["token_level_rewards"] * given["response_mask"],
            AssertionError,
            "tokens of one output different advantages",
        ),
    ],
)
def test_functions_that_cannot_be_checked_are_refused(function, error, message):
    with pytest.raises(error, match=message):
        registered(function)(np.ones((2, 3)))
