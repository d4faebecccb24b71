"""Other kinds of arrays, bad arguments and bad answers of the function under test."""

import functools
import sys

import array_api_strict
import numpy as np
import pytest

from tests.support.advantages import failure, rloo
from tests.support.refusals import refusals, refuses
from ustat_pg import estimators, testing
from ustat_pg.problems import random_problem
from ustat_pg.testing import assert_finite, assert_invariances, assert_unbiased


def test_a_torch_trainer():
    torch = pytest.importorskip("torch")

    def torch_rloo(z):
        size = z.shape[1]
        return z - (z.sum(dim=1, keepdim=True) - z) / (size - 1)

    def torch_dr_grpo(z):
        return z - z.mean(dim=1, keepdim=True)

    def torch_grpo(z):
        return (z - z.mean(dim=1, keepdim=True)) / (z.std(dim=1, keepdim=True) + 1e-4)

    def on_the_graph(z):
        return torch_rloo(z) * torch.ones(1, requires_grad=True, dtype=z.dtype)

    # The five lines of the module's docstring.
    assert_unbiased(torch_rloo, array=torch.tensor)
    assert_finite(torch_rloo, array=torch.tensor)
    assert_invariances(torch_rloo, array=torch.tensor, examples=20)

    assert_unbiased(on_the_graph, array=torch.tensor)
    assert_unbiased(torch_rloo, array=torch.tensor, layout="minibatch", group_size=2)
    assert "(G-1)/G" in failure(assert_unbiased, torch_dr_grpo, array=torch.from_numpy)
    assert "not a multiple" in failure(assert_unbiased, torch_grpo, array=torch.tensor)
    assert_finite(torch_grpo, array=torch.tensor)

    def half(z):
        return torch_rloo(z).to(torch.bfloat16)

    assert_unbiased(half, array=torch.tensor, rtol=1e-2)
    single = functools.partial(torch.tensor, dtype=torch.float32)
    assert_unbiased(torch_rloo, array=single, rtol=1e-5)
    assert_invariances(torch_rloo, array=single, rtol=1e-5, examples=30)

    # Torch is imported, so that its tensors are tried where NumPy's arrays do not do.
    assert_unbiased(torch_rloo)
    assert_finite(torch_rloo)
    assert "(G-1)/G" in failure(assert_unbiased, torch_dr_grpo)


def test_a_function_of_unknown_arrays(monkeypatch):
    with pytest.raises(TypeError, match="unexpected keyword") as result:
        assert_unbiased(lambda z: z.sum(dimension=1))
    assert "array=torch.tensor for torch" in result.value.__notes__[0]
    # Without torch at hand nothing is tried, and torch's errors stay in its own functions.
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(TypeError, match="unexpected keyword"):
        assert_unbiased(lambda z: z.sum(dim=1, keepdim=True))
    with pytest.raises(ZeroDivisionError):
        assert_unbiased(lambda z: 1 / 0)


def test_an_array_of_the_strict_standard():
    assert_unbiased(estimators.grpo, array=array_api_strict.asarray)
    assert_invariances(estimators.grpo, array=array_api_strict.asarray, examples=10)


# Bad input.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"function": 3}, "function is 3: it must be callable"),
        ({"group_size": 1}, "group size is 1: it must be a whole number of at least 2"),
        ({"group_size": ()}, "group size is empty"),
        ({"layout": "flat"}, "layout 'flat' is unknown: choose one of batched, minibatch, group"),
        ({"inputs": "rewards"}, "inputs is 'rewards'"),
        ({"inputs": ("squared_norms",)}, "it must hold 'rewards'"),
        ({"inputs": ("rewards", "norms")}, "can hold squared_norms, contexts"),
        ({"array": "torch"}, "array is 'torch': it must be callable"),
    ],
)
@pytest.mark.parametrize("check", [assert_unbiased, assert_invariances, assert_finite])
def test_bad_arguments_are_refused(check, arguments, message):
    refuses(message, check, **{"function": rloo, **arguments})


PROBLEM = random_problem(0)

test_bad_arguments_of_one_check_are_refused = refusals(
    (lambda: assert_unbiased(rloo, problems=[]), "problems is empty"),
    (lambda: assert_unbiased(rloo, problems=[3]), "'number 0' is a int"),
    (lambda: assert_unbiased(rloo, rtol=-1), "rtol"),
    (lambda: assert_invariances(rloo, ["rotation"]), "invariance 'rotation' is unknown"),
    (lambda: assert_invariances(rloo, []), "which is empty"),
    (
        lambda: assert_unbiased(rloo, problems=PROBLEM, group_size=12),
        "take a smaller group or batch",
    ),
    (lambda: testing.problems(["plain", "odd"]), "kinds is"),
    (lambda: testing.rewards((5, 2)), r"number or \(least, greatest\)"),
)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda z: z.mean(axis=-1), "returned shape"),
        (lambda z: z[..., :1], "they must be equal"),
        (lambda z: None, "returned NoneType: it must return an array of numbers"),
        (lambda z: z.astype(str), "it must return an array of numbers"),
        (lambda z: 1j * z, "it must return an array of numbers"),
        (lambda z: (z, z), "returned shape"),
        (lambda z: [z, z[0]], "it must return an array of numbers"),
        (lambda z: z + np.inf, "is not finite"),
    ],
)
@pytest.mark.parametrize("check", [assert_unbiased, assert_invariances, assert_finite])
def test_bad_answers_are_refused(check, function, message):
    assert message in failure(check, function)


def test_an_assertion_inside_the_function_keeps_its_traceback():
    def guarded(z):
        assert z.max() < 0.75, "not such rewards"
        return rloo(z)

    with pytest.raises(AssertionError, match="not such rewards") as result:
        assert_unbiased(guarded)
    assert result.traceback[-1].name == "guarded"


def _mixed(rewards):
    return (rewards - rewards.mean()) / (rewards.std() + 1e-6)


def _of_numbers(rewards):
    total = sum(rewards := [float(reward) for reward in rewards])
    return np.array([reward - (total - reward) / (len(rewards) - 1) for reward in rewards])


@pytest.mark.parametrize(
    ("function", "message", "hinted"),
    [
        (lambda z: z - (z.sum() - z) / (len(z) - 1), "is not finite", True),
        (_mixed, "mixes the groups", True),
        (_of_numbers, "raised by _of_numbers", True),
        (lambda z: (z - z.mean(-1, keepdims=True)) / z.std(-1, keepdims=True), "finite", False),
        (lambda z: z + np.inf, "is not finite", False),
    ],
)
@pytest.mark.parametrize("check", [assert_unbiased, assert_finite])
def test_the_message_names_the_layout_of_a_one_group_function(check, function, message, hinted):
    with pytest.raises((AssertionError, TypeError)) as result:
        check(function)
    said = "".join([str(result.value), *getattr(result.value, "__notes__", ())])
    assert message in said
    assert ("one group at a time? layout='group'" in said) == hinted


def test_the_message_says_how_to_wrap_a_function_with_flat_output():
    def flat(z):
        return z.reshape(-1)

    with pytest.raises(AssertionError, match=r"flat\(z.reshape\(-1\), z.shape\[-1\]\)"):
        assert_unbiased(flat)
